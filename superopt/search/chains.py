"""Search chains in lockstep, so that a slow objective is queried in batches: perturb-and-repair.

One round of a repairing chain changes the layout of a random region, or flips a group, with up to three options (and a
fusion override) in it.  It then sweeps locally, and goes back when the result is worse.  A chain is a coroutine that
stops where prices are missing and at the end of a round.  A step lets every chain run until it stops, and prices
everything that is pending in one batch.  One chain joins per round of the first chain, so that a short budget makes
a few deep chains and a long one makes many.  A chain that has found nothing for a while moves to the place of the best.
Every other chain stays where it is: the end points are the finalists, which should differ.
"""

from __future__ import annotations

import random
from collections.abc import Generator

from superopt.search.descent import repair
from superopt.search.meter import Meter
from superopt.search.moves import Groups, bit_moves, region
from superopt.search.state import Record, State
from superopt.search.strategy import Ground

CHAINS = 64  # most chains in lockstep: their kernels are priced in one batch
FIRST = 4  # chains at work from the first step
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
        """Run rounds: perturb, repair, and keep the result unless it is worse; yields after each round as well."""
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
        """Change the state at random; return the classes that were touched."""
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


class Repairing:
    """Iterated local search until the budget ends or nothing has improved for long.

    Attributes:
        starts: the states where chains begin, the best first; chains take them in turn, the best every other time.
        chains: those that have joined.
        best: cost of the best state so far, reached in the round (of all chains) `improved_at`.
    """

    def __init__(self, ground: Ground, meter: Meter) -> None:
        self.ground, self.meter, self.starts = ground, meter, ground.different()
        self.seed = ground.rng.getrandbits(32)
        self.chains: list[Chain] = []
        self.walks: list[Generator[None, None, None]] = []
        self.improved_at, self.best = 0, self.starts[0][0]

    def rounds(self) -> int:
        """Number of rounds of all chains."""
        return sum(chain.rounds for chain in self.chains)

    def done(self) -> bool:
        """Whether the budget ended, nothing has improved for long, or nothing can be changed."""
        problem = self.ground.problem
        patience = PATIENCE * (len(problem.movable) + len(problem.choices))
        return self.meter.exhausted() or self.rounds() - self.improved_at >= patience

    def step(self) -> None:
        """Let a chain join, run every chain to its next stop, and price the pending kernels."""
        chains, problem = self.chains, self.ground.problem
        if len(chains) < min(CHAINS, FIRST + (chains[0].rounds if chains else 0)):
            number = len(chains)
            place = self.starts[0 if number % 2 == 0 else (number // 2 + 1) % len(self.starts)]
            state = State(problem, *place[1:])
            chains.append(Chain(state, self.ground.groups, self.seed * 7919 + number, self.meter))
            self.walks.append(chains[-1].walk())
        for walk in self.walks:
            next(walk)
            if self.meter.exhausted():
                break
        problem.memo.flush(self.meter.for_prices)
        leader = min(chains, key=lambda chain: chain.best[0])
        if leader.best[0] < self.best:
            self.improved_at, self.best = self.rounds(), leader.best[0]
        for chain in chains[::2]:
            if chain.stale >= STALE and chain.best[0] > self.best:
                chain.leader = leader.best

    def records(self) -> dict[str, Record]:
        """The best states of the chains, those of equal cost once, the cheapest first."""
        different = {chain.best[0]: chain.best for chain in self.chains}
        return {f"repair {i}": different[cost] for i, cost in enumerate(sorted(different), 1)}
