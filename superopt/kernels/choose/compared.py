"""Values that two kernels may not compute: those that are compared with a value that is the same.

    y = x / s;  m = max(y);  y == m        y in memory: one kernel computes it, the others read it

A kernel computes what its comparisons compare in one way (`superopt.kernels.emit.agreement`).  Two kernels, or a
kernel and XLA, round a quotient, a sum or an exponential each in its own way, and then no element equals its maximum.
So a value that both sides of a comparison come down to, by steps that keep one of their values (extremes, choices,
index maps), lies in memory wherever more than one region needs it.
"""

from __future__ import annotations

from collections.abc import Iterable

from superopt.ir.graph import Graph, Node
from superopt.ir.ops.table import lookup
from superopt.ir.scalar import COMPARISONS
from superopt.ir.types import FLOATS, ITEMSIZE_BYTES
from superopt.kernels.choose.regions import Region

_EXACT = frozenset((
    "max", "min", "clamp", "select_n", "neg", "abs", "reduce_max", "reduce_min", "cummax", "cummin",
    "reduce_window_max", "reduce_window_min",
))  # fmt: skip


def compared(graph: Graph) -> frozenset[Node]:
    """The floats that both sides of a comparison come down to."""
    found: set[Node] = set()
    for node in graph.nodes():
        if node.op not in COMPARISONS or node.inputs[0].dtype not in FLOATS:
            continue
        for a, b in (node.inputs, *[x.inputs for x in node.inputs if x.op == "sub"]):
            found |= _sources(a) & _sources(b)
    return frozenset(found)


def computed_twice(graph: Graph, regions: Iterable[Region]) -> frozenset[Node]:
    """The compared values that more than one region computes, or a region and XLA."""
    values = compared(graph)
    if not values:
        return values
    regions = tuple(regions)
    inside = {n for r in regions for n in r.nodes}
    elsewhere = {x for n in graph.nodes() if n not in inside for x in n.inputs} - {r.root for r in regions}
    return frozenset(n for n in values if sum(n in r.nodes for r in regions) + (n in elsewhere) > 1)


def _sources(root: Node) -> set[Node]:
    """What a value comes down to: the nodes that compute, past all steps that keep one of their values."""
    found: set[Node] = set()
    seen: set[Node] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.inputs and _keeps(node):
            stack += [x for x in node.inputs if len(x.types) == 1 and x.dtype in FLOATS]
        elif node.op not in ("input", "literal", "iota"):
            found.add(node)
    return found


def _keeps(node: Node) -> bool:
    """Is every element one of the operands' elements, as far as rounding goes?"""
    if node.op == "convert_element_type":
        x = node.inputs[0]
        return x.dtype not in FLOATS or ITEMSIZE_BYTES[node.dtype] >= ITEMSIZE_BYTES[x.dtype]
    return node.op in _EXACT or lookup(node.op).family in ("movement", "indexing")
