"""States of the search: delta cost, undo, materialisation, acyclicity."""

from __future__ import annotations

import math
import random

import pytest

from rewrites.egraph.convert import import_graph
from rewrites.egraph.perm import PERM_BITS
from superopt.ir.graph import Graph, make_input, mk
from superopt.kernels.choose.partition import partition
from superopt.search.graphs import cheapest, components
from superopt.search.layout import candidates
from superopt.search.moves import Groups, region
from superopt.search.pricing import LONGEST_S, UNIT_S, Pricer, to_units
from superopt.search.snapshot import Snapshot
from superopt.search.state import FORBID, FORCE, Problem, State
from tests.support.search_cases import BUILDERS, case, fresh_cost, random_move
from tests.support.search_table import TableObjective


def snapshot_of(state: State) -> tuple[object, ...]:
    """Everything that undo must restore."""
    used = [c for c in range(state.snapshot.size) if state.readers[c]]
    return (
        state.cost,
        tuple(state.selection),
        tuple(state.layouts),
        tuple(state.bits),
        tuple((c, tuple(sorted(state.readers[c].items())), state.materialised[c]) for c in used),
        tuple(state.kernel_cost),
    )


@pytest.mark.parametrize("name", BUILDERS)
def test_delta_cost_equals_fresh_cost(name: str) -> None:
    problem = case(name).problem()
    state = State(problem)
    groups, rng = Groups(problem), random.Random(7)
    for step in range(1500):
        before = snapshot_of(state) if step % 10 == 0 else None
        change = random_move(state, groups, rng, 0.1).apply(state)
        if change is None:
            continue
        state.settle()
        if rng.random() < 0.5:
            state.undo(change)
            state.settle()
            assert before is None or snapshot_of(state) == before
        if step % 150 == 0:
            assert state.cost == fresh_cost(state)
            assert state.cost == sum(state.kernel_cost)
    assert state.cost == fresh_cost(state)


@pytest.mark.parametrize("in_kernels", [False, True])
def test_a_flip_is_taken_back_without_a_question(in_kernels: bool) -> None:
    """Also a flip that brought classes into use, moved others to another kernel, or had no price."""
    snapshot = case("bert", "library").problem().snapshot
    problem = Problem(snapshot, Pricer(TableObjective()), candidates(snapshot), in_kernels=in_kernels)
    state = State(problem)
    groups, rng = Groups(problem), random.Random(1)
    for step in range(600):
        before, homes, below, keys = snapshot_of(state), list(state.homes), list(state.below), list(state.keys)
        change = random_move(state, groups, rng, 0.3).apply(state)
        if change is None or (step % 3 and state.reprice() and rng.random() < 0.3):
            state.settle()
            continue
        asked = state.memo.lookups
        state.undo(change)
        assert state.memo.lookups == asked
        assert (snapshot_of(state), state.homes, state.below) == (before, homes, below)
        assert (state.keys, state.unknown) == (keys, set())
    assert state.cost == fresh_cost(state)


def test_unused_classes_cost_nothing() -> None:
    problem = case("bert").problem()
    state = State(problem)
    used = set(state.active())
    assert len(used) < problem.snapshot.size
    assert all(not state.kernel_cost[c] for c in range(problem.snapshot.size) if c not in used)


def test_override_bits_move_kernel_boundaries() -> None:
    x = make_input("x", (8, 64))
    y = mk("exp", mk("neg", x))
    z = mk("add", mk("tanh", y), mk("sin", y))
    problem = _problem(Graph((x,), (z,)))
    snapshot = problem.snapshot
    state = State(problem)
    at = {row[0].form.op: c for c, row in enumerate(snapshot.options)}
    assert state.materialised[at["exp"]]  # read twice
    assert not state.materialised[at["neg"]]
    assert len(state.kernels()) == 2
    assert state.flip((), (), [(at["exp"], FORBID)]) is not None
    state.settle()
    assert len(state.kernels()) == 1
    assert state.flip((), (), [(at["neg"], FORCE), (at["tanh"], FORCE)]) is not None
    state.settle()
    assert len(state.kernels()) == 3
    assert state.cost == fresh_cost(state)


def test_in_kernels_of_our_own_what_one_kernel_alone_reads_is_part_of_it() -> None:
    x, w, v = make_input("x", (16, 32)), make_input("w", (32, 24), frozen=True), make_input("v", (24, 8), frozen=True)
    first = mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ())))
    e = mk("exp", mk("neg", first))
    total = mk("reduce_sum", e, axes=(1,))
    share = mk("div", e, mk("broadcast_in_dim", total, shape=(16, 24), broadcast_dimensions=(0,)))
    last = mk("dot_general", share, v, dimension_numbers=(((1,), (0,)), ((), ())))
    problem = _problem(Graph((x, w, v), (last,)), in_kernels=True)
    at = {row[0].form.op: c for c, row in enumerate(problem.snapshot.options)}
    state = State(problem)
    assert state.materialised[at["div"]], "a product reads it"
    assert not any(state.materialised[at[op]] for op in ("exp", "neg", "reduce_sum")), "one kernel alone reads it"
    assert len(state.kernels()) == 2
    assert State(_problem(Graph((x, w, v), (last,)))).materialised[at["exp"]]
    assert state.overridable(at["exp"])
    assert not state.overridable(at["div"])
    assert state.flip((), (), [(at["exp"], FORCE)]) is not None
    state.settle()
    assert len(state.kernels()) == 3
    assert state.cost == fresh_cost(state)
    assert state.overridable(at["exp"])


def test_what_a_product_reads_through_index_maps_lies_in_memory() -> None:
    """A kernel holds one such product, so the search has kernels of one product, not of a whole layer, to cut again."""
    x, w, v = make_input("x", (16, 32)), make_input("w", (32, 24), frozen=True), make_input("v", (16, 8), frozen=True)
    first = mk("exp", mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ()))))
    turned = mk("transpose", mk("reshape", first, new_sizes=(16, 4, 6)), permutation=(1, 2, 0))
    last = mk("dot_general", turned, v, dimension_numbers=(((2,), (0,)), ((), ())))
    graph = Graph((x, w, v), (last,))
    problem = _problem(graph, in_kernels=True)
    at = {row[0].form.op: c for c, row in enumerate(problem.snapshot.options)}
    state = State(problem)
    assert state.materialised[at["exp"]]
    assert not state.materialised[at["regroup"]]
    assert [region.root.op for region in partition(graph)] == ["exp", "dot_general"]
    assert state.flip((), (), [(at["regroup"], FORCE)]) is not None
    assert not state.materialised[at["exp"]], "the index map is stored, and computed of it in one kernel"
    state.settle()
    assert state.cost == fresh_cost(state)


def test_both_products_of_attention_are_one_kernel_that_may_be_cut() -> None:
    q, k, v = (make_input(n, (16, 32)) for n in "qkv")
    scores = mk("dot_general", q, k, dimension_numbers=(((1,), (1,)), ((), ())))
    out = mk("dot_general", mk("tanh", scores), v, dimension_numbers=(((1,), (0,)), ((), ())))
    problem = _problem(Graph((q, k, v), (out,)), in_kernels=True)
    state = State(problem)
    assert len(state.kernels()) == 1
    (at,) = [c for c, row in enumerate(problem.snapshot.options) if row[0].form.op == "tanh"]
    assert state.flip((), (), [(at, FORCE)]) is not None
    state.settle()
    assert len(state.kernels()) == 2
    assert state.cost == fresh_cost(state)


def _problem(graph: Graph, *, in_kernels: bool = False) -> Problem:
    snapshot = Snapshot(import_graph(graph))
    return Problem(snapshot, Pricer(TableObjective()), candidates(snapshot), in_kernels=in_kernels)


def cyclic_problem() -> Problem:
    """Two classes, each computable from the other (the equalities are not true: only structure counts here)."""
    x, y = make_input("x", (4,)), make_input("y", (4,))
    a, b = mk("mul", x, y), mk("add", x, y)
    eg = import_graph(Graph((x, y), (mk("atan2", mk("exp", a), b),)))
    top = next(c for c in eg.classes() for node in eg.enodes(c) if eg.op_of(node) == "mul") << PERM_BITS
    low = next(c for c in eg.classes() for node in eg.enodes(c) if eg.op_of(node) == "add") << PERM_BITS
    eg.union(top, eg.add("sin", eg.add("tanh", low)), None)
    eg.union(low, eg.add("cos", top), None)
    eg.rebuild()
    snapshot = Snapshot(eg)
    return Problem(snapshot, Pricer(TableObjective()), candidates(snapshot))


def test_selections_stay_acyclic() -> None:
    problem = cyclic_problem()
    assert problem.snapshot.cyclic_components == 1
    state = State(problem)
    rng, rejected = random.Random(3), 0
    for _ in range(2000):
        c = rng.randrange(problem.snapshot.size)
        state.settle()
        before = snapshot_of(state)
        if state.flip([(c, rng.randrange(len(state.options[c])))]) is None:
            rejected += 1
            assert snapshot_of(state) == before
        assert problem.snapshot.is_acyclic(state.selection)
    state.settle()
    assert rejected > 20
    assert state.cost == fresh_cost(state)


def test_joint_flip_through_a_cycle_is_taken_back() -> None:
    problem = cyclic_problem()
    snapshot = problem.snapshot
    state = State(problem)
    size = snapshot.component_size
    members = [c for c in range(snapshot.size) if size[snapshot.component[c]] > 1]
    before = snapshot_of(state)
    inside = set(members)
    closing = [(c, i) for c in members for i, o in enumerate(snapshot.options[c]) if inside & set(o.kids)]
    assert state.flip(dict(closing).items()) is None
    assert snapshot_of(state) == before


def test_extraction_is_acyclic_and_original_first() -> None:
    problem = cyclic_problem()
    chosen, costs = problem.snapshot.extract(lambda c, option: 1.0)
    assert all(choice is not None for choice in chosen)
    assert problem.snapshot.is_acyclic([choice or 0 for choice in chosen])
    assert min(costs) == 1.0
    snapshot = case("lstm").problem().snapshot
    original = snapshot.original()
    state = State(case("lstm").problem(), original)
    assert all(state.chosen(c).origin is None for c in state.active())


def test_the_cheapest_option_of_a_class_is_kept() -> None:
    costs = [[5.0, 1.0], [1.0], [1.0], [2.0]]
    found = cheapest([[(), ()], [(0, 0)], [(3,)], [(2,)]], lambda c, i: costs[c][i])
    assert found == ([1, 0, None, None], [1.0, 3.0, math.inf, math.inf])


def test_components() -> None:
    component, sizes = components([[1], [2], [0, 3], [], [3]])
    assert component[0] == component[1] == component[2]
    assert sorted(sizes) == [1, 1, 3]
    assert component[3] < component[0]
    assert component[3] < component[4]


def test_region_spreads_channels_last() -> None:
    problem = case("convnet").problem()
    state = State(problem)
    start = next(c for c in state.active() if state.chosen(c).form.op == "conv_general_dilated")
    layout = next(l for l in problem.candidates[start] if l)
    move = region(state, start, layout, random.Random(0), 0.0)
    assert len(move.layouts) > 8
    one = State(problem, state.selection)
    assert one.flip((), [(start, layout)]) is not None
    one.settle()
    assert move.apply(state) is not None
    state.settle()
    assert state.cost < one.cost  # alone it only adds transposes


def test_prices_are_bounded_integers() -> None:
    assert to_units(1e-6) == 10**9
    assert to_units(float("nan")) == to_units(float("inf")) == to_units(LONGEST_S)
    assert to_units(-1.0) == 0
    assert UNIT_S == 1e-15


def test_equal_layers_share_prices() -> None:
    problem = case("lstm").problem()
    state = State(problem)
    objective = problem.pricer.objective
    assert isinstance(objective, TableObjective)
    kernels = [node for _, node in state.kernels()]
    assert len(set(kernels)) < len(kernels)
    assert objective.kernels == len(problem.pricer.by_node)
    assert objective.calls == 1  # one batch for a whole state
