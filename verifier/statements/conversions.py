"""Evaluation in float64 with explicit conversions to fewer bits kept as the only roundings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from superopt.ir.graph import Graph, Node, topological
from superopt.ir.interp import apply_op
from superopt.ir.scalar import HALVES, numpy_dtype
from superopt.ir.types import FLOATS, INTEGERS
from verifier.equal.ranges import FLOAT_BITS
from verifier.equal.rounding import counts, within

_MOVES = frozenset(
    ["input", "literal", "convert_element_type", "reshape", "transpose", "broadcast_in_dim", "slice", "concatenate",
     "pad", "rev", "gather", "dynamic_slice", "dynamic_update_slice", "select_n", "neg", "abs", "squeeze", "copy"]
)  # fmt: skip
"""Ops that do not round: where only these have 16-bit floats, float64 can judge explicit conversions."""


def converts(graphs: Iterable[Graph]) -> bool:
    """Whether programs convert explicitly to fewer bits, and float64 can judge these conversions."""
    several = tuple(graphs)
    return all(map(_rounds_nothing, several)) and any(_narrows(node) for graph in several for node in graph.nodes())


def with_conversions(graph: Graph, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Results in float64, rounded only by the program's explicit conversions."""
    known = {**graph.constants, **values}
    results: dict[Node, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for node in topological(graph.outputs):
            wide = numpy_dtype(node.dtype, wide=True)
            if node.op == "input":
                results[node] = np.asarray(known[node["name"]]).astype(wide)
            elif node.op == "literal":
                results[node] = np.asarray(node["value"], wide)
            else:
                value = np.asarray(apply_op(node, [results[x] for x in node.inputs], wide=True))
                results[node] = value.astype(numpy_dtype(node.dtype)).astype(wide) if _narrows(node) else value
    return [results[x] for x in graph.outputs]


def _narrows(node: Node) -> bool:
    """Whether a node is a conversion to a float type that lacks values of its operand's type."""
    if node.op != "convert_element_type" or node.dtype not in FLOATS:
        return False
    source = node.inputs[0].dtype
    if source in FLOATS:
        return source in FLOAT_BITS and not within(source, node.dtype)
    return source in INTEGERS and not counts(node.dtype, source)


def _rounds_nothing(graph: Graph) -> bool:
    """Whether 16-bit floats are only moved and converted, so that float64 omits the roundings of wider types only."""
    nodes = topological((*graph.inputs, *graph.outputs))
    if any(node.op in ("scan", "while", "cond", "result") for node in nodes):
        return False
    return all(node.op in _MOVES or not {x.dtype for x in (node, *node.inputs)} & set(HALVES) for node in nodes)


__all__ = ["converts", "with_conversions"]
