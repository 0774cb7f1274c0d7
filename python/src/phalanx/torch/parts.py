# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors as the collectives see it: runs of bytes, cut into windows that fit the
segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._distributed_c10d import ReduceOp

DTYPES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "bool",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.complex64: "f32",
    torch.complex128: "f64",
}
"""What a reduction of a tensor adds; complex numbers are pairs."""

_REDUCTIONS: list[tuple[Any, str]] = [
    (ReduceOp.SUM, "sum"),
    (ReduceOp.AVG, "avg"),
    (ReduceOp.PRODUCT, "product"),
    (ReduceOp.MIN, "min"),
    (ReduceOp.MAX, "max"),
    (ReduceOp.BAND, "band"),
    (ReduceOp.BOR, "bor"),
    (ReduceOp.BXOR, "bxor"),
    (ReduceOp.PREMUL_SUM, "premul_sum"),
]


class Reduction(NamedTuple):
    """How a tensor is reduced: the descriptor's words, and a factor for the inputs."""

    dtype: str
    itemsize: int
    reduction: str
    mean: bool
    factor: float | torch.Tensor | None


def reduction_of(op: Any, dtype: torch.dtype) -> Reduction:
    """Raises ValueError for what is not defined, and TypeError for what has no sum."""
    name = next((name for known, name in _REDUCTIONS if op == known), None)
    if name is None:
        raise ValueError(f"the reduction {op} is not known to the backend phalanx")
    if dtype not in DTYPES:
        raise TypeError(f"tensors of {dtype} can be moved, but not reduced")
    if dtype.is_complex and name not in ("sum", "avg", "premul_sum"):
        raise ValueError(f"{name} is not defined for {dtype}")
    floats = dtype.is_floating_point or dtype.is_complex
    if name == "avg" and not floats:
        raise ValueError(f"avg is for floats, the tensor is {dtype}; sum and divide")
    if name in ("band", "bor", "bxor") and floats:
        raise ValueError(f"{name} is for integers and bool, the tensor is {dtype}")
    factor = _factor(op) if name == "premul_sum" else None
    words = "sum" if name in ("avg", "premul_sum") else name
    itemsize = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    return Reduction(DTYPES[dtype], itemsize, words, name == "avg", factor)


def _factor(op: Any) -> float | torch.Tensor:
    if hasattr(op, "factor"):
        f: float | torch.Tensor = op.factor
        return f
    return op.__getstate__()[1]  # type: ignore[no-any-return]


class Run(NamedTuple):
    """Contiguous memory of a tensor."""

    address: int
    nbytes: int


def check(tensors: Sequence[torch.Tensor], what: str) -> None:
    """The daemon reaches memory of the host alone."""
    for t in tensors:
        if t.device.type != "cpu" or t.layout != torch.strided:
            raise ValueError(
                f"{what}: the backend phalanx takes dense tensors on the CPU, this one is "
                f"{t.layout} on {t.device}; give GPUs a backend of their own: "
                'init_process_group("cpu:phalanx,cuda:nccl")'
            )


class Inputs:
    """Tensors to read from, as runs. Those that are not contiguous are copied, once."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = [flat(t) for t in tensors]
        self.runs = [run(t) for t in self.tensors]


class Outputs:
    """Tensors to write to, as runs. Those that are not contiguous get their bytes at the end."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = [t.detach() for t in tensors]
        self.flat = [
            t if t.is_contiguous() else torch.empty(t.shape, dtype=t.dtype) for t in self.tensors
        ]
        self.runs = [run(t) for t in self.flat]

    def done(self) -> None:
        for t, f in zip(self.tensors, self.flat, strict=True):
            if t is not f:
                t.copy_(f)


def flat(t: torch.Tensor) -> torch.Tensor:
    """The tensor, contiguous and without pending conjugation."""
    t = t.detach()
    if t.is_complex() and t.is_conj():
        t = t.resolve_conj()
    return t.contiguous()


def run(t: torch.Tensor) -> Run:
    """The memory of a contiguous tensor."""
    return Run(t.data_ptr(), t.numel() * t.element_size())


def split(r: Run, n: int) -> list[Run]:
    """n equal parts of a run."""
    size = r.nbytes // n
    return [Run(r.address + i * size, size) for i in range(n)]


def windows(sizes: Sequence[int], limit: int) -> Iterator[tuple[int, list[int]]]:
    """Cuts parts of the given sizes, in bytes, into windows that have at most about limit bytes of
    all of them together: the start in each part, and how many bytes of each. The same on all ranks
    that know the sizes.
    """
    widest = max(sizes, default=0)
    if sum(sizes) <= limit:
        if widest:
            yield 0, list(sizes)
        return
    width = max(64, limit // len(sizes) // 64 * 64)
    for start in range(0, widest, width):
        yield start, [min(width, max(0, s - start)) for s in sizes]


def elements(shape: Sequence[int]) -> int:
    """The number of elements of a shape."""
    return math.prod(shape)


__all__ = [
    "DTYPES",
    "Inputs",
    "Outputs",
    "Reduction",
    "Run",
    "check",
    "elements",
    "flat",
    "reduction_of",
    "run",
    "split",
    "windows",
]
