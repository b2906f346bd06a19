"""How soon a search of schedules finds a good one.

Every operator is searched for long first (the given budget, evolutionary, without a model).  Then it is searched from
scratch, without stored timings, with at most 64 measured candidates and two seeds by each strategy: guided by the
model, evolutionary, random.  All of these begin with the default schedule.  The successive leaders of each search,
the winners and the default are timed afresh, interleaved in one process, twice.  The first pass determines the best
known, the second how far the others are from it.

*Tried* is the number of candidates until the best of a search was within five percent of the best known (65: never).
*Reached* is the time of the best known over that of the winner.  `python -m superopt.lab.bench.schedules OPERATOR
[SECONDS]` prints the row of one operator.

    superopt bench --suite schedules [--case TEXT ...] [--budget 20s] [--json]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from superopt.arrays.bundles import scratch_folder
from superopt.ir.graph import Graph
from superopt.lab.bench import Result, Say, geomean, table_with_summary, wanted
from superopt.machine.budget import parse_budget
from superopt.measure.stats import paired_ratio
from superopt.schedules.candidates import save_problem
from superopt.schedules.space import Steps
from superopt.schedules.tune import STRATEGIES, CandidateBuilder, ScheduleSearch, TunedSchedule, tune
from superopt.schedules.workload import workload
from superopt.workshop.process import ProcessLimits, Worker

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
MOST, WITHIN = 64, 1.05
_SEEDS = 2
_ROUNDS, _SAMPLE_S = 15, 3e-3
_COLUMNS = (
    ("case", "operator", ""),
    ("space", "schedules", ".2g"),
    ("best_us", "best known, us", ".4g"),
    ("default", "default reaches", ".2f"),
    *((f"{s}_tried", f"tried, {s}", ".0f") for s in STRATEGIES),
    *((f"{s}_reached", f"reached, {s}", ".2f") for s in STRATEGIES),
    ("candidates_per_s", "a second", ".1f"),
    ("compile_ms", "compile, ms", ".0f"),
    ("noise_floor", "noise", ".2f"),
)


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Search and compare every operator."""
    seconds = parse_budget(budget).seconds or 20.0
    rows: list[dict[str, Any]] = []
    for operator in OPERATORS:
        if wanted(operator, cases):
            rows.append(measure(operator, seconds, range(seed, seed + _SEEDS)))
            say(json.dumps({k: v for k, v in rows[-1].items() if k != "trace"}))
    summary = summarised(rows) if rows else {}
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def summarised(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Medians over operators and seeds; `_most` is the largest."""
    summary: dict[str, float] = {}
    for s in STRATEGIES:
        tried = [n for row in rows for n in row[f"{s}_all"]]
        summary |= {f"{s}_tried": float(np.median(tried)), f"{s}_tried_most": max(tried)}
        summary[f"{s}_within"] = float(np.mean([n <= MOST for n in tried]))
        summary[f"{s}_reached"] = geomean([row[f"{s}_reached"] for row in rows])
    summary["default_reached"] = geomean([row["default"] for row in rows])
    summary["default_within"] = float(np.mean([row["default"] * WITHIN >= 1 for row in rows]))
    summary["candidates_per_s"] = geomean([row["candidates_per_s"] for row in rows])
    summary["compile_ms"] = geomean([row["compile_ms"] for row in rows if row["compile_ms"]])
    return summary


def measure(operator: str, seconds: float, seeds: Sequence[int]) -> dict[str, Any]:
    """Measure one operator on one thread, with one process that builds."""
    graph = workload(operator)
    long = tune(graph, ScheduleSearch(seconds, seed=1000, strategy="evolutionary"))
    hows = {s: [ScheduleSearch(seconds, seed=seed, strategy=s, most=MOST) for seed in seeds] for s in STRATEGIES}
    short = {s: [tune(graph, how) for how in each] for s, each in hows.items()}
    searches = [long, *(search for each in short.values() for search in each)]
    traces: dict[str, Steps] = {key: trace for search in searches for _, key, trace in _leaders(search)}
    traces |= {json.dumps(search.trace): search.trace for search in searches}
    names = list(traces)
    again, default = json.dumps(long.trace), json.dumps(long.history[0].trace)
    first, second = _timed(graph, [*traces.values(), traces[again]], seeds[0])
    best = int(np.argmin([np.median(x) for x in first]))
    time = {name: float(np.median(second[k])) for k, name in enumerate([*names, "again"])}
    known = time["again"] if best == len(names) else time[names[best]]
    row: dict[str, Any] = {
        "case": operator,
        "space": float(long.space_size),
        "best_us": 1e6 * known,
        "default": known / time[default],
        "candidates_per_s": long.candidates_per_s,
        "compile_ms": long.compile_ms,
        "candidates": long.candidates,
        "trace": [*traces.values(), traces[again]][best],
    }
    for s, each in short.items():
        row[f"{s}_all"] = [
            next((n for n, key, _ in _leaders(search) if time[key] <= WITHIN * known), MOST + 1) for search in each
        ]
        row[f"{s}_tried"] = float(np.median(row[f"{s}_all"]))
        row[f"{s}_reached"] = geomean([known / time[json.dumps(search.trace)] for search in each])
        row[f"{s}_per_s"] = geomean([search.candidates_per_s for search in each])
    floor = paired_ratio(second[names.index(again)], second[-1], seed=seeds[0])
    return row | {"noise_floor": floor.noise}


def _leaders(found: TunedSchedule) -> list[tuple[int, str, Steps]]:
    """The candidates that were the fastest when they were timed: number, key and trace."""
    leaders: list[tuple[int, str, Steps]] = []
    best = np.inf
    for number, c in enumerate(found.history[:MOST], 1):
        if c.seconds < best:
            best = c.seconds
            leaders.append((number, json.dumps(c.trace), c.trace))
    return leaders


def _timed(graph: Graph, traces: Sequence[Steps], seed: int) -> tuple[list[list[float]], list[list[float]]]:
    """Samples of each schedule in two passes, interleaved in one fresh process; equal code shares them."""
    with (
        Worker(ProcessLimits(silence_s=120.0)) as worker,
        scratch_folder(64 << 20) as folder,
    ):
        problem = Path(folder) / "problem"
        save_problem(problem, graph, seed)
        builder = CandidateBuilder(worker, graph, 1, problem)
        passes: list[list[list[float]]] = []
        for k in range(2):
            built = builder.build(range(len(traces)), traces, again=True)
            digests = [built[i]["digest"] for i in range(len(traces)) if built[i]["event"] == "built"]
            if len(digests) != len(traces):
                raise RuntimeError("a schedule that was timed before cannot be built again")
            request = {"digests": digests, "rounds": _ROUNDS, "sample_s": _SAMPLE_S}
            request |= {"seed": seed + k, "each_s": 1e9, "limit_s": 1e9, "slow_s": 1e9}
            passes.append([event["samples_s"] for event in builder.time(request, traces)])
    return passes[0], passes[1]


if __name__ == "__main__":
    budget_s = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    print(json.dumps(measure(sys.argv[1], budget_s, range(_SEEDS))), flush=True)
