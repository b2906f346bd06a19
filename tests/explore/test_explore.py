"""Rounds of exploration: corrections by timed kernels, interruption, float64 yardstick, proposals per second."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt.explore.exploration
import superopt.explore.kernel_timer
import superopt.machine.deadline
from costmodel.model.boundary import NOTHING
from costmodel.model.joint import Joint
from costmodel.model.measured import Measured, kind
from rewrites.build.expander import library_expander
from rewrites.egraph.convert import import_graph
from superopt.certify.library import proved_library
from superopt.contest.checks import OriginalRuns, check
from superopt.explore.exploration import begin, explore
from superopt.explore.kernel_timer import KernelTimer
from superopt.explore.trace import make_plan
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, make_input, mk
from superopt.ir.program import original_program
from superopt.kernels.choose.specs import NATIVE
from superopt.lab.bench.programs import nets
from superopt.machine.deadline import Deadline
from superopt.machine.fallback import StageWarning
from superopt.measure import KernelTiming
from superopt.measure.kernels import LEFT_OUT
from superopt.workshop.job import Failure
from tests.support.search_table import TableObjective
from tests.support.stages import steps

LIBRARY = proved_library(None)


class Flat:
    """Every kernel takes a microsecond."""

    name, version = "flat", "1"

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        return np.full(len(kernels), 1e-6)


def product(m: int, n: int, k: int) -> Graph:
    a, b = make_input("a", (m, k)), make_input("b", (k, n), frozen=True)
    return Graph((a, b), (mk("dot_general", a, b, dimension_numbers=(((1,), (0,)), ((), ()))),))


def test_timed_kernels_are_known_and_correct_their_kind() -> None:
    objective = Measured(Flat(), library_expander(()))
    timed, other = product(8, 8, 8), product(16, 16, 16)
    x = make_input("x", (4, 4))
    loop = Graph((x,), (mk("exp", x),))
    objective.learn([loop, timed], [1e-6, 4e-6])
    assert timed in objective
    assert kind(timed) == kind(other) == "dot"
    seconds = objective.price([timed, other, loop])
    assert (seconds[0], seconds[2]) == (4e-6, 1e-6)
    tanh = Graph((x,), (mk("tanh", x),))
    assert 4e-6 > seconds[1] > 1.3 * objective.price([tanh])[0], "a timing tells of its kind more than of others"
    for size in range(20, 60):
        objective.learn([product(size, 8, 8)], [1.0])
    assert objective.factors()["dot"] == pytest.approx(4.0), "corrections are bounded"


def test_what_all_kernels_have_in_common_corrects_kinds_that_were_not_timed() -> None:
    objective = Measured(Flat(), library_expander(()))
    x = make_input("x", (4, 4))
    loops = [Graph((x,), (mk(op, x),)) for op in ("exp", "log", "sqrt", "tanh")]
    sums = [Graph((x,), (mk("reduce_sum", x, axes=(axis,)),)) for axis in (0, 1)]
    moves = [Graph((x,), (mk("transpose", x, permutation=(1, 0)),))]
    objective.learn([*loops, *sums, *moves], [1.6e-6] * 7)
    slower = float(objective.price([product(8, 8, 8)])[0]) / 1e-6
    assert 1.4 < slower < 1.6, "a machine that is slower at all is expected to be slower at products"


def test_a_kernel_that_is_timed_again_corrects_its_kind_by_the_last_time_alone() -> None:
    once, twice = (Measured(Flat(), library_expander(())) for _ in range(2))
    once.learn([product(8, 8, 8)], [2e-6])
    for seconds in (8e-6, 2e-6):
        twice.learn([product(8, 8, 8)], [seconds])
    assert twice.factors() == once.factors()
    assert twice.errors() == once.errors()


class Doubtful(Flat):
    """A microsecond each, which may be off by more the more a kernel reads."""

    def uncertainty(self, kernels: Sequence[Graph]) -> np.ndarray:
        return np.array([1e-4 * sum(math.prod(x.shape) for x in kernel.inputs) for kernel in kernels])

    def outside(self, kernels: Sequence[Graph]) -> None:
        """It does not say."""


def test_those_kernels_are_timed_first_of_whose_price_the_most_is_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Graph] = []

    def timed(graphs: Sequence[Graph], **_: Any) -> list[Failure]:
        asked.extend(graphs)
        return [Failure("time", LEFT_OUT)] * len(graphs)

    monkeypatch.setattr(superopt.explore.kernel_timer, "time_kernels", timed)
    small, middle, large = (product(n, n, n) for n in (4, 8, 16))
    uses = (small, *[middle] * 5, large)
    one = SimpleNamespace(predicted_s=1e-6 * len(uses), kernels=tuple((kernel, 1e-6) for kernel in uses))
    result = cast("Any", SimpleNamespace(finalists=(one,), best=one))
    timer = KernelTimer(Joint(Doubtful(), library_expander(())), cast("Any", None))
    assert timer.learn(result, Deadline.within(1.0)) == 0
    assert asked == [middle, large, small], "five that may be off by 128, one by 512, and one by 32"
    assert list(timer.objective.uncertain_s([small, large])) == pytest.approx([32e-10, 512e-10])
    timer.objective.xla.learn([large], [1e-6])
    assert timer.objective.uncertain_s([large])[0] == 0.0, "what was timed is known"


def test_interrupted_exploration_keeps_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nets.inverted_residual(8, 8, 2, 1, 8)
    imported = import_function(net.fn, (net.params, *net.inputs), frozen=0)
    calls = []
    grow = superopt.explore.exploration.grow

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return grow(*args, **kwargs)

    monkeypatch.setattr(superopt.explore.exploration, "grow", interrupted)
    found = explore(imported.graph, LIBRARY.rules, steps(400, TableObjective()))
    assert found.interrupted
    assert found.finalists
    assert any("interrupted" in note for note in found.notes)


@pytest.mark.parametrize(
    ("stage", "error"), [("search", KeyboardInterrupt), ("search", ValueError), ("grow", ValueError)]
)
def test_what_earlier_rounds_found_is_kept_where_a_later_one_ends(
    stage: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nets.inverted_residual(8, 8, 2, 1, 8)
    imported = import_function(net.fn, (net.params, *net.inputs), frozen=0)
    calls = []
    real = getattr(superopt.explore.exploration, stage)

    def ended(*args, **kwargs):
        calls.append(1)
        if len(calls) > 1:
            raise error("no more")
        return real(*args, **kwargs)

    monkeypatch.setattr(superopt.explore.exploration, stage, ended)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = explore(imported.graph, LIBRARY.rules, steps(400, TableObjective()))
    assert found.finalists
    assert found.interrupted == (error is KeyboardInterrupt)
    assert any("round" in note for note in found.notes)
    assert [w.category for w in said] == ([] if error is KeyboardInterrupt else [StageWarning])


class Convolving:
    """A backend for which a convolution costs 100 us, a product as much as told, and anything else one."""

    name, version, boundary = NATIVE, "1", NOTHING

    def __init__(self, product_s: float) -> None:
        self.product_s = product_s

    def can_run(self, region: Graph) -> bool:
        return True

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        ops = [{n.op for n in k.nodes()} for k in kernels]
        own = [1e-4 if "conv_general_dilated" in o else self.product_s if "dot_general" in o else 1e-6 for o in ops]
        return np.array(own)


def two_convolutions() -> Graph:
    def net(w: Any, x: Any) -> Any:
        for kernel in w:
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x)
        return x

    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((3, 3, 16, 16), np.float32) for _ in range(2)]
    return import_function(net, (weights, rng.standard_normal((1, 8, 8, 16), np.float32)), frozen=0).graph


@pytest.mark.parametrize(("took_s", "chosen"), [(5e-5, {"conv-winograd-square": 2}), (2e-4, {})])
def test_a_form_that_the_model_puts_last_is_the_best_where_its_kernels_were_timed_to_be_faster(
    took_s: float, chosen: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    took = Convolving(took_s)

    def timed(kernels: Sequence[Graph], **_: Any) -> list[KernelTiming]:
        return [KernelTiming(s, (s,), 0.0) for s in took.price(kernels).tolist()]

    monkeypatch.setattr(superopt.explore.kernel_timer, "time_kernels", timed)
    rules = [rule for rule in LIBRARY.rules if rule.name == "conv-winograd-square"]
    asked = replace(steps(400, Flat()), own=cast("Any", Convolving(1.2e-4)))
    found = explore(two_convolutions(), rules, asked, worker=cast("Any", object()))
    assert dict(found.result.best.rules) == chosen


def test_kernels_of_the_best_form_are_handed_over_during_the_next_search(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, inside, during = list[list[Graph]](), list[int](), list[int]()
    real = superopt.explore.exploration.search

    @contextmanager
    def meanwhile(regions: Sequence[Graph]) -> Iterator[None]:
        taken.append(list(regions))
        inside.append(1)
        yield
        inside.pop()

    def watched(*args: Any, **kwargs: Any) -> Any:
        during.append(len(inside))
        return real(*args, **kwargs)

    monkeypatch.setattr(superopt.explore.exploration, "search", watched)
    rules = [rule for rule in LIBRARY.rules if rule.name == "conv-winograd-square"]
    asked = replace(steps(300, Flat()), own=cast("Any", Convolving(5e-5)))
    explore(two_convolutions(), rules, asked, meanwhile=meanwhile)
    assert during == [1, 1, 1]
    assert not inside
    assert [len(regions) for regions in taken] == [0, 1, 1], "two equal kernels are made once"
    assert all(any(n.op == "dot_general" for n in region.nodes()) for region in taken[1])


def test_kernels_are_timed_though_a_search_took_longer_than_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = [1000.0], list[float]()
    real = superopt.explore.exploration.search

    def late(*args: Any, **kwargs: Any) -> Any:
        now[0] += 4.0  # all of the first of three rounds
        return real(*args, **kwargs)

    def learn(_: KernelTimer, __: Any, deadline: Deadline) -> int:
        given.append(deadline.left_s)
        return 0

    monkeypatch.setattr(superopt.machine.deadline, "now_s", lambda: now[0])
    monkeypatch.setattr(superopt.explore.exploration, "search", late)
    monkeypatch.setattr(KernelTimer, "learn", learn)
    rules = [rule for rule in LIBRARY.rules if rule.name == "conv-winograd-square"]
    deadline = Deadline(now[0] + 12.0, 300)
    asked = replace(steps(300, Flat()), deadline=deadline, own=cast("Any", Convolving(1.2e-4)))
    explore(two_convolutions(), rules, asked, worker=cast("Any", object()))
    assert given == [2.0, 2.0], "half of what each of the rounds to come could have"


@pytest.mark.parametrize(("left_s", "is_searched"), [(7.0, True), (5.0, False), (2.0, False)])
def test_the_first_round_is_searched_where_growth_left_time_for_it(
    left_s: float, is_searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, real = [100.0], superopt.explore.exploration.grow

    def slow(*args: Any, **kwargs: Any) -> Any:
        now[0] += 3.0
        return real(*args, **kwargs)

    monkeypatch.setattr(superopt.machine.deadline, "now_s", lambda: now[0])
    monkeypatch.setattr(superopt.explore.exploration, "grow", slow)
    rules = [rule for rule in LIBRARY.rules if rule.name == "conv-winograd-square"]
    asked = replace(steps(300, Flat()), deadline=Deadline(now[0] + left_s, 300))
    graph = two_convolutions()
    begun = begin(graph, rules, asked)
    assert begun.is_searched == is_searched
    assert not begun.interrupted
    found = explore(graph, rules, replace(asked, deadline=Deadline(now[0] + 60.0, 300)), begun=begun)
    assert found.result.best.predicted_s > 0


def test_gains_name_the_rules_of_the_program() -> None:
    net = nets.inverted_residual(16, 16, 2, 1, 14)
    imported = import_function(net.fn, (net.params, *net.inputs), frozen=0)
    found = explore(imported.graph, LIBRARY.rules, steps(2000, TableObjective()))
    best = found.result.best
    assert set(found.gains_ms(best)) == set(best.rules)
    assert found.growth["stop"] == "saturated"
    assert found.statistics["predicted_best_ms"] <= found.statistics["predicted_before_ms"]


def test_float64_is_the_yardstick_for_both() -> None:
    net = nets.bottleneck(8, 8, 8)
    imported = import_function(net.fn, (net.params, *net.inputs), frozen=0)
    program = original_program(imported.graph)
    numerics, cause = check(OriginalRuns.of(imported), program)
    assert not cause
    assert numerics.original_vs_f64 is not None
    assert 0 < numerics.original_vs_f64 == numerics.optimised_vs_f64 < 1e-5
    assert numerics.max_rel_error == 0.0


def test_the_yardstick_leaves_out_what_the_interpreter_would_take_minutes_for() -> None:
    x = np.full((4, 4), 0.01, np.float32)

    def loop(steps: int) -> OriginalRuns:
        return OriginalRuns.of(
            import_function(lambda x: jax.lax.fori_loop(0, steps, lambda i, c: jnp.tanh(c @ x), x), (x,))
        )

    assert loop(20).truth is not None
    assert loop(1_000_000).truth is None


def test_a_wrong_program_is_refused() -> None:
    x = make_input("x", (4, 4))
    right, wrong = Graph((x,), (mk("exp", x),)), Graph((x,), (mk("tanh", x),))
    # all-zero examples alone would not tell: abs and neg agree on them
    zeros = [np.zeros((4, 4), np.float32)]
    assert check(OriginalRuns(right, zeros, {}), original_program(wrong))[1]
    flat, steep = Graph((x,), (mk("abs", x),)), Graph((x,), (mk("neg", x),))
    assert check(OriginalRuns(flat, zeros, {}), original_program(steep))[1]
    assert not check(OriginalRuns(flat, zeros, {}), original_program(flat))[1]


def test_work_on_frozen_inputs_alone_is_a_gain() -> None:
    def lora(w, down, up, x):
        return x @ (w + down @ up)

    rng = np.random.default_rng(0)
    shapes = ((64, 64), (64, 4), (4, 64), (2, 64))
    arguments = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    imported = import_function(lora, arguments, frozen=(0, 1, 2))
    found = explore(imported.graph, LIBRARY.rules, steps(300, TableObjective()))
    best = found.finalists[0]
    assert sum(node.op == "dot_general" for node in found.program(best).hot.nodes()) == 1


def test_a_graph_without_proofs_has_a_plan_that_says_so() -> None:
    graph = product(2, 3, 4)
    snapshot = SimpleNamespace(eg=import_graph(graph))
    found = SimpleNamespace(result=SimpleNamespace(problem=SimpleNamespace(snapshot=snapshot)), imported=graph)
    plan = make_plan(cast("Any", found), cast("Any", None), LIBRARY.rules)
    assert (plan.instances, plan.note) == ((), "the e-graph kept no proofs")


@pytest.mark.parametrize(("changes", "made"), [({}, True), ({"numerics": "exact"}, False), ({"rules": ()}, False)])
def test_orders_of_sums_are_made_where_neither_bits_nor_rules_are_given(changes: dict[str, Any], made: bool) -> None:
    def fn(d: jax.Array, w: jax.Array, e: jax.Array) -> jax.Array:
        return jnp.diag(d) @ w @ jnp.diag(e)

    graph = import_function(fn, [np.ones(shape, np.float32) for shape in ((8,), (8, 9), (9,))]).graph
    found = explore(graph, LIBRARY.rules, replace(steps(50, TableObjective()), **changes))
    assert bool(found.instances.certificates) == made


@pytest.mark.parametrize(("numerics", "taken"), [("real", True), ("exact", False)])
def test_work_leaves_loops_where_results_need_not_agree_in_every_bit(numerics: str, taken: bool) -> None:
    def fn(a: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 5, lambda _, v: v / 2 + a.T @ (a @ v), x)

    graph = import_function(fn, (np.ones((4, 3), np.float32), np.ones(3, np.float32))).graph
    assert bool(explore(graph, [], replace(steps(50, TableObjective()), numerics=numerics)).loops) == taken
