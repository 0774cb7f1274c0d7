# SPDX-License-Identifier: Apache-2.0
"""torchrun with --rdzv-backend=phalanx: agents that meet through daemons."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from running import ROOT, phalanx_binary

# Writes a line when its group works, then works until it is told to finish.
WORKER = """
import os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.ones(1)
dist.all_reduce(total)
out = sys.argv[1]
with open(f"{out}/{time.monotonic_ns()}.{os.getpid()}", "w") as f:
    f.write(f"{rank} {world} {total.item():g} {os.environ['GROUP_RANK']}")
while not os.path.exists(f"{out}/finish"):
    time.sleep(0.05)
    dist.all_reduce(total)
dist.destroy_process_group()
"""


class Agents:
    """Agents of one torchrun job, all on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.out.mkdir()
        (folder / "worker.py").write_text(WORKER)
        meta = folder / "meta" / "phalanx-0.dist-info"  # what an installed wheel has
        meta.mkdir(parents=True)
        (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: phalanx\nVersion: 0\n")
        entry = "[torchrun.handlers]\nphalanx = phalanx.torch.rendezvous:handler\n"
        (meta / "entry_points.txt").write_text(entry)
        self.key = subprocess.run(
            [phalanx_binary(), "key", "new"], capture_output=True, text=True, check=True
        ).stdout.strip()
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, nnodes: str, nproc: int, conf: str = "") -> subprocess.Popen[bytes]:
        """Starts an agent."""
        env = os.environ | {
            "PYTHONPATH": f"{ROOT / 'python' / 'src'}:{self.folder / 'meta'}",
            "CUDA_VISIBLE_DEVICES": "",
            "PATH": f"{Path(phalanx_binary()).parent}:{os.environ['PATH']}",
            "PHALANX_KEY": self.key,
            "OMP_NUM_THREADS": "1",
        }
        words = ["--nnodes", nnodes, "--nproc-per-node", str(nproc), "--rdzv-backend", "phalanx"]
        words += ["--rdzv-id", "j", "--max-restarts", "3", "--monitor-interval", "0.1"]
        if conf:
            words += ["--rdzv-conf", conf]
        with open(self.folder / f"agent{len(self.started)}.log", "wb") as log:
            agent = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *words]
                + [str(self.folder / "worker.py"), str(self.out)],
                cwd=self.folder,
                env=env,
                stdout=log,
                stderr=log,
            )
        self.started.append(agent)
        return agent

    def logs(self) -> str:
        """What the agents have printed."""
        files = sorted(self.folder.glob("agent*.log"))
        return "\n".join(f.read_text(errors="replace")[-4000:] for f in files)

    def works(self, world: int, after: int = 0, timeout: float = 120.0) -> dict[int, int]:
        """Waits until all ranks of a world have worked since a time: their pids by rank."""
        end = time.monotonic() + timeout
        while True:
            ranks: dict[int, int] = {}
            for file in sorted(self.out.glob("*.*")):
                at, pid = map(int, file.name.split("."))
                words = file.read_text().split()
                if at > after and len(words) == 4 and int(words[1]) == world:
                    assert float(words[2]) == world
                    ranks[int(words[0])] = pid
            if len(ranks) == world:
                return ranks
            assert time.monotonic() < end, f"ranks {ranks} of {world}\n{self.logs()}"
            time.sleep(0.05)


@pytest.fixture
def agents(folder: Path) -> Iterator[Agents]:
    """Agents that leave nothing behind."""
    a = Agents(folder)
    yield a
    for agent in a.started:
        if agent.poll() is None:
            agent.terminate()
    for agent in a.started:
        try:
            agent.wait(60)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait(10)


def finish(a: Agents, *agents: subprocess.Popen[bytes]) -> None:
    (a.out / "finish").touch()
    for agent in agents:
        assert agent.wait(120) == 0, a.logs()


def test_a_worker_is_killed(agents: Agents) -> None:
    """The agent starts its workers again in another round, as torch's own store cannot on gloo."""
    agent = agents.start("1", 2)
    pids = agents.works(2)
    now = time.monotonic_ns()
    os.kill(pids[1], signal.SIGKILL)
    agents.works(2, now)
    finish(agents, agent)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_an_agent_is_lost(agents: Agents) -> None:
    """Three agents, of which one is lost with its daemon: the others form again without it."""
    at = f"127.0.0.1:{free_port()}"
    conf = [f"host={n},dir={agents.folder / n}" for n in ("a", "b", "c")]
    one = agents.start("2:3", 1, f"{conf[0]},bind={at}")
    two = agents.start("2:3", 1, f"{conf[1]},bind=127.0.0.1,join={at}")
    three = agents.start("2:3", 1, f"{conf[2]},bind=127.0.0.1,join={at}")
    agents.works(3)
    now = time.monotonic_ns()
    lost = agents.folder / "c"
    pids = [
        int((lost / "job" / "run.lock").read_text()),
        json.loads((lost / "job" / "members" / "0" / "daemon.json").read_text())["pid"],
        json.loads((lost / "round.json").read_text())["pid"],
        three.pid,
    ]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    three.wait(10)
    agents.works(2, now)
    finish(agents, one, two)
