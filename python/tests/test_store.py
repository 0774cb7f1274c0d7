# SPDX-License-Identifier: Apache-2.0
"""The daemon's store as a Store of torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from phalanx.errors import Illegal
from phalanx.torch.store import DaemonStore
from running import HERE, job


def test_as_a_tcp_store(folder: Path) -> None:
    """What a TCPStore answers, one store for all ranks, and an end with the generation."""
    command = [sys.executable, str(HERE / "store_ops.py"), str(folder)]
    with job(folder, command, "--plain", "--nproc", "2", "--grace", "20s") as j:
        j.until_line("rank 0: ended with its generation: the store is gone")
        assert j.wait() == 0, j.output
        assert sum("again" in line for line in j.lines) == 2, j.output


def test_no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PHALANX_SOCKET", "PHALANX_GENERATION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Illegal, match="PHALANX_SOCKET"):
        DaemonStore()
    with pytest.raises(Illegal, match="PHALANX_GENERATION"):
        DaemonStore("/tmp/none")
    with pytest.raises(OSError):
        DaemonStore("/tmp/none", generation=(0, 1))
