# SPDX-License-Identifier: Apache-2.0
"""The process group of the ranks that hold one copy of the model together.

PyTorch sees one group for the life of the process: G ranks, of which this one has its shard coordinate. Below, it is bound
anew in each generation to the ranks of the replica group that this member sits in. Between steps it is bound to nothing.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from .. import client as _client
from .backend import NAME, TIMEOUT, ProcessGroupPhalanx, identity_of
from .collectives import Collectives
from .flight import flight


class SeatedGroup(ProcessGroupPhalanx):
    """A group of the backend `phalanx` whose members change with the generations."""

    def _attach(self, options: Any) -> None:
        """Takes PyTorch's numbers; there is no generation yet."""
        self._own = options.group_rank
        self._ranks = list(range(options.group_size))
        self._name, self._timeout_seconds = str(options.group_id), TIMEOUT
        self._open, self._hooks, self._used = [False], {}, set()
        self._reconfigurable, self._process_group = False, None
        self._generation: tuple[int, int] | None = None

    def seat(self, begun: _client.Begin) -> None:
        """Binds the group to the ranks around a seat. Raises Refused with the code fenced when the generation is over."""
        first = begun.rank - begun.coordinate
        ranks = list(range(first, first + begun.group_size))
        if (begun.group_size, begun.coordinate) != (self.size(), self._own):
            raise RuntimeError(
                f"the job has given this member coordinate {begun.coordinate} of {begun.group_size}, its model is shard "
                f"{self._own} of {self.size()}"
            )
        if self._generation == begun.generation and self._ranks == ranks:
            self._open[0] = True
            return
        f = flight()
        identity = identity_of("shards", begun.generation, tuple(ranks))
        f.ring.make_group(identity, ranks, begun.generation)
        Collectives.__init__(self, f, identity, ranks, self._own, begun.generation, TIMEOUT, self._name)
        # From here on it is open: Collectives begins so.

    def leave(self) -> None:
        """Says that no step is under way: a collective is an error until the next seat."""
        self._open[0] = False

    def shutdown(self) -> None:
        """Ends the group with the process; the daemon forgets it with the generation."""
        self._open[0] = False


_group: SeatedGroup | None = None


def make(size: int, coordinate: int) -> None:
    """Makes PyTorch's default process group a seated one."""

    def create(options: Any, backend_options: Any = None) -> SeatedGroup:
        global _group
        _group = SeatedGroup(options)
        return _group

    name = f"{NAME}_shards"
    if name not in dist.Backend.backend_list:
        dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu"])
    dist.init_process_group(name, store=dist.HashStore(), rank=coordinate, world_size=size)


def group() -> SeatedGroup | None:
    """The seated group of this process, None without one."""
    return _group
