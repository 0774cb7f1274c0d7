# SPDX-License-Identifier: Apache-2.0
"""A trainer for tests whose model is sharded over the ranks of a group, unevenly in places."""

import argparse
import os
import pathlib
import signal
import time

import torch
from mlp import Numbers, once
from torch.distributed.fsdp import fully_shard

import phalanx.torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = torch.nn.Linear(16, 33), torch.nn.Linear(33, 20), torch.nn.Linear(20, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--group-size", type=int, default=2)
    parser.add_argument("--slow-until", type=pathlib.Path, help="steps take 0.25 s until this file is there")
    parser.add_argument("--fault", action="append", default=[], help="WHERE:STEP, once in the run")
    parser.add_argument("--marks", help="folder of the faults' marks")
    args = parser.parse_args()

    def fault(where: str, step: int) -> None:
        if f"{where}:{step}" in args.fault and once(args.marks, f"{where}-{step}"):
            os.kill(os.getpid(), signal.SIGKILL)

    mesh = phalanx.torch.shard_mesh(args.group_size)
    torch.manual_seed(1)
    model = Net()
    for layer in (model.first, model.second):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    now = [0]
    model.second.register_forward_hook(lambda *_: fault("forward", now[0]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    job = phalanx.torch.Elastic(
        model, optimizer, steps=args.steps, global_batch=48, slots=8, seed=7, data=Numbers(), clip_norm=1.0,
        group_size=args.group_size,
    )  # fmt: skip
    for step in job:
        begun = time.monotonic()
        now[0] = step.number
        with step:
            for x, y in step.batches():
                (model(x) - y).square().mean().backward()
                fault("backward", step.number)
            if args.slow_until and not args.slow_until.exists():
                time.sleep(max(0.0, begun + 0.25 - time.monotonic()))
        if step.committed and step.number % 10 == 0:
            print(f"step {step.number} rank {step.rank} world {step.world} pid {os.getpid()}", flush=True)
    print(f"shard {job.coordinate} final step={job.applied} digest={job.digest()}", flush=True)


if __name__ == "__main__":
    main()
