"""The suites joint and plain: gains of the product's parts over each other, over the plain form, and over `jax.jit`.

    jax           `jax.jit` of the function, weights as arguments.
    plain         `optimize(search=False)`: the program's own form with every region a kernel, built at once.
    product       `optimize`.
    no_rewrites   `optimize(rules=[])`.
    no_kernels    `optimize(kernels=False)`.

Each case runs in a process of its own, and each of its programs is built with an empty cache and nothing compiled.  A
later one that found the kernels, proofs and executables of the product on disk had 20 of 60 s more for its search
(DenseNet-121).  The programs are timed interleaved in one run, in short rounds of random order, plain a second time for
the noise floor.  Rounds are added while an interval contains a ratio that decides.  All are compared with a float64
evaluation, and ours with `jax.jit`, on the same inputs.  The suite plain has the first three; joint has all, and
reports the error of the product's predictions of its finalists.

    superopt bench --suite joint [--case NAME ...] [--json]     30 s for each search, 60 s for those of whole networks
    superopt bench --suite plain [--case NAME ...] [--json]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from superopt.contest.checks import OriginalRuns
from superopt.frontends.jax.jaxpr import import_function
from superopt.lab.bench import Result, Say, geomean, in_own_process, table_with_summary, wanted
from superopt.lab.bench.core import CASES as CORE
from superopt.lab.bench.core import LIGHT
from superopt.lab.bench.programs.programs import build_case
from superopt.lab.bench.timing import median, until_decided
from superopt.lab.training.metrics import kendall_tau
from superopt.machine.budget import parse_budget
from superopt.measure.numerics import Tolerance, output_errors
from superopt.measure.stats import paired_ratio
from superopt.pipeline.optimizer import optimize
from superopt.report.data import JudgedFinalist

WHOLE = ("bert_base", "gpt2_prefill", "vit_b16", "mobilenet_v2", "efficientnet_b0", "convnext_tiny")
BLOCKS = ("inception_block", "llama_decode", "linear_attention_encoder", "unet_block")
SYNTHETIC = ("linear_attention", "low_rank_chain")  # gains of tens that one rule makes: left out of `networks_vs_plain`
DEEP, ONE_LAYER = "bert_base", "bert_one_layer"  # the second for its ratio to the first alone: no figure else has it
PLAIN_CASES = (*WHOLE, *CORE)
CASES = (*PLAIN_CASES, *BLOCKS)
NETWORKS = (*WHOLE, *LIGHT)
BUDGET, NETWORK_BUDGET = "30s", "60s"
LATE = 1.15  # factor over the budget above which a call took too long
OPTIONS: dict[str, dict[str, Any]] = {
    "product": {}, "plain": {"search": False}, "no_rewrites": {"rules": []}, "no_kernels": {"kernels": False}
}  # fmt: skip
"""Programs of a case by the options of `optimize` that build them, in the order of joint."""
OTHERS = ("plain", "no_rewrites", "no_kernels")  # programs that the product must not be slower than
SEPARATE = {"bert": "bert_base", "gpt2": "gpt2_prefill"}  # cases with a line of their own in the summary of plain
LARGEST = 2  # cases that may take longer to build; the seconds of the next one are reported too
NOT_SLOWER_THAN_OURS, NOT_SLOWER_THAN_JAX = 0.97, 0.98
ROUNDS, MOST_ROUNDS = 21, 105
_SAMPLE_S = 0.04
_TIMEOUT_S = 1800.0


def _ratio(key: str, title: str, spec: str) -> tuple[tuple[str, str, str], ...]:
    """The columns of a ratio and of the ends of its interval."""
    return (key, title, spec), (f"{key}_low", "low", spec), (f"{key}_high", "high", spec)


_PLAIN_COLUMNS = (
    ("case", "program", ""),
    ("jax_ms", "jax ms", ".3g"),
    ("plain_ms", "plain ms", ".3g"),
    ("product_ms", "product ms", ".3g"),
    ("plain_vs_jax", "plain over jax", ".2f"),
    *_ratio("vs_jax", "product over jax", ".2f"),
    *_ratio("over_plain", "product over plain", ".3f"),
    ("noise_floor", "noise floor", ".3f"),
    ("proposals", "proposals", ",d"),
    ("proposals_per_second", "proposals/s", ",.0f"),
    ("plain_seconds", "plain s", ".1f"),
    ("product_seconds", "product s", ".1f"),
    ("jax_vs_f64", "jax vs f64", ".1e"),
    ("plain_vs_f64", "plain vs f64", ".1e"),
    ("product_vs_f64", "product vs f64", ".1e"),
)
_COLUMNS = (
    ("case", "program", ""),
    *((f"{name}_ms", f"{name.replace('_', ' ')} ms", ".3g") for name in ("jax", *OPTIONS)),
    *_ratio("vs_jax", "product over jax", ".2f"),
    *(column for name in OTHERS for column in _ratio(f"over_{name}", f"over {name.replace('_', ' ')}", ".3f")),
    ("noise_floor", "noise floor", ".3f"),
    ("proposals", "proposals", ",d"),
    ("proposals_per_second", "proposals/s", ",.0f"),
    *((f"{name}_seconds", f"{name.replace('_', ' ')} s", ".1f") for name in OPTIONS),
    ("over_budget", "over budget", "d"),
    ("tau", "tau", ".2f"),
    ("tau_apart", "tau of pairs apart", ".2f"),
    ("regret", "regret", ".3f"),
    ("program_error", "program error", ".3f"),
    *((f"{name}_vs_f64", f"{name.replace('_', ' ')} vs f64", ".1e") for name in ("jax", "product")),
)


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Measure every case of joint that `cases` names (parts of names; all if empty), with all alternatives."""
    rows: list[dict[str, Any]] = []
    for case in (*CASES, ONE_LAYER):
        if wanted(case, cases):
            given = budget or (NETWORK_BUDGET if case in NETWORKS else BUDGET)
            rows.append(_row(case, given, seed, tuple(OPTIONS), say))
    summary = summarise(rows)
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def run_plain(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Measure every case of plain that `cases` names: the plain candidate and the product."""
    names = ("plain", "product")
    rows = [_row(case, budget, seed, names, say) for case in PLAIN_CASES if wanted(case, cases)]
    summary = summarise_plain(rows)
    return rows, summary, table_with_summary(rows, _PLAIN_COLUMNS, summary)


def _row(case: str, budget: str, seed: int, names: Sequence[str], say: Say) -> dict[str, Any]:
    row = in_own_process("superopt.lab.bench.joint", case, budget, seed, _TIMEOUT_S, flags=names)
    if "failure" in row:
        say(f"{case}: failed: {row['failure']}")
    else:
        built = (f"{name} {row[f'{name}_ms']:.3g} ms in {row[f'{name}_seconds']:.1f} s" for name in names)
        say(f"{case}: jax {row['jax_ms']:.3g} ms, {', '.join(built)}, product {row['vs_jax']:.2f}x")
    return row


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Gains over the alternatives, accuracy of predictions, and failures; figures that no case has are left out."""
    measured = {row["case"]: row for row in rows if "failure" not in row}
    good = [row for case, row in measured.items() if case != ONE_LAYER]

    def mean_gain(key: str) -> float:
        return geomean([row[key] for row in good])

    def known(key: str) -> list[float]:
        return [row[key] for row in good if row[key] is not None]

    summary = searched(good) | {
        "geomean_vs_plain": mean_gain("over_plain"),
        "geomean_vs_no_rewrites": mean_gain("over_no_rewrites"),
        "min_vs_alternatives": min((row[f"over_{name}"] for row in good for name in OTHERS), default=0.0),
        "geomean_vs_jax": mean_gain("vs_jax"),
        "core_vs_jax": geomean([row["vs_jax"] for row in good if row["case"] in CORE]),
    }
    if taus := known("tau"):
        summary["tau_finalists"] = sum(taus) / len(taus)
    if taus := known("tau_apart"):
        summary["tau_finalists_apart"] = sum(taus) / len(taus)
    if regrets := known("regret"):
        summary["pick_regret"] = sum(regrets) / len(regrets)
    if wrong := known("program_error"):
        summary["program_error"] = median(wrong)
    summary["over_budget"] = float(sum(row["over_budget"] for row in good))
    if DEEP in measured and ONE_LAYER in measured:
        summary["deep_over_one"] = measured[DEEP]["vs_jax"] / measured[ONE_LAYER]["vs_jax"]
    return summary | {
        "noise_floor": max((row["noise_floor"] for row in good), default=0.0),
        "failed": float(len(rows) - len(measured)),
    }


def searched(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Gains over plain of all but `SYNTHETIC`, and the fewest proposals of a search of a whole network."""
    gains = [row["over_plain"] for row in rows if row["case"] not in SYNTHETIC]
    networks = [row for row in rows if row["case"] in NETWORKS]
    return {
        "networks_vs_plain": geomean(gains),
        "median_vs_plain": median(gains) if gains else 0.0,
        "min_proposals": min((row["proposals"] for row in networks), default=0.0),
        "proposals_per_second": min((row["proposals_per_second"] for row in networks), default=0.0),
    }


def summarise_plain(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Least ratios over plain and over jax, the mean over the core programs, seconds, and failures."""
    good = [row for row in rows if "failure" not in row]
    ratios = {row["case"]: row["vs_jax"] for row in good}
    seconds = sorted((row["plain_seconds"] for row in good), reverse=True)
    summary = searched(good) | {
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


def measure_case(case: str, budget: str, seed: int, names: Sequence[str]) -> dict[str, Any]:
    """Build the programs of a case with these names of `OPTIONS` here, in this order; check and time them."""
    net = build_case(case, seed)
    params, inputs = jax.device_put((net.params, net.inputs))
    jax.block_until_ready(params)
    jitted = jax.jit(net.fn)
    calls: dict[str, Callable[[], Any]] = {"jax": lambda: jitted(params, *inputs)}
    row: dict[str, Any] = {"case": case}
    for name in names:
        options = OPTIONS[name] if name == "plain" else {**OPTIONS[name], "budget": budget}
        jax.clear_caches()
        with tempfile.TemporaryDirectory(prefix="superopt-bench-") as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            begin = time.perf_counter()
            built = optimize(net.fn, net.params, *net.inputs, frozen=0, seed=seed, store=False, **options)
            row[f"{name}_seconds"] = time.perf_counter() - begin
        row[name] = {
            "verdict": built.report.verdict,
            "kernels": dict(built.report.implementation),
            "stages": {stage.name: round(stage.seconds, 2) for stage in built.report.stages},
        }
        if name == "product":
            row |= agreement(built.report.finalists) | {"predicted_ms": built.report.predicted_ms}
            tried, spent_s = (built.report.search.get(key, 0) for key in ("proposals", "seconds"))
            row |= {"proposals": tried, "proposals_per_second": tried / spent_s if spent_s else 0.0}
        calls[name] = partial(built, params, *inputs)
    limit_s = parse_budget(budget).seconds
    row["over_budget"] = limit_s is not None and row["product_seconds"] > LATE * limit_s
    row |= errors(net, {name: call() for name, call in calls.items()})
    row |= timed(calls, seed)
    told_ms, product_ms = row["predicted_ms"], row["product_ms"]
    return row | {"program_error": None if told_ms is None else abs(told_ms - product_ms) / product_ms}


def agreement(finalists: Sequence[JudgedFinalist]) -> dict[str, Any]:
    """Agreement between predictions of the built programs and their measured speed-ups over the original.

    Returns:
        A mapping.  `candidates` have both times (no prediction: None).  `tau` is Kendall's tau-b of those with a
        prediction (None for fewer than two; 0 where all predictions are equal).  `tau_apart` is the same over the pairs
        whose intervals do not overlap (None where all do).  `regret` is the time of the pick by prediction over the
        least of all candidates, less 1 (the mean over equal predictions; None without a prediction).
    """
    built = [(f, f.ratio) for f in finalists if f.measured_ms is not None and f.ratio is not None]
    known = [(f.predicted_ms, 1.0 / r.ratio, r.low, r.high) for f, r in built if f.predicted_ms is not None]
    tau = apart = regret = None
    if known:
        predicted, measured, low, high = np.array(known).T
        regret = float(measured[predicted == predicted.min()].mean()) * max(r.ratio for _, r in built) - 1.0
        if len(known) > 1:
            tau = kendall_tau(predicted, measured) if np.ptp(predicted) > 0 else 0.0
        i, j = np.triu_indices(len(known), 1)
        told = (low[i] > high[j]) | (low[j] > high[i])
        if told.any():
            order = np.sign(predicted[i] - predicted[j]) * np.sign(measured[i] - measured[j])
            apart = float(order[told].mean())
    candidates = [{"name": f.name, "predicted_ms": f.predicted_ms, "measured_ms": f.measured_ms} for f, _ in built]
    return {"candidates": candidates, "tau": tau, "tau_apart": apart, "regret": regret}


def errors(net: Any, results: Mapping[str, Any]) -> dict[str, Any]:
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
    truth = OriginalRuns.of(imported).truth
    figures: dict[str, Any] = {}
    for name, got in arrays.items():
        apart = output_errors(truth, [x.astype(t.dtype) for x, t in zip(got, truth, strict=True)]) if truth else ()
        figures[f"{name}_vs_f64"] = max((e.normwise for e in apart), default=None)
    return figures


def timed(calls: Mapping[str, Callable[[], Any]], seed: int) -> dict[str, Any]:
    """Milliseconds and paired ratios of interleaved rounds, until the ratios that decide are outside the intervals.

    The deciding ratios are those of the product to `jax` and to each of `OTHERS` that is present; plain is timed twice.
    """
    bars = [("jax", "product", NOT_SLOWER_THAN_JAX)]
    bars += [(name, "product", NOT_SLOWER_THAN_OURS) for name in OTHERS if name in calls]
    samples, ratios = until_decided(
        {**calls, "again": calls["plain"]}, bars,
        rounds=ROUNDS, most_rounds=MOST_ROUNDS, sample_s=_SAMPLE_S, seed=seed,
    )  # fmt: skip
    figures: dict[str, Any] = {f"{name}_ms": 1e3 * median(samples[name]) for name in calls}
    for (base, _, _), ratio in zip(bars, ratios, strict=True):
        key = "vs_jax" if base == "jax" else f"over_{base}"
        figures |= {key: ratio.ratio, f"{key}_low": ratio.low, f"{key}_high": ratio.high}
    return figures | {
        "plain_vs_jax": paired_ratio(samples["jax"], samples["plain"], seed=seed).ratio,
        "noise_floor": paired_ratio(samples["plain"], samples["again"], seed=seed).noise,
        "rounds": len(samples["jax"]),
    }


if __name__ == "__main__":
    print(json.dumps(measure_case(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]), default=str))
