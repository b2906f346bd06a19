"""Graphs over symbolic sizes: the same graph at other sizes, concrete or symbolic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from superopt.ir.graph import Graph, Node, mk, topological
from superopt.ir.index import Poly, Size, Symbol, substitute
from superopt.ir.types import TensorType


def resize(graph: Graph, mapping: Mapping[Symbol, Size]) -> Graph:
    """Return the graph with symbols of sizes and attributes replaced.

    Raises:
        ShapeError: an op does not accept the new sizes.
    """
    done: dict[Node, Node] = {}
    for node in topological((*graph.inputs, *graph.outputs)):
        done[node] = resized(node, done, mapping)
    return Graph(tuple(done[x] for x in graph.inputs), tuple(done[x] for x in graph.outputs), graph.constants)


def resized(node: Node, done: Mapping[Node, Node], mapping: Mapping[Symbol, Size]) -> Node:
    """Return one node with symbols of sizes replaced, over known operands.

    Raises:
        ShapeError: the op does not accept the new sizes.
    """
    attrs = {name: _value(value, mapping) for name, value in node.attrs}
    return mk(node.op, *(done[x] for x in node.inputs), **attrs)


def _value(value: Any, mapping: Mapping[Symbol, Size]) -> Any:
    if isinstance(value, Poly):
        return substitute(value, mapping)
    if isinstance(value, tuple):
        return tuple(_value(x, mapping) for x in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, TensorType):
        return TensorType(_value(value.shape, mapping), value.dtype)
    if isinstance(value, Graph):
        return resize(value, mapping)
    return value
