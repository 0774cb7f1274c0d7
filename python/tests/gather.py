# SPDX-License-Identifier: Apache-2.0
"""The toy trainer, which gathers numbers of all ranks over the ring in each step, from two threads
at once.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import threading

import phalanx
from phalanx.ring import WORLD
from toy import Toy


class Gather(Toy):
    """Every rank gives step * 100 + rank; all of them must come back in the order of ranks."""

    errors: list[BaseException]

    def compute(self, begin: phalanx.Begin) -> None:
        self.errors = []
        # The order of operations in a group is that of posting, so both are posted here and waited
        # for there.
        halves = [(self.post(begin, i), i) for i in range(2)]
        threads = [threading.Thread(target=self.take, args=(begin, s, i)) for s, i in halves]
        for t in threads:
            t.start()
        super().compute(begin)
        for t in threads:
            t.join()
        for e in self.errors:
            raise e

    def numbers(self, half: int) -> tuple[ctypes.Array[ctypes.c_int64], int]:
        address, offset = self.client.extra
        return (ctypes.c_int64 * 128).from_address(address + half * 1024), offset + half * 1024

    def post(self, begin: phalanx.Begin, half: int) -> int:
        numbers, offset = self.numbers(half)
        numbers[0] = begin.step * 100 + begin.rank + half * 1000000
        return self.client.ring.post(
            "all_gather",
            group=WORLD,
            dtype="i64",
            count=1,
            in_offset=offset,
            out_offset=offset + 64,
            generation=begin.generation,
        )

    def take(self, begin: phalanx.Begin, sequence: int, half: int) -> None:
        try:
            self.client.ring.wait(sequence, 30)
            got = list(self.numbers(half)[0][8 : 8 + begin.world])
            want = [begin.step * 100 + r + half * 1000000 for r in range(begin.world)]
            if got != want:
                raise RuntimeError(f"gathered {got}, not {want}")
            if begin.world > 1:
                print(f"gathered {begin.world}", flush=True)
        except BaseException as e:
            self.errors.append(e)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    o = p.parse_args()
    sys.exit(Gather(o.steps, floor=0.02, extra_bytes=4096).run())
