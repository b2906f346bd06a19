"""Strategies of a search: each is made on common ground with a meter, and runs in steps until it is done.

A step is a bounded piece of work.  The states that a strategy has found are readable between any two steps, and what
one strategy has found is where the next begins.  A mixture is a sequence of strategies, each with its share of what is
left of the search when it begins.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from superopt.search.meter import Meter
from superopt.search.moves import Groups
from superopt.search.state import Problem, Record, State

STARTS = 8  # different states that chains begin from


@dataclass(slots=True)
class Ground:
    """The data that the strategies of one search share.

    Attributes:
        groups: joint moves of the problem.
        rng: source of the seeds of strategies.
        records: the states worth keeping by name, those of strategies that are done.
    """

    problem: Problem
    groups: Groups
    rng: random.Random
    records: dict[str, Record] = field(default_factory=dict[str, Record])

    def keep(self, name: str, record: Record) -> None:
        """Record a state under a name, unless a cheaper one has it."""
        known = self.records.get(name)
        if known is None or record[0] < known[0]:
            self.records[name] = record

    def state(self, name: str) -> State:
        """A new state at a record."""
        return State(self.problem, *self.records[name][1:])

    def different(self) -> list[Record]:
        """The cheapest records of different cost, the best first."""
        by_cost = {record[0]: record for record in self.records.values()}
        return [by_cost[cost] for cost in sorted(by_cost)[:STARTS]]


class SearchStrategy(Protocol):
    """A way to search, made by a `StrategyMaker`."""

    def step(self) -> None:
        """Do a bounded piece of work."""
        ...

    def done(self) -> bool:
        """Whether the meter is used up or nothing more is to be tried."""
        ...

    def records(self) -> Mapping[str, Record]:
        """The states worth keeping so far, by name."""
        ...


StrategyMaker = Callable[[Ground, Meter], SearchStrategy]
Mixture = Sequence[tuple[StrategyMaker, float]]
"""Strategies in their order, each with its share of what is then left."""
