# SPDX-License-Identifier: Apache-2.0
"""Sharded models: the loss of a rank breaks its group, and the shards end with the bits of an undisturbed run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from running import HERE, Job, job, phalanx_binary, trainers

pytestmark = pytest.mark.skipif(
    not hasattr(FSDPModule, "reset_iter_state"), reason="this PyTorch cannot redo a step of FSDP2 in place; Elastic refuses it"
)
TRAINER = [sys.executable, str(HERE / "fsdp.py")]
TIMEOUT = 180.0
ENV = {"CUDA_VISIBLE_DEVICES": ""}


def shards(j: Job) -> dict[str, set[str]]:
    """The digests that the trainers of each coordinate ended with."""
    out: dict[str, set[str]] = {}
    for coordinate, digest in re.findall(r"shard (\d) final step=\d+ digest=(\S+)", j.output):
        out.setdefault(coordinate, set()).add(digest)
    return out


def whole(j: Job, ranks: int) -> dict:
    return j.until(f"{ranks} ranks", lambda s: len(trainers(s)) == ranks and s["phase"] == "running", TIMEOUT)


def reach(j: Job, step: int) -> dict:
    return j.until(f"step {step}", lambda s: s["step"] >= step, TIMEOUT)


def test_two_groups_of_two_lose_ranks(folder: Path) -> None:
    steps = ("--steps", "250")
    (folder / "quiet").mkdir()
    with job(folder / "quiet", [*TRAINER, *steps], "--nproc", "2", env=ENV) as j:
        assert j.wait(TIMEOUT) == 0, j.output
        quiet = shards(j)
        assert sorted(quiet) == ["0", "1"] and all(len(d) == 1 for d in quiet.values())
        subprocess.run([phalanx_binary(), "ckpt", "verify", "latest", "--dir", str(j.dir)], check=True)

    marks = folder / "marks"
    marks.mkdir()
    faults = ["forward:10", "backward:20"]
    planted = [x for f in faults for x in ("--fault", f)]
    command = [*TRAINER, *steps, "--slow-until", str(folder / "go"), "--marks", str(marks), *planted]
    with job(folder, command, "--nproc", "4", env=ENV) as j:
        for fault in faults:
            j.until(fault, lambda _, name=fault.replace(":", "-"): (marks / name).exists(), TIMEOUT)
            s = whole(j, 4)
        s = reach(j, s["step"] + 5)
        os.kill(trainers(s)[s["world"][0]], signal.SIGKILL)
        reach(j, s["step"] + 5)
        whole(j, 4)
        (folder / "go").touch()
        assert j.wait(TIMEOUT) == 0, j.output
        assert shards(j) == quiet, j.output


def test_a_sharded_step_has_the_gradient_of_a_whole_model(folder: Path) -> None:
    """After one step of SGD-like size the shards are those of the same model trained in one process, up to rounding."""
    steps = ("--steps", "5")
    values = {}
    for size in (1, 2):
        (folder / str(size)).mkdir()
        with job(folder / str(size), [*TRAINER, *steps, "--group-size", str(size)], "--nproc", str(size), env=ENV) as j:
            assert j.wait(TIMEOUT) == 0, j.output
            out = subprocess.run(
                [phalanx_binary(), "ckpt", "dump", "latest", "model.first.weight", "--dir", str(j.dir)], check=True, capture_output=True
            ).stdout
            values[size] = torch.frombuffer(bytearray(out[-16 * 33 * 4 :]), dtype=torch.float32)
    assert torch.allclose(values[1], values[2], atol=1e-5), (values[1] - values[2]).abs().max()
