# SPDX-License-Identifier: Apache-2.0
"""The replica group that this rank belongs to, as PyTorch sees it: G ranks, and this one's shard coordinate among them."""

from __future__ import annotations

from typing import Any

import torch

from ..hello import ask_place, socket_path
from . import seated


def group_size() -> int:
    """G as `shard_mesh` was given it; 1 without."""
    group = seated.group()
    return group.size() if group is not None else 1


def coordinate() -> int:
    """This rank's shard coordinate; 0 without groups."""
    group = seated.group()
    return group.rank() if group is not None else 0


def shard_mesh(size: int) -> Any:
    """A one-dimensional DeviceMesh of the `size` ranks that hold one copy of the model together, for `fully_shard`.

    It makes PyTorch's default process group: of `size` ranks, in which this one has its shard coordinate. Who the members
    are changes with the generations of the job, their number and places do not. Call it once, before the model is sharded.
    Its collectives work inside of `with step` only.
    """
    from torch.distributed.device_mesh import DeviceMesh

    if seated.group() is not None:
        if group_size() != size:
            raise ValueError(f"shard_mesh was called with {group_size()} before")
    else:
        if socket_path() is None and size != 1:
            raise RuntimeError(f"groups of {size} ranks need phalanx run: one process holds one shard")
        seated.make(size, ask_place(size))
    return DeviceMesh.from_group(torch.distributed.group.WORLD, "cpu")
