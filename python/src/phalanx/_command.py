# SPDX-License-Identifier: Apache-2.0
"""The phalanx command of the wheel: becomes the program that lies beside this file."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def binary() -> Path:
    """Where the program is."""
    return Path(__file__).parent / "_bin" / "phalanx"


def main() -> None:
    """Does not return."""
    path = binary()
    try:
        os.execv(path, ["phalanx", *sys.argv[1:]])
    except OSError as e:
        print(f"phalanx: {path}: {e.strerror}; install the package again", file=sys.stderr)
        sys.exit(1)
