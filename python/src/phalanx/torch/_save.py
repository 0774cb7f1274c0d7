# SPDX-License-Identifier: Apache-2.0
"""A save under way: the attempt that all ranks of it write into."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from ._service import CheckpointError, Service, Superseded, Target, generation, service

_AGREE_TIMEOUT = 300.0  # seconds for the first rank of a save to reach the store and begin

@dataclass
class Save:
    """An attempt. Every rank of a save has one that names the same folder."""

    service: Service
    job: str
    attempt: str
    branch: int
    _batches: Any = field(default_factory=itertools.count)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def batch(self) -> int:
        """A number that no other batch of this rank has."""
        with self.lock:
            return next(self._batches)

    def write(
        self,
        writer: int,
        batch: int,
        memory: str,
        boxes: Sequence[dict[str, Any]] = (),
        records: Sequence[dict[str, Any]] = (),
        object_bytes: int = 0,
    ) -> None:
        """Hands over what lies in shared memory. It is in the store when this returns, and nobody sees it yet."""
        self.service.call(
            "write",
            job=self.job,
            attempt=self.attempt,
            writer=writer,
            batch=batch,
            memory=memory,
            boxes=list(boxes),
            records=list(records),
            object_bytes=object_bytes,
        )

    def publish(self, index: bytes) -> dict[str, Any]:
        """Makes the checkpoint visible under the names of PyTorch's index, or raises and leaves nothing visible."""
        return self.service.call(
            "publish", job=self.job, attempt=self.attempt, branch=self.branch, index=base64.b64encode(index).decode()
        )

    def abort(self, why: str) -> None:
        """Deletes what was written."""
        self.service.call("abort", job=self.job, attempt=self.attempt, why=why)


_counts_lock = threading.Lock()  # guards _counts
_counts: dict[str, int] = {}


def begin(target: Target, no_dist: bool = False) -> Save:
    """Begins a save of a step. Where torch.distributed is initialized, every rank of the save calls it, and the first one to come
    names the attempt for all, by the store of the default group: the ranks' daemons or helpers need not know of each other.
    """
    s = service(target.store)
    if no_dist or not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return _named(s, _name(s, target))
    with _counts_lock:
        n = _counts[target.key] = _counts.get(target.key, 0) + 1
    store = dist.distributed_c10d._get_default_store()
    key = f"phalanx/checkpoint/{target.key}/{n}"
    if store.add(key + "/first", 1) == 1:
        try:
            said = "ok " + _name(s, target)
        except Superseded as e:
            said = f"fenced {e}"
        except BaseException as e:
            store.set(key, f"other {e}")
            raise
        store.set(key, said)
    else:
        deadline = time.monotonic() + _AGREE_TIMEOUT
        while not store.check([key]):  # get would keep other threads from the store meanwhile
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"no rank began to save {target.which} within {_AGREE_TIMEOUT:.0f} s: all ranks of a save must take part in it"
                )
            time.sleep(0.002)
        said = store.get(key).decode()
    how, _, rest = said.partition(" ")
    if how == "fenced":
        raise Superseded(rest)
    if how != "ok":
        raise CheckpointError(f"another rank could not begin the save: {rest}")
    return _named(s, rest)


def _name(s: Service, target: Target) -> str:
    b = s.call("begin", job=target.job, step=target.step, generation=generation(), new_branch=target.new_branch)
    return f"{b['job']} {b['attempt']} {b['branch']}"


def _named(s: Service, name: str) -> Save:
    job, attempt, branch = name.split()
    return Save(s, job, attempt, int(branch))


def rank() -> int:
    """This process's rank among those that write."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
