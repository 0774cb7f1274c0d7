# SPDX-License-Identifier: Apache-2.0
"""Times torchft: SIGKILL of one of 4 replica groups to the next committed step without it, and a quiet step.

Starts torchft_lighthouse and 4 nodes (torchft_node.py), kills a random group at a random moment, starts it again 0.3 s
later, waits until it takes part, and repeats. With KILLS 0 it only times quiet steps.

usage: torchft_kills.py KILLS [setting=value ...]    (with the python that torchft is installed for)
The last line is RESULT and a JSON object, all in seconds:
  recover  kill -> first committed step with all survivors taking part, each survivor
  first    kill -> first committed step of whichever survivors
  rejoin   start of the killed group's new process -> first committed step of all groups, each group
  heals    how often a group that had not been killed received the state from another one
  step     between two committed steps in quiet time
"""

import importlib.metadata
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

GROUPS = 4
PORT = 29610
# The shortest time-outs with which no healthy group was taken for dead on two busy cores.
TUNED = {
    "join_ms": 100, "tick_ms": 10, "hb_timeout_ms": 100, "hb_interval_ms": 20, "timeout": 5, "quorum_timeout": 10, "connect_timeout": 5,
}  # fmt: skip
HERE = os.path.dirname(os.path.abspath(__file__))


class Job:
    def __init__(self, settings: dict, folder: str) -> None:
        self.settings, self.folder = settings, folder
        self.nodes: dict[int, subprocess.Popen] = {}
        self.life = dict.fromkeys(range(GROUPS), 0)
        self.lighthouse = subprocess.Popen(
            [os.path.join(os.path.dirname(sys.executable), "torchft_lighthouse"), "--bind", f"127.0.0.1:{PORT}", "--min_replicas", str(settings.get("min_replicas", 2)),
             "--join_timeout_ms", str(settings["join_ms"]), "--quorum_tick_ms", str(settings["tick_ms"]),
             "--heartbeat_timeout_ms", str(settings["hb_timeout_ms"])],
            stdout=open(f"{folder}/lighthouse", "w"), stderr=subprocess.STDOUT)  # fmt: skip

    def start(self, group: int) -> float:
        self.life[group] += 1
        settings = self.settings | {
            "group": group, "groups": GROUPS, "lighthouse": f"http://127.0.0.1:{PORT}", "log": self.log(group),
            "gate": f"{self.folder}/gate" if self.life[group] == 1 else "",
        }  # fmt: skip
        nice = ["nice", "-n", "-15"] if self.life[group] > 1 and os.getuid() == 0 else []
        self.nodes[group] = subprocess.Popen(
            [*nice, sys.executable, f"{HERE}/torchft_node.py", json.dumps(settings)],
            stdout=open(f"{self.folder}/{group}.out", "a"), stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
        return time.monotonic()

    def log(self, group: int) -> str:
        return f"{self.folder}/{group}.{self.life[group]}"

    def commits(self, group: int) -> list[tuple[float, int]]:
        """Times of the committed steps, and the groups that took part."""
        if not os.path.exists(self.log(group)):
            return []
        rows = [line.split() for line in open(self.log(group)).read().split("\n")[:-1]]
        return [(float(r[1]), int(r[3])) for r in rows if r[0] == "step" and r[2] == "1"]

    def wait(self, ready) -> None:
        end = time.monotonic() + 150
        while not ready():
            for group, p in self.nodes.items():
                if p.poll() is not None:
                    raise SystemExit(f"group {group} ended by itself: {open(f'{self.folder}/{group}.out').read()[-1500:]}")
            if time.monotonic() > end:
                raise SystemExit("nothing happened for 150 s")
            time.sleep(0.02)

    def heals(self, group: int) -> int:
        return sum(line.startswith("heal ") for line in open(self.log(group)))

    def quiet(self, since: float) -> list[float]:
        out: list[float] = []
        for group in self.nodes:
            at = [t for t, _ in self.commits(group) if t > since]
            out += [b - a for a, b in zip(at, at[1:])]
        return out

    def end(self) -> None:
        for p in [*self.nodes.values(), self.lighthouse]:
            p.kill()
            p.wait()


def strike(job: Job, rng: random.Random) -> tuple[list[float], list[float], list[float], int]:
    victim = rng.randrange(GROUPS)
    survivors = [g for g in range(GROUPS) if g != victim]
    healed = sum(job.heals(g) for g in survivors)
    killed = time.monotonic()
    job.nodes[victim].send_signal(signal.SIGKILL)
    job.nodes.pop(victim).wait()

    def after(group: int) -> list[float]:
        return [t for t, took_part in job.commits(group) if t > killed and took_part == GROUPS - 1]

    job.wait(lambda: all(after(g) for g in survivors))
    recover = [after(g)[0] - killed for g in survivors]
    first = [min(t for t, took_part in job.commits(g) if t > killed and took_part < GROUPS) - killed for g in survivors]
    time.sleep(0.3)
    started = job.start(victim)

    def whole(group: int) -> list[float]:
        return [t - started for t, took_part in job.commits(group) if t > started and took_part == GROUPS]

    job.wait(lambda: all(whole(g) for g in range(GROUPS)))
    rejoin = [whole(g)[0] for g in range(GROUPS)]
    time.sleep(0.5)  # who needs the state asks for it in the next steps
    return recover, first, rejoin, sum(job.heals(g) for g in survivors) - healed


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything that was started is ended
    kills = int(sys.argv[1])
    settings = TUNED | {k: int(v) for k, v in (a.split("=") for a in sys.argv[2:])}
    rng = random.Random(1)
    recover, first, rejoin, heals, step = [], [], [], 0, []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        job = Job(settings, folder)
        try:
            for group in range(GROUPS):
                job.start(group)
            job.wait(lambda: all(sum(n == GROUPS for _, n in job.commits(g)) > 30 for g in range(GROUPS)))
            since = time.monotonic()
            if not kills:
                job.wait(lambda: all(sum(t > since for t, _ in job.commits(g)) > 300 for g in range(GROUPS)))
                step = job.quiet(since)
            for _ in range(kills):
                since = time.monotonic()
                time.sleep(1.0 + rng.random())
                step += job.quiet(since)
                r, f, j, h = strike(job, rng)
                recover, first, rejoin, heals = recover + r, first + f, rejoin + j, heals + h
        finally:
            job.end()
    versions = [d for d in importlib.metadata.distributions() if d.name.lower() in ("torchft", "torchft-nightly")]
    version = ", ".join(f"{d.name} {d.version}" for d in versions)
    told = {"recover": recover, "first": first, "rejoin": rejoin, "heals": heals, "step": step}
    print("RESULT", json.dumps({"version": version, "settings": settings} | told))


if __name__ == "__main__":
    main()
