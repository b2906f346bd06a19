"""The core suite: real networks at batch 1 in fp32, each optimised and measured in a process of its own.

The reference is `jax.jit` of the original with its weights as arguments; the ratio against `jax.jit` with the weights
baked in as constants is reported beside it.  Both are timed interleaved with the optimised program on fresh rounds,
after the search is over.  Peak memory is that of the optimising process and of its measuring worker.

    superopt bench --suite core      XLA is the only backend
    superopt bench --suite native    the same programs, with our kernels where they are faster
    superopt bench --suite native --case small_encoder      one of the programs to develop on
    superopt bench --suite loops     programs whose time goes into loops, with our kernels
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

from superopt.lab.bench import NO_SEARCH, Result, Say, geomean, in_own_process, table_with_summary
from superopt.lab.bench.programs.loops import LOOPS
from superopt.lab.bench.programs.programs import build_case
from superopt.lab.bench.timing import NOT_SLOWER, median, time_against_jit
from superopt.machine.extras import need
from superopt.pipeline.optimizer import optimize

LIGHT = ("squeezenet", "resnet50", "shufflenet", "inception_v1", "densenet121")
PROGRAMS = ("bert_layer", "inverted_residual", "linear_attention", "low_rank_chain", "lstm_step")
CASES = (*LIGHT, *PROGRAMS)
SMALL = ("small_encoder", "small_mobilenet", "small_resnet")  # of other sizes, to develop on; they run when named
_TIMEOUT_S = 900.0
_COLUMNS = (
    ("case", "program", ""),
    ("before_ms", "before ms", ".3g"),
    ("after_ms", "after ms", ".3g"),
    ("ratio", "speed-up", ".2f"),
    ("low", "low", ".2f"),
    ("high", "high", ".2f"),
    ("ratio_vs_const", "against constants", ".2f"),
    ("seconds", "seconds", ".0f"),
    ("peak_memory_gb", "peak GB", ".2f"),
    ("max_rel_error", "max rel error", ".1e"),
    ("original_vs_f64", "original vs f64", ".1e"),
    ("optimised_vs_f64", "optimised vs f64", ".1e"),
)


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say, search: bool = True) -> Result:
    """Optimise and measure every case through XLA alone."""
    return _run("core", budget, cases, seed, say, search)


def run_native(*, budget: str, cases: Sequence[str], seed: int, say: Say, search: bool = True) -> Result:
    """Optimise and measure every case through XLA and our kernels."""
    return _run("native", budget, cases, seed, say, search)


def run_loops(*, budget: str, cases: Sequence[str], seed: int, say: Say, search: bool = True) -> Result:
    """Optimise and measure programs of loops through XLA and our kernels."""
    return _run("loops", budget, cases, seed, say, search)


def _run(suite: str, budget: str, cases: Sequence[str], seed: int, say: Say, search: bool) -> Result:
    rows: list[dict[str, Any]] = []
    flags = () if search else (NO_SEARCH,)
    all_of = tuple(LOOPS) if suite == "loops" else CASES
    named = all_of if suite == "loops" else (*CASES, *SMALL)
    chosen = [x for x in named if any(text in x for text in cases)] if cases else all_of
    if not set(LIGHT).isdisjoint(chosen):
        need("onnx", f"the suite {suite} with its networks")
    for case in chosen:
        row = in_own_process("superopt.lab.bench.core", f"{suite}:{case}", budget, seed, _TIMEOUT_S, flags=flags)
        rows.append(row)
        if "failure" in row:
            say(f"{case}: failed: {row['failure']}")
        else:
            times = f"{row['before_ms']:.3g} -> {row['after_ms']:.3g} ms"
            say(f"{case}: {times}, {row['ratio']:.2f}x, {row['seconds']:.0f} s")
    good = [row for row in rows if "failure" not in row]
    ratios = [row["ratio"] for row in good]
    summary = {
        "geomean_speedup": geomean(ratios),
        "geomean_vs_const": geomean([row["ratio_vs_const"] for row in good]),
        "median_speedup": median(ratios) if ratios else 0.0,
        "min_speedup": min(ratios, default=0.0),
        "below": float(sum(row["high"] < NOT_SLOWER for row in good)),
        "max_seconds": max((row["seconds"] for row in good), default=0.0),
        "peak_memory_gb": max((row["peak_memory_gb"] for row in good), default=0.0),
        "max_rel_error": max((row["max_rel_error"] for row in good), default=0.0),
        "failed": float(len(rows) - len(good)),
    }
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def measure_case(case: str, budget: str, seed: int, kernels: bool = False, search: bool = True) -> dict[str, Any]:
    """Optimise one case in this process, with or without our kernels, and time it afresh."""

    program = build_case(case, seed)
    begin = time.perf_counter()
    result = optimize(
        program.fn, program.params, *program.inputs, frozen=0, budget=budget, seed=seed, store=False,
        kernels=kernels or not search, search=search,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    peak_kb = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    fresh = time_against_jit(
        program.fn, program.params, program.inputs, result, seed=seed, settle=case in LOOPS
    )  # many calls of microseconds
    report, numerics = result.report, result.report.numerics
    return {
        "case": case,
        "before_ms": fresh.before_ms,
        "after_ms": fresh.after_ms,
        "ratio": fresh.ratio.ratio,
        "low": fresh.ratio.low,
        "high": fresh.ratio.high,
        "const_ms": fresh.const_ms,
        "ratio_vs_const": fresh.ratio_const.ratio,
        "noise_floor": fresh.noise_floor,
        "seconds": seconds,
        "peak_memory_gb": peak_kb / 2**20,
        "max_rel_error": numerics.max_rel_error if numerics else 0.0,
        "original_vs_f64": numerics.original_vs_f64 if numerics else None,
        "optimised_vs_f64": numerics.optimised_vs_f64 if numerics else None,
        "rewrites": {used.rule: used.count for used in report.rewrites},
        "loop_steps": dict(report.loop_steps),
        "compiler_options": dict(report.compiler_options),
        "tuning": dict(report.tuning),
        "kernels": dict(report.implementation),
        "verdict": report.verdict,
        "enodes": report.growth.get("enodes"),
        "memory": dict(report.memory),
        "stages": {stage.name: round(stage.seconds, 2) for stage in report.stages},
    }


if __name__ == "__main__":
    _suite, _case = sys.argv[1].split(":")
    _search = NO_SEARCH not in sys.argv
    print(json.dumps(measure_case(_case, sys.argv[2], int(sys.argv[3]), _suite != "core", _search), default=str))
