# SPDX-License-Identifier: Apache-2.0
"""The toy trainer with something that goes wrong."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from pathlib import Path

import phalanx
from toy import N, Toy


class Faulty(Toy):
    """See the flags of main. A fault happens once in a job: its file is made first."""

    def __init__(self, o: argparse.Namespace) -> None:
        super().__init__(o.steps, floor=o.floor, n=o.elements)
        self.o = o
        self.times: list[float] = []

    def once(self, name: str) -> bool:
        """Whether this is the first time, and the member that it is meant for."""
        try:
            (Path(self.o.once) / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def apply(self, step: int) -> None:
        if step == self.o.die_in_apply and self.once("die"):
            self.model.w[0] = 12345.0  # half done
            os.kill(os.getpid(), 9)
        if step == self.o.raise_in_apply and self.once("raise"):
            raise RuntimeError("the optimizer has failed")
        super().apply(step)

    def sit(self, coordinate: int) -> None:
        if self.o.orphan_after:
            self.client._library.posts.phx_set_orphan_after(
                self.client._live(), int(1e9 * self.o.orphan_after)
            )

    def compute(self, begin: phalanx.Begin) -> None:
        if begin.step == self.o.raise_in_compute and self.once("compute"):
            raise RuntimeError("backward has failed")
        if begin.step == self.o.fork_at and self.once("fork"):
            fork_child()
        super().compute(begin)

    def step(self) -> None:
        started = time.monotonic()
        super().step()
        self.times.append(time.monotonic() - started)


def fork_child() -> None:
    """Leaves a child behind, as a DataLoader does, that says what it has of the trainer and stays
    for long.
    """
    if os.fork() != 0:
        return
    maps = Path("/proc/self/maps").read_text().splitlines()
    sockets = [
        link
        for fd in os.listdir("/proc/self/fd")
        if "socket" in (link := read_link(f"/proc/self/fd/{fd}"))
    ]
    shared = [
        m.split()[-1] for m in maps if "/dev/shm" in m or ("phalanx/" in m and ".so" not in m)
    ]
    print(f"child {os.getpid()} holds {len(sockets)} sockets and {len(shared)} maps", flush=True)
    time.sleep(60)
    os._exit(0)


def read_link(path: str) -> str:
    """What a descriptor is, "" when it has gone meanwhile."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def spin() -> None:
    """Computes in Python without a pause."""
    n = 0
    while True:
        n += 1


def main() -> int:
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--floor", type=float, default=0.02)
    p.add_argument("--elements", type=int, default=N)
    p.add_argument("--once", default="/nowhere", help="a folder in which faults are noted")
    p.add_argument("--die-in-apply", type=int, default=0)
    p.add_argument("--raise-in-apply", type=int, default=0)
    p.add_argument("--raise-in-compute", type=int, default=0)
    p.add_argument("--fork-at", type=int, default=0)
    p.add_argument("--orphan-after", type=float, default=0, help="seconds without a daemon")
    p.add_argument("--other-spec", action="store_true", help="member 1 has another spec")
    p.add_argument("--spin", action="store_true", help="a second thread never yields")
    o = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    t = Faulty(o)
    if o.other_spec and os.environ.get("PHALANX_MEMBER", "").endswith("/1"):
        time.sleep(1)  # the other one has said hello by then, and its spec is the job's
        t.spec["settings"] = "another"
    if o.spin:
        threading.Thread(target=spin, daemon=True).start()
    code = t.run()
    if t.times:
        ordered = sorted(t.times)
        print(f"steps={len(ordered)} median_ms={ordered[len(ordered) // 2] * 1000:.2f}", flush=True)
    sys.stdout.flush()
    os._exit(code)  # a thread that spins does not end


if __name__ == "__main__":
    sys.exit(main())
