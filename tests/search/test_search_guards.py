"""Guards of the search: moves that close a cycle or have no price yet, and forms that are not worth measuring."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

from rewrites.egraph.convert import import_graph
from rewrites.egraph.perm import PERM_BITS
from superopt.ir.graph import Graph, make_input, mk, topological
from superopt.machine.deadline import Deadline
from superopt.search.descent import Descents, attempt, repair
from superopt.search.finalists import Finalist, distance, finalist, kernel_costs, rival_kernels, without_rules
from superopt.search.layout import candidates
from superopt.search.meter import Meter
from superopt.search.moves import Move, every_state, neighbours
from superopt.search.pricing import UNIT_S, Pricer
from superopt.search.search import (
    OWN_OPERATIONS,
    POOL,
    SearchRun,
    SearchSettings,
)
from superopt.search.snapshot import SHIFT, Selection, Snapshot
from superopt.search.starts import LocalCosts, dynamic, greedy
from superopt.search.state import RULE, Problem, Record, State
from tests.search.test_search_state import cyclic_problem, snapshot_of
from tests.support.search_cases import case

STEPS = Deadline(steps=10)


def run() -> SearchRun:
    return SearchRun(cyclic_problem(), SearchSettings(STEPS), Meter(STEPS))


def closing(made: SearchRun) -> list[tuple[int, int]]:
    """The options, by class, that close the cycle when they are chosen together."""
    snapshot = made.snapshot
    inside = {c for c in range(snapshot.size) if snapshot.component_size[snapshot.component[c]] > 1}
    return [(c, i) for c in sorted(inside) for i, o in enumerate(snapshot.options[c]) if inside & set(o.kids)]


def carried(made: SearchRun, *held: tuple[int, tuple[int, ...]]) -> list[int]:
    """The options that a search goes on from after a finalist with these classes and e-nodes."""
    held_in = tuple((cls << SHIFT, enode, RULE) for cls, enode in held)
    return made._carry(Finalist("", 0.0, Selection((), (), (), ()), (), Counter(), held_in, frozenset())).selection


def test_a_carried_selection_is_taken_unless_it_has_a_cycle() -> None:
    made = run()
    snapshot, options = made.snapshot, closing(made)
    held = [(snapshot.class_ids[c], snapshot.options[c][i].enode) for c, i in options]
    assert len(options) > 1
    for (c, i), one in zip(options, held, strict=True):
        assert carried(made, one)[c] == i
    assert carried(made, *held) == snapshot.original()


def test_a_carried_class_that_is_gone_is_left_out() -> None:
    made = run()
    eg = made.snapshot.eg
    fresh = eg.add("neg", eg.roots[0])
    assert fresh >> SHIFT not in made.snapshot.class_ids
    assert carried(made, (fresh >> SHIFT, (0,))) == made.snapshot.original()


def test_states_with_a_cycle_are_not_started_from(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run()
    local = LocalCosts(made.problem)
    local.price_everything()
    other = [len(row) - 1 for row in made.snapshot.options]
    monkeypatch.setattr(Snapshot, "is_acyclic", lambda *_: False)
    assert dynamic(local, other, cut=False)[0] == other
    monkeypatch.undo()
    assert dynamic(local, other, cut=False)[0] != other


def test_the_steps_before_an_interruption_stand() -> None:
    made = run()
    best = min(every_state(State(made.problem), 300) or (), key=lambda s: s.cost).record()
    steps: list[int] = []

    class Interrupted:
        """Finds the best state in a step, and is interrupted in the next."""

        def step(self) -> None:
            if steps:
                raise KeyboardInterrupt
            steps.append(1)

        def done(self) -> bool:
            return False

        def records(self) -> dict[str, Record]:
            return {"one": best}

    made.settings = replace(made.settings, mixture=((lambda *_: Interrupted(), 1.0),))
    with pytest.raises(KeyboardInterrupt):
        made.explore()
    made.collect()
    assert made.ground.records["one"] == best


def test_a_form_that_contains_its_own_class_is_no_option() -> None:
    x = make_input("x", (4,))
    eg = import_graph(Graph((x,), (mk("exp", mk("tanh", x)),)))
    top = next(c for c in eg.classes() for node in eg.enodes(c) if eg.op_of(node) == "tanh") << PERM_BITS
    eg.union(top, eg.add("sin", top), None)
    eg.rebuild()
    snapshot = Snapshot(eg)
    assert {option.form.op for row in snapshot.options for option in row} == {"exp", "tanh", "input"}
    assert snapshot.cyclic_components == 0


def test_a_move_that_closes_a_cycle_changes_nothing() -> None:
    made = run()
    state = State(made.problem)
    before = snapshot_of(state)
    assert attempt(state, Move(tuple(closing(made)))) is False
    assert snapshot_of(state) == before


def test_neighbours_that_close_a_cycle_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run()
    (c, i), *_ = closing(made)
    state = State(made.problem)
    assert state.flip([(c, i)]) is not None
    state.settle()
    assert any(
        State.at(made.problem, state.choice()).flip(m.options) is None for m in neighbours(state, made.ground.groups)
    )
    before = snapshot_of(state)
    assert rival_kernels(made.problem, finalist(made.problem, made.lowering, "", state.record()), 2.0) is not None
    monkeypatch.setattr(import_module("superopt.search.search"), "MOST_STATES", 1)
    made._keep_neighbours(state)
    assert any(name.startswith("beside") for name in made.ground.records)
    assert snapshot_of(state) == before


def test_a_move_without_a_price_waits() -> None:
    made = run()
    state = State(made.problem)
    before = snapshot_of(state)
    move = Move((closing(made)[0],))
    assert attempt(state, move) is None
    assert snapshot_of(state) == before
    state.memo.flush()  # prices of ops alone, by which it is drafted
    assert attempt(state, move) is not None


class MacrosAreDear:
    """A kernel costs 1 s, with a macro 100 s."""

    name = version = "macros are dear"

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        return np.array([100.0 if any(n.op == "macro" for n in k.nodes()) else 1.0 for k in kernels])


def test_a_move_that_its_draft_refuses_is_not_priced() -> None:
    """The prices of its ops alone are known from other places; the kernel that fuses them is never cut nor priced."""
    snapshot = case("convnet", "library").problem().snapshot
    problem = Problem(snapshot, Pricer(MacrosAreDear()), candidates(snapshot), in_kernels=True)
    state = State(problem)
    macros = [(c, i) for c in state.active() for i, o in enumerate(state.options[c]) if o.form.rule is not None]
    assert macros
    for _ in range(2):
        said = {attempt(state, Move(((c, i),))) for c, i in macros}
        state.memo.flush()
    assert said == {False}
    kernels = [{node.op for node in topological((root,))} for root in problem.pricer.by_node]
    assert any("macro" in ops for ops in kernels)
    assert not any("macro" in ops and "max" in ops for ops in kernels)


def test_what_is_measured_is_neither_slower_than_the_original_nor_far_from_the_best() -> None:
    made = run()
    cost, *rest = made.ground.records["original"]
    parts = {"best": 0.5, "again": 0.5, "near": 0.95, "far": 1.02, OWN_OPERATIONS: 1.03, "slower": 1.2}
    made.ground.records = {name: (int(part * cost), *rest) for name, part in {"original": 1.0, **parts}.items()}
    pool = [name for _, name in made._pool(cost * UNIT_S)]
    assert pool == ["best", "near", OWN_OPERATIONS], "the original's own operations are measured whatever the best is"
    made.ground.records[OWN_OPERATIONS] = (int(1.2 * cost), *rest)
    assert [name for _, name in made._pool(cost * UNIT_S)] == ["best", "near"]
    made.ground.records = {f"{k}": (cost - k, *rest) for k in range(POOL + 3)}
    assert len(made._pool(cost * UNIT_S)) == POOL


def test_starts_without_time_know_the_program_itself() -> None:
    made = run()
    local = LocalCosts(made.problem)
    over = Meter(Deadline.within(1e-3))
    while not over.is_late:
        pass
    local.price_everything(over)
    priced = len(made.problem.pricer.by_node)
    base = greedy(local)
    assert made.snapshot.is_acyclic(base)
    assert all(local.price(entry.node) < math.inf for entry in local.rows(0, made.snapshot.original()[0], 0))
    selection, layouts = dynamic(local, base, cut=True)
    assert State(made.problem, selection, layouts).cost > 0
    local.price_everything()
    assert len(made.problem.pricer.by_node) > priced


def test_all_states_are_not_looked_at_beyond_the_time() -> None:
    made = run()
    over = Meter(Deadline.within(1e-3))
    while not over.is_late:
        pass
    assert every_state(State(made.problem), 300, over) is None


def test_all_states_are_as_many_as_are_asked_for_at_most() -> None:
    start = State(run().problem)
    count = len(every_state(start, 300) or ())
    before = snapshot_of(start)
    assert len(every_state(start, count) or ()) == count
    assert every_state(start, count - 1) is None
    assert snapshot_of(start) == before


def other_states(made: SearchRun) -> list[State]:
    """States whose kernels differ from those of the program itself."""
    first = kernel_costs(State(made.problem))
    return [s for s in every_state(State(made.problem), 300) or () if distance(kernel_costs(s), first)]


def test_descents_end_where_most_of_the_time_is_spent() -> None:
    for spent, count in ((0, 2), (8, 1)):
        made = run()
        made.ground.records["other"] = other_states(made)[0].record()
        made.meter.step(spent)
        descents = Descents(made.ground, made.meter.share(0.7))
        while not descents.done():
            descents.step()
        made.ground.records |= descents.records()
        assert sum(name.endswith("+descent") for name in made.ground.records) == count


def test_what_has_no_time_or_nothing_to_change_is_not_improved() -> None:
    made = run()
    made.meter.step(10)
    made.explore()
    assert list(made.ground.records) == ["original"]
    w = make_input("w", (4,), frozen=True)
    snapshot = Snapshot(import_graph(Graph((w,), (mk("exp", w),))))
    assert not snapshot.size
    known = SearchRun(Problem(snapshot, made.problem.pricer, []), SearchSettings(STEPS), Meter(STEPS))
    known.explore()
    assert list(known.ground.records) == ["original"]


def test_a_name_keeps_its_cheapest_state() -> None:
    made = run()
    cheap, dear = sorted(every_state(State(made.problem), 300) or (), key=lambda s: s.cost)[:: len(other_states(made))][
        :2
    ]
    assert cheap.cost < dear.cost
    for state in (dear, cheap, dear):
        made._keep("one", state)
    assert made.ground.records["one"][0] == cheap.cost


def test_what_has_the_kernels_of_another_is_no_finalist() -> None:
    made = run()
    cost = made.ground.records["original"][0]
    made.ground.records[OWN_OPERATIONS] = made.ground.records["original"]
    assert [f.name for f in made.choose()] == ["original"]
    for k, state in enumerate(other_states(made)[:3]):
        made.ground.records[f"other {k}"] = (cost - 1 - k, *state.record()[1:])
    assert len(made.choose()) > 2
    made.settings = replace(made.settings, finalists=2)
    assert [f.original for f in made.choose()] == [False, True]


@pytest.mark.parametrize("late", [False, True])
def test_rules_are_left_out_one_at_a_time_as_long_as_there_is_time(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run()
    (c, i), *_ = closing(made)
    made.snapshot.options[c][i].origin = SimpleNamespace(rule="r", step=0)
    state = State(made.problem)
    assert state.flip([(c, i)]) is not None
    state.settle()
    made.ground.records["best"] = (0, *state.record()[1:])
    if late:
        monkeypatch.setattr(Meter, "is_late", True)
    made.hedge()
    assert OWN_OPERATIONS in made.ground.records
    assert ("without r" in made.ground.records) is not late
    assert not without_rules(state, {"r"}).chosen(c).origin


def test_a_repair_ends_after_its_visits() -> None:
    made = run()
    state, meter = State(made.problem), Meter(Deadline(steps=1_000))
    for limit, steps in ((0, False), (400, True)):
        for _ in repair(state, range(made.snapshot.size), meter, limit):
            state.memo.flush()
        assert bool(meter.steps) is steps
