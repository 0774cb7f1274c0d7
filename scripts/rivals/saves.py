# SPDX-License-Identifier: Apache-2.0
"""What the scripts that time saves share: the synthetic state, the step, the clock of a save and its record."""

import datetime
import json
import os
import statistics
import time
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TENSORS = 16
WIDTH = 1024  # elements of a row
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def make(rank: int, ranks: int, mib: int, dtype: str) -> list[torch.Tensor]:
    """This rank's share of a state of so many MiB: rows of 16 tensors."""
    torch.manual_seed(rank)
    kind = DTYPES[dtype]
    rows = (mib << 20) // kind.itemsize // WIDTH // TENSORS // ranks
    return [torch.randn(rows, WIDTH).to(kind) for _ in range(TENSORS)]


class Trainer:
    """Steps of about 10 ms of real compute on one thread, and how long each took."""

    def __init__(self, step_ms: float) -> None:
        self.a, self.b = torch.randn(384, 384), torch.randn(384, 384)
        self.loops = 1
        for _ in range(30):
            self.step()
        began = time.perf_counter()
        for _ in range(30):
            self.step()
        self.loops = max(1, round(step_ms / 1e3 / ((time.perf_counter() - began) / 30)))
        self.quiet: list[float] = []
        self.rest()

    def step(self, guard: Callable[[], Any] | None = None) -> None:
        for _ in range(self.loops):
            torch.mm(self.a, self.b)
        if guard is not None:
            with guard():  # the optimizer, which changes the state
                pass

    def rest(self, seconds: float = 0.6) -> None:
        """Steps of peace, whose times are what others are compared with."""
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            self.step()
            self.quiet.append(time.perf_counter() - began)

    def save(self, call: Callable[[], Any], guard: Callable[[], Any] | None = None) -> dict[str, float]:
        """Saves and trains on until that is done. call returns something with done() and result(), or None when it blocks."""
        record = {"begin": time.time()}
        began = last = time.perf_counter()
        pending = call()
        record["call"] = time.perf_counter() - began
        steps = []
        while pending is not None and not pending.done():
            self.step(guard)
            now = time.perf_counter()
            steps.append(now - last)  # the first holds the call too
            last = now
        if pending is not None:
            pending.result()
        record["durable"] = time.perf_counter() - began
        record["end"] = time.time()
        quiet = statistics.fmean(self.quiet)
        # What is blocked and what is slower both count; the part of a step that was cut off by the end counts as one.
        record["lost"] = record["durable"] - len(steps) * quiet
        record["longest"] = (max(steps) if steps else record["call"] + quiet) - statistics.median(self.quiet)
        return record


def slowest(record: dict[str, float], ranks: int) -> dict[str, float]:
    """The largest of all ranks: a job waits for the last one."""
    if ranks == 1:
        return record
    names = sorted(record)
    values = torch.tensor([-record[n] if n == "begin" else record[n] for n in names], dtype=torch.float64)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return {n: -float(v) if n == "begin" else float(v) for n, v in zip(names, values)}


def folder_bytes(path: str) -> int:
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(path) for f in files)


def shared_mib() -> float:
    """This process's and its children's shared memory, each page counted once among those that map it."""
    total = 0
    pids = ["self"]
    for task in os.listdir("/proc/self/task"):
        try:
            pids += open(f"/proc/self/task/{task}/children").read().split()
        except OSError:
            pass  # the thread has ended
    for pid in pids:
        try:
            lines = open(f"/proc/{pid}/smaps_rollup").read().splitlines()
        except OSError:
            continue  # the process has ended
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Shmem"))
    return total / 1024


def join(rank: int, ranks: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=120))


def launch(run: Callable[..., None], ranks: int, *args: Any) -> None:
    """Runs run(rank, ranks, port, *args) in one process a rank."""
    os.environ["OMP_NUM_THREADS"] = "1"
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.spawn(run, (ranks, store.port, *args), ranks)


def tell(result: dict[str, Any]) -> None:
    print("RESULT", json.dumps(result), flush=True)
