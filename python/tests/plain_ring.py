# SPDX-License-Identifier: Apache-2.0
"""A trainer without steps that uses the daemon's collectives: groups of ranks, messages, an
abort.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

from phalanx import Revoked
from phalanx.ring import FIRST_GROUP, Ring

WHOLE, PAIR, LONELY = FIRST_GROUP, FIRST_GROUP + 1, FIRST_GROUP + 2

ring = Ring.hello(1 << 20)
place = ring.place(10)
address, base, size = ring.memory
rank, world = place.rank, place.world
numbers = (ctypes.c_float * (size // 4)).from_address(address)
ring.make_group(WHOLE, range(world), place.generation)
print(f"rank {rank} of {world} up pid={os.getpid()} generation={place.generation[1]}", flush=True)


def all_reduce(value: float) -> float:
    numbers[0] = value
    sequence = ring.post(
        "all_reduce", group=WHOLE, dtype="f32", count=1, in_offset=base, out_offset=base + 64
    )
    ring.wait(sequence, 30)
    return float(numbers[16])


if all_reduce(rank + 1) != world * (world + 1) / 2:
    sys.exit(f"rank {rank} has the sum {numbers[16]}")

if rank < 2:
    ring.make_group(PAIR, [1, 0])
    for i in range(100000):
        numbers[1000 + i] = rank * 1e6 + i
    big = {"group": PAIR, "dtype": "f32", "count": 100000, "peer": 1 - rank}
    both = [
        ring.post("recv", out_offset=base + 4 * 110000, tag=7, **big),
        ring.post("send", in_offset=base + 4000, tag=7, **big),
    ]
    for s in both:
        ring.wait(s, 30)
    if numbers[110000 + 99999] != (1 - rank) * 1e6 + 99999:
        sys.exit(f"rank {rank} received {numbers[110000 + 99999]}")

# A collective that nobody else enters, ended by another thread.
ring.make_group(LONELY, range(world))
if rank == 0:
    lonely = ring.post("barrier", group=LONELY)
    threading.Timer(0.2, lambda: ring.abort(LONELY, place.generation)).start()
    began = time.monotonic()
    try:
        ring.wait(lonely, 30)
        sys.exit("a barrier without the others ended well")
    except Revoked:
        print(f"aborted after {time.monotonic() - began:.3f} s", flush=True)

while all_reduce(float(os.path.exists(sys.argv[1]))) == 0:
    time.sleep(0.01)
ring.close()
print(f"rank done world={world}", flush=True)
