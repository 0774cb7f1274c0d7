# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the library in C gives the bits of the Go package kernels, with vector
instructions and without.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from phalanx import Digest, Tensor, digest_tensors
from phalanx._native import library
from running import ROOT

M64 = (1 << 64) - 1


@pytest.fixture(params=["simd", "plain"], autouse=True)
def arithmetic(request: pytest.FixtureRequest) -> Iterator[None]:
    library().posts.phx_force_plain(request.param == "plain")
    yield
    library().posts.phx_force_plain(0)


def mix(z: int) -> int:
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & M64
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & M64
    return z ^ z >> 31


@functools.cache
def content(generator: str, start: int, n: int) -> bytes:
    """The bytes of a golden tensor, as kernels/testdata/d1.py makes them."""
    if generator == "zero":
        return bytes(n)
    return b"".join(mix(start + i & M64).to_bytes(8, "little") for i in range((n + 7) // 8))[:n]


def placed(data: bytes, shift: int = 0) -> tuple[int, Any]:
    """The bytes at an address that is shifted from an aligned one, and what keeps them there."""
    memory = ctypes.create_string_buffer(len(data) + 64 + shift)
    address = (ctypes.addressof(memory) + 63) // 64 * 64 + shift
    ctypes.memmove(address, data, len(data))
    return address, memory


def test_vectors() -> None:
    golden = json.loads((ROOT / "kernels" / "testdata" / "d1.json").read_text())
    assert len(golden["vectors"]) >= 10
    for shift in (0, 1):
        for vector in golden["vectors"]:
            keep, tensors = [], []
            for t in vector["tensors"]:
                address, memory = placed(
                    content(t["generator"], t["start"], t["size_bytes"]), shift
                )
                keep.append(memory)
                shape = tuple(t["shape"])
                name = t["name"] * t["repeat_name"]
                tensors.append(Tensor(name, t["dtype"], shape, address, t["size_bytes"]))
            assert str(digest_tensors(tensors, vector["seed"])) == vector["digest"]
            for tensor, t in zip(tensors, vector["tensors"], strict=True):
                assert str(digest_tensors([tensor], vector["seed"])) == t["root"]
    for vote in golden["vote_seeds"]:
        assert library().posts.phx_vote_seed(vote["job_seed"], vote["step"]) == vote["seed"]


def floats_digest(numbers: list[float], form: str = "f") -> Digest:
    address, memory = placed(struct.pack(f"<{len(numbers)}{form}", *numbers))
    dtype = "f32" if form == "f" else "f64"
    d = digest_tensors(
        [Tensor("x", dtype, (len(numbers),), address, len(numbers) * struct.calcsize(form))]
    )
    del memory
    return d


@pytest.mark.parametrize("form", ["f", "d"])
def test_statistics(form: str) -> None:
    r = random.Random(7)
    per_leaf = 65536 // struct.calcsize(form)
    for n in (0, 1, 15, 16, 17, 1000, per_leaf, per_leaf + 5, 40 * per_leaf + 3):
        raw = [r.gauss(0, 1) * 10 ** r.randint(-3, 3) for _ in range(n)]
        numbers = list(struct.unpack(f"<{n}{form}", struct.pack(f"<{n}{form}", *raw)))
        total = 0.0
        for leaf in range(0, n, per_leaf):  # the order that kernels/doc.go fixes
            sums = [0.0] * 16
            for e, x in enumerate(numbers[leaf : leaf + per_leaf]):
                sums[e % 16] += x * x
            width = 8
            while width:
                for i in range(width):
                    sums[i] += sums[i + width]
                width //= 2
            total += sums[0]
        d = floats_digest(numbers, form)
        assert d.sum_squares == total
        assert d.abs_max == max((abs(x) for x in numbers), default=0.0)
        assert d.non_finite == 0


def test_what_is_not_finite_is_counted() -> None:
    numbers = [1.0] * 50000
    numbers[3], numbers[20000], numbers[49999] = math.inf, -math.inf, math.inf
    d = floats_digest(numbers)
    assert (d.sum_squares, d.abs_max, d.non_finite) == (math.inf, math.inf, 3)
    numbers[30000] = math.nan
    d = floats_digest(numbers)
    assert math.isnan(d.sum_squares) and math.isnan(d.abs_max) and d.non_finite == 4


def bits(values: list[int]) -> tuple[int, Any]:
    return placed(struct.pack(f"<{len(values)}I", *values))


def read_bits(address: int, n: int) -> list[int]:
    return list((ctypes.c_uint32 * n).from_address(address))


def f32(b: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", b))[0])


def rounded(x: float) -> int:
    return int(struct.unpack("<I", ctypes.c_float(x))[0])


def rule(a: int, b: int, result: float) -> int:
    """Bits of a sum or product: the first operand if it is a NaN, else the second, made quiet; else
    -NaN if invalid.
    """
    for x in (a, b):
        if math.isnan(f32(x)):
            return x | 1 << 22
    return 0xFFC00000 if math.isnan(result) else rounded(result)


SPECIAL = [
    0,
    1 << 31,
    0x7F800000,
    0xFF800000,
    0x7FC00001,
    0xFFC00002,
    0x7F800003,
    0xFFA00004,
    1,
    0x80000001,
    0x3F800000,
]


def test_sums() -> None:
    r = random.Random(3)
    a = [x for x in SPECIAL for _ in SPECIAL] + [r.getrandbits(32) for _ in range(1003)]
    b = [y for _ in SPECIAL for y in SPECIAL] + [r.getrandbits(32) for _ in range(1003)]
    left, keep_left = bits(a)
    right, keep_right = bits(b)
    library().waits.phx_add_f32(left, right, len(a))
    # A sum of two float32 in float64 and rounded once more is the float32 sum.
    want = [rule(x, y, f32(x) + f32(y)) for x, y in zip(a, b, strict=True)]
    assert read_bits(left, len(a)) == want
    for s in (0.0, 0.25, math.inf, 1 / 3):
        scale = ctypes.c_float(s)
        at, keep = bits(a)
        library().waits.phx_scale_f32(at, at, scale, len(a))
        assert read_bits(at, len(a)) == [rule(x, rounded(s), f32(x) * scale.value) for x in a]
        del keep
    del keep_left, keep_right
