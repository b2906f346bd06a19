"""How soon does a search of schedules find a good one?

Every operator is searched for long first (the given budget, evolutionary, which knows no model), and then from scratch
with at most 64 measured candidates by each method: guided by the model, evolutionary, random.  The winners of all are
timed afresh, interleaved in one process.  *Reached* is the time of the best known schedule over that of a method's
winner: 0.95 is within five percent.

    superopt bench --suite schedules [--case TEXT ...] [--budget 40s] [--json]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from superopt.bench import Say, geomean, table
from superopt.budget import parse_budget
from superopt.ir.text import print_graph
from superopt.measure.process import Limits, Worker
from superopt.measure.stats import paired_ratio
from superopt.schedules.space import Trace
from superopt.schedules.tune import Method, tune
from superopt.schedules.workload import workload

OPERATORS = (
    "dot f32 100x640x500",
    "dot f32 384x1024x256",
    "dot f32 4x1000x2000",
    "dot s8 200x512x640",
    "conv f32 20x20x96 3x3x160",
    "conv f32 40x40x48 5x5x64 stride 2",
    "conv f32 30x30x96 3x3x96 groups 96",
    "softmax f32 777x333",
    "layer_norm f32 300x640",
)
METHODS: tuple[Method, ...] = ("model", "evolutionary", "random")
MOST = 64
_ROUNDS, _SAMPLE_S, _WORKERS = 21, 4e-3, 2
_COLUMNS = (
    ("case", "operator", ""),
    ("space", "schedules", ".2g"),
    ("best_us", "best known, us", ".4g"),
    ("tried", "tried for it", "d"),
    ("default", "default reaches", ".2f"),
    *((m, f"{m}, 64", ".2f") for m in METHODS),
    ("candidates_per_s", "a second", ".1f"),
    ("compile_ms", "compile, ms", ".0f"),
    ("noise_floor", "noise", ".2f"),
)


def run(
    *, budget: str, cases: Sequence[str], seed: int, say: Say
) -> tuple[list[dict[str, Any]], dict[str, float], str]:
    """Search and compare every operator."""
    seconds = parse_budget(budget).seconds or 40.0
    rows: list[dict[str, Any]] = []
    for operator in OPERATORS:
        if not cases or any(text in operator for text in cases):
            rows.append(measure(operator, seconds, seed))
            say(json.dumps({k: v for k, v in rows[-1].items() if k != "traces"}))
    summary = {f"{m}_reached": geomean([row[m] for row in rows]) for m in ("default", *METHODS)}
    summary |= {f"{m}_min": min(row[m] for row in rows) for m in METHODS}
    summary["candidates_per_s"] = geomean([row["candidates_per_s"] for row in rows])
    summary["compile_ms"] = geomean([row["compile_ms"] for row in rows if row["compile_ms"]])
    return rows, summary, table(rows, _COLUMNS) + "\n\n" + ", ".join(f"{k} {v:.4g}" for k, v in summary.items())


def measure(operator: str, seconds: float, seed: int) -> dict[str, Any]:
    """One operator on one thread."""
    graph = workload(operator)
    long = tune(graph, seconds, seed=seed + 1, method="evolutionary", workers=_WORKERS)
    short = {m: tune(graph, seconds, seed=seed, method=m, most=MOST, workers=_WORKERS) for m in METHODS}
    base = tune(graph, seconds, seed=seed, most=1, workers=1)
    traces: list[Trace] = [long.trace, long.trace, base.trace, *(short[m].trace for m in METHODS)]
    names: tuple[str, ...] = ("best", "again", "default", *METHODS)
    samples: dict[str, list[float]] = dict(zip(names, _timed(print_graph(graph), traces, seed), strict=True))
    medians = {name: float(np.median(times)) for name, times in samples.items()}
    known = min(medians, key=lambda name: medians[name])
    floor = paired_ratio(samples["best"], samples["again"], seed=seed)
    return {
        "case": operator,
        "space": float(long.space_size),
        "best_us": 1e6 * medians[known],
        "best_by": known,
        "tried": long.candidates,
        **{str(m): paired_ratio(samples[known], samples[m], seed=seed).ratio for m in names[2:]},
        "candidates_per_s": long.candidates_per_s,
        "compile_ms": long.compile_ms,
        "noise_floor": max(floor.high - 1, 1 - floor.low),
        "traces": dict(zip(names, traces, strict=True)),
    }


def _timed(graph: str, traces: Sequence[Trace], seed: int) -> list[list[float]]:
    """Samples of each schedule, interleaved in one fresh process; equal schedules are timed as often as they occur."""
    with Worker(Limits(silence_s=120.0), module="superopt.schedules.worker") as worker:
        list(worker.request({"request": "open", "graph": graph, "threads": 1, "seed": seed}))
        request = {"request": "build", "indices": list(range(len(traces))), "traces": list(traces)}
        digests = [e["digest"] for e in worker.request(request) if e["event"] == "built"]
        if len(digests) != len(traces):
            raise RuntimeError("a schedule that was timed before cannot be built again")
        request = {"request": "time", "digests": digests, "rounds": _ROUNDS, "sample_s": _SAMPLE_S, "seed": seed}
        request["limit_s"] = 1e9
        return [event["samples_s"] for event in worker.request(request)]
