"""The rewrites suite: whether the search finds by itself the rewrites that an XLA expert would write by hand.

Each case is a program as a user writes it and one or more rewrites of it by hand.  The program is optimised from
itself and the rules alone, in a process of its own.  Then the original under `jax.jit`, every variant by hand and the
returned program are timed interleaved, in random order.  A case is reached in two ways:

    gain    Where the fastest variant by hand gains beyond the noise: speedup - 1 >= 0.85 x (its speedup - 1).
    loss    Otherwise: the returned program has a ratio of 0.98 at least, and the rules that amount to the variant were
            not used if the variant measures slower than the original.  They may be used in a program that is faster
            beyond the noise (a merge of two kernels in the form of Winograd is not the merge that loses).

While the interval of the returned program contains the ratio that decides, rounds are added.

`share` is the ratio of logarithms of the two speed-ups, for gains.

    superopt bench --suite rewrites [--case NAME ...] [--json]
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax

from superopt.lab.bench import NO_SEARCH, Result, Say, geomean, in_own_process, table
from superopt.lab.bench.programs import rewrites_conv, rewrites_dense
from superopt.lab.bench.timing import NOT_SLOWER, interleaved, median
from superopt.machine.speedup import Speedup
from superopt.measure.stats import paired_ratio
from superopt.pipeline.optimizer import optimize

PART = 0.85
LEAST_GAIN = 1.05  # a hand-made gain under this, or within the noise, is none
_ROUNDS, _MOST_ROUNDS = 31, 155
_SAMPLE_S = 0.02
_TIMEOUT_S = 300.0
_COLUMNS = (
    ("case", "case", ""),
    ("before_ms", "before ms", ".3g"),
    ("hand", "fastest by hand", ""),
    ("hand_ratio", "gain by hand", ".2f"),
    ("ratio", "gain found", ".2f"),
    ("low", "low", ".2f"),
    ("high", "high", ".2f"),
    ("share", "share", ".2f"),
    ("reached", "reached", ""),
    ("seconds", "seconds", ".0f"),
    ("used", "rules", ""),
)


def names() -> tuple[str, ...]:
    """The cases in the order in which they run."""

    return (*rewrites_conv.CASES, *rewrites_dense.CASES)


def build_case(name: str) -> Any:
    """A case at full size."""
    return (rewrites_conv.CASES | rewrites_dense.CASES)[name]()


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say, search: bool = True) -> Result:
    """Optimise and measure every case named by `cases` (a name, or a part of names); the budget is per case."""
    rows: list[dict[str, Any]] = []
    flags = () if search else (NO_SEARCH,)
    for case in chosen(names(), cases):
        row = in_own_process("superopt.lab.bench.rewrites", case, budget, seed, _TIMEOUT_S, flags=flags)
        rows.append(row)
        if "failure" in row:
            say(f"{case}: failed: {row['failure']}")
        else:
            verdict = "reached" if row["reached"] else "not reached"
            say(f"{case}: by hand {row['hand_ratio']:.2f}x ({row['hand']}), found {row['ratio']:.2f}x: {verdict}")
    return rows, summarise(rows), table(rows, _COLUMNS)


def chosen(known: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Cases that a list selects: whole names where there are such, else parts of names; all for an empty list."""
    if not wanted:
        return list(known)
    return [case for case in known if any(text == case or (text not in known and text in case) for text in wanted)]


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Counts of reached cases, and smallest shares of the hand-made gain."""
    good = [row for row in rows if "failure" not in row]
    shares = [row["share"] for row in good if row["share"] is not None]
    return {
        "cases": float(len(rows)),
        "reached": float(sum(row["reached"] for row in good)),
        "gains": float(len(shares)),
        "min_share": min(shares, default=0.0),
        "min_speedup": min((row["ratio"] for row in good), default=0.0),
        "geomean_speedup": geomean([row["ratio"] for row in good]),
        "geomean_by_hand": geomean([max(1.0, row["hand_ratio"]) for row in good]),
        "max_seconds": max((row["seconds"] for row in good), default=0.0),
        "failed": float(len(rows) - len(good)),
    }


def measure_case(
    case: str,
    budget: str,
    seed: int,
    search: bool = True,
    *,
    rounds: int = _ROUNDS,
    most_rounds: int = _MOST_ROUNDS,
    sample_s: float = _SAMPLE_S,
) -> dict[str, Any]:
    """Optimise one case in this process, then time it beside its variants by hand."""
    made = build_case(case)
    begin = time.perf_counter()
    result = optimize(
        made.fn, made.params, *made.inputs, frozen=0, budget=budget, seed=seed, store=False, kernels=not search,
        search=search,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    params, inputs = jax.device_put((made.params, made.inputs))
    original = jax.jit(made.fn)
    calls = [lambda: original(params, *inputs), lambda: original(params, *inputs), lambda: result(params, *inputs)]
    for variant in made.variants.values():
        calls.append(_call(jax.jit(variant.fn), jax.device_put(variant.prepare(made.params)), inputs))
    report = result.report
    rules = {used.rule: used.count for used in report.rewrites}
    samples: list[list[float]] = [[] for _ in calls]
    while True:
        block = interleaved(calls, rounds=rounds, sample_s=sample_s, seed=seed + len(samples[0]))
        samples = [old + new for old, new in zip(samples, block, strict=True)]
        before, again, after = samples[:3]
        floor = paired_ratio(before, again, seed=seed)
        noise = floor.noise
        hand = {name: paired_ratio(before, s, seed=seed) for name, s in zip(made.variants, samples[3:], strict=True)}
        verdict = judged(paired_ratio(before, after, seed=seed), hand, noise, rules, made.losing)
        if verdict["decided"] or len(before) >= most_rounds:
            break
    row = {
        "case": case,
        "before_ms": 1e3 * median(before),
        "after_ms": 1e3 * median(after),
        "noise_floor": noise,
        "rounds": len(before),
        "variants": {name: [ratio.ratio, ratio.low, ratio.high] for name, ratio in hand.items()},
        "rules": rules,
        "used": ", ".join(rules) or "(original)",
        "seconds": seconds,
        "verdict": report.verdict,
        "finalists": [
            {"name": f.name, "predicted_ms": f.predicted_ms, "measured_ms": f.measured_ms, "failure": f.failure}
            for f in report.finalists
        ],
        "growth": {k: report.growth.get(k) for k in ("stop", "enodes", "seconds")},
    }
    return row | verdict


def _call(fn: Any, prepared: Any, inputs: Any) -> Any:
    return lambda: fn(prepared, *inputs)


def judged(
    ours: Speedup, hand: dict[str, Speedup], noise: float, rules: dict[str, int], losing: Sequence[str]
) -> dict[str, Any]:
    """Whether the gain of the best variant by hand is reached, or its loss declined."""
    best = max(hand, key=lambda name: hand[name].ratio)
    by_hand = hand[best]
    gain = by_hand.ratio > max(LEAST_GAIN, 1.0 + noise) and by_hand.low > 1.0
    needed = 1.0 + PART * (by_hand.ratio - 1.0) if gain else NOT_SLOWER
    faster = ours.low > 1.0 + noise
    taken = not gain and by_hand.high < 1.0 and not faster and any(rule in rules for rule in losing)
    return {
        "kind": "gain" if gain else "loss",
        "hand": best,
        "hand_ratio": by_hand.ratio,
        "hand_low": by_hand.low,
        "hand_high": by_hand.high,
        "ratio": ours.ratio,
        "low": ours.low,
        "high": ours.high,
        "share": math.log(ours.ratio) / math.log(by_hand.ratio) if gain else None,
        "part": (ours.ratio - 1.0) / (by_hand.ratio - 1.0) if gain else None,
        "reached": ours.ratio >= needed and not taken,
        "decided": taken or not ours.low <= needed <= ours.high,
    }


if __name__ == "__main__":
    _search = NO_SEARCH not in sys.argv
    print(json.dumps(measure_case(sys.argv[1], sys.argv[2], int(sys.argv[3]), _search), default=str))
