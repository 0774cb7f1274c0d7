# SPDX-License-Identifier: Apache-2.0
"""Measures training with PyTorch through failures, ours and others in one run, and writes torch.md and torch.json.

usage: bench.py --phalanx BINARY --commit NAME [--out DIR] [--quick] [--only PART,PART] (see --help)
Run it by scripts/bench-torch.sh, with a python that has torch and torchft. Every part is written as soon as it is done, so a run that
is cut off leaves what it has.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import page
from job import FOREVER, ROOT, Strike, job, strike

RANKS = 4
RIVALS = ROOT / "scripts" / "rivals"
DEFAULTS = ["join_ms=60000", "tick_ms=100", "hb_timeout_ms=5000", "hb_interval_ms=100", "timeout=60", "quorum_timeout=60", "connect_timeout=60"]
REDUCE = re.compile(r"^ *(\d+) +(\d+)" + 3 * r" +([\d.]+) \(([\d.]+)-([\d.]+)\)")
BIT_STEPS = 300  # at 10 a second, so that a killed trainer is back long before the end


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.phalanx, self.quick = args.phalanx, args.quick
        self.results: dict[str, Any] = {}
        self.rng = random.Random(1)

    def count(self, full: int, quick: int = 1) -> int:
        return quick if self.quick else full

    # -- ours

    def ours_warm(self) -> dict[str, Any]:
        """Kills with a process that waits for each place, and with it the quiet step."""
        with job(self.phalanx, FOREVER, 12, "--nproc", str(RANKS), f"--warm={RANKS}") as j:
            return self._kills(j, self.count(16, 2), warm=True)

    def ours_cold(self) -> dict[str, Any]:
        with job(self.phalanx, FOREVER, 12, "--nproc", str(RANKS)) as j:
            return self._kills(j, self.count(4), warm=False)

    def _kills(self, j: Any, kills: int, warm: bool) -> dict[str, Any]:
        j.whole(RANKS)
        strikes: list[Strike] = []
        quiet: list[float] = []
        ready: list[float] = []
        for _ in range(kills):
            if warm and not self._ready(j):
                began = time.monotonic()
                with j.paused():
                    j.until("processes that wait for a place", lambda: self._ready(j) == RANKS, 0.2)
                ready.append(time.monotonic() - began)
            since = time.monotonic()
            time.sleep(1.0 + self.rng.random())
            quiet += j.quiet(since)
            strikes.append(strike(j, self.rng, RANKS))
        s = j.status("--explain")
        return {
            "recover": sum((x.recover for x in strikes), []),
            "full": sum((x.full for x in strikes), []),
            "full_last": [max(x.full) for x in strikes],
            "survivors_that_healed": sum(x.heals for x in strikes),
            "step": quiet,
            "ready": ready,
            "changes": [t for t in s.get("transitions") or [] if t.get("lost")],
        }

    def _ready(self, j: Any) -> int:
        return sum(bool(p.get("ready")) for p in j.status().get("warm", {}).get("processes") or [])

    def steps(self) -> dict[str, Any]:
        """Quiet steps of ours and of plain DDP, in turns. With one slot a rank both compute one forward a step."""
        steps = self.count(300, 50)
        rounds: list[dict[str, Any]] = []
        for _ in range(self.count(3)):
            ddp = self.rival("flat_steps.py", str(RANKS), str(steps), "ddp")["step"]
            with job(self.phalanx, FOREVER, RANKS, "--nproc", str(RANKS)) as j:
                pids = j.whole(RANKS).values()
                first = max(j.lines(p)[-1].number for p in pids) + 30
                j.until("quiet steps", lambda j=j, pids=pids, first=first: all(j.lines(p)[-1].number > first + steps for p in pids), 0.5)
                ours = []
                for p in pids:
                    at = [s.at for s in j.lines(p) if first <= s.number <= first + steps]
                    ours += [b - a for a, b in zip(at, at[1:])]
            rounds.append({"ddp": ddp, "ours": ours})
        return {"rounds": rounds}

    def bits(self) -> dict[str, Any]:
        """The digests of model and optimizer at the end of runs of the same job."""
        told: dict[str, str] = {}
        n = ["--nproc", str(RANKS)]
        with job(self.phalanx, BIT_STEPS, 12, *n) as j:
            told["undisturbed"] = j.digest()
        print("   undisturbed", flush=True)
        with job(self.phalanx, BIT_STEPS, 12, *n) as j, j.paused():
            for _ in range(2):
                strike(j, self.rng, RANKS)
            j.unpause()
            told["two trainers killed"] = j.digest()
        print("   trainers killed", flush=True)
        with job(self.phalanx, BIT_STEPS, 12, "--nproc", str(RANKS - 1), "--spares", "1") as j, j.paused():
            j.whole(RANKS - 1)
            os.kill(j.spare(), signal.SIGKILL)
            j.reach(20)
            j.unpause()
            told[f"{RANKS - 1} ranks, their spare killed"] = j.digest()
        print("   a spare killed", flush=True)
        with job(self.phalanx, BIT_STEPS, 12, *n) as j, j.paused():
            for want in (3, 2, 4):
                j.whole(RANKS if want == 3 else want + 1 if want == 2 else 2)
                j.resize(want)
            j.whole(RANKS)
            j.unpause()
            told["resized 4, 3, 2, 4"] = j.digest()
        return {"steps": BIT_STEPS, "digests": told}

    # -- others

    def rival(self, script: str, *args: str) -> dict[str, Any]:
        """The JSON object of the last line of a script. What it has started ends with it."""
        p = subprocess.Popen(
            [sys.executable, str(RIVALS / script), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, err = p.communicate(timeout=300)
        finally:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        last = out.strip().split("\n")[-1]
        if p.returncode or not last.startswith("RESULT "):
            raise SystemExit(f"{script}: exit {p.returncode}: {out[-1500:]}{err[-1500:]}")
        return json.loads(last.removeprefix("RESULT "))

    def reduce(self) -> dict[str, Any]:
        script = ROOT / "scripts" / "bench-torch-allreduce.py"
        done = subprocess.run(
            [sys.executable, str(script), "--seconds", "0.2" if self.quick else "1.5"], env=os.environ | {"PHALANX_BINARY": self.phalanx, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=400)  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{script.name}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        rows = []
        for line in done.stdout.split("\n"):
            if m := REDUCE.match(line):
                v = [float(x) for x in m.groups()]
                rows.append({"ranks": int(v[0]), "bytes": int(v[1]), "anywhere_ms": v[2:5], "segment_ms": v[5:8], "gloo_ms": v[8:11]})
        if not rows:
            raise SystemExit(f"{script.name} said nothing: {done.stdout[-1500:]}")
        return {"rows": rows}

    def torchft_bits(self) -> dict[str, Any]:
        return {"runs": [self.rival("torchft_bits.py", victim) for victim in ("none", "active", "spare")[: self.count(3, 2)]]}

    def parts(self) -> list[tuple[str, str, Callable[[], dict[str, Any]]]]:
        return [
            ("warm", "ours, kills with processes started ahead", self.ours_warm),
            ("torchft", "torchft, tuned, kills", lambda: self.rival("torchft_kills.py", str(self.count(7)))),
            ("steps", "quiet steps of ours and of DDP in turns", self.steps),
            ("reconfigure", "gloo's reconfigure with an oracle, kills", lambda: self.rival("reconfigure_kills.py", str(self.count(8)))),
            ("reduce", "all-reduce, ours and gloo in turns", self.reduce),
            ("cold", "ours, kills without processes started ahead", self.ours_cold),
            ("torchrun", "torchrun, kills", lambda: self.rival("torchrun_kills.py", str(self.count(2)))),
            ("bits", "bits of ours", self.bits),
            ("torchft_bits", "bits of torchft", self.torchft_bits),
            ("torchft_defaults", "torchft with its defaults, a kill", lambda: self.rival("torchft_kills.py", "1", *DEFAULTS)),
        ]


def rounded(value: Any) -> Any:
    """Seconds to the microsecond: what is beyond is noise, and makes up most of a file."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return {k: rounded(v) for k, v in value.items()} if isinstance(value, dict) else value


def store(out: Path, r: dict[str, Any]) -> None:
    """Writes both files; the JSON has a line for each part's results."""
    r["aims"] = page.aims(r["results"])
    head = json.dumps({k: v for k, v in r.items() if k != "results"}, indent=1).rstrip("}\n")
    results = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rounded(v))}" for name, v in r["results"].items())
    (out / "torch.json").write_text(f'{head},\n "results": {{\n{results}\n }}\n}}\n')
    (out / "torch.md").write_text(page.write(r))


def load() -> str:
    words = Path("/proc/loadavg").read_text().split()
    return f"{words[0]} ({words[3]} threads)"


def fact(file: str, name: str, sign: str) -> str:
    for line in Path(file).read_text().split("\n"):
        key, _, value = line.partition(sign)
        if key.strip() == name:
            return value.strip().strip('"')
    return "unknown"


def machine(commit: str) -> dict[str, str]:
    import torch

    return {
        "CPU": f"{fact('/proc/cpuinfo', 'model name', ':')}, {os.cpu_count()} cores, {fact('/proc/meminfo', 'MemTotal', ':')}",
        "system": f"{fact('/etc/os-release', 'PRETTY_NAME', '=')}, Linux {os.uname().release}, {'root' if os.getuid() == 0 else 'not root'}",
        "commit": commit,
        "python, torch": f"{sys.version.split()[0]}, {torch.__version__}",
        "load before": load(),
    }


def leave(*_: object) -> None:
    """Ends the program once, so that everything that was started is ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--phalanx", required=True, help="the program to measure")
    p.add_argument("--commit", default="unknown")
    p.add_argument("--out", default=str(ROOT / "docs" / "benchmarks"), type=Path)
    p.add_argument("--quick", action="store_true", help="small counts, which show that it works and mean nothing")
    p.add_argument("--only", help="parts, with commas; the others stay as OUT/torch.json has them")
    p.add_argument("--seconds", type=float, default=3600, help="parts that would begin later than this are left out")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, leave)
    a.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(a)
    parts = bench.parts()
    names = [name for name, _, _ in parts]
    wanted = a.only.split(",") if a.only else names
    if unknown := sorted(set(wanted) - set(names)):
        p.error(f"no parts {unknown}; there are {', '.join(names)}")
    stored = a.out / "torch.json"
    old = json.loads(stored.read_text()) if a.only and stored.exists() else {}
    r: dict[str, Any] = {
        "machine": machine(a.commit), "quick": a.quick, "began": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M}",
        "note": old.get("note", ""), "parts": [t for t in old.get("parts", []) if t["part"] not in wanted], "failed": {}, "results": old.get("results", {}),
    }  # fmt: skip
    began = time.monotonic()
    for name, title, measure in parts:
        if name not in wanted:
            continue
        if time.monotonic() - began > a.seconds:
            r["failed"][name] = f"not begun: {a.seconds:.0f} s were over"
            continue
        print(title, flush=True)
        start = time.monotonic()
        r["results"].pop(name, None)
        try:
            r["results"][name] = measure()
        except (SystemExit, subprocess.TimeoutExpired) as e:
            if isinstance(e, SystemExit) and not isinstance(e.code, str):
                raise
            r["failed"][name] = str(e)
            print(f"   failed: {e}", flush=True)
        r["parts"].append({"part": name, "title": title, "seconds": round(time.monotonic() - start, 1), "load": load()})
        print(f"   {time.monotonic() - start:.0f} s", flush=True)
        store(a.out, r)
    store(a.out, r)
    for aim in r.get("aims", []):
        print(f"{'met' if aim['met'] else 'MISSED':7} {aim['what']}: {aim['value']}, aim {aim['aim']}")
    return 1 if r["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
