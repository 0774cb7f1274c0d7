# SPDX-License-Identifier: Apache-2.0
"""The trainer of ours that bench.py starts by `phalanx run`; not of use by itself.

It trains the MLP of scripts/rivals/torchft_node.py with the elastic loop. Each process appends to FOLDER/PID: `step`, seconds of
CLOCK_MONOTONIC, number, rank, world, generation for each committed step, and `heal` with the step at which it received state.

usage: trainer.py FOLDER STEPS SLOTS
"""

import os
import sys
import time

import torch
from torch import nn

import phalanx.torch

RANKS, BATCH = 4, 48


def main() -> None:
    folder, steps, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 480), nn.ReLU(), nn.Linear(480, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    size = RANKS * BATCH // slots
    # Samples are drawn from (step, slot), as the others draw theirs from (step, rank).
    job = phalanx.torch.Elastic(model, optimizer, steps=steps, global_batch=RANKS * BATCH, slots=slots, data=1 << 20)
    log = os.open(f"{folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in job:
        if step.healed:
            os.write(log, f"heal {time.monotonic():.6f} {step.number}\n".encode())
        with step:
            for slot in step.slots():
                draw = torch.Generator().manual_seed(step.number * 1000 + slot)
                x, y = torch.randn(size, 512, generator=draw), torch.randn(size, 64, generator=draw)
                ((model(x) - y) ** 2).mean().backward()
        if step.committed:
            fields = f"{step.number} {step.rank} {step.world} {step.generation[1]}"
            os.write(log, f"step {time.monotonic():.6f} {fields}\n".encode())
        if os.path.exists(f"{folder}/pause"):  # slow steps leave room for the processes that are started ahead
            time.sleep(0.1)
    print(f"final step={job.applied} digest={job.digest()}", flush=True)


if __name__ == "__main__":
    main()
