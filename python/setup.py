# SPDX-License-Identifier: Apache-2.0
"""Builds the client library in C and puts the phalanx command into the wheel.

Environment:
    PHALANX_BINARY  take this phalanx instead of building it with go
    PHALANX_CC      compile with this command instead of cc, or zig's
    PHALANX_WHEEL   manylinux: for glibc 2.28 and newer, compiled with zig; native: for this
    machine, compiled with cc. By default a checkout makes native ones (pip install ./python) and a
    source distribution manylinux ones (python -m build): what is built from one is for others.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
# A source distribution has the Go sources of the command in go/, a checkout in the folder above.
GO = HERE / "go" if (HERE / "go" / "go.mod").exists() else HERE.parent
GLIBC = "2.28"
ZIG = "ziglang==0.17.1"
CFLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-ffp-contract=off", "-fvisibility=hidden"]
CFLAGS += ["-fPIC", "-shared", "-pthread", "-s"]


def fail(why: str) -> SystemExit:
    return SystemExit(f"phalanx: {why}")


def kind() -> str:
    """native or manylinux."""
    chosen = os.environ.get("PHALANX_WHEEL") or (
        "manylinux" if (HERE / "PKG-INFO").exists() else "native"
    )
    if chosen not in ("native", "manylinux"):
        raise fail(f"PHALANX_WHEEL is {chosen!r}; say native or manylinux")
    return chosen


def compiler() -> list[str]:
    if chosen := os.environ.get("PHALANX_CC"):
        return shlex.split(chosen)
    if kind() == "manylinux":
        target = f"{platform.machine()}-linux-gnu.{GLIBC}"
        return [sys.executable, "-m", "ziglang", "cc", "-target", target, "-fno-sanitize=undefined"]
    cc = os.environ.get("CC", "cc")
    if shutil.which(shlex.split(cc)[0]) is None:
        raise fail(
            f"{cc} is missing; install gcc, or set PHALANX_WHEEL=manylinux to compile with zig"
        )
    return shlex.split(cc)


def call(command: list[str], **more: object) -> None:
    print("phalanx:", shlex.join(command), file=sys.stderr)
    try:
        subprocess.run(command, check=True, **more)  # type: ignore[call-overload]
    except (OSError, subprocess.CalledProcessError) as e:
        raise fail(f"{command[0]} failed: {e}") from e


def build_library(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(p.relative_to(HERE)) for p in (HERE / "csrc").glob("*.c"))
    call([*compiler(), *CFLAGS, "-o", str(target), *sources], cwd=HERE)


def build_binary(target: Path, version: str) -> None:
    target = target.resolve()  # go runs in another folder
    target.parent.mkdir(parents=True, exist_ok=True)
    if given := os.environ.get("PHALANX_BINARY"):
        if not os.access(given, os.X_OK):
            raise fail(f"PHALANX_BINARY names {given}, which is no program")
        shutil.copyfile(given, target)
    else:
        if shutil.which("go") is None:
            raise fail(
                "go is missing, which builds the phalanx command; "
                "install it, or name a phalanx by PHALANX_BINARY"
            )
        env = os.environ | {"CGO_ENABLED": "0", "GOAMD64": "v1"}
        command = [
            "go",
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
            f"-s -w -X main.version={version}",
        ]
        call([*command, "-o", str(target), "./cmd/phalanx"], cwd=GO, env=env)
    target.chmod(0o755)


class Build(build_py):
    """Adds the library and the command to the Python files."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            package = HERE / "src" / "phalanx"
        else:
            package = Path(self.build_lib) / "phalanx"
        build_library(package / "_lib" / "libphalanx.so")
        build_binary(package / "_bin" / "phalanx", self.distribution.get_version())


class Wheel(bdist_wheel):
    """py3-none-PLATFORM: the library is called through ctypes and serves every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        if kind() == "manylinux":
            system = f"manylinux_{GLIBC.replace('.', '_')}_{platform.machine()}"
        else:
            system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        return "py3", "none", system


class Source(sdist):
    """Adds the Go sources of the command, as go list names them."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        if shutil.which("go") is None:
            print(
                "phalanx: go is missing: the source distribution is without the command",
                file=sys.stderr,
            )
            return
        fields = ["GoFiles", "SFiles", "HFiles", "EmbedFiles"]
        form = (
            "{{if and .Module .Module.Main}}"
            + "".join(
                f'{{{{range .{f}}}}}{{{{$.Dir}}}}/{{{{.}}}}{{{{"\\n"}}}}{{{{end}}}}' for f in fields
            )
            + "{{end}}"
        )
        listed = subprocess.run(
            ["go", "list", "-deps", "-f", form, "./cmd/phalanx"],
            cwd=GO,
            env=os.environ | {"CGO_ENABLED": "0"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for name in {str(GO / "go.mod"), str(GO / "go.sum"), *listed.split("\n")} - {""}:
            to = Path(base_dir) / "go" / Path(name).relative_to(GO)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, to)


class Platform(Distribution):
    def has_ext_modules(self) -> bool:
        return True  # the wheel is not pure


setup(
    cmdclass={"build_py": Build, "bdist_wheel": Wheel, "sdist": Source},
    distclass=Platform,
    # Asked for by the build frontend before it builds a wheel.
    setup_requires=[ZIG] if kind() == "manylinux" and not os.environ.get("PHALANX_CC") else [],
)
