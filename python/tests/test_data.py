# SPDX-License-Identifier: Apache-2.0
"""Samples by step and slot, and readers that give the same batches whoever reads them."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch

from phalanx.torch import seeds
from phalanx.torch.data import Loader, Place, Sampler, Streams


def test_samples_are_those_of_the_go_trainer() -> None:
    for case in json.loads((Path(__file__).parent / "samples.json").read_text()):
        s = Sampler(case["seed"], case["count"], case["global_batch"], case["slots"])
        assert s.samples(case["step"], case["slot"]) == case["samples"]


@pytest.mark.parametrize("count", [1, 10, 48, 100, 1000])
def test_every_epoch_has_every_sample_once(count: int) -> None:
    s = Sampler(5, count, 8, 4)
    row = [x for step in range(1, count + 1) for slot in range(4) for x in s.samples(step, slot)]
    for epoch in range(8):
        assert sorted(row[epoch * count : (epoch + 1) * count]) == list(range(count))
    if count > 10:
        assert row[:count] != row[count : 2 * count]


def test_an_epoch_that_drops_its_last_batch() -> None:
    s = Sampler(5, 29, 8, 4, drop_last=True)
    assert s.epoch_length == 24 and s.steps(2) == 6 and [s.epoch(n) for n in (1, 3, 4)] == [0, 0, 1]
    for epoch in range(5):
        used = [x for i in range(3) for slot in range(4) for x in s.samples(1 + epoch * 3 + i, slot)]
        assert max(Counter(used).values()) == 1
    assert Sampler(5, 29, 8, 4).steps(2) == 8


def test_ranks_of_a_group_share_a_slot() -> None:
    s = Sampler(5, 100, 24, 3)
    assert s.samples(2, 1, 0, 2) + s.samples(2, 1, 1, 2) == s.samples(2, 1)
    with pytest.raises(ValueError, match="do not divide among the 3 ranks"):
        s.samples(1, 0, 0, 3)


@pytest.mark.parametrize("arguments", [(0, 8, 4), (10, 9, 4), (10, 8, 0)])
def test_what_cannot_be_is_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError):
        Sampler(1, *arguments)
    with pytest.raises(ValueError, match="leaves nothing"):
        Sampler(1, 5, 8, 4, drop_last=True)


class Augmented(torch.utils.data.Dataset):
    """A data set that draws random numbers from all generators."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor([i, random.random(), float(torch.rand(()))], dtype=torch.float64)


def read(loader, first: int, end: int, steps: range) -> dict[tuple[int, int], list[torch.Tensor]]:
    out = {}
    for step in steps:
        place = Place(step, first, end, 0, 1)
        for slot in range(first, end):
            seeds.seed_all(seeds.computing(1, step, slot, 0, 0))  # as the loop does
            out[step, slot] = list(loader.slot(place, slot))
    return out


def equal(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        len(x) == len(b[k]) and all(map(torch.equal, x, b[k])) for k, x in a.items()
    )


def test_batches_do_not_depend_on_who_reads_them() -> None:
    sampler = Sampler(3, 50, 24, 6)
    want = read(Loader(Augmented(), sampler, micro_batch=2), 0, 6, range(1, 7))
    assert {len(b) for b in want.values()} == {2}
    reader = Loader(Augmented(), sampler, micro_batch=2, workers=2)
    got = read(reader, 0, 3, range(1, 3)) | read(reader, 2, 6, range(3, 4)) | read(reader, 0, 6, range(5, 7))
    assert equal(got, {k: want[k] for k in got})


def test_a_slot_that_was_left_half_way_is_read_again() -> None:
    sampler = Sampler(3, 50, 24, 6)
    want = read(Loader(Augmented(), sampler, micro_batch=2), 0, 6, range(1, 3))
    reader = Loader(Augmented(), sampler, micro_batch=2, workers=1)
    assert torch.equal(next(reader.slot(Place(1, 0, 6, 0, 1), 0)), want[1, 0][0])
    assert equal(read(reader, 0, 6, range(1, 3)), want)


def test_micro_batches_divide_a_slot() -> None:
    loader = Loader(Augmented(), Sampler(3, 50, 24, 6), micro_batch=3)
    with pytest.raises(ValueError, match="do not divide the 4 samples"):
        next(loader.slot(Place(1, 0, 6, 0, 1), 0))


class Counting:
    """A stream with state."""

    def __init__(self, slot: int, n: int = 7) -> None:
        self.slot, self.n, self.at = slot, n, 0

    def __iter__(self):
        while self.at < self.n:
            self.at += 1
            yield torch.tensor([self.slot, self.at])

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("make", [Counting, lambda slot: [torch.tensor([slot, i + 1]) for i in range(7)]])
def test_streams_go_on_wherever_their_slot_is(make) -> None:
    want = read(Streams(make, 3), 0, 4, range(1, 9))
    flat = [int(b[0][i, 1]) for (_, slot), b in sorted(want.items(), key=lambda x: x[0]) if slot == 2 for i in range(3)]
    assert flat == list(islice((i % 7 + 1 for i in range(100)), 24))
    a, b = Streams(make, 3), Streams(make, 3)
    got = read(a, 0, 2, range(1, 4)) | read(b, 2, 4, range(1, 4)) | read(b, 0, 4, range(4, 6)) | read(a, 0, 4, range(6, 9))
    assert equal(got, want)


def test_a_step_of_a_stream_is_read_again() -> None:
    s = Streams(Counting, 3)
    first = read(s, 0, 1, range(1, 4))
    assert equal(read(s, 0, 1, range(3, 4)), {(3, 0): first[3, 0]})


def test_an_empty_stream_is_an_error() -> None:
    with pytest.raises(ValueError, match="stream of slot 1 is empty"):
        next(Streams(lambda _: [], 2).slot(Place(1, 0, 2, 0, 1), 1))
    with pytest.raises(ValueError, match="stream of slot 1 is empty"):
        next(Streams(lambda _: [], 2).slot(Place(5, 0, 2, 0, 1), 1))


def test_streams_of_random_numbers_differ_by_place() -> None:
    keys = [seeds.computing(s, a, b, c, d) for s in range(2) for a in range(3) for b in range(3) for c in range(2) for d in range(2)]
    keys += [seeds.reading(s, a, b, c, d) for s in range(2) for a in range(3) for b in range(3) for c in range(2) for d in range(2)]
    keys += [seeds.applying(s, a) for s in range(2) for a in range(3)]
    assert len(set(keys)) == len(keys)


def test_an_error_inside_of_a_batch_leaves_the_stream_where_it_was() -> None:
    """A step whose generation has ended meanwhile is done again, also if reading has failed in it."""
    left = [6]

    def make(slot: int):
        for i in range(12):
            if left and i == left[0]:
                left.clear()
                raise OSError("planted")
            yield torch.tensor(i)

    s = Streams(make, 4)
    assert next(s.slot(Place(1, 0, 1, 0, 1), 0)).tolist() == [0, 1, 2, 3]
    with pytest.raises(OSError, match="planted"):
        next(s.slot(Place(2, 0, 1, 0, 1), 0))
    assert next(s.slot(Place(2, 0, 1, 0, 1), 0)).tolist() == [4, 5, 6, 7]
