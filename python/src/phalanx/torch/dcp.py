# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint on published checkpoints: a StorageWriter that is also an AsyncStager, and a StorageReader.

    dcp.save(state, storage_writer=StorageWriter("phalanx://step-100"))
    future = dcp.async_save(state, storage_writer=StorageWriter("phalanx://step-200"))
    dcp.load(state, storage_reader=StorageReader("phalanx://latest"))

Tensors are copied once, into memory that is shared with the process that writes the store; a staged state is handed over as it
lies. Every byte that is read was verified. docs/checkpoint-python.md has the URLs and what is promised.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    Metadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ._arena import Arena, Stage, align
from ._load import THREADS, StorageReader
from ._save import Save, begin, rank
from ._service import (
    CheckpointError,
    Damaged,
    Incomplete,
    NotPublished,
    StoreFailed,
    Superseded,
    is_url,
    parse_checkpoint,
)
from .dtypes import NAMES

try:  # 2.6 has it; it is asked for by those that have storage_meta
    from torch.distributed.checkpoint.metadata import StorageMeta
except ImportError:  # pragma: no cover
    StorageMeta = None  # type: ignore[assignment,misc]

try:
    from torch.distributed.checkpoint.staging import AsyncStager as _AsyncStager
except ImportError:  # pragma: no cover
    _AsyncStager = object  # type: ignore[assignment,misc]

__all__ = [
    "CheckpointError",
    "Damaged",
    "Incomplete",
    "NotPublished",
    "StorageReader",
    "StorageWriter",
    "StoreFailed",
    "Superseded",
]

BUCKET_BYTES = 128 << 20
"""How much of a state that was not staged is copied at once, for each thread: with THREADS the memory that a save takes."""


@dataclass
class _Piece:
    """What is to be written of one item."""

    item: WriteItem
    data: torch.Tensor | bytes
    at: int = 0  # in the memory of its bucket

    @property
    def nbytes(self) -> int:
        d = self.data
        return len(d) if isinstance(d, bytes) else d.numel() * d.element_size()


class StorageWriter(_StorageWriter, _AsyncStager):  # type: ignore[misc]
    """Writes a checkpoint that is published when the coordinator finishes, and not seen before.

    checkpoint_id names the step: "phalanx://step-100"; dcp.save may give another one. `threads` buckets of `bucket_bytes` are
    under way at once. As dcp.async_save's stager it copies the state once into shared memory, `close` frees it.
    """

    def __init__(
        self,
        checkpoint_id: str | os.PathLike[str] | None = None,
        *,
        threads: int = THREADS,
        bucket_bytes: int = BUCKET_BYTES,
        object_bytes: int = 0,
    ) -> None:
        super().__init__()
        if threads < 1 or bucket_bytes < 1:
            raise ValueError(f"threads={threads}, bucket_bytes={bucket_bytes}: want at least 1")
        self._id = checkpoint_id
        if checkpoint_id is not None:
            parse_checkpoint(checkpoint_id)
        self._threads, self._bucket_bytes, self._object_bytes = threads, bucket_bytes, object_bytes
        self.save_id = str(uuid.uuid4())
        self._no_dist = False
        self._save: Save | None = None
        self._here()

    def _here(self) -> None:
        """What belongs to this process."""
        self._stage = Stage()
        self._arenas: list[Arena] = []
        self._lock = threading.Lock()  # guards _arenas

    def __getstate__(self) -> dict[str, Any]:
        gone = {"_stage", "_arenas", "_lock", "_save"}
        return {k: v for k, v in self.__dict__.items() if k not in gone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._save = None
        self._here()

    # -- StorageWriter

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a URL of a checkpoint that can be saved."""
        try:
            return is_url(checkpoint_id) and parse_checkpoint(checkpoint_id).step >= 0
        except ValueError:
            return False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._id = checkpoint_id
        self.save_id = str(uuid.uuid4())
        self._save = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise ValueError(
                "use_collectives=False leaves an index for each rank and nobody who publishes: save with collectives, or with "
                "no_dist=True each rank for itself into a job of its own"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self._id is None:
            raise ValueError('no checkpoint to save: StorageWriter("phalanx://step-N"), or checkpoint_id=')
        self._save = begin(parse_checkpoint(self._id))
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        save = self._save
        assert save is not None, "prepare_local_plan comes first"
        writer = rank()
        results: list[WriteResult] = []
        with ThreadPoolExecutor(self._threads, thread_name_prefix="phalanx-save") as pool:
            jobs = []
            for arena, pieces in self._buckets(plan.items, planner):
                if len(jobs) > self._threads:
                    results += jobs.pop(0).result()
                jobs.append(pool.submit(self._write, save, writer, arena, pieces))
            for j in jobs:
                results += j.result()
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _buckets(self, items: Sequence[WriteItem], planner: SavePlanner) -> Iterator[tuple[Arena | None, list[_Piece]]]:
        """Deals items to buckets: those of a staged state by the memory that they lie in, others by size."""
        staged: dict[int, tuple[Arena, list[_Piece]]] = {}
        bucket: list[_Piece] = []
        size = 0
        for item in items:
            data: Any = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                p = _Piece(item, data.getvalue())
                if not p.data:
                    raise CheckpointError(f"value {item.index.fqn!r} is pickled to nothing, which cannot be stored")
            else:
                t = data.detach()
                if t.dtype not in NAMES:
                    raise TypeError(f"tensor {item.index.fqn!r} is {t.dtype}, which cannot be stored; convert it")
                if t.layout != torch.strided:
                    raise TypeError(f"tensor {item.index.fqn!r} is {t.layout}; only strided tensors can be stored")
                p = _Piece(item, t)
                if t.device.type == "cpu" and t.is_contiguous() and not t.is_conj() and not t.is_neg():
                    if where := self._stage.holder(t):
                        arena, p.at = where
                        staged.setdefault(id(arena), (arena, []))[1].append(p)
                        continue
            if bucket and size + align(p.nbytes) > self._bucket_bytes:
                yield None, bucket
                bucket, size = [], 0
            bucket.append(p)
            size += align(p.nbytes)
        for arena, pieces in staged.values():
            part: list[_Piece] = []
            size = 0
            for p in pieces:  # several batches, so that several are under way
                if part and size + p.nbytes > self._bucket_bytes:
                    yield arena, part
                    part, size = [], 0
                part.append(p)
                size += p.nbytes
            yield arena, part
        if bucket:
            yield None, bucket

    def _write(self, save: Save, writer: int, arena: Arena | None, pieces: list[_Piece]) -> list[WriteResult]:
        """Writes one bucket, after copying it into shared memory where it is not there."""
        own = None
        if arena is None:
            own = arena = self._take(sum(align(p.nbytes) for p in pieces))
            at = 0
            for p in pieces:
                p.at = at
                if isinstance(p.data, bytes):
                    ctypes.memmove(arena.address + at, p.data, len(p.data))
                elif p.nbytes:
                    arena.tensor(at, p.data).copy_(p.data)
                at += align(p.nbytes)
        try:
            batch = save.batch()
            file = f"__{writer}_{batch}.distcp"
            boxes = [
                {
                    "file": file,
                    "at": k,
                    "length": p.nbytes,
                    "offset": p.at,
                    **(
                        {"dtype": "u8", "shape": [p.nbytes], "value": True}
                        if isinstance(p.data, bytes)
                        else {"dtype": NAMES[p.data.dtype], "shape": list(p.data.shape)}
                    ),
                }
                for k, p in enumerate(pieces)
                if p.nbytes
            ]
            if boxes:
                save.write(writer, batch, arena.name, boxes, object_bytes=self._object_bytes)
        finally:
            if own is not None:
                with self._lock:
                    self._arenas.append(own)
        return [WriteResult(p.item.index, p.nbytes, _StorageInfo(file, k, p.nbytes)) for k, p in enumerate(pieces)]

    def _take(self, size: int) -> Arena:
        with self._lock:
            for i, a in enumerate(self._arenas):
                if a.size >= size:
                    return self._arenas.pop(i)
            if len(self._arenas) >= self._threads:
                self._arenas.pop(0)
        return Arena(max(size, min(self._bucket_bytes, 2 * size)))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        save = self._save
        assert save is not None, "prepare_local_plan comes first"
        metadata.storage_data = {w.index: w.storage_data for ranks in results for w in ranks}
        if StorageMeta is not None and hasattr(metadata, "storage_meta"):
            metadata.storage_meta = self.storage_meta()
        self.published = save.publish(pickle.dumps(metadata, protocol=4))

    published: dict[str, Any] | None = None
    """On the coordinator: commit number, job, folder, step and size_bytes of what was published last."""

    def storage_meta(self) -> Any:
        if StorageMeta is None:  # pragma: no cover
            return None
        return StorageMeta(checkpoint_id=self._id, save_id=self.save_id)

    # -- AsyncStager

    _synchronize_after_execute = False

    @property
    def should_synchronize_after_execute(self) -> bool:
        """False: the copy is done when stage returns."""
        return False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copies a state into shared memory, from which it is written without another copy."""
        out = self._stage.copy(state_dict)
        assert isinstance(out, dict)
        return out

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    def close(self) -> None:
        """Frees the memory of states that are not being saved any more."""
        self._here()
