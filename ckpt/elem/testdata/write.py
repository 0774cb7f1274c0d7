# SPDX-License-Identifier: Apache-2.0
"""Writes torch.json: what PyTorch makes of elements of one dtype when it casts them to another, as the SHA-256 of the bytes of
the result, with every NaN replaced by bytes 0xff. Run in this folder: python write.py [FILE]. Written with torch 2.15.0.

The elements of 8 and 16 bits are all that there are, in ascending order of their bits. Those of float32 are 0x10001 * k for
k < 65536, and the neighbours of all points halfway between two bfloat16 or two float16 (see float32s)."""
import hashlib
import json
import sys

import torch

NAMES = {
    "f16": "float16", "bf16": "bfloat16", "f8_e4m3fn": "float8_e4m3fn", "f8_e5m2": "float8_e5m2", "f8_e4m3fnuz": "float8_e4m3fnuz",
    "f8_e5m2fnuz": "float8_e5m2fnuz", "f8_e8m0fnu": "float8_e8m0fnu", "f32": "float32", "f64": "float64",
}
FLOATS = {name: getattr(torch, of) for name, of in NAMES.items() if hasattr(torch, of)}  # 2.6 has no float8_e8m0fnu
INTEGERS = {"i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "u16": torch.uint16, "i32": torch.int32, "u32": torch.uint32, "i64": torch.int64}


def float32s():
    k16, k19 = torch.arange(1 << 16), torch.arange(1 << 19)
    parts = [k16 * 0x10001]
    parts += [(k16 << 16) | low for low in (0x7fff, 0x8000, 0x8001)]
    parts += [(k19 << 13) | low for low in (0x0fff, 0x1000, 0x1001)]
    return torch.cat(parts).to(torch.uint32).view(torch.float32)


def elements(name, dtype):
    if name == "f32":
        return float32s()
    size = dtype.itemsize
    bits = torch.arange(1 << (8 * size))
    return bits.to({1: torch.uint8, 2: torch.uint16}[size]).view(dtype)


def digest(t):
    b = t.contiguous().view(torch.uint8).reshape(t.numel(), -1).clone()
    if t.dtype.is_floating_point:
        b[torch.isnan(t.to(torch.float64)), :] = 0xFF
    return hashlib.sha256(bytes(b.numpy().tobytes())).hexdigest()


def main(path):
    sums = {}
    for source, dtype in list(FLOATS.items()) + list(INTEGERS.items()):
        if dtype.itemsize > 4 or dtype in (torch.int32, torch.uint32):
            continue
        x = elements(source, dtype)
        targets = dict(FLOATS) if source in FLOATS else {**FLOATS, **INTEGERS}
        for target, to in targets.items():
            if target == source:
                continue
            y = x.to(to)
            if target in INTEGERS and target not in ("i64", "i32"):
                y = x.to(torch.int64).clamp(*(lambda i: (i.min, i.max))(torch.iinfo(to))).to(to)  # ours stop at the ends, PyTorch wraps
            if target == "f8_e4m3fn":  # PyTorch 2.15 stops at 448 here, even for infinity; before it made NaN, as ours do
                y.view(torch.uint8)[x.to(torch.float64).abs() > 464] = 0x7F
            sums[f"{source} {target}"] = digest(y)
        if source in FLOATS:
            z = torch.view_as_real(x.to(torch.float32).to(torch.complex64).to(torch.complex128))
            sums[f"{source} c128"] = digest(z.reshape(-1))
    with open(path, "w") as f:
        json.dump(sums, f, indent=0, sort_keys=True)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "torch.json")
