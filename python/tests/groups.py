# SPDX-License-Identifier: Apache-2.0
"""A program of a job without steps, which uses every collective of the ring: `phalanx run --plain
-- python groups.py`.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time

import phalanx
from phalanx.ring import FIRST_GROUP, Ring

ALL, HALF, DEAD = FIRST_GROUP + 1, FIRST_GROUP + 2, FIRST_GROUP + 4


class Buffers:
    """i64 numbers in the segment, by place."""

    def __init__(self, ring: Ring) -> None:
        self.address, self.offset, _ = ring.memory

    def put(self, at: int, numbers: list[int]) -> int:
        self.view(at, len(numbers))[:] = numbers
        return self.offset + 8 * at

    def view(self, at: int, n: int) -> ctypes.Array[ctypes.c_int64]:
        return (ctypes.c_int64 * n).from_address(self.address + 8 * at)

    def take(self, at: int, n: int) -> list[int]:
        return list(self.view(at, n))


def check(what: str, got: object, want: object) -> None:
    if got != want:
        raise RuntimeError(f"{what}: {got}, not {want}")


def collectives(ring: Ring, b: Buffers, rank: int, n: int) -> None:
    out = b.offset + 8 * 512

    def op(name: str, numbers: list[int], count: int, size: int, **more: object) -> list[int]:
        at = b.put(0, numbers)
        b.put(512, [0] * 64)
        more = {
            "group": ALL,
            "dtype": "i64",
            "count": count,
            "in_offset": at,
            "out_offset": out,
        } | more
        ring.wait(ring.post(name, **more), 20)  # type: ignore[arg-type]
        return b.take(512, size)

    ranks = range(n)
    own = [10 * rank + i for i in range(n)]
    check(
        "all_reduce", op("all_reduce", own, n, n), [sum(10 * r + i for r in ranks) for i in ranks]
    )
    check("max", op("all_reduce", own, n, n, reduction="max"), [10 * (n - 1) + i for i in ranks])
    check(
        "reduce",
        op("reduce", own, n, n, root=1),
        [sum(10 * r + i for r in ranks) if rank == 1 else 0 for i in ranks],
    )
    check("reduce_scatter", op("reduce_scatter", own, 1, 1), [sum(10 * r + rank for r in ranks)])
    check("all_gather", op("all_gather", [rank], 1, n), list(ranks))
    check("gather", op("gather", [rank], 1, n, root=0), list(ranks) if rank == 0 else [0] * n)
    check("scatter", op("scatter", [7 + i for i in ranks], 1, 1, root=0), [7 + rank])
    check("broadcast", op("broadcast", [99 + rank], 1, 1, root=1), [100])
    check("all_to_all", op("all_to_all", own, 1, n), [10 * r + rank for r in ranks])
    counts = b.put(256, [i + 1 for i in ranks])
    want = [r for r in ranks for _ in range(r + 1)]
    got = op("all_gather", [rank] * (rank + 1), 0, len(want), counts_offset=counts)
    check("all_gather with counts", got, want)
    ring.wait(ring.post("barrier", group=ALL), 20)


def pairs(ring: Ring, b: Buffers, rank: int, n: int) -> None:
    """Each sends to the next one and receives from the one before, with two tags in the other
    order.
    """
    b.put(0, [rank, 1000 + rank])
    b.put(512, [0, 0])
    to, of = (rank + 1) % n, (rank - 1) % n
    one = {"group": ALL, "dtype": "i64", "count": 1}
    posted = [
        ring.post("recv", peer=of, tag=2, out_offset=b.offset + 8 * 513, **one),  # type: ignore[arg-type]
        ring.post("recv", peer=of, tag=1, out_offset=b.offset + 8 * 512, **one),  # type: ignore[arg-type]
        ring.post("send", peer=to, tag=1, in_offset=b.offset, **one),  # type: ignore[arg-type]
        ring.post("send", peer=to, tag=2, in_offset=b.offset + 8, **one),  # type: ignore[arg-type]
    ]
    while posted:
        posted.pop(ring.wait_any(posted, 20))
    check("recv", b.take(512, 2), [of, 1000 + of])


def aborted(
    ring: Ring, b: Buffers, rank: int, ranks: list[int], generation: tuple[int, int]
) -> None:
    """Rank 0 waits for a collective that the others never post, until another thread aborts the
    group.
    """
    ring.make_group(DEAD, ranks, generation)
    if rank == 0:
        sequence = ring.post(
            "all_reduce", group=DEAD, dtype="i64", count=1, in_offset=b.offset, out_offset=b.offset
        )
        started = time.monotonic()
        timer = threading.Timer(0.2, ring.abort, (DEAD, generation))
        timer.start()
        try:
            ring.wait(sequence, 20)
            raise RuntimeError("the collective of an aborted group ended well")
        except phalanx.Revoked:
            print(f"freed after {time.monotonic() - started:.3f} s", flush=True)
        timer.join()


def main() -> int:
    ring = Ring.hello(1 << 16)
    place = ring.place(30)
    rank, n = place.rank, place.world
    ranks = list(range(n))
    b = Buffers(ring)
    ring.make_group(ALL, ranks, place.generation)
    ring.make_group(ALL, ranks, place.generation)  # again is no mistake
    half = ranks[rank % 2 :: 2]
    ring.make_group(HALF + rank % 2, half, place.generation)
    collectives(ring, b, rank, n)
    pairs(ring, b, rank, n)
    at = b.put(0, [rank])
    ring.wait(
        ring.post(
            "all_reduce", group=HALF + rank % 2, dtype="i64", count=1, in_offset=at, out_offset=at
        ),
        20,
    )
    check("half", b.take(0, 1), [sum(half)])
    try:
        ring.make_group(ALL, ranks[::-1], place.generation)
        raise RuntimeError("a group was made of other ranks")
    except phalanx.Refused as e:
        check("refusal", e.code, "bad_request")
    aborted(ring, b, rank, ranks, place.generation)
    ring.wait(ring.post("barrier", group=ALL), 20)
    print(f"rank {rank} of {n} is well", flush=True)
    ring.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
