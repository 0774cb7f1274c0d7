# SPDX-License-Identifier: Apache-2.0
"""Phalanx for PyTorch: see docs/pytorch.md."""

from __future__ import annotations

from .data import Loader, Sampler, Streams
from .elastic import Elastic, Step
from .weights import Report, WeightsError, load_weights
from .world import shard_mesh

__all__ = ["Elastic", "Loader", "Report", "Sampler", "Step", "Streams", "WeightsError", "load_weights", "shard_mesh"]
