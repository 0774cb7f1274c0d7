# SPDX-License-Identifier: Apache-2.0
"""A trainer without PyTorch: a linear model in plain Python, over memory of ctypes. The tests run
it under `phalanx run`.

python toy.py --steps 40 --slots 4 [--floor SECONDS] [--save …] [what a test wants to break]
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import sys
import time
from collections.abc import Callable

import phalanx

N = 256


def floats(address: int, n: int) -> ctypes.Array[ctypes.c_float]:
    """float32 memory at an address."""
    return (ctypes.c_float * n).from_address(address)


class Model:
    """w and its momentum m, and a step count; gradients are numbers that depend on w, step and
    slot.
    """

    def __init__(self, n: int = N) -> None:
        self.n = n
        self.w = (ctypes.c_float * n)(*((i % 17) / 17 for i in range(n)))
        self.m = (ctypes.c_float * n)()
        self.count = (ctypes.c_int64 * 1)()

    def tensors(
        self, per_rank: bool = False, box: tuple[int, int] = (0, 1)
    ) -> list[phalanx.Tensor]:
        """box: which of how many equal boxes of larger tensors these are."""
        tensors = [
            phalanx.Tensor("w", "f32", (self.n,), ctypes.addressof(self.w), 4 * self.n),
            phalanx.Tensor("m", "f32", (self.n,), ctypes.addressof(self.m), 4 * self.n),
            phalanx.Tensor("count", "i64", (1,), ctypes.addressof(self.count), 8),
        ]
        if box[1] > 1:
            whole = phalanx.Global((box[1] * self.n,), (box[0] * self.n,))
            tensors = [t._replace(global_=whole if t.name != "count" else None) for t in tensors]
        return [t._replace(per_rank=per_rank) for t in tensors]

    def gradient(self, out: ctypes.Array[ctypes.c_float], step: int, slot: int) -> None:
        for i in range(self.n):
            target = ((i * 31 + slot * 7 + step * 13) % 101) / 101
            out[i] += (self.w[i] - target) * (1 + slot / 8)

    def apply(self, step: int, gradient: ctypes.Array[ctypes.c_float]) -> None:
        for i in range(self.n):
            self.m[i] = 0.5 * self.m[i] + gradient[i]
            self.w[i] -= 0.0625 * self.m[i]
        self.count[0] += 1
        if self.count[0] != step:
            raise RuntimeError(f"step {step} is applied to a state of {self.count[0] - 1}")


class Toy:
    """Runs a model's steps. A test overrides what it wants to break."""

    def __init__(
        self,
        steps: int,
        slots: int = 4,
        floor: float = 0.0,
        n: int = N,
        extra_bytes: int = 0,
        group_size: int = 1,
        coordinate: int = 0,
        pins: bool = False,
    ) -> None:
        self.extra_bytes = extra_bytes
        self.spec = {
            "last_step": steps,
            "slots": slots,
            "global_batch": slots,
            "group_size": group_size,
            "settings": "toy",
        }
        self.floor, self.model = floor, Model(n)
        self.coordinate = coordinate  # the samples of this one are its own
        self.pins = pins  # the state is the shard of one coordinate, which is asked for first
        self.client: phalanx.Client
        self.reduced = 0

    def sit(self, coordinate: int) -> None:
        """Takes a coordinate of a replica group; without groups that which was given stays."""
        if self.spec["group_size"] > 1:
            if self.pins and coordinate != self.coordinate:
                raise RuntimeError(f"pinned to {self.coordinate}, told {coordinate}")
            self.coordinate = coordinate

    def apply(self, step: int) -> None:
        self.model.apply(step, floats(self.reduced, self.model.n))

    def compute(self, begin: phalanx.Begin) -> None:
        started = time.monotonic()
        self.client.fold()
        for slot in range(*begin.slots):
            self.client.working(begin.step, slot)
            self.model.gradient(
                floats(self.client.slot_buffer(slot), self.model.n),
                begin.step + 1000 * self.coordinate,
                slot,
            )
            self.client.slot_done(slot)
        time.sleep(max(0.0, started + self.floor - time.monotonic()))

    def step(self) -> None:
        begin = self.client.begin()
        self.compute(begin)
        try:
            self.reduced = self.client.reduce()
        except phalanx.CollectiveFailed:
            self.client.vote(ok=False)
            return
        self.client.vote()

    def run(self, on_step: Callable[[], None] | None = None) -> int:
        size = int(self.spec["group_size"])
        if self.pins:
            self.coordinate = phalanx.Client.place(size)
            state = self.model.tensors(box=(self.coordinate, size))
        else:
            state = self.model.tensors(per_rank=size > 1)
        self.client = phalanx.Client.hello(
            spec=self.spec,
            state=state,
            pinned=self.coordinate if self.pins else -1,
            gradient_elements=self.model.n,
            apply=self.apply,
            coordinate=self.sit,
            extra_bytes=self.extra_bytes,
        )
        while True:
            try:
                self.step()
                if on_step is not None:
                    on_step()
            except phalanx.Revoked:
                continue
            except phalanx.Done:
                digest = self.client.state_digest()
                print(f"final step={self.client.applied().step} digest={digest}", flush=True)
                try:
                    self.client.finish(digest)
                except phalanx.Repeat:
                    continue
                self.client.close()
                return 0
            except (phalanx.Preempted, phalanx.Orphaned) as e:
                print(f"preempted: {e}", flush=True)
                self.client.close()
                return phalanx.EXIT_PREEMPTED


def main() -> int:
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--slots", type=int, default=4)
    p.add_argument("--floor", type=float, default=0.0)
    p.add_argument("--elements", type=int, default=N)
    p.add_argument("--group-size", type=int, default=1)
    p.add_argument("--pins", action="store_true")
    o = p.parse_args()
    logging.basicConfig(level=logging.INFO, format=f"%(levelname)s {os.getpid()} %(message)s")
    return Toy(o.steps, o.slots, o.floor, o.elements, group_size=o.group_size, pins=o.pins).run()


if __name__ == "__main__":
    sys.exit(main())
