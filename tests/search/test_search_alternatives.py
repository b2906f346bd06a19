"""Other ways to search: rewriting whole programs, additive extraction (and what undoes its mistakes), enumeration."""

from __future__ import annotations

import random

import jax
import numpy as np
import pytest

from costmodel.model.measured import Measured
from rewrites import library
from rewrites.build.expander import library_expander
from rewrites.egraph.convert import import_graph
from rewrites.grow.growth import grow
from superopt.certify.library import proved_library
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import topological
from superopt.lab.bench.alternatives import summarise
from superopt.lab.bench.programs import layers, nets
from superopt.lab.bench.whole_graphs import METHODS, Arena, BestFound, additive, better_layout, channels_last
from superopt.machine.deadline import Deadline
from superopt.search.descent import descend, through
from superopt.search.layout import candidates
from superopt.search.lower import Lowering
from superopt.search.meter import Meter
from superopt.search.moves import Groups, every_state, random_state
from superopt.search.pricing import Pricer
from superopt.search.snapshot import Snapshot
from superopt.search.starts import LocalCosts, greedy
from superopt.search.state import Problem, State
from tests.support.search_cases import Case, case, fresh_cost, run_program, worst_error
from tests.support.search_table import TableObjective

RULES = proved_library(None).rules
EXPAND = library_expander(RULES)


def objective() -> Measured:
    return Measured(TableObjective(), EXPAND)


def lowered_error(this: Case, state: State) -> float:
    selection = state.choice()
    program = Lowering(state.problem.wants).lower(selection, this.graph, EXPAND)
    return worst_error(run_program(program, this.values), this.outputs)


@pytest.mark.parametrize("name", ["inverted", "chain", "lstm"])
@pytest.mark.parametrize("method", METHODS)
def test_whole_programs_get_cheaper_and_stay_right(name: str, method: str) -> None:
    this = case(name)
    arena = Arena(this.graph, RULES, objective(), 1.0)
    before = arena.state(arena.original).seconds
    found = METHODS[method](arena, 0)
    assert found.predicted_s < before
    assert found.programs > 1
    assert lowered_error(this, found.state) < 1e-4


def test_greedy_ends_where_no_rewrite_helps() -> None:
    this = case("chain")
    arena = Arena(this.graph, RULES, objective(), 20.0)
    found = METHODS["greedy"](arena, 0)
    assert found.finished
    best = tuple(arena.eg.roots)
    assert all(arena.cost(p) >= found.state.cost for p in arena.rewrites(best, arena.live(best)))


def test_merged_products_are_one_rewrite() -> None:
    this = case("lstm")
    arena = Arena(this.graph, [r for r in RULES if r.mode == "merge"], objective(), 20.0)
    found = list(arena.rewrites(arena.original, arena.live(arena.original)))
    assert found
    for program in found[:5]:
        assert lowered_error(this, arena.state(program)) < 1e-4


@pytest.mark.parametrize("name", ["inverted", "bert"])
def test_additive_extraction_is_right(name: str) -> None:
    this = case(name)
    found: BestFound = additive(this.graph, RULES, objective(), 5.0)
    assert found.finished
    assert lowered_error(this, found.state) < 1e-4


def test_layout_comes_for_nothing() -> None:
    net = nets.inverted_residual(32, 32, 6, 1, 14)
    graph = import_function(net.fn, (net.params, *net.inputs), frozen=0).graph
    arena = Arena(graph, RULES, objective(), 5.0)
    snapshot = Snapshot(arena.eg)
    layouts = channels_last(snapshot, [0] * snapshot.size)
    assert sum(lies != home for lies, home in zip(layouts, snapshot.home, strict=True)) > 5
    state = better_layout(snapshot, Pricer(objective()))
    assert state.layouts == layouts  # the table likes channels last
    assert state.cost == fresh_cost(state)


def test_enumeration_holds_what_the_search_finds() -> None:
    this = case("linear")
    problem = this.problem()
    start = State(problem)
    assert every_state(start, 200) is None
    assert start.cost == fresh_cost(start)
    this = case("chain")
    problem = this.problem()
    states = every_state(State(problem), 5_000)
    assert states is not None
    assert min(s.cost for s in states) < states[0].cost
    assert len({s.key() for s in states}) == len(states)
    for state in random.Random(0).sample(states, min(5, len(states))):
        assert lowered_error(this, state) < 1e-4
    anyhow = random_state(State(problem), random.Random(1))
    assert lowered_error(this, anyhow) < 1e-4
    assert min(s.cost for s in states) <= anyhow.cost


def test_summary_counts_who_is_behind() -> None:
    row = {"case": "bottleneck", "method": "greedy", "ratio": 0.9, "low": 0.85, "high": 0.95, "predicted_ratio": 1.1}
    other = {**row, "case": "lstm", "method": "annealing", "ratio": 1.5, "low": 1.4, "high": 1.6}
    lost = {**row, "ratio": None, "low": None, "high": None}
    summary = summarise([row, other, lost])
    assert summary["behind"] == 1.0
    assert summary["failed"] == 1.0
    assert summary["min_ratio"] == summary["min_ratio_convolutions"] == 0.9
    assert summary["geomean_ratio"] == pytest.approx((0.9 * 1.5) ** 0.5)


def test_gathering_undoes_a_product_computed_twice() -> None:
    """In gelu both scales fold into the product before it; additive extraction computes it twice to save two scales."""

    def fn(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return layers.gelu(x @ p["w"] + p["b"]) @ p["v"]

    rng = np.random.default_rng(0)
    p = {k: rng.standard_normal(s, np.float32) for k, s in (("w", (64, 256)), ("b", (256,)), ("v", (256, 64)))}
    graph = import_function(fn, (p, rng.standard_normal((32, 64), np.float32)), frozen=0).graph
    eg = import_graph(graph)
    grow(eg, [rule for rule in library.load() if rule.mode in ("saturate", "macro")])
    snapshot = Snapshot(eg)
    problem = Problem(snapshot, Pricer(TableObjective()), candidates(snapshot))
    local = LocalCosts(problem)
    local.price_everything()
    twice = greedy(local)
    ends: list[int] = []
    for groups in (Groups(problem), Groups(problem)):
        if ends:
            groups.groups.clear()
        state = State(problem, twice)
        assert _products(state) == 3
        through(descend(state, groups, random.Random(0), Meter(Deadline(steps=100_000))))
        assert _products(state) == 2
        ends.append(state.cost)
    assert ends[0] < 0.95 * ends[1]  # single flips alone keep the scales apart


def _products(state: State) -> int:
    return sum(n.op == "dot_general" for _, kernel in state.kernels() for n in topological((kernel,)))
