# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: the path of a unix socket has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="phx-py-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
