# SPDX-License-Identifier: Apache-2.0
"""Memory that is shared with the process that writes it into a store, and tensors in it."""

from __future__ import annotations

import copy
import mmap
import os
import threading
import weakref
from typing import Any

import torch

ALIGN = 64  # bytes; where tensors begin


def align(n: int) -> int:
    return (n + ALIGN - 1) // ALIGN * ALIGN


class Arena:
    """Shared memory without a name: it is gone with the last process that has it open, and takes no room in /dev/shm."""

    def __init__(self, size: int) -> None:
        self.size = max(size, ALIGN)
        self._fd = os.memfd_create("phalanx-checkpoint", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, self.size)
            self._map = mmap.mmap(self._fd, self.size)
        except BaseException:
            os.close(self._fd)
            raise
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.address = self.bytes.data_ptr()
        weakref.finalize(self, os.close, self._fd)

    @property
    def name(self) -> str:
        """How another process of this user opens it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def tensor(self, at: int, like: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor at a byte of it, with dtype and shape of another."""
        flat = self.bytes[at : at + like.numel() * like.element_size()]
        return flat.view(like.dtype).view(like.shape)


class Stage:
    """Copies of states in arenas, of which those that nobody holds any more are used again.

    What is found by `holder` can be handed over as it lies, without another copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Arena] = []
        self._used: list[tuple[Arena, list[weakref.ref[torch.Tensor]]]] = []

    def copy(self, state: Any) -> Any:
        """The state with its tensors copied, all into one arena. The copy may be changed and saved at leisure."""
        leaves: list[torch.Tensor] = []
        _walk(state, leaves.append)
        total = sum(align(t.numel() * t.element_size()) for t in leaves)
        arena = self._take(total)
        at = 0
        held: list[weakref.ref[torch.Tensor]] = []
        done: dict[int, torch.Tensor] = {}

        def place(t: torch.Tensor) -> torch.Tensor:
            nonlocal at
            if id(t) in done:
                return done[id(t)]
            into = arena.tensor(at, t)
            into.copy_(t.detach(), non_blocking=True)
            at += align(t.numel() * t.element_size())
            held.append(weakref.ref(into))
            done[id(t)] = into
            return into

        out = _rebuild(state, place)
        if any(t.device.type != "cpu" for t in leaves):
            torch.accelerator.synchronize() if hasattr(torch, "accelerator") else torch.cuda.synchronize()
        with self._lock:
            self._used.append((arena, held))
        return out

    def _take(self, size: int) -> Arena:
        with self._lock:
            still = []
            for arena, held in self._used:
                if any(r() is not None for r in held):
                    still.append((arena, held))
                else:
                    self._free.append(arena)
            self._used = still
            self._free.sort(key=lambda a: a.size)
            for i, arena in enumerate(self._free):
                if arena.size >= size:
                    return self._free.pop(i)
            self._free.clear()  # too small for this state, which is likely to be saved again
        return Arena(size)

    def holder(self, t: torch.Tensor) -> tuple[Arena, int] | None:
        """The arena that a contiguous tensor lies in, and where."""
        p, n = t.data_ptr(), t.numel() * t.element_size()
        with self._lock:
            for arena, _ in self._used:
                if arena.address <= p and p + n <= arena.address + arena.size:
                    return arena, p - arena.address
        return None


def _flatten(t: torch.Tensor) -> tuple[list[str], Any] | None:
    """The inner tensors of a wrapper such as DTensor; None for others."""
    f = getattr(t, "__tensor_flatten__", None)
    if type(t) in (torch.Tensor, torch.nn.Parameter) or f is None:
        return None
    names, context = f()
    return list(names), context


def _plain(t: torch.Tensor) -> bool:
    return type(t) in (torch.Tensor, torch.nn.Parameter) and t.layout == torch.strided and not t.is_quantized


def _walk(x: Any, leaf: Any) -> None:
    if isinstance(x, torch.Tensor):
        if (inner := _flatten(x)) is not None:
            for name in inner[0]:
                _walk(getattr(x, name), leaf)
        elif _plain(x):
            leaf(x)
    elif isinstance(x, dict):
        for v in x.values():
            _walk(v, leaf)
    elif isinstance(x, (list, tuple)):
        for v in x:
            _walk(v, leaf)


def _rebuild(x: Any, place: Any) -> Any:
    if isinstance(x, torch.Tensor):
        if (inner := _flatten(x)) is not None:
            names, context = inner
            parts = {n: _rebuild(getattr(x, n), place) for n in names}
            return type(x).__tensor_unflatten__(parts, context, x.size(), x.stride())
        return place(x) if _plain(x) else copy.deepcopy(x)
    if isinstance(x, dict):
        return {k: _rebuild(v, place) for k, v in x.items()}
    if type(x) is list:
        return [_rebuild(v, place) for v in x]
    if type(x) is tuple:
        return tuple(_rebuild(v, place) for v in x)
    return copy.deepcopy(x)
