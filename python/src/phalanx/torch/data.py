# SPDX-License-Identifier: Apache-2.0
"""Which samples a slot of a step holds, and ways to read them."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from .. import _native
from . import seeds


@dataclass(frozen=True)
class Sampler:
    """Samples by step and slot: a value without state, so no record of what was used can be wrong.

    The samples of a run are an endless row of epochs, each a permutation of its own of all `count` samples. Steps take
    `global_batch` of them one after the other, slots take equal shares of a step in slot order. Nothing is dropped or
    repeated at the seam of two epochs: a batch goes on in the next one. With `drop_last` an epoch ends with its last whole
    batch instead.
    """

    seed: int
    count: int
    global_batch: int
    slots: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("a data set without samples")
        if self.slots < 1 or self.global_batch % self.slots:
            raise ValueError(f"{self.slots} slots do not divide the global batch of {self.global_batch} samples")
        if self.drop_last and self.count < self.global_batch:
            raise ValueError(f"drop_last with {self.count} samples and a global batch of {self.global_batch} leaves nothing")

    @property
    def epoch_length(self) -> int:
        """Samples that an epoch uses."""
        return self.count - self.count % self.global_batch if self.drop_last else self.count

    def steps(self, epochs: int) -> int:
        """The number of steps after which each sample was used in `epochs` epochs; the last step may reach into the next."""
        return -(-epochs * self.epoch_length // self.global_batch)

    def epoch(self, step: int) -> int:
        """The epoch, from 0, in which a step begins."""
        return (step - 1) * self.global_batch // self.epoch_length

    def samples(self, step: int, slot: int, part: int = 0, parts: int = 1) -> list[int]:
        """The samples of a slot of a step, counted from 1; of `parts` equal parts of it the one numbered `part`."""
        each = self.global_batch // self.slots
        if each % parts:
            raise ValueError(f"the {each} samples of a slot do not divide among the {parts} ranks of a group")
        n = each // parts
        first = (step - 1) * self.global_batch + slot * each + part * n
        out = (ctypes.c_int64 * n)()
        if _native.library().posts.phx_samples(self.seed, self.count, self.epoch_length, first, n, out) != 0:
            raise ValueError(f"step {step}, slot {slot}: out of range")
        return list(out)


@dataclass(frozen=True)
class Place:
    """What a loader must know about a begun step: the deal of slots, and the rank's part of each slot."""

    step: int
    first: int
    end: int
    part: int
    parts: int


class Loader:
    """Reads the slots of a data set with a length and an index, with the worker processes of a DataLoader.

    Workers read ahead into the next steps, in the order in which this rank will need them. When slots are dealt anew, what
    was read ahead is dropped and read again by whoever needs it. Random numbers that the data set or `collate` draws from the
    default generators (augmentation) depend on the batch alone: not on who reads it, nor on the number of workers.

    Args:
        dataset: has `len()` and `[]`.
        sampler: says which samples a slot holds.
        micro_batch: samples of a forward pass; it divides a slot. None: a slot at a time.
        workers: worker processes; 0 reads in the trainer.
        collate: makes a batch of a list of samples.
        options: more arguments of DataLoader.
    """

    def __init__(
        self,
        dataset: Dataset,
        sampler: Sampler,
        *,
        micro_batch: int | None = None,
        workers: int = 0,
        collate: Callable[[list], Any] | None = None,
        **options: Any,
    ) -> None:
        self.sampler, self.micro_batch = sampler, micro_batch
        self._collate = collate or default_collate
        self._keyed = _Keyed(dataset)
        self._place: Place | None = None
        self._batches: Iterator[Any] = iter(())
        self._next: tuple[int, int] | None = None  # step and slot that the running iterator gives next
        self._order = _Order(self)
        self._loader: DataLoader | None = None
        if workers:
            # Its own generator: a DataLoader draws a seed from the default one, which belongs to the slot.
            options.setdefault("generator", torch.Generator().manual_seed(0))
            self._loader = DataLoader(
                self._keyed, batch_sampler=self._order, num_workers=workers, collate_fn=self._collate,
                persistent_workers=True, **options,
            )  # fmt: skip

    def slot(self, place: Place, slot: int) -> Iterator[Any]:
        """The batches of a slot."""
        pieces = self.pieces(place, place.step, slot)
        if self._loader is None:
            for piece in pieces:
                yield self._collate(self._keyed.__getitems__(piece))
            return
        if self._next != (place.step, slot) or self._place is None or not _same(self._place, place):
            self._place, self._order.start = place, (place.step, slot)
            self._batches = iter(self._loader)
        self._next = None  # until the slot is whole
        for _ in pieces:
            yield next(self._batches)
        self._next = (place.step, slot + 1) if slot + 1 < place.end else (place.step + 1, place.first)

    def pieces(self, place: Place, step: int, slot: int) -> list[Piece]:
        """The samples of a slot, cut into micro-batches."""
        samples = self.sampler.samples(step, slot, place.part, place.parts)
        size = self.micro_batch or len(samples)
        if len(samples) % size:
            raise ValueError(f"micro-batches of {size} do not divide the {len(samples)} samples of a slot")
        return [
            Piece(seeds.reading(self.sampler.seed, step, slot, place.part, i), samples[i : i + size])
            for i in range(0, len(samples), size)
        ]


class Piece(NamedTuple):
    """A micro-batch to read: the key of its random numbers, and its samples."""

    key: int
    samples: list[int]


class _Keyed(Dataset):
    """A data set that is read by pieces."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getitems__(self, piece: Piece) -> list[Any]:
        seeds.seed_all(piece.key)
        fetch = getattr(self._dataset, "__getitems__", None)
        return fetch(piece.samples) if fetch else [self._dataset[i] for i in piece.samples]


def _same(a: Place, b: Place) -> bool:
    return (a.first, a.end, a.part, a.parts) == (b.first, b.end, b.part, b.parts)


class _Order:
    """The order in which a rank needs samples under one deal, without end."""

    def __init__(self, loader: Loader) -> None:
        self._loader, self.start = loader, (1, 0)

    def __iter__(self) -> Iterator[Piece]:
        place = self._loader._place
        assert place is not None
        step, slot = self.start
        while True:
            yield from self._loader.pieces(place, step, slot)
            slot += 1
            if slot >= place.end:
                step, slot = step + 1, place.first


class Numbers:
    """Reads nothing: the batch of a slot is the list of its samples' numbers."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def slot(self, place: Place, slot: int) -> Iterator[list[int]]:
        """The numbers of the samples that this rank computes of a slot."""
        yield self.sampler.samples(place.step, slot, place.part, place.parts)


class Streams:
    """Reads data without an index: one stream for each slot, of which each step takes `per_slot` items.

    `make(slot)` returns an iterable of the slot's items, the same ones each time, also on another rank: for instance shards
    of files dealt by slot number. When a slot comes to another rank, that rank goes on where the slot stands: by
    `load_state_dict` if the iterable has it and its state at an earlier step is known here, else by reading on from the
    start. A stream that ends begins again.
    """

    def __init__(self, make: Callable[[int], Iterable[Any]], per_slot: int, *, collate: Callable[[list], Any] | None = None):
        self._make, self.per_slot, self._collate = make, per_slot, collate or default_collate
        self._open: dict[int, tuple[int, Any, Iterator[Any]]] = {}  # slot: items taken, iterable, iterator
        self._known: dict[int, tuple[int, Any]] = {}  # slot: items taken, state then

    def slot(self, place: Place, slot: int) -> Iterator[Any]:
        """The batch of a slot: this rank's part of its items."""
        if self.per_slot % place.parts:
            raise ValueError(f"the {self.per_slot} items of a slot do not divide among {place.parts} ranks of a group")
        want = (place.step - 1) * self.per_slot
        # Taken out until the batch is whole: an error in the middle of it leaves the stream at no known place.
        taken, source, items = self._open.pop(slot, (-1, None, None))
        if taken != want:
            taken, source, items = self._seek(slot, want)
        if hasattr(source, "state_dict"):
            self._known[slot] = (want, source.state_dict())
        renewed = False
        batch: list[Any] = []
        while len(batch) < self.per_slot:
            before = len(batch)
            batch += itertools.islice(items, self.per_slot - before)
            if len(batch) < self.per_slot:
                if len(batch) == before and renewed:
                    raise ValueError(f"the stream of slot {slot} is empty")
                source, renewed = self._make(slot), True
                items = iter(source)
        self._open[slot] = (want + self.per_slot, source, items)
        n = self.per_slot // place.parts
        yield self._collate(batch[place.part * n : (place.part + 1) * n])

    def _seek(self, slot: int, want: int) -> tuple[int, Any, Iterator[Any]]:
        source, taken = self._make(slot), 0
        at, state = self._known.get(slot, (0, None))
        if state is not None and at <= want and hasattr(source, "load_state_dict"):
            source.load_state_dict(state)
            taken = at
        items, begun_again = iter(source), False
        while taken < want:
            got = False
            for _ in items:
                taken, got = taken + 1, True
                if taken == want:
                    break
            else:
                if begun_again and not got:
                    raise ValueError(f"the stream of slot {slot} is empty")
                source, begun_again = self._make(slot), True
                items = iter(source)
        return taken, source, items


def length(data: Any) -> int:
    """The length of a data set, or a number of samples as it is."""
    return data if isinstance(data, int) else len(data)
