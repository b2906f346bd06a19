"""The suite zoo: whether the search comes as near as a person to the best form of snippets of many fields.

Every snippet of `superopt.lab.corpora.zoo` has the form that a person writes at first and the best form that is known.
Both must agree with a float64 evaluation.  Both are optimised with the same budget, in a process of their own with
nothing stored, and timed interleaved with `jax.jit` of both, weights as arguments:

    self       Time of `jax.jit` of the user's form over that of ours.
    hand self  The same for the best form.
    near       Whether ours takes at most 1.15 times as long as the best form, itself optimised: `ratio`, their times.

Rounds are added while an interval holds the ratio that decides; what looks slower than itself is timed afresh.  Where
terms of the best form cancel, ours is also made with the widest class of rules (`near opt-in`).  For all other snippets
that column repeats the default class.

    superopt bench --suite zoo [--case open: | --case frozen: | --case NAME ...] [--keep FILE] [--json]
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from superopt.lab.bench import Result, Say, in_own_process, table_with_summary, wanted
from superopt.lab.bench.timing import NOT_SLOWER, median, until_decided
from superopt.lab.corpora.zoo import FROZEN, OPEN, load
from superopt.lab.corpora.zoo.snippet import Snippet, TwoForms
from superopt.machine.budget import parse_budget
from superopt.machine.speedup import Speedup
from superopt.measure.numerics import Tolerance, bound_of, output_errors
from superopt.pipeline.optimizer import optimize
from superopt.workshop.job import OutputError
from verifier.verdict import EXACTNESS

NEAR = 1.15
OPT_IN = EXACTNESS[-1]
"""The widest class of rules that there is."""
ROUNDS, MOST_ROUNDS = 15, 75
_WORST = 10  # snippets that the last line names
_SAMPLE_S = 0.02
_TIMEOUT_S = 600.0
_COLUMNS = (
    ("case", "snippet", ""),
    ("jax_ms", "jax ms", ".3g"),
    ("ours_ms", "ours ms", ".3g"),
    ("hand_ms", "best form ms", ".3g"),
    ("best_ms", "optimised ms", ".3g"),
    ("self", "self", ".2f"),
    ("hand_self", "hand self", ".2f"),
    ("ratio", "ratio", ".2f"),
    ("low", "low", ".2f"),
    ("high", "high", ".2f"),
    ("near", "near", ""),
    ("near_opt_in", "near opt-in", ""),
    ("seconds", "seconds", ".0f"),
    ("failure", "failure", ""),
)


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Measure every snippet that `cases` names (parts of names; all if empty)."""
    rows: list[dict[str, Any]] = []
    for case in load():
        if wanted(case, cases):
            limit_s = 3 * (parse_budget(budget).seconds or 0.0) + _TIMEOUT_S
            row = in_own_process("superopt.lab.bench.zoo.suite", case, budget, seed, limit_s)
            rows.append(row)
            say(f"{case}: {row['failure'] if 'failure' in row else _said(row)}")
    summary = summarise(rows)
    worst = sorted((row for row in rows if "failure" not in row), key=lambda row: row["ratio"], reverse=True)
    text = table_with_summary(rows, _COLUMNS, summary)
    return rows, summary, f"{text}\n\nfarthest: {', '.join(map(_far, worst[:_WORST]))}"


def _said(row: Mapping[str, Any]) -> str:
    times = f"{row['jax_ms']:.3g} -> {row['ours_ms']:.3g} ms, {row['ratio']:.2f} of the best form"
    return f"{times}{', near' if row['near'] else ''}{', WRONG' if row['wrong'] else ''}"


def _far(row: Mapping[str, Any]) -> str:
    return f"{row['case']} {row['ratio']:.2f}"


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Shares of near snippets under both classes, least ratios to themselves, medians; for both parts and each."""
    good = [row for row in rows if "failure" not in row]
    summary = {
        "cases": float(len(rows)),
        **_shares("", good),
        "min_vs_self": min((min(row["self"], row["hand_self"]) for row in good), default=0.0),
        "below": float(sum(row["below"] for row in good)),
        "wrong": float(sum(row["wrong"] for row in good)),
        "failed": float(len(rows) - len(good)),
    }
    for part in (OPEN, FROZEN):
        if rows_of_part := [row for row in good if row["case"].startswith(f"{part}:")]:
            summary |= {f"{part}_cases": float(len(rows_of_part)), **_shares(f"{part}_", rows_of_part)}
    return summary


def _shares(prefix: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    if not rows:
        return {}
    return {
        f"{prefix}near": sum(row["near"] for row in rows) / len(rows),
        f"{prefix}near_opt_in": sum(row["near_opt_in"] for row in rows) / len(rows),
        f"{prefix}median_self": median([row["self"] for row in rows]),
        f"{prefix}median_ratio": median([row["ratio"] for row in rows]),
    }


def measure_case(case: str, budget: str, seed: int) -> dict[str, Any]:
    """Optimise both forms of a snippet in this process, check them and time them interleaved."""
    return {"case": case, **measured(load()[case], budget, seed)}


def measured(snippet: Snippet, budget: str, seed: int) -> dict[str, Any]:
    """Figures of a snippet; see the columns of the suite."""
    forms = snippet.forms(seed)
    apart = distances(forms)
    assert max(apart.values()) <= 1, f"the forms are not equal: {apart}"
    args = jax.device_put(forms.args)
    by_jax, by_hand = jax.jit(forms.fn), jax.jit(forms.hand)
    calls: dict[str, Callable[[], Any]] = {"jax": partial(by_jax, *args), "hand": partial(by_hand, *args)}
    row: dict[str, Any] = {"cancellation": snippet.cancellation, "errors": apart}
    wanted_forms = {"ours": (forms.fn, "real"), "best": (forms.hand, "real")}
    if snippet.cancellation:
        wanted_forms["opt_in"] = (forms.fn, OPT_IN)
    for name, (fn, numerics) in wanted_forms.items():
        jax.clear_caches()
        with tempfile.TemporaryDirectory(prefix="superopt-bench-") as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            begin = time.perf_counter()
            built = optimize(
                fn, *forms.args, frozen=snippet.frozen, budget=budget, seed=seed, numerics=numerics, store=False
            )
            row[f"{name}_seconds"] = time.perf_counter() - begin
        row[f"{name}_verdict"] = built.report.verdict
        row[f"{name}_rules"] = {used.rule: used.count for used in built.report.rewrites}
        calls[name] = partial(built, *args)
    truth = _truth(forms)
    row["wrong"] = not all(_distance(truth, calls[name]()) <= 1 for name in wanted_forms)
    row["seconds"] = row["ours_seconds"]
    return row | _timed(calls, seed)


def _timed(calls: Mapping[str, Callable[[], Any]], seed: int) -> dict[str, Any]:
    bars = [("jax", "ours", NOT_SLOWER), ("hand", "best", NOT_SLOWER), ("best", "ours", 1 / NEAR)]
    if "opt_in" in calls:
        bars.append(("best", "opt_in", 1 / NEAR))

    def timed(seed: int) -> tuple[dict[str, list[float]], list[Speedup]]:
        return until_decided(calls, bars, rounds=ROUNDS, most_rounds=MOST_ROUNDS, sample_s=_SAMPLE_S, seed=seed)

    samples, ratios = timed(seed)
    if any(r.high < NOT_SLOWER for r in ratios[:2]):  # it has to be so twice
        samples, ratios = timed(seed + MOST_ROUNDS)
    own, hand, near, *opted = ratios
    return {
        **{f"{name}_ms": 1e3 * median(samples[name]) for name in calls},
        "self": own.ratio,
        "self_low": own.low,
        "self_high": own.high,
        "hand_self": hand.ratio,
        "hand_self_low": hand.low,
        "hand_self_high": hand.high,
        "below": any(r.high < NOT_SLOWER for r in (own, hand)),
        "ratio": 1 / near.ratio,
        "low": 1 / near.high,
        "high": 1 / near.low,
        "near": 1 / near.ratio <= NEAR,
        "near_opt_in": 1 / (opted[0] if opted else near).ratio <= NEAR,
        "rounds": len(samples["jax"]),
    }


def distances(forms: TwoForms) -> dict[str, float]:
    """Errors of both forms under `jax.jit` against float64, as shares of those that are accepted."""
    truth, args = _truth(forms), jax.device_put(forms.args)
    made = {"fn": forms.fn} if forms.fn is forms.hand else {"fn": forms.fn, "hand": forms.hand}
    return {name: _distance(truth, jax.jit(form)(*args)) for name, form in made.items()}


def _truth(forms: TwoForms) -> list[np.ndarray]:
    """Results of the user's form in float64, operation by operation: no compiler joins them."""
    with jax.enable_x64(True):
        return [np.asarray(x) for x in jax.tree.leaves(forms.fn(*_wide(forms.args)))]


def _wide(args: tuple[Any, ...]) -> Iterator[Any]:
    for x in args:
        yield jax.numpy.asarray(x, np.float64 if x.dtype == np.float32 else x.dtype)


def _distance(truth: Sequence[np.ndarray], results: Any) -> float:
    """The largest error of results, as a share of that which is accepted."""
    got = [np.asarray(x) for x in jax.tree.leaves(results)]
    as_wide = [x.astype(t.dtype) for x, t in zip(got, truth, strict=True)]
    return max(_share(error, str(x.dtype)) for error, x in zip(output_errors(truth, as_wide), got, strict=True))


def _share(error: OutputError, dtype: str) -> float:
    accepted, bound = Tolerance(), bound_of(dtype)
    if bound == 0.0:
        return 0.0 if error.normwise == 0.0 else math.inf
    return max(error.normwise / accepted.normwise, error.elementwise / accepted.elementwise) / bound


if __name__ == "__main__":
    print(json.dumps(measure_case(sys.argv[1], sys.argv[2], int(sys.argv[3])), default=str))
