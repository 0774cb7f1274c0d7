# SPDX-License-Identifier: Apache-2.0
"""A trainer whose collectives do not come to their end: by abort, by the clock, by a mistake, by
another shape of the group.
"""

from __future__ import annotations

import faulthandler
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from phalanx.torch.work import CollectiveRefused, CollectiveRevoked, CollectiveTimeout


def fails(error: type[Exception] | tuple[type[Exception], ...], f: Any, within: float) -> Exception:
    began = time.monotonic()
    try:
        f()
    except error as e:
        assert time.monotonic() - began < within, f"it took {time.monotonic() - began:.1f} s: {e}"
        return e
    raise AssertionError(f"{f} did not fail")


def backend_of(group: Any) -> Any:
    return group._get_backend(torch.device("cpu")) if not hasattr(group, "_attach") else group


def aborted(rank: int) -> None:
    """Another thread frees a rank that waits, and the other members hear of it."""
    store = dist.distributed_c10d._get_default_store()
    group, other = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    if rank == 0:
        threading.Timer(0.3, backend_of(group).abort).start()
        fails(CollectiveRevoked, lambda: dist.all_reduce(torch.ones(10), group=group), 2)
        fails(RuntimeError, lambda: dist.all_reduce(torch.ones(10), group=group), 1)
        store.set("aborted", "")
    elif rank == 1:
        store.wait(["aborted"], timedelta(seconds=60))
        fails(CollectiveRevoked, lambda: dist.barrier(group=group), 2)
    # A future ends with it, too.
    group = dist.new_group([0, 1])
    if rank == 0:
        future = dist.all_reduce(torch.ones(10), group=group, async_op=True).get_future()
        threading.Timer(0.3, backend_of(group).abort).start()
        fails(RuntimeError, future.wait, 2)
    dist.barrier(group=other)


def late(rank: int) -> None:
    """A rank that does not come."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
    if rank == 0:
        e = fails(CollectiveTimeout, lambda: dist.all_reduce(torch.ones(10), group=group), 3)
        assert "has not ended within" in str(e) and "all_reduce" in str(e), e
    dist.barrier()


def different(rank: int) -> None:
    """Ranks that ask for different things: nobody gets a result."""
    group = dist.new_group([0, 1])
    if rank < 2:
        fails(
            (CollectiveRefused, CollectiveRevoked),
            lambda: dist.all_reduce(torch.ones(10 + rank), group=group),
            10,
        )
    dist.barrier()


def reconfigured(rank: int) -> None:
    """PyTorch's elastic shape, in another order of the ranks and with fewer of them."""
    pg = dist.group.WORLD
    fails(RuntimeError, lambda: dist.all_reduce(torch.ones(1)), 5)
    handle = dist._get_reconfigure_handle(pg)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"handle{rank}", handle)
    handles = [store.get(f"handle{r}").decode() for r in range(3)]
    for uuid, order in ((1, [0, 1, 2]), (2, [2, 0, 1]), (3, [2, 1])):
        if rank not in order:
            continue
        dist._reconfigure(uuid, [handles[r] for r in order], pg, timedelta(seconds=10), None).wait()
        n, own = len(order), order.index(rank)
        assert (pg.rank(), pg.size()) == (own, n), (pg.rank(), pg.size())
        assert dist.get_process_group_ranks(pg) == order, dist.get_process_group_ranks(pg)
        out = [torch.empty(2) for _ in range(n)]
        dist.all_gather(out, torch.full((2,), float(rank)))
        assert [int(t[0]) for t in out] == order, out
        again = uuid
        fails(ValueError, lambda again=again: dist._reconfigure(again, handles, pg), 5)


def main() -> None:
    faulthandler.dump_traceback_later(100, exit=True)
    dist.init_process_group("phalanx")
    rank = dist.get_rank()
    for check in (aborted, late, different):
        check(rank)
    dist.destroy_process_group()
    if hasattr(dist, "_reconfigure"):
        dist.init_process_group("phalanx", enable_reconfigure=True)
        reconfigured(rank)
        dist.destroy_process_group()
    print(f"rank {rank}: all ended", flush=True)


if __name__ == "__main__":
    main()
