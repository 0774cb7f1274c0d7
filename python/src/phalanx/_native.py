# SPDX-License-Identifier: Apache-2.0
"""The binding of libphalanx. Calls through `posts` keep the GIL and return at once; calls through
`waits` release it.

A call that releases the GIL has to get it back afterwards, which takes 5 ms when another thread of
Python computes without a pause. So only what waits or moves much memory releases it.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

ABI = 1


class Tensor(ctypes.Structure):
    """phx_tensor."""

    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("shape", POINTER(c_int64)),
        ("dims", c_int32),
        ("per_rank", c_int32),
        ("address", c_void_p),
        ("bytes", c_int64),
        ("global_shape", POINTER(c_int64)),
        ("global_offset", POINTER(c_int64)),
    ]


class Config(ctypes.Structure):
    """phx_config."""

    _fields_ = [
        ("last_step", c_uint64),
        ("seed", c_uint64),
        ("slots", c_int64),
        ("gradient_elements", c_int64),
        ("count_elements", c_int64),
        ("extra_bytes", c_int64),
    ]


class Begun(ctypes.Structure):
    """phx_begun_t."""

    _fields_ = [
        ("step", c_uint64),
        ("epoch", c_uint64),
        ("number", c_uint64),
        ("rank", c_int64),
        ("world", c_int64),
        ("group_size", c_int64),
        ("coordinate", c_int64),
        ("slot_first", c_int64),
        ("slot_end", c_int64),
        ("slot_count", c_int64),
        ("local_rank", c_int64),
        ("local_world", c_int64),
        ("healed", c_int64),
    ]


class Label(ctypes.Structure):
    """phx_label."""

    _fields_ = [
        ("step", c_uint64),
        ("epoch", c_uint64),
        ("number", c_uint64),
        ("digest", c_uint64 * 2),
        ("coordinate", c_int64),
        ("valid", c_int64),
    ]


class Digest(ctypes.Structure):
    """phx_digest_t."""

    _fields_ = [
        ("digest", c_uint64 * 2),
        ("sum_squares", c_double),
        ("abs_max", c_double),
        ("non_finite", c_int64),
    ]


class Descriptor(ctypes.Structure):
    """phx_descriptor."""

    _fields_ = [
        ("epoch", c_uint64),
        ("number", c_uint64),
        ("op", c_uint64),
        ("dtype", c_uint64),
        ("group", c_uint64),
        ("root", c_int64),
        ("count", c_int64),
        ("in_offset", c_int64),
        ("in_stride", c_int64),
        ("in_nodes", c_int64),
        ("out_offset", c_int64),
        ("scale", c_uint64),
        ("flags", c_uint64),
        ("reduction", c_uint64),
        ("peer", c_int64),
        ("tag", c_uint64),
        ("counts_offset", c_int64),
    ]


PENDING, RUN, APPLY, COORDINATE, REDUCED, REVOKED, FAILED, REPEAT, STOPPED = range(9)
TIMEOUT, INTERRUPTED, DONE, PREEMPTED, FENCED, ORPHANED = range(9, 15)
E_ILLEGAL, E_TORN, E_ARGUMENT, E_MEMORY, E_SEAT, E_RING = range(-1, -7, -1)

_PAIR = c_uint64 * 2
_CLIENT = c_void_p

# name: (arguments, result, whether it may block or move much memory)
_CALLS: dict[str, tuple[list[object], object, bool]] = {
    "phx_abi": ([], c_int, False),
    "phx_create": ([POINTER(Config), POINTER(Tensor), c_int64, POINTER(_CLIENT)], c_int, False),
    "phx_error": ([_CLIENT], c_char_p, False),
    "phx_segment_bytes": ([_CLIENT], c_int64, False),
    "phx_layout_hash": ([_CLIENT], c_uint64, False),
    "phx_slab_offset": ([_CLIENT, c_int64], c_int64, False),
    "phx_slab_bytes": ([_CLIENT], c_int64, False),
    "phx_attach": (
        [_CLIENT, c_char_p, c_char_p, c_char_p, POINTER(c_char_p), c_int, c_uint64],
        c_int,
        False,
    ),
    "phx_attach_alone": ([_CLIENT], c_int, False),
    "phx_start_pulse": ([_CLIENT], c_int, False),
    "phx_close": ([_CLIENT], None, True),
    "phx_set_orphan_after": ([_CLIENT, c_int64], None, False),
    "phx_begin": ([_CLIENT], c_int, False),
    "phx_begun": ([_CLIENT], POINTER(Begun), False),
    "phx_wait": ([_CLIENT, c_int64], c_int, True),
    "phx_healed": ([_CLIENT], c_int, False),
    "phx_step": ([_CLIENT], c_uint64, False),
    "phx_coordinate": ([_CLIENT], c_int64, False),
    "phx_coordinate_taken": ([_CLIENT], c_int, False),
    "phx_applied": ([_CLIENT], c_int, False),
    "phx_apply_failed": ([_CLIENT], c_int, False),
    "phx_label_of": ([_CLIENT, POINTER(Label)], None, False),
    "phx_fold": ([_CLIENT], c_int, False),
    "phx_slot_buffer": ([_CLIENT, c_int64], c_void_p, True),
    "phx_slot_done": ([_CLIENT, c_int64], c_int, True),
    "phx_reduce": ([_CLIENT, c_int], c_int, False),
    "phx_reduced": ([_CLIENT], c_void_p, False),
    "phx_reduce_counts": ([_CLIENT, POINTER(c_int64), c_int64], c_int, False),
    "phx_reduced_counts": ([_CLIENT], POINTER(c_int64), False),
    "phx_digest": ([_CLIENT, POINTER(Digest)], c_int, True),
    "phx_vote": ([_CLIENT, c_int, _PAIR, POINTER(c_int64)], c_int, False),
    "phx_finish": ([_CLIENT, _PAIR], c_int, False),
    "phx_working": ([_CLIENT, c_uint64, c_int64], None, False),
    "phx_progress": ([_CLIENT, c_int], None, False),
    "phx_preempt": ([_CLIENT], None, False),
    "phx_extra": ([_CLIENT, POINTER(c_int64)], c_void_p, False),
    "phx_set_address": ([_CLIENT, c_int64, c_void_p], c_int, True),
    "phx_state_digest": ([_CLIENT, POINTER(Digest)], c_int, True),
    "phx_notes": ([_CLIENT, c_char_p, c_int], c_int, False),
    "phx_samples": ([c_uint64, c_int64, c_int64, c_int64, c_int64, POINTER(c_int64)], c_int, False),
    "phx_at": ([_CLIENT, c_int, c_uint64], None, False),
    "phx_superseded": ([_CLIENT], c_int, False),
    "phx_attach_plain": ([_CLIENT, c_char_p, c_char_p, c_char_p, c_uint64], c_int, False),
    "phx_seat": ([_CLIENT, POINTER(Begun)], c_int, False),
    "phx_post": ([_CLIENT, POINTER(Descriptor)], c_int64, False),
    "phx_done": ([_CLIENT, c_uint64], c_int, False),
    "phx_wait_any": (
        [_CLIENT, POINTER(c_uint64), c_int, c_int64, POINTER(c_int)],
        c_int,
        True,
    ),
    "phx_abort": ([_CLIENT, c_uint64, c_uint64, c_uint64], c_int64, False),
    "phx_aborted": ([_CLIENT, c_int64], c_int, False),
    "phx_digest_tensors": ([c_uint64, POINTER(Tensor), c_int64, POINTER(Digest)], c_int, True),
    "phx_cell_write": ([c_void_p, c_int64, POINTER(c_uint64), c_int], None, False),
    "phx_cell_read": ([c_void_p, c_int64, POINTER(c_uint64), c_int], c_uint64, False),
    "phx_word_write": ([c_void_p, c_int64, c_uint64], None, False),
    "phx_page_write_header": ([c_void_p, c_int, c_int], None, False),
    "phx_page_check": ([c_void_p, c_int64, c_char_p, c_int], c_int, False),
    "phx_force_plain": ([c_int], None, False),
    "phx_add_f32": ([c_void_p, c_void_p, c_int64], None, True),
    "phx_scale_f32": ([c_void_p, c_void_p, ctypes.c_float, c_int64], None, True),
    "phx_vote_seed": ([c_uint64, c_uint64], c_uint64, False),
}


def library_path() -> Path:
    """Where the library lies: beside this file, or where PHALANX_LIBRARY says."""
    return Path(
        os.environ.get("PHALANX_LIBRARY") or Path(__file__).parent / "_lib" / "libphalanx.so"
    )


class Library:
    """The calls of phalanx.h, by their names. `posts` has all of them with the GIL kept, `waits`
    those that may take long.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise OSError(
                f"{path} is missing; install the package (pip install ./python), "
                "or build it in a checkout (make python)"
            )
        self.posts = ctypes.PyDLL(str(path))
        self.waits = ctypes.CDLL(str(path))
        for name, (arguments, result, long) in _CALLS.items():
            for handle in (self.posts, self.waits) if long else (self.posts,):
                call = getattr(handle, name)
                call.argtypes, call.restype = arguments, result
        if self.posts.phx_abi() != ABI:
            raise OSError(
                f"{path} has interface {self.posts.phx_abi()}, this package needs {ABI}; "
                "build both of one release"
            )


_library: Library | None = None


def library() -> Library:
    """The library, loaded at the first call."""
    global _library
    if _library is None:
        _library = Library(library_path())
    return _library


def pair(digest: tuple[int, int]) -> ctypes.Array[c_uint64]:
    """A digest as C has it."""
    return _PAIR(*digest)


def int64s(numbers: tuple[int, ...]) -> ctypes.Array[c_int64]:
    """Numbers as C has them, at least one long."""
    return (c_int64 * max(1, len(numbers)))(*numbers)


__all__ = [
    "Begun",
    "Config",
    "Digest",
    "Label",
    "Library",
    "Tensor",
    "byref",
    "int64s",
    "library",
    "pair",
]
