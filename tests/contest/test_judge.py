"""The judgement: which finalist is returned, from figures made up for every process."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.certify.library import proved_library
from superopt.contest import comparing
from superopt.contest import judge as judging
from superopt.contest.checks import Builds
from superopt.contest.comparing import Tools
from superopt.contest.judge import Judgement, judge
from superopt.explore.exploration import explore
from superopt.explore.found import Exploration
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.machine.budget import SearchBudget
from superopt.measure import Comparison, Failure, Timing, Worker
from superopt.measure.session import ComparisonSettings
from superopt.measure.stats import paired_ratio
from tests.support.stages import steps

RNG = np.random.default_rng(0)
SLOW = 1e-4


def program(w, x):
    return jnp.tanh((x @ w["a"]) @ w["b"]) * 2.0


@pytest.fixture(scope="module")
def case() -> tuple[Imported, Exploration]:
    shapes = {"a": (64, 8), "b": (8, 64)}
    weights = {k: RNG.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    imported = import_function(program, (weights, np.ones((1, 64), np.float32)), frozen=0)
    return imported, explore(imported.graph, proved_library(None).rules, steps(300))


def timing(factor: float, rounds: int, base: list[float], *, late: float = 1.0) -> Timing:
    """A program of this speed; in the second half of the rounds `late` times slower."""
    samples = tuple(s / factor * (late if 2 * i >= rounds else 1.0) for i, s in enumerate(base))
    return Timing(samples, paired_ratio(base, samples))


def judged(case, monkeypatch, speed, seconds: float = 10.0, scale: float = 1.0) -> tuple[Judgement, list[int]]:
    """The judgement when comparisons find `speed(process, candidate, rounds, base)`, and the processes they used."""
    imported, found = case
    processes: list[object] = []
    used: list[int] = []

    def compare(reference, candidates, live, frozen, settings, *, worker: object) -> Comparison:
        rounds = settings.rounds
        if worker not in processes:
            processes.append(worker)
        number = processes.index(worker)
        used.append(number)
        base = [scale * SLOW * (1.0 + 1e-3 * (i % 3)) for i in range(rounds)]
        outcomes = tuple(speed(number, i, rounds, base) for i in range(len(candidates)))
        return Comparison(timing(1.0, rounds, base), outcomes)

    monkeypatch.setattr(comparing, "compare", compare)
    monkeypatch.setattr(judging, "measured_gains", lambda *_, **__: {})
    tools = Tools(Worker(), Builds.of(imported))
    return judge(imported, found, Request(SearchBudget(seconds, None)), tools, tuning=False), used


def test_a_short_program_is_confirmed_in_two_processes(case, monkeypatch) -> None:
    assert case[1].finalists, "something to judge"
    speeds = {0: 1.5, 1: 1.25}
    judgement, used = judged(case, monkeypatch, lambda p, i, n, base: timing(speeds[p], n, base))
    assert judgement.winner is not None
    assert used[-2:] == [0, 1]
    assert judgement.measured.speedup.low <= 1.2501
    assert judgement.measured.speedup.high >= 1.4999
    short_budget, used = judged(case, monkeypatch, lambda p, i, n, base: timing(1.5, n, base), seconds=2.0)
    assert short_budget.winner is not None
    assert set(used) == {0}, "no time to start another"
    long_program, used = judged(case, monkeypatch, lambda p, i, n, base: timing(1.5, n, base), scale=1e3)
    assert long_program.winner is not None
    assert set(used) == {0}


@pytest.mark.parametrize("second", [0.97, None])
def test_what_another_process_does_not_confirm_is_not_returned(case, monkeypatch, second: float | None) -> None:
    def speed(process: int, index: int, rounds: int, base: list[float]) -> Timing | Failure:
        if process and second is None:
            return Failure("crash", "SIGSEGV")
        return timing(second if process and second else 1.4, rounds, base)

    judgement, used = judged(case, monkeypatch, speed)
    assert max(used) >= 1
    assert judgement.winner is None
    assert not judgement.measured.speedup.is_gain


def test_phases_of_the_machine_do_not_decide_between_forms(case, monkeypatch) -> None:
    """The last form is the fastest, but shares a core in more than half of the rounds of every comparison."""
    found = case[1]
    best = len(found.finalists) - 1

    def speed(process: int, index: int, rounds: int, base: list[float]) -> Timing:
        if index == best:
            samples = tuple(s / 2.0 * (3.0 if i % 5 > 1 else 1.0) for i, s in enumerate(base))
            return Timing(samples, paired_ratio(base, samples))
        return timing(1.3, rounds, base)

    seen: list[str] = []
    monkeypatch.setattr(
        judging._Court, "_again", lambda self, entries, reference: seen.extend(e.name for e in entries) or entries
    )
    judged(case, monkeypatch, speed)
    assert seen[0] == found.finalists[best].name


def test_where_time_is_short_nothing_is_tuned(case, monkeypatch) -> None:
    imported, found = case
    base = [0.05 * (1.0 + 1e-3 * (i % 3)) for i in range(15)]
    asked: list[ComparisonSettings] = []

    def compare(reference, candidates, live, frozen, settings, *, worker: object) -> Comparison:
        asked.append(settings)
        slow = [replace(timing(f, 15, base), build_s=3.0) for f in (1.0, *(1.5 for _ in candidates))]
        return Comparison(slow[0], tuple(slow[1:]))

    def unwanted(*_: object, **__: object) -> None:
        raise AssertionError("there is no time for this")

    monkeypatch.setattr(comparing, "compare", compare)
    monkeypatch.setattr(judging, "tune", unwanted)
    monkeypatch.setattr(judging, "measured_gains", unwanted)
    over = SearchBudget(30.0, None).until(-1e6, 1.0)
    judgement = judge(imported, found, Request(over), Tools(Worker(), Builds.of(imported)))
    assert judgement.winner is not None
    assert judgement.build_s == 3.0
    assert 0.0 < asked[0].builds_s < 1.0
    assert all(0.0 < settings.budget_s < 1.0 for settings in asked)
