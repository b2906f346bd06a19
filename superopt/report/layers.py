"""A layered layout of boxes that read each other: operands above, readers below.

Boxes are put into layers by their longest path from the top; `floating` ones sink as low as their readers allow.  An
edge over several layers goes through a narrow slot in each.  Slots are ordered within layers by the mean position of
their neighbours, then moved sideways towards them.  Everything is deterministic.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_SWEEPS = 4
_NARROW = 12.0
_FAR = 12  # edges over more layers than this go straight
_GAP_X, GAP_Y = 18.0, 30.0


@dataclass(frozen=True, slots=True)
class PlacedBoxes:
    """Upper left corner of each box, the points that each edge goes through, and the size of the drawing."""

    boxes: tuple[tuple[float, float], ...]
    edges: tuple[tuple[tuple[float, float], ...], ...]
    width: float
    height: float


def place(
    sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]], floating: Collection[int] = ()
) -> PlacedBoxes:
    """Lay out boxes of these (width, height); edges are (from, to) with from < to; `floating` boxes sink to readers."""
    layer = _layers(len(sizes), edges, floating)
    widths = [w for w, _ in sizes]
    layer_of, chains = list(layer), list[list[int]]()
    for a, b in edges:
        chain = [a]
        for level in range(layer[a] + 1, layer[b]) if layer[b] - layer[a] <= _FAR else ():
            chain.append(len(layer_of))
            layer_of.append(level)
            widths.append(_NARROW)
        chains.append([*chain, b])
    rows: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for node, level in enumerate(layer_of):
        rows[level].append(node)
    above, below = _neighbours(len(layer_of), chains)
    light = frozenset(floating)
    _order(rows, above, below, light)
    x = _across(rows, widths, [_heavy(row, light) for row in above], [_heavy(row, light) for row in below], light)
    top, tops, bottoms = 0.0, list[float](), list[float]()
    for row in rows:
        tall = max((sizes[n][1] for n in row if n < len(sizes)), default=0.0)
        tops.append(top)
        bottoms.append(top + tall)
        top += tall + GAP_Y
    left = min((x[n] - widths[n] / 2 for n in range(len(x))), default=0.0)
    boxes = tuple((x[n] - widths[n] / 2 - left, tops[layer[n]]) for n in range(len(sizes)))
    paths: list[tuple[tuple[float, float], ...]] = []
    for chain in chains:
        first, last = chain[0], chain[-1]
        points = [(x[first] - left, tops[layer[first]] + sizes[first][1])]
        for n in chain[1:-1]:
            points += [(x[n] - left, tops[layer_of[n]]), (x[n] - left, bottoms[layer_of[n]])]
        paths.append((*points, (x[last] - left, tops[layer[last]])))
    right = max((x[n] + widths[n] / 2 - left for n in range(len(x))), default=0.0)
    return PlacedBoxes(boxes, tuple(paths), right, max(0.0, top - GAP_Y))


def _layers(count: int, edges: Sequence[tuple[int, int]], floating: Collection[int]) -> list[int]:
    layer = [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for a, b in sorted(edges, key=lambda e: e[1]):
        layer[b] = max(layer[b], layer[a] + 1)
        readers[a].append(b)
    for n in sorted(floating, reverse=True):
        if readers[n]:
            layer[n] = min(layer[b] for b in readers[n]) - 1
    return layer


def _neighbours(count: int, chains: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for chain in chains:
        for a, b in itertools.pairwise(chain):
            above[b].append(a)
            below[a].append(b)
    return above, below


def _heavy(neighbours: list[int], light: frozenset[int]) -> list[int]:
    """The neighbours to align with: floating ones only where there are no others."""
    return [n for n in neighbours if n not in light] or neighbours


def _order(
    rows: list[list[int]], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]], light: frozenset[int]
) -> None:
    """Sort each row by the mean position of the neighbours, downwards and upwards in turn."""
    position = {n: float(i) for row in rows for i, n in enumerate(row)}
    for sweep in range(_SWEEPS):
        neighbours = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            wish = {n: _mean([position[k] for k in neighbours[n]], position[n]) for n in row}
            row.sort(key=lambda n: (n in light, wish[n], position[n]))
            for i, n in enumerate(row):
                position[n] = float(i)


def _across(
    rows: Sequence[Sequence[int]],
    widths: Sequence[float],
    above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]],
    light: frozenset[int],
) -> list[float]:
    """Centres of boxes: each as near to the mean of its neighbours as the others of its row allow.

    Floating boxes stand to the right of their row and push nothing aside.
    """
    x = [0.0] * len(widths)
    heavy = [[n for n in row if n not in light] for row in rows]
    for row in heavy:
        _spread(row, widths, x, dict.fromkeys(row, 0.0))
    for sweep in range(2 * _SWEEPS):
        neighbours = below if sweep % 2 else above
        for row in reversed(heavy) if sweep % 2 else heavy:
            _spread(row, widths, x, {n: _mean([x[k] for k in neighbours[n]], x[n]) for n in row})
    for row in reversed(rows):
        edge = max((x[n] + widths[n] / 2 + _GAP_X for n in row if n not in light), default=float("-inf"))
        for n in row:
            if n in light:
                x[n] = max(_mean([x[k] for k in below[n]], 0.0), edge + widths[n] / 2)
                edge = x[n] + widths[n] / 2 + _GAP_X
    return x


def _spread(row: Sequence[int], widths: Sequence[float], x: list[float], wish: dict[int, float]) -> None:
    """Place the boxes of a row in order without overlaps: the mean of packing it from the left and from the right."""
    if not row:
        return
    rightwards, leftwards = dict[int, float](), dict[int, float]()
    edge = float("-inf")
    for n in row:
        rightwards[n] = max(wish[n], edge + widths[n] / 2)
        edge = rightwards[n] + widths[n] / 2 + _GAP_X
    edge = float("inf")
    for n in reversed(row):
        leftwards[n] = min(wish[n], edge - widths[n] / 2)
        edge = leftwards[n] - widths[n] / 2 - _GAP_X
    for n in row:
        x[n] = (rightwards[n] + leftwards[n]) / 2


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
