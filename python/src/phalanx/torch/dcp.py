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
import io
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
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ._arena import Arena, Stage, align
from ._save import DTYPES, Save, begin, rank
from ._service import (
    CheckpointError,
    Damaged,
    Incomplete,
    NotPublished,
    Service,
    StoreFailed,
    Superseded,
    Target,
    is_url,
    parse,
    service,
)

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

THREADS = 2
"""How many buckets are under way, and how many requests of a load."""


def _target(checkpoint_id: str | os.PathLike[str]) -> Target:
    t = parse(checkpoint_id)
    if t.file:
        raise ValueError(f"{os.fspath(checkpoint_id)}: names a file; name the checkpoint")
    return t


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
            _target(checkpoint_id)
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
            return is_url(checkpoint_id) and _target(checkpoint_id).step >= 0
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
        self._save = begin(_target(self._id))
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
                if t.dtype not in DTYPES:
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
                        else {"dtype": DTYPES[p.data.dtype], "shape": list(p.data.shape)}
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


_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


def _properties(dtype: torch.dtype, requires_grad: bool) -> TensorProperties:
    return TensorProperties(dtype=dtype, requires_grad=requires_grad)


@dataclass
class _Want:
    """One item of a load."""

    item: ReadItem
    offset: list[int]
    size: list[int]
    target: torch.Tensor
    dtype: torch.dtype  # as it is stored
    nbytes: int


class StorageReader(_StorageReader):
    """Reads a published checkpoint: only what the plan needs, every byte verified, `threads` requests at a time.

    checkpoint_id is "phalanx://latest", "phalanx://step-100", or one with a job, a folder or a store.
    """

    def __init__(self, checkpoint_id: str | os.PathLike[str] | None = None, *, threads: int = THREADS) -> None:
        super().__init__()
        if threads < 1:
            raise ValueError(f"threads={threads}: want at least 1")
        self._threads = threads
        self._id = checkpoint_id
        if checkpoint_id is not None:
            _target(checkpoint_id)
        self._service: Service | None = None
        self._opened: dict[str, Any] = {}
        self._metadata: Metadata | None = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a URL of a checkpoint."""
        try:
            return is_url(checkpoint_id) and bool(_target(checkpoint_id))
        except ValueError:
            return False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._id = checkpoint_id
        self._opened, self._metadata = {}, None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the checkpoint holds. It is made from data: nothing is unpickled."""
        if self._id is None:
            raise ValueError('no checkpoint to load: StorageReader("phalanx://latest"), or checkpoint_id=')
        if kwargs.get("rank") is not None:
            raise ValueError("a published checkpoint has one index for all ranks: load with use_collectives=True")
        if self._metadata is not None:
            return self._metadata
        target = _target(self._id)
        self._service = service(target.store)
        self._opened = o = self._service.call("open", job=target.job, which=target.which)
        state: dict[str, Any] = {}
        paths: dict[str, tuple[Any, ...]] = {}
        for t in o.get("tensors") or []:
            dtype = _TORCH_DTYPES.get(t["dtype"])
            if dtype is None:
                raise CheckpointError(f"tensor {t['name']!r} is {t['dtype']}, which this PyTorch does not have")
            chunks = [
                ChunkStorageMetadata(torch.Size(c["offset"]), torch.Size(c["shape"])) for c in t["chunks"]
            ]
            state[t["name"]] = TensorStorageMetadata(
                _properties(dtype, t.get("requires_grad", False)), torch.Size(t["shape"]), chunks
            )
            paths[t["name"]] = tuple(t.get("path") or [t["name"]])
        for v in o.get("values") or []:
            state[v["name"]] = BytesStorageMetadata()
            paths[v["name"]] = tuple(v.get("path") or [v["name"]])
        m = Metadata(state_dict_metadata=state, planner_data=paths, storage_data={})
        if StorageMeta is not None and hasattr(m, "storage_meta"):
            m.storage_meta = StorageMeta(checkpoint_id=f"phalanx://{o['job']}/{o['attempt']}")
        self._metadata = m
        return m

    @property
    def opened(self) -> dict[str, Any]:
        """After a load: job, attempt, commit number, step and generation of what was read."""
        return {k: self._opened[k] for k in ("job", "attempt", "number", "step", "generation") if k in self._opened}

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._service is None or not self._opened:
            self.read_metadata()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        # All ranks read what the coordinator has found, should "latest" have moved on between them.
        for p in plans:
            p.storage_data = (self._opened["job"], self._opened["attempt"])
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        assert self._service is not None
        job, attempt = plan.storage_data or (self._opened["job"], self._opened["attempt"])
        wants: list[_Want] = []
        values: list[ReadItem] = []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                values.append(item)
            else:
                wants.append(self._want(item, planner))
        s = self._service
        shares = _deal([w for w in wants if w.nbytes], self._threads)
        with ThreadPoolExecutor(max(1, len(shares)), thread_name_prefix="phalanx-load") as pool:
            jobs = [pool.submit(_fetch, s, job, attempt, share) for share in shares]
            if values:
                f = s.read(job, attempt, [], [i.storage_index.fqn for i in values])
                for item in values:
                    planner.load_bytes(item, io.BytesIO(f.value()))
                f.end()
            for j in jobs:
                j.result()
        for w in wants:
            planner.commit_tensor(w.item, w.target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _want(self, item: ReadItem, planner: LoadPlanner) -> _Want:
        index: MetadataIndex = item.storage_index
        assert self._metadata is not None
        stored = self._metadata.state_dict_metadata[index.fqn]
        assert isinstance(stored, TensorStorageMetadata)
        target = planner.resolve_tensor(item).detach()
        if tuple(target.shape) != tuple(item.lengths):
            raise CheckpointError(
                f"tensor {index.fqn!r}: {tuple(target.shape)} are to be filled from {tuple(item.lengths)}"
            )
        base = index.offset if index.offset is not None else [0] * len(stored.size)
        offset = [a + b for a, b in zip(base, item.storage_offsets, strict=True)]
        n = target.numel() * torch.empty((), dtype=stored.properties.dtype).element_size()
        return _Want(item, offset, list(item.lengths), target, stored.properties.dtype, n)


def _deal(wants: list[_Want], n: int) -> list[list[_Want]]:
    """Deals items to n requests, in order, about equal in bytes."""
    total = sum(w.nbytes for w in wants)
    shares: list[list[_Want]] = [[] for _ in range(n)]
    at = 0
    for w in wants:
        shares[min(n - 1, (at + w.nbytes // 2) * n // max(total, 1))].append(w)
        at += w.nbytes
    return [s for s in shares if s]


def _memory(t: torch.Tensor, nbytes: int) -> memoryview:
    """The bytes of a contiguous tensor on the CPU."""
    return memoryview((ctypes.c_char * nbytes).from_address(t.data_ptr())).cast("B")


def _fetch(s: Service, job: str, attempt: str, wants: list[_Want]) -> None:
    """Reads items, each into its tensor where that is contiguous memory of the stored dtype."""
    ended = False
    try:
        frames = s.read(job, attempt, [(w.item.storage_index.fqn, w.offset, w.size) for w in wants], [])
        for w in wants:
            t, dtype = w.target, w.dtype
            direct = t.device.type == "cpu" and t.dtype == dtype and t.is_contiguous() and not t.is_conj() and not t.is_neg()
            into = t if direct else torch.empty(w.size, dtype=dtype)
            frames.fill(_memory(into, w.nbytes))
            if not direct:
                t.copy_(into)
        frames.end()
        ended = True
    finally:
        if not ended:
            s.drop()


