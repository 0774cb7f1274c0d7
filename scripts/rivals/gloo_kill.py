# SPDX-License-Identifier: Apache-2.0
"""Times how fast bare gloo goes on after a SIGKILL: nothing is agreed, the survivors are told who is left.

Ranks loop over all-reduces of 16 MiB; rank 1 is killed at a random moment. Each survivor closes its group when its call fails,
makes a group of one rank less and reduces 4 KiB on it.

usage: gloo_kill.py RANKS KILLS
The last line is RESULT and a JSON object: seconds from each kill to each survivor's first reduction on the new group.
"""

import datetime
import json
import os
import random
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def join(store: dist.Store, tag: str, rank: int, ranks: int) -> None:
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(tag, store), rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=20)
    )


def survive(rank: int, ranks: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    join(store, "first", rank, ranks)
    data = torch.ones(4 << 20)
    open(f"{folder}/up{rank}", "w").close()
    try:
        while True:
            dist.all_reduce(data)
    except RuntimeError:
        dist.destroy_process_group()
    join(store, "second", rank - (rank > 1), ranks - 1)
    dist.all_reduce(data[:1024])
    with open(f"{folder}/done{rank}", "w") as out:
        out.write(str(time.monotonic()))
    store.add("end", 1)
    while store.add("end", 0) < ranks - 1:
        time.sleep(0.01)


def trial(ranks: int) -> list[float]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        processes = [mp.get_context("spawn").Process(target=survive, args=(r, ranks, store.port, folder)) for r in range(ranks)]
        for p in processes:
            p.start()
        end = time.monotonic() + 60
        while sum(f.startswith("up") for f in os.listdir(folder)) < ranks and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.7 + random.random())
        killed = time.monotonic()
        os.kill(processes[1].pid, signal.SIGKILL)
        for p in processes:
            p.join(60)
            p.kill()
        return [float(open(f"{folder}/{f}").read()) - killed for f in os.listdir(folder) if f.startswith("done")]


def main() -> None:
    ranks, kills = int(sys.argv[1]), int(sys.argv[2])
    os.environ["OMP_NUM_THREADS"] = "1"
    took = [trial(ranks) for _ in range(kills)]
    lost = sum(ranks - 1 - len(t) for t in took)
    print("RESULT", json.dumps({"version": torch.__version__, "recover": sum(took, []), "survivors_that_never_went_on": lost}))


if __name__ == "__main__":
    main()
