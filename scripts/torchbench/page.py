# SPDX-License-Identifier: Apache-2.0
"""The page docs/benchmarks/torch.md, from what bench.py has measured."""

from __future__ import annotations

import math
from typing import Any

KIB, MIB = 1 << 10, 1 << 20


def quantile(values: list[float], q: float) -> float:
    """A value that occurred (nearest rank)."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def ms(seconds: float, digits: int = 1) -> str:
    return f"{1e3 * seconds:.{digits}f}"


def size(count: int) -> str:
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB"


def kills_of_ours(results: dict[str, Any], key: str) -> list[float]:
    """Of the jobs with and without processes that wait: what follows a kill is the same until the place is taken again."""
    return sum((results[part][key] for part in ("warm", "cold") if part in results), [])


def healed(results: dict[str, Any]) -> tuple[int, int]:
    """Of ours: how many survivors received state from another one, by their own account, and by the job's history."""
    own, told = 0, 0
    for part in ("warm", "cold"):
        if part in results:
            own += results[part]["survivors_that_healed"]
            told += sum(len(survivors_healing(t)) for t in results[part]["changes"])
    return own, told


def survivors_healing(change: dict[str, Any]) -> set[str]:
    """Members that heal in a change that lost others."""
    return set(change.get("healing") or []) - {x["member"] for x in change["lost"]}


def overheads(results: dict[str, Any]) -> list[float]:
    """Of each round: a mean step of ours less one of DDP, in seconds."""
    return [mean(r["ours"]) - mean(r["ddp"]) for r in results["steps"]["rounds"]]


def aims(results: dict[str, Any]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []

    def add(what: str, value: float, aim: float, unit: str, most: bool = True, digits: int = 1) -> None:
        sign = "≤" if most else "≥"
        met = value <= aim if most else value >= aim
        out.append({"what": what, "value": f"{value:.{digits}f} {unit}".strip(), "aim": f"{sign} {aim:g} {unit}".strip(), "met": met})

    if kills := kills_of_ours(results, "recover"):
        step = quantile(kills_of_ours(results, "step"), 0.5)
        n = len(kills)
        add(f"kill → next committed step of a survivor, beyond the time of a step: p50 of {n}", 1e3 * (quantile(kills, 0.5) - step), 40, "ms")
        add(f"the same: p99 of {n}", 1e3 * (quantile(kills, 0.99) - step), 150, "ms")
        add("survivors that healed because somebody else died", max(healed(results)), 0, "", digits=0)
    if "warm" in results:
        full = results["warm"]["full_last"]
        add(f"kill → full size again, last rank, a process waits: p50 of {len(full)}", quantile(full, 0.5), 0.5, "s", digits=2)
    if "bits" in results:
        told = results["bits"]["digests"]
        add("runs that end with other bits than the undisturbed one", sum(d != told["undisturbed"] for d in told.values()), 0, "", digits=0)
    if "steps" in results:
        add("a quiet step of 4 ranks beyond one of DDP: mean, median of the rounds", 1e3 * quantile(overheads(results), 0.5), 0.3, "ms", digits=2)
    for row in results.get("reduce", {}).get("rows", []):
        ranks, count = row["ranks"], row["bytes"]
        gloo = row["gloo_ms"][0]
        if ranks == 2:
            aim = 1.5 if count >= MIB else None
        else:
            aim = 3.0 if count <= MIB else 2.0
        if aim:
            add(f"all-reduce of {size(count)} by {ranks} ranks: gloo's time over ours", gloo / row["anywhere_ms"][0], aim, "×", False, 2)
        if ranks >= 4:
            add(f"the same, tensors in our segments, {size(count)} by {ranks}", gloo / row["segment_ms"][0], 3, "×", False, 2)
    return out


def line(*cells: object) -> str:
    return "| " + " | ".join(str(c) for c in cells) + " |"


def table(head: list[str], rows: list[list[object]]) -> list[str]:
    return [line(*head), line(*["---"] * len(head)), *(line(*r) for r in rows), ""]


def recovery(results: dict[str, Any]) -> list[str]:
    rows: list[list[object]] = []
    ours = kills_of_ours(results, "recover")

    def add(name: str, what: str, took: list[float], step: list[float] | None, digits: int = 1) -> None:
        times = f"{quantile(took, 0.5) / quantile(ours, 0.5):.1f}" if ours else ""
        quiet = ms(quantile(step, 0.5)) if step else "–"
        rows.append(
            [name, what, len(took), *(ms(quantile(took, q), digits) for q in (0.5, 0.99)), ms(max(took), digits), ms(min(took), digits), quiet, times]
        )

    if ours:
        add("**ours**", "a trainer", ours, kills_of_ours(results, "step"))
    if r := results.get("reconfigure"):
        add("gloo's `reconfigure`, an oracle", "a rank; nothing detects and nobody agrees: the others are told", r["recover"], r["step"])
    if r := results.get("torchft"):
        add("torchft, tuned", "a replica group, until whichever survivors commit", r["first"], r["step"])
        add("torchft, tuned", "the same, until all survivors commit together", r["recover"], r["step"])
    if r := results.get("torchft_defaults"):
        add("torchft, its defaults", "the same, one kill", r["recover"], r["step"], 0)
    if r := results.get("torchrun"):
        add("torchrun", "a worker; all start again", r["recover"], None, 0)
    if not rows:
        return []
    out = ["## A trainer is killed", ""]
    out += [
        "SIGKILL → the next committed step of each survivor, in milliseconds. Each counts the step itself; `step` is a quiet one (p50) of the same run, with four",
        "ranks.",
        "",
    ]
    out += table(["", "killed", "n", "p50", "p99", "max", "min", "step", "times ours (p50)"], rows)
    if gone := results.get("reconfigure", {}).get("survivors_that_never_went_on"):
        out += [f"On `reconfigure` {gone} survivors never went on.", ""]
    out += parts(results)
    if ours:
        out += [
            "Read with care. Nearly all of our time is the first step itself, and it is a longer one: ours computes all 192 samples of a step whoever is left, so three ranks",
            "do the work of four; torchft and `reconfigure` drop those of the dead one. Ours starts the replacement at once, whose imports or heal want a share of the same",
            "cores during that step (how much was not measured apart); with the others that begins after the measurement, or never. And ours computes twelve slots here, so",
            "that any number of ranks up to twelve can share them: three small passes a rank instead of one large one, see the quiet step below.", "",
        ]  # fmt: skip
    return out


def parts(results: dict[str, Any]) -> list[str]:
    """Where our time goes, as the job tells it."""
    told = [t["seconds"] for part in ("warm", "cold") if part in results for t in results[part]["changes"] if t.get("seconds")]
    if not told:
        return []
    names = [n for n in ("detect", "seal", "agree", "form", "heal", "first_step") if any(n in t for t in told)]
    row: list[object] = [f"{1e3 * quantile([t.get(n, 0.0) for t in told], 0.5):.1f}" for n in names]
    return [
        f"Where our time goes, by the job's own account of {len(told)} changes (p50, ms; detect begins when a daemon saw the end of its trainer):",
        "",
        *table(names, [row]),
    ]


def full_size(results: dict[str, Any]) -> list[str]:
    rows: list[list[object]] = []
    for name, took in (
        ("**ours, `--warm`**: a process with its imports done waits", results.get("warm", {}).get("full_last")),
        ("ours, without", results.get("cold", {}).get("full_last")),
        ("torchft: start of the new process → all groups commit together", results.get("torchft", {}).get("rejoin")),
        ("torchrun: all start again", results.get("torchrun", {}).get("recover")),
    ):
        if took:
            rows.append([name, len(took), *(f"{quantile(took, q):.2f}" for q in (0.5, 0.99)), f"{min(took):.2f}"])
    if not rows:
        return []
    out = [
        "## Full size again", "",
        "SIGKILL → first committed step of four ranks, of the rank that came last, in seconds. torchft has nobody who starts the new process: its time begins with that,",
        "and as root its new process imports at nice −15; ours, without `--warm`, does so at the usual priority beside three ranks that train.",
    ]  # fmt: skip
    if ready := results.get("warm", {}).get("ready"):
        out += [
            f"With `--warm` steps were slowed down between kills until four processes waited ({quantile(ready, 0.5):.0f} s for four, p50): they start at the lowest priority, and",
            "take longer on cores that are all busy.",
        ]  # fmt: skip
    return [*out, "", *table(["", "n", "p50", "max", "min"], rows)]


def heals(results: dict[str, Any]) -> list[str]:
    rows: list[list[object]] = []
    if kills := len(kills_of_ours(results, "full_last")):
        own, told = healed(results)
        rows.append(["**ours**", kills, f"{own} by the trainers' own account, {told} by `phalanx status --explain`"])
    for part, name in (("torchft", "torchft, tuned"), ("torchft_defaults", "torchft, its defaults")):
        if r := results.get(part):
            rows.append([name, len(r["recover"]) // 3, r["heals"]])
    return (
        [
            "## Survivors that heal because somebody else died",
            "",
            "How often a rank that was not killed had to receive the state from another one, from the kill until all four train again.",
            "",
            *table(["", "kills", "heals of survivors"], rows),
        ]
        if rows
        else []
    )


def steps(results: dict[str, Any]) -> list[str]:
    if "steps" not in results:
        return []
    rows: list[list[object]] = []
    for i, r in enumerate(results["steps"]["rounds"], 1):
        d, o = r["ddp"], r["ours"]
        rows.append(
            [
                i,
                len(o),
                ms(mean(d), 2),
                ms(quantile(d, 0.5), 2),
                ms(mean(o), 2),
                ms(quantile(o, 0.5), 2),
                ms(mean(o) - mean(d), 2),
                f"{mean(o) / mean(d):.2f}",
            ]
        )
    return [
        "## A step without failures", "",
        "Four ranks, a forward and backward of 48 samples each; steps of all ranks, begin to begin, in milliseconds. Plain DDP on gloo, and ours with four slots,", "in turns.", "",
        *table(["round", "n", "DDP mean", "p50", "ours mean", "p50", "difference of means", "ratio"], rows),
        *slots(results),
    ]  # fmt: skip


def slots(results: dict[str, Any]) -> list[str]:
    if not (took := kills_of_ours(results, "step")):
        return []
    few = sum((r["ours"] for r in results["steps"]["rounds"]), [])
    return [
        f"With twelve slots, as under the kills above, a step of ours takes {ms(quantile(took, 0.5))} ms (p50) instead of {ms(quantile(few, 0.5))} ms: the same samples in three times as many passes, each of which",
        "also copies and clears a gradient of 4 MiB. Slots cost little where the computation of one is long beside that.", "",
    ]  # fmt: skip


def reduce(results: dict[str, Any]) -> list[str]:
    rows: list[list[object]] = []
    for r in results.get("reduce", {}).get("rows", []):
        cells = [f"{v[0]:.3f} ({v[1]:.3f}–{v[2]:.3f})" for v in (r["gloo_ms"], r["anywhere_ms"], r["segment_ms"])]
        gloo = r["gloo_ms"][0]
        rows.append([r["ranks"], size(r["bytes"]), *cells, f"{gloo / r['anywhere_ms'][0]:.2f}", f"{gloo / r['segment_ms'][0]:.2f}"])
    if not rows:
        return []
    return [
        "## All-reduce from Python", "",
        "float32 by `dist.all_reduce` over the backend `phalanx` and over gloo, in turns in the same processes; calls of rank 0, milliseconds, p50 (p10–p90).", "",
        *table(["ranks", "size", "gloo", "ours, any tensor", "ours, `phalanx.torch.empty`", "gloo / any", "gloo / empty"], rows),
    ]  # fmt: skip


def bits(results: dict[str, Any]) -> list[str]:
    rows: list[list[object]] = []
    if b := results.get("bits"):
        want = b["digests"]["undisturbed"]
        for name, digest in b["digests"].items():
            rows.append(
                [f"ours, {b['steps']} steps: {name}", f"`{digest[:16]}`", "" if name == "undisturbed" else "yes" if digest == want else "**no**"]
            )
    if runs := results.get("torchft_bits", {}).get("runs"):
        want = runs[0]["hashes"][0]
        for r in runs:
            name = {"none": "undisturbed", "active": "an active group killed", "spare": "the spare killed"}[r["killed"]]
            same = "" if r["killed"] == "none" else "yes" if set(r["hashes"]) == {want} else "**no**"
            rows.append([f"torchft, FIXED_WITH_SPARES 3 + 1, {r['steps']} steps: {name}", f"`{r['hashes'][0][:16]}`", same])
    return (
        ["## The same bits", "", "Digest of the parameters (ours: and the optimizer) at the end.", "", *table(["", "digest", "as undisturbed"], rows)]
        if rows
        else []
    )


def write(r: dict[str, Any]) -> str:
    results = r["results"]
    out = ["# PyTorch through failures, beside others", ""]
    if r["quick"]:
        out += ["**A quick run, with small counts: it shows that the benchmark works, and its figures mean nothing.**", ""]
    seconds = sum(p["seconds"] for p in r["parts"])
    out += [
        f"Written by `make bench-torch` ({r['began']} UTC, {seconds:.0f} s); every value is in [torch.json](torch.json). Four ranks on one machine over loopback, one",
        "thread each, train the same MLP of 1.05M parameters with SGD and momentum and a global batch of 192; all clocks are CLOCK_MONOTONIC. More processes than",
        "cores: read the ratios, not the times. The scripts that drive the others are in [scripts/rivals](../../scripts/rivals), ours in",
        "[scripts/torchbench](../../scripts/torchbench).", "",
    ]  # fmt: skip
    facts = dict(r["machine"])
    if "torchft" in results:
        facts["torchft"] = results["torchft"]["version"]
        facts["torchft, tuned"] = "`" + ", ".join(f"{k}={v}" for k, v in results["torchft"]["settings"].items()) + "`"
    out += table(["", ""], [[k, v] for k, v in facts.items()])
    out += table(["part of this run", "seconds", "load at its end"], [[p["title"], f"{p['seconds']:.0f}", p["load"]] for p in r["parts"]])
    if r.get("note"):
        out += [r["note"], ""]
    for name, why in r["failed"].items():
        out += [f"**Part `{name}` has no result:** {why.strip().splitlines()[0][:300]}", ""]
    if goals := aims(results):
        out += [
            "## Aims",
            "",
            *table(["what", "measured", "aim", ""], [[a["what"], a["value"], a["aim"], "met" if a["met"] else "**missed**"] for a in goals]),
        ]
    for section in (recovery, full_size, heals, steps, reduce, bits):
        out += section(results)
    return "\n".join(out).rstrip() + "\n"
