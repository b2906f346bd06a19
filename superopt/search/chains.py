"""Perturb-and-repair by many chains in lockstep, so that a slow objective is asked in batches.

One round of a chain changes the layout of a random region, or flips a group, with up to three options (and a fusion
override) in it, sweeps locally, and goes back when the result is worse.  A chain is a coroutine that stops where prices
are missing and at the end of a round; the driver lets every chain run until it stops, prices everything that is pending
in one batch, and goes on.  Chains join one per round of the first, so that a short budget makes a few deep chains and a
long one makes many; a chain that has found nothing for a while moves to the place of the best (every other chain stays
where it is: the end points are the finalists, which should differ).
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence

from superopt.search.budget import Meter
from superopt.search.descent import repair
from superopt.search.moves import Groups, bit_moves, region
from superopt.search.state import Problem, Record, State

FIRST = 4  # chains at work from the first tick
STALE = 12  # rounds without improvement after which a chain moves to the best
PATIENCE = 20  # rounds per class, over all chains, without improvement of the best after which all end


class Chain:
    """One chain; `best` is its cheapest (cost, options, layouts, bits) so far."""

    def __init__(self, state: State, groups: Groups, seed: int, meter: Meter) -> None:
        self.state, self.groups, self.meter = state, groups, meter
        self.rng = random.Random(seed)
        self.best = state.record()
        self.rounds = self.stale = 0
        self.leader: Record | None = None  # where to go on after this round

    def walk(self) -> Generator[None, None, None]:
        """Round after round: perturb, repair, keep the result unless it is worse; stops after each as well."""
        state = self.state
        while True:
            touched = self._perturb()
            while not state.reprice():
                yield
            yield from repair(state, touched, self.meter)
            self.rounds += 1
            self.stale += 1
            if state.cost < self.best[0]:
                self.stale = 0
                self.best = state.record()
            elif state.cost > self.best[0]:
                state.restore(self.best)
            if self.leader is not None:
                state.restore(self.leader)
                self.best, self.leader, self.stale = self.leader, None, 0
            yield

    def _perturb(self) -> list[int]:
        state, rng, problem, step = self.state, self.rng, self.state.problem, self.meter.step
        touched: list[int] = []
        step()  # a round without a proposal counts as well, so that a budget of steps ends
        if problem.movable and rng.random() < 0.7:
            c = rng.choice(problem.movable)
            if state.readers[c]:
                move = region(state, c, rng.choice(problem.candidates[c]), rng, rng.choice((0.05, 0.2, 0.5)), 40)
                move.apply(state)
                touched = [x for x, _ in move.layouts]
        elif self.groups.groups:
            move = self.groups.move(state, rng.randrange(len(self.groups.groups)))
            move.apply(state)
            touched = [x for x, _ in move.options]
        if not touched and problem.choices:
            touched = [c for c in (rng.choice(problem.choices),) if state.readers[c]]
        several = [x for x in touched if len(state.options[x]) > 1]
        for x in rng.sample(several, min(len(several), 3)):
            step()
            state.flip([(x, rng.randrange(len(state.options[x])))])
        if problem.fusible and rng.random() < 0.1:
            c = rng.choice(problem.fusible)
            for move in bit_moves(state, c):
                step()
                move.apply(state)
                touched.append(c)
        return touched


def perturb_and_repair(
    problem: Problem, starts: Sequence[Record], groups: Groups, seed: int, meter: Meter, chains: list[Chain], most: int
) -> None:
    """Iterated local search until the budget ends or nothing has improved for long.

    Args:
        starts: where chains begin, the best first; chains take them in turn, the best every other time.
        chains: filled with the chains as they join, so that an interrupted search still has their results.
        most: how many chains there may be.
    """
    if not problem.movable and not problem.choices:
        return
    patience = PATIENCE * (len(problem.movable) + len(problem.choices))
    improved_at, best = 0, starts[0][0]
    walks: list[Generator[None, None, None]] = []
    while not meter.exhausted() and sum(chain.rounds for chain in chains) - improved_at < patience:
        if len(chains) < min(most, FIRST + (chains[0].rounds if chains else 0)):
            number = len(chains)
            place = starts[0 if number % 2 == 0 else (number // 2 + 1) % len(starts)]
            chains.append(Chain(State(problem, *place[1:]), groups, seed * 7919 + number, meter))
            walks.append(chains[-1].walk())
        for walk in walks:
            next(walk)
            if meter.exhausted():
                break
        problem.memo.flush()
        leader = min(chains, key=lambda chain: chain.best[0])
        if leader.best[0] < best:
            improved_at, best = sum(chain.rounds for chain in chains), leader.best[0]
        for chain in chains[::2]:
            if chain.stale >= STALE and chain.best[0] > best:
                chain.leader = leader.best


__all__ = ["Chain", "perturb_and_repair"]
