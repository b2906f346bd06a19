"""Search chains in lockstep, so that a slow objective is queried in batches: perturb-and-repair, simulated annealing.

One round of a repairing chain changes the layout of a random region, or flips a group, with up to three options (and a
fusion override) in it.  It then sweeps locally, and goes back when the result is worse.  A chain is a coroutine that
stops where prices are missing and at the end of a round.  A step lets every chain run until it stops, and prices
everything that is pending in one batch.  One chain joins per round of the first chain, so that a short budget makes
a few deep chains and a long one makes many.  A chain that has found nothing for a while moves to the place of the best.
Every other chain stays where it is: the end points are the finalists, which should differ.

The temperature of an annealing chain is in units of the mean kernel cost (start 0.3, end 0.002), not of the program's.
Two per cent of a program is a hot start for a hundred kernels.  In a step every chain makes several proposals.  Those
whose kernels have no price yet wait until all chains have made theirs, are priced in one batch, and are then considered
again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from superopt.search.descent import repair
from superopt.search.meter import Meter
from superopt.search.moves import Groups, Move, Weights, bit_moves, propose, region
from superopt.search.state import Problem, Record, State

FIRST = 4  # chains at work from the first step
STALE = 12  # rounds without improvement after which a chain moves to the best
PATIENCE = 20  # rounds per class, over all chains, without improvement of the best after which all end
DRAWS = 512  # proposals of one step of annealing, all chains together
FEWEST = 8  # fewest proposals of one chain in a step
HOT, COLD = 0.3, 0.002  # temperatures at the start and at the end


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


@dataclass(slots=True)
class Repairing:
    """Iterated local search until the budget ends or nothing has improved for long.

    Attributes:
        starts: the states where chains begin, the best first; chains take them in turn, the best every other time.
        most: largest number of chains.
        chains: those that have joined.
        best: cost of the best state so far, reached in the round (of all chains) `improved_at`.
    """

    problem: Problem
    starts: Sequence[Record]
    groups: Groups
    seed: int
    meter: Meter
    most: int
    chains: list[Chain] = field(default_factory=list[Chain])
    walks: list[Generator[None, None, None]] = field(default_factory=list[Generator[None, None, None]])
    improved_at: int = 0
    best: int = field(init=False)

    def __post_init__(self) -> None:
        self.best = self.starts[0][0]

    def rounds(self) -> int:
        """Number of rounds of all chains."""
        return sum(chain.rounds for chain in self.chains)

    def done(self) -> bool:
        """Whether the budget ended, nothing has improved for long, or nothing can be changed."""
        patience = PATIENCE * (len(self.problem.movable) + len(self.problem.choices))
        return self.meter.exhausted() or self.rounds() - self.improved_at >= patience

    def step(self) -> None:
        """Let a chain join, run every chain to its next stop, and price the pending kernels."""
        chains = self.chains
        if len(chains) < min(self.most, FIRST + (chains[0].rounds if chains else 0)):
            number = len(chains)
            place = self.starts[0 if number % 2 == 0 else (number // 2 + 1) % len(self.starts)]
            chains.append(Chain(State(self.problem, *place[1:]), self.groups, self.seed * 7919 + number, self.meter))
            self.walks.append(chains[-1].walk())
        for walk in self.walks:
            next(walk)
            if self.meter.exhausted():
                break
        self.problem.memo.flush(self.meter.for_prices)
        leader = min(chains, key=lambda chain: chain.best[0])
        if leader.best[0] < self.best:
            self.improved_at, self.best = self.rounds(), leader.best[0]
        for chain in chains[::2]:
            if chain.stale >= STALE and chain.best[0] > self.best:
                chain.leader = leader.best


class AnnealingChain:
    """One annealing chain; `best` is its cheapest (cost, options, layouts, bits) so far."""

    def __init__(self, state: State, seed: int, groups: Groups) -> None:
        self.state, self.groups, self.weights = state, groups, Weights()
        self.rng = random.Random(seed)
        kernels = sum(1 for cost in state.kernel_cost if cost)
        self.unit = max(1.0, state.cost / max(1, kernels))
        self.waiting: list[Move] = []
        self.proposed = 0
        self.best: Record = state.record()

    def run(self, count: int, fraction: float) -> None:
        """Make some proposals at the temperature of a fraction of the schedule."""
        temperature = self._temperature(fraction)
        for _ in range(count):
            self._consider(propose(self.state, self.groups, self.rng, self.weights), temperature)

    def retry(self, fraction: float) -> None:
        """Consider the proposals that waited for prices."""
        temperature = self._temperature(fraction)
        waiting, self.waiting = self.waiting, []
        for move in waiting:
            self._consider(move, temperature)

    def _temperature(self, fraction: float) -> float:
        return self.unit * HOT * (COLD / HOT) ** min(1.0, fraction)

    def _consider(self, move: Move, temperature: float) -> None:
        self.proposed += 1
        if not (move.options or move.layouts or move.bits):
            return
        state = self.state
        before = state.cost
        change = move.apply(state)
        if change is None:
            return
        most = -temperature * math.log(1.0 - self.rng.random())  # rise of the cost that is taken now
        if state.unknown:
            hopeless = state.is_hopeless(change, most)
            if hopeless is not False or not state.reprice():
                state.undo(change)
                if not hopeless:
                    self.waiting.append(move)
                return
        if state.cost - before <= most:
            if state.cost < self.best[0]:
                self.best = self.state.record()
        else:
            state.undo(change)


class Annealing:
    """One annealing chain per state (which it changes) until the budget ends."""

    def __init__(self, states: Sequence[State], groups: Groups, seed: int, meter: Meter) -> None:
        self.chains = [AnnealingChain(state, seed * 1009 + i, groups) for i, state in enumerate(states)]
        self.draws = max(FEWEST, DRAWS // max(1, len(states)))
        self.meter = meter

    def done(self) -> bool:
        """Whether the budget ended."""
        return not self.chains or self.meter.exhausted()

    def step(self) -> None:
        """Make some proposals in every chain, then retry those whose kernels had no price."""
        fraction = self.meter.spent()
        for chain in self.chains:
            before = chain.proposed
            chain.run(self.draws, fraction)
            self.meter.step(chain.proposed - before)
            if self.meter.exhausted():
                break
        self.chains[0].state.memo.flush(self.meter.for_prices)
        for chain in self.chains:
            before = chain.proposed
            chain.retry(fraction)
            self.meter.step(chain.proposed - before)
