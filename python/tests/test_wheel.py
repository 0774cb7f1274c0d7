# SPDX-License-Identifier: Apache-2.0
"""The package as users install it, in environments of its own without PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from running import HERE, ROOT, phalanx_binary

CHECK = """
import sys, phalanx
assert phalanx.__file__.startswith(sys.prefix), phalanx.__file__
from toy import Toy
assert Toy(5).run() == 0
assert "torch" not in sys.modules
"""


def environment(folder: Path) -> dict[str, str]:
    """The caller's, without what would let Python find this checkout."""
    env = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PHALANX", "VIRTUAL"))
    }
    return env | {"PATH": f"{folder / 'env' / 'bin'}:/usr/local/bin:/usr/bin:/bin"}


def run(folder: Path, *command: str, timeout: float = 120, **env: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(folder) | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def installs_and_trains(folder: Path, *what: str, **env: str) -> None:
    run(folder, sys.executable, "-m", "venv", "env")
    run(folder, "env/bin/pip", "install", "-q", "--disable-pip-version-check", *what, **env)
    assert (
        run(folder, "phalanx", "version")
        == subprocess.run(
            [phalanx_binary(), "version"], capture_output=True, text=True, timeout=30
        ).stdout
    )
    run(folder, "python", "-c", CHECK, PYTHONPATH=str(HERE))
    toy = ("python", str(HERE / "toy.py"), "--steps", "5")
    out = run(folder, "phalanx", "run", "--dir", str(folder / "job"), "--nproc", "2", "--", *toy)
    assert out.count("final step=5") == 2, out


def test_wheel(folder: Path) -> None:
    """scripts/wheel.sh has auditwheel say that it is a manylinux_2_28 one."""
    env = os.environ | {"PHALANX_BINARY": phalanx_binary(), "PYTHON": sys.executable}
    made = subprocess.run(
        [str(ROOT / "scripts" / "wheel.sh"), str(folder / "dist")],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert made.returncode == 0, made.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    assert made.stdout.strip() == str(wheel)
    assert "-py3-none-manylinux_2_28_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("_lib/libphalanx.so", "_bin/phalanx", "py.typed", "torch/__init__.py"):
        assert f"phalanx/{name}" in names
    installs_and_trains(folder, "--no-index", "--no-deps", str(wheel))


def test_install_from_a_checkout(folder: Path) -> None:
    installs_and_trains(folder, "--no-deps", str(ROOT / "python"), PHALANX_BINARY=phalanx_binary())


def setup_build(folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Builds into the folder by a relative name, as frontends do."""
    base = os.path.relpath(folder, ROOT / "python")
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-base", base],
        cwd=ROOT / "python",
        env={k: v for k, v in os.environ.items() if not k.startswith("PHALANX")} | env,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_command_is_built_with_go(folder: Path) -> None:
    done = setup_build(folder, {"PHALANX_CC": "/bin/true"})
    assert done.returncode == 0, done.stderr
    (program,) = folder.glob("lib*/phalanx/_bin/phalanx")
    assert "phalanx 0.1" in run(folder, str(program), "version")


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"PHALANX_WHEEL": "windows"}, "say native or manylinux"),
        ({"CC": "no-such-compiler"}, "no-such-compiler is missing; install gcc"),
        ({"PHALANX_BINARY": "/nowhere", "PHALANX_CC": "/bin/true"}, "which is no program"),
        ({"PATH": "/nowhere", "PHALANX_CC": "/bin/true"}, "go is missing"),
    ],
)
def test_builds_that_cannot_be(folder: Path, env: dict[str, str], says: str) -> None:
    done = setup_build(folder, env)
    assert done.returncode != 0 and says in done.stderr, done.stdout + done.stderr
