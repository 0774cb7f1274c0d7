# SPDX-License-Identifier: Apache-2.0
"""Gradients of a slot as one row of float32, and back.

The row has a range for each trained parameter, then one for each buffer that forward changes and that is averaged over the
slots like a gradient (running statistics of batch normalisation). Ranges start at multiples of 16 elements (64 bytes).
"""

from __future__ import annotations

import ctypes

import torch

from .state import StateError, local, shard_like

_ALIGN = 16


def memory(address: int, elements: int) -> torch.Tensor:
    """Float32 memory of the segment as a tensor. It is valid as long as the segment is mapped."""
    raw = (ctypes.c_float * max(elements, 1)).from_address(address)
    return torch.frombuffer(raw, dtype=torch.float32, count=max(elements, 1))[:elements]


class Layout:
    """Where gradients and averaged buffers lie in the row."""

    def __init__(
        self, parameters: list[torch.nn.Parameter], buffers: list[torch.Tensor], frozen: list[torch.nn.Parameter] | None = None
    ) -> None:
        self.parameters, self.buffers, self._frozen = parameters, buffers, frozen or []
        self.ranges: list[tuple[int, int]] = []  # of each parameter: first element, elements
        end = 0
        for p in parameters:
            if local(p).is_complex():
                raise StateError("complex parameters are not reduced; use two real ones")
            self.ranges.append((end, local(p).numel()))
            end = (end + local(p).numel() + _ALIGN - 1) // _ALIGN * _ALIGN
        self.trained = end  # elements of gradients
        self.averaged: list[tuple[int, int]] = []
        for b in buffers:
            self.averaged.append((end, b.numel()))
            end = (end + b.numel() + _ALIGN - 1) // _ALIGN * _ALIGN
        self.elements = end
        self._views: dict[int, tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]] = {}

    def views(self, address: int) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """The row at an address: itself, its gradients in the parameters' shapes, its averaged buffers."""
        found = self._views.get(address)
        if found is None:
            row = memory(address, self.elements)
            gradients = [
                row[first : first + n].view(local(p).shape)
                for (first, n), p in zip(self.ranges, self.parameters, strict=True)
            ]
            buffers = [
                row[first : first + n].view(b.shape)
                for (first, n), b in zip(self.averaged, self.buffers, strict=True)
            ]
            found = self._views[address] = row, gradients, buffers
        return found

    @torch.no_grad()
    def collect(self, address: int) -> None:
        """Copies the parameters' gradients and the averaged buffers into the zeroed row at an address."""
        if any(p.grad is not None for p in self._frozen):
            raise StateError(
                "a parameter that did not require gradients when Elastic was made has one: it is not reduced, and replicas would "
                "drift apart. Let it require gradients before, and give it a learning rate of 0 while it is to stay"
            )
        _, gradients, buffers = self.views(address)
        to, source = [], []
        for p, view in zip(self.parameters, gradients, strict=True):
            if p.grad is None:
                continue
            if p.grad.layout is not torch.strided:
                raise StateError("sparse gradients are not reduced; make the layer's `sparse` false")
            to.append(view)
            source.append(local(p.grad))
        if to:
            torch._foreach_copy_(to, source)
        if buffers:
            torch._foreach_copy_(buffers, self.buffers)

    @torch.no_grad()
    def hand_out(self, address: int) -> None:
        """Gives each parameter its part of the reduced row as its gradient: the memory itself where the types allow it."""
        _, gradients, _ = self.views(address)
        for p, view in zip(self.parameters, gradients, strict=True):
            here = local(p)
            value = view if here.dtype == torch.float32 and here.device.type == "cpu" else view.to(here)
            p.grad = shard_like(p, value)

    def clear(self) -> None:
        """Takes the gradients away."""
        for p in self.parameters:
            p.grad = None


class Averaged:
    """Buffers that forward changes: each slot starts from the step's values, and their mean over the slots is the result.

    The module's own buffers are only worked on; `values` are part of the training state. Whole numbers, such as the count of
    batches, take what they were after a slot: it is the same for all slots.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        floats: list[torch.Tensor] = []
        integers: list[torch.Tensor] = []
        self._watched: list[list] = []
        self._homes: list[tuple[torch.nn.Module, str, str, torch.Tensor]] = []
        for prefix, module in model.named_modules():
            running = getattr(module, "track_running_stats", False)
            for name, buffer in module.named_buffers(recurse=False):
                full = ".".join(filter(None, (prefix, name)))
                if name not in module._non_persistent_buffers_set:  # caches are made anew at will
                    self._homes.append((module, name, full, buffer))
                if running:
                    (floats if buffer.is_floating_point() else integers).append(buffer)
                else:
                    self._watched.append([full, buffer, buffer._version])
        self.floats = floats
        self._all = floats + integers
        self._integers = integers
        self._kept = [b.detach().clone().contiguous() for b in self._all]
        self._after = [b.detach().clone() for b in integers]
        #: The values of the step, by the id of the module's buffer.
        self.values = {id(b): k for b, k in zip(self._all, self._kept, strict=True)}

    @torch.no_grad()
    def begin_slot(self) -> None:
        """Goes back to the values of the step. Also after a heal, and when a step was not committed."""
        if self._all:
            torch._foreach_copy_(self._all, self._kept)

    def restored(self) -> None:
        """The state was replaced, and the buffers that are kept by a copy with it."""
        self.begin_slot()
        for watched in self._watched:
            watched[2] = watched[1]._version

    @torch.no_grad()
    def end_slot(self) -> None:
        """Checks that forward changed no other buffer."""
        for module, name, full, buffer in self._homes:
            if module._buffers.get(name) is not buffer:
                module._buffers[name] = buffer
                raise StateError(
                    f"buffer {full} was replaced by another tensor, and what is kept and healed is the first one; "
                    "replicas would drift apart. Keep such values out of the model"
                )
        if self._integers:
            torch._foreach_copy_(self._after, self._integers)
        for watched in self._watched:
            name, buffer, version = watched
            if buffer._version != version:
                watched[2] = buffer._version
                raise StateError(
                    f"buffer {name} is changed by forward; replicas would drift apart. Only running statistics of "
                    "normalisation layers are averaged over the slots: keep such values out of the model"
                )

    @torch.no_grad()
    def take(self, means: list[torch.Tensor]) -> None:
        """Takes the means over the slots: the step is committed."""
        if self._all:
            torch._foreach_copy_(self._kept, means + self._after)
            self.begin_slot()
