"""Simulated annealing over selections: several chains in lockstep.

The temperature is in units of the mean kernel cost (start 0.3, end 0.002), not of the program's: two per cent of a
program is a hot start for a hundred kernels.  In a round every chain makes several proposals; those whose kernels have
no price yet wait until all chains have made theirs, are priced in one batch, and are then considered again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from superopt.search.budget import Meter
from superopt.search.moves import Groups, Move, Weights, propose
from superopt.search.state import Record, State

DRAWS = 512  # proposals of one round, all chains together
FEWEST = 8  # of one chain


class AnnealingChain:
    """One annealing chain; `best` is its cheapest (cost, options, layouts, bits) so far."""

    def __init__(self, state: State, seed: int, groups: Groups, weights: Weights, start: float, end: float) -> None:
        self.state, self.groups, self.weights = state, groups, weights
        self.rng = random.Random(seed)
        kernels = sum(1 for cost in state.kernel_cost if cost)
        self.unit = max(1.0, state.cost / max(1, kernels))
        self.start, self.end = start, end
        self.waiting: list[Move] = []
        self.proposed = self.accepted = 0
        self.best: Record = state.record()

    def run(self, count: int, fraction: float) -> None:
        """Make some proposals at the temperature of a fraction of the schedule."""
        temperature = self.unit * self.start * (self.end / self.start) ** min(1.0, fraction)
        for _ in range(count):
            self._consider(propose(self.state, self.groups, self.rng, self.weights), temperature)

    def retry(self, fraction: float) -> None:
        """Consider the proposals that waited for prices."""
        temperature = self.unit * self.start * (self.end / self.start) ** min(1.0, fraction)
        waiting, self.waiting = self.waiting, []
        for move in waiting:
            self._consider(move, temperature)

    def _consider(self, move: Move, temperature: float) -> None:
        self.proposed += 1
        if not (move.options or move.layouts or move.bits):
            return
        state = self.state
        before = state.cost
        change = move.apply(state)
        if change is None:
            return
        if state.unknown:
            state.undo(change)
            self.waiting.append(move)
            return
        rise = state.cost - before
        if rise <= 0 or self.rng.random() < math.exp(-rise / temperature):
            self.accepted += 1
            if state.cost < self.best[0]:
                self.best = self.state.record()
        else:
            state.undo(change)


def anneal(
    states: Sequence[State],
    groups: Groups,
    seed: int,
    meter: Meter,
    *,
    weights: Weights | None = None,
    start: float = 0.3,
    end: float = 0.002,
    watch: Callable[[float], None] | None = None,
) -> list[AnnealingChain]:
    """Run one chain per state until the budget ends.

    Args:
        states: starts; they are changed.
        watch: called with the fraction spent after each round.
    """
    weights = weights or Weights()
    chains = [AnnealingChain(state, seed * 1009 + i, groups, weights, start, end) for i, state in enumerate(states)]
    draws = max(FEWEST, DRAWS // max(1, len(chains)))
    while chains and not meter.exhausted():
        fraction = meter.spent()
        for chain in chains:
            before = chain.proposed
            chain.run(draws, fraction)
            meter.step(chain.proposed - before)
            if meter.exhausted():
                break
        chains[0].state.memo.flush()
        for chain in chains:
            before = chain.proposed
            chain.retry(fraction)
            meter.step(chain.proposed - before)
        if watch is not None:
            watch(meter.spent())
    return chains
