"""The search suite: growth and search alone on whole networks, nothing built or measured.

Each network is imported, its e-graph is grown by the proved library and searched under the roofline.  Figures are
e-nodes, seconds until saturation, proposals per second of a second, warm search, and the predicted gain.

Stacks of encoder layers, from a thousand nodes to twenty thousand, show how the seconds of each stage before the first
kernel is built grow with the nodes.  Figures are processor time, and the exponent between the smallest and the largest.

    superopt bench --suite search [--json]
    superopt bench --suite search --case deep [--json]      the stacks alone

When it is named, mixtures of strategies are compared (`superopt.lab.bench.searches.strategies`):

    superopt bench --suite search --case strategies [--json]
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from costmodel.model.joint import Joint
from costmodel.model.load import load_objective
from rewrites.build.expander import library_expander
from rewrites.egraph.convert import import_graph, import_into
from rewrites.grow.growth import GrowthLimits, grow
from rewrites.grow.proof import ProvingEGraph
from superopt.backends.protocol import backend_of
from superopt.candidates.candidate import Candidate
from superopt.certify.library import proved_library
from superopt.frontends.jax.jaxpr import import_function
from superopt.kernels.choose.specs import NATIVE
from superopt.lab.bench import Result, Say, geomean, table, table_with_summary, wanted
from superopt.lab.bench.programs import nets
from superopt.lab.bench.searches import strategies
from superopt.machine.budget import parse_budget
from superopt.machine.deadline import Deadline
from superopt.make.plain import cut, in_regions, own_form
from superopt.search.pricing import Pricer
from superopt.search.search import SearchSettings, search
from superopt.search.snapshot import Forms

DEEP = {f"deep_{layers}": layers for layers in (10, 24, 47, 93, 185)}
DEEP_WIDTH, DEEP_HEADS, DEEP_LENGTH = 48, 2, 8  # the composition of a layer does not depend on them
DEEP_PROPOSALS = 1_000
CASES = {"resnet50": nets.resnet50, "mobilenet_v2": nets.mobilenet_v2, "bert": nets.bert}
_GROWTH_SECONDS = 60.0
_SECONDS = 10.0
_STAGES = ("import", "plain", "growth", "search", "again", "forms")
_DEEP_COLUMNS = (
    ("case", "stack", ""),
    ("nodes", "nodes", "d"),
    ("enodes", "e-nodes", "d"),
    ("kernels", "kernels", "d"),
    ("distinct", "distinct", "d"),
    *((f"{stage}_seconds", f"{stage} s", ".2f") for stage in _STAGES),
    ("stop", "stop", ""),
)
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
    stacks: list[dict[str, Any]] = []
    for case, layers in DEEP.items():
        if wanted(case, cases):
            stacks.append(measure_stack(case, layers, seed))
            say(f"{case}: {stacks[-1]['nodes']} nodes, {sum(stacks[-1][f'{x}_seconds'] for x in _STAGES):.1f} s")
    named = [case for case in cases if case.startswith(strategies.NAME)]
    mixtures, told = strategies.run(seed=seed, cases=named, say=say) if named else ([], "")
    rates = [row["proposals_per_second"] for row in rows]
    summary = {
        "max_enodes": float(max((row["enodes"] for row in rows), default=0)),
        "max_growth_seconds": max((row["growth_seconds"] for row in rows), default=0.0),
        "saturated": float(sum(row["stop"] == "saturated" for row in rows)),
        "min_proposals_per_second": min(rates, default=0.0),
        "geomean_proposals_per_second": geomean(rates),
    }
    if len(stacks) > 1:
        summary |= exponents(stacks[0], stacks[-1])
    first = [table(rows, _COLUMNS)] if rows and stacks else []
    shown, columns = (stacks, _DEEP_COLUMNS) if stacks else (rows, _COLUMNS)
    last = [table_with_summary(shown, columns, summary)] if shown else []
    return [*rows, *stacks, *mixtures], summary, "\n\n".join([*first, *last, *([told] if told else [])])


def exponents(small: Mapping[str, Any], large: Mapping[str, Any]) -> dict[str, float]:
    """For each stage and their sum, the power of the number of nodes with which seconds grow between two stacks."""
    wider = math.log(large["nodes"] / small["nodes"])

    def power(stages: Sequence[str]) -> float:
        before, after = (sum(row[f"{stage}_seconds"] for stage in stages) for row in (small, large))
        return math.log(after / before) / wider

    return {"exponent": power(_STAGES), **{f"exponent_{stage}": power([stage]) for stage in _STAGES}}


def measure_stack(case: str, layers: int, seed: int) -> dict[str, Any]:
    """Processor seconds of a stack of encoder layers until its programs in kernels are known, none of which is made."""
    net = nets.bert(layers, DEEP_WIDTH, DEEP_HEADS, DEEP_LENGTH)
    rules = proved_library(None).rules
    expand = library_expander(rules)
    model = Joint(load_objective(), expand, backend_of(NATIVE))
    pricer, forms = Pricer(model), Forms()
    settings = SearchSettings(Deadline(steps=DEEP_PROPOSALS), seed, in_kernels=True)
    row: dict[str, Any] = {"case": case}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        row[f"{name}_seconds"] = time.process_time() - begin

    with stage("import"):
        graph = import_function(net.fn, (net.params, *net.inputs), frozen=0).graph
    with stage("plain"):
        plain = in_regions("own form", own_form(graph))
    with stage("growth"):
        eg = import_into(ProvingEGraph(), graph)
        limits = GrowthLimits(enodes=100 * len(graph.nodes()))
        grown = grow(eg, [r for r in rules if r.mode in ("saturate", "macro")], limits, deadline=Deadline())
    with stage("search"):
        result = search(eg, model, settings, pricer=pricer, forms=forms)
    with stage("again"):
        result = search(eg, model, replace(settings, seed=seed + 1), warm=result.best, pricer=pricer, forms=forms)
    with stage("forms"):
        program, stored = result.lowering.lower_stored(result.best.selection, graph, expand)
        made = cut(Candidate(name="best", program=program), program, stored)
        model.program_s(made.runs, set(made.runs))
    return row | {
        "nodes": len(graph.nodes()),
        "enodes": grown.enodes[-1],
        "stop": grown.stop,
        "kernels": len(made.regions),
        "distinct": len(made.runs),
        "plain_kernels": len(plain.regions),
    }


def measure_case(case: str, seconds: float, seed: int) -> dict[str, Any]:
    """Figures of one network."""
    net = CASES[case]()
    graph = import_function(net.fn, (net.params, *net.inputs), frozen=0).graph
    rules, objective = proved_library(None).rules, load_objective()
    eg = import_graph(graph)
    begin = time.perf_counter()
    tame = [r for r in rules if r.mode in ("saturate", "macro")]
    grown = grow(eg, tame, deadline=Deadline.within(_GROWTH_SECONDS))
    growth_seconds = time.perf_counter() - begin
    pricer, forms = Pricer(objective), Forms()
    settings = SearchSettings(Deadline.within(seconds / 2), seed)
    cold = search(eg, objective, settings, pricer=pricer, forms=forms)
    settings = SearchSettings(Deadline.within(seconds / 2), seed + 1)
    warm = search(eg, objective, settings, warm=cold.best, pricer=pricer, forms=forms)
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
