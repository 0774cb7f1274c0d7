# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files below golden/ with PyTorch: python write.py, in this folder. Written with torch 2.15.0. NAME.json
has the bytes of each tensor of NAME.pt as hex digits, in row-major order, little-endian, under its flattened name."""
import collections
import json
import os
import shutil
import warnings
import zipfile

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

warnings.filterwarnings("ignore")
DTYPES = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu complex64 complex128 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"


def arange(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def raw(t):
    t = t.detach().resolve_conj().resolve_neg()
    return bytes(t.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).tolist()).hex()


def save(name, value, flat=None, **how):
    torch.save(value, f"golden/{name}.pt", **how)
    flat = flatten_state_dict(value)[0] if flat is None else flat
    tensors = {k: raw(t) for k, t in flat.items() if isinstance(t, torch.Tensor)}
    with open(f"golden/{name}.json", "w") as f:
        json.dump(tensors, f, indent=0, sort_keys=True)


def types():
    save("types", {d: arange(2, 3).to(getattr(torch, d)) for d in DTYPES.split()})


def views():
    base = arange(4, 6)
    short = torch.arange(12, dtype=torch.int16)
    f8 = torch.arange(8).to(torch.float8_e5m2)
    save("views", {
        "whole": base, "transposed": base.t(), "column": base[:, 2], "rows": base[1:3], "stepped": base[::2, 1::3],
        "expanded": base[0, :2].expand(3, 2), "permuted": arange(2, 3, 4).permute(2, 0, 1), "tail": short[5:],
        "one": short[3], "diagonal": base.diagonal(), "channels": arange(1, 3, 2, 2).to(memory_format=torch.channels_last),
        "f8 part": f8[3:6], "f8": f8, "empty": torch.empty(0, 3), "empty view": base[4:], "scalar": torch.tensor(2.5),
        "overlapping": torch.arange(6, dtype=torch.int32).as_strided((3, 3), (1, 1)),
    })


def put_off():
    """Conjugates and negatives that PyTorch has not made yet: a bit of the tensor, which torch.save writes beside it."""
    def c():  # each a storage of its own: one file cannot have views of one storage as several types
        return torch.complex(arange(2, 3), -1 - arange(2, 3))

    def d():
        return c().to(torch.complex128)

    # Of complex zeros PyTorch sometimes makes other zeros, so there is none in what is complex and negative only.
    neg, shared = torch._neg_view, c()
    save("put_off", {
        "conj": shared.conj(), "plain": shared, "adjoint": d().mH, "column": d().conj()[:, 1], "imag": c().conj().imag,
        "twice": c().conj().conj(), "imag 64": d().conj().imag[1:], "conj of neg": neg(c()).conj(), "neg": neg(d() + 1),
        "parameter": torch.nn.Parameter(c().conj()), "empty": c()[:0].conj(), "scalar": c()[0, 1].conj(),
        "expanded": c()[0, :1].conj().expand(3),
        **{t: neg(arange(4).to(getattr(torch, t))) for t in "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8".split()},
    })
    save("tensor_put_off", c().conj().imag, flat={"tensor": c().conj().imag})


def nested():
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(arange(*p.shape))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net(torch.ones(4, 2)).sum().backward()
    adam.step()
    default = collections.defaultdict(list)
    default["x"] = torch.ones(2)
    sd = {
        "model": net.state_dict(), "optim": adam.state_dict(), "step": 7, "big": 1 << 80, "name": "a \"b\"", "none": None,
        "flag": True, "lr": 1e-3, "betas": (0.9, 0.999), "list": [torch.zeros(1), "x", {"deep": torch.ones(1)}],
        "plain": [1, [2, 3], "y"], "lists": [[1, 2], [torch.ones(2)]], "raw": b"\x00\xff", "set": {1}, "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]), 5: torch.full((2,), 5.0), "empty dict": {}, "ключ.with dots/and slash": torch.ones(1),
        "default": default, "parameter": torch.nn.Parameter(torch.ones(2)), "device": torch.device("cpu"),
    }
    save("nested", sd)
    save("protocol5", sd, pickle_protocol=5)


def tuples():
    value = ({"a": arange(2)}, [arange(3), 1], (4, 5))
    save("tuple", value, flat={"0.a": value[0]["a"], "1.0": value[1][0]})
    save("tensor", arange(3), flat={"tensor": arange(3)})


def unreadable():
    sparse = torch.eye(3).to_sparse()
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    f4 = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    value = {"w": arange(2), "sparse": sparse, "quantized": quantized, "f4": f4, "meta": torch.empty(2, device="meta")}
    save("unreadable", value, flat={"w": value["w"]})


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(2, 2)


def others():
    torch.save({"a": arange(2)}, "golden/legacy.pt", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(Net()), "golden/script.pt")
    torch.save(Net(), "golden/module.pt")


def rewrite(name, of, change=lambda name, content: content, method=zipfile.ZIP_STORED, zip64=False):
    with zipfile.ZipFile(f"golden/{of}.pt") as src, zipfile.ZipFile(f"golden/{name}.pt", "w") as dst:
        for item in src.infolist():
            info = zipfile.ZipInfo(item.filename)
            info.compress_type = method
            with dst.open(info, "w", force_zip64=zip64) as f:
                f.write(change(item.filename, src.read(item.filename)))


def rewritten():
    sd = {"f": arange(5), "c": arange(3).to(torch.complex64), "b": arange(6).bfloat16().reshape(2, 3).t(), "u": torch.arange(4).byte()}
    save("little", sd)
    with zipfile.ZipFile("golden/little.pt") as z:
        keys = {n: z.read(n) for n in z.namelist() if "/data/" in n}
    sizes = dict(zip(sorted(keys), [4, 4, 2, 1]))

    def swap(name, content):
        if name.endswith("/byteorder"):
            return b"big"
        n = sizes.get(name, 1)
        return b"".join(content[i:i + n][::-1] for i in range(0, len(content), n))

    rewrite("big", "little", swap)
    shutil.copy("golden/little.json", "golden/big.json")
    for k, v in torch.load("golden/big.pt").items():
        assert torch.equal(v, sd[k]), k
    rewrite("zip64", "little", zip64=True)
    shutil.copy("golden/little.json", "golden/zip64.json")
    rewrite("deflated", "little", method=zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    shutil.rmtree("golden", ignore_errors=True)
    os.mkdir("golden")
    types()
    views()
    put_off()
    nested()
    tuples()
    unreadable()
    others()
    rewritten()
