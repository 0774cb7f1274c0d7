# SPDX-License-Identifier: Apache-2.0
"""The replica group that this rank belongs to, as PyTorch sees it: G ranks, and this one's shard coordinate among them."""

from __future__ import annotations

from typing import Any

import torch

from ..hello import ask, socket_path

_place: tuple[int, int] | None = None  # group size, coordinate


def group_size() -> int:
    """G as `shard_mesh` was given it; 1 without."""
    return _place[0] if _place else 1


def coordinate() -> int:
    """This rank's shard coordinate; 0 without groups."""
    return _place[1] if _place else 0


def shard_mesh(size: int) -> Any:
    """A one-dimensional DeviceMesh of the `size` ranks that hold one copy of the model together, for `fully_shard`.

    It makes PyTorch's default process group: of `size` ranks, in which this one has its shard coordinate. Who the members
    are changes with the generations of the job, their number and places do not. Call it once, before the model is sharded.
    Its collectives work inside of `with step` only.
    """
    from torch.distributed.device_mesh import DeviceMesh

    from . import seated

    global _place
    if _place is not None and _place[0] != size:
        raise ValueError(f"shard_mesh was called with {_place[0]} before")
    if _place is None:
        path = socket_path()
        where = 0 if path is None else int(ask(path, "GET", f"/v1/place?group_size={size}")["coordinate"])
        if path is None and size != 1:
            raise RuntimeError(f"groups of {size} ranks need phalanx run: one process holds one shard")
        seated.make(size, where)
        _place = (size, where)
    return DeviceMesh.from_group(torch.distributed.group.WORLD, "cpu")
