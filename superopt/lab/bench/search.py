"""The search suite: growth and search alone on whole networks, nothing built or measured.

Each network is imported, its e-graph is grown by the proved library and searched under the roofline: e-nodes, seconds
until saturation, proposals per second of a second, warm search, and the predicted gain.

    superopt bench --suite search [--json]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from costmodel.model.load import load_objective
from rewrites.egraph.convert import import_graph
from rewrites.grow.growth import GrowthLimits, grow
from superopt.certify.library import proved_library
from superopt.frontends.jax.jaxpr import import_function
from superopt.lab.bench import Result, Say, geomean, told, wanted
from superopt.lab.bench.programs import nets
from superopt.machine.budget import parse_budget
from superopt.search.budget import Budget
from superopt.search.pricing import Pricer
from superopt.search.search import SearchSettings, search
from superopt.search.snapshot import Forms

CASES = {"resnet50": nets.resnet50, "mobilenet_v2": nets.mobilenet_v2, "bert": nets.bert}
_GROWTH_SECONDS = 60.0
_SECONDS = 10.0
_COLUMNS = (
    ("case", "network", ""),
    ("enodes", "e-nodes", "d"),
    ("growth_seconds", "growth s", ".2f"),
    ("stop", "stop", ""),
    ("proposals_per_second", "proposals/s", ".0f"),
    ("predicted_before_ms", "predicted before ms", ".3g"),
    ("predicted_after_ms", "predicted after ms", ".3g"),
)


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Grow and search every network, each for at most the budget, half of it cold and half of it warm."""
    seconds = min(parse_budget(budget).seconds or _SECONDS, 2 * _SECONDS)
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if wanted(case, cases):
            rows.append(measure_case(case, seconds, seed))
            say(f"{case}: {rows[-1]['enodes']} e-nodes, {rows[-1]['proposals_per_second']:.0f} proposals/s")
    rates = [row["proposals_per_second"] for row in rows]
    summary = {
        "max_enodes": float(max((row["enodes"] for row in rows), default=0)),
        "max_growth_seconds": max((row["growth_seconds"] for row in rows), default=0.0),
        "saturated": float(sum(row["stop"] == "saturated" for row in rows)),
        "min_proposals_per_second": min(rates, default=0.0),
        "geomean_proposals_per_second": geomean(rates),
    }
    return rows, summary, told(rows, _COLUMNS, summary)


def measure_case(case: str, seconds: float, seed: int) -> dict[str, Any]:
    """Figures of one network."""
    net = CASES[case]()
    graph = import_function(net.fn, (net.params, *net.inputs), frozen=0).graph
    rules, objective = proved_library(None).rules, load_objective()
    eg = import_graph(graph)
    begin = time.perf_counter()
    grown = grow(eg, [r for r in rules if r.mode in ("saturate", "macro")], GrowthLimits(seconds=_GROWTH_SECONDS))
    growth_seconds = time.perf_counter() - begin
    pricer, forms = Pricer(objective), Forms()
    settings = SearchSettings(Budget(seconds=seconds / 2), seed)
    cold = search(eg, objective, settings, pricer=pricer, forms=forms)
    warm = search(eg, objective, replace(settings, seed=seed + 1), warm=cold.best, pricer=pricer, forms=forms)
    return {
        "case": case,
        "nodes": len(graph.nodes()),
        "enodes": grown.enodes[-1],
        "classes": grown.live_classes,
        "iterations": grown.iterations,
        "growth_seconds": growth_seconds,
        "stop": grown.stop,
        "cold_proposals_per_second": cold.statistics.proposals / max(cold.statistics.seconds, 1e-9),
        "proposals_per_second": warm.statistics.proposals / max(warm.statistics.seconds, 1e-9),
        "proposals": cold.statistics.proposals + warm.statistics.proposals,
        "kernels": warm.statistics.distinct_kernels,
        "predicted_before_ms": 1e3 * warm.original.predicted_s,
        "predicted_after_ms": 1e3 * min(cold.best.predicted_s, warm.best.predicted_s),
    }
