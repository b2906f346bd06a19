"""Local search: sweeps of single flips with region and group moves, and perturb-and-repair.

A sweep tries every move of every class in random order and keeps what lowers the cost.  A move whose kernels have no
price yet is put off: the unknown kernels of many moves are priced in one batch, then those moves are tried again.
Perturb-and-repair (iterated local search) changes the layout of a random region and up to three options in it, sweeps
locally, and goes back when the result is worse.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from superopt.search.budget import CHECK_EVERY, Meter
from superopt.search.moves import Groups, Move, free_layouts, region, single_moves
from superopt.search.pricing import BATCH
from superopt.search.state import State

REGION_CHANCE = 0.1
PATIENCE = 20  # rounds of perturb-and-repair per class without improvement after which it ends


def attempt(state: State, move: Move) -> bool | None:
    """Apply a move and keep it if the cost falls: True kept, False not, None when prices are missing."""
    before = state.cost
    change = move.apply(state)
    if change is None:
        return False
    if state.unknown:
        state.undo(change)
        return None
    if state.cost < before:
        return True
    state.undo(change)
    return False


def attempt_now(state: State, move: Move) -> bool:
    """As `attempt`, asking for missing prices at once."""
    before = state.cost
    change = move.apply(state)
    if change is None:
        return False
    state.settle()
    if state.cost < before:
        return True
    state.undo(change)
    return False


def descend(state: State, groups: Groups, rng: random.Random, meter: Meter, *, single: bool = True) -> bool:
    """Sweep until nothing improves; False when the budget ended first."""
    while not meter.exhausted():
        before = state.cost
        if single and not _try_all(state, _sweep(state, rng), meter):
            return False
        if not _try_all(state, (groups.move(state, i) for i in range(len(groups.groups))), meter):
            return False
        if state.cost == before:
            return True
        single = True
    return False


def _try_all(state: State, moves: Iterable[Move], meter: Meter) -> bool:
    """Try moves, those with unknown prices again after each batch; False when the budget ended."""
    later: list[Move] = []
    count = 0
    for move in moves:
        count += 1
        if not count % CHECK_EVERY and meter.exhausted():
            return False
        if not any(move):
            continue
        meter.step()
        if attempt(state, move) is None:
            later.append(move)
            if len(state.memo.pending) >= BATCH and not _retry(state, later, meter):
                return False
    return _retry(state, later, meter)


def _retry(state: State, later: list[Move], meter: Meter) -> bool:
    state.memo.flush()
    for count, move in enumerate(later):
        if count % CHECK_EVERY == CHECK_EVERY - 1 and meter.exhausted():
            return False
        meter.step()
        attempt_now(state, move)
    later.clear()
    return True


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


def repair(state: State, classes: Iterable[int], meter: Meter, limit: int = 400) -> None:
    """Sweep locally from some classes outwards along what improves."""
    todo, visits = list(classes), 0
    while todo and visits < limit:
        c = todo.pop()
        visits += 1
        if not state.readers[c]:
            continue
        moves = single_moves(state, c)
        meter.step(len(moves))
        later = [move for move in moves if _improves(state, move, c, todo) is None]
        if later:
            state.memo.flush()
            for move in later:
                _improves(state, move, c, todo, now=True)


def _improves(state: State, move: Move, c: int, todo: list[int], *, now: bool = False) -> bool | None:
    """Attempt a move of a class; where it helps, its neighbours are to be visited again."""
    better = attempt_now(state, move) if now else attempt(state, move)
    if better:
        todo.extend(u for u in state.readers[c] if u >= 0)
        todo.extend(state.chosen(c).kids)
    return better


def perturb_and_repair(state: State, groups: Groups, rng: random.Random, meter: Meter) -> int:
    """Iterated local search until the budget ends or nothing has improved for long; returns the rounds made.

    The state is left at the best found.
    """
    best, rounds, stale = state.cost, 0, 0
    kept = (list(state.selection), list(state.layouts))
    problem = state.problem
    if not problem.movable and not problem.choices:
        return 0
    patience = PATIENCE * (len(problem.movable) + len(problem.choices))
    while not meter.exhausted() and stale < patience:
        rounds += 1
        stale += 1
        touched = _perturb(state, groups, rng, meter)
        repair(state, touched, meter)
        if state.cost < best:
            stale = 0
            best, kept = state.cost, (list(state.selection), list(state.layouts))
        elif state.cost > best:
            _back(state, kept)
    return rounds


def _perturb(state: State, groups: Groups, rng: random.Random, meter: Meter) -> list[int]:
    problem = state.problem
    touched: list[int] = []
    if problem.movable and rng.random() < 0.7:
        c = rng.choice(problem.movable)
        if state.readers[c]:
            move = region(state, c, rng.choice(problem.candidates[c]), rng, rng.choice((0.05, 0.2, 0.5)), 40)
            meter.step()
            move.apply(state)
            touched = [x for x, _ in move.layouts]
    elif groups.groups:
        move = groups.move(state, rng.randrange(len(groups.groups)))
        meter.step()
        move.apply(state)
        touched = [x for x, _ in move.options]
    if not touched and problem.choices:
        touched = [c for c in (rng.choice(problem.choices),) if state.readers[c]]
    several = [x for x in touched if len(state.options[x]) > 1]
    for x in rng.sample(several, min(len(several), 3)):
        meter.step()
        state.flip([(x, rng.randrange(len(state.options[x])))])
    state.settle()
    if not touched:
        meter.step()  # a round without a proposal still counts, so that a budget of steps ends
    return touched


def _back(state: State, kept: tuple[list[int], list[int]]) -> None:
    """Return to a state visited before (option changes in one flip may pass through cycles, so rebuild if refused)."""
    options = [(c, i) for c, i in enumerate(kept[0]) if state.selection[c] != i]
    layouts = [(c, layout) for c, layout in enumerate(kept[1]) if state.layouts[c] != layout]
    if state.flip(options, layouts) is None:
        state.reset(kept[0], kept[1])
    state.settle()


__all__ = ["attempt", "attempt_now", "descend", "perturb_and_repair", "repair"]
