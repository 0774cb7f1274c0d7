# SPDX-License-Identifier: Apache-2.0
"""Names of element types in Phalanx, as its checkpoints and its protocol have them."""

from __future__ import annotations

import torch

_PAIRS = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8_e4m3fn": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f8_e4m3fnuz": "float8_e4m3fnuz",
    "f8_e5m2fnuz": "float8_e5m2fnuz",
    "f8_e8m0fnu": "float8_e8m0fnu",
    "c64": "complex64",
    "c128": "complex128",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u64": "uint64",
    "u32": "uint32",
    "u16": "uint16",
    "u8": "uint8",
    "bool": "bool",
}

#: The torch dtype of each name; those that this PyTorch lacks are left out.
TORCH: dict[str, torch.dtype] = {n: getattr(torch, t) for n, t in _PAIRS.items() if hasattr(torch, t)}
#: The name of each torch dtype.
NAMES: dict[torch.dtype, str] = {t: n for n, t in TORCH.items()}
