"""Values that only one kernel may compute because a comparison needs both of its sides rounded alike.

    y = x / s;  m = max(y);  y == m        y in memory: one kernel computes it, the others read it

A kernel computes the two sides of its comparisons with the same rounding (`superopt.kernels.emit.bitwise_consistency`).
Two kernels, or a kernel and XLA, may round a quotient, a sum or an exponential differently, and then no element equals
its maximum.  Both sides of a comparison are therefore traced back through steps that only select values (extremes,
choices, index maps).  A value that both reach lies in memory wherever more than one region needs it.
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


def compared_values(graph: Graph) -> frozenset[Node]:
    """Return the float values that both sides of some comparison are selected from."""
    values: set[Node] = set()
    for node in graph.nodes():
        if node.op not in COMPARISONS or node.inputs[0].dtype not in FLOATS:
            continue
        for a, b in (node.inputs, *[x.inputs for x in node.inputs if x.op == "sub"]):
            values |= _sources(a) & _sources(b)
    return frozenset(values)


def computed_twice(graph: Graph, regions: Iterable[Region]) -> frozenset[Node]:
    """Return the compared values that more than one region computes, or a region and XLA."""
    values = compared_values(graph)
    if not values:
        return values
    regions = tuple(regions)
    inside = {n for r in regions for n in r.nodes}
    elsewhere = {x for n in graph.nodes() if n not in inside for x in n.inputs} - {r.root for r in regions}
    return frozenset(n for n in values if sum(n in r.nodes for r in regions) + (n in elsewhere) > 1)


def _sources(root: Node) -> set[Node]:
    """Return the nodes that compute a value's elements, past all steps that only select operands' elements."""
    sources: set[Node] = set()
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
            sources.add(node)
    return sources


def _keeps(node: Node) -> bool:
    """Whether every element of the result is an element of the operands, up to a conversion that does not round."""
    if node.op == "convert_element_type":
        x = node.inputs[0]
        return x.dtype not in FLOATS or ITEMSIZE_BYTES[node.dtype] >= ITEMSIZE_BYTES[x.dtype]
    return node.op in _EXACT or lookup(node.op).family in ("movement", "indexing")
