# SPDX-License-Identifier: Apache-2.0
"""Real runs for tests: `phalanx run` with trainers in Python, faults on them, and what they said."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
PHALANX = os.environ.get("PHALANX_BINARY", str(ROOT / "bin" / "phalanx"))
TRAINERS = pathlib.Path(__file__).resolve().parent / "trainers"
#: How long anything may take on a busy machine.
PATIENCE = float(os.environ.get("PHALANX_TEST_PATIENCE", "120"))


def environment(**more: str) -> dict[str, str]:
    """The environment of a run: the package of this checkout, and no GPUs."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PHALANX_")}
    path = [str(ROOT / "python" / "src"), str(ROOT / "python" / "examples"), env.get("PYTHONPATH", "")]
    env.update(PYTHONPATH=":".join(filter(None, path)), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    env.update(more)
    return env


class Run:
    """A `phalanx run`. Its lines are collected while it lives; `close` ends it and everything below."""

    def __init__(self, directory: pathlib.Path, *command: str, nproc: int = 4, options: tuple[str, ...] = (), **env: str) -> None:
        self.directory = directory
        argv = [PHALANX, "run", "--nproc", str(nproc), "--dir", str(directory), *options, "--", sys.executable, *command]
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**env),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the run, its daemons and its trainers."""
        if self.process.poll() is None:
            members = self.members(missing_ok=True)
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                for m in members:
                    for pid in (m.get("daemon_pid"), m.get("trainer_pid")):
                        if pid:
                            kill(pid)
                self.process.kill()
                self.process.wait()
        self._reader.join(10)

    @property
    def text(self) -> str:
        """Everything that was printed so far."""
        with self._changed:
            return "\n".join(self.lines)

    def status(self) -> dict[str, Any]:
        """`phalanx status --json`; an empty dict while nobody answers."""
        done = subprocess.run(
            [PHALANX, "status", "--dir", str(self.directory), "--json"], capture_output=True, text=True, env=environment()
        )
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout else {}

    def members(self, missing_ok: bool = False) -> list[dict[str, Any]]:
        """The members as `status` has them."""
        found = self.status().get("members") or []
        assert found or missing_ok, self.text
        return found

    def until(self, what: str, look: Callable[[], Any]) -> Any:
        """Waits until `look` returns something true, and returns that."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            if self.process.poll() is not None:
                self._reader.join(10)
                found = look()
                if found:
                    return found
                break
            with self._changed:
                self._changed.wait(0.05)
        raise AssertionError(f"{what}: not seen; rc={self.process.poll()}\n{self.text}\n{json.dumps(self.status())[:4000]}")

    def seen(self, pattern: str) -> re.Match[str]:
        """Waits for a line."""
        return self.until(pattern, lambda: re.search(pattern, self.text))

    def reach(self, step: int) -> dict[str, Any]:
        """Waits until a step is committed; returns the status."""

        def look() -> dict[str, Any] | None:
            s = self.status()
            return s if s.get("step", 0) >= step else None

        return self.until(f"step {step}", look)

    def end(self, code: int = 0) -> str:
        """Waits for the end of the run, checks its exit code and returns everything that it printed."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired as e:
            raise AssertionError(f"the run does not end\n{self.text}\n{json.dumps(self.status())[:4000]}") from e
        self._reader.join(10)
        assert self.process.returncode == code, f"exit code {self.process.returncode}, want {code}\n{self.text}"
        return self.text

    def finals(self) -> set[str]:
        """The digests that trainers ended with."""
        return set(re.findall(r"final step=\d+ digest=(\S+)", self.text))


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
