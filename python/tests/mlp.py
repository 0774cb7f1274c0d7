# SPDX-License-Identifier: Apache-2.0
"""A small trainer for tests, with faults that tests plant."""

import argparse
import os
import pathlib
import signal
import time

import torch

import phalanx.torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        g = torch.Generator().manual_seed(i)
        return torch.randn(16, generator=g), torch.randn(4, generator=g)


def once(folder: str, name: str) -> bool:
    """True for the first caller of all processes."""
    try:
        os.close(os.open(pathlib.Path(folder) / name, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--slots", type=int, default=12)
    parser.add_argument("--slow-until", type=pathlib.Path, help="steps take 0.25 s until this file is there")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--scaler", action="store_true")
    parser.add_argument("--weighted", action="store_true")
    parser.add_argument("--fault", action="append", default=[], help="WHERE:STEP, once in the run")
    parser.add_argument("--marks", help="folder of the faults' marks")
    args = parser.parse_args()
    faults = {tuple(f.split(":")) for f in args.fault}

    def fault(where: str, step: int) -> bool:
        return (where, str(step)) in faults and once(args.marks, f"{where}-{step}")

    torch.manual_seed(1)
    model = Net().to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    scaler = torch.amp.GradScaler(args.device, init_scale=1024.0, growth_interval=8) if args.scaler else None

    def killed_inside(*_: object) -> None:
        if fault("optimizer", len(steps)):
            os.kill(os.getpid(), signal.SIGKILL)

    steps: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: steps.append(0))
    optimizer.register_step_post_hook(killed_inside)

    job = phalanx.torch.Elastic(
        model, optimizer, steps=args.steps, global_batch=args.batch, slots=args.slots, seed=7, data=Numbers(),
        schedule=schedule, scaler=scaler, weighted=args.weighted, clip_norm=1.0, workers=args.workers,
    )
    for step in job:
        begun = time.monotonic()
        with step:
            if fault("raise", step.number):
                raise RuntimeError("planted in forward")
            for x, y in step.batches():
                x, y = x.to(args.device), y.to(args.device)
                loss = (model(x) - y).square()
                if args.weighted:
                    step.count(y.numel())
                    step.backward(loss.sum())
                else:
                    step.backward(loss.mean())
                if fault("kill", step.number):
                    os.kill(os.getpid(), signal.SIGKILL)
                if fault("stop", step.number):
                    os.kill(os.getpid(), signal.SIGSTOP)
            if args.slow_until and not args.slow_until.exists():
                time.sleep(max(0.0, begun + 0.25 - time.monotonic()))
        if step.committed and step.number % 10 == 0:
            print(f"step {step.number} rank {step.rank} world {step.world} pid {os.getpid()}", flush=True)
    print(f"final step={job.applied} digest={job.digest()}", flush=True)


if __name__ == "__main__":
    main()
