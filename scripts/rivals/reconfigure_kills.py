# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch's own elastic shape on gloo (`enable_reconfigure=True`): SIGKILL of one of 4 ranks to the next step of each other.

Nothing detects and nobody agrees: an oracle tells the survivors at once who is left, through a store that is never killed, and
they have given away their handles before. They train torchft_node.py's MLP with an all-reduce of its flat gradient. A survivor whose
all-reduce fails reconfigures to the three and does the step again. Of the three only the ring neighbours of the dead one would notice;
the third waits for its time-out, and the two wait in `reconfigure` for the third. So a thread of each, told by the oracle, cuts the
process's own connections, which is the one thing that frees an all-reduce of gloo.

usage: reconfigure_kills.py KILLS
The last line is RESULT and a JSON object: seconds from each kill to each survivor's next step, survivors that never went on, and the
seconds of a quiet step.
"""

import datetime
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from flat_steps import average
from torch import nn

RANKS, STEPS_BEFORE, STEPS_AFTER = 4, 40, 5
STARTED = mp.get_context("forkserver")  # imports once for all trials
STARTED.set_forkserver_preload(["torch._dynamo"])  # which the first optimizer wants


def cut(port: int, told: Any) -> None:
    """Ends all connections of this process but those to the store, as soon as it is told to."""
    told.recv()
    for fd in os.listdir("/proc/self/fd"):
        try:
            s = socket.socket(fileno=os.dup(int(fd)))
            with s:
                ports = {s.getpeername()[1], s.getsockname()[1]} if s.family in (socket.AF_INET, socket.AF_INET6) else {port}
                if port not in ports:
                    s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # no socket, or not connected


def train(rank: int, port: int, folder: str, told: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    patience = datetime.timedelta(seconds=20)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=patience, enable_reconfigure=True)
    generation, world = 0, list(range(RANKS))

    def form() -> None:
        """Joins the ranks of `world`, and gives away the handle for the next time."""
        nonlocal generation
        generation += 1
        handles = [store.get(f"handle/{generation}/{r}").decode() for r in world]
        dist._reconfigure(generation, handles, timeout=patience).wait()
        store.set(f"handle/{generation + 1}/{rank}", dist._get_reconfigure_handle())

    store.set(f"handle/1/{rank}", dist._get_reconfigure_handle())
    form()
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 480), nn.ReLU(), nn.Linear(480, 64))
    params = list(model.parameters())
    cutter = threading.Thread(target=cut, args=(port, told), daemon=True)
    cutter.start()
    opt = torch.optim.SGD(params, lr=0.01, momentum=0.9)
    flat = torch.empty(sum(p.numel() for p in params))
    log = os.open(f"{folder}/{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    step = after = 0
    while after < STEPS_AFTER:
        draw = torch.Generator().manual_seed(step * 1000 + rank)
        opt.zero_grad()
        ((model(torch.randn(48, 512, generator=draw)) - torch.randn(48, 64, generator=draw)) ** 2).mean().backward()
        try:
            average(params, flat, len(world))
        except RuntimeError:
            if generation > 1:
                raise
            cutter.join(20)  # or it would cut the new connections
            world.remove(int(store.get("victim")))
            form()
            continue
        opt.step()
        step += 1
        after += generation > 1
        os.write(log, f"{time.monotonic():.6f} {len(world)}\n".encode())
    store.add("end", 1)
    while store.add("end", 0) < RANKS - 1:
        time.sleep(0.01)


def rows(folder: str, rank: int) -> list[list[str]]:
    name = f"{folder}/{rank}"
    return [line.split() for line in open(name).read().split("\n")[:-1]] if os.path.exists(name) else []


def trial(rng: random.Random) -> tuple[list[float], int, list[float]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        oracle = [STARTED.Pipe(duplex=False) for _ in range(RANKS)]
        processes = [STARTED.Process(target=train, args=(r, store.port, folder, oracle[r][0])) for r in range(RANKS)]
        for p in processes:
            p.start()
        try:
            end = time.monotonic() + 120
            while min(len(rows(folder, r)) for r in range(RANKS)) < STEPS_BEFORE:
                if time.monotonic() > end or any(p.exitcode for p in processes):
                    raise SystemExit("the ranks did not train")
                time.sleep(0.01)
            time.sleep(rng.random())
            victim = rng.randrange(RANKS)
            store.set("victim", str(victim))
            killed = time.monotonic()
            os.kill(processes[victim].pid, signal.SIGKILL)
            for r in range(RANKS):
                if r != victim:
                    oracle[r][1].send("cut")
            for p in processes:
                p.join(max(0.0, killed + 30 - time.monotonic()))
        finally:
            for p in processes:
                p.kill()
        survivors = [[(float(t) - killed, int(n)) for t, n in rows(folder, r)] for r in range(RANKS) if r != victim]
    took = [next(t for t, n in lines if n < RANKS) for lines in survivors if lines[-1][1] < RANKS]
    quiet = [b - a for lines in survivors for (a, _), (b, n) in zip(lines[10:], lines[11:]) if b < 0]
    return took, RANKS - 1 - len(took), quiet


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    rng = random.Random(1)
    took, lost, quiet = [], 0, []
    for _ in range(int(sys.argv[1])):
        t, gone, q = trial(rng)
        took, lost, quiet = took + t, lost + gone, quiet + q
    told = {"recover": took, "survivors_that_never_went_on": lost, "step": quiet}
    print("RESULT", json.dumps({"version": torch.__version__} | told))


if __name__ == "__main__":
    main()
