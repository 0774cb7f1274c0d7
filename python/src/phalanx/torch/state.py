# SPDX-License-Identifier: Apache-2.0
"""The training state as a list of tensors: what is healed, saved and restored.

Most tensors are registered where they lie. Three kinds have a *mirror*, contiguous memory that is written after every
optimizer step and read after a heal: tensors that are not contiguous, the optimizer's tensors that do not exist before its
first step, and everything that is no tensor (schedule, loss scaler, hyperparameters, the user's own objects), which is kept
as bytes in one tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from . import codec
from .dtypes import NAMES

#: The name of the tensor of bytes.
EXTRA = "phalanx.extra"


class Entry(NamedTuple):
    """One tensor of the state as it is registered."""

    name: str
    tensor: torch.Tensor  # contiguous, of what this rank holds
    box: tuple[tuple[int, ...], tuple[int, ...]] | None  # shape of the larger tensor, offset in it


class StateError(ValueError):
    """The model or the optimizer cannot be registered; the message says what to change."""


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor: the shard of a DTensor, else the tensor."""
    inner = getattr(tensor, "_local_tensor", tensor)
    return inner.detach()


def shard_like(parameter: torch.nn.Parameter, memory: torch.Tensor) -> torch.Tensor:
    """Memory of what this rank holds of a parameter, in the parameter's kind: a DTensor's shard where that is one."""
    if not hasattr(parameter, "_local_tensor"):
        return memory
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        memory, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )  # fmt: skip


def box_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and offset of the larger tensor that a DTensor is a shard of; None where nothing is sharded."""
    if not hasattr(tensor, "_local_tensor"):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    if tuple(shape) == tuple(tensor.shape):
        return None
    if 0 in shape:
        offset = tuple(0 for _ in offset)
    return tuple(tensor.shape), tuple(offset)


class _Slot:
    """A tensor of the optimizer: where it is kept, and the object that stood there when it was last looked at."""

    __slots__ = ("parameter", "name", "key", "memory", "home", "seen")

    def __init__(self, parameter: torch.nn.Parameter, name: str, key: str, memory: torch.Tensor, home: torch.Tensor):
        self.parameter, self.name, self.key = parameter, name, key
        self.memory = memory  # as registered
        self.home = home  # where the optimizer works on it: the same, or its like on the device
        self.seen: torch.Tensor | None = None


class Registered:
    """The state of a model, an optimizer and whatever else is kept from step to step.

    `objects` have `state_dict()` and `load_state_dict()`; their values are kept as bytes. `stand_ins` are registered instead of
    the buffers with these ids.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        objects: dict[str, Any],
        extra_bytes: int,
        stand_ins: dict[int, torch.Tensor],
    ) -> None:
        self.model, self.optimizer, self.objects = model, optimizer, objects
        self.named = dict(model.named_parameters())
        self._names = {id(p): n for n, p in self.named.items()}
        self.entries: list[Entry] = []
        self._mirrors: list[tuple[torch.Tensor, torch.Tensor]] = []  # tensor, mirror
        self._slots: list[_Slot] = []
        self._plain: list[tuple[str, str]] = []  # what the optimizer keeps and is no tensor
        self._written: bytes | None = None
        persistent = set(model.state_dict(keep_vars=True))
        for name, tensor in self.named.items():
            self._add(f"model.{name}", tensor)
        for name, tensor in model.named_buffers():
            if name in persistent:
                self._add(f"model.{name}", stand_ins.get(id(tensor), tensor))
        self._places = [(local(p), n) for n, p in self.named.items()]
        self._register_optimizer()
        self._groups = [len(g["params"]) for g in optimizer.param_groups]
        first = codec.encode(self._values())
        size = max(extra_bytes, 4 * (len(first) + codec.LENGTH))
        self.extra = torch.zeros((size + 4095) // 4096 * 4096, dtype=torch.uint8)
        self.entries.append(Entry(EXTRA, self.extra, None))
        self.stepped()

    def check(self) -> None:
        """Refuses a model or an optimizer that has become another one since it was registered."""
        if [len(g["params"]) for g in self.optimizer.param_groups] != self._groups:
            raise StateError(
                "parameters were added to the optimizer after Elastic was made; what it keeps for them is not part of the state. "
                "Give it all groups before, with a learning rate of 0 for those that are to wait"
            )
        if sum(map(len, self.optimizer.state.values())) > len(self._slots) + len(self._plain):
            known = {(s.name, s.key) for s in self._slots} | set(self._plain)
            late = sorted({k for p, s in self.optimizer.state.items() for k in s if (self._names.get(id(p)), k) not in known})
            raise StateError(
                f"the optimizer has begun to keep {', '.join(map(str, late))}, which its first step does not make; it is not part of "
                "the state. Let it make all it keeps in its first step"
            )
        for kept, name in self._places:
            p = self.named[name]
            if getattr(p, "_local_tensor", p).data_ptr() != kept.data_ptr():
                raise StateError(
                    f"{name} has moved to other memory after Elastic was made (to(), half(), an assignment to .data), and what is "
                    "kept and healed is the first one. Do it before"
                )

    # -- what a step does to it

    def stepped(self) -> None:
        """Writes the mirrors. To be called after every change of the state."""
        for slot in self._slots:
            here = self.optimizer.state.get(slot.parameter, {}).get(slot.key)
            if here is not slot.seen:
                self._adopt(slot, here)
        for tensor, mirror in self._mirrors:
            mirror.copy_(tensor)
        values = self._values()
        data = codec.encode(values)
        if data != self._written:
            codec.write(self.extra, values)
            self._written = data

    def replaced(self) -> None:
        """Reads the mirrors: the registered memory holds another state now."""
        values = codec.read(self.extra)
        self._written = None
        kept = values["optimizer"]
        for group, numbers in zip(self.optimizer.param_groups, kept["groups"], strict=True):
            group.update(numbers)
        absent = set(map(tuple, kept["absent"]))
        for slot in self._slots:
            state = self.optimizer.state[slot.parameter]
            if (slot.name, slot.key) in absent:
                state.pop(slot.key, None)
                slot.seen = None
            elif slot.seen is None:
                state[slot.key] = slot.seen = self._as_state(slot)
        for name, key in self._plain:
            self.optimizer.state[self.named[name]].pop(key, None)
        for name, key, value in kept["state"]:
            self.optimizer.state[self.named[name]][key] = value
        for tensor, mirror in self._mirrors:
            tensor.copy_(mirror)
        for name, thing in self.objects.items():
            thing.load_state_dict(values["objects"][name])
        for parameter in [p for p, state in self.optimizer.state.items() if not state]:
            del self.optimizer.state[parameter]  # as before its first step

    # -- registration

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        here, box = local(tensor), box_of(tensor)
        if here.dtype not in NAMES:
            raise StateError(f"{name} is of {here.dtype}, which is not kept; convert it")
        if here.device.type == "meta":
            raise StateError(f"{name} is on the meta device; initialise the model before Elastic")
        if here.is_contiguous() and here.device.type == "cpu":
            self.entries.append(Entry(name, here, box))
            return
        mirror = torch.empty(here.shape, dtype=here.dtype)
        self.entries.append(Entry(name, mirror, box))
        self._mirrors.append((here, mirror))

    def _register_optimizer(self) -> None:
        """Registers what the optimizer keeps, also what it makes only in its first step: a step of a copy shows that.

        The copy steps with zero gradients; of its result only names, types and shapes are used.
        """
        for p in self._optimized():
            if id(p) not in self._names:
                raise StateError("the optimizer has a parameter that the model lacks; build it from model.parameters()")
        twin = copy.deepcopy(self.optimizer)
        twin.__dict__.pop("step", None)  # a schedule wraps it
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            getattr(twin, hooks, {}).clear()
        originals = list(self._optimized())
        clones = [p for group in twin.param_groups for p in group["params"]]
        for clone in clones:
            clone.grad = torch.zeros_like(clone) if clone.requires_grad else None
        type(twin).step(twin)
        for original, clone in zip(originals, clones, strict=True):
            name = self._names[id(original)]
            for key, value in sorted(twin.state.get(clone, {}).items()):
                if not isinstance(value, torch.Tensor):
                    self._plain.append((name, key))
                    continue
                memory = torch.zeros(local(value).shape, dtype=value.dtype)
                self.entries.append(Entry(f"optim.state.{name}.{key}", memory, box_of(value)))
                home = memory
                if value.device.type != "cpu":
                    home = memory.to(value.device)
                    self._mirrors.append((home, memory))
                self._slots.append(_Slot(original, name, key, memory, home))

    def _optimized(self) -> Iterator[torch.nn.Parameter]:
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def _adopt(self, slot: _Slot, here: torch.Tensor | None) -> None:
        """Moves what the optimizer has made into the registered memory, and lets the optimizer go on there."""
        if here is None:
            slot.home.zero_()
        else:
            slot.home.copy_(local(here))
            here = self.optimizer.state[slot.parameter][slot.key] = self._as_state(slot)
        slot.seen = here

    def _as_state(self, slot: _Slot) -> torch.Tensor:
        """The memory as the optimizer expects it: a shard of a DTensor where the parameter is one."""
        p, home = slot.parameter, slot.home
        alike = home.shape == local(p).shape and home.dim() == p.dim() > 0
        return shard_like(p, home) if alike else home

    # -- what is no tensor

    def _values(self) -> dict[str, Any]:
        state = self.optimizer.state
        plain = [
            [name, key, state[p][key]]
            for name, key in self._plain
            if key in state.get(p := self.named[name], {})
        ]
        return {
            "optimizer": {
                "groups": [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups],
                "state": plain,
                "absent": [[s.name, s.key] for s in self._slots if s.seen is None],
            },
            "objects": {n: o.state_dict() for n, o in self.objects.items()},
        }
