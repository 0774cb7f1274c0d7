# SPDX-License-Identifier: Apache-2.0
"""The c10d backend in jobs of real processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from running import HERE, job, trainers

SMALL = {"PHALANX_SEGMENT_BYTES": str(8 << 20)}


def run_plain(
    folder: Path,
    script: str,
    nproc: int,
    *arguments: str,
    env: dict[str, str] | None = None,
    timeout: float = 120,
) -> list[str]:
    """Runs trainers without the step protocol to their end and returns what they printed."""
    with job(
        folder,
        [sys.executable, str(HERE / script), *arguments],
        "--plain",
        "--nproc",
        str(nproc),
        "--max-restarts",
        "0",
        env=env,
    ) as j:
        assert j.wait(timeout) == 0, j.output
        return list(j.lines)


@pytest.mark.parametrize("nproc", [1, 4])
def test_conformance(folder: Path, nproc: int) -> None:
    """Every collective and type gives what gloo gives."""
    lines = run_plain(folder, "backend_ops.py", nproc, env=SMALL)
    assert sum("all equal" in line for line in lines) == nproc, "\n".join(lines)


def test_training_equals_gloo(folder: Path) -> None:
    """DDP, FSDP2, HSDP 2x2, functional collectives, DCP, and loaders with worker processes."""
    lines = run_plain(folder, "backend_train.py", 4, str(folder), timeout=180)
    # FSDP2 on a CPU needs streams that PyTorch 2.6 lacks.
    new = "fsdp hsdp functional " if hasattr(torch.cpu.Stream(), "record_event") else ""
    assert sum(f"ddp {new}workers equal" in line for line in lines) == 4, "\n".join(lines)


def test_ends(folder: Path) -> None:
    """Abort from another thread, timeouts, ranks that differ, and reconfigure."""
    lines = run_plain(folder, "backend_ends.py", 3)
    assert sum("all ended" in line for line in lines) == 3, "\n".join(lines)


def test_only_the_name_changes(folder: Path) -> None:
    """A script that knows nothing of Phalanx but the name of a backend; a rank of it is killed."""
    stop = folder / "stop"
    script = [sys.executable, str(HERE / "plain_gloo.py"), str(stop), "phalanx"]
    with job(folder, script, "--plain", "--nproc", "3", "--grace", "20s") as j:
        s = j.until("three run", lambda s: len(trainers(s)) == 3)
        for rank in range(3):
            j.until_line(rf"rank {rank} of 3 up pid=\d+ generation=1$")
        os.kill(trainers(s)[s["world"][1]], signal.SIGKILL)
        killed = time.monotonic()
        j.until_line("CollectiveRevoked")
        assert time.monotonic() - killed < 5, j.output
        generation = int(j.until_line(r"rank 0 of 3 up pid=\d+ generation=([2-9])$").group(1))
        for rank in range(3):
            j.until_line(rf"rank {rank} of 3 up pid=\d+ generation={generation}$")
        stop.touch()
        assert j.wait() == 0, j.output
