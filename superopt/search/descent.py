"""Local search: sweeps of single flips with region and group moves, and local repair.

A sweep tries every move of every class in random order and keeps those that lower the cost.  A move whose kernels have
no price yet is taken back and postponed.  When the unknown kernels of postponed moves fill a batch (or the sweep is
over) they are priced together and those moves are tried again.  So the first sweep asks for nearly everything that a
search will want to know, in a few large batches.  Nothing here asks for the price of one kernel.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator

from superopt.search.meter import CHECK_EVERY, Meter
from superopt.search.moves import Groups, Move, bit_moves, free_layouts, region, single_moves
from superopt.search.pricing import BATCH
from superopt.search.state import State

REGION_CHANCE = 0.1  # spreading costs tens of flips; from 0 to 1, results of five training programs stay within 0.2 %
PASSES = 4  # batches for postponed moves, as an accepted one gives the others new kernels
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


def descend(state: State, groups: Groups, rng: random.Random, meter: Meter) -> bool:
    """Sweep until nothing improves; False when the budget ended first."""
    while not meter.exhausted():
        before = state.cost
        if not _try_all(state, _sweep(state, rng), meter):
            return False
        if not _try_all(state, (groups.move(state, i) for i in range(len(groups.groups))), meter):
            return False
        if state.cost == before:
            return True
    return False


def recut(state: State, meter: Meter) -> None:
    """Sweep over the cuts alone until none of them lowers the cost."""
    while not meter.exhausted():
        before = state.cost
        moves = (move for c in state.active() for move in bit_moves(state, c))
        if not _try_all(state, moves, meter) or state.cost == before:
            return


def _try_all(state: State, moves: Iterable[Move], meter: Meter) -> bool:
    """Try moves, those with unknown prices again after each batch; False when the budget ended."""
    later: list[Move] = []
    for count, move in enumerate(moves, 1):
        if not count % CHECK_EVERY and meter.exhausted():
            return False
        if not any(move):
            continue
        meter.step()
        if attempt(state, move) is None:
            later.append(move)
            if len(state.memo.pending) >= BATCH:
                later = _retry(state, later, meter)
    for _ in range(PASSES):
        if meter.exhausted():
            return False
        later = _retry(state, later, meter)
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


__all__ = ["Waiting", "attempt", "attempt_later", "attempt_now", "descend", "recut", "repair"]
