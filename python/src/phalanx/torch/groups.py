# SPDX-License-Identifier: Apache-2.0
"""The collectives of one process group. `backend` gives them to PyTorch, under all the names that
its versions call.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch

from ..errors import Illegal
from .flight import Flight, Piece
from .parts import Inputs, Outputs, Reduction, Run, check, reduction_of, split, windows
from .space import copy_bytes
from .work import RingWork

_EXCHANGE = 1 << 62  # tags of this package's own sends


def _seconds(timeout: timedelta | None, default: float) -> float:
    s = default if timeout is None else timeout.total_seconds()
    return s if s > 0 else default


class _Last:
    """Calls a function at the n-th call."""

    def __init__(self, n: int, then: Callable[[], None]) -> None:
        self._left, self._then, self._lock = n, then, threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._then()


class Group:
    """A group of ranks of one generation and what it can do. Tensors are copied into the segment
    when a collective is called, unless they lie there, and results when it is waited for.
    """

    def __init__(
        self,
        flight: Flight,
        identity: int,
        ranks: Sequence[int],
        own: int,
        generation: tuple[int, int],
        timeout: float,
        name: str,
    ) -> None:
        """identity: of the group in the ring; ranks: of the generation, in the order of the group;
        own: the position of this process; timeout: seconds a collective may take.
        """
        self._flight, self._space = flight, flight.space
        self._id, self._ranks, self._own = identity, list(ranks), own
        self._generation, self._timeout_seconds, self._name = generation, timeout, name
        self._exchanges = 0
        self._open = [True]

    # What a collective is made of.

    def _start(
        self, what: str, outputs: Sequence[torch.Tensor], opts: Any
    ) -> tuple[RingWork, float]:
        if not self._open[0]:
            raise RuntimeError(
                f"{what} of group {self._name}: the group was destroyed, or is not configured yet"
            )
        if self._flight.pid != os.getpid():
            raise Illegal(f"{what}: a forked process has no collectives; start it with spawn")
        work = RingWork(self._flight, self, f"{what} of group {self._name}", list(outputs))
        work.timeout_seconds = _seconds(getattr(opts, "timeout", None), self._timeout_seconds)
        work.deadline = time.monotonic() + work.timeout_seconds
        return work, work.deadline

    def _post(
        self,
        work: RingWork,
        deadline: float,
        op: str,
        blocks: list[tuple[int, int]],
        finish: Callable[[], None] | None,
        keep: torch.Tensor | None = None,
        **words: Any,
    ) -> None:
        p = Piece(blocks, finish, keep)
        self._flight.post(p, deadline, op=op, group=self._id, generation=self._generation, **words)
        work._pieces.append(p)

    def _block(self, nbytes: int, deadline: float) -> tuple[int, tuple[int, int]]:
        start = self._flight.take(nbytes, deadline)
        return start, (start, nbytes)

    def _counts(self, counts: Sequence[int], deadline: float) -> tuple[int, tuple[int, int]]:
        """Puts numbers into the segment. Returns where they are."""
        start, block = self._block(8 * len(counts), deadline)
        numbers = (ctypes.c_int64 * len(counts))(*counts)
        copy_bytes(self._space.address + start, ctypes.addressof(numbers), 8 * len(counts))
        return self._space.offset + start, block

    # Reductions.

    def _reduce(
        self, work: RingWork, deadline: float, t: torch.Tensor, op: Any, root: int | None
    ) -> None:
        """all_reduce, or reduce to a root."""
        r = reduction_of(op, t.dtype)
        here = self._space.find(t)
        own = Outputs([t])
        source = own.tensors[0] if own.flat[0] is own.tensors[0] else Inputs([t]).tensors[0]
        src, dst, base = source.data_ptr(), own.runs[0].address, self._space.address
        cuts = list(windows([own.runs[0].nbytes], self._flight.piece_bytes))
        last = _Last(len(cuts), own.done)
        wanted = root is None or root == self._own
        for k, (n,) in cuts:
            blocks: list[tuple[int, int]] = []
            if here is None:
                start, block = self._block(n, deadline)
                blocks.append(block)
                copy_bytes(base + start, src + k, n)
            else:
                start = here + k
            if r.factor is not None:
                self._space.view(start, (n // t.element_size(),), t.dtype).mul_(r.factor)

            def finish(
                start: int = start, k: int = k, n: int = n, staged: bool = here is None
            ) -> None:
                if staged:
                    copy_bytes(dst + k, base + start, n)
                last()

            at = self._space.offset + start
            self._post(
                work,
                deadline,
                "all_reduce" if root is None else "reduce",
                blocks,
                finish if wanted else None,
                keep=t if here is not None else None,
                **self._words(r),
                count=n // r.itemsize,
                in_offset=at,
                out_offset=at,
                root=-1 if root is None else self._ranks[root],
            )

    def _words(self, r: Reduction) -> dict[str, Any]:
        return {"dtype": r.dtype, "mean": r.mean, "reduction": r.reduction}

    def _reduce_scatter(
        self,
        work: RingWork,
        deadline: float,
        parts: Sequence[Run],
        keep: Inputs,
        out: Outputs,
        op: Any,
    ) -> None:
        t = out.tensors[0]
        r = reduction_of(op, t.dtype)
        base = self._space.address
        cuts = list(windows([p.nbytes for p in parts], self._flight.piece_bytes))
        last = _Last(len(cuts), out.done)
        for k, sizes in cuts:
            start, block = self._block(sum(sizes), deadline)
            blocks, at = [block], start
            for p, n in zip(parts, sizes, strict=True):
                copy_bytes(base + at, p.address + k, n)
                at += n
            if r.factor is not None:
                self._space.view(start, (sum(sizes) // t.element_size(),), t.dtype).mul_(r.factor)
            own = start + sum(sizes[: self._own])

            def finish(
                own: int = own, k: int = k, n: int = sizes[self._own], keep: Inputs = keep
            ) -> None:
                copy_bytes(out.runs[0].address + k, base + own, n)
                last()

            words = self._words(r)
            if len(set(sizes)) > 1:
                words["counts_offset"], more = self._counts(
                    [n // r.itemsize for n in sizes], deadline
                )
                blocks.append(more)
            self._post(
                work,
                deadline,
                "reduce_scatter",
                blocks,
                finish,
                **words,
                count=sizes[0] // r.itemsize,
                in_offset=self._space.offset + start,
                out_offset=self._space.offset + own,
            )

    # Moves. They are of bytes, whatever the elements are.

    def _gather(
        self,
        work: RingWork,
        deadline: float,
        source: Inputs,
        parts: Sequence[Run],
        out: Outputs | None,
        root: int | None,
    ) -> None:
        """all_gather, or gather to a root: parts are where the result goes, there alone."""
        base, mine = self._space.address, source.runs[0]
        sizes_all = [p.nbytes for p in parts] or [mine.nbytes] * len(self._ranks)
        cuts = list(windows(sizes_all, self._flight.piece_bytes))
        last = _Last(len(cuts), out.done if out is not None else lambda: None)
        for k, sizes in cuts:
            whole = root is None or root == self._own
            start, block = self._block(sum(sizes) if whole else sizes[self._own], deadline)
            own = start + (sum(sizes[: self._own]) if whole else 0)
            copy_bytes(base + own, mine.address + k, sizes[self._own])
            blocks = [block]

            def finish(start: int = start, k: int = k, sizes: list[int] = sizes) -> None:
                at = base + start
                for p, n in zip(parts, sizes, strict=True):
                    copy_bytes(p.address + k, at, n)
                    at += n
                last()

            words: dict[str, Any] = {}
            if len(set(sizes)) > 1:
                words["counts_offset"], more = self._counts(sizes, deadline)
                blocks.append(more)
            self._post(
                work,
                deadline,
                "all_gather" if root is None else "gather",
                blocks,
                finish if whole else None,
                dtype="u8",
                count=sizes[0],
                in_offset=self._space.offset + own,
                out_offset=self._space.offset + start if whole else 0,
                root=-1 if root is None else self._ranks[root],
                **words,
            )

    def _scatter(
        self,
        work: RingWork,
        deadline: float,
        out: Outputs,
        parts: Sequence[Run],
        keep: Inputs,
        root: int,
    ) -> None:
        base, n_all = self._space.address, len(self._ranks)
        cuts = list(windows([out.runs[0].nbytes] * n_all, self._flight.piece_bytes))
        last = _Last(len(cuts), out.done)
        for k, sizes in cuts:
            n = sizes[0]
            if root == self._own:
                start, block = self._block(n * n_all, deadline)
                for i, p in enumerate(parts):
                    copy_bytes(base + start + i * n, p.address + k, n)
                own = start + root * n
            else:
                start, block = self._block(n, deadline)
                own = start

            def finish(own: int = own, k: int = k, n: int = n, keep: Inputs = keep) -> None:
                copy_bytes(out.runs[0].address + k, base + own, n)
                last()

            self._post(
                work,
                deadline,
                "scatter",
                [block],
                finish,
                dtype="u8",
                count=n,
                root=self._ranks[root],
                in_offset=self._space.offset + start,
                out_offset=self._space.offset + own,
            )

    def _broadcast(self, work: RingWork, deadline: float, t: torch.Tensor, root: int) -> None:
        base, mine = self._space.address, root == self._own
        here = self._space.find(t)
        own = Outputs([t])
        src = Inputs([t]) if mine else None
        cuts = list(windows([own.runs[0].nbytes], self._flight.piece_bytes))
        last = _Last(len(cuts), own.done)
        for k, (n,) in cuts:
            blocks: list[tuple[int, int]] = []
            start = 0 if here is None else here + k
            if here is None:
                start, block = self._block(n, deadline)
                blocks.append(block)
                if src is not None:
                    copy_bytes(base + start, src.runs[0].address + k, n)

            def finish(
                start: int = start, k: int = k, n: int = n, staged: bool = here is None
            ) -> None:
                if staged:
                    copy_bytes(own.runs[0].address + k, base + start, n)
                last()

            at = self._space.offset + start
            self._post(
                work,
                deadline,
                "broadcast",
                blocks,
                None if mine else finish,
                keep=t if here is not None else None,
                dtype="u8",
                count=n,
                root=self._ranks[root],
                in_offset=at,
                out_offset=at,
            )

    def _all_to_all(
        self,
        work: RingWork,
        deadline: float,
        give: Sequence[Run],
        take: Sequence[Run],
        source: Inputs,
        out: Outputs,
    ) -> None:
        """Equal parts, in as many collectives as they need."""
        base = self._space.address
        cuts = list(windows([p.nbytes for p in give], self._flight.piece_bytes // 2))
        last = _Last(len(cuts), out.done)
        for k, sizes in cuts:
            n = sizes[0]
            start, block = self._block(2 * sum(sizes), deadline)
            for i, p in enumerate(give):
                copy_bytes(base + start + i * n, p.address + k, n)
            to = start + sum(sizes)

            def finish(to: int = to, k: int = k, n: int = n, keep: Inputs = source) -> None:
                for i, p in enumerate(take):
                    copy_bytes(p.address + k, base + to + i * n, n)
                last()

            self._post(
                work,
                deadline,
                "all_to_all",
                [block],
                finish,
                dtype="u8",
                count=n,
                in_offset=self._space.offset + start,
                out_offset=self._space.offset + to,
            )

    def _exchange(
        self,
        work: RingWork,
        deadline: float,
        give: Sequence[Run],
        take: Sequence[Run],
        source: Inputs,
        out: Outputs,
    ) -> None:
        """Parts of any sizes, of which nobody knows those of two others: pair by pair."""
        n = len(self._ranks)
        tag = _EXCHANGE + self._exchanges
        self._exchanges += 1
        copy_bytes(
            take[self._own].address,
            give[self._own].address,
            min(give[self._own].nbytes, take[self._own].nbytes),
        )
        pieces = sum(
            len(list(windows([p.nbytes], self._flight.piece_bytes)))
            for i, p in enumerate(take)
            if i != self._own
        )
        last = _Last(pieces, out.done)
        if pieces == 0:
            out.done()
        for d in range(1, n):
            to, source_rank = (self._own + d) % n, (self._own - d) % n
            # By turns: a send holds its memory until the peer receives it, who may wait for memory too.
            receives = self._moves(work, deadline, "recv", take[source_rank], source_rank, tag, last)
            sends = self._moves(work, deadline, "send", give[to], to, tag, None)
            for _ in itertools.zip_longest(receives, sends):
                pass
        work._keep = source  # type: ignore[attr-defined]

    def _move(self, *arguments: Any) -> None:
        """What `_moves` does, all of it."""
        for _ in self._moves(*arguments):
            pass

    def _moves(
        self,
        work: RingWork,
        deadline: float,
        op: str,
        r: Run,
        peer: int,
        tag: int,
        last: Callable[[], None] | None,
    ) -> Iterator[None]:
        """Sends or receives a run, a piece each time that it is asked for more."""
        base = self._space.address
        for k, (n,) in windows([r.nbytes], self._flight.piece_bytes):
            start, block = self._block(n, deadline)
            if op == "send":
                copy_bytes(base + start, r.address + k, n)

            def finish(start: int = start, k: int = k, n: int = n) -> None:
                copy_bytes(r.address + k, base + start, n)
                if last is not None:
                    last()

            at = self._space.offset + start
            self._post(
                work,
                deadline,
                op,
                [block],
                finish if op == "recv" else None,
                dtype="u8",
                count=n,
                peer=self._ranks[peer],
                tag=tag,
                in_offset=at,
                out_offset=at,
            )
            yield


__all__ = ["Group", "check", "split"]
