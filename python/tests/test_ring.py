# SPDX-License-Identifier: Apache-2.0
"""Collectives over the ring: in a world of one without a daemon, and in a job."""

from __future__ import annotations

import ctypes
import http.server
import os
import signal
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import phalanx
from phalanx.ring import FIRST_GROUP, WORLD, Ring
from running import job, toy, trainers


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    monkeypatch.delenv("PHALANX_SOCKET", raising=False)
    return Ring.hello(1 << 20)


def test_alone(ring: Ring) -> None:
    address, offset, size = ring.memory
    assert size == 1 << 20
    numbers = (ctypes.c_float * 8).from_address(address)
    numbers[:4] = [1, 2, 3, 4]
    place = ring.place()
    assert (place.rank, place.world) == (0, 1)
    ring.make_group(FIRST_GROUP, [0])
    for op in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "all_to_all",
        "gather",
        "scatter",
        "reduce",
    ):
        numbers[4:] = [0, 0, 0, 0]
        ring.wait(
            ring.post(
                op,
                group=FIRST_GROUP,
                dtype="f32",
                count=4,
                in_offset=offset,
                out_offset=offset + 16,
                mean=op == "all_reduce",
            )
        )
        assert numbers[4:] == [1, 2, 3, 4], op
    ring.wait(ring.post("barrier", group=WORLD))
    with pytest.raises(phalanx.CollectiveFailed):
        ring.wait(
            ring.post("send", group=FIRST_GROUP, dtype="f32", count=4, in_offset=offset, peer=0)
        )
    with pytest.raises(phalanx.CollectiveFailed):
        ring.wait(
            ring.post("broadcast", group=FIRST_GROUP, dtype="f32", count=1 << 20, in_offset=offset)
        )
    ring.close()


def test_results_are_remembered(ring: Ring) -> None:
    sequences = [ring.post("barrier", group=WORLD) for _ in range(5000)]
    assert all(ring.done(s) for s in sequences[-4000:])
    with pytest.raises(phalanx.Illegal):
        ring.done(sequences[0])
    with pytest.raises(phalanx.Illegal):
        ring.done(sequences[-1] + 1)
    ring.close()


def test_beside_the_step(folder: Path) -> None:
    with job(folder, toy("--steps", "40", script="gather.py"), "--nproc", "3") as j:
        s = j.until("three ranks train", lambda s: s["step"] >= 5 and len(trainers(s)) == 3)
        os.kill(trainers(s)[s["world"][0]], signal.SIGKILL)
        assert j.wait() == 0, j.output
        assert len(j.finals()) == 1, j.output
        assert "gathered 3" in j.output


def test_groups_of_a_job_without_steps(folder: Path) -> None:
    with job(folder, toy(script="groups.py"), "--plain", "--nproc", "4") as j:
        assert j.wait() == 0, j.output
        for rank in range(4):
            assert f"rank {rank} of 4 is well" in j.output
        assert float(j.until_line(r"freed after ([\d.]+) s").group(1)) < 2


def test_close_ends_the_waits_of_other_threads() -> None:
    """As at the end of a process, where a thread may still wait: it must not end by a signal."""
    script = """
import ctypes, threading, time
from phalanx import _native as native
from phalanx.ring import Ring
ring, library, ended = Ring.hello(1 << 20), native.library(), []
handle, numbers, which = ring._client._handle, (ctypes.c_uint64 * 1)(), ctypes.c_int()
def wait():
    ended.append(library.waits.phx_wait_any(handle, numbers, 0, 30_000_000_000, ctypes.byref(which)))
t = threading.Thread(target=wait)
t.start()
time.sleep(0.2)
ring.close()
t.join(5)
assert ended == [native.E_ILLEGAL], ended
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_a_group_is_made_by_a_daemon_that_comes_back(folder: Path, ring: Ring) -> None:
    ring._socket = str(folder / "daemon")
    with pytest.raises(phalanx.Error, match="does not answer"):
        ring.make_group(FIRST_GROUP, [0], timeout=0.2)

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def address_string(self) -> str:
            return "trainer"

        def log_message(self, *_: object) -> None:
            pass

    def come_back() -> None:
        with socketserver.UnixStreamServer(ring._socket, Answers) as server:
            server.timeout = 30
            server.handle_request()

    timer = threading.Timer(0.5, come_back)
    timer.start()
    ring.make_group(FIRST_GROUP, [0], timeout=30)
    timer.join(30)
    ring.close()
