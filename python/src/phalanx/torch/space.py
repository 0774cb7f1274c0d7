# SPDX-License-Identifier: Apache-2.0
"""The shared memory through which the daemon reduces: who may use which bytes of the segment."""

from __future__ import annotations

import bisect
import ctypes
from ctypes import c_size_t, c_void_p

import torch

ALIGN = 64
"""Bytes: buffers begin at multiples of it."""

_KEEP_GIL_BELOW = 256 << 10  # bytes: some 20 us of copying

_libc = ctypes.CDLL(None)
_PROTOTYPE = (c_void_p, c_void_p, c_void_p, c_size_t)
_copy_keeping = ctypes.PYFUNCTYPE(*_PROTOTYPE)(("memmove", _libc))
_copy_releasing = ctypes.CFUNCTYPE(*_PROTOTYPE)(("memmove", _libc))


def copy_bytes(to: int, source: int, nbytes: int) -> None:
    """Copies memory. The GIL is released when that takes longer than getting it back may."""
    (_copy_keeping if nbytes < _KEEP_GIL_BELOW else _copy_releasing)(to, source, nbytes)


class Space:
    """Hands out blocks of the segment, first fit. The caller holds a lock."""

    def __init__(self, address: int, offset: int, nbytes: int) -> None:
        """address: of the memory in this process; offset: the same place in the segment."""
        shift = -offset % ALIGN
        self.address = address + shift
        """Of the first byte."""
        self.offset = offset + shift
        """Of the first byte, in the segment."""
        self.nbytes = max(0, (nbytes - shift) // ALIGN * ALIGN)
        self._free: list[tuple[int, int]] = [(0, self.nbytes)] if self.nbytes else []
        self._bytes = torch.frombuffer(
            (ctypes.c_char * self.nbytes).from_address(self.address), dtype=torch.uint8
        )

    def take(self, nbytes: int) -> int | None:
        """A block of that many bytes: its distance from `address`. None while there is none."""
        need = max(ALIGN, -(-nbytes // ALIGN) * ALIGN)
        for i, (start, size) in enumerate(self._free):
            if size >= need:
                if size == need:
                    del self._free[i]
                else:
                    self._free[i] = (start + need, size - need)
                return start
        return None

    def give(self, start: int, nbytes: int) -> None:
        """Takes a block back."""
        size = max(ALIGN, -(-nbytes // ALIGN) * ALIGN)
        i = bisect.bisect(self._free, (start, 0))
        if i < len(self._free) and start + size == self._free[i][0]:
            size += self._free.pop(i)[1]
        if i > 0 and sum(self._free[i - 1]) == start:
            i -= 1
            start, before = self._free.pop(i)
            size += before
        self._free.insert(i, (start, size))

    @property
    def free_bytes(self) -> int:
        """Bytes that no block has."""
        return sum(size for _, size in self._free)

    def view(
        self, start: int, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype
    ) -> torch.Tensor:
        """The bytes of a block as a contiguous tensor."""
        n = dtype.itemsize
        for size in shape:
            n *= size
        return self._bytes[start : start + n].view(dtype).view(shape)

    def find(self, t: torch.Tensor) -> int | None:
        """Where a contiguous tensor lies in the segment, as `take` says it; None if elsewhere."""
        start = t.data_ptr() - self.address
        inside = start >= 0 and start + t.numel() * t.element_size() <= self.nbytes
        return start if inside and t.is_contiguous() else None

    def put(self, start: int, t: torch.Tensor) -> None:
        """Copies a tensor to a block."""
        if t.is_contiguous():
            copy_bytes(self.address + start, t.data_ptr(), t.numel() * t.element_size())
        else:
            self.view(start, t.shape, t.dtype).copy_(t)

    def get(self, start: int, t: torch.Tensor) -> None:
        """Copies a block to a tensor."""
        if t.is_contiguous():
            copy_bytes(t.data_ptr(), self.address + start, t.numel() * t.element_size())
        else:
            t.copy_(self.view(start, t.shape, t.dtype))
