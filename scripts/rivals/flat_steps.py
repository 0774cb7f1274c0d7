# SPDX-License-Identifier: Apache-2.0
"""Times a step of torchft_node.py's model without torchft: one gloo all-reduce of the flat gradient, by hand, or plain DDP.

What torchft's protocol costs in a step is its own step less this one.

usage: flat_steps.py RANKS STEPS [flat|ddp]
The last line is RESULT and a JSON object: seconds of every step of every rank.
"""

import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WARM = 30


def average(params: list[torch.Tensor], flat: torch.Tensor, ranks: int) -> None:
    torch.cat([p.grad.reshape(-1) for p in params], out=flat)
    dist.all_reduce(flat)
    flat /= ranks
    at = 0
    for p in params:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def train(rank: int, ranks: int, port: int, steps: int, folder: str, how: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", port, is_master=False), rank=rank, world_size=ranks)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 480), nn.ReLU(), nn.Linear(480, 64))
    net = nn.parallel.DistributedDataParallel(model) if how == "ddp" else model
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.01, momentum=0.9)
    flat = torch.empty(sum(p.numel() for p in params))
    took = []
    dist.barrier()
    for step in range(WARM + steps):
        began = time.perf_counter()
        draw = torch.Generator().manual_seed(step * 1000 + rank)
        opt.zero_grad()
        ((net(torch.randn(48, 512, generator=draw)) - torch.randn(48, 64, generator=draw)) ** 2).mean().backward()
        if how == "flat":
            average(params, flat, ranks)
        opt.step()
        took.append(time.perf_counter() - began)
    with open(f"{folder}/{rank}", "w") as out:
        json.dump(took[WARM:], out)
    dist.barrier()


def main() -> None:
    ranks, steps = int(sys.argv[1]), int(sys.argv[2])
    how = sys.argv[3] if len(sys.argv) > 3 else "flat"
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        mp.spawn(train, (ranks, store.port, steps, folder, how), ranks)
        took = sum((json.load(open(f"{folder}/{rank}")) for rank in range(ranks)), [])
    print("RESULT", json.dumps({"version": torch.__version__, "step": took}))


if __name__ == "__main__":
    main()
