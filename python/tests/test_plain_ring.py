# SPDX-License-Identifier: Apache-2.0
"""Trainers without the step protocol over the daemons' collectives."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from running import HERE, job, trainers


def command(stop: Path) -> list[str]:
    return [sys.executable, str(HERE / "plain_ring.py"), str(stop)]


def test_ring_restarts_after_a_kill(folder: Path) -> None:
    stop = folder / "stop"
    with job(folder, command(stop), "--plain", "--nproc", "3", "--grace", "5s") as j:
        for rank in range(3):
            j.until_line(rf"rank {rank} of 3 up pid=\d+ generation=1$")
        s = j.until("three run", lambda s: len(trainers(s)) == 3)
        j.until_line(r"aborted after 0\.[0-9]+ s$")
        os.kill(trainers(s)[s["world"][1]], signal.SIGKILL)
        generation = int(j.until_line(r"rank 0 of 3 up pid=\d+ generation=([2-9])$").group(1))
        for rank in range(3):
            j.until_line(rf"rank {rank} of 3 up pid=\d+ generation={generation}$")
        stop.touch()
        assert j.wait() == 0, j.output
        assert sum("rank done world=3" in line for line in j.lines) == 3, j.output


def test_ring_while_a_daemon_restarts(folder: Path) -> None:
    """The daemon of a rank dies and comes back: its groups live on, and nothing is restarted."""
    stop = folder / "stop"
    with job(folder, command(stop), "--plain", "--nproc", "3", "--grace", "5s") as j:
        for rank in range(3):
            j.until_line(rf"rank {rank} of 3 up pid=\d+ generation=1$")
        s = j.until("three run", lambda s: len(trainers(s)) == 3)
        j.until_line(r"aborted after 0\.[0-9]+ s$")
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
        s = j.until("three run", lambda s: len(trainers(s)) == 3)
        assert s["generation"] == 1, j.output
        stop.touch()
        assert j.wait() == 0, j.output
        assert sum("rank done world=3" in line for line in j.lines) == 3, j.output
