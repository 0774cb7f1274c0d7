# SPDX-License-Identifier: Apache-2.0
"""What goes into the client and comes out of it, and how C and a hello have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _native as native
from .errors import Illegal


class Global(NamedTuple):
    """Where a box lies in the larger tensor that it is a part of: one number for each dimension."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]


class Tensor(NamedTuple):
    """A registered tensor. The memory is live: it is read for heals and saves and written when this
    member heals.
    """

    name: str
    dtype: str
    """f64 f32 f16 bf16 f8_e4m3fn f8_e5m2 f8_e4m3fnuz f8_e5m2fnuz f8_e8m0fnu c64 c128 i64 i32 i16 i8
    u64 u32 u16 u8 bool
    """
    shape: tuple[int, ...]
    address: int
    """Of contiguous, little-endian memory that stays there, or is moved by `Client.set_address`."""
    nbytes: int
    global_: Global | None = None
    """Set for a box of a larger tensor that the ranks of a replica group hold together."""
    per_rank: bool = False
    """Every rank has content of its own; otherwise all ranks with one coordinate hold the same
    bytes.
    """


@dataclass(frozen=True)
class Begin:
    """A place in a world and the step to compute there."""

    step: int
    generation: tuple[int, int]
    """Authority epoch and number."""
    rank: int
    world: int
    group_size: int
    coordinate: int
    slots: tuple[int, int]
    """To compute, in order: first, and the one after the last."""
    slot_count: int
    local_rank: int
    local_world: int
    healed: bool
    """The registered state was replaced since the last begin returned: rebuild what derives from
    it.
    """


class Digest(NamedTuple):
    """D1 of a reduced gradient, and its statistics."""

    digest: tuple[int, int]
    sum_squares: float
    """Of float32 and float64 numbers, added in a fixed order; its root is the norm. NaN or inf when
    one is.
    """
    abs_max: float
    non_finite: int

    def __str__(self) -> str:
        """32 hexadecimal digits, as Phalanx prints digests."""
        return f"{self.digest[0]:016x}{self.digest[1]:016x}"


class Label(NamedTuple):
    """Names a state: the step, and generation and digest of the gradient that made it. coordinate
    -1 fits any.
    """

    step: int
    generation: tuple[int, int]
    digest: tuple[int, int]
    coordinate: int
    valid: bool


def complete_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with its defaults: seed 0, group_size 1, threads 1, no data and no settings."""
    known = {
        "last_step": None,
        "seed": 0,
        "slots": None,
        "global_batch": None,
        "data_length": 0,
        "data_hash": "",
        "group_size": 1,
        "threads": 1,
        "settings": "",
    }
    for name in spec:
        if name not in known:
            raise Illegal(f"spec has a field {name!r}; known are {', '.join(known)}")
    out = known | dict(spec)
    missing = [name for name, value in out.items() if value is None]
    if missing:
        raise Illegal(f"spec lacks {', '.join(missing)}")
    if out["last_step"] < 1 or out["slots"] < 1 or out["group_size"] < 1:
        raise Illegal("spec: last_step, slots and group_size are at least 1")
    if out["global_batch"] < 1 or out["global_batch"] % out["slots"] != 0:
        raise Illegal(
            f"spec: {out['slots']} slots do not divide the global batch "
            f"of {out['global_batch']} samples"
        )
    return {
        name: value
        for name, value in out.items()
        if value != "" or name not in ("data_hash", "settings")
    }


def tensor_info(t: Tensor) -> dict[str, Any]:
    """How a hello describes a tensor."""
    info: dict[str, Any] = {"name": t.name, "dtype": t.dtype, "shape": list(t.shape)}
    if t.global_ is not None:
        info["global"] = {"shape": list(t.global_.shape), "offset": list(t.global_.offset)}
    if t.per_rank:
        info["per_rank"] = True
    return info


def c_tensors(state: Sequence[Tensor]) -> Any:
    """The tensors as C has them. The array keeps what it points to alive."""
    out = (native.Tensor * max(1, len(state)))()
    for c, t in zip(out, state, strict=False):
        if "\0" in t.name or "\0" in t.dtype:
            raise Illegal(f"tensor {t.name!r}: names have no NUL")
        c.name, c.dtype = t.name.encode(), t.dtype.encode()
        c.shape, c.dims = native.int64s(tuple(t.shape)), len(t.shape)
        c.per_rank, c.address, c.bytes = t.per_rank, t.address, t.nbytes
        if t.global_ is not None:
            if len(t.global_.shape) != len(t.shape) or len(t.global_.offset) != len(t.shape):
                raise Illegal(
                    f"tensor {t.name!r}: shape and global have different numbers of dimensions"
                )
            c.global_shape, c.global_offset = (
                native.int64s(t.global_.shape),
                native.int64s(t.global_.offset),
            )
    return out


def digest_of(d: native.Digest) -> Digest:
    """A digest as Python has it."""
    return Digest((d.digest[0], d.digest[1]), d.sum_squares, d.abs_max, d.non_finite)


def digest_tensors(tensors: Sequence[Tensor], seed: int = 0) -> Digest:
    """D1 over any tensors, in the order of their names whatever their own order is, with the
    statistics of the floats.
    """
    out = native.Digest()
    if (
        native.library().waits.phx_digest_tensors(
            seed, c_tensors(tensors), len(tensors), byref(out)
        )
        != 0
    ):
        raise MemoryError("no memory for a digest")
    return digest_of(out)
