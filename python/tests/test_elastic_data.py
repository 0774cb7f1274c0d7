# SPDX-License-Identifier: Apache-2.0
"""The loop and what reads its data agree on how a step is cut."""

from __future__ import annotations

import pytest
import torch

import phalanx.torch
from phalanx.torch import Loader, Sampler, Streams


def elastic(data, **arguments):
    model = torch.nn.Linear(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return phalanx.torch.Elastic(model, optimizer, steps=2, global_batch=8, data=data, **arguments)


def test_a_loader_that_cuts_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHALANX_SOCKET", raising=False)
    rows = torch.randn(64, 5)
    for sampler, arguments in ((Sampler(0, 64, 8, 2), {"slots": 4}), (Sampler(0, 64, 16, 4), {})):
        with pytest.raises(ValueError, match="used twice or not at all"):
            elastic(Loader(rows, sampler), **arguments)
    with pytest.raises(ValueError, match="takes 3 items for each of 4 slots"):
        elastic(Streams(lambda _: rows, 3), slots=4)
    loop = elastic(Loader(rows, Sampler(0, 64, 8, 2)))  # whose slots it takes
    seen = []
    for step in loop:
        with step:
            for x in step.batches():
                seen.append(len(x))
                loop.model(x).square().mean().backward()
    assert seen == [4] * 4
    loop.client.close()
