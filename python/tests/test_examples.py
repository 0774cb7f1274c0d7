# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/pytorch.md run as written there."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

from running import ROOT, job, phalanx_binary

EXAMPLES = ROOT / "python" / "examples"
ENV = {"CUDA_VISIBLE_DEVICES": ""}


def example(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), *arguments]


def changed(name: str) -> tuple[int, int]:
    """Lines that the plain twin has more, and that the example has more."""
    plain, ours = (
        [line.strip() for line in (EXAMPLES / f).read_text().splitlines() if line.strip()]
        for f in (f"{name}_plain.py", f"{name}.py")
    )
    diff = list(difflib.unified_diff(plain, ours, n=0, lineterm=""))[2:]
    return sum(line.startswith("-") for line in diff), sum(line.startswith("+") for line in diff)


def test_a_script_changes_by_a_few_lines() -> None:
    for name in ("train_ddp", "train_fsdp"):
        less, more = changed(name)
        assert less > more and more <= 22, (name, less, more)
    assert len((EXAMPLES / "train_ddp.py").read_text().splitlines()) <= 120


def test_train_then_fine_tune_and_start_again(folder: Path) -> None:
    with job(folder, example("train_ddp.py", "--steps", "30"), "--nproc", "2", env=ENV) as j:
        assert j.wait(120) == 0, j.output
        assert len(j.finals()) == 1 and "step 20 loss" in j.output
        subprocess.run(
            [phalanx_binary(), "ckpt", "convert", "latest", str(folder / "weights"), "--to", "safetensors", "--dir", str(j.dir)],
            check=True,
        )
    tune = example("finetune_resume.py", "--weights", str(folder / "weights"), "--steps", "100")
    with job(folder, tune, "--nproc", "2", "--save-every", "5", env=ENV) as j:
        assert j.wait(120) == 0, j.output
        whole = j.finals()
        assert len(whole) == 1 and "tensors fit" in j.output
    (folder / "again").mkdir()
    with job(folder / "again", tune, "--nproc", "2", "--save-every", "5", env=ENV) as j:
        j.until("a checkpoint is published", lambda s: s.get("saves", {}).get("recovery_point_step", 0) >= 5, 120)
        for pid in j.pids():
            subprocess.run(["kill", "-9", str(pid)], check=False)
        j.process.wait(60)
        again = j.command
        with job(folder / "again", tune, "--nproc", "2", "--save-every", "5", env=ENV) as k:
            assert k.command == again
            k.until("it goes on", lambda s: s.get("resume_step", 0) >= 5, 120)
            assert k.wait(120) == 0, k.output
            assert k.finals() == whole, k.output
