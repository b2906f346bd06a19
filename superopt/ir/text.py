"""The text form of a graph: one line per node in static single assignment, read back exactly by `parse_graph`.

    %0 = input x : f32[2,3]
    %1 = input w : f32[3,4] frozen
    %2 = dot_general(%0, %1) dimension_numbers=(((1,), (0,)), ((), ())) : f32[2,4]
    %3 = literal 0.5 : f32[]
    %4 = broadcast_in_dim(%3) broadcast_dimensions=() shape=(2, 4) : f32[2,4]
    %5 = mul(%2, %4) : f32[2,4]
    return %5

Default attributes are omitted.  Bodies of control flow stand between braces.  An input that came with the program is
marked `constant`; its values are printed only when they are few, else the reader supplies them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from superopt.errors import ShapeError
from superopt.ir.graph import Attrs, Graph, Node
from superopt.ir.index import Poly
from superopt.ir.ops.record import Required
from superopt.ir.ops.table import canonical, lookup
from superopt.ir.parse import parse_graph
from superopt.ir.scalar import DTYPE
from superopt.ir.types import FLOATS, SHORT, TensorType

__all__ = ["parse_graph", "print_graph", "show_type"]

FEW = 16  # constants of at most this many elements are printed
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.$-]*")
_WORDS = ("nan", "inf", "None", "True", "False")


def print_graph(graph: Graph) -> str:
    """Print the graph as text.

    Raises:
        ShapeError: an attribute has no text form (a symbolic size).
    """
    return "\n".join(_lines(graph, "")) + "\n"


def show_type(kind: TensorType) -> str:
    """Print a type: short dtype and shape."""
    name = SHORT.get(kind.dtype, kind.dtype)
    return f"{_word(name)}[{','.join(map(_value, kind.shape))}]"


def _lines(graph: Graph, indent: str) -> list[str]:
    number: dict[Node, int] = {}
    lines: list[str] = []
    for node in (*graph.inputs, *graph.nodes()):
        if node in number:
            continue
        number[node] = len(number)
        lines.append(f"{indent}%{number[node]} = {_node(node, number, graph.constants, indent)}")
    results = ", ".join(f"%{number[node]}" for node in graph.outputs)
    return [*lines, f"{indent}return {results}".rstrip()]


def _node(node: Node, number: Mapping[Node, int], constants: Mapping[str, Any], indent: str) -> str:
    if node.op == "input":
        marks = " frozen" if node["frozen"] else ""
        if node["name"] in constants:
            marks += " constant" + _elements(constants[node["name"]], node.dtype)
        return f"input {_word(node['name'])} : {show_type(node.type)}{marks}"
    if node.op == "literal":
        return f"literal {_scalar(node['value'], node.dtype)} : {show_type(node.type)}"
    operands = ", ".join(f"%{number[x]}" for x in node.inputs)
    attrs = "".join(f" {name}={_value(value, indent)}" for name, value in _told(node.op, node.attrs))
    kinds = ", ".join(map(show_type, node.types))
    return f"{node.op}({operands}){attrs} : {kinds if len(node.types) == 1 else f'({kinds})'}"


def _told(op: str, attrs: Attrs) -> Attrs:
    """Return the attributes that differ from their defaults."""
    kept = dict(attrs)
    for spec in lookup(op).attrs:
        if not isinstance(spec.default, Required):
            fewer = {name: value for name, value in kept.items() if name != spec.name}
            if canonical(op, fewer) == attrs:
                kept = fewer
    return tuple(kept.items())


def _value(value: Any, indent: str = "") -> str:
    if isinstance(value, Graph):
        return "\n".join(["{", *_lines(value, indent + "  "), indent + "}"])
    if isinstance(value, TensorType):
        return show_type(value)
    if isinstance(value, tuple):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        inner = ", ".join([_value(v, indent) for v in items])
        return f"({inner},)" if len(items) == 1 else f"({inner})"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Poly):
        raise ShapeError(f"the symbolic size {value} has no text form")
    return repr(value)


def _scalar(value: bool | int | float, dtype: str) -> str:
    """Return the shortest text that reads back as the value in its dtype."""
    if dtype in FLOATS and dtype != "float64" and value == value:
        return repr(float(str(DTYPE[dtype].type(value)))) if dtype == "float32" else repr(value)
    return repr(value)


def _elements(array: Any, dtype: str) -> str:
    if array.size > FEW or dtype not in DTYPE:
        return ""
    return f" ({', '.join(_scalar(x.item() if dtype != 'bfloat16' else float(x), dtype) for x in array.ravel())})"


def _word(name: str) -> str:
    return name if _NAME.fullmatch(name) and name not in _WORDS else json.dumps(name)
