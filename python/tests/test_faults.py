# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a trainer in Python, with real processes. The last state is that of an
undisturbed run each time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from phalanx import _page as page
from running import Job, job, phalanx_binary, toy, trainers
from test_run import alone


def faulty(folder: Path, *arguments: str) -> list[str]:
    return toy(*arguments, "--once", str(folder), script="faulty.py")


def ends_well(j: Job, steps: int) -> None:
    assert j.wait() == 0, j.output
    assert j.finals() == {alone(steps)}, j.output


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [phalanx_binary(), *arguments], capture_output=True, text=True, timeout=60
    )


def member(s: dict[str, Any], name: str) -> dict[str, Any]:
    return next(m for m in s["members"] if m["member"] == name)


@pytest.mark.parametrize("fault", ["--die-in-apply", "--raise-in-apply", "--raise-in-compute"])
def test_trainer_that_fails(folder: Path, fault: str) -> None:
    with job(folder, faulty(folder, "--steps", "30", fault, "12"), "--nproc", "2") as j:
        ends_well(j, 30)
        assert len(list(folder.glob("[drc][ioa][emi]*"))) == 1, "the fault did not happen"


def test_stopped_trainer_goes_on(folder: Path) -> None:
    """A stall is no death: nobody is evicted for it, and nobody heals."""
    with job(folder, toy("--steps", "60", "--floor", "0.02"), "--nproc", "2") as j:
        s = j.until("two train", lambda s: s["step"] >= 10 and len(trainers(s)) == 2)
        victim = trainers(s)[s["world"][0]]
        os.kill(victim, signal.SIGSTOP)
        time.sleep(0.7)
        os.kill(victim, signal.SIGCONT)
        s = j.until("it goes on", lambda t: t["step"] > s["step"] + 5)
        assert victim in trainers(s).values()
        ends_well(j, 60)


def test_daemon_restarts_under_a_living_trainer(folder: Path) -> None:
    with job(folder, toy("--steps", "80", "--floor", "0.03"), "--nproc", "3") as j:
        s = j.until("three train", lambda s: s["step"] >= 10 and len(trainers(s)) == 3)
        name = s["world"][1]
        before = member(s, name)
        os.kill(before["daemon_pid"], signal.SIGKILL)
        s = j.until(
            "the daemon is back",
            lambda t: (
                member(t, name)["daemon_pid"] not in (0, before["daemon_pid"])
                and t["step"] > s["step"] + 10
                and len(trainers(t)) == 3
            ),
        )
        assert member(s, name)["trainer_pid"] == before["trainer_pid"]
        ends_well(j, 80)


def test_step_with_a_thread_that_never_yields(folder: Path) -> None:
    """LOCK_GIL: only the waits give the GIL away, so a step takes a few switch intervals of 5
    ms.
    """
    command = faulty(folder, "--steps", "60", "--floor", "0", "--elements", "16", "--spin")
    with job(folder, command, "--nproc", "1") as j:
        assert j.wait() == 0, j.output
        median = float(j.until_line(r"median_ms=([\d.]+)").group(1))
    # Two waits, at most 5 ms each until the GIL is given back, and what Python itself computes
    # between them.
    assert median < 20, f"a step takes {median} ms"


def test_heal_beside_a_thread_that_never_yields(folder: Path) -> None:
    """Heals are served and received without the GIL."""
    command = faulty(folder, "--steps", "60", "--elements", "16", "--spin")
    with job(folder, command, "--nproc", "2") as j:
        s = j.until("two train", lambda s: s["step"] >= 5 and len(trainers(s)) == 2)
        os.kill(trainers(s)[s["world"][1]], signal.SIGKILL)
        assert j.wait() == 0, j.output
        assert len(j.finals()) == 1, j.output


def test_forked_child_holds_nothing_and_hinders_nobody(folder: Path) -> None:
    with job(folder, faulty(folder, "--steps", "60", "--fork-at", "5"), "--nproc", "2") as j:
        child = j.until_line(r"child (\d+) holds (\d+) sockets and (\d+) maps")
        assert child.group(2, 3) == ("0", "0"), j.output
        parent = int(
            re.search(r"PPid:\s+(\d+)", Path(f"/proc/{child.group(1)}/status").read_text()).group(1)
        )  # type: ignore[union-attr]
        s = j.until("it trains", lambda s: parent in trainers(s).values() and s["step"] >= 10)
        os.kill(parent, signal.SIGKILL)
        killed = time.monotonic()
        j.until("others have seen it", lambda t: t["generation"] > s["generation"], timeout=5)
        assert time.monotonic() - killed < 5
        ends_well(j, 60)


def test_pulse_is_kept_by_a_thread_of_the_trainer(folder: Path) -> None:
    with job(folder, toy("--steps", "500", "--floor", "0.02"), "--nproc", "1") as j:
        s = j.until("it trains", lambda s: s["step"] >= 3 and len(trainers(s)) == 1)
        pid = trainers(s)[s["world"][0]]
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        pages = {m.split()[-1] for m in maps if "rw-s" in m and Path(m.split()[-1]).is_file()}
        pages = {p for p in pages if Path(p).stat().st_size == page.PAGE_BYTES}
        (name,) = pages
        word = int.from_bytes(Path(name).read_bytes()[page.T_PULSE_AT :][:4], "little")
        threads = {int(t.name) for t in Path(f"/proc/{pid}/task").iterdir()}
        assert word & (1 << 30) - 1 in threads - {pid}


def test_orphan_gives_up(folder: Path) -> None:
    """Nobody is left: the trainer ends by itself, with the status that says start me again."""
    with job(
        folder, faulty(folder, "--steps", "5000", "--orphan-after", "1.5"), "--nproc", "1"
    ) as j:
        s = j.until("it trains", lambda s: s["step"] >= 3 and len(trainers(s)) == 1)
        only = member(s, s["world"][0])
        for pid in (j.process.pid, only["daemon_pid"]):
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while Path(f"/proc/{only['trainer_pid']}/cmdline").exists():
            # Its parents are gone, and this test is not the one that its status goes to.
            if Path(f"/proc/{only['trainer_pid']}/cmdline").read_bytes() == b"":
                break
            assert time.monotonic() < deadline, "the trainer lives on"
            time.sleep(0.05)
        logs = "".join(p.read_text() for p in (j.dir / "log").glob("*.log"))
        assert "preempted: no daemon has lived" in logs


def test_trainer_with_another_spec_is_refused(folder: Path) -> None:
    with job(folder, faulty(folder, "--steps", "80", "--other-spec"), "--nproc", "2") as j:
        line = j.until_line(r"Refused: .*")
        assert "settings is another, the job has toy" in line.group(0), j.output
        j.wait()
        assert j.finals() == {alone(80)}, j.output


def test_term_leaves_in_order(folder: Path) -> None:
    command = toy("--steps", "5000", "--floor", "0.01")
    with job(folder, command, "--nproc", "2") as j:
        j.until("two train", lambda s: s["step"] >= 10 and len(trainers(s)) == 2)
        j.process.send_signal(signal.SIGTERM)
        assert j.wait() == 75, j.output
        assert len([line for line in j.lines if "preempted: " in line]) == 2, j.output


def test_all_are_killed_and_the_job_goes_on_from_its_checkpoint(folder: Path) -> None:
    command = toy("--steps", "60", "--floor", "0.02")
    flags = ("--nproc", "2", "--save-every", "10", "--slabs", "2")
    with job(folder, command, *flags) as j:
        s = j.until("a checkpoint", lambda s: (s.get("published") or {}).get("step", 0) >= 20)
        assert s["step"] < 60
        for pid in [j.process.pid, *j.pids()]:
            os.kill(pid, signal.SIGKILL)
        j.process.wait(10)
        again = Job(folder, command, *flags)
        try:
            ends_well(again, 60)
            assert re.search(r"from checkpoint|healing: .* to step [234]0", again.output), (
                again.output
            )
        finally:
            again.end()


def test_checkpoints_are_whole(folder: Path) -> None:
    with job(folder, toy("--steps", "30"), "--nproc", "2", "--save-every", "10") as j:
        assert j.wait() == 0, j.output
        listed = command("ckpt", "ls", "--json", "--dir", str(j.dir))
        assert 30 in [c["step"] for c in json.loads(listed.stdout)], listed.stdout + listed.stderr
        verified = command("ckpt", "verify", "--dir", str(j.dir))
        assert verified.returncode == 0, verified.stdout + verified.stderr
