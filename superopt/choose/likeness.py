"""Regions that differ in sizes alone: a few of each kind are tried, the others take what these say.

    conv 1x1, 128 of 992 channels, 14 x 14, its epilogue      tried: 4.8 times faster as a kernel
    conv 1x1, 128 of 544 channels, 14 x 14, its epilogue      not tried: taken to be as much faster

The layers of a large network are many regions of few kinds.  Two regions are of one kind where their graphs read the
same once every size beyond `_EXACT` is left out, and how many equal operands there are (of a concatenation, say); small
sizes (windows, strides, padding, small images) stay.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Container, Mapping

from superopt.ir.graph import Graph
from superopt.ir.text import print_graph

_EXACT = 8
_SIZE = re.compile(r"(?<![\w.%-])\d+(?![\w.])")
_INPUT, _NAME, _NAMES = re.compile(r"input x\d+"), re.compile(r"%\d+"), re.compile(r"%(, %)+")


@functools.lru_cache(maxsize=4096)
def kind_of(graph: Graph) -> str:
    """Text that regions which differ in sizes alone share."""
    text = _NAMES.sub("%", _NAME.sub("%", _INPUT.sub("input", print_graph(graph))))
    text = _SIZE.sub(lambda found: found[0] if int(found[0]) <= _EXACT else "n", text)
    return "\n".join(line for line, _ in itertools.groupby(text.splitlines()))


def in_order(weight: Mapping[Graph, float], known: Container[Graph] = (), least: float = 0.0) -> list[Graph]:
    """Regions in the order in which they are best tried: those first that say most about time that is not known.

    Of every kind first the region that takes longest, then the one that takes least, then the others.

    Args:
        weight: seconds of all equal regions together, roughly.
        known: regions that need not be tried again.
        least: leave out those that say less, as a share of all time, but for the first of a kind; the next region says
            the time of its kind that is not known, over the square of the number of this trial.
    """
    kinds: dict[str, list[Graph]] = {}
    for graph in weight:
        kinds.setdefault(kind_of(graph), []).append(graph)
    worth: dict[Graph, float] = {}
    least_s = least * sum(weight.values())
    for members in kinds.values():
        fresh = sorted((g for g in members if g not in known), key=lambda g: -weight[g])
        left_s = sum(weight[g] for g in fresh)
        for number, graph in enumerate([*fresh[:1], *fresh[:0:-1][:1], *fresh[1:-1]], len(members) - len(fresh)):
            says_s = left_s / (1 + number) ** 2
            left_s -= weight[graph]
            if not number or says_s >= least_s:
                worth[graph] = says_s
    return sorted(worth, key=lambda g: -worth[g])
