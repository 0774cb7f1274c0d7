# SPDX-License-Identifier: Apache-2.0
"""Phalanx for PyTorch: see docs/pytorch.md."""

from __future__ import annotations

from .. import warm as _warm
from . import _fsspec as _fsspec
from .backend import empty
from .data import Loader, Sampler, Streams
from .elastic import Elastic, Step
from .plain import Plain, init
from .weights import Report, WeightsError, load_weights
from .world import shard_mesh

__all__ = [
    "Elastic", "Loader", "Plain", "Report", "Sampler", "Step", "Streams", "WeightsError", "empty", "init", "load_weights", "shard_mesh",
]  # fmt: skip

_warm.wait_at_import()  # last: everything is imported when a place is taken
