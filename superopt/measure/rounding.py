"""Quantised results: floats rounded to the nearest integers.

Where the exact value lies near the middle between two integers, the rounding of its float type decides which of them
comes out.  So such a result is compared with the exact value before it was rounded.
"""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir.graph import Graph, Node, mk, with_inputs
from superopt.ir.ops.table import lookup
from superopt.ir.types import INTEGERS

_CONVERT = "convert_element_type"
_KEEPS_UNITS = frozenset({"add", "sub", "max", "min", "clamp"})


def unrounded(graph: Graph) -> Graph:
    """Return the graph with the value before its rounding in place of each result that is rounded to integers.

    Behind the rounding a result may be moved, shifted and limited by integers, and converted.
    """
    if not any(x.dtype in INTEGERS for x in graph.outputs):
        return graph
    before: dict[Node, Node] = {}
    for node in graph.nodes():
        value = _before(node, before)
        if value is not None:
            before[node] = value
    outputs = tuple(before.get(x, x) if x.dtype in INTEGERS else x for x in graph.outputs)
    return Graph(graph.inputs, outputs, graph.constants)


def _before(node: Node, before: Mapping[Node, Node]) -> Node | None:
    """Return a node's value without the rounding of its operand, for those operands that are rounded."""
    if node.op == "round":
        return node.inputs[0]
    values = [before[x] for x in node.inputs if x in before]
    if len(values) != 1:
        return None
    (value,) = values
    if node.op == _CONVERT:
        return None if node.dtype == "bool" else value
    if lookup(node.op).family == "movement" and len(node.inputs) == 1:
        return with_inputs(node, [value])
    if node.op not in _KEEPS_UNITS or not all(x in before or _is_integral(x) for x in node.inputs):
        return None
    return with_inputs(node, [before[x] if x in before else _as_type(x, value.dtype) for x in node.inputs])


def _is_integral(node: Node) -> bool:
    """Whether all elements are integers, as far as the node and what it moves show."""
    while lookup(node.op).family == "movement" and len(node.inputs) == 1:
        (node,) = node.inputs
    if node.op == _CONVERT:
        return node.inputs[0].dtype in INTEGERS
    return node.dtype in INTEGERS or (node.op == "literal" and float(node["value"]).is_integer())


def _as_type(node: Node, dtype: str) -> Node:
    return node if node.dtype == dtype else mk(_CONVERT, node, new_dtype=dtype)
