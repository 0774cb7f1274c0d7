# SPDX-License-Identifier: Apache-2.0
"""The c10d backend in jobs of real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from running import HERE, job

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
