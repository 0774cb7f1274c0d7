# SPDX-License-Identifier: Apache-2.0
"""A trainer that carries out every collective over phalanx and over gloo, and compares."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

import phalanx.torch.backend as backend
import phalanx.torch.work

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
]
SUMS = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]  # of gloo
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
BITS = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]


def numbers(rank: int, dtype: torch.dtype, n: int) -> torch.Tensor:
    """Small whole numbers, which every type and order of addition gets right."""
    g = torch.Generator().manual_seed(1000 * rank + n)
    t = torch.randint(0, 4, (n,), generator=g)
    if dtype.is_complex:
        return torch.complex(t.float(), t.flip(0).float()).to(dtype)
    return t.to(dtype)


class Pair:
    """A group over phalanx and one over gloo, of the same ranks."""

    def __init__(self, ours: Any, gloo: Any, ranks: list[int]) -> None:
        self.ours, self.gloo, self.ranks = ours, gloo, ranks
        self.own, self.n = ranks.index(dist.get_rank()), len(ranks)

    def same(self, what: str, run: Callable[[Any], Any], exact: bool = True) -> None:
        a, b = run(self.ours), run(self.gloo)
        for x, y in zip(flat(a), flat(b), strict=True):
            if (
                x.shape != y.shape
                or x.dtype != y.dtype
                or not (torch.equal(x, y) if exact else torch.allclose(x, y, rtol=1e-5))
            ):
                sys.exit(f"rank {dist.get_rank()} {what} of {self.ranks}: {x} is not {y}")


def flat(v: Any) -> Iterator[torch.Tensor]:
    if isinstance(v, torch.Tensor):
        yield v
    else:
        for x in v:
            yield from flat(x)


def reductions(p: Pair) -> None:
    for dtype in SUMS:
        for op in OPS + ([] if dtype.is_floating_point else BITS):
            if op in BITS and dtype == torch.bool:
                continue

            def all_reduce(g: Any, dtype: torch.dtype = dtype, op: Any = op) -> torch.Tensor:
                t = numbers(p.own, dtype, 1001)
                dist.all_reduce(t, op, group=g)
                return t

            def reduce(g: Any, dtype: torch.dtype = dtype, op: Any = op) -> Any:
                t = numbers(p.own, dtype, 37)
                dist.reduce(t, p.ranks[p.n - 1], op, group=g)
                return t if p.own == p.n - 1 else []

            p.same(f"all_reduce {op} {dtype}", all_reduce)
            p.same(f"reduce {op} {dtype}", reduce)
    for dtype in DTYPES:  # those that gloo lacks, against numbers
        t = numbers(p.own, dtype, 65)
        want = torch.stack([numbers(r, dtype, 65) for r in range(p.n)])
        dist.all_reduce(t, group=p.ours)
        want = (
            want.any(0)
            if dtype == torch.bool
            else want.to(torch.complex128 if dtype.is_complex else torch.float64).sum(0).to(dtype)
        )
        if not torch.equal(t, want):
            sys.exit(f"all_reduce {dtype}: {t} is not {want}")
    t = torch.full((5,), float(p.own))
    dist.all_reduce(t, dist.ReduceOp.AVG, group=p.ours)
    if not torch.allclose(t, torch.full((5,), (p.n - 1) / 2)):
        sys.exit(f"avg is {t}")
    # Not contiguous, empty, of no dimension, and in the segment.
    for make in (
        lambda: torch.arange(24.0).view(4, 6).t() + p.own,
        lambda: torch.empty(0),
        lambda: torch.tensor(float(p.own)),
        lambda: torch.arange(24.0).view(2, 3, 4).to(memory_format=torch.contiguous_format)[:, 1],
    ):

        def any_shape(g: Any, make: Callable[[], torch.Tensor] = make) -> torch.Tensor:
            t = make()
            if g is p.gloo:
                t = t.contiguous()  # gloo reduces memory that is not the tensor's
            dist.all_reduce(t, group=g)
            return t

        p.same("all_reduce of another layout", any_shape)
    mine = backend.empty(3, 5)
    mine.fill_(p.own + 1)
    dist.all_reduce(mine, group=p.ours)
    if not torch.equal(mine, torch.full((3, 5), p.n * (p.n + 1) / 2)):
        sys.exit(f"all_reduce in the segment: {mine}")


def moves(p: Pair) -> None:
    for dtype in DTYPES:
        if dtype in (torch.int16, torch.bfloat16, torch.complex64):
            continue  # gloo moves fewer types

        def all_gather(g: Any, dtype: torch.dtype = dtype) -> Any:
            out = [torch.empty(33, dtype=dtype) for _ in range(p.n)]
            dist.all_gather(out, numbers(p.own, dtype, 33), group=g)
            return out

        def broadcast(g: Any, dtype: torch.dtype = dtype) -> torch.Tensor:
            t = numbers(p.own, dtype, 33)
            dist.broadcast(t, p.ranks[p.n // 2], group=g)
            return t

        p.same(f"all_gather {dtype}", all_gather)
        p.same(f"broadcast {dtype}", broadcast)

    def gather(g: Any) -> Any:
        out = [torch.empty(7) for _ in range(p.n)] if p.own == 0 else None
        dist.gather(numbers(p.own, torch.float32, 7), out, p.ranks[0], group=g)
        return out or []

    def scatter(g: Any) -> torch.Tensor:
        t = torch.empty(7)
        give = [numbers(10 + i, torch.float32, 7) for i in range(p.n)] if p.own == p.n - 1 else None
        dist.scatter(t, give, p.ranks[p.n - 1], group=g)
        return t

    def all_to_all(g: Any) -> torch.Tensor:
        out = torch.empty(4 * p.n)
        dist.all_to_all_single(out, numbers(p.own, torch.float32, 4 * p.n), group=g)
        return out

    def uneven(g: Any) -> torch.Tensor:
        give = [(p.own + j) % 3 for j in range(p.n)]
        take = [(j + p.own) % 3 for j in range(p.n)]
        out = torch.empty(sum(take), 2)
        dist.all_to_all_single(
            out, numbers(p.own, torch.float32, 2 * sum(give)).view(-1, 2), take, give, group=g
        )
        return out

    p.same("gather", gather)
    p.same("scatter", scatter)
    p.same("all_to_all_single", all_to_all)
    p.same("all_to_all_single with sizes", uneven)

    # What gloo does not do, or not in all versions.
    out = torch.empty(p.n, 6)
    dist.all_gather_into_tensor(out, numbers(p.own, torch.float32, 6), group=p.ours)
    assert torch.equal(out, torch.stack([numbers(r, torch.float32, 6) for r in range(p.n)])), out
    part = torch.empty(5)
    dist.reduce_scatter_tensor(part, numbers(p.own, torch.float32, 5 * p.n), group=p.ours)
    total = torch.stack([numbers(r, torch.float32, 5 * p.n) for r in range(p.n)]).sum(0)
    assert torch.equal(part, total.view(p.n, 5)[p.own]), part
    sizes = [i + 1 for i in range(p.n)]
    part = torch.empty(sizes[p.own])
    dist.reduce_scatter(
        part, [numbers(20 * p.own + i, torch.float32, s) for i, s in enumerate(sizes)], group=p.ours
    )
    assert torch.equal(
        part,
        torch.stack([numbers(20 * r + p.own, torch.float32, sizes[p.own]) for r in range(p.n)]).sum(
            0
        ),
    ), part
    gathered = [torch.empty(s) for s in sizes]
    dist.all_gather(gathered, numbers(p.own, torch.float32, sizes[p.own]), group=p.ours)
    for r, t in enumerate(gathered):
        assert torch.equal(t, numbers(r, torch.float32, sizes[r])), gathered
    given = [torch.full((i + 1,), 10.0 * p.own + i) for i in range(p.n)]
    taken = [torch.empty(p.own + 1) for _ in range(p.n)]
    dist.all_to_all(taken, given, group=p.ours)
    for r, t in enumerate(taken):
        assert torch.equal(t, torch.full((p.own + 1,), 10.0 * r + p.own)), taken


def messages(p: Pair) -> None:
    if p.n < 2:
        return
    to, source = p.ranks[(p.own + 1) % p.n], p.ranks[(p.own - 1) % p.n]
    a, b = torch.empty(9), torch.empty(9)
    works = [
        dist.irecv(b, source, group=p.ours, tag=2),
        dist.irecv(a, source, group=p.ours, tag=1),
        dist.isend(torch.full((9,), 1.0 + p.own), to, group=p.ours, tag=1),
        dist.isend(torch.full((9,), 2.0 + p.own), to, group=p.ours, tag=2),
    ]
    for w in works:
        w.wait()
    before = (p.own - 1) % p.n
    assert torch.equal(a, torch.full((9,), 1.0 + before)), a
    assert torch.equal(b, torch.full((9,), 2.0 + before)), b
    ops = [dist.P2POp(dist.isend, a, to, p.ours), dist.P2POp(dist.irecv, b, source, p.ours)]
    for w in dist.batch_isend_irecv(ops):
        w.wait()
    assert torch.equal(b, torch.full((9,), 1.0 + (p.own - 2) % p.n)), b


def objects(p: Pair) -> None:
    out: list[Any] = [None] * p.n
    dist.all_gather_object(out, {"rank": p.own, "text": "x" * p.own}, group=p.ours)
    assert [o["rank"] for o in out] == list(range(p.n)), out
    one: list[Any] = [{"a": 1}, "b"] if p.own == 0 else [None, None]
    dist.broadcast_object_list(one, p.ranks[0], group=p.ours)
    assert one == [{"a": 1}, "b"], one


def asynchronous(p: Pair) -> None:
    tensors = [
        torch.full((1000 + i,), float(p.own + i)) for i in range(100)
    ]  # more than the ring has places
    works = [dist.all_reduce(t, group=p.ours, async_op=True) for t in tensors]
    future = works[7].get_future()
    for w in reversed(works):
        w.wait()
    future.wait()
    for i, t in enumerate(tensors):
        assert torch.equal(t, torch.full((1000 + i,), float(sum(range(p.n)) + i * p.n))), (i, t)
    for i in range(20):  # nobody waits for these
        dist.all_reduce(tensors[i], group=p.ours, async_op=True)
    dist.barrier(group=p.ours)


def large(p: Pair) -> None:
    """More than a piece, and more than the segment."""
    n = (backend.flight().space.nbytes // 4) + 12345
    t = (torch.arange(n) % 1024).float() + p.own
    dist.all_reduce(t, group=p.ours)
    assert torch.equal(t, ((torch.arange(n) % 1024) * p.n + sum(range(p.n))).float())
    n //= 4
    out = torch.empty(p.n * n)
    dist.all_gather_into_tensor(
        out, t[p.own * n // 2 : p.own * n // 2 + n].contiguous(), group=p.ours
    )
    for r in range(p.n):
        assert torch.equal(out[r * n : (r + 1) * n], t[r * n // 2 : r * n // 2 + n]), r
    part = torch.empty(n)
    dist.reduce_scatter_tensor(part, out, group=p.ours)
    assert torch.equal(part, out[p.own * n : (p.own + 1) * n] * p.n)
    back = torch.empty_like(out)
    dist.all_to_all_single(back, out, group=p.ours)
    for r in range(p.n):
        assert torch.equal(back[r * n : (r + 1) * n], out[p.own * n : (p.own + 1) * n])
    # Parts of different sizes, of which one alone fills the segment.
    sizes = [n * (8 if (r + p.own) % 2 else 1) for r in range(p.n)]
    given = torch.full((sum(sizes),), float(p.own))
    taken = torch.empty(sum(sizes))
    dist.all_to_all_single(taken, given, sizes, sizes, group=p.ours)
    for r, got in enumerate(taken.split(sizes)):
        assert torch.equal(got, torch.full_like(got, float(r))), r
    if p.n > 1 and p.own < 2:
        other = p.ranks[1 - p.own]
        got = torch.empty(n)
        works = [dist.isend(part, other, group=p.ours), dist.irecv(got, other, group=p.ours)]
        for w in works:
            w.wait()
        assert got.sum() > 0


def main() -> None:
    faulthandler.dump_traceback_later(100, exit=True)
    torch.manual_seed(0)
    dist.init_process_group("phalanx")
    rank, n = dist.get_rank(), dist.get_world_size()
    pairs = [Pair(dist.group.WORLD, dist.new_group(backend="gloo"), list(range(n)))]
    for ranks in ([0, 2], [1, 3], [0, 1, 3]):
        if max(ranks) < n:
            ours, gloo = dist.new_group(ranks), dist.new_group(ranks, backend="gloo")
            if rank in ranks:
                pairs.append(Pair(ours, gloo, ranks))
    for p in pairs:
        for check in (reductions, moves, messages, objects, asynchronous):
            check(p)
    large(pairs[0])
    free = backend.flight()
    free.reap()
    if phalanx.torch.work._KEPT is not None:
        phalanx.torch.work._KEPT.clear()  # they keep their tensors, also those in the segment
    assert free.space.free_bytes == free.space.nbytes, free.space.free_bytes
    try:
        dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
        sys.exit("the bits of floats were reduced")
    except ValueError:
        pass
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} of {n}: all equal", flush=True)


if __name__ == "__main__":
    main()
