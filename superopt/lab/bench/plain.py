"""The plain suite: what does the search add to the program's own form with every region a kernel, and to `jax.jit`?

    jax       `jax.jit` of the function, weights as arguments
    plain     `optimize(search=False)`: built at once, as a compiler would
    product   `optimize` with the budget of the suite (30 s)

Each case runs in a process of its own with an empty cache.  Its three programs are timed interleaved in one run, in
short rounds of random order, plain a second time for the noise floor; rounds are added while an interval holds a ratio
that decides.  All three are compared with a float64 evaluation, and both of ours with `jax.jit`, on the same inputs.

    superopt bench --suite plain [--case NAME ...] [--json]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from superopt.contest.checks import Builds
from superopt.frontends.jax.jaxpr import import_function
from superopt.lab.bench import Result, Say, geomean, in_own_process, told, wanted
from superopt.lab.bench.core import CASES as CORE
from superopt.lab.bench.programs.programs import build_case
from superopt.lab.bench.timing import median, until_decided
from superopt.measure.numerics import Tolerance, output_errors
from superopt.measure.stats import paired_ratio
from superopt.pipeline.optimizer import optimize

WHOLE = ("bert_base", "gpt2_prefill", "vit_b16", "mobilenet_v2", "efficientnet_b0", "convnext_tiny")
CASES = (*WHOLE, *CORE)
SEPARATE = {"bert": "bert_base", "gpt2": "gpt2_prefill"}  # cases with a line of their own in the summary
LARGEST = 2  # of the cases may take longer to build: the seconds of the one after them are told too
NOT_SLOWER_THAN_PLAIN, NOT_SLOWER_THAN_JAX = 0.97, 0.98
ROUNDS, MOST_ROUNDS = 21, 105
_SAMPLE_S = 0.04
_TIMEOUT_S = 900.0
_COLUMNS = (
    ("case", "program", ""),
    ("jax_ms", "jax ms", ".3g"),
    ("plain_ms", "plain ms", ".3g"),
    ("product_ms", "product ms", ".3g"),
    ("plain_vs_jax", "plain over jax", ".2f"),
    ("vs_jax", "product over jax", ".2f"),
    ("vs_jax_low", "low", ".2f"),
    ("vs_jax_high", "high", ".2f"),
    ("over_plain", "product over plain", ".3f"),
    ("over_plain_low", "low", ".3f"),
    ("over_plain_high", "high", ".3f"),
    ("noise_floor", "noise floor", ".3f"),
    ("plain_seconds", "plain s", ".1f"),
    ("product_seconds", "product s", ".1f"),
    ("jax_vs_f64", "jax vs f64", ".1e"),
    ("plain_vs_f64", "plain vs f64", ".1e"),
    ("product_vs_f64", "product vs f64", ".1e"),
)


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Measure every case named by `cases` (parts of names; all if empty)."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if not wanted(case, cases):
            continue
        with tempfile.TemporaryDirectory(prefix="superopt-bench-") as cache:
            row = in_own_process(
                "superopt.lab.bench.plain", case, budget, seed, _TIMEOUT_S, environment={"XDG_CACHE_HOME": cache}
            )
        rows.append(row)
        if "failure" in row:
            say(f"{case}: failed: {row['failure']}")
        else:
            plain = f"plain {row['plain_vs_jax']:.2f}x in {row['plain_seconds']:.1f} s"
            product = f"product {row['vs_jax']:.2f}x in {row['product_seconds']:.1f} s"
            say(f"{case}: jax {row['jax_ms']:.3g} ms, {plain}, {product}, {row['over_plain']:.3f} over plain")
    summary = summarise(rows)
    return rows, summary, told(rows, _COLUMNS, summary)


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Least ratios over plain and over jax, the mean over the core programs, seconds, and what failed."""
    good = [row for row in rows if "failure" not in row]
    ratios = {row["case"]: row["vs_jax"] for row in good}
    seconds = sorted((row["plain_seconds"] for row in good), reverse=True)
    summary = {
        "min_over_plain": min((row["over_plain"] for row in good), default=0.0),
        "min_vs_jax": min(ratios.values(), default=0.0),
        "min_plain_vs_jax": min((row["plain_vs_jax"] for row in good), default=0.0),
        "geomean_vs_jax": geomean([ratios[case] for case in CORE if case in ratios]),
        "geomean_plain_vs_jax": geomean([row["plain_vs_jax"] for row in good if row["case"] in CORE]),
    }
    summary |= {name: ratios[case] for name, case in SEPARATE.items() if case in ratios}
    return summary | {
        "plain_seconds": max(seconds, default=0.0),
        "plain_seconds_but_largest": seconds[LARGEST] if len(seconds) > LARGEST else 0.0,
        "product_seconds": max((row["product_seconds"] for row in good), default=0.0),
        "noise_floor": max((row["noise_floor"] for row in good), default=0.0),
        "max_vs_f64": max((row["product_vs_f64"] or 0.0 for row in good), default=0.0),
        "failed": float(len(rows) - len(good)),
    }


def measure_case(case: str, budget: str, seed: int) -> dict[str, Any]:
    """Build the three programs of a case in this process, check and time them."""
    net = build_case(case, seed)
    params, inputs = jax.device_put((net.params, net.inputs))
    jax.block_until_ready(params)

    def optimised(**options: Any) -> tuple[Any, float]:
        begin = time.perf_counter()
        result = optimize(net.fn, net.params, *net.inputs, frozen=0, seed=seed, store=False, **options)
        return result, time.perf_counter() - begin

    plain, plain_s = optimised(search=False)  # first: nothing that the search builds is there for it
    product, product_s = optimised(budget=budget)
    jitted = jax.jit(net.fn)
    calls = {
        "jax": lambda: jitted(params, *inputs),
        "plain": lambda: plain(params, *inputs),
        "product": lambda: product(params, *inputs),
        "again": lambda: plain(params, *inputs),
    }
    row = {"case": case, "plain_seconds": plain_s, "product_seconds": product_s}
    row |= errors(net, {name: calls[name]() for name in ("jax", "plain", "product")})
    row |= timed(calls, seed)
    for name, result in (("plain", plain), ("product", product)):
        report = result.report
        row[name] = {
            "verdict": report.verdict,
            "kernels": dict(report.implementation),
            "stages": {stage.name: round(stage.seconds, 2) for stage in report.stages},
        }
    return row


def errors(net: Any, results: dict[str, Any]) -> dict[str, Any]:
    """Distance of each program's results from a float64 evaluation, None where there is none.

    Raises:
        AssertionError: a result differs from that of `jax`.
    """
    arrays = {name: [np.asarray(x) for x in jax.tree.leaves(result)] for name, result in results.items()}
    wanted = arrays["jax"]
    for name, got in arrays.items():
        for error, x in zip(output_errors(wanted, got), wanted, strict=False):
            assert Tolerance().accepts(error, str(x.dtype)), f"{name} differs from jax by {error.normwise:.2g}"
    imported = import_function(net.fn, (net.params, *net.inputs), {}, frozen=0)
    truth = Builds.of(imported).truth
    figures: dict[str, Any] = {}
    for name, got in arrays.items():
        apart = output_errors(truth, [x.astype(t.dtype) for x, t in zip(got, truth, strict=True)]) if truth else ()
        figures[f"{name}_vs_f64"] = max((e.normwise for e in apart), default=None)
    return figures


def timed(calls: dict[str, Callable[[], Any]], seed: int) -> dict[str, Any]:
    """Milliseconds and paired ratios of interleaved rounds, until the ratios that decide are outside the intervals."""
    bars = [("plain", "product", NOT_SLOWER_THAN_PLAIN), ("jax", "product", NOT_SLOWER_THAN_JAX)]
    samples, (over_plain, vs_jax) = until_decided(
        calls, bars, rounds=ROUNDS, most_rounds=MOST_ROUNDS, sample_s=_SAMPLE_S, seed=seed
    )
    floor = paired_ratio(samples["plain"], samples["again"], seed=seed)
    figures: dict[str, Any] = {f"{name}_ms": 1e3 * median(samples[name]) for name in ("jax", "plain", "product")}
    return figures | {
        "plain_vs_jax": paired_ratio(samples["jax"], samples["plain"], seed=seed).ratio,
        "vs_jax": vs_jax.ratio,
        "vs_jax_low": vs_jax.low,
        "vs_jax_high": vs_jax.high,
        "over_plain": over_plain.ratio,
        "over_plain_low": over_plain.low,
        "over_plain_high": over_plain.high,
        "noise_floor": floor.noise,
        "rounds": len(samples["jax"]),
    }


if __name__ == "__main__":
    print(json.dumps(measure_case(sys.argv[1], sys.argv[2], int(sys.argv[3])), default=str))
