"""Strategies: steps end, what they have found is readable after each, and a seed determines it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from superopt.machine.deadline import Deadline
from superopt.search.descent import FRUITLESS, Restarts
from superopt.search.meter import Meter
from superopt.search.moves import Groups
from superopt.search.search import MIXTURE
from superopt.search.state import Problem, State
from superopt.search.strategy import Ground, SearchStrategy, StrategyMaker
from tests.support.search_cases import case

STEPS = 2_000
MOST_AT_ONCE = 3_000  # proposals of a step: as many as chains or pieces of sweeps make between two looks at the meter


def ground(problem: Problem, seed: int = 0) -> Ground:
    """The ground of a search that knows the original alone."""
    return Ground(problem, Groups(problem), random.Random(seed), {"original": State(problem).record()})


def made(make: StrategyMaker, name: str, seed: int = 0) -> tuple[Problem, Meter, SearchStrategy]:
    """A strategy that begins, with its meter."""
    problem, meter = case(name).problem(), Meter(Deadline(steps=STEPS))
    return problem, meter, make(ground(problem, seed), meter)


def steps_of(strategy: SearchStrategy) -> Iterator[None]:
    """Steps until it is done."""
    while not strategy.done():
        strategy.step()
        yield


@pytest.mark.parametrize("make", dict(MIXTURE), ids=lambda make: make.__name__)
def test_what_a_strategy_has_found_is_readable_after_each_step(make: StrategyMaker) -> None:
    problem, meter, strategy = made(make, "convnet")
    best, before = [State(problem).cost], 0
    for _ in steps_of(strategy):
        records = strategy.records()
        best.append(min([best[-1], *(record[0] for record in records.values())]))
        assert meter.steps - before <= MOST_AT_ONCE
        before = meter.steps
        for record in list(records.values())[:2]:
            assert State(problem, *record[1:]).cost == record[0]
    assert best[-1] < best[0]
    assert meter.steps <= STEPS + MOST_AT_ONCE


@pytest.mark.parametrize("make", dict(MIXTURE), ids=lambda make: make.__name__)
def test_a_seed_determines_what_a_strategy_finds(make: StrategyMaker) -> None:
    ends: list[object] = []
    for _ in range(2):
        _, _, strategy = made(make, "convnet", seed=3)
        for _ in steps_of(strategy):
            pass
        ends.append(strategy.records())
    assert ends[0] == ends[1]


def test_restarts_of_a_large_program_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _, meter, strategy = made(Restarts, "convnet")
    assert not strategy.done()
    monkeypatch.setattr("superopt.search.descent.RESTARTED", 1)
    assert strategy.done()
    assert not strategy.records()
    assert not meter.steps


def test_restarts_end_where_they_find_nothing() -> None:
    problem, meter, strategy = made(Restarts, "linear")
    for _ in steps_of(strategy):
        pass
    assert meter.spent() < 1.0
    ends = sorted(record[0] for record in strategy.records().values())
    assert len(ends) >= FRUITLESS
    assert ends[0] < State(problem).cost
