# SPDX-License-Identifier: Apache-2.0
"""Times torchrun: SIGKILL of one of 4 workers to every worker's next step after the restart.

The workers train torchft_node.py's MLP under DDP on gloo; rank 0 saves to tmpfs each 10 steps, and all load that after a
restart. This file is driver and worker.

usage: torchrun_kills.py KILLS    (sets TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which a restart on gloo never succeeds)
The last line is RESULT and a JSON object: seconds from each kill to each worker's next step, and the steps computed again.
"""

import ctypes
import importlib.metadata
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

RANKS, EVERY = 4, 10


def worker(folder: str) -> None:
    # A worker is in a session of its own: it must not outlive a driver that is killed.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, life = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    log = os.open(f"{folder}/{rank}.{life}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 480), nn.ReLU(), nn.Linear(480, 64))
    net = nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = 0
    if os.path.exists(f"{folder}/saved"):
        saved = torch.load(f"{folder}/saved")
        model.load_state_dict(saved["m"])
        opt.load_state_dict(saved["o"])
        step = saved["step"]
    os.write(log, f"start {os.getpid()} {step}\n".encode())
    while True:
        draw = torch.Generator().manual_seed(step * 1000 + rank)
        opt.zero_grad()
        ((net(torch.randn(48, 512, generator=draw)) - torch.randn(48, 64, generator=draw)) ** 2).mean().backward()
        opt.step()
        step += 1
        os.write(log, f"step {time.monotonic():.6f} {step}\n".encode())
        if rank == 0 and step % EVERY == 0:
            torch.save({"m": model.state_dict(), "o": opt.state_dict(), "step": step}, f"{folder}/new")
            os.rename(f"{folder}/new", f"{folder}/saved")


def rows(folder: str, rank: int, life: int) -> list[list[str]]:
    name = f"{folder}/{rank}.{life}"
    return [line.split() for line in open(name).read().split("\n")[:-1]] if os.path.exists(name) else []


def drive(folder: str, kills: int) -> tuple[list[float], list[int]]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    run = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(RANKS), "--max-restarts", "100",
         "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:29666", "--rdzv-id", "bench", __file__, "worker", folder],
        stdout=open(f"{folder}/out", "w"), stderr=subprocess.STDOUT, env=env)  # fmt: skip

    def wait(life: int, lines: int) -> None:
        end = time.monotonic() + 90
        while not all(len(rows(folder, r, life)) > lines for r in range(RANKS)):
            if run.poll() is not None or time.monotonic() > end:
                raise SystemExit("torchrun did not go on: " + open(f"{folder}/out").read()[-1500:])
            time.sleep(0.05)

    recover, again = [], []
    try:
        for life in range(kills):
            wait(life, 40)
            time.sleep(random.random())
            killed = time.monotonic()
            os.kill(int(rows(folder, random.randrange(RANKS), life)[0][1]), signal.SIGKILL)
            wait(life + 1, 2)
            reached = max(int(rows(folder, r, life)[-1][2]) for r in range(RANKS))
            again.append(reached - int(rows(folder, 0, life + 1)[0][2]))
            recover += [float(rows(folder, r, life + 1)[1][1]) - killed for r in range(RANKS)]
    finally:
        run.terminate()
        run.wait()
    return recover, again


def main() -> None:
    if sys.argv[1] == "worker":
        return worker(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything that was started is ended
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        recover, again = drive(folder, int(sys.argv[1]))
    print("RESULT", json.dumps({"version": importlib.metadata.version("torch"), "recover": recover, "steps_again": again}))


if __name__ == "__main__":
    main()
