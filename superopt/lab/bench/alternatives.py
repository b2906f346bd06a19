"""The search against other ways to search, on the same rules, the same objective and the same time.

Each case is searched by `superopt.explore.exploration` without any timing, then by greedy rewriting, backtracking
(TASO) and annealing over whole programs, each for at least as long as that took.  The last method is additive
extraction from the e-graph.  Two figures are compared:

    predicted   The objective's time of each method's best program.
    measured    The programs built by XLA and timed interleaved in fresh rounds, each against ours, with intervals.

Ours is the best of the programs that the search proposes for measurement: its finalists are timed first and the fastest
one is ours (`picked`); the objective's own favourite is timed beside it (`model`).  The others return one program each.
All timings are made in two processes, as the judgement of `optimize` does, because small programs differ by ten percent
between processes; intervals cover both.

    superopt bench --suite alternatives [--case NAME ...] [--json]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from costmodel.model.load import load_objective
from costmodel.model.measured import Measured
from rewrites.build.expander import Expand, library_expander
from superopt.certify.library import proved_library
from superopt.explore.exploration import explore
from superopt.explore.found import Exploration
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.graph import Graph
from superopt.ir.program import Program, original_program
from superopt.lab.bench import Result, Say, geomean, table_with_summary, wanted, whole_graphs
from superopt.lab.bench.programs import nets
from superopt.lab.bench.programs.nets import Net
from superopt.lab.bench.whole_graphs import Arena, BestFound
from superopt.machine.budget import parse_budget
from superopt.machine.deadline import Deadline
from superopt.machine.speedup import Speedup
from superopt.measure import Comparison, ComparisonSettings, Timing, compare, pooled
from superopt.measure.stats import paired_ratio
from superopt.search.lower import Lowering
from superopt.workshop.process import Worker

CASES: dict[str, Callable[[], Net]] = {
    "inverted_residual": lambda: nets.inverted_residual(48, 48, 6, 1, 28),
    "bottleneck": nets.bottleneck,
    "mobilenet": lambda: nets.mobilenet_v2(size=160),
    "resnet": lambda: nets.resnet((1, 1, 1, 1), size=128),
    "bert": lambda: nets.bert_layer(512, 8, 128),
    "lstm": lambda: nets.lstm(2, 384),
    "linear_attention": lambda: nets.linear_attention(768, 64),
}
CONVOLUTIONS = ("inverted_residual", "bottleneck", "mobilenet", "resnet")
METHODS = ("greedy", "backtracking", "annealing", "additive")
TOLERATED = 0.98
_SEARCHED_PART = 0.45  # share of a budget that exploring takes when nothing is timed
_CHOOSING_ROUNDS, _ROUNDS, _SAMPLE_S = 9, 21, 0.03
_COLUMNS = (
    ("case", "case", ""),
    ("method", "method", ""),
    ("seconds", "seconds", ".1f"),
    ("programs", "programs", "d"),
    ("predicted_ms", "predicted ms", ".4g"),
    ("measured_ms", "measured ms", ".4g"),
    ("ratio", "its time over ours", ".3f"),
    ("low", "low", ".3f"),
    ("high", "high", ".3f"),
)


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Search every case by every method, time the programs."""
    seconds = parse_budget(budget).seconds or 10.0
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if wanted(case, cases):
            results = measure_case(case, seconds, seed)
            rows += results
            say(f"{case}: " + ", ".join(f"{r['method']} {r['ratio']:.3f}" for r in results if r["ratio"] is not None))
    summary = summarise(rows)
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Least ratios, and the number of alternatives that are ahead of ours by more than 2 % beyond doubt."""
    others = [row for row in rows if row["method"] in METHODS and row["ratio"] is not None]
    images = [row["ratio"] for row in others if row["case"] in CONVOLUTIONS]
    predicted = [row["predicted_ratio"] for row in rows if row["method"] in METHODS]
    return {
        "compared": float(len(others)),
        "failed": float(sum(row["ratio"] is None for row in rows)),
        "min_ratio": min((row["ratio"] for row in others), default=0.0),
        "min_ratio_convolutions": min(images, default=0.0),
        "geomean_ratio": geomean([row["ratio"] for row in others]),
        "behind": float(sum(row["high"] < TOLERATED for row in others)),
        "min_predicted_ratio": min(predicted, default=0.0),
    }


def measure_case(case: str, seconds: float, seed: int) -> list[dict[str, Any]]:
    """One row per method, ours first."""
    net = CASES[case]()
    imported = import_function(net.fn, (net.params, *net.inputs), frozen=0)
    graph = imported.graph
    rules, base = proved_library(None).rules, load_objective()
    expand = library_expander(rules)
    began = time.perf_counter()
    deadline = Deadline.within(seconds / _SEARCHED_PART)
    ours = explore(graph, rules, Request(deadline, base, seed=seed, deterministic=True))
    spent = time.perf_counter() - began
    allowed = max(seconds, spent)
    best: dict[str, BestFound] = {}
    for name, method in whole_graphs.METHODS.items():
        best[name] = method(Arena(graph, rules, Measured(base, expand), allowed), seed)
    best["additive"] = whole_graphs.additive(graph, rules, Measured(base, expand), allowed)
    return _rows(case, f"{base.name} {base.version}", imported, ours, spent, best, expand, seed)


def _rows(
    case: str,
    objective: str,
    imported: Imported,
    ours: Exploration,
    spent: float,
    found: dict[str, BestFound],
    expand: Expand,
    seed: int,
) -> list[dict[str, Any]]:
    original = original_program(imported.graph)
    finalists = ours.result.finalists
    built = [ours.program(f) for f in finalists]
    chosen = _timed(imported, original, built, _CHOOSING_ROUNDS, seed)
    choice = pooled(*chosen, seed=seed).best() or 0
    model = finalists.index(ours.result.best)
    names = ["picked", "model", "original", *found]
    programs = [built[choice], built[model], original, *(_lowered(f, imported.graph, expand) for f in found.values())]
    predicted = [
        finalists[choice].predicted_s,
        finalists[model].predicted_s,
        ours.result.original.predicted_s,
        *(f.predicted_s for f in found.values()),
    ]
    processes = _timed(imported, original, programs, _ROUNDS, seed + 1)
    timed = pooled(*processes, seed=seed)
    mine = timed.candidates[0]
    rows: list[dict[str, Any]] = []
    for i, (name, outcome) in enumerate(zip(names, timed.candidates, strict=True)):
        row: dict[str, Any] = {
            "case": case,
            "method": name,
            "objective": objective,
            "seconds": found[name].seconds if name in found else spent,
            "programs": found[name].programs if name in found else None,
            "finished": found[name].finished if name in found else None,
            "predicted_ms": 1e3 * predicted[i],
            "predicted_ratio": predicted[i] / predicted[1],
            "noise_floor": timed.noise_floor,
            **dict.fromkeys(("measured_ms", "ratio", "low", "high")),
        }
        if isinstance(outcome, Timing) and isinstance(mine, Timing):
            ratio = paired_ratio(outcome.samples_s, mine.samples_s, seed=seed).ratio
            within = [_against_first(c, i, seed) for c in processes]
            low, high = min(r.low for r in within), max(r.high for r in within)
            row |= {"measured_ms": 1e3 * outcome.median_s, "ratio": ratio, "low": low, "high": high}
        else:
            row["failure"] = str(outcome)
        rows.append(row)
    return rows


def _timed(
    imported: Imported, original: Program, programs: Sequence[Program], rounds: int, seed: int
) -> tuple[Comparison, Comparison]:
    """The programs interleaved with each other in random order, in two processes."""

    def once(seed: int) -> Comparison:
        with Worker() as worker:
            return compare(
                original, programs, imported.live_values, imported.frozen_values,
                ComparisonSettings(rounds, _SAMPLE_S, seed, prune=0.0), worker=worker,
            )  # fmt: skip

    return once(2 * seed), once(2 * seed + 1)


def _against_first(timed: Comparison, i: int, seed: int) -> Speedup:
    """Time of a program over that of the first one, in one process."""
    one, first = timed.candidates[i], timed.candidates[0]
    assert isinstance(one, Timing)
    assert isinstance(first, Timing)
    return paired_ratio(one.samples_s, first.samples_s, seed=seed)


def _lowered(found: BestFound, graph: Graph, expand: Expand) -> Program:
    state = found.state
    selection = state.choice()
    return Lowering(state.problem.wants).lower(selection, graph, expand)
