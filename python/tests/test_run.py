# SPDX-License-Identifier: Apache-2.0
"""Real jobs of trainers in Python, with faults: their last state equals that of an undisturbed run,
to the bit.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
from pathlib import Path

from running import job, phalanx_binary, toy, trainers
from toy import Toy

STEPS = 60


def alone(steps: int = STEPS, coordinate: int = 0) -> str:
    """The final line of a run in this process, without a daemon."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert Toy(steps, coordinate=coordinate).run() == 0
    return out.getvalue().splitlines()[-1]


def test_kill_in_the_middle(folder: Path) -> None:
    with job(folder, toy("--steps", str(STEPS), "--floor", "0.03"), "--nproc", "2") as j:
        s = j.until("two ranks train", lambda s: s["step"] >= 10 and len(trainers(s)) == 2)
        victim = trainers(s)[s["world"][1]]
        os.kill(victim, signal.SIGKILL)
        j.until(
            "it is replaced", lambda s: len(trainers(s)) == 2 and victim not in trainers(s).values()
        )
        assert j.wait() == 0, j.output
        assert j.finals() == {alone()}, j.output


def test_groups_of_two_with_a_kill(folder: Path) -> None:
    """Each coordinate trains a model of its own; the loss of a rank takes its group along, or a
    spare.
    """
    command = toy("--steps", str(STEPS), "--floor", "0.03", "--group-size", "2")
    with job(folder, command, "--nproc", "4") as j:
        s = j.until("four train", lambda s: s["step"] >= 10 and len(trainers(s)) == 4)
        os.kill(trainers(s)[s["world"][1]], signal.SIGKILL)
        assert j.wait() == 0, j.output
        assert j.finals() == {alone(coordinate=0), alone(coordinate=1)}, j.output


def test_shards_of_two_coordinates_with_a_kill(folder: Path) -> None:
    """Members are pinned to the coordinate whose boxes they hold, and a checkpoint has the
    whole.
    """
    command = toy("--steps", str(STEPS), "--floor", "0.03", "--group-size", "2", "--pins")
    with job(folder, command, "--nproc", "4", "--save-every", "20") as j:
        s = j.until("four train", lambda s: s["step"] >= 10 and len(trainers(s)) == 4)
        os.kill(trainers(s)[s["world"][2]], signal.SIGKILL)
        assert j.wait() == 0, j.output
        assert j.finals() == {alone(coordinate=0), alone(coordinate=1)}, j.output
        shown = subprocess.run(
            [phalanx_binary(), "ckpt", "inspect", "--json", "--dir", str(j.dir)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert re.search(r'"shape":\s*\[\s*512\s*\]', shown.stdout), shown.stdout + shown.stderr


def test_trainer_that_was_started_ahead(folder: Path) -> None:
    command = toy("--steps", str(STEPS), "--floor", "0.03")
    with job(folder, command, "--nproc", "2", "--warm") as j:
        s = j.until("two train", lambda s: s["step"] >= 15 and len(trainers(s)) == 2)
        started = {pid for pid in j.pids() if pid not in trainers(s).values()}
        victim = trainers(s)[s["world"][0]]
        os.kill(victim, signal.SIGKILL)
        s = j.until(
            "its place is taken",
            lambda s: victim not in trainers(s).values() and len(trainers(s)) == 2,
        )
        assert started & set(trainers(s).values()), "the new trainer was not there before"
        assert j.wait() == 0, j.output
        assert j.finals() == {alone()}, j.output


def test_shrink_and_grow(folder: Path) -> None:
    """4 → 3 → 2 → 4 ranks, by drains and a resize."""
    with job(folder, toy("--steps", "120", "--floor", "0.03"), "--nproc", "4") as j:
        s = j.until("four train", lambda s: s["step"] >= 5 and len(s["world"]) == 4)
        for want in (3, 2, 4):
            done = subprocess.run(
                [phalanx_binary(), "resize", str(want), "--dir", str(j.dir)],
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert done.returncode == 0, done.stderr
            s = j.until(
                f"{want} train",
                lambda t, n=want, b=s["step"]: len(t["world"]) == n and t["step"] > b + 3,
            )
        assert j.wait() == 0, j.output
        assert j.finals() == {alone(120)}, j.output
