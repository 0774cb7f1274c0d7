#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures checkpoints from Python: ours beside DCP's FileSystemWriter, in the same run.

    python scripts/bench-torch-ckpt.py [--mib 256] [--ranks 1,2,4] [--repeat 3] [--dir /dev/shm]

For each way: how long the training program waits (stall), how long until the checkpoint is durable (ours: published), and how long
a load takes, each the median of REPEAT. All ranks save about the same; the slowest counts. Needs PyTorch, bin/phalanx and PYTHONPATH=python/src.
"""

from __future__ import annotations

import argparse
import glob
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import phalanx.torch  # noqa: F401
from phalanx.torch import _service
from phalanx.torch.dcp import StorageReader, StorageWriter

TENSOR_MIB = 16
WAYS = ["dcp", "dcp async", "phalanx", "phalanx async", "phalanx url"]


def measure(way: str, step: int, root: str, state: dict[str, Any], keep: dict[str, Any]) -> tuple[float, float, float]:
    """Seconds of stall, until durable, and of a load."""
    folder, url = f"{root}/dcp-{step}", f"phalanx://bench/step-{step}?store={root}/store"
    dist.barrier()
    begun = time.perf_counter()
    wait: Callable[[], Any] = lambda: None  # noqa: E731
    if way == "dcp":
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, thread_count=2))
    elif way == "dcp async":
        writer = dcp.FileSystemWriter(folder, thread_count=2)  # its cached staging pins memory, which wants a GPU
        wait = dcp.async_save(state, storage_writer=writer).result
    elif way == "phalanx":
        dcp.save(state, checkpoint_id=url, storage_writer=keep.setdefault("sync", StorageWriter()))
    elif way == "phalanx async":
        wait = dcp.async_save(state, checkpoint_id=url, storage_writer=keep.setdefault("async", StorageWriter())).result
    else:
        dcp.save(state, checkpoint_id=url)
    stall = time.perf_counter() - begun
    wait()
    durable = time.perf_counter() - begun
    dist.barrier()
    into = {k: torch.zeros_like(v) for k, v in state.items()}
    dist.barrier()
    begun = time.perf_counter()
    if way.startswith("dcp"):
        dcp.load(into, storage_reader=dcp.FileSystemReader(folder))
    elif way == "phalanx url":
        dcp.load(into, checkpoint_id=url)
    else:
        dcp.load(into, storage_reader=StorageReader(url))
    load = time.perf_counter() - begun
    assert all(torch.equal(into[k], v) for k, v in state.items()), "what was loaded is not what was saved"
    dist.barrier()
    return stall, durable, load


def rank_main(rank: int, world: int, port: int, root: str, mib: int, repeat: int, out: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    count = max(1, mib // world // TENSOR_MIB)
    state = {f"rank{rank}.t{i}": torch.randn(TENSOR_MIB << 18) for i in range(count)}
    results: dict[str, list[tuple[float, float, float]]] = {w: [] for w in WAYS}
    step, keep = 0, {}
    for _ in range(repeat + 1):  # the first one warms up
        for way in WAYS:
            step += 1
            mine = torch.tensor(measure(way, step, root, state, keep), dtype=torch.float64)
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            results[way].append(tuple(mine.tolist()))
            if rank == 0:
                shutil.rmtree(f"{root}/dcp-{step}", ignore_errors=True)
                for old in glob.glob(f"{root}/store/bench/step-*"):
                    shutil.rmtree(old, ignore_errors=True)
            dist.barrier()
    if rank == 0:
        out.put({w: [statistics.median(c) for c in zip(*r[1:], strict=True)] for w, r in results.items()} | {"mib": count * world * TENSOR_MIB})
    dist.barrier()
    dist.destroy_process_group()
    _service._close()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mib", type=int, default=256, help="size of the whole state")
    p.add_argument("--ranks", default="1,2,4")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--dir", default="/dev/shm", help="where both write")
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    context = multiprocessing.get_context("fork")  # nothing has threads yet
    answers = {}
    for world in map(int, a.ranks.split(",")):
        root = tempfile.mkdtemp(prefix="phx-bench-", dir=a.dir)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        out = context.Queue()
        ranks = [context.Process(target=rank_main, args=(r, world, port, root, a.mib, a.repeat, out)) for r in range(world)]
        try:
            for r in ranks:
                r.start()
            answers[world] = out.get(timeout=600)
        finally:
            for r in ranks:
                r.join(30)
                if r.is_alive():
                    r.kill()
            shutil.rmtree(root, ignore_errors=True)
    if a.json:
        print(json.dumps(answers))
        return
    print(f"PyTorch {torch.__version__}, {os.cpu_count()} cores, {a.dir}, median of {a.repeat}")
    print(f"{'ranks':>5} {'MiB':>5}  {'':14} {'stall ms':>9} {'durable ms':>11} {'load ms':>8}")
    for world, answer in answers.items():
        for way in WAYS:
            stall, durable, load = (1000 * x for x in answer[way])
            print(f"{world:>5} {answer['mib']:>5}  {way:14} {stall:9.0f} {durable:11.0f} {load:8.0f}")


if __name__ == "__main__":
    main()
