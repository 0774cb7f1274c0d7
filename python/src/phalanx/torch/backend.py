# SPDX-License-Identifier: Apache-2.0
"""The c10d backend `phalanx`: `torch.distributed.init_process_group("phalanx")`.

Trainers that `phalanx run` started hand their tensors to the daemon in shared memory, which reduces
them. Importing this module, or `phalanx.torch`, registers it; PyTorch from 2.15 on finds it by
itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ..errors import Error, Refused, Revoked
from ..ring import FIRST_GROUP
from .collectives import Collectives
from .flight import Flight, flight
from .work import handed_over

NAME = "phalanx"
TIMEOUT = 1800.0  # seconds, PyTorch's own default


def _can_subclass_backend() -> bool:
    """Whether this PyTorch lets Python construct a Backend."""

    class Probe(c10d.Backend):  # type: ignore[misc]
        pass

    try:
        Probe(0, 1)
    except TypeError:
        return False
    return True


class _Names:
    """Names are drawn anew for each group, so that one that was destroyed is never met again: the
    same on all ranks, which make the groups of a name in the same order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[Any, ...], int] = {}

    def identity(self, *words: Any) -> int:
        with self._lock:
            n = self._made[words] = self._made.get(words, 0) + 1
        return identity_of(*words, n)


def identity_of(*words: Any) -> int:
    """The number of a group in the ring."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    span = (1 << 64) - 2 - FIRST_GROUP
    return FIRST_GROUP + int.from_bytes(digest, "little") % span


_names = _Names()


def _seconds(timeout: Any) -> float:
    s = timeout.total_seconds() if isinstance(timeout, timedelta) else TIMEOUT
    return s if s > 0 else TIMEOUT


class _Attached(Collectives):
    """A group from what PyTorch says of it. Subclasses say what else it is."""

    def _attach(self, options: Any) -> None:
        f = flight()
        place = f.ring.place(timeout=60.0)
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        if max(ranks) >= place.world or ranks[options.group_rank] != place.rank:
            raise ValueError(
                f"group {options.group_id}: rank {options.group_rank} of {ranks} is not rank "
                f"{place.rank} of {place.world}, where phalanx run has put this process; "
                "leave RANK and WORLD_SIZE as they are"
            )
        self._reconfigurable = bool(getattr(options, "enable_reconfigure", False))
        generation = place.generation
        name = str(options.group_id)
        identity = _names.identity(generation, name, tuple(ranks))
        Collectives.__init__(
            self,
            f,
            identity,
            ranks,
            options.group_rank,
            generation,
            _seconds(options.timeout),
            name,
        )
        self._used: set[int] = set()
        self._hooks: dict[int, Any] = {}
        if self._reconfigurable:
            self._open[0] = False
        else:
            f.ring.make_group(identity, ranks, generation)

    # What PyTorch asks a group for.

    def getBackendName(self) -> str:
        return NAME

    get_backend_name = name = getBackendName

    def abort(self) -> None:
        """Ends everything of the group that is under way, on all ranks, at once: it raises
        CollectiveRevoked. From any thread.
        """
        was, self._open[0] = self._open[0], False
        for hook in list(self._hooks.values()):
            hook()
        if was:
            self._flight.ring.abort(self._id, self._generation)

    def shutdown(self) -> None:
        """Leaves the group. Nothing of it may be under way."""
        was, self._open[0] = self._open[0], False
        if was and self._flight.ring._client._handle is not None:
            # It makes room for another one, unless the generation, or the daemon, has ended before.
            with contextlib.suppress(Error):
                self._flight.ring.abort(self._id, self._generation)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_seconds = _seconds(timeout)

    setTimeout = _set_default_timeout = set_timeout

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def supports_abort_hooks(self) -> bool:
        return True

    def register_abort_hook(self, hook_id: int, hook: Any) -> None:
        self._hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        self._hooks.pop(hook_id, None)

    def supports_tensor_alloc(self, device: Any) -> bool:
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: Any) -> torch.Tensor:
        return empty(size, dtype=dtype)

    # PyTorch's elastic shape.

    @property
    def supports_reconfigure(self) -> bool:
        return True

    def get_reconfigure_handle(self) -> str:
        """Names this process in the present generation."""
        place = self._flight.ring.place(timeout=60.0)
        return f"{NAME}:{place.generation[0]}.{place.generation[1]}:{place.rank}"

    def reconfigure(self, opts: Any) -> c10d.Work:
        """Makes the group of the processes with the given handles, in their order if it is a list,
        else by their ranks. uuid is used once; that of a Phalanx job is its generation.
        """
        own, ordered = self.get_reconfigure_handle(), isinstance(opts.handles, (list, tuple))
        handles = [_parse_handle(h) for h in opts.handles]
        generations = {g for g, _ in handles}
        mine = _parse_handle(own)
        if generations != {mine[0]}:
            raise ValueError(
                f"reconfigure: handles of {sorted(generations)}, this process is in {mine[0]}; "
                "collect them again"
            )
        ranks = [r for _, r in handles] if ordered else sorted(r for _, r in handles)
        if mine[1] not in ranks or len(set(ranks)) != len(ranks):
            raise ValueError(f"reconfigure: ranks {ranks} do not have {mine[1]} once")
        if opts.uuid in self._used:
            raise ValueError(f"reconfigure: uuid {opts.uuid} was used before")
        self._used.add(opts.uuid)
        if self._open[0]:
            self.shutdown()
        self._generation = mine[0]
        self._ranks, self._own = ranks, ranks.index(mine[1])
        self._id = identity_of("reconfigure", self._name, opts.uuid, tuple(ranks))
        seconds = _seconds(opts.timeout) if opts.timeout is not None else self._timeout_seconds
        self._flight.ring.make_group(self._id, ranks, self._generation, timeout=min(seconds, 60.0))
        self._open = [True]
        self._renumber()
        work, deadline = self._start("reconfigure", [], None)
        work.timeout_seconds, work.deadline = seconds, time.monotonic() + seconds
        self._post(work, deadline, "barrier", [], None)
        return handed_over(work)

    def _renumber(self) -> None:
        """Lets torch.distributed tell the ranks of the group as they are now."""
        world = getattr(dist.distributed_c10d, "_world", None)
        if world is not None and self in world.pg_group_ranks:
            world.pg_group_ranks[self] = {r: i for i, r in enumerate(self._ranks)}


def _parse_handle(handle: str) -> tuple[tuple[int, int], int]:
    parts = handle.split(":")
    try:
        name, generation, rank = parts
        epoch, number = generation.split(".")
        out = (int(epoch), int(number)), int(rank)
    except ValueError:
        raise ValueError(f"{handle!r} is not a handle of the backend phalanx") from None
    if name != NAME:
        raise ValueError(f"{handle!r} is not a handle of the backend phalanx")
    return out


class WholeGroup(_Attached, c10d.ProcessGroup):  # type: ignore[misc]
    """The process group itself: where PyTorch cannot take a Backend from Python, and for groups
    that are reconfigured, because a Backend's rank and size never change.
    """

    def __init__(self, options: Any) -> None:
        c10d.ProcessGroup.__init__(self, options.group_rank, options.group_size)
        self._group_name = str(options.group_id)
        self._group_desc = "undefined"
        self._attach(options)

    def rank(self) -> int:
        return self._own

    def size(self) -> int:
        return len(self._ranks)

    getRank, getSize = rank, size

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    _set_group_name = setGroupName

    def getGroupDesc(self) -> str:
        return self._group_desc

    def setGroupDesc(self, desc: str) -> None:
        self._group_desc = desc

    _set_group_desc = setGroupDesc

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def group_desc(self) -> str:
        return self._group_desc


if _can_subclass_backend():

    class ProcessGroupPhalanx(_Attached, c10d.Backend):  # type: ignore[misc]
        """The backend inside a ProcessGroup of PyTorch's."""

        def __init__(self, options: Any) -> None:
            c10d.Backend.__init__(self, options.group_rank, options.group_size)
            self._attach(options)

        def rank(self) -> int:
            return self._own

        def size(self) -> int:
            return len(self._ranks)

else:
    ProcessGroupPhalanx = WholeGroup  # type: ignore[misc,assignment]


def create(options: Any, backend_options: Any = None) -> Any:
    """What PyTorch calls for each group."""
    if os.environ.get("PHALANX_SOCKET", "") == "" and options.group_size > 1:
        raise RuntimeError(
            f"the backend phalanx of {options.group_size} ranks needs their daemons: "
            "start the trainers by `phalanx run --plain --nproc N -- python train.py`"
        )
    try:
        if getattr(options, "enable_reconfigure", False):
            return WholeGroup(options)
        return ProcessGroupPhalanx(options)
    except (Refused, Revoked) as e:
        raise RuntimeError(f"group {options.group_id}: {e}") from e


def register() -> None:
    """Makes the backend known to torch.distributed. Calling it again does nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


def empty(*shape: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor in the memory that the daemon reduces from: collectives need not copy it. It is of
    this process alone, and not there for a forked child.
    """
    sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    f = flight()
    return _empty(f, torch.Size(sizes), dtype or torch.get_default_dtype())


def _empty(f: Flight, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    nbytes = size.numel() * dtype.itemsize
    if nbytes == 0:
        return torch.empty(size, dtype=dtype)
    start = f.take(nbytes, time.monotonic() + 60.0)
    memory = (ctypes.c_char * nbytes).from_address(f.space.address + start)
    weakref.finalize(memory, f.give, [(start, nbytes)]).atexit = False
    return torch.frombuffer(memory, dtype=dtype).view(size)


if dist.is_available():
    register()

__all__ = ["NAME", "ProcessGroupPhalanx", "create", "empty", "register"]
