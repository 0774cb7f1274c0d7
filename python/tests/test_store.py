# SPDX-License-Identifier: Apache-2.0
"""The daemon's store as a Store of torch."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from datetime import timedelta
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


def test_a_wait_that_a_signal_ends_is_not_answered_later() -> None:
    """What comes for it must not be taken for the answer to the next request."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as c:
            c.sendall(c.recv(1 << 16)[-4:])  # the nonce of the ping
            while c.recv(1 << 16):
                pass

    server = threading.Thread(target=serve)
    server.start()
    store = DaemonStore(host="127.0.0.1", port=listener.getsockname()[1], timeout=timedelta(seconds=30))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            store.get("never")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(RuntimeError, match="not waited for to its end"):
        store.add("n", 1)
    server.join(10)
    assert not server.is_alive()
