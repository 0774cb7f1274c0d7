# SPDX-License-Identifier: Apache-2.0
"""One torchft replica group of one rank (gloo, CPU), started by torchft_kills.py and torchft_bits.py; not of use by itself.

Trains an MLP of 1.05M parameters with the all-reduce of its flat gradient, and appends a line to a log for each step:
CLOCK_MONOTONIC, whether it was committed, and how many groups took part; `heal` says that it received the state. Settings come as a JSON object in argv[1]. With `steps` it ends
after so many, with a line that has the hash of the parameters, and draws samples by (step, participating rank).
"""

import hashlib
import json
import logging
import os
import sys
import time
from datetime import timedelta

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.manager import WorldSizeMode

BATCH = 48


def main() -> None:
    settings = json.loads(sys.argv[1])
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    group, groups = settings["group"], settings["groups"]
    log = os.open(settings["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(kind: str, *fields: object) -> None:
        os.write(log, (" ".join([kind, f"{time.monotonic():.6f}", *map(str, fields)]) + "\n").encode())

    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 480), nn.ReLU(), nn.Linear(480, 64))
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def load(state: dict) -> None:
        model.load_state_dict(state["m"])
        inner.load_state_dict(state["o"])
        note("heal")

    pg = ProcessGroupGloo(timeout=timedelta(seconds=settings["timeout"]))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=pg,
        min_replica_size=settings.get("min_replicas", 2),
        replica_id=f"g_{group}",
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=settings["lighthouse"],
        load_state_dict=load,
        state_dict=lambda: {"m": model.state_dict(), "o": inner.state_dict()},
        timeout=timedelta(seconds=settings["timeout"]),
        quorum_timeout=timedelta(seconds=settings["quorum_timeout"]),
        connect_timeout=timedelta(seconds=settings["connect_timeout"]),
        heartbeat_interval=timedelta(milliseconds=settings["hb_interval_ms"]),
        use_async_quorum=True,
        init_sync=True,
        world_size_mode=WorldSizeMode[settings.get("mode", "DYNAMIC")],
    )
    opt = Optimizer(manager, inner)
    params = list(model.parameters())
    flat = torch.empty(sum(p.numel() for p in params))
    # A restarted node imports at a high priority, which costs 6 s instead of 12 on two busy cores, and trains at the usual one.
    for thread in os.listdir("/proc/self/task"):
        os.setpriority(os.PRIO_PROCESS, int(thread), 0)
    note("ready")
    if settings["gate"]:  # all groups heartbeat before the first quorum
        open(f"{settings['gate']}.{group}", "w").close()
        while not all(os.path.exists(f"{settings['gate']}.{g}") for g in range(groups)):
            time.sleep(0.01)
        time.sleep(0.3)
    stepped: list[int] = []
    inner.register_step_post_hook(lambda *_: stepped.append(1))  # the step number also jumps when a group heals
    steps = settings.get("steps")
    while not steps or manager.current_step() < steps:
        stepped.clear()
        opt.zero_grad()
        part = group
        if steps:
            manager.wait_quorum()
            part = manager.participating_rank() or 0
        draw = torch.Generator().manual_seed(manager.current_step() * 1000 + part)
        x, y = torch.randn(BATCH, 512, generator=draw), torch.randn(BATCH, 64, generator=draw)
        ((model(x) - y) ** 2).mean().backward()
        torch.cat([p.grad.reshape(-1) for p in params], out=flat)
        manager.allreduce(flat).wait()
        at = 0
        for p in params:
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()
        opt.step()
        note("step", len(stepped), manager.num_participants())
    digest = hashlib.sha256()
    for p in params:
        digest.update(p.detach().numpy().tobytes())
    note("hash", digest.hexdigest(), manager.current_step())
    os._exit(0)


if __name__ == "__main__":
    main()
