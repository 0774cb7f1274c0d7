# SPDX-License-Identifier: Apache-2.0
"""Phalanx keeps a training run going: the client of a trainer, without PyTorch. `phalanx.torch` is
for PyTorch.

Importing it loads no library and reads no environment; what it offers is imported when it is asked
for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Client
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
    from .values import Begin, Digest, Global, Label, Tensor, digest_tensors

__version__ = "0.1.0.dev0"

_HOMES = {
    "client": ("Client",),
    "errors": (
        "EXIT_PREEMPTED",
        "CollectiveFailed",
        "Done",
        "Error",
        "Fenced",
        "Illegal",
        "Orphaned",
        "Preempted",
        "Refused",
        "Repeat",
        "Revoked",
        "Torn",
    ),
    "ring": ("Ring",),
    "values": ("Begin", "Digest", "Global", "Label", "Tensor", "digest_tensors"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(f".{home}", __name__), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


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
