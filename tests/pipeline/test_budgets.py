"""Budgets: what is not begun because it could not end in time, by clocks that the tests turn."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.backends.native import Native
from superopt.candidates.candidate import Candidate, original_candidate
from superopt.candidates.evidence import Measurement, NumericCheck
from superopt.candidates.ledger import ChoiceReason, Chosen, Why
from superopt.contest import choices
from superopt.contest.checks import OriginalRuns
from superopt.contest.choices import after_check, compare_with_original
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, make_input, mk
from superopt.ir.program import original_program
from superopt.ir.text import print_graph
from superopt.machine import deadline as deadlines
from superopt.machine.budget import Budget, parse_budget
from superopt.machine.deadline import Deadline
from superopt.make import plain
from superopt.make.plain import KernelMaker, in_regions, own_form
from superopt.measure import kernels as kernel_timing
from superopt.measure import programs, session


class Clock:
    """A clock that stands still unless a step takes time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.module = SimpleNamespace(
            monotonic=lambda: self.now, perf_counter=lambda: self.now, thread_time=lambda: 0.0
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (deadlines, session, kernel_timing):
        monkeypatch.setattr(module, "time", clock.module)
    return clock


def test_stages_get_what_is_left(clock: Clock) -> None:
    budget = parse_budget("30s")
    assert budget.less(10.0).seconds == 20.0
    whole, short = budget.deadline(clock.now), parse_budget("4s").deadline(clock.now)
    assert whole.left_s == 30.0
    assert whole.reserve(29.0).left_s == 1.0
    assert 0.0 < whole.reserve(40.0).left_s < 0.01
    assert short.reserve(9.0).left_s == 2.0, "a search of a short budget has half of it in any case"
    assert whole.share().left_s == whole.share().or_within(5.0).left_s == 15.0
    assert whole.share(reserve_s=10.0).left_s == 10.0, "half of what is left beyond what follows"
    assert whole.share(0.75, 10.0).left_s == 15.0
    assert whole.at_most(7.0).left_s == 7.0
    assert whole.at_least(40.0).left_s == 40.0
    clock.now += 31.0
    assert whole.is_over
    assert whole.left_s == whole.share().left_s == whole.share().or_within(5.0).left_s == 0.0
    assert short.reserve().left_s == 2.0
    steps = Budget(None, 100).deadline(clock.now)
    assert steps.reserve(1e6) == steps.share(0.1, 1.0) == steps == Deadline(steps=100)
    assert steps.or_within(5.0).left_s == 5.0, "without a clock, not for ever"


@pytest.mark.parametrize(("builds_s", "built"), [(0.0, 4), (1.0, 1), (9.9, 1), (10.0, 2), (14.0, 3), (30.0, 4)])
def test_builds_that_would_end_too_late_are_not_begun(clock: Clock, builds_s: float, built: int) -> None:
    """The original takes 4 s and candidates 3 s: after the first, each is expected to take 3 s as well."""
    begun: list[float] = []

    def maker(seconds: float) -> session.Make:
        def make() -> Any:
            begun.append(seconds)
            clock.now += seconds
            return lambda x: (x,)

        return make

    settings = session.ComparisonSettings(rounds=1, min_time_s=0.0, builds_s=builds_s)
    makers = {i: maker(3.0) for i in range(4)}
    events = list(session.compare_events(maker(4.0), makers, [np.ones(3, np.float32)], settings))
    assert begun == [4.0] + [3.0] * built
    left_out = [e["index"] for e in events if e["event"] == "failed" and e["cause"] == "timeout"]
    assert left_out == list(range(built, 4))
    (last,) = [e for e in events if e["event"] == "round"]
    assert len(last["seconds"]) == built + 2


def test_slow_builds_are_kept_by_the_worker() -> None:
    x, w = make_input("x", (3,)), make_input("w", (3,), frozen=True)
    hot = print_graph(Graph((x, w), (mk("add", x, w),)))
    spec = {"hot": hot, "prepare": None, "constants": {}, "given": {}, "backend": "", "modules": {}}

    def kept(weight: float = 1.0) -> session.Kept:
        frozen = {"w": np.full(3, weight, np.float32)}
        return programs._kept(spec, frozen, {}, "superopt.backends.xla:build", lambda: programs._digest(frozen))

    fast = kept()
    fast.build_s = 0.1
    slow = kept()
    assert slow is not fast, "small programs are built afresh in every comparison"
    slow.build_s = 3.0
    assert kept() is slow
    assert kept(2.0) is not slow, "other weights"


def test_kernels_are_not_compiled_when_the_time_is_over(clock: Clock) -> None:
    def compiled(graph: Graph, operands: list[Any], options: Any) -> Any:
        clock.now += 1.0
        return lambda x: x, operands, ()

    x = make_input("x", (3,))
    text = print_graph(Graph((x,), (mk("neg", x),)))
    settings = {"budget_s": 2.5, "rounds": 3, "max_calls": 1}
    texts: list[tuple[int, str, dict[str, Any], str]] = [(i, text, {}, kernel_timing.XLA) for i in range(12)]

    def resolve(name: str) -> Any:
        return lambda backend: SimpleNamespace(time=compiled)

    events = list(kernel_timing.kernel_events(texts, resolve, settings))
    timed = [e for e in events if e["event"] == "kernel"]
    assert [e["index"] for e in timed] == [0, 1, 2]
    assert all(len(e["rounds_s"]) == 1 for e in timed)


class Pool:
    """Two processes that make kernels: seconds of each by the clock, and of a processor."""

    backend, batch, is_here = Native(), 2, True

    def __init__(self, clock: Clock, each_s: float, processor_s: float) -> None:
        self.clock, self.each_s, self.processor_s, self.spent_s = clock, each_s, processor_s, 0.0

    def start(self) -> None:
        pass

    def ready(self, end_s: float) -> bool:
        return True

    def make_all(self, jobs: Any, end_s: float) -> list[Any]:
        self.clock.now += self.each_s * len(jobs)
        self.spent_s += self.processor_s * len(jobs)
        return [()] * len(jobs)


@pytest.mark.parametrize(("budget_s", "made"), [(1.0, 2), (5.9, 2), (6.0, 3), (8.0, 4), (100.0, 5)])
def test_kernels_that_would_be_made_too_late_are_not_begun(
    clock: Clock, budget_s: float, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time, which take 4 s."""

    def fn(*xs: Any) -> Any:
        return tuple(jnp.exp(x) for x in xs)

    graph = import_function(fn, tuple(np.ones((64 + i, 64), np.float32) for i in range(5))).graph

    monkeypatch.setattr(plain, "proved", lambda backend, tried, *_: tried)
    pool: Any = Pool(clock, 2.0, 2.0)
    program = KernelMaker(pool).make(in_regions("own form", own_form(graph)), Deadline.within(budget_s))
    assert len(program.kernels) == made


def test_what_kernels_take_is_said_without_what_computed_beside_them(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that share two cores with a build take a second of each kernel, for three seconds."""
    graph = import_function(lambda *xs: tuple(jnp.exp(x) for x in xs), (np.ones(8), np.ones(9), np.ones(10))).graph

    monkeypatch.setattr(plain, "proved", lambda backend, tried, *_: tried)
    monkeypatch.setattr(plain, "usable_cores", lambda: 2)
    pool: Any = Pool(clock, 3.0, 1.0)
    maker = KernelMaker(pool)
    maker.make(in_regions("own form", own_form(graph)))
    other = import_function(lambda x, y: (jnp.sin(x), jnp.cos(y)), (np.ones(8), np.ones(9))).graph
    assert maker.seconds_for(in_regions("other", own_form(other))) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("cause", ["", "an output differs"])
def test_a_check_that_was_left_for_later_decides(monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    imported = import_function(jnp.tanh, (np.ones(8, np.float32),))
    timed = Measurement(before_ms=2.0, after_ms=1.0)
    winner = Candidate(name="winner", program=original_program(imported.graph))
    early = Chosen(winner, why=Why(ChoiceReason.FASTER), measured=timed)
    monkeypatch.setattr(choices, "check", lambda *_, **__: (NumericCheck(0.0), cause))
    late = after_check(imported, early, compare_with_original(winner, OriginalRuns.of(imported)))
    assert (late.candidate is winner) == (not cause)
    assert late.returns_original == bool(cause)
    assert early.needs_check
    assert late.why == (Why(ChoiceReason.WRONG_RESULTS, cause) if cause else early.why)
    assert late.measured.after_ms == (2.0 if cause else 1.0)
    assert not replace(early, candidate=original_candidate(imported.graph)).needs_check
