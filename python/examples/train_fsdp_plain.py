# SPDX-License-Identifier: Apache-2.0
"""The plain twin of train_fsdp.py: HSDP of PyTorch alone. torchrun --nproc-per-node 4 train_fsdp_plain.py"""

import argparse

import torch
import torch.distributed as dist
from gpt import GPT, Text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="samples a step, of all ranks together")
    parser.add_argument("--group-size", type=int, default=2, help="ranks that hold a model together")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    shards = args.group_size
    mesh = init_device_mesh("cpu", (dist.get_world_size() // shards, shards), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(1)
    model = GPT()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = Text()
    sampler = DistributedSampler(text, seed=1)
    loader = DataLoader(text, args.batch // dist.get_world_size(), sampler=sampler, drop_last=True)

    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if dist.get_rank() == 0 and step % 20 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            if step == args.steps:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
