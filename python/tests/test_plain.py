# SPDX-License-Identifier: Apache-2.0
"""Trainers without the step protocol: PyTorch's own process groups meet over the daemon's store."""

from __future__ import annotations

import sys
from pathlib import Path

from running import HERE, daemon_restarts, job, starts_again, up


def command(stop: Path) -> list[str]:
    return [sys.executable, str(HERE / "plain_gloo.py"), str(stop)]


def test_gloo_restarts_after_a_kill(folder: Path) -> None:
    """Rank 0 is killed: in torchrun's place, where it would hold the store."""
    stop = folder / "stop"
    with job(folder, command(stop), "--plain", "--nproc", "3", "--grace", "5s") as j:
        starts_again(j, up(j, 3), 0, stop)


def test_gloo_while_a_daemon_restarts(folder: Path) -> None:
    """The daemon of a rank other than 0 dies and comes back: nothing is restarted."""
    with job(folder, command(folder / "stop"), "--plain", "--nproc", "2", "--grace", "5s") as j:
        daemon_restarts(j, up(j, 2), 1)
