# SPDX-License-Identifier: Apache-2.0
"""Sharded training (FSDP2 in groups) that survives kill -9. phalanx run --nproc 4 -- python train_fsdp.py"""

import argparse

import torch
from gpt import GPT, Text
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import phalanx.torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="samples a step, of all ranks together")
    parser.add_argument("--slots", type=int, default=8, help="parts of a batch that are computed one by one")
    parser.add_argument("--group-size", type=int, default=2, help="ranks that hold a model together")
    args = parser.parse_args()

    mesh = phalanx.torch.shard_mesh(args.group_size)
    torch.manual_seed(1)
    model = GPT()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    job = phalanx.torch.Elastic(
        model, optimizer, steps=args.steps, global_batch=args.batch, slots=args.slots, seed=1,
        data=Text(), group_size=args.group_size,
    )

    for step in job:
        with step:
            for x, y in step.batches():
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
                loss.backward()
        if step.committed and step.rank == 0 and step.number % 20 == 0:
            print(f"step {step.number} loss {loss.item():.3f} world {step.world}", flush=True)
    print(f"final step={job.applied} digest={job.digest()}", flush=True)


if __name__ == "__main__":
    main()
