# SPDX-License-Identifier: Apache-2.0
"""Writes golden/NAME.npy with NumPy: python write.py, in this folder. Written with NumPy 2.4. NAME is a dtype of ours, or says
the shape; elements are 0, 1, 2, …"""
import os

import numpy as np

TYPES = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "c64": "<c8", "c128": "<c16", "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "|i1",
         "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "|u1", "bool": "|b1"}

if __name__ == "__main__":
    os.makedirs("golden", exist_ok=True)
    for name, dtype in TYPES.items():
        np.save(f"golden/{name}.npy", np.arange(6).reshape(2, 3).astype(dtype))
    np.save("golden/scalar.npy", np.float32(2.5))
    np.save("golden/empty.npy", np.empty((0, 4), "<i2"))
    np.save("golden/line.npy", np.arange(3, dtype="<f4"))
