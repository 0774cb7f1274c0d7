# SPDX-License-Identifier: Apache-2.0
"""The names under which versions of PyTorch call a process group: up to 2.11 and from 2.15 on they
differ, so each collective has both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from .groups import Group
from .parts import Inputs, Outputs, check, run, split
from .work import RingWork, handed_over

Tensors = Sequence[torch.Tensor]


class Collectives(Group):
    """What PyTorch calls. Tensors are on the CPU; roots and peers are positions in the group."""

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        check(tensors, "all_reduce")
        work, deadline = self._start("all_reduce", tensors, opts)
        for t in tensors:
            self._reduce(work, deadline, t, opts.reduceOp, None)
        return handed_over(work)

    allreduce_coalesced = all_reduce = all_reduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        check(tensors, "reduce")
        work, deadline = self._start("reduce", tensors, opts)
        self._reduce(work, deadline, tensors[0], opts.reduceOp, opts.rootRank)
        return handed_over(work)

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        check(tensors, "broadcast")
        work, deadline = self._start("broadcast", tensors, opts)
        for t in tensors:
            self._broadcast(work, deadline, t, opts.rootRank)
        return handed_over(work)

    def barrier(self, opts: Any = None) -> Work:
        work, deadline = self._start("barrier", [], opts)
        self._post(work, deadline, "barrier", [], None)
        return handed_over(work)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        work, deadline = self._start("all_gather", [t for o in outputs for t in o], opts)
        for out, t in zip(outputs, inputs, strict=True):
            self._all_gather(work, deadline, out, t)
        return handed_over(work)

    all_gather = allgather

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Work:
        """outputs: for each rank a list of what it gives."""
        by_input = [[of_rank[i] for of_rank in outputs] for i in range(len(inputs))]
        return self.allgather(by_input, inputs, opts)

    all_gather_coalesced = allgather_coalesced

    def _all_gather(self, work: RingWork, deadline: float, out: Tensors, t: torch.Tensor) -> None:
        check([t, *out], "all_gather")
        if len(out) != len(self._ranks):
            raise ValueError(f"all_gather: {len(out)} outputs for {len(self._ranks)} ranks")
        o = Outputs(out)
        if o.runs[self._own].nbytes != t.numel() * t.element_size():
            raise ValueError("all_gather: the own output and the input have different sizes")
        self._gather(work, deadline, Inputs([t]), o.runs, o, None)

    def all_gather_single(self, output: torch.Tensor, t: torch.Tensor, opts: Any = None) -> Work:
        work, deadline = self._start("all_gather_single", [output], opts)
        self._gather_single(work, deadline, output, t)
        return handed_over(work)

    _allgather_base = all_gather_into_tensor = allgather_into_tensor = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        work, deadline = self._start("all_gather_single", outputs, opts)
        for out, t in zip(outputs, inputs, strict=True):
            self._gather_single(work, deadline, out, t)
        return handed_over(work)

    allgather_into_tensor_coalesced = all_gather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_single(
        self, work: RingWork, deadline: float, output: torch.Tensor, t: torch.Tensor
    ) -> None:
        check([output, t], "all_gather_single")
        self._sizes("all_gather_single", output, t)
        o = Outputs([output])
        self._gather(work, deadline, Inputs([t]), split(o.runs[0], len(self._ranks)), o, None)

    def _sizes(self, what: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        if whole.numel() != part.numel() * len(self._ranks) or whole.dtype != part.dtype:
            raise ValueError(
                f"{what}: {whole.numel()} elements of {whole.dtype} are not {len(self._ranks)} "
                "times "
                f"{part.numel()} of {part.dtype}"
            )

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        root, t = opts.rootRank, inputs[0]
        out = list(outputs[0]) if root == self._own and outputs else []
        check([t, *out], "gather")
        work, deadline = self._start("gather", out, opts)
        if root == self._own and [o.numel() for o in out] != [t.numel()] * len(self._ranks):
            raise ValueError(
                f"gather: the root needs {len(self._ranks)} outputs of the size of its input"
            )
        o = Outputs(out) if out else None
        self._gather(work, deadline, Inputs([t]), o.runs if o else [], o, root)
        return handed_over(work)

    def gather_single(self, output: torch.Tensor, t: torch.Tensor, opts: Any) -> Work:
        root = opts.rootRank
        check([t], "gather")
        work, deadline = self._start("gather", [output] if root == self._own else [], opts)
        o = None
        if root == self._own:
            self._sizes("gather", output, t)
            o = Outputs([output])
        self._gather(
            work, deadline, Inputs([t]), split(o.runs[0], len(self._ranks)) if o else [], o, root
        )
        return handed_over(work)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        root, t = opts.rootRank, outputs[0]
        give = list(inputs[0]) if root == self._own and inputs else []
        check([t, *give], "scatter")
        work, deadline = self._start("scatter", [t], opts)
        if root == self._own and [i.numel() for i in give] != [t.numel()] * len(self._ranks):
            raise ValueError(
                f"scatter: the root needs {len(self._ranks)} inputs of the size of its output"
            )
        source = Inputs(give)
        self._scatter(work, deadline, Outputs([t]), source.runs, source, root)
        return handed_over(work)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        work, deadline = self._start("reduce_scatter", outputs, opts)
        for out, give in zip(outputs, inputs, strict=True):
            check([out, *give], "reduce_scatter")
            if len(give) != len(self._ranks) or give[self._own].numel() != out.numel():
                raise ValueError(
                    f"reduce_scatter: {len(self._ranks)} inputs are needed, the own one of the "
                    "size of the output"
                )
            source = Inputs(give)
            self._reduce_scatter(work, deadline, source.runs, source, Outputs([out]), opts.reduceOp)
        return handed_over(work)

    def reduce_scatter_single(self, output: torch.Tensor, t: torch.Tensor, opts: Any) -> Work:
        work, deadline = self._start("reduce_scatter_single", [output], opts)
        self._scatter_single(work, deadline, output, t, opts.reduceOp)
        return handed_over(work)

    _reduce_scatter_base = reduce_scatter_tensor = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        work, deadline = self._start("reduce_scatter_single", outputs, opts)
        for out, t in zip(outputs, inputs, strict=True):
            self._scatter_single(work, deadline, out, t, opts.reduceOp)
        return handed_over(work)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_single(
        self, work: RingWork, deadline: float, output: torch.Tensor, t: torch.Tensor, op: Any
    ) -> None:
        check([output, t], "reduce_scatter_single")
        self._sizes("reduce_scatter_single", t, output)
        source = Inputs([t])
        self._reduce_scatter(
            work, deadline, split(source.runs[0], len(self._ranks)), source, Outputs([output]), op
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        t: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Work:
        """Split sizes are in rows of the first dimension; all ranks give them, or none does."""
        check([output, t], "all_to_all_single")
        work, deadline = self._start("all_to_all_single", [output], opts)
        o, source, n = Outputs([output]), Inputs([t]), len(self._ranks)
        if not output_split_sizes and not input_split_sizes:
            if output.numel() != t.numel() or (t.dim() and t.size(0) % n):
                raise ValueError(
                    f"all_to_all_single: {t.shape} does not go into {n} equal parts of "
                    f"{output.shape}"
                )
            self._all_to_all(
                work, deadline, split(source.runs[0], n), split(o.runs[0], n), source, o
            )
            return handed_over(work)
        self._exchange(
            work,
            deadline,
            self._rows(source.runs[0], t, input_split_sizes),
            self._rows(o.runs[0], output, output_split_sizes),
            source,
            o,
        )
        return handed_over(work)

    alltoall_base = all_to_all_single

    def _rows(self, r: Any, t: torch.Tensor, sizes: Sequence[int] | None) -> list[Any]:
        """The parts of a tensor, by rows."""
        n = len(self._ranks)
        rows = t.size(0) if t.dim() else 1
        sizes = list(sizes) if sizes else [rows // n] * n
        if len(sizes) != n or sum(sizes) != rows:
            raise ValueError(
                f"all_to_all_single: split sizes {sizes} for {n} ranks do not add up to {rows} rows"
            )
        row = r.nbytes // rows if rows else 0
        out, at = [], r.address
        for s in sizes:
            out.append(type(r)(at, s * row))
            at += s * row
        return out

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        check([*outputs, *inputs], "all_to_all")
        if len(outputs) != len(self._ranks) or len(inputs) != len(self._ranks):
            raise ValueError(f"all_to_all: {len(self._ranks)} inputs and outputs are needed")
        work, deadline = self._start("all_to_all", outputs, opts)
        o, source = Outputs(outputs), Inputs(inputs)
        self._exchange(work, deadline, source.runs, o.runs, source, o)
        return handed_over(work)

    all_to_all = alltoall

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        check(tensors, "send")
        work, deadline = self._start(f"send to {dst}", tensors, None)
        for t in Inputs(tensors).tensors:
            self._move(work, deadline, "send", run(t), dst, tag, None)
        return handed_over(work)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        check(tensors, "recv")
        work, deadline = self._start(f"recv from {src}", tensors, None)
        work._source = src
        for t in tensors:
            o = Outputs([t])
            left = [len(range(0, o.runs[0].nbytes, self._flight.piece_bytes))]

            def one(o: Outputs = o, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == 0:
                    o.done()

            self._move(work, deadline, "recv", o.runs[0], src, tag, one)
        return handed_over(work)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        raise ValueError("recv: the backend phalanx receives from a named rank; give src")


__all__ = ["Collectives"]
