# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning from safetensors that goes on where it was when it is started again.

phalanx run --nproc 2 --dir DIR -- python finetune_resume.py --weights FILE-OR-FOLDER
"""

import argparse

import torch
from gpt import GPT, Text
from torch.nn import functional as F

import phalanx.torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True, help="safetensors to start from")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16, help="samples a step, of all ranks together")
    parser.add_argument("--slots", type=int, default=8, help="parts of a batch that are computed one by one")
    parser.add_argument("--data", help="folder of text files (default: Python's own)")
    args = parser.parse_args()

    torch.manual_seed(1)
    model = GPT(dropout=0.0)
    report = phalanx.torch.load_weights(model, args.weights, rename=[("model.", "")], partial=True)
    print(report, flush=True)
    for layer in (model.bytes, model.places):
        layer.requires_grad_(False)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-4)
    job = phalanx.torch.Elastic(
        model, optimizer, steps=args.steps, global_batch=args.batch, slots=args.slots, seed=2, data=Text(args.data),
    )

    for step in job:  # from the newest checkpoint, if there is one
        with step:
            for x, y in step.batches():
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
                loss.backward()
        if step.committed and step.rank == 0 and step.number % 20 == 0:
            print(f"step {step.number} loss {loss.item():.3f} world {step.world}", flush=True)
    print(f"final step={job.applied} digest={job.digest()}", flush=True)


if __name__ == "__main__":
    main()
