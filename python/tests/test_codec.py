# SPDX-License-Identifier: Apache-2.0
"""What is no tensor comes back as it was, to the bit."""

from __future__ import annotations

import math
import random
from collections import Counter, OrderedDict

import pytest
import torch

from phalanx.torch import codec

VALUES = [
    None, True, 0, -5, 2**70, 0.1, -0.0, math.inf, "ä\n", b"\x00\xff", [1, (2, [3.5])], {"a": {1: None, (1, 2): "x"}}, {3, 1},
    frozenset({"b"}), torch.tensor([1.5, float("nan")], dtype=torch.bfloat16), torch.tensor(3), torch.empty(0, 4),
    OrderedDict(a=1), Counter({3: 2}), random.Random(3).getstate(), torch.get_rng_state(),
]


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
            and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
        )
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, float):
        return isinstance(b, float) and a.hex() == b.hex()
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_round_trip(value: object) -> None:
    assert same(value, codec.decode(codec.encode(value)))


def test_nan_keeps_being_one() -> None:
    assert math.isnan(codec.decode(codec.encode(math.nan)))


def test_a_schedule_comes_back() -> None:
    def make():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
        a = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3)
        b = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
        return optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [a, b], milestones=[3])

    optimizer, schedule = make()
    for _ in range(5):
        optimizer.step()
        schedule.step()
    beside, other = make()
    beside.load_state_dict(codec.decode(codec.encode(optimizer.state_dict())))
    other.load_state_dict(codec.decode(codec.encode(schedule.state_dict())))
    assert other.get_last_lr() == schedule.get_last_lr()
    for _ in range(4):
        schedule.step()
        other.step()
        assert other.get_last_lr() == schedule.get_last_lr()


def test_what_is_not_kept_is_named() -> None:
    with pytest.raises(codec.CodecError, match=r"\['a'\]\[1\] is a .*object"):
        codec.encode({"a": [1, object()]})


def test_what_does_not_fit_says_how_much_is_needed() -> None:
    buffer = torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(codec.CodecError, match="extra_bytes="):
        codec.write(buffer, "x" * 100)


def test_the_rest_of_the_tensor_is_zero() -> None:
    buffer = torch.full((64,), 7, dtype=torch.uint8)
    codec.write(buffer, [1])
    assert codec.read(buffer) == [1]
    assert buffer[codec.LENGTH + 3 :].sum() == 0
