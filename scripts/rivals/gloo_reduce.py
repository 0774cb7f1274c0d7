# SPDX-License-Identifier: Apache-2.0
"""Times gloo's all-reduce of float32 on loopback by size, one process a rank and one thread a process.

usage: gloo_reduce.py RANKS BYTES:TIMES [BYTES:TIMES ...]
The last line is RESULT and a JSON object: for each size the milliseconds of every call of every rank.
"""

import datetime
import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM = 5  # calls before anything is measured


def reduce(rank: int, ranks: int, port: int, sizes: list[tuple[int, int]], folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    took: dict[int, list[float]] = {}
    for size, times in sizes:
        data = torch.ones(size // 4)
        for i in range(-WARM, times):
            data.fill_(1.0)
            if i == 0:
                dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(data)
            if i >= 0:
                took.setdefault(size, []).append(1e3 * (time.perf_counter() - began))
        if data[0] != ranks or data[-1] != ranks:
            raise SystemExit(f"rank {rank}: the sum of {ranks} ones is {data[0]}")
    with open(f"{folder}/{rank}", "w") as out:
        json.dump(took, out)
    dist.barrier()


def main() -> None:
    ranks = int(sys.argv[1])
    sizes = [(int(size), int(times)) for size, times in (a.split(":") for a in sys.argv[2:])]
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        mp.spawn(reduce, (ranks, store.port, sizes, folder), ranks)
        all_ranks = [json.load(open(f"{folder}/{rank}")) for rank in range(ranks)]
    print("RESULT", json.dumps({"version": torch.__version__, "ms": {size: sum((r[str(size)] for r in all_ranks), []) for size, _ in sizes}}))


if __name__ == "__main__":
    main()
