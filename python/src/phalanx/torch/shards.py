# SPDX-License-Identifier: Apache-2.0
"""Models whose parameters are sharded over the ranks of a replica group (FSDP2, HSDP).

The group's own collectives (all-gather of parameters, reduce-scatter of gradients) are PyTorch's, over a process group that
`phalanx.torch.shard_mesh(G)` makes: it always has G ranks, and this rank's number in it is its shard coordinate. Which
members these are changes with the generation; nothing in PyTorch needs to know. Between groups the loop reduces.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import client as _client
from .. import errors
from . import seated, world
from .flight import segment_bytes
from .state import StateError, box_of


class Shards:
    """The part of the loop that deals with the ranks of a group."""

    def __init__(self, model: torch.nn.Module, group_size: int) -> None:
        self._roots = _roots(model)
        sharded = any(box_of(p) is not None for p in model.parameters())
        if group_size == 1 and sharded:
            raise StateError("the model is sharded: call phalanx.torch.shard_mesh(G) before, and give Elastic the same group_size")
        if group_size > 1 and world.group_size() != group_size:
            raise StateError(f"group_size is {group_size}, shard_mesh was called with {world.group_size()}")
        for name, p in model.named_parameters() if group_size > 1 else ():
            if p.requires_grad and not hasattr(p, "_local_tensor"):
                raise StateError(
                    f"{name} is not sharded: nobody sums its gradient over the {group_size} ranks of a group, and they would drift "
                    "apart. Shard the whole model: fully_shard(model, mesh=phalanx.torch.shard_mesh(G))"
                )
        self.group_size = group_size
        #: This rank's coordinate, fixed before the model was sharded; None where each rank has the whole model.
        self.coordinate: int | None = world.coordinate() if group_size > 1 else None

    @property
    def segment_bytes(self) -> int:
        """Shared memory that the group's collectives need."""
        return segment_bytes() if seated.group() is not None else 0

    def begin(self, begun: _client.Begin) -> None:
        """Binds the group's collectives to the ranks around a seat. Raises Revoked when its generation is over already."""
        group = seated.group()
        if group is None:
            return
        try:
            group.seat(begun)
        except errors.Refused as e:
            if e.code != "fenced":
                raise
            raise errors.Revoked(str(e)) from e

    def end(self) -> None:
        """Says that no step is under way."""
        group = seated.group()
        if group is not None:
            group.leave()

    def reset(self) -> None:
        """Makes the model fit for another forward after a step that ended half-way."""
        for root in self._roots:
            root.reset_iter_state()

    def average(self, buffers: list[torch.Tensor]) -> None:
        """Averages over the group's ranks, in place: each of them has seen another part of the slots."""
        if self.group_size == 1 or not buffers:
            return
        row = torch.cat([b.reshape(-1) for b in buffers])
        torch.distributed.all_reduce(row)
        row.div_(float(self.group_size))
        for b, mean in zip(buffers, row.split([b.numel() for b in buffers]), strict=True):
            b.copy_(mean.view(b.shape))

    def sum_in_group(self, number: int) -> int:
        """The sum of a number over the group's ranks."""
        if self.group_size == 1:
            return number
        total = torch.tensor([number], dtype=torch.int64)
        torch.distributed.all_reduce(total)
        return int(total)

    def settle_gradient(self, gradient: torch.Tensor, clip_norm: float | None, scaler: Any) -> None:
        """Makes the reduced gradient final, in place: clipped by the norm of the whole, and with a shard that overflowed
        all of them not finite, so that each rank's scaler decides alike."""
        if clip_norm is None and (scaler is None or self.group_size == 1):
            return
        squares = torch.linalg.vector_norm(gradient, dtype=torch.float64).square().reshape(1)
        if self.group_size > 1:
            torch.distributed.all_reduce(squares)
        norm = float(squares.sqrt())
        if norm != norm or norm == float("inf"):
            if scaler is not None and gradient.numel():
                gradient[0] = float("nan")
            return
        if clip_norm is None:
            return
        scale = scaler.get_scale() if scaler is not None else 1.0
        factor = clip_norm / (norm / scale + 1e-6)
        if factor < 1.0:
            gradient.mul_(factor)


def _roots(model: torch.nn.Module) -> list[Any]:
    """The FSDP2 modules of which no other one is a parent."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:
        return []
    roots: list[Any] = []

    def walk(module: torch.nn.Module) -> None:
        if isinstance(module, FSDPModule):
            roots.append(module)
            return
        for child in module.children():
            walk(child)

    walk(model)
    if roots and not hasattr(roots[0], "reset_iter_state"):
        raise StateError(
            "this PyTorch cannot go on after a step of FSDP2 that ended half-way (FSDPModule.reset_iter_state is missing); "
            "use 2.15 or newer"
        )
    return roots
