# SPDX-License-Identifier: Apache-2.0
"""Trainers without the step protocol: PyTorch's own process groups meet over the daemon's store."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from running import HERE, job, trainers


def test_gloo_restarts_after_a_kill(folder: Path) -> None:
    """Rank 0 is killed: in torchrun's place, where it would hold the store."""
    stop = folder / "stop"
    with job(
        folder,
        [sys.executable, str(HERE / "plain_gloo.py"), str(stop)],
        "--plain",
        "--nproc",
        "3",
        "--grace",
        "5s",
    ) as j:
        for rank in range(3):
            j.until_line(rf"rank {rank} of 3 up pid=\d+ generation=1$")
        s = j.until("three run", lambda s: len(trainers(s)) == 3)
        os.kill(trainers(s)[s["world"][0]], signal.SIGKILL)
        generation = int(j.until_line(r"rank 0 of 3 up pid=\d+ generation=([2-9])$").group(1))
        for rank in range(3):
            j.until_line(rf"rank {rank} of 3 up pid=\d+ generation={generation}$")
        stop.touch()
        assert j.wait() == 0, j.output
        assert sum("rank done world=3" in line for line in j.lines) == 3, j.output


def test_gloo_while_a_daemon_restarts(folder: Path) -> None:
    """The daemon of a rank other than 0 dies and comes back: nothing is restarted."""
    stop = folder / "stop"
    with job(
        folder,
        [sys.executable, str(HERE / "plain_gloo.py"), str(stop)],
        "--plain",
        "--nproc",
        "2",
        "--grace",
        "5s",
    ) as j:
        for rank in range(2):
            j.until_line(rf"rank {rank} of 2 up pid=\d+ generation=1$")
        s = j.until("two run", lambda s: len(trainers(s)) == 2)
        victim = next(m for m in s["members"] if m["member"] == s["world"][1])
        os.kill(victim["daemon_pid"], signal.SIGKILL)
        j.until(
            "it is back",
            lambda s: any(
                m["member"] == victim["member"]
                and m.get("daemon_pid") not in (0, None, victim["daemon_pid"])
                for m in s["members"]
            ),
        )
        s = j.until("two run", lambda s: len(trainers(s)) == 2)
        assert s["generation"] == 1, j.output
