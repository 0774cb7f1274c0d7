# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training that survives kill -9. phalanx run --nproc 4 -- python train_ddp.py"""

import argparse

import torch
from gpt import GPT, Text
from torch.nn import functional as F

import phalanx.torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="samples a step, of all ranks together")
    parser.add_argument("--slots", type=int, default=16, help="parts of a batch that are computed one by one")
    parser.add_argument("--data", help="folder of text files (default: Python's own)")
    args = parser.parse_args()

    torch.manual_seed(1)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    job = phalanx.torch.Elastic(
        model, optimizer, steps=args.steps, global_batch=args.batch, slots=args.slots, seed=1,
        data=Text(args.data), schedule=schedule, clip_norm=1.0,
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
