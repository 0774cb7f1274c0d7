# SPDX-License-Identifier: Apache-2.0
"""The plain twin of train_ddp.py: PyTorch alone. torchrun --nproc-per-node 4 train_ddp_plain.py"""

import argparse

import torch
import torch.distributed as dist
from gpt import GPT, Text
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="samples a step, of all ranks together")
    parser.add_argument("--data", help="folder of text files (default: Python's own)")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    text = Text(args.data)
    sampler = DistributedSampler(text, seed=1)
    loader = DataLoader(text, args.batch // dist.get_world_size(), sampler=sampler, drop_last=True)

    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
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
