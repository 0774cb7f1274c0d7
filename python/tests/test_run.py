# SPDX-License-Identifier: Apache-2.0
"""Real jobs of trainers in Python, with faults: their last state equals that of an undisturbed run,
to the bit.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
from pathlib import Path

from running import job, toy, trainers
from toy import Toy

STEPS = 60


def alone(steps: int = STEPS) -> str:
    """The final line of a run in this process, without a daemon."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert Toy(steps).run() == 0
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
