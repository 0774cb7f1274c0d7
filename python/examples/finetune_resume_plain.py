# SPDX-License-Identifier: Apache-2.0
"""The plain twin of finetune_resume.py: one process, a checkpoint of its own every 20 steps."""

import argparse
import pathlib

import torch
from gpt import GPT, Text
from torch.nn import functional as F
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True, help="a file of torch.save to start from")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--checkpoint", type=pathlib.Path, default=pathlib.Path("finetune.pt"))
    args = parser.parse_args()

    torch.manual_seed(1)
    model = GPT(dropout=0.0)
    model.load_state_dict(torch.load(args.weights, weights_only=True), strict=False)
    for layer in (model.bytes, model.places):
        layer.requires_grad_(False)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-4)
    step = 0
    if args.checkpoint.exists():
        kept = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]  # the samples between a checkpoint and a crash are used twice, or skipped

    while step < args.steps:
        for x, y in DataLoader(Text(), args.batch, shuffle=True, drop_last=True):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
                kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(kept, args.checkpoint.with_suffix(".new"))
                args.checkpoint.with_suffix(".new").rename(args.checkpoint)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
