# SPDX-License-Identifier: Apache-2.0
"""`torchrun --rdzv-backend=phalanx`: agents of torchrun meet through daemons of Phalanx.

Each agent starts `phalanx run --plain` with one member, which stands for the agent. The daemons
agree on who takes part, as on any world: a generation is a round, its ranks are the agents', and
the store of the generation, which the daemon of each host serves on its loopback, is the store of
the agent and its workers. No host is special, and each round has a store of its own.

Configuration (`--rdzv-conf`): host, bind, join, advertise, interface, key_file as the flags of
`phalanx run`; dir, a directory to keep, where an agent that comes back on this host finds its
state (default: a temporary one); join_timeout in seconds (600).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from .._command import binary

_LEAVE = 10.0  # seconds for daemons to end in order
_PASSED = ("bind", "join", "advertise", "interface", "key_file")
_LIBC = ctypes.CDLL(None)


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The entry point of torchrun.handlers."""
    return PhalanxRendezvous


def _program() -> str:
    """The wheel's own, or in a source tree the one in PATH."""
    if binary().exists():
        return str(binary())
    if found := shutil.which("phalanx"):
        return found
    raise RendezvousConnectionError("no program phalanx in PATH; install the package's wheel")


def _end_with_agent() -> None:
    _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: run leaves in order when the agent is gone


class PhalanxRendezvous(RendezvousHandler):
    """What an agent of torchrun asks for its rounds."""

    def __init__(self, params: RendezvousParameters) -> None:
        """Starts nothing: the first round does."""
        self._params = params
        self._timeout = float(params.get_as_int("join_timeout", 600) or 600)
        kept = params.get("dir")
        self._temporary = None if kept else tempfile.mkdtemp(prefix="phalanx-rdzv-")
        self._dir = Path(kept or self._temporary).absolute()  # type: ignore[arg-type]
        self._run: subprocess.Popen[bytes] | None = None
        self._round: dict[str, Any] | None = None  # the one that was returned last
        self._closed = False

    def get_backend(self) -> str:
        """The name for --rdzv-backend."""
        return "phalanx"

    @property
    def use_agent_store(self) -> bool:
        """Workers use the daemon's store too."""
        return True

    def get_run_id(self) -> str:
        """The job's name."""
        return self._params.run_id

    def is_closed(self) -> bool:
        """Whether this agent has left for good."""
        return self._closed

    def set_closed(self) -> None:
        """Leaves for good."""
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """1 when the round that was returned is over: another agent came, went or restarts."""
        return int(not self._closed and self._round is not None and not self._lives(self._round))

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for a round that this agent has not been in, and asks for one if none is coming."""
        if self._closed:
            raise RendezvousClosedError("this agent has left the rendezvous")
        if self._run is None:
            self._start()
        elif self._round is not None and self._lives(self._round):
            # Its workers failed: the world of the agents is made anew, with all that are there.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._round["pid"], signal.SIGKILL)
        before = self._round["start"] if self._round else None
        deadline = time.monotonic() + self._timeout
        while True:
            found = self._read()
            if found is not None and found["start"] != before and self._lives(found):
                self._round = found
                return self._info(found, deadline)
            assert self._run is not None
            if self._run.poll() is not None:
                raise RendezvousConnectionError(
                    f"phalanx run ended with {self._run.returncode}: {self._last_words()}"
                )
            if time.monotonic() >= deadline:
                raise RendezvousTimeoutError(
                    f"no round within {self._timeout:.0f} s: are {self._params.min_nodes} agents "
                    f"there? See phalanx status --dir {self._dir / 'job'}"
                )
            time.sleep(0.01)

    def shutdown(self) -> bool:
        """Leaves: the others go on, or end with this one when they are done too."""
        self._closed = True
        run, self._run = self._run, None
        if run is not None:
            found = self._read()
            if found is not None and self._lives(found):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found["pid"], signal.SIGUSR1)
            for ask in (None, signal.SIGTERM, signal.SIGKILL):
                if ask is not None:
                    run.send_signal(ask)
                try:
                    run.wait(_LEAVE)
                    break
                except subprocess.TimeoutExpired:
                    continue
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        return True

    def _start(self) -> None:
        p = self._params
        self._dir.mkdir(parents=True, exist_ok=True)
        self._file.unlink(missing_ok=True)
        flags = ["--job", p.run_id, "--dir", str(self._dir / "job"), "--nproc", "1", "--plain"]
        flags += ["--nnodes", f"{p.min_nodes}:{p.max_nodes}", "--grace", "5s"]
        flags += ["--max-restarts", "1000000"]  # torchrun counts
        name = p.get("host")
        if not name and self._temporary is not None:  # another agent here is another host
            name = f"{os.uname().nodename[:40]}-{os.getpid()}"
        if name:
            flags += ["--host", name]
        for key in _PASSED:
            if value := p.get(key):
                flags += [f"--{key.replace('_', '-')}", value]
        if p.endpoint and p.max_nodes > 1 and not (p.get("bind") or p.get("join")):
            flags += ["--rdzv-endpoint", p.endpoint]
        source = str(Path(__file__).parents[2])
        path = os.pathsep.join(x for x in (source, os.environ.get("PYTHONPATH", "")) if x)
        command = [sys.executable, "-m", "phalanx._agent", str(self._file)]
        with open(self._dir / "run.log", "ab") as log:
            self._run = subprocess.Popen(
                [_program(), "run", *flags, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": path},
                start_new_session=True,
                preexec_fn=_end_with_agent,
            )

    @property
    def _file(self) -> Path:
        return self._dir / "round.json"

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and "start" in found else None

    def _lives(self, found: dict[str, Any]) -> bool:
        try:
            environ = Path(f"/proc/{found['pid']}/environ").read_bytes()
        except OSError:
            return False
        return f"PHALANX_START={found['start']}".encode() in environ.split(b"\0")

    def _info(self, found: dict[str, Any], deadline: float) -> RendezvousInfo:
        left = timedelta(seconds=max(1.0, deadline - time.monotonic()))
        store = TCPStore(
            "127.0.0.1", found["port"], is_master=False, timeout=left, wait_for_workers=False
        )
        meet = RendezvousStoreInfo("127.0.0.1", found["port"])
        return RendezvousInfo(store, found["rank"], found["world"], meet)

    def _last_words(self) -> str:
        try:
            lines = (self._dir / "run.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            return "it said nothing"
        return " ".join(lines[-2:]) or "it said nothing"
