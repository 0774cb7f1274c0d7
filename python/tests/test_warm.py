# SPDX-License-Identifier: Apache-2.0
"""`phalanx run --warm`: a process that has done its imports takes the place of a killed trainer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from running import HERE, ROOT, job, phalanx_binary, trainers

ENV = {"CUDA_VISIBLE_DEVICES": ""}
TIMEOUT = 120.0

# A loop of torchrun's kind, which reads its rank as soon as it can.
PLAIN = """
import os, sys, time
import torch
import torch.distributed as dist
import phalanx.torch

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"generation {os.environ['PHALANX_GENERATION']} rank {rank} sum {total.item():g}", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
    dist.all_reduce(total)
dist.destroy_process_group()
"""


def ready(j, count: int) -> list[int]:
    """The pids that wait for a place."""
    pids: list[int] = []

    def check(s: dict) -> bool:
        pids[:] = [p["pid"] for p in s.get("warm", {}).get("processes", []) if p.get("ready")]
        return len(pids) == count

    j.until(f"{count} wait for a place", check, TIMEOUT)
    return list(pids)


def test_a_place_is_taken_without_imports(folder: Path) -> None:
    """The bits are those of a run without a kill, and the taker is the one that waited."""
    arguments = [sys.executable, str(HERE / "mlp.py"), "--steps", "500"]
    with job(folder / "quiet", arguments, "--nproc", "2", env=ENV) as j:
        assert j.wait(TIMEOUT) == 0, j.output
        want = j.finals()
    with job(
        folder, [*arguments, "--slow-until", str(folder / "go")], "--nproc", "2", "--warm", env=ENV
    ) as j:
        j.until("step 3", lambda s: s["step"] >= 3, TIMEOUT)
        (waiting,) = ready(j, 1)
        s = j.until("two ranks", lambda s: len(trainers(s)) == 2)
        member, victim = list(trainers(s).items())[1]
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        s = j.until(
            "two again",
            lambda s: trainers(s).get(member, victim) != victim and len(trainers(s)) == 2,
        )
        took = time.monotonic() - began
        assert trainers(s)[member] == waiting
        assert took < 2.0, f"{took:.2f} s: it was started anew"  # imports alone take longer
        print(f"kill to full size again: {took:.3f} s")
        ready(j, 1)  # the next one
        (folder / "go").touch()
        assert j.wait(TIMEOUT) == 0, j.output
        assert j.finals() == want, j.output
    until_none(folder / "job")


def test_without_the_step_protocol(folder: Path) -> None:
    """Both trainers of the next generation had done their imports, and print to their own files."""
    (folder / "plain.py").write_text(PLAIN)
    command = [sys.executable, str(folder / "plain.py"), str(folder / "finish")]
    with job(folder, command, "--nproc", "2", "--plain", "--warm=2", env=ENV) as j:
        waiting = ready(j, 2)
        s = j.until("two ranks run", lambda s: s["phase"] == "running" and len(trainers(s)) == 2)
        j.until_line("generation 1 rank 1 sum 2")
        os.kill(list(trainers(s).values())[1], signal.SIGKILL)
        j.until_line(r"h?.* \| generation [2-9] rank 0 sum 2")
        s = j.until("two again", lambda s: s["generation"] > 1 and len(trainers(s)) == 2)
        assert sorted(trainers(s).values()) == sorted(waiting)
        (folder / "finish").touch()
        assert j.wait(TIMEOUT) == 0, j.output
    until_none(folder / "job")


def until_none(directory: Path) -> None:
    """Wants no process left that waits for a place of a job."""
    end = time.monotonic() + 5
    while True:
        left = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environ = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if b"PHALANX_WARM=" + str(directory).encode() in environ:
                    left.append(entry.name)
        if not left:
            return
        assert time.monotonic() < end, f"processes {left} are left"
        time.sleep(0.05)


def start(code: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PHALANX_WARM": str(path), "PYTHONPATH": str(ROOT / "python" / "src")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


WAIT = """
import os, phalanx.warm
print('before')
phalanx.warm.wait()
print(os.environ['RANK'], os.environ.get('PHALANX_WARM'))
"""


def test_the_protocol(folder: Path) -> None:
    """The variables are set, the output is turned, and what is no longer needed ends."""
    with socket.socket(socket.AF_UNIX) as run:
        run.bind(str(folder / "sock"))
        run.listen(1)
        run.settimeout(30)
        p = start(WAIT, folder / "sock")
        conn, _ = run.accept()
        lines = conn.makefile("rw")
        assert json.loads(lines.readline()) == {"op": "ready"}
        time.sleep(1.2)  # longer than it stays out of Python
        log = str(folder / "log")
        lines.write(json.dumps({"op": "place", "env": {"RANK": "7"}, "log": log}) + "\n")
        lines.flush()
        assert json.loads(lines.readline()) == {"op": "taken"}
        out, err = p.communicate(timeout=30)
        assert (p.returncode, out, err) == (0, "before\n", "")
        assert Path(log).read_text() == "7 None\n"

        p = start(WAIT, folder / "sock")
        conn, _ = run.accept()
        conn.recv(100)
        conn.close()
        out, err = p.communicate(timeout=30)
        assert (p.returncode, out, err) == (0, "before\n", "")
    p = start(WAIT, folder / "sock")  # nobody listens any more
    out, err = p.communicate(timeout=30)
    assert (p.returncode, out, err) == (0, "before\n", "")


def test_flag_in_status(folder: Path) -> None:
    """Why none is ready is told where one looks."""
    code = "import os, time; os.environ['PHALANX_START']; time.sleep(60)"  # wants its place at once
    with job(folder, [sys.executable, "-c", code], "--plain", "--warm") as j:
        j.until("a reason", lambda s: "PHALANX_START" in s.get("warm", {}).get("why", ""))
        text = subprocess.run(
            [phalanx_binary(), "status", "--dir", str(j.dir)],
            capture_output=True,
            text=True,
            timeout=30,
        ).stdout
        want = "started ahead on this host: 0 of 1 ready; one ended before it was needed"
        assert want in text, text
