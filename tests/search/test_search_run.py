"""Whole searches: quality, determinism, interruption, budgets, finalists, warm starts, rule gains."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from costmodel.model.objective import Objective
from superopt.errors import InputError
from superopt.ir.graph import Graph, Node, make_input, mk
from superopt.machine.deadline import Deadline
from superopt.search import Forms, Pricer, SearchResult, SearchSettings, descent, search
from superopt.search.chains import Repairing
from superopt.search.descent import descend, through
from superopt.search.emit import Wants, kernel_node
from superopt.search.finalists import rule_gains
from superopt.search.meter import CHECK_EVERY, Meter
from superopt.search.moves import Groups
from superopt.search.search import OWN_OPERATIONS
from superopt.search.snapshot import Selection
from superopt.search.starts import LocalCosts, cuts, dynamic, greedy
from superopt.search.state import Problem, State
from superopt.search.strategy import Ground
from tests.support.search_cases import Case, case, plain_macro, run_program, worst_error
from tests.support.search_table import TableObjective

STEPS = Deadline(steps=6000)


@functools.cache
def found(name: str) -> SearchResult:
    """The result of the search of a program that several tests look at."""
    return run(case(name))


def run(this: Case, deadline: Deadline = STEPS, seed: int = 0) -> SearchResult:
    """A search under a fresh table objective."""
    return search(this.eg, TableObjective(), SearchSettings(deadline, seed))


@pytest.mark.parametrize("name", ["convnet", "inverted", "bert", "linear", "lstm"])
def test_finalists_are_right_and_cheaper(name: str) -> None:
    this, result = case(name), found(name)
    assert result.best.predicted_s <= min(*result.statistics.starts.values(), result.original.predicted_s)
    assert result.finalists[-1].original
    assert sum(f.original for f in result.finalists) == 1
    for finalist in result.finalists:
        program = result.program(finalist, this.graph, plain_macro)
        assert worst_error(run_program(program, this.values), this.outputs) < 1e-4
        assert sum(s for _, s in finalist.kernels) <= finalist.predicted_s * (1 + 1e-9)
        assert result.lowering.prepared_bytes(finalist.selection) == program.prepared_bytes


def test_a_sweep_ends_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(descent, "bit_moves", lambda _, c: tried.append(c) or [()])
    state: Any = SimpleNamespace(cost=1.0, active=lambda: range(10 * CHECK_EVERY))
    meter: Any = SimpleNamespace(exhausted=iter([False, True]).__next__)
    descent.recut(state, meter)
    assert len(tried) == CHECK_EVERY


class SlowTable(TableObjective):
    """Prices of a table, each of which takes so many seconds of a made-up clock; keeps what it is asked."""

    def __init__(self, now: list[float], each_s: float) -> None:
        super().__init__()
        self.now, self.each_s, self.asked = now, each_s, list[Graph]()

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        self.asked += kernels
        self.now[0] += self.each_s * len(kernels)
        return super().price(kernels)


def test_what_there_is_no_time_to_price_is_not_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first sweep asks for hundreds of kernels, each of which may take tens of milliseconds to be cut and priced."""
    now = [0.0]
    monkeypatch.setattr("superopt.machine.deadline.now_s", lambda: now[0])

    problem = case("convnet").problem()
    problem = Problem(problem.snapshot, Pricer(SlowTable(now, 0.1)), problem.candidates)
    state = State(problem, problem.snapshot.original())
    asked, begin_s = len(problem.pricer.by_node), now[0]
    through(descend(state, Groups(problem), random.Random(0), Meter(Deadline.within(1.0))))
    assert 0 < len(problem.pricer.by_node) - asked <= 2 * CHECK_EVERY
    assert now[0] - begin_s < 4.0
    state.settle()
    through(descend(state, Groups(problem), random.Random(0), Meter(Deadline(steps=100_000))))
    assert len(problem.pricer.by_node) - asked > 4 * CHECK_EVERY, "what was left is asked for where there is time"


def test_prices_leave_time_for_the_moves_that_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a clock, kernels that take long to cut come last."""
    now = [0.0]
    monkeypatch.setattr("superopt.machine.deadline.now_s", lambda: now[0])
    slow = SlowTable(now, 0.1)
    pricer = Pricer(slow)
    plain = [mk("exp", make_input("x", (n,))) for n in range(1, 30)]
    macros = [mk("macro", node.inputs[0], rule="fast", op="exp", attrs=()) for node in plain]
    meter = Meter(Deadline.within(10.0)).share(0.9)
    pricer.price([*macros, *plain], meter.for_prices)
    asked = [any(node.op == "macro" for node in kernel.nodes()) for kernel in slow.asked]
    assert asked == sorted(asked)
    assert 29 < len(asked) < 50
    assert meter.rest.left_s < 5.0


@pytest.mark.parametrize(("left_s", "room"), [(100.0, 2 * CHECK_EVERY), (0.02 * CHECK_EVERY, 20), (1e-6, 1)])
def test_a_batch_of_prices_is_what_fits_into_a_part_of_the_time(
    left_s: float, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It doubles at most."""
    now = [0.0]
    monkeypatch.setattr("superopt.machine.deadline.now_s", lambda: now[0])

    pricer = Pricer(SlowTable(now, 0.001))
    pricer.price([mk("exp", make_input("x", (n,))) for n in range(1, CHECK_EVERY + 1)], Deadline.within(left_s))
    assert pricer.room == pytest.approx(room, abs=1)


def test_layout_search_finds_channels_last() -> None:
    result = found("convnet")
    assert result.best.predicted_s < 0.9 * result.original.predicted_s
    kernels = [node for graph, _ in result.best.kernels for node in graph.nodes()]
    convs = [n for n in kernels if n.op in ("conv_general_dilated", "macro")]
    products = [n for n in kernels if n.op == "dot_general"]
    assert products
    assert len(convs) < 6


def test_merged_products_need_a_group_move() -> None:
    """Each slice alone reads a product that is too large for it; all four together win."""
    result = found("lstm")
    assert result.best.rules["merge"] >= 1
    products = [n for graph, _ in result.best.kernels for n in graph.nodes() if n.op == "dot_general"]
    original = [n for graph, _ in result.original.kernels for n in graph.nodes() if n.op == "dot_general"]
    assert len(products) < len(original)


def test_steps_and_seed_determine_the_result() -> None:
    a, b = run(case("swiglu"), seed=5), run(case("swiglu"), seed=5)
    assert [f.predicted_s for f in a.finalists] == [f.predicted_s for f in b.finalists]
    assert [f.selection for f in a.finalists] == [f.selection for f in b.finalists]
    assert a.statistics.proposals == b.statistics.proposals


def test_steps_bound_the_search() -> None:
    result = run(case("bert"), Deadline(steps=300))
    assert result.statistics.proposals < 300 + 2000  # phases look at the meter every few proposals
    assert result.best.predicted_s <= result.original.predicted_s


def test_seconds_bound_the_search() -> None:
    began = time.process_time()
    result = run(case("bert"), Deadline.within(0.3))
    assert time.process_time() - began < 5.0
    assert not result.interrupted


@pytest.mark.parametrize("deadline", [Deadline(), Deadline(steps=0), Deadline(0.0, -1)])
def test_searches_without_an_end_or_a_step_are_refused(deadline: Deadline) -> None:
    with pytest.raises(InputError):
        run(case("linear"), deadline)


class Interrupting(TableObjective):
    """Presses Ctrl-C at a given batch."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        if self.calls + 1 == self.at:
            self.at = -1
            raise KeyboardInterrupt
        return super().price(kernels)


@pytest.mark.parametrize("at", [2, 3, 4, 6, 9, 15])
def test_interrupt_returns_the_best_so_far(at: int) -> None:
    this = case("bert")
    result = search(this.eg, Interrupting(at), SearchSettings(Deadline(steps=20_000)))
    assert result.interrupted
    assert result.best.predicted_s <= result.original.predicted_s
    program = result.program(result.best, this.graph, plain_macro)
    assert worst_error(run_program(program, this.values), this.outputs) < 1e-4


@functools.cache
def of_five(name: str) -> SearchResult:
    """The result of a search that keeps five finalists."""
    return search(case(name).eg, TableObjective(), SearchSettings(Deadline(steps=20_000), finalists=5))


def test_finalists_differ() -> None:
    result = of_five("bert")
    assert 2 <= len(result.finalists) <= 5
    structures = [tuple(sorted(id(g.outputs[0]) for g, _ in f.kernels)) for f in result.finalists]
    assert len(set(structures)) == len(structures)


@pytest.mark.parametrize("name", ["bert", "inverted", "inception"])
def test_the_own_operations_with_the_best_cuts_are_a_finalist(name: str) -> None:
    """Of a program that rewrites change: the model may be wrong about these, by however much it says they bring."""
    result = of_five(name)
    assert result.best.rules
    (own,) = [f for f in result.finalists if f.name == OWN_OPERATIONS]
    assert not own.rules
    assert own.predicted_s < result.original.predicted_s


def test_warm_start_carries_a_selection_over() -> None:
    this = case("bert")
    objective = TableObjective()
    pricer, forms = Pricer(objective), Forms()
    first = search(this.eg, objective, SearchSettings(STEPS), pricer=pricer, forms=forms)
    asked = objective.kernels
    second = search(
        this.eg, objective, SearchSettings(Deadline(steps=50), 9), pricer=pricer, forms=forms, warm=first.best
    )
    assert second.statistics.starts["warm"] == pytest.approx(first.best.predicted_s, rel=1e-12)
    assert second.best.predicted_s <= first.best.predicted_s
    assert objective.kernels - asked < 0.5 * asked  # prices by structure are remembered


def test_a_second_search_over_the_same_forms_makes_few_kernels_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices change between the rounds of an exploration; the kernels do not."""
    made: list[int] = []

    def counted(wants: Wants, selection: Selection, c: int) -> Node | None:
        made.append(c)
        return kernel_node(wants, selection, c)

    monkeypatch.setattr("superopt.search.state.kernel_node", counted)
    this, forms = case("bert"), Forms()
    first = search(this.eg, TableObjective(), SearchSettings(STEPS), forms=forms)
    count = len(made)
    second = search(this.eg, TableObjective(), SearchSettings(STEPS), forms=forms)
    assert len(made) - count < count / 4, "those alone that the first did not ask for"
    assert second.best.predicted_s == pytest.approx(first.best.predicted_s, rel=0.05)


def test_prepared_bytes_are_bounded() -> None:
    this, free = case("lstm"), found("lstm")
    limit = free.lowering.prepared_bytes(free.original.selection)
    bounded = search(this.eg, TableObjective(), SearchSettings(STEPS, max_prepared_bytes=limit))
    assert all(bounded.lowering.prepared_bytes(f.selection) <= limit or f.original for f in bounded.finalists)


def test_rule_gains() -> None:
    result = found("lstm")
    gains = rule_gains(result.problem, result.best)
    assert set(gains) == set(result.best.rules)
    whole = result.original.predicted_s - result.best.predicted_s
    assert whole > 0
    assert max(gains.values()) > 0.3 * whole


def test_starts() -> None:
    problem = case("convnet").problem()
    local = LocalCosts(problem)
    local.price_everything()
    base = greedy(local)
    original = State(problem).cost
    assert State(problem, base).cost < original
    for cut in (False, True):
        selection, layouts = dynamic(local, base, cut=cut)
        assert State(problem, selection, layouts).cost < State(problem, base).cost
    root = problem.snapshot.roots[0].cls
    assert cuts(problem.snapshot)[root]  # everything passes through the output
    assert Groups(problem).groups


def test_objective_protocol_and_batches() -> None:
    objective = TableObjective()
    assert isinstance(objective, Objective)
    result = search(case("convnet").eg, objective, SearchSettings(STEPS))
    assert objective.kernels == result.statistics.distinct_kernels  # nothing is priced twice
    assert objective.kernels / objective.calls > 3


class Slow(TableObjective):
    """A jitted model: a call costs much, a kernel little.  Time is counted, not spent."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        self.sizes.append(len(kernels))
        return super().price(kernels)


@pytest.mark.parametrize("name", ["convnet", "linear", "lstm"])
def test_a_search_asks_in_batches(name: str) -> None:
    objective = Slow()
    result = search(case(name).eg, objective, SearchSettings(Deadline(steps=20_000)))
    assert objective.calls < 150
    assert objective.calls < 0.02 * result.statistics.proposals
    assert max(objective.sizes) <= 512


def test_chains_end_in_different_places() -> None:
    problem = case("swiglu").problem()
    start = State(problem).record()
    ground = Ground(problem, Groups(problem), random.Random(0), {"original": start})
    repairing = Repairing(ground, Meter(Deadline(steps=6_000)))
    while not repairing.done():
        repairing.step()
    chains = repairing.chains
    assert len(chains) > 8
    assert min(chain.best[0] for chain in chains) < start[0]
    assert len({chain.best[0] for chain in chains}) > 3
    for chain in chains:
        assert State(problem, *chain.best[1:]).cost == chain.best[0]  # also those that the budget cut off


def test_meter_shares() -> None:
    meter = Meter(Deadline(steps=100))
    part = meter.share(0.5)
    part.step(50)
    assert part.exhausted()
    assert not meter.exhausted()
    assert meter.spent() == 0.5
    meter.step(50)
    assert meter.share(0.1).exhausted()
