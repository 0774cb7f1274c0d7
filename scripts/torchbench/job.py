# SPDX-License-Identifier: Apache-2.0
"""Jobs of ours: `phalanx run` with trainer.py, watched through `phalanx status` and the lines that trainers write."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PATIENCE = 180.0  # seconds for anything that starts Python processes
FOREVER = 10**7  # steps


class Line(NamedTuple):
    at: float  # seconds, CLOCK_MONOTONIC
    number: int
    rank: int
    world: int
    generation: int


class Job:
    """One run. Its trainers append to the files of `logs`, named by process id."""

    def __init__(self, phalanx: str, folder: str, steps: int, slots: int, flags: list[str]) -> None:
        self.phalanx, self.folder = phalanx, Path(folder)
        self.dir, self.logs = self.folder / "job", self.folder / "logs"
        self.logs.mkdir()
        env = os.environ | {"PYTHONPATH": str(ROOT / "python" / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.output = open(self.folder / "out", "w")
        self.process = subprocess.Popen(
            [phalanx, "run", "--dir", str(self.dir), *flags, "--", sys.executable, str(HERE / "trainer.py"), str(self.logs), str(steps), str(slots)],
            stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT, env=env)  # fmt: skip

    def said(self) -> str:
        return (self.folder / "out").read_text()

    def status(self, *flags: str) -> dict[str, Any]:
        """The job's status, empty while nobody answers."""
        done = subprocess.run([self.phalanx, "status", "--json", *flags, "--dir", str(self.dir)], capture_output=True, text=True, timeout=PATIENCE)
        try:
            out = json.loads(done.stdout)
        except ValueError:
            return {}
        return out if isinstance(out, dict) else {}

    def until(self, what: str, check: Callable[[], Any], every: float = 0.02) -> Any:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := check():
                return found
            if self.process.poll() is not None:
                raise SystemExit(f"the job ended before {what}: {self.said()[-1500:]}")
            time.sleep(every)
        raise SystemExit(f"not within {PATIENCE:.0f} s: {what}: {self.said()[-1500:]}")

    def rows(self, pid: int) -> list[list[str]]:
        path = self.logs / str(pid)
        return [line.split() for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def lines(self, pid: int) -> list[Line]:
        """The committed steps of a trainer."""
        return [Line(float(r[1]), *map(int, r[2:])) for r in self.rows(pid) if r[0] == "step"]

    def heals(self, pid: int) -> int:
        return sum(r[0] == "heal" for r in self.rows(pid))

    def trainers(self) -> dict[str, int]:
        """The process ids of the trainers in the world, by member."""
        s = self.status()
        world = s.get("world") or []
        return {m["member"]: m["trainer_pid"] for m in s.get("members") or [] if m["member"] in world and m.get("trainer_pid")}

    def whole(self, ranks: int) -> dict[str, int]:
        """Waits until so many ranks have committed together, and returns their trainers."""

        def check() -> dict[str, int] | None:
            pids = self.trainers()
            newest = [(self.lines(p) or [None])[-1] for p in pids.values()]
            ready = len(pids) == ranks and all(n is not None and n.world == ranks for n in newest)
            return pids if ready else None

        return self.until(f"{ranks} ranks train", check, 0.1)

    def reach(self, step: int) -> None:
        self.until(f"step {step}", lambda: self.status().get("step", 0) >= step, 0.1)

    def quiet(self, since: float) -> list[float]:
        """Seconds between the committed steps of each trainer since then, within a generation."""
        out: list[float] = []
        for path in self.logs.iterdir():
            if path.name.isdigit():
                steps = [s for s in self.lines(int(path.name)) if s.at > since]
                out += [b.at - a.at for a, b in zip(steps, steps[1:]) if a.generation == b.generation]
        return out

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Steps are slow inside, so that what is started ahead finds a free core."""
        (self.logs / "pause").touch()
        try:
            yield
        finally:
            self.unpause()

    def unpause(self) -> None:
        (self.logs / "pause").unlink(missing_ok=True)

    def resize(self, ranks: int) -> None:
        subprocess.run([self.phalanx, "resize", str(ranks), "--dir", str(self.dir)], check=True, capture_output=True, timeout=PATIENCE)

    def spare(self) -> int:
        """The process id of the trainer of a spare."""

        def check() -> int | None:
            s = self.status()
            return next((m["trainer_pid"] for m in s.get("members") or [] if m["member"] not in s["world"] and m.get("trainer_pid")), None)

        return self.until("a spare", check, 0.1)

    def digest(self) -> str:
        """The digest of model and optimizer that all trainers print at the end of the job."""
        code = self.process.wait(PATIENCE)
        told = set(re.findall(r"digest=(\w+)", "\n".join(x for x in self.said().split("\n") if "final step=" in x)))
        if code or len(told) != 1:
            raise SystemExit(f"the job ended with {code} and digests {sorted(told)}: {self.said()[-1500:]}")
        return told.pop()

    def end(self) -> None:
        if self.process.poll() is None:
            for _ in range(2):  # the second one ends daemons and trainers at once
                self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        self.process.kill()
        self.process.wait()
        self.output.close()
        # Who was killed leaves shared memory behind; its name has the folder's hash (node/paths.go).
        place = hashlib.sha256(str(self.dir).encode()).hexdigest()[:12]
        for path in Path("/dev/shm").glob(f"phalanx.{place}.*"):
            path.unlink(missing_ok=True)


@contextmanager
def job(phalanx: str, steps: int, slots: int, *flags: str) -> Iterator[Job]:
    """A job that is ended with the block."""
    folder = tempfile.mkdtemp(prefix="phx-bench-", dir="/tmp")
    j = Job(phalanx, folder, steps, slots, list(flags))
    try:
        yield j
    finally:
        j.end()
        shutil.rmtree(folder, ignore_errors=True)


class Strike(NamedTuple):
    """One kill of a trainer. All in seconds from the kill."""

    recover: list[float]  # the next committed step of each survivor
    full: list[float]  # the first committed step of all ranks again, each rank
    heals: int  # survivors that received state


def strike(j: Job, rng: random.Random, ranks: int) -> Strike:
    before = j.whole(ranks)
    victim = rng.choice(sorted(before))
    survivors = {m: p for m, p in before.items() if m != victim}
    generation = max(j.lines(p)[-1].generation for p in before.values())
    healed = sum(j.heals(p) for p in survivors.values())
    killed = time.monotonic()
    os.kill(before[victim], signal.SIGKILL)

    # A step that was voted for before the kill may still be committed by the old generation; it does not count.
    def after(pid: int, world: int) -> float | None:
        return next((s.at - killed for s in j.lines(pid) if s.generation > generation and s.world == world), None)

    j.until("full size again", lambda: all(after(p, ranks) for p in survivors.values()), 0.05)
    now = j.whole(ranks)
    recover = [next(s.at for s in j.lines(p) if s.generation > generation) - killed for p in survivors.values()]
    full = [t for p in now.values() if (t := after(p, ranks)) is not None]
    return Strike(recover, full, sum(j.heals(p) for p in survivors.values()) - healed)
