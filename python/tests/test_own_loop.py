# SPDX-License-Identifier: Apache-2.0
"""A script with its own loop says where it is: it is restarted when it hangs, left alone when it evaluates, asked to leave."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from running import HERE, job

ENV = {"CUDA_VISIBLE_DEVICES": ""}


def test_it_hangs_and_leaves(folder: Path) -> None:
    command = [sys.executable, str(HERE / "own_loop.py"), str(folder)]
    with job(folder, command, "--nproc", "2", "--plain", "--hang-timeout", "3s", env=ENV) as j:
        j.until_line("rank 1 hangs", 120)
        j.until("all start again", lambda s: s["generation"] > 1 and s["phase"] == "running", 60)
        for rank in (0, 1):
            j.until_line(f"rank {rank} evaluates", 120)
            j.until_line(f"rank {rank} goes on", 60)
        assert j.output.count("rank 1 hangs") == 1
        s = j.status()
        assert s is not None and s["generation"] == 2, j.output  # nobody was called hung while it evaluated
        j.process.send_signal(signal.SIGTERM)
        assert j.wait(60) == 75, j.output
        for rank in (0, 1):
            j.until_line(f"rank {rank} leaves at step", 1)
