# SPDX-License-Identifier: Apache-2.0
"""The StorageReader of `phalanx.torch.dcp`: published checkpoints, by the boxes that a load needs."""

from __future__ import annotations

import ctypes
import io
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.futures import Future

from ._service import CheckpointError, Service, is_url, parse_checkpoint, service
from .dtypes import TORCH

try:  # 2.6 has it; it is asked for by those that have storage_meta
    from torch.distributed.checkpoint.metadata import StorageMeta
except ImportError:  # pragma: no cover
    StorageMeta = None  # type: ignore[assignment,misc]

THREADS = 2
"""How many requests of a load are under way, and how many buckets of a save."""


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
            parse_checkpoint(checkpoint_id)
        self._service: Service | None = None
        self._opened: dict[str, Any] = {}
        self._metadata: Metadata | None = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a URL of a checkpoint."""
        try:
            return is_url(checkpoint_id) and bool(parse_checkpoint(checkpoint_id))
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
        target = parse_checkpoint(self._id)
        self._service = service(target.store)
        self._opened = o = self._service.call("open", job=target.job, which=target.which)
        state: dict[str, Any] = {}
        paths: dict[str, tuple[Any, ...]] = {}
        for t in o.get("tensors") or []:
            dtype = TORCH.get(t["dtype"])
            if dtype is None:
                raise CheckpointError(f"tensor {t['name']!r} is {t['dtype']}, which this PyTorch does not have")
            chunks = [
                ChunkStorageMetadata(torch.Size(c["offset"]), torch.Size(c["shape"])) for c in t["chunks"]
            ]
            state[t["name"]] = TensorStorageMetadata(
                TensorProperties(dtype=dtype, requires_grad=t.get("requires_grad", False)), torch.Size(t["shape"]), chunks
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
