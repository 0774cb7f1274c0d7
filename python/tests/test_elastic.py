# SPDX-License-Identifier: Apache-2.0
"""P1, P3: a run ends with the bits of an undisturbed one, whoever was killed, stopped, added or taken away meanwhile."""

from __future__ import annotations

import pathlib
import re
import signal
import time

import pytest

from cluster import TRAINERS, Run, kill

TRAINER = str(TRAINERS / "mlp.py")
#: Undisturbed digests by arguments.
_quiet: dict[tuple[str, ...], str] = {}


@pytest.fixture(scope="session")
def quiet(tmp_path_factory: pytest.TempPathFactory):
    """The digest of an undisturbed run of two ranks."""

    def digest(*args: str) -> str:
        if args not in _quiet:
            with Run(tmp_path_factory.mktemp("quiet"), TRAINER, *args, nproc=2) as run:
                run.end()
                finals = run.finals()
            assert len(finals) == 1, run.text
            _quiet[args] = finals.pop()
        return _quiet[args]

    return digest


def slow(*args: str) -> tuple[str, ...]:
    """The same training, slow enough for faults in between."""
    return (*args, "--floor", "0.15")


def test_trainers_daemons_and_the_leader_are_killed(tmp_path: pathlib.Path, quiet) -> None:
    with Run(tmp_path / "run", TRAINER, *slow("--steps", "60"), nproc=4) as run:
        at = run.reach(5)["step"]
        for what in ("trainer_pid", "daemon_pid", "leader", "rank 0"):
            status = run.reach(at + 8)
            at = status["step"]
            members = status["members"]
            if what == "leader":
                (victim,) = [m for m in members if m["member"] == status["leader"]]
                kill(victim["daemon_pid"])
            elif what == "rank 0":
                (victim,) = [m for m in members if m.get("rank") == 0]
                kill(victim["trainer_pid"])
            else:
                kill(members[2][what])
        run.end()
        assert run.finals() == {quiet("--steps", "60")}


def test_grow_and_shrink(tmp_path: pathlib.Path, quiet) -> None:
    with Run(tmp_path / "run", TRAINER, *slow("--steps", "70"), nproc=4) as run:
        import subprocess

        from cluster import PHALANX, environment

        run.reach(5)
        for want in (3, 2, 4):
            subprocess.run(
                [PHALANX, "resize", str(want), "--dir", str(run.directory)], check=True, env=environment(), capture_output=True
            )
            run.until(f"{want} ranks", lambda want=want: len(run.status().get("world", [])) == want)
            run.reach(run.status()["step"] + 3)
        run.end()
        assert run.finals() == {quiet("--steps", "70")}
