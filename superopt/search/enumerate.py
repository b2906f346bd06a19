"""Every selection of a small e-graph, and random ones: what the search is compared with."""

from __future__ import annotations

import random

from superopt.search.moves import Move, free_layouts
from superopt.search.state import State

_SWEEPS = 3
_FLIPPED = 0.6


def every_state(start: State, most: int) -> tuple[list[State], bool]:
    """All states that single options and layouts lead to, each program once; False when there are more than `most`."""
    problem = start.problem
    found = {_program(start): start}
    queue = [start]
    for state in queue:  # grows while it is walked
        for c in state.active():
            moves = [Move(((c, i),)) for i in range(len(state.options[c]))]
            moves += [Move((), ((c, layout),)) for layout in free_layouts(state, c)]
            for move in moves:
                change = move.apply(state)
                if change is None:
                    continue
                key = _program(state)
                if key not in found:
                    if len(found) >= most:
                        state.undo(change)
                        return queue, False
                    found[key] = State(problem, state.selection, state.layouts, state.bits)
                    queue.append(found[key])
                state.undo(change)
    return queue, True


def _program(state: State) -> tuple[tuple[int, int, int], ...]:
    """What is computed and how it lies (layouts of values that no kernel stores do not matter)."""
    return tuple((c, state.selection[c], state.layouts[c] if state.materialised[c] else 0) for c in state.active())


def random_state(state: State, rng: random.Random) -> State:
    """The state after most classes in use took a random option and a random layout."""
    for _ in range(_SWEEPS):
        for c in range(len(state.selection)):
            if state.readers[c] and rng.random() < _FLIPPED:
                option = rng.randrange(len(state.options[c]))
                state.flip([(c, option)], [(c, rng.choice(state.problem.candidates[c]))])
    state.settle()
    return state


__all__ = ["every_state", "random_state"]
