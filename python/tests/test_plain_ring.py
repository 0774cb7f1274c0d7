# SPDX-License-Identifier: Apache-2.0
"""Trainers without the step protocol over the daemons' collectives."""

from __future__ import annotations

import sys
from pathlib import Path

from running import HERE, daemon_restarts, job, starts_again, up


def command(stop: Path) -> list[str]:
    return [sys.executable, str(HERE / "plain_ring.py"), str(stop)]


def test_ring_restarts_after_a_kill(folder: Path) -> None:
    stop = folder / "stop"
    with job(folder, command(stop), "--plain", "--nproc", "3", "--grace", "5s") as j:
        s = up(j, 3)
        j.until_line(r"aborted after 0\.[0-9]+ s$")
        starts_again(j, s, 1, stop)


def test_ring_while_a_daemon_restarts(folder: Path) -> None:
    """The daemon of a rank dies and comes back: its groups live on, and nothing is restarted."""
    stop = folder / "stop"
    with job(folder, command(stop), "--plain", "--nproc", "3", "--grace", "5s") as j:
        s = up(j, 3)
        j.until_line(r"aborted after 0\.[0-9]+ s$")
        daemon_restarts(j, s, 1)
        stop.touch()
        assert j.wait() == 0, j.output
        assert sum("rank done world=3" in line for line in j.lines) == 3, j.output
