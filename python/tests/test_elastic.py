# SPDX-License-Identifier: Apache-2.0
"""P1, P3: a run ends with the bits of an undisturbed one, whoever was killed, stopped, added or taken away meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from running import HERE, Job, job, phalanx_binary, trainers

TRAINER = [sys.executable, str(HERE / "mlp.py")]
TIMEOUT = 180.0
ENV = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="session")
def quiet():
    """The final lines of undisturbed runs of two ranks, by arguments."""
    known: dict[tuple[str, ...], set[str]] = {}

    def final(*arguments: str) -> set[str]:
        if arguments not in known:
            with tempfile.TemporaryDirectory(prefix="phx-py-", dir="/tmp") as folder:
                with job(Path(folder), [*TRAINER, *arguments], "--nproc", "2", env=ENV) as j:
                    assert j.wait(TIMEOUT) == 0, j.output
                    known[arguments] = j.finals()
        assert len(known[arguments]) == 1
        return known[arguments]

    return final


def reach(j: Job, step: int) -> dict:
    return j.until(f"step {step}", lambda s: s["step"] >= step, TIMEOUT)


def whole(j: Job, ranks: int) -> dict:
    return j.until(f"{ranks} ranks", lambda s: len(trainers(s)) == ranks and s["phase"] == "running", TIMEOUT)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def test_trainers_daemons_and_the_leader_are_killed(folder: Path, quiet) -> None:
    arguments = ("--steps", "400")
    with job(folder, [*TRAINER, *arguments, "--slow-until", str(folder / "go")], "--nproc", "4", env=ENV) as j:
        reach(j, 3)
        for what in ("trainer", "daemon", "leader", "rank 0"):
            s = reach(j, whole(j, 4)["step"] + 5)
            by_name = {m["member"]: m for m in s["members"]}
            if what == "leader":
                kill(by_name[s["leader"]]["daemon_pid"])
            elif what == "daemon":
                kill(by_name[s["world"][1]]["daemon_pid"])
            else:
                kill(by_name[s["world"][0 if what == "rank 0" else 2]]["trainer_pid"])
            reach(j, s["step"] + 3)
        whole(j, 4)
        (folder / "go").touch()
        assert j.wait(TIMEOUT) == 0, j.output
        assert j.finals() == quiet(*arguments), j.output


def test_grow_and_shrink(folder: Path, quiet) -> None:
    arguments = ("--steps", "400")
    with job(folder, [*TRAINER, *arguments, "--slow-until", str(folder / "go")], "--nproc", "4", env=ENV) as j:
        reach(j, 3)
        for want in (3, 2, 4):
            subprocess.run([phalanx_binary(), "resize", str(want), "--dir", str(j.dir)], check=True, capture_output=True)
            reach(j, whole(j, want)["step"] + 3)
        (folder / "go").touch()
        assert j.wait(TIMEOUT) == 0, j.output
        assert j.finals() == quiet(*arguments), j.output


def test_faults_inside_of_a_step(folder: Path, quiet) -> None:
    """Killed between two batches, inside of the optimizer, an error in forward, and stopped: with workers, scaler and schedule."""
    arguments = ("--steps", "300", "--scaler")
    faults = ["kill:10", "optimizer:20", "raise:30", "stop:40"]
    marks = folder / "marks"
    marks.mkdir()
    planted = [x for f in faults for x in ("--fault", f)]
    command = [*TRAINER, *arguments, "--slow-until", str(folder / "go"), "--workers", "1", "--marks", str(marks), *planted]
    with job(folder, command, "--nproc", "3", env=ENV) as j:
        for fault in faults:
            j.until(fault, lambda _, name=fault.replace(":", "-"): (marks / name).exists(), TIMEOUT)
            whole(j, 3)
        (folder / "go").touch()
        assert j.wait(TIMEOUT) == 0, j.output
        assert len(list(marks.iterdir())) == len(faults)
        assert "planted in forward" in j.output
        assert j.finals() == quiet(*arguments), j.output
