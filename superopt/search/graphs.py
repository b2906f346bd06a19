"""Graph algorithms over numbered classes: cheapest extraction, and strongly connected components.

Extraction is Knuth's generalisation of Dijkstra's algorithm (1977): classes are settled in order of cost, an option
once all its children are, so every choice it makes is acyclic over all classes.  A cycle of a selection can only lie
inside one strongly connected component of the class graph.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence

import networkx as nx


def cheapest(
    kids: Sequence[Sequence[Sequence[int]]],
    cost: Callable[[int, int], float],
    combine: Callable[[Iterable[float]], float] = sum,
) -> tuple[list[int | None], list[float]]:
    """Bottom-up extraction, always acyclic.

    Args:
        kids: per class and option, the classes that the option reads.
        cost: (class, number of the option) -> positive cost of the option itself.
        combine: how the costs of the children enter (`sum`, or `max` for depth).

    Returns:
        per class, the number of the chosen option (None when no choice is possible) and its cost.
    """
    size = len(kids)
    chosen: list[int | None] = [None] * size
    best = [math.inf] * size
    waiting: list[list[int]] = [[len(set(below)) for below in row] for row in kids]
    readers: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    heap: list[tuple[float, int, int]] = []
    for c, row in enumerate(kids):
        for i, below in enumerate(row):
            for k in set(below):
                readers[k].append((c, i))
            if not below:
                heapq.heappush(heap, (cost(c, i), c, i))
    while heap:
        value, c, i = heapq.heappop(heap)
        if chosen[c] is not None:
            continue
        chosen[c], best[c] = i, value
        for u, j in readers[c]:
            waiting[u][j] -= 1
            if not waiting[u][j] and chosen[u] is None:
                heapq.heappush(heap, (cost(u, j) + combine(best[k] for k in kids[u][j]), u, j))
    return chosen, best


def components(successors: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Strongly connected components: number per node, children's components first, and size per component."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(successors)))
    graph.add_edges_from((v, w) for v, row in enumerate(successors) for w in row)
    component, sizes = [-1] * len(successors), list[int]()
    for number, members in enumerate(nx.strongly_connected_components(graph)):
        sizes.append(len(members))
        for v in members:
            component[v] = number
    return component, sizes
