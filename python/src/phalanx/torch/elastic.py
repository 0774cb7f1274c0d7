# SPDX-License-Identifier: Apache-2.0
"""The elastic loop: a training step that is committed by all ranks or by none, and done again when a rank falls.

    job = phalanx.torch.Elastic(model, optimizer, steps=1000, global_batch=64, data=dataset)
    for step in job:
        with step:
            for x, y in step.batches():
                loss_of(model(x), y).backward()

`optimizer.step()` and `zero_grad()` are called by the loop. What is inside `with step` may run again, in another world, with
other slots: it computes gradients and changes nothing else that lasts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import client as _client
from .. import errors
from . import data as _data
from . import seeds
from .gradients import Averaged, Layout
from .shards import Shards
from .state import Registered


class Elastic:
    """A training run. All ranks make it with the same arguments, from the same initial state.

    Args:
        model: the module to train. DistributedDataParallel is taken off: its reduction is this loop's work.
        optimizer: built from the model's parameters. It must not communicate.
        steps: the job is done when this step is committed.
        global_batch: samples of a step, whatever the number of ranks.
        data: data set with a length, or the number of its samples, or a `Loader` or `Streams`.
        slots: how many parts a global batch has that are computed one by one; more ranks than slots (times group size) would
            idle. Default: four for each group of the first start, as far as they divide the global batch. Part of the job:
            give the number to start a job again with another number of ranks.
        seed: of data order and random streams. The model must be built alike on all ranks.
        schedule: stepped after each optimizer step; a learning rate scheduler, or a list of them.
        scaler: a torch.amp.GradScaler; use `step.backward(loss)`.
        clip_norm: the largest norm of the whole gradient.
        weighted: the loss is a sum, and `step.count(n)` says over how many items (tokens); their total divides the gradient.
        group_size: ranks that hold one copy of the model together (FSDP); 1: each has the whole.
        objects: more things with `state_dict()` and `load_state_dict()` that change with the steps, by name.
        on_commit: called with the number of each committed step after the optimizer, as part of the state's change. It must
            not communicate, and depends on the state alone.
        micro_batch, workers, collate: see `Loader`.
        extra_bytes: room for what is no tensor; default four times what is there at first.
        settings: anything more that all ranks must agree on.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        steps: int,
        global_batch: int,
        data: Any,
        slots: int | None = None,
        seed: int = 0,
        schedule: Any = None,
        scaler: Any = None,
        clip_norm: float | None = None,
        weighted: bool = False,
        group_size: int = 1,
        objects: dict[str, Any] | None = None,
        on_commit: Any = None,
        micro_batch: int | None = None,
        workers: int = 0,
        collate: Any = None,
        drop_last: bool = False,
        extra_bytes: int = 0,
        settings: str = "",
    ) -> None:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model.require_backward_grad_sync = False  # as inside its no_sync(): the loop reduces
            model.require_forward_param_sync = False  # nor does its first forward broadcast buffers
            model = model.module
        self.model = model
        self.optimizer, self.seed, self.steps = optimizer, seed, steps
        self.scaler, self.clip_norm, self.weighted, self.on_commit = scaler, clip_norm, weighted, on_commit
        self.schedules = list(schedule) if isinstance(schedule, Sequence) else [schedule] if schedule else []
        slots = slots or getattr(getattr(data, "sampler", None), "slots", None) or _default_slots(global_batch, group_size)
        self.loader = _loader(data, seed, global_batch, slots, drop_last, micro_batch, workers, collate)
        kept = {f"schedule{i}": s for i, s in enumerate(self.schedules)}
        if scaler is not None:
            kept["scaler"] = scaler
        kept.update({f"object.{n}": o for n, o in (objects or {}).items()})

        self._shards = Shards(self.model, group_size)
        self._averaged = Averaged(self.model)
        self._state = Registered(self.model, optimizer, kept, extra_bytes, self._averaged.values)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        frozen = [p for p in self.model.parameters() if not p.requires_grad]
        self._layout = Layout(trained, self._averaged.floats, frozen)
        self._row = 0  # address of the reduced gradient that was voted for
        self._step: Step | None = None
        spec = {
            "last_step": steps, "seed": seed, "slots": slots, "global_batch": global_batch,
            "data_length": _data_length(self.loader), "group_size": group_size, "threads": torch.get_num_threads(),
            "settings": _settings(self, settings),
        }
        self.client = _client.Client.hello(
            spec=spec,
            state=[_tensor(e) for e in self._state.entries],
            gradient_elements=self._layout.elements,
            apply=self._apply,
            extra_bytes=self._shards.segment_bytes,
            pinned=-1 if self._shards.coordinate is None else self._shards.coordinate,
        )

    @property
    def applied(self) -> int:
        """The newest committed step that the model holds; 0 at first."""
        return self.client.applied().step

    @property
    def coordinate(self) -> int:
        """This rank's shard coordinate; 0 where each rank has the whole model."""
        return self._shards.coordinate or 0

    def __iter__(self) -> Iterator[Step]:
        while True:
            if self._step is not None and not self._step.closed:
                raise RuntimeError("the step was not entered: write `for step in job:` and then `with step:` around its body")
            try:
                begun = self.client.begin()
            except errors.Done:
                if self.client.healed():  # to the last step: what follows the loop reads the model
                    self._replaced()
                try:
                    self.client.finish()
                    return
                except errors.Repeat:
                    continue
            except (errors.Preempted, errors.Orphaned) as e:
                raise SystemExit(errors.EXIT_PREEMPTED) from e
            if begun.healed:
                self._replaced()
            self._state.check()
            try:
                self._shards.begin(begun)
            except errors.Revoked:
                continue
            self._step = Step(self, begun)
            yield self._step

    def digest(self) -> str:
        """The digest of model and optimizer as hexadecimal digits: equal for equal bits."""
        return str(self.client.state_digest())

    def _replaced(self) -> None:
        self._state.replaced()
        self._averaged.restored()

    # -- what the client calls

    def _apply(self, step: int) -> None:
        """The optimizer's step: from the reduced gradient and the state alone. It may run inside of begin."""
        layout = self._layout
        seeds.seed_all(seeds.applying(self.seed, step))
        layout.hand_out(self._row)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)  # unscales first, and skips the update after an overflow
            self.scaler.update()
        for schedule in self.schedules:
            schedule.step()
        layout.clear()
        self._averaged.take(layout.views(self._row)[2])
        if self.on_commit is not None:
            self.on_commit(step)
        self._state.stepped()


class Step:
    """A step that this rank computes its part of. `committed` says after the `with` block how it ended; `healed`, whether
    this rank has just received the state from another one.
    """

    def __init__(self, job: Elastic, begun: _client.Begin) -> None:
        self._job, self._begun = job, begun
        self.number: int = begun.step
        self.generation, self.healed = begun.generation, begun.healed
        self.rank, self.world = begun.rank, begun.world
        self.closed = self.committed = False
        self._folded = begun.slots[0]
        self._items = 0
        self._place = _data.Place(begun.step, begun.slots[0], begun.slots[1], begun.coordinate, begun.group_size)

    def __enter__(self) -> Step:
        self._job._layout.clear()
        self._job.client.fold()
        return self

    def slots(self) -> Iterator[int]:
        """This rank's slots, one after the other. The gradients of a slot are taken when the next one is asked for."""
        job = self._job
        for slot in range(*self._begun.slots):
            job.client.working(self.number, slot)
            row = job.client.slot_buffer(slot)
            job._averaged.begin_slot()
            self._seed(slot, 0)
            yield slot
            job._layout.collect(row)
            job._layout.clear()
            job._averaged.end_slot()
            job.client.slot_done(slot)
            self._folded = slot + 1

    def batches(self) -> Iterator[Any]:
        """The batches of this rank's slots. With micro-batches, divide the loss by `step.micro_batches`, or use `backward`."""
        for slot in self.slots():
            for i, batch in enumerate(self._job.loader.slot(self._place, slot)):
                self._seed(slot, i)  # reading has its own random numbers
                yield batch

    def _seed(self, slot: int, batch: int) -> None:
        seeds.seed_all(seeds.computing(self._job.seed, self.number, slot, self._place.part, batch))

    def samples(self, slot: int) -> list[int]:
        """The numbers of the samples that this rank computes of a slot."""
        place = self._place
        return self._job.loader.sampler.samples(self.number, slot, place.part, place.parts)

    @property
    def micro_batches(self) -> int:
        """Micro-batches in a slot."""
        size = getattr(self._job.loader, "micro_batch", None)
        if not size:
            return 1
        s = self._job.loader.sampler
        return s.global_batch // s.slots // self._place.parts // size

    def backward(self, loss: torch.Tensor) -> None:
        """Backward of a batch's mean loss (its sum with `weighted`): divided by the micro-batches, scaled by the loss scaler."""
        if self.micro_batches > 1 and not self._job.weighted:
            loss = loss / self.micro_batches
        if self._job.scaler is not None:
            loss = self._job.scaler.scale(loss)
        loss.backward()

    def count(self, items: int) -> None:
        """Says how many items (tokens) the loss of a batch is a sum over; with `weighted`."""
        self._items += int(items)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self.closed = True
        job = self._job
        job._layout.clear()
        try:
            return self._close(error)
        finally:
            job._shards.end()

    def _close(self, error: BaseException | None) -> bool:
        job = self._job
        if error is None:
            try:
                self._finish()
                return False
            except errors.Orphaned as e:
                raise SystemExit(errors.EXIT_PREEMPTED) from e
            except Exception as e:
                if not self._void(e):
                    raise
        elif isinstance(error, errors.Orphaned):
            raise SystemExit(errors.EXIT_PREEMPTED) from error
        elif not self._void(error):
            return False
        job._averaged.begin_slot()
        job._shards.reset()
        return True

    def _void(self, error: BaseException) -> bool:
        """Whether an error is one of a step that is over: the generation ended meanwhile, and the step is done again."""
        seen: BaseException | None = error
        while seen is not None:
            if isinstance(seen, errors.Revoked):
                return True
            seen = seen.__cause__
        return isinstance(error, Exception) and not isinstance(error, errors.Error) and self._job.client.superseded()

    def _finish(self) -> None:
        job, begun = self._job, self._begun
        if self._folded != begun.slots[1]:
            raise RuntimeError(
                f"step {self.number} was left after slot {self._folded - 1}; slots {begun.slots[0]} to {begun.slots[1] - 1} "
                "are to be computed: iterate over `step.batches()` or `step.slots()` to its end"
            )
        row = job.client.reduce(mean=not job.weighted)
        whole, _, means = job._layout.views(row)
        gradient = whole[: job._layout.trained]
        if job.weighted:
            self._divide(gradient, means)
        job._shards.average(means)
        job._shards.settle_gradient(gradient, job.clip_norm, job.scaler)
        job._row = row
        self.committed = job.client.vote()

    def _divide(self, gradient: torch.Tensor, means: list[torch.Tensor]) -> None:
        job = self._job
        total = job._shards.sum_in_group(job.client.reduce_counts([self._items])[0])
        if total <= 0:
            raise ValueError(f"step {self.number} has no items; call step.count(n) for each batch of a weighted job")
        gradient.div_(float(total) / self._place.parts)
        if means:
            torch._foreach_div_(means, float(self._begun.slot_count))


def _default_slots(global_batch: int, group_size: int) -> int:
    groups = max(1, int(os.environ.get("WORLD_SIZE", "1")) // group_size)
    for slots in range(min(4 * groups, global_batch), 0, -1):
        if global_batch % slots == 0 and global_batch // slots % group_size == 0:
            return slots
    raise ValueError(f"a global batch of {global_batch} samples does not divide among groups of {group_size} ranks")


def _loader(data, seed, global_batch, slots, drop_last, micro_batch, workers, collate):  # type: ignore[no-untyped-def]
    if isinstance(data, (_data.Loader, _data.Streams)):
        own = data.sampler if isinstance(data, _data.Loader) else None
        if own is not None and (own.global_batch, own.slots) != (global_batch, slots):
            raise ValueError(
                f"the Loader's sampler has a global batch of {own.global_batch} in {own.slots} slots, Elastic {global_batch} in {slots}: "
                "samples would be used twice or not at all; give both the same"
            )
        if own is None and data.per_slot * slots != global_batch:
            raise ValueError(f"Streams takes {data.per_slot} items for each of {slots} slots, and the global batch is {global_batch}")
        return data
    sampler = _data.Sampler(seed, _data.length(data), global_batch, slots, drop_last)
    if isinstance(data, int):
        return _data.Numbers(sampler)
    return _data.Loader(data, sampler, micro_batch=micro_batch, workers=workers, collate=collate)


def _data_length(loader: Any) -> int:
    return loader.sampler.count if hasattr(loader, "sampler") else 0


def _settings(job: Elastic, more: str) -> str:
    parts = [type(job.model).__name__, type(job.optimizer).__name__]
    if job.clip_norm is not None:
        parts.append(f"clip_norm={job.clip_norm!r}")
    if job.weighted:
        parts.append("weighted")
    if job.scaler is not None:
        parts.append("scaled")
    return " ".join([*parts, more]).strip()


def _tensor(entry: Any) -> _client.Tensor:
    from .dtypes import NAMES

    t = entry.tensor
    box = _client.Global(*entry.box) if entry.box else None
    return _client.Tensor(entry.name, NAMES[t.dtype], tuple(t.shape), t.data_ptr(), t.numel() * t.element_size(), box)
