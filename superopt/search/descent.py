"""Local search: sweeps of single flips with region and group moves from known or random states, and local repair.

A sweep tries every move of every class in random order and keeps those that lower the cost.  A move whose kernels have
no price yet is taken back and postponed.  When the unknown kernels of postponed moves fill a batch (or the sweep is
over) they are priced together and those moves are tried again.  So the first sweep asks for nearly everything that a
search will want to know, in a few large batches.  Nothing here asks for the price of one kernel.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator

from superopt.search.meter import CHECK_EVERY, Meter
from superopt.search.moves import Groups, Move, bit_moves, free_layouts, region, shuffle, single_moves
from superopt.search.pricing import BATCH
from superopt.search.state import Record, State
from superopt.search.strategy import Ground

REGION_CHANCE = 0.1  # spreading costs tens of flips; from 0 to 1, results of five training programs stay within 0.2 %
PASSES = 4  # batches for postponed moves, as an accepted one gives the others new kernels
FIRST_SHARE, LATER_SHARE = 0.7, 0.3  # of the descents' budget, for that from the original and for each other one
RESTARTED = 100  # classes: restarts of larger programs end above the descents (SqueezeNet of 141 by 0.6 %)
FRUITLESS = 8  # restarts in a row: of gaussian splats, five find the best with four of five seeds
PIECE = 1_024  # moves between two stops of a sweep: a tenth of a second
Waiting = Generator[None, None, bool]  # stops wherever prices are missing; goes on once they are there


def attempt(state: State, move: Move) -> bool | None:
    """Apply a move and keep it if the cost falls: True if kept, False if not, None when prices are missing.

    Of a move that drafts say is worse, no kernel is priced.
    """
    before = state.cost
    change = move.apply(state)
    if change is None:
        return False
    if state.unknown:
        hopeless = state.is_hopeless(change)
        if hopeless is not False or not state.reprice():
            state.undo(change)
            return False if hopeless else None
    if state.cost < before:
        return True
    state.undo(change)
    return False


def attempt_now(state: State, move: Move) -> bool:
    """As `attempt`, asking for missing prices at once."""
    while (better := attempt(state, move)) is None:
        state.memo.flush()
    return better


def attempt_later(state: State, move: Move) -> Waiting:
    """As `attempt`, waiting for missing prices."""
    while (better := attempt(state, move)) is None:
        yield
    return better


def descend(state: State, groups: Groups, rng: random.Random, meter: Meter) -> Waiting:
    """Sweep until nothing improves; False when the budget ended first.  Stops after every piece of a sweep."""
    while not meter.exhausted():
        before = state.cost
        if not (yield from _try_all(state, _sweep(state, rng), meter)):
            return False
        if not (yield from _try_all(state, (groups.move(state, i) for i in range(len(groups.groups))), meter)):
            return False
        if state.cost == before:
            return True
    return False


def through(work: Waiting) -> bool:
    """Run work that stops now and then to its end; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def recut(state: State, meter: Meter) -> None:
    """Sweep over the cuts alone until none of them lowers the cost."""
    while not meter.exhausted():
        before = state.cost
        moves = (move for c in state.active() for move in bit_moves(state, c))
        if not through(_try_all(state, moves, meter)) or state.cost == before:
            return


def _try_all(state: State, moves: Iterable[Move], meter: Meter) -> Waiting:
    """Try moves, those with unknown prices again after each batch; False when the budget ended."""
    later: list[Move] = []
    for count, move in enumerate(moves, 1):
        if not count % CHECK_EVERY and meter.exhausted():
            return False
        if not count % PIECE:
            yield
        if not any(move):
            continue
        meter.step()
        if attempt(state, move) is None:
            later.append(move)
            if len(state.memo.pending) >= BATCH:
                later = _retry(state, later, meter)
                yield
    for _ in range(PASSES):
        if meter.exhausted():
            return False
        later = _retry(state, later, meter)
        yield
    return not meter.exhausted()


def _retry(state: State, later: list[Move], meter: Meter) -> list[Move]:
    """Price the pending kernels in one batch and try moves again; return those whose kernels are still unknown."""
    state.memo.flush(meter.for_prices)
    still: list[Move] = []
    for count, move in enumerate(later, 1):
        if not count % CHECK_EVERY and meter.exhausted():
            break
        meter.step()
        if attempt(state, move) is None:
            still.append(move)
    return still


def _sweep(state: State, rng: random.Random) -> Iterator[Move]:
    order = list(range(len(state.selection)))
    rng.shuffle(order)
    for c in order:
        if not state.readers[c]:
            continue
        yield from single_moves(state, c)
        if rng.random() < REGION_CHANCE and state.readers[c]:
            for layout in free_layouts(state, c):
                yield region(state, c, layout, rng, rng.choice((0.0, 0.05, 0.2)))


class Descents:
    """Sweeps from every state that is known: the original, then the cheapest first."""

    def __init__(self, ground: Ground, meter: Meter) -> None:
        self.ground, self.meter = ground, meter
        self.rng = random.Random(ground.rng.random())
        self.waiting = sorted(ground.records, key=lambda name: (name != "original", ground.records[name][0]))
        self.seen: set[object] = set()
        self.ended: dict[str, Record] = {}
        self.name, self.state = "", State(ground.problem)
        self.walk: Waiting | None = None

    def done(self) -> bool:
        """Whether the budget ended, or every state was swept from."""
        return self.walk is None and (not self.waiting or self.meter.exhausted())

    def step(self) -> None:
        """Go on with the sweeps from one state, or begin those from the next."""
        if self.walk is None:
            first = not self.seen
            self.name = self.waiting.pop(0)
            self.state = self.ground.state(self.name)
            key = self.state.key()
            if key in self.seen:
                return
            self.seen.add(key)
            share = self.meter.share(FIRST_SHARE if first else LATER_SHARE)
            self.walk = descend(self.state, self.ground.groups, self.rng, share)
        if next(self.walk, True):
            self.walk = None
        self.ended[f"{self.name}+descent"] = self.state.record()

    def records(self) -> dict[str, Record]:
        """Where the sweeps from each state have come to."""
        return self.ended


class Restarts:
    """Sweeps from random states of a small program, until several in a row end no lower than what is known."""

    def __init__(self, ground: Ground, meter: Meter) -> None:
        self.ground, self.meter = ground, meter
        self.rng = random.Random(ground.rng.random())
        self.best = min(record[0] for record in ground.records.values())
        self.fruitless = 0
        self.ended: dict[str, Record] = {}
        self.state = State(ground.problem)
        self.walk: Waiting | None = None

    def done(self) -> bool:
        """Whether the budget ended, nothing was found for several restarts, or the program is too large for any."""
        too_large = self.ground.problem.snapshot.size > RESTARTED
        return too_large or self.fruitless >= FRUITLESS or self.meter.exhausted()

    def step(self) -> None:
        """Go on with the sweeps from one state, or begin those from another."""
        if self.walk is None:
            self.state = State(self.ground.problem)
            self.walk = self._from_random(self.state)
        if not next(self.walk, True):
            return
        self.walk = None
        self.fruitless += 1
        if not self.state.unknown:
            self.ended[f"restart {len(self.ended) + 1}"] = self.state.record()
            if self.state.cost < self.best:
                self.best, self.fruitless = self.state.cost, 0

    def _from_random(self, state: State) -> Waiting:
        """Shuffle a state, price it as far as there is time, and sweep from there."""
        self.meter.step(shuffle(state, self.rng))
        while not state.reprice():
            if self.meter.exhausted():
                return False
            state.memo.flush(self.meter.for_prices)
            yield
        return (yield from descend(state, self.ground.groups, self.rng, self.meter))

    def records(self) -> dict[str, Record]:
        """Where the sweeps from each state have ended."""
        return self.ended


def repair(state: State, classes: Iterable[int], meter: Meter, limit: int = 400) -> Waiting:
    """Sweep locally from some classes outwards, as long as neighbours improve."""
    todo, visits, improved = list(classes), 0, False
    while todo and visits < limit:
        c = todo.pop()
        visits += 1
        if not state.readers[c]:
            continue
        moves = single_moves(state, c)
        meter.step(len(moves))
        later: list[Move] = []
        for move in moves:
            better = attempt(state, move)
            if better is None:
                later.append(move)
            elif better:
                improved = True
                todo.extend(_neighbours(state, c))
        if later:
            yield
        for move in later:
            if (yield from attempt_later(state, move)):
                improved = True
                todo.extend(_neighbours(state, c))
    return improved


def _neighbours(state: State, c: int) -> list[int]:
    return [u for u in state.readers[c] if u >= 0] + list(state.chosen(c).kids)


__all__ = [
    "Descents", "Restarts", "Waiting", "attempt", "attempt_later", "attempt_now", "descend", "recut", "repair",
    "through",
]  # fmt: skip
