"""Kernels that a program does not use, but would if the model erred: what is worth timing next to its own.

A flip of one class (another op, another layout, a group) replaces some kernels by others.  It is a *rival* when it
would lower the cost if its new kernels were as much cheaper than predicted as a model may well be wrong (`OPTIMISM`).
Timing the new kernels of the most promising rivals decides what the model cannot: it is the choice by lower confidence
bound of active learning, over the neighbourhood of the best program.  Small programs leave time to doubt the model
further (`DOUBT`).
"""

from __future__ import annotations

from superopt.ir.graph import Graph, Node
from superopt.search.moves import Groups, neighbours
from superopt.search.pricing import UNIT_S, kernel_graph
from superopt.search.search import Finalist, SearchResult
from superopt.search.state import State

OPTIMISM = 1.7
DOUBT = 6.0
MOST_FLIPS = 4_000


def rival_kernels(result: SearchResult, finalist: Finalist, optimism: float = OPTIMISM) -> list[tuple[Graph, float]]:
    """Kernels of rival flips and the seconds that each flip might gain, most promising first."""
    chosen = finalist.selection
    state = State(result.problem, chosen.options, chosen.layouts, chosen.bits)
    gains: dict[Node, float] = {}
    for count, move in enumerate(neighbours(state, Groups(state.problem))):
        if count >= MOST_FLIPS:
            break
        before, cost = list(state.kernel_cost), state.cost
        undo = move.apply(state)
        if undo is None:
            continue
        state.settle()
        changed = [c for c, (old, new) in enumerate(zip(before, state.kernel_cost, strict=True)) if old != new and new]
        fresh = sum(state.kernel_cost[c] for c in changed)
        gain = (cost - state.cost + fresh * (1.0 - 1.0 / optimism)) * UNIT_S
        if gain > 0:
            for node in _nodes(state, changed):
                gains[node] = max(gains.get(node, 0.0), gain)
        state.undo(undo)
    return [(kernel_graph(node), gain) for node, gain in sorted(gains.items(), key=lambda item: -item[1])]


def _nodes(state: State, classes: list[int]) -> list[Node]:
    """Output nodes of the kernels of some classes (transposes of outputs are not timed)."""
    return [node for c in classes if c < state.snapshot.size and (node := state.kernel_of(c)) is not None]
