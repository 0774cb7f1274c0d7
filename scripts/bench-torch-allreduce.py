#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduces of float32 from PyTorch: the backend phalanx beside gloo, in one run of the same processes.

    scripts/bench-torch-allreduce.py [--ranks 2,4,8] [--bytes 4096,1048576,67108864] [--seconds 1.5]

Run it with the Python of scripts/torch-env.sh, after `make build python`. It prints one line for each number of ranks and size:
medians of rank 0 in milliseconds with the 10th and the 90th percentile, for tensors anywhere, for tensors of phalanx.torch.empty,
and for gloo, and what gloo takes over ours. The three take turns, so that a busy machine is busy for all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def measure(sizes: list[int], seconds: float) -> None:
    """What each rank does. Rank 0 prints."""
    import torch
    import torch.distributed as dist

    import phalanx.torch

    dist.init_process_group("phalanx")
    gloo = dist.new_group(backend="gloo")
    own = dist.get_rank()
    for size in sizes:
        there = torch.ones(size // 4)
        here = phalanx.torch.empty(size // 4)
        here.fill_(1)
        ways: dict[str, Callable[[], Any]] = {
            "ours": lambda t=there: dist.all_reduce(t, dist.ReduceOp.AVG),
            "here": lambda t=here: dist.all_reduce(t, dist.ReduceOp.AVG),
            "gloo": lambda t=there: dist.all_reduce(t, group=gloo),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        go = torch.ones(1)
        end = time.monotonic() + seconds * len(ways)
        while go.item() > 0:
            for name, way in ways.items():
                dist.barrier()
                for i in range(12):
                    began = time.perf_counter()
                    way()
                    if i >= 2:
                        times[name].append(time.perf_counter() - began)
                there.fill_(1)
            go = torch.tensor([float(time.monotonic() < end and own == 0)])
            dist.broadcast(go, 0)
        if own == 0:
            print("RESULT " + json.dumps({"ranks": dist.get_world_size(), "bytes": size, "times": times}), flush=True)
        del here
    dist.destroy_process_group()


def spread(times: list[float]) -> str:
    t = sorted(1e3 * x for x in times)
    return f"{statistics.median(t):8.3f} ({t[len(t) // 10]:.3f}-{t[len(t) * 9 // 10]:.3f})"


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--ranks", default="2,4,8")
    p.add_argument("--bytes", default="4096,1048576,67108864")
    p.add_argument("--seconds", type=float, default=1.5, help="for each of the three ways and each size")
    p.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    sizes = [int(x) for x in a.bytes.split(",")]
    if a.inside:
        measure(sizes, a.seconds)
        return 0
    binary = os.environ.get("PHALANX_BINARY") or str(ROOT / "bin" / "phalanx")
    if not os.access(binary, os.X_OK):
        print(f"bench-torch-allreduce: {binary} is missing; run make build python", file=sys.stderr)
        return 1
    print(f"{'ranks':>5} {'bytes':>10} {'phalanx ms':>24} {'in the segment ms':>24} {'gloo ms':>24} {'ratio':>6} {'there':>6}")
    for ranks in a.ranks.split(","):
        folder = tempfile.mkdtemp(prefix="phx-bench-", dir="/tmp")
        env = os.environ | {
            "PYTHONPATH": str(ROOT / "python" / "src"),
            "CUDA_VISIBLE_DEVICES": "",
            "PHALANX_SEGMENT_BYTES": str(max(64 << 20, 2 * max(sizes))),
        }
        inside = [sys.executable, __file__, "--inside", "--bytes", a.bytes, "--seconds", str(a.seconds)]
        command = [binary, "run", "--plain", "--nproc", ranks, "--max-restarts", "0", "--dir", folder + "/job", "--", *inside]
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if done.returncode != 0:
            print(done.stdout + done.stderr, file=sys.stderr)
            return 1
        for line in done.stdout.splitlines():
            if "RESULT " not in line:
                continue
            r = json.loads(line.split("RESULT ", 1)[1])
            t = r["times"]
            m = {name: statistics.median(x) for name, x in t.items()}
            print(
                f"{r['ranks']:>5} {r['bytes']:>10} {spread(t['ours']):>24} {spread(t['here']):>24} {spread(t['gloo']):>24} "
                f"{m['gloo'] / m['ours']:>6.2f} {m['gloo'] / m['here']:>6.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
