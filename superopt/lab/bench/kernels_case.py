"""One operator of the kernel benchmark in this process: tune, then time against XLA and the peers.

python -m superopt.lab.bench.kernels_case THREADS:CASE BUDGET SEED
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from superopt.frontends.jax.jaxpr import import_function
from superopt.lab.bench.kernels_peers import peers
from superopt.lab.bench.programs.kernels_cases import CASES, OperatorCase, product
from superopt.lab.bench.timing import interleaved, median
from superopt.machine.budget import parse_budget
from superopt.measure.loop import Thunk
from superopt.measure.rates import peak_call
from superopt.measure.stats import paired_ratio
from superopt.schedules.native import kernel_calls
from superopt.schedules.tune import ScheduleSearch, tune

_ROUNDS, _SAMPLE_S = 21, 0.008


def main(argv: Sequence[str]) -> None:
    """Print the row of one case as JSON."""
    count, name = argv[0].split(":", 1)
    threads = int(count)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])  # before jax makes its pool
    case = next(case for case in CASES if case.name == name)
    print(json.dumps(measure(case, threads, parse_budget(argv[1]).seconds or 10.0, int(argv[2]))))


def measure(case: OperatorCase, threads: int, seconds: float, seed: int) -> dict[str, Any]:
    """Times and ratios of one case.

    Raises:
        AssertionError: our kernel, XLA or a peer differs from the float64 evaluation.
    """
    arrays = case.arrays(seed)
    peak_flops = 0.0
    row, inside, direct = _ours(case, arrays, threads, seconds, seed)
    jitted = jax.jit(case.fn)
    device = [jax.numpy.asarray(a) for a in arrays]
    calls: dict[str, Thunk] = {"ours": direct, "again": direct, "jit": inside, "xla": lambda: jitted(*device)}
    calls |= peers(case, arrays, threads)
    if threads == 1:
        calls["peak"], peak_flops = peak_call()
    if case.kind == "int8":
        wide = product(*_sizes(case))
        calls["fp32"] = _ours(wide, wide.arrays(seed), threads, seconds, seed)[2]
    expected = np.asarray(jitted(*device))
    error = _error(np.asarray(inside()[0]), expected)
    assert error < (1e-4 if case.kind != "int8" else 1e-12), f"{case.name}: relative error {error:.2g} against XLA"
    timings = interleaved(list(calls.values()), rounds=_ROUNDS, sample_s=_SAMPLE_S, seed=seed, settle=threads > 1)
    samples = dict(zip(calls, timings, strict=True))
    row["ours_us"] = 1e6 * median(samples["ours"])
    row["gflops"] = case.flops / median(samples["ours"]) / 1e9
    floor = paired_ratio(samples["ours"], samples["again"], seed=seed)
    row["noise_floor"] = floor.noise
    ratios = {k: paired_ratio(v, samples["ours"], seed=seed) for k, v in samples.items()}
    row["jit_us"] = 1e6 * median(samples["jit"])
    ratios["xla"] = paired_ratio(samples["xla"], samples["jit"], seed=seed)  # both pay for a call from JAX
    row["xla"] = ratios["xla"].ratio
    row["torch"] = min((r.ratio for k, r in ratios.items() if k.startswith("torch")), default=None)
    row["onnxruntime"] = ratios["onnxruntime"].ratio if "onnxruntime" in ratios else None
    rivals = {k: r for k, r in ratios.items() if k not in ("ours", "again", "jit", "peak", "fp32")}
    best = min(rivals, key=lambda k: rivals[k].ratio)
    row |= {"best_peer": best, "best": rivals[best].ratio, "low": rivals[best].low, "high": rivals[best].high}
    row["error"] = error
    if "fp32" in ratios:
        row["over_fp32"] = ratios["fp32"].ratio
    if "peak" in samples:
        row["peak_gflops"] = peak_flops / median(samples["peak"]) / 1e9
        row["peak_fraction"] = row["gflops"] / row["peak_gflops"]
    return row


def _sizes(case: OperatorCase) -> tuple[int, int, int]:
    (m, k), (_, n) = case.shapes
    return m, n, k


def _error(got: np.ndarray, expected: np.ndarray) -> float:
    scale = max(float(np.max(np.abs(expected.astype(np.float64)))), 1e-30)
    return float(np.max(np.abs(got.astype(np.float64) - expected.astype(np.float64)))) / scale


def _ours(
    case: OperatorCase, arrays: Sequence[np.ndarray], threads: int, seconds: float, seed: int
) -> tuple[dict[str, Any], Thunk, Thunk]:
    """Our kernel as tuned within the budget, weights packed ahead of time: inside `jax.jit`, and called directly."""
    imported = import_function(case.fn, arrays, {}, frozen=case.frozen)
    tuned = tune(imported.graph, ScheduleSearch(seconds, threads, seed))
    names = [node["name"] for node in imported.graph.inputs]
    jitted, direct = kernel_calls(tuned.program, dict(zip(names, arrays, strict=True)), threads)
    row = {
        "candidates": tuned.candidates,
        "candidates_per_s": tuned.candidates_per_s,
        "compile_ms": tuned.compile_ms,
        "trace": tuned.trace,
    }
    return row, jitted, direct


if __name__ == "__main__":
    main(sys.argv[1:])
