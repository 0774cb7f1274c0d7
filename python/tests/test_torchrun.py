# SPDX-License-Identifier: Apache-2.0
"""Scripts for torchrun, which know nothing of Phalanx, under `phalanx run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PHALANX = Path(os.environ.get("PHALANX_BIN", Path(__file__).parents[2] / "bin" / "phalanx"))

# A script in the form of PyTorch's own tutorials.
TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert rank == int(os.environ["RANK"]) and world == int(os.environ["WORLD_SIZE"])
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    print(f"sum={total.item():g} threads={torch.get_num_threads()}", *sys.argv[1:], flush=True)
    out = os.environ["OUT"]
    with open(f"{out}/env.{os.environ['PHALANX_GENERATION']}.{rank}", "w") as f:
        f.write("\\n".join(f"{k}={v}" for k, v in os.environ.items()))
    if "--fail" in sys.argv and rank == 1:
        raise ValueError("the split is empty")
    while "--wait" in sys.argv and not os.path.exists(f"{out}/finish"):
        time.sleep(0.05)
        dist.all_reduce(total)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


class Job:
    """One directory with a script in it and the runs of it."""

    def __init__(self, home: Path) -> None:
        self.home, self.dir = home, home / "job"
        (home / "train.py").write_text(TRAIN)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Run phalanx with the flags and the command in words."""
        env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        env |= {"OUT": str(self.home), "PYTHON_EXEC": sys.executable, **more}
        run = subprocess.Popen(
            [str(PHALANX), "run", "--dir", str(self.dir), "--host", "h", *words],
            cwd=self.home, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        self.started.append(run)
        return run

    def env(self, generation: int, rank: int, timeout: float = 60) -> dict[str, str]:
        """The variables of a trainer, once it has started."""
        path = self.home / f"env.{generation}.{rank}"
        until(path.exists, timeout, f"rank {rank} of generation {generation} has started")
        return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)

    def status(self) -> dict:
        """What `phalanx status` says."""
        answer = subprocess.run(
            [str(PHALANX), "status", "--dir", str(self.dir), "--json"],
            text=True, capture_output=True, check=True, timeout=30,
        )
        return json.loads(answer.stdout)


def until(ready, timeout: float, what: str) -> None:
    """Wait until ready() is true."""
    end = time.monotonic() + timeout
    while not ready():
        assert time.monotonic() < end, f"waited {timeout} s until {what}"
        time.sleep(0.02)


def ends(run: subprocess.Popen[str], timeout: float = 120) -> tuple[int, str, str]:
    """Wait for the end of a run: its code, stdout and stderr."""
    out, err = run.communicate(timeout=timeout)
    return run.returncode, out, err


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job that leaves no process behind."""
    if not PHALANX.exists():
        pytest.fail(f"{PHALANX} is missing: run make build")
    j = Job(tmp_path)
    yield j
    for run in j.started:
        for _ in range(2):  # the second interrupt kills daemons and trainers
            if run.poll() is None:
                run.send_signal(signal.SIGINT)
                time.sleep(0.3)
        if run.poll() is None:
            run.wait(30)


def test_a_command_line_of_torchrun(job: Job) -> None:
    """torchrun's flags start a script that finds torchrun's variables and meets over gloo."""
    run = job.start("--standalone", "--nproc_per_node=2", "train.py", "--lr", "3")
    code, out, err = ends(run)
    assert code == 0, err
    assert out.count("sum=1 threads=1 --lr 3") == 2, out
    assert "OMP_NUM_THREADS=1" in err
    assert "train.py does not name phalanx, so it runs as under torchrun" in err
    env = [job.env(1, rank) for rank in (0, 1)]
    for rank, e in enumerate(env):
        want = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default",
            "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "job",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1",
        }
        assert {k: e.get(k) for k in want} == want
        assert (e["MASTER_ADDR"], e["TORCHELASTIC_USE_AGENT_STORE"]) == ("127.0.0.1", "True")
        assert e["TORCHELASTIC_ERROR_FILE"]


def test_a_module_and_a_restart(job: Job) -> None:
    """After kill -9 of one rank both are started again, and gloo forms again."""
    run = job.start("--nproc", "2", "-m", "train", "--wait")
    job.env(1, 1)
    until(lambda: job.status()["phase"] == "running", 30, "the job runs")
    victim = next(m for m in job.status()["members"] if m["rank"] == 1)
    os.kill(victim["trainer_pid"], signal.SIGKILL)
    until(
        lambda: job.status()["generation"] > 1 and len(job.status()["world"]) == 2,
        60,
        "both are back",
    )
    env = job.env(job.status()["generation"], 1)
    assert int(env["TORCHELASTIC_RESTART_COUNT"]) > 0
    (job.home / "finish").touch()
    code, out, err = ends(run)
    assert code == 0, err
    assert out.count("sum=1") == 4, out


def test_recorded_errors_are_the_cause(job: Job) -> None:
    """What @record wrote is told at the end, and in the evidence while the job goes on."""
    run = job.start("--nproc", "2", "--plain", "--max-restarts", "0", "train.py", "--fail")
    code, _, err = ends(run)
    assert code == 1, err
    last = err.strip().splitlines()[-3:]
    assert any(
        "first failure: h/1: ValueError: the split is empty" in line and "train.py:" in line
        for line in last
    ), last
    assert any(line.startswith("phalanx: ") and "--max-restarts 0" in line for line in last), last


def test_errors_in_status(job: Job) -> None:
    """The cause of a restart is in `status --explain`."""
    (job.home / "once.py").write_text(
        TRAIN.replace("--fail", "--once").replace(
            "raise ValueError", 'if os.path.exists(f"{out}/failed"): return\n        '
            'open(f"{out}/failed", "w").close()\n        raise ValueError',
        )
    )
    run = job.start("--nproc", "2", "--plain", "once.py", "--once", "--wait")
    job.env(1, 1)
    until(lambda: (job.home / "failed").exists(), 60, "it has failed")
    until(lambda: job.status()["generation"] > 1, 60, "the world has changed")
    answer = subprocess.run(
        [str(PHALANX), "status", "--dir", str(job.dir), "--explain"],
        text=True, capture_output=True, check=True, timeout=30,
    )
    assert "ValueError: the split is empty" in answer.stdout
    (job.home / "finish").touch()
    code, _, err = ends(run)
    assert code == 0, err


def test_a_program_of_the_other_kind(job: Job) -> None:
    """A program that is taken for one of the other kind ends at once, with the flag that helps."""
    steps = Path(__file__).parent / "toy.py"
    source = Path(__file__).parents[1] / "src"
    run = job.start("--plain", str(steps), PYTHONPATH=str(source))
    code, _, err = ends(run)
    assert code == 2, err
    assert "without the step protocol" in err and "--plain=false" in err
    job.dir = job.home / "other"
    run = job.start("--plain=false", "--max-restarts", "0", "train.py")
    code, _, err = ends(run)
    assert code == 1, err
    assert "if it does not use the Phalanx client, run it with --plain" in err
