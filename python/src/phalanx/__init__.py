# SPDX-License-Identifier: Apache-2.0
"""Phalanx keeps a training run going: the client of a trainer, without PyTorch. `phalanx.torch` is
for PyTorch.

Importing it loads no library and reads no environment.
"""

from __future__ import annotations

from .client import Begin, Client, Digest, Global, Label, Tensor, digest_tensors
from .errors import (
    EXIT_PREEMPTED,
    CollectiveFailed,
    Done,
    Error,
    Fenced,
    Illegal,
    Orphaned,
    Preempted,
    Refused,
    Repeat,
    Revoked,
    Torn,
)
from .ring import Ring

__version__ = "0.1.0.dev0"

__all__ = [
    "EXIT_PREEMPTED",
    "Begin",
    "Client",
    "CollectiveFailed",
    "Digest",
    "Done",
    "Error",
    "Fenced",
    "Global",
    "Illegal",
    "Label",
    "Orphaned",
    "Preempted",
    "Refused",
    "Repeat",
    "Revoked",
    "Ring",
    "Tensor",
    "Torn",
    "digest_tensors",
]
