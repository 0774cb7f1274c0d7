# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files below golden/ with the safetensors package and PyTorch: python write.py, in this folder.
Written with torch 2.15.0 and safetensors 0.8.0. all.json has the bytes of each tensor of all.safetensors as hex digits."""
import json
import os
import shutil
import socket
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file, save_model
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

warnings.filterwarnings("ignore")
DTYPES = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu complex64 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"


def arange(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def raw(t):
    return bytes(t.contiguous().reshape(-1).view(torch.uint8).tolist()).hex()


def all_types():
    sd = {f"t.{d}": arange(2, 3).to(getattr(torch, d)) for d in DTYPES.split()}
    sd["scalar"] = torch.tensor(2.5)
    sd["empty"] = torch.empty(0, 4, dtype=torch.int16)
    sd["ключ/with \"quotes\" & <spaces>"] = arange(3)
    save_file(sd, "golden/all.safetensors", metadata={"format": "pt", "note": "line\nbreak"})
    with open("golden/all.json", "w") as f:
        json.dump({k: raw(t) for k, t in sorted(sd.items())}, f, indent=0, sort_keys=True)
    f4 = torch.zeros(2, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    save_file({"small": f4, "w": arange(2)}, "golden/f4.safetensors")


def tied():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = torch.nn.Embedding(4, 3)
            self.out = torch.nn.Linear(3, 4, bias=False)
            self.out.weight = self.inp.weight

    net = Net()
    with torch.no_grad():
        net.inp.weight.copy_(arange(4, 3))
    save_model(net, "golden/tied.safetensors")


def rank(r, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=r, world_size=4)
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    sd = {
        "rows": distribute_tensor(arange(10, 4), line, [Shard(0)]),  # 3, 3, 3, 1 rows
        "columns": distribute_tensor(arange(4, 10).bfloat16(), line, [Shard(1)]),
        "boxes": distribute_tensor(arange(6, 8), square, [Shard(0), Shard(1)]),
        "same": distribute_tensor(arange(3, 3), line, [Replicate()]),
        "plain": torch.tensor(7.0),
    }
    dcp.save(sd, storage_writer=HuggingFaceStorageWriter("golden/boxes", save_distributed=True))
    dist.destroy_process_group()


def main():
    shutil.rmtree("golden", ignore_errors=True)
    os.mkdir("golden")
    all_types()
    tied()
    whole = {"a": arange(2, 2), "b": arange(5).bfloat16(), "c": torch.arange(3)}
    writer = HuggingFaceStorageWriter("golden/indexed", fqn_to_index_mapping={"a": 1, "b": 2, "c": 2})
    dcp.save(whole, storage_writer=writer, no_dist=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(rank, args=(port,), nprocs=4)


if __name__ == "__main__":
    main()
