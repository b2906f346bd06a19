"""Moves: the changes of state that a proposal may make at once.

(a)  One class's option, sometimes with its layout.
(b)  One class's layout.
(c)  The layout of a region, spread through ops that carry an order over.
(d)  All classes of a rule instance.
(e)  All classes that could read one class (a gathering).
(f)  The fusion override of one class.

The classes of a rule instance are those to which one rule application adds an e-node, or a slice of one merged e-node.
Moves (c) to (e) are indispensable: an isolated channels-last layer only adds transposes, and a merged product pays only
when all its slices are read.  A product computed twice in two scalings is dropped only when all its readers turn to one
of them.  Such moves are dearer than flips and therefore rarer.

In a small program moves reach every state; tests compare the search with all of them, and with random ones.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from rewrites.egraph import perm
from superopt.search.layout import backward, forward
from superopt.search.meter import Meter
from superopt.search.state import FORBID, FORCE, RULE, Problem, State, Undo

MAX_GROUP = 64  # classes that flip together; from 8 to 1,000, results of five training programs stay within 0.2 %
_SWEEPS = 3  # sweeps that make a random state, for restarts, tests and ablations
_FLIPPED = 0.6  # share of the classes that a sweep flips


class Move(NamedTuple):
    """Options, layouts and override bits to set in a state."""

    options: tuple[tuple[int, int], ...] = ()
    layouts: tuple[tuple[int, int], ...] = ()
    bits: tuple[tuple[int, int], ...] = ()

    def apply(self, state: State) -> Undo | None:
        """Set them in the state; None if that closes a cycle."""
        return state.flip(self.options, self.layouts, self.bits)


def free_layouts(state: State, c: int) -> list[int]:
    """Layouts other than the present one that a class may have."""
    return [layout for layout in state.problem.candidates[c] if layout != state.layouts[c]]


def single_moves(state: State, c: int) -> list[Move]:
    """All moves of one class: options (heavy ones with every layout too), layouts, the fusion override."""
    out: list[Move] = []
    layouts = free_layouts(state, c)
    for i, option in enumerate(state.options[c]):
        if i == state.selection[c]:
            continue
        out.append(Move(((c, i),)))
        if option.heavy:
            out.extend(Move(((c, i),), ((c, layout),)) for layout in layouts)
    out.extend(Move((), ((c, layout),)) for layout in layouts)
    out.extend(bit_moves(state, c))
    return out


def bit_moves(state: State, c: int) -> tuple[Move, ...]:
    """The flip of a class's fusion override, where it has an effect."""
    if state.overridable(c):
        other = FORCE if state.problem.in_kernels else FORBID
        return (Move((), (), ((c, other if state.bits[c] == RULE else RULE),)),)
    return ()


def region(state: State, c: int, layout: int, rng: random.Random, stop: float, limit: int = 10_000) -> Move:
    """Spread a layout from a class over the selection, stopping at each edge with probability `stop`."""
    allowed = state.problem.candidates
    out = {c: layout}
    stack = [c]

    def put(k: int, order: int) -> None:
        if k not in out and state.readers[k] and order in allowed[k] and len(out) < limit and rng.random() >= stop:
            out[k] = order
            stack.append(k)

    while stack:
        x = stack.pop()
        option = state.chosen(x)
        d = perm.perm_of(perm.compose(option.out_inverse, out[x]), len(option.form.shape))
        for position, order in backward(option.form, d):
            for at, k, p in option.live:
                if at == position:
                    put(k, perm.compose(p, perm.intern(order)))
        for u in list(state.readers[x]):
            if u < 0 or u in out:
                continue
            above = state.chosen(u)
            for at, k, p in above.live:
                if k == x:
                    rank = len(above.form.shapes[at])
                    order = perm.perm_of(perm.compose(perm.inverse(p), out[x]), rank)
                    result = forward(above.form, at, order)
                    if result is not None:
                        put(u, perm.compose(above.out, perm.intern(result)))
                    break
    return Move((), tuple(out.items()))


class Groups:
    """Joint moves that a snapshot offers, as lists of (class, option) that flip together."""

    def __init__(self, problem: Problem) -> None:
        instances: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        slices: dict[int, dict[int, int]] = defaultdict(dict)
        readers: dict[int, dict[int, int]] = defaultdict(dict)
        for c, row in enumerate(problem.snapshot.options):
            for i, option in enumerate(row):
                if option.origin is not None:
                    instances[(option.origin.rule, option.origin.step)].setdefault(c, i)
                for k in option.kids:
                    readers[k].setdefault(c, i)
                    if option.form.op == "slice":
                        slices[k].setdefault(c, i)
        self.groups: list[tuple[tuple[int, int], ...]] = []
        seen: set[tuple[tuple[int, int], ...]] = set()
        for table in (instances, slices, readers):
            for members in table.values():
                group = tuple(sorted(members.items()))
                if 2 <= len(group) <= MAX_GROUP and group not in seen and _changes(problem, group):
                    seen.add(group)
                    self.groups.append(group)

    def move(self, state: State, index: int) -> Move:
        """The group's flips for the classes in use, and for classes that only the group itself brings into use."""
        group = self.groups[index]
        used = [(c, i) for c, i in group if state.readers[c]]
        idle = [(c, i) for c, i in group if not state.readers[c]]
        return Move(tuple(x for x in (*idle, *used) if state.selection[x[0]] != x[1])) if used else Move()


def _changes(problem: Problem, group: tuple[tuple[int, int], ...]) -> bool:
    return sum(1 for c, _ in group if len(problem.snapshot.options[c]) > 1) >= 2


def neighbours(state: State, groups: Groups) -> Iterator[Move]:
    """Single moves of the classes in use, those with the dearest kernels first, with group moves between them."""
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups.groups):
        for c, _ in group:
            members.setdefault(c, []).append(index)
    tried: set[int] = set()
    for c in sorted(state.active(), key=lambda c: -state.kernel_cost[c]):
        yield from single_moves(state, c)
        for index in members.get(c, ()):
            if index not in tried:
                tried.add(index)
                move = groups.move(state, index)
                if any(move):
                    yield move


def every_state(start: State, most: int, meter: Meter | None = None) -> list[State] | None:
    """All states reachable by single options and layouts, each program once; the first is the start.

    None where there are more than `most`, or where the time of the meter ends before.
    """
    problem = start.problem
    at = State(problem, start.selection, start.layouts, start.bits)
    programs = {_program(at): at.record()}
    queue = list(programs.values())
    for record in queue:  # grows while it is walked
        at.restore(record)
        for c in at.active():
            moves = [Move(((c, i),)) for i in range(len(at.options[c]))]
            moves += [Move((), ((c, layout),)) for layout in free_layouts(at, c)]
            for move in moves:
                change = move.apply(at)
                if change is None:
                    continue
                key = _program(at)
                if key not in programs:
                    if len(programs) >= most or (meter is not None and meter.is_late):
                        return None
                    at.reprice()
                    programs[key] = at.record()
                    queue.append(programs[key])
                at.undo(change)
    problem.memo.flush()
    return [State(problem, *record[1:]) for record in queue]


def _program(state: State) -> tuple[tuple[int, int, int], ...]:
    """Identity of the program with its layouts; layouts of values that no kernel stores are left out."""
    return tuple((c, state.selection[c], state.layouts[c] if state.materialised[c] else 0) for c in state.active())


def shuffle(state: State, rng: random.Random) -> int:
    """Let most classes in use take a random option and a random layout; return the number of flips."""
    flips = 0
    for _ in range(_SWEEPS):
        for c in range(len(state.selection)):
            if state.readers[c] and rng.random() < _FLIPPED:
                option = rng.randrange(len(state.options[c]))
                state.flip([(c, option)], [(c, rng.choice(state.problem.candidates[c]))])
                flips += 1
    return flips


def random_state(state: State, rng: random.Random) -> State:
    """The state after it was shuffled, with its cost."""
    shuffle(state, rng)
    state.settle()
    return state
