# SPDX-License-Identifier: Apache-2.0
"""Jobs of real processes: `phalanx run` in a folder of its own, watched by `phalanx status
--json`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TIMEOUT = 60.0  # seconds; every wait of a test has one


def phalanx_binary() -> str:
    """The command under test: bin/phalanx of this checkout."""
    path = os.environ.get("PHALANX_BINARY") or str(ROOT / "bin" / "phalanx")
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"{path} is missing; run make build, or scripts/test-python.sh")
    return path


class Job:
    """One `phalanx run`. What it prints is in `lines`."""

    def __init__(
        self, folder: Path, command: list[str], *flags: str, env: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.dir = folder / "job"
        # Its shared memory is /dev/shm, and the path of a socket is short: pytest's folders are
        # long.
        self.command = [phalanx_binary(), "run", "--dir", str(self.dir), *flags, "--", *command]
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'python' / 'src'}:{HERE}"} | (env or {}),
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def status(self) -> dict[str, Any] | None:
        """The job's status, None while nobody answers."""
        done = subprocess.run(
            [phalanx_binary(), "status", "--json", "--dir", str(self.dir)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        try:
            out = json.loads(done.stdout)
        except ValueError:
            return None
        return out if isinstance(out, dict) else None

    def until(
        self, what: str, check: Callable[[dict[str, Any]], bool], timeout: float = TIMEOUT
    ) -> dict[str, Any]:
        """Waits for a status that passes the check."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            s = self.status()
            if s is not None and check(s):
                return s
            if self.process.poll() is not None:
                raise AssertionError(f"the job ended before: {what}\n{self.output}")
            time.sleep(0.02)
        raise AssertionError(f"not within {timeout:.0f} s: {what}\n{self.output}")

    def until_line(self, pattern: str, timeout: float = TIMEOUT) -> re.Match[str]:
        """Waits for a line of output."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if m := re.search(pattern, line):
                    return m
            time.sleep(0.01)
        raise AssertionError(f"no line {pattern!r} within {timeout:.0f} s\n{self.output}")

    def wait(self, timeout: float = TIMEOUT) -> int:
        """The exit code of run."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the job did not end within {timeout:.0f} s\n{self.output}"
            ) from None
        self._reader.join(5)
        return code

    def finals(self) -> set[str]:
        """What the trainers printed at their end."""
        return {m.group(1) for line in self.lines if (m := re.search(r"(final step=.*)$", line))}

    def end(self) -> None:
        """Ends what is left of it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reader.join(5)
        shutil.rmtree(self.dir, ignore_errors=True)
        # What was killed leaves its shared memory behind; its name has the folder's hash
        # (node/paths.go).
        place = hashlib.sha256(str(self.dir).encode()).hexdigest()[:12]
        for path in Path("/dev/shm").glob(f"phalanx.{place}.*"):
            path.unlink(missing_ok=True)

    def pids(self) -> list[int]:
        """Processes that name this job's folder in their command line or environment: of this job
        alone.
        """
        out = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if (
                    str(self.dir).encode()
                    in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                ):
                    out.append(int(entry.name))
            except OSError:
                continue
        return out


@contextmanager
def job(
    folder: Path, command: list[str], *flags: str, env: dict[str, str] | None = None
) -> Iterator[Job]:
    """A job that is ended with the block."""
    j = Job(folder, command, *flags, env=env)
    try:
        yield j
    finally:
        j.end()


def toy(*arguments: str, script: str = "toy.py") -> list[str]:
    """The command line of a trainer in this folder."""
    return [sys.executable, str(HERE / script), *arguments]


def trainers(s: dict[str, Any]) -> dict[str, int]:
    """The pid of the trainer of each member in the world."""
    return {
        m["member"]: m["trainer_pid"]
        for m in s["members"] or []
        if m["member"] in (s.get("world") or []) and m.get("trainer_pid")
    }


def starts_again(j: Job, s: dict[str, Any], rank: int, stop: Path) -> None:
    """Kills the trainer of a rank of a job without steps: all ranks start again, and end well once `stop` is there."""
    n = len(s["world"])
    os.kill(trainers(s)[s["world"][rank]], signal.SIGKILL)
    generation = int(j.until_line(rf"rank 0 of {n} up pid=\d+ generation=([2-9])$").group(1))
    for r in range(n):
        j.until_line(rf"rank {r} of {n} up pid=\d+ generation={generation}$")
    stop.touch()
    assert j.wait() == 0, j.output
    assert sum(f"rank done world={n}" in line for line in j.lines) == n, j.output


def daemon_restarts(j: Job, s: dict[str, Any], rank: int) -> None:
    """Kills the daemon of a rank: it comes back beside its trainer, and nothing is started again."""
    victim = next(m for m in s["members"] if m["member"] == s["world"][rank])
    os.kill(victim["daemon_pid"], signal.SIGKILL)
    j.until(
        "it is back",
        lambda s: any(
            m["member"] == victim["member"] and m.get("daemon_pid") not in (0, None, victim["daemon_pid"])
            for m in s["members"]
        ),
    )
    after = j.until("all run", lambda now: len(trainers(now)) == len(s["world"]))
    assert after["generation"] == 1, j.output


def up(j: Job, n: int) -> dict[str, Any]:
    """Waits until n ranks of a job without steps have said that they are up in generation 1."""
    for rank in range(n):
        j.until_line(rf"rank {rank} of {n} up pid=\d+ generation=1$")
    return j.until(f"{n} run", lambda s: len(trainers(s)) == n)
