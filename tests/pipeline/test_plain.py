"""The plain candidate: own form, every region a kernel; it is returned without a search and bounds what one returns."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import superopt
from costmodel.model.joint import Joint, KernelJob
from costmodel.model.load import load_objective
from rewrites.build.expander import library_expander
from rewrites.library import load
from superopt.backends.native import Native
from superopt.candidates.candidate import Candidate
from superopt.contest import checks
from superopt.contest.contest import Outcome
from superopt.contest.rounds import Series
from superopt.errors import SuperoptError
from superopt.explore.exploration import explore
from superopt.explore.kernel_timer import KernelTimer
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.kernels.choose.specs import NATIVE
from superopt.machine.deadline import Deadline
from superopt.machine.speedup import Speedup
from superopt.make import trials
from superopt.make.forms import that_differ
from superopt.make.plain import KernelMaker, in_regions, own_form
from superopt.make.trials import TrialPool
from superopt.measure import Comparison, Timing
from superopt.measure.kernels import XLA
from superopt.pipeline import again as recalled
from superopt.pipeline import building, checking, contesting, exploring, forming
from superopt.pipeline import plain as making
from superopt.report.data import read_report
from superopt.store import Store
from superopt.workshop.process import Worker

pytestmark = pytest.mark.usefixtures("keeps_plain", "workers_quickly")

RNG = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def pool() -> Iterator[TrialPool]:
    with TrialPool(processes=1) as made:
        yield made


# ten seconds: on a cold machine half of five may not do for the kernels of the plain candidate
BUDGETS = pytest.mark.parametrize("budget", ["10s", pytest.param("300steps", marks=pytest.mark.slow)])
"""Of searches whose outcome a test sets: those of steps judge as long as it takes."""


def network(p: dict[str, Any], x: Any) -> Any:
    scale = p["gain"] / jnp.sqrt(p["variance"] + 1e-5)
    y = lax.conv_general_dilated(x, p["w"], (1, 1), "SAME") * scale[None, :, None, None]
    y = jnp.maximum(y, 0.0).mean((2, 3)) @ p["dense"]
    return jnp.exp(y - y.max(-1, keepdims=True))


WEIGHTS = {"w": values(8, 4, 3, 3), "gain": values(8), "variance": values(8) ** 2, "dense": values(8, 16)}
IMAGE = values(1, 4, 9, 9)


def test_every_region_of_the_own_form_is_a_kernel_and_what_is_frozen_is_done_ahead(pool: TrialPool) -> None:
    imported = import_function(network, (WEIGHTS, IMAGE), frozen=0)
    form = own_form(imported.graph)
    assert form.prepare is not None
    assert any(node.op in ("rsqrt", "sqrt") for node in form.prepare.nodes())
    assert not any(node.op in ("rsqrt", "sqrt") for node in form.hot.nodes())
    maker = KernelMaker(pool)
    made = maker.make(in_regions("own form", form))
    rows = maker.rows(made)
    assert rows
    assert all(row.used and not row.failure for row in rows)
    assert len(made.kernels) == sum(row.count for row in rows)
    assert any(node.op == "transpose" for node in made.program.hot.nodes())  # channels last
    assert not made.changes_nothing


def test_equal_regions_are_made_once_and_what_the_time_does_not_allow_is_left_to_xla(pool: TrialPool) -> None:
    made: list[int] = []

    class Counting:
        batch, backend, is_here = 1, pool.backend, True
        start, ready = pool.start, pool.ready
        spent_s = property(lambda _: pool.spent_s)

        def make_all(self, jobs: Any, end_s: float = math.inf) -> Any:
            made.append(len(jobs))
            return pool.make_all(jobs, end_s)

    class Slow(Counting):
        def make_all(self, jobs: Any, end_s: float = math.inf) -> Any:
            found = super().make_all(jobs, end_s)
            time.sleep(max(0.0, end_s - time.monotonic()))
            return found

    def deep(w: Any, x: Any) -> Any:
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return x

    imported = import_function(deep, (values(12, 12), values(3, 12)), frozen=0)
    maker = KernelMaker(Counting())  # pyright: ignore[reportArgumentType]
    program = maker.make(in_regions("own form", own_form(imported.graph)))
    assert len(program.kernels) == 4
    assert sum(made) < 4
    assert maker.seconds_for(program) == 0.0
    chains = (jnp.exp, lambda x: jnp.exp(jnp.sin(jnp.tanh(x))))
    others = [own_form(import_function(chain, (values(5, 7),)).graph) for chain in chains]
    one, three = (in_regions("own form", other) for other in others)
    assert maker.seconds_for(one) > 0.0
    message = "a kernel takes as long to make as it has operations"
    assert maker.seconds_for(three) == pytest.approx(3 * maker.seconds_for(one)), message
    maker.model = SimpleNamespace(own=None, was_made=lambda region: True)  # pyright: ignore[reportAttributeAccessIssue]
    assert maker.seconds_for(three) == 0.0, "the code of a kernel that was timed is kept"
    assert not maker.has_made(three)
    several = import_function(lambda x: (jnp.tanh(x), jnp.exp(x).sum(0), jnp.sin(x), x @ x.T), (values(20, 30),))
    form = in_regions("own form", own_form(several.graph))
    some = KernelMaker(Slow()).make(form, Deadline.within(3.0))  # pyright: ignore[reportArgumentType]
    assert 0 < len(some.kernels) < 4  # the first batch, which takes all of the time
    assert not KernelMaker(Counting()).make(form, Deadline.within(0.0)).kernels  # pyright: ignore[reportArgumentType]


def test_code_that_was_made_beside_the_search_takes_no_time(pool: TrialPool, monkeypatch: pytest.MonkeyPatch) -> None:
    first = in_regions("own form", own_form(import_function(jnp.exp, (values(6, 7),)).graph))
    later = in_regions("own form", own_form(import_function(lambda x: jnp.sin(jnp.exp(x)), (values(6, 7),)).graph))
    maker = KernelMaker(pool)
    maker.make(first)
    assert maker.seconds_for(later) > 0.0
    regions = [region.graph for region in (*first.regions, *later.regions)]
    monkeypatch.setattr(trials, "usable_cores", lambda: 1)
    with maker.meanwhile(regions):
        time.sleep(0.2)
    assert maker.seconds_for(later) > 0.0, "the search has the only core"
    monkeypatch.setattr(trials, "usable_cores", lambda: 2)
    with maker.meanwhile(regions):
        time.sleep(0.2)  # one is begun at once, and waited for
    assert maker.seconds_for(later) == 0.0
    assert not maker.has_made(later), "its schedule is not proved"
    assert len(maker.make(later).kernels) == 1


def test_the_report_says_why_a_region_is_left_to_xla() -> None:
    imported = import_function(lambda x: jnp.tanh(x @ x.T), (values(24, 16),))
    form = in_regions("own form", own_form(imported.graph))
    (graph,) = {region.graph for region in form.regions}

    def said(maker: KernelMaker) -> str:
        (row,) = maker.rows(form)
        return row.failure

    with TrialPool(processes=1) as idle:
        maker = KernelMaker(idle)
        assert said(maker) == "not made: the time does not suffice"
        maker.model = Joint(load_objective(None), library_expander(()), Native())
        job = KernelJob(NATIVE, graph, graph)
        maker.model.refuse(job)
        assert said(maker) == "no kernel of it could be timed"
        maker.model.learn([job, KernelJob(XLA, graph, graph)], [1.0, 1e-3])
        assert said(maker) == "faster there"
        maker.backend = cast("Any", SimpleNamespace(name="other", can_run=lambda region: False))
        maker.model = None
        assert said(maker) == "other has no code for it"


def test_a_schedule_that_is_not_proved_is_followed_by_a_plainer_default(
    pool: TrialPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from superopt.backends.native import default_trace
    from superopt.make import plain

    imported = import_function(lambda x: jnp.tanh(x @ x.T), (values(24, 16),))
    form = own_form(imported.graph)

    def doubted(backend: Any, tried: Any, store: Any, say: Any) -> Any:
        return {
            g: replace(t, failure="its schedule is UNKNOWN") if t.trace == default_trace(g) else t
            for g, t in tried.items()
        }

    monkeypatch.setattr(plain, "proved", doubted)
    maker = KernelMaker(pool)
    made = maker.make(in_regions("own form", form))
    assert made.kernels
    assert all(row.used for row in maker.rows(made))
    assert all(choice.trace is not None for choice in made.kernels)


def test_without_a_search_the_plain_candidate_is_returned_and_nothing_is_claimed(tmp_path: Any) -> None:
    lines: list[str] = []
    fast = superopt.optimize(
        network, WEIGHTS, IMAGE, frozen=0, search=False, store=tmp_path / "store.sqlite", progress=lines.append
    )
    np.testing.assert_allclose(fast(WEIGHTS, IMAGE), network(WEIGHTS, IMAGE), rtol=2e-5, atol=2e-6)
    assert fast.report.implementation["kernels"] == len(fast.kernels) > 0
    assert not fast.report.original_returned
    assert all(row.predicted_ms and row.by_xla_ms for row in fast.report.native)
    assert (fast.report.measured.before_ms, fast.report.measured.after_ms) == (None, None)
    assert fast.report.numerics is not None
    assert not any(line.startswith("explore") for line in lines)
    assert "our own" in str(fast.report)
    again = superopt.optimize(network, WEIGHTS, IMAGE, frozen=0, search=False, store=tmp_path / "store.sqlite")
    assert again.kernels == fast.kernels
    assert any("from the store" in note for note in again.report.notes)
    assert fast.validate().valid
    fast.save(tmp_path / "plain.superopt")
    loaded = superopt.load(tmp_path / "plain.superopt")
    np.testing.assert_allclose(loaded(WEIGHTS, IMAGE), fast(WEIGHTS, IMAGE), rtol=1e-6)


def test_without_a_search_a_program_without_regions_is_returned_as_it_is() -> None:
    fast = superopt.optimize(lambda x: x, values(3), search=False, store=False)
    assert fast.report.original_returned


def test_a_plain_candidate_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = import_function(lambda p, x: network(p, x) + 1.0, (WEIGHTS, IMAGE), frozen=0)
    monkeypatch.setattr(making, "own_form", lambda graph: own_form(wrong.graph))
    fast = superopt.optimize(network, WEIGHTS, IMAGE, frozen=0, search=False, store=False)
    assert fast.report.original_returned
    assert "refused" in fast.report.verdict


@BUDGETS
@pytest.mark.usefixtures("unsearched")
def test_what_a_slower_search_finds_does_not_replace_the_plain_candidate(
    budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(imported: Any, entries: Any, *_: Any, **__: Any) -> Any:
        assert entries[0].name == "own form"
        slow = [timing(7.0 + i) for i in range(len(entries) - 1)]
        return outcome_of(entries, timing(9.0), (timing(3.0), *slow), timing(9.0))

    monkeypatch.setattr(contesting, "contest", outcome)
    fast = superopt.optimize(network, WEIGHTS, IMAGE, frozen=0, budget=budget, store=False, rules=[])
    assert "the contest" not in fast.report.lost
    assert fast.report.implementation["form"] == "own form"
    assert fast.kernels


def test_where_no_time_is_left_to_search_the_plain_candidate_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is explored")

    monkeypatch.setattr(exploring, "LEAST_S", 1e9)
    monkeypatch.setattr(exploring, "explore", never)
    fast = superopt.optimize(network, WEIGHTS, IMAGE, frozen=0, budget="10s", store=False)
    np.testing.assert_allclose(fast(WEIGHTS, IMAGE), network(WEIGHTS, IMAGE), rtol=2e-5, atol=2e-6)


def test_where_no_time_is_left_to_search_a_prediction_is_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploring, "LEAST_S", 1e9)
    fast = superopt.optimize(network, WEIGHTS, IMAGE, frozen=0, budget="30s", store=False, rules=[], deterministic=True)
    assert not fast.report.lost
    assert fast.report.verdict.endswith("the time does not suffice for a search")


@pytest.mark.usefixtures("unsearched")
def test_unusable_weights_of_the_model_of_our_kernels_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superopt.backends.native.load_native", lambda: None)
    report = superopt.optimize(lambda x: jnp.tanh(x @ x), values(8, 8), budget="5s", store=False, rules=[]).report
    assert any("weights of their model cannot be used" in note for note in report.notes)


def test_what_the_original_takes_to_be_built_is_told_with_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "first_call_s", lambda session, state: time.sleep(1.0) or 0.0)
    report = superopt.optimize(
        lambda x: x + 1.0, values(3), budget="20steps", store=False, rules=[], kernels=False
    ).report
    assert {stage.name: stage.seconds for stage in report.stages}["original"] > 0.9


def test_where_builds_are_slow_for_the_budget_what_the_check_built_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing else is built")

    monkeypatch.setattr(building, "first_call_s", lambda session, state: 1e6)
    monkeypatch.setattr(building, "built_in", never)
    fast = superopt.optimize(network, WEIGHTS, IMAGE, frozen=0, budget="10s", store=False)
    assert fast.report.search, "the round beside the plain candidate"
    assert any("too slow for the budget" in note for note in fast.report.notes)
    assert fast.report.measured.samples_ms["original"]
    np.testing.assert_allclose(fast(WEIGHTS, IMAGE), network(WEIGHTS, IMAGE), rtol=2e-5, atol=2e-6)


def test_after_an_interruption_the_plain_candidate_is_returned_untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: Any, **options: Any) -> Any:
        return replace(explore(*given, **options), interrupted=True)

    monkeypatch.setattr(exploring, "explore", interrupted)
    monkeypatch.setattr(checking, "AFTER_S", 60.0)  # however busy the machine is
    fast = superopt.optimize(network, WEIGHTS, IMAGE, frozen=0, budget="300steps", store=False, rules=[])
    assert fast.kernels
    assert "interrupted" in fast.report.verdict


def timing(median_ms: float) -> Timing:
    """Nine rounds about this median."""
    samples = tuple(1e-3 * median_ms * (1.0 + 0.001 * (k % 3)) for k in range(9))
    return Timing(samples, Speedup(1.0, 0.999, 1.001))


def noisy(median_ms: float, spread: float, seed: int) -> Timing:
    rng = np.random.default_rng(seed)
    return Timing(tuple(1e-3 * median_ms * np.exp(spread * rng.standard_normal(9))), Speedup(1.0, 0.9, 1.1))


def outcome_of(entries: Any, original: Timing, rows: Any, again: Timing) -> Outcome:
    """What a contest says in which the programs took this long."""
    series = Series(entries, 0)
    series.add(Comparison(original, tuple(rows), again_s=again.samples_s), range(len(entries)), 0)
    return Outcome(entries, series, series, len(entries), tuple(series.order))


@BUDGETS
@pytest.mark.usefixtures("unsearched")
def test_a_verdict_reached_under_noise_is_stored_with_a_mark_and_timed_again(
    budget: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    timed: list[int] = []

    def outcome(imported: Any, entries: Any, *_: Any, **__: Any) -> Any:
        rows = [noisy(9.0, 0.4, i) for i in range(len(entries))]
        return outcome_of(entries, noisy(10.0, 0.4, 50), rows, noisy(10.0, 0.4, 51))

    def duel(rounds: Any, entries: Any) -> Series:
        timed.append(len(entries))
        return outcome(None, entries).chosen

    def marks() -> list[bool]:
        with Store(path) as store:
            return [kept["in_doubt"] for _, kept in store.items("runs")]

    monkeypatch.setattr(contesting, "contest", outcome)
    monkeypatch.setattr(recalled, "duel", duel)
    path = tmp_path / "store.sqlite"
    options: dict[str, Any] = {"frozen": 0, "budget": budget, "rules": [], "store": path}
    fast = superopt.optimize(network, WEIGHTS, IMAGE, **options)
    assert any("too noisy" in note for note in fast.report.notes)
    assert (timed, marks()) == ([], [True])
    again = superopt.optimize(network, WEIGHTS, IMAGE, **options)
    assert any("from the store" in note for note in again.report.notes)
    assert any("too noisy" in note for note in again.report.notes), "the doubt is told as long as there is one"
    assert (timed, marks()) == ([1], [True])


def test_search_false_takes_no_other_meaning_from_wrong_options() -> None:
    with pytest.raises(SuperoptError):
        superopt.optimize(network, WEIGHTS, IMAGE, search=False, numerics="nonsense")


@pytest.mark.parametrize("objective", [None, load_objective(None)], ids=["ours", "given"])
@pytest.mark.usefixtures("unsearched")
def test_what_the_search_finds_is_made_in_kernels_and_contested(
    objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[Any] = []

    def outcome(imported: Any, entries: Any, *_: Any, **__: Any) -> Any:
        entered.extend(entries)
        return outcome_of(entries, timing(10.0), [timing(9.0 - i) for i in range(len(entries))], timing(10.0))

    def product(a: Any, b: Any, x: Any) -> Any:
        return jnp.tanh((a @ b) @ x)

    monkeypatch.setattr(contesting, "contest", outcome)
    given = values(192, 192), values(192, 192), values(192, 1)
    rules = [rule for rule in load() if rule.name == "dot-assoc"]
    fast = superopt.optimize(product, *given, budget="300steps", store=False, rules=rules, objective=objective)
    assert entered[0].name == "own form"
    assert len(entered) > 1
    assert entered[-1].kernels
    assert all(entry.predicted_s for entry in entered)
    assert fast.report.implementation["form"] == entered[-1].name
    assert fast.report.predicted_ms == pytest.approx(1e3 * (entered[-1].predicted_s or 0.0))
    assert [use.rule for use in fast.report.rewrites] == ["dot-assoc"]
    assert read_report(fast.report.to_json()) == fast.report
    assert any(row.predicted_ms is not None for row in fast.report.native)
    np.testing.assert_allclose(fast(*given), product(*given), rtol=1e-3, atol=1e-3)


def test_the_models_alone_choose_among_programs_in_kernels() -> None:
    """Nothing is timed with `deterministic`, and two calls return the same kernels with the same schedules."""
    w, x = values(96, 96), values(96, 96)
    options: dict[str, Any] = {"budget": "100steps", "deterministic": True, "store": False, "rules": []}
    one, two = (superopt.optimize(lambda w, x: jnp.tanh(x @ w) @ w, w, x, frozen=0, **options) for _ in range(2))
    assert one.kernels
    assert one.kernels == two.kernels
    assert one.report.after_text == two.report.after_text
    assert one.report.speedup is not None
    assert one.report.speedup.basis == "predicted"
    assert one.report.verdict.endswith("nothing was measured")
    np.testing.assert_allclose(one(w, x), jnp.tanh(x @ w) @ w, rtol=2e-4, atol=2e-3)


def test_forms_that_share_nearly_all_of_their_time_are_built_once() -> None:
    def regions(*widths: int) -> Candidate:
        weights = [values(w, w) for w in widths]

        def fn(*xs: Any) -> Any:
            return [jnp.exp(x @ w) for x, w in zip(xs, weights, strict=True)]

        graph = import_function(fn, tuple(values(8, w) for w in widths)).graph
        return in_regions(str(widths), own_form(graph))

    class Prices:
        """A region takes a second for each column."""

        def region_s(self, graphs: Sequence[Graph]) -> np.ndarray:
            return np.array([g.outputs[0].shape[1] for g in graphs], np.float64)

    model: Any = Prices()
    plain, close, far = regions(128, 256, 6), regions(128, 256, 4), regions(128, 64, 6)
    assert that_differ(model, [close, far], [plain]) == [far]
    assert that_differ(model, [plain, close, far], []) == [plain, far]
    assert that_differ(model, [], [plain]) == []


def test_forms_that_differ_in_what_no_region_holds_are_all_built() -> None:
    def form(fn: Any, *shape: int, dtype: Any = np.float32) -> Candidate:
        graph = import_function(fn, (values(*shape).astype(dtype),)).graph
        return in_regions("", own_form(graph))

    class Prices:
        """A region takes a second."""

        def region_s(self, graphs: Sequence[Graph]) -> np.ndarray:
            return np.ones(len(graphs))

    def repeated(count: int) -> Any:
        return lambda x: lax.scan(lambda c, _: (jnp.tanh(c * count), None), x, None, length=count)[0]

    model: Any = Prices()
    few, many = form(repeated(3), 8, 8), form(repeated(5), 8, 8)
    assert that_differ(model, [few], [many]) == [few]
    assert that_differ(model, [few], [few]) == []
    half, other = (form(fn, 8, 8, dtype=np.float16) for fn in (jnp.sin, jnp.cos))
    assert that_differ(model, [half], [other]) == [half]
    nothing, something = form(lambda x: x, 8), form(lambda x: -jnp.exp(x), 8)
    assert that_differ(model, [nothing], [something]) == [nothing]


def test_nothing_is_timed_when_the_time_is_over() -> None:
    model: Any = Joint(load_objective(None), library_expander(()), Native())
    worker: Any = None  # is not asked
    graph = in_regions("", own_form(import_function(jnp.tanh, (values(8, 64),)).graph)).regions[0].graph
    assert KernelTimer(model, worker).distinguish([[graph], []], Deadline(0.0)) == 0


def test_regions_in_which_programs_differ_are_timed_and_nothing_else() -> None:
    model = Joint(load_objective(None), library_expander(()), Native())
    one, two, three = (
        in_regions("", own_form(import_function(fn, (values(8, 64),)).graph)).regions[0].graph
        for fn in (jnp.tanh, jnp.exp, lambda x: x.sum(1))
    )
    with Worker(inline=True) as worker:
        timer = KernelTimer(model, worker)
        assert timer.distinguish([[one, two], [one, three], [one, three, three]], Deadline.within(60.0)) == 2
        assert timer.distinguish([[one, two], [one, two]], Deadline.within(60.0)) == 0
        assert timer.distinguish([], Deadline.within(60.0)) == 0
    assert [model.timed(g) for g in (one, two, three)] == [[], [NATIVE], [NATIVE]]


def test_an_interruption_while_forms_are_made_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing more is measured")

    monkeypatch.setattr(forming, "forms_of", interrupted)
    monkeypatch.setattr(KernelMaker, "searched", never)
    monkeypatch.setattr(contesting, "contest", never)
    fast = superopt.optimize(network, WEIGHTS, IMAGE, frozen=0, budget="300steps", store=False, rules=[])
    assert fast.kernels
    assert "interrupted" in fast.report.verdict


def test_a_refusal_on_these_inputs_is_not_kept_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain() -> str:
        fast = superopt.optimize(
            lambda x: jnp.tanh(x @ x), values(64, 64), search=False, budget="10s", store=tmp_path / "a.db"
        )
        return fast.report.verdict

    with monkeypatch.context() as patch:
        patch.setattr(checks, "beyond_rounding", lambda *_: (0, SimpleNamespace(detail="an entry is another")))
        assert "refused" in plain()
    assert "plain program returned" in plain()


@pytest.mark.usefixtures("unsearched")
def test_the_first_round_is_searched_while_the_plain_candidate_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes take seconds to start, in which this one has nothing else to do."""
    searched = threading.Event()
    begin, make = exploring.begin, KernelMaker.make
    waited: list[bool] = []

    def begun(*given: Any) -> Any:
        found = begin(*given)
        searched.set()
        return found

    def made(self: Any, *given: Any) -> Any:
        waited.append(searched.wait(60.0))
        return make(self, *given)

    monkeypatch.setattr(exploring, "begin", begun)
    monkeypatch.setattr(KernelMaker, "make", made)
    x = np.ones((32, 64), np.float32)
    report = superopt.optimize(lambda x: jnp.tanh(x @ x.T) + 1.0, x, budget="20s", store=False).report
    assert waited[0]
    assert "first round" in [stage.name for stage in report.stages]
    assert report.search["proposals"] > 0
