"""Bodies of control flow: programs of their own, explored first and replaced by their best forms.

Nothing inside a body is frozen and nothing is measured; a body changes only when the model finds it clearly cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from superopt.ir.graph import Graph, Node, bodies_of, mk
from superopt.ir.ops.table import CONTROL
from superopt.ir.program import map_nodes

Improve = Callable[[Graph], Graph]


def improve_bodies(graph: Graph, improve: Improve) -> Graph:
    """The graph with `improve` applied to every body; the graph itself where no body changes."""

    def improved(node: Node, fresh: Node) -> Node:
        attrs = {name: _improved(value, improve) for name, value in node.attrs} if node.op in CONTROL else {}
        changed = any(attrs.get(name, value) is not value for name, value in node.attrs)
        return mk(node.op, *fresh.inputs, **attrs) if changed else fresh

    done = map_nodes(graph.outputs, improved)
    outputs = tuple(done[x] for x in graph.outputs)
    return graph if outputs == graph.outputs else Graph(graph.inputs, outputs, graph.constants)


def body_sizes(graph: Graph) -> list[int]:
    """Node counts of the bodies that `improve_bodies` visits, one for each occurrence."""
    found: list[int] = []
    for node in graph.nodes():
        if node.op in CONTROL:
            found += [body_size(body) for body in bodies_of(node) if _is_asked(body)]
    return found


def body_size(graph: Graph) -> int:
    """Nodes of a body, those of bodies in it included."""
    return len(graph.nodes()) + sum(body_sizes(graph))


def _improved(value: Any, improve: Improve) -> Any:
    if isinstance(value, Graph):
        return improve(value) if _is_asked(value) else value
    if isinstance(value, tuple) and value and all(isinstance(x, Graph) for x in value):
        parts = tuple(_improved(x, improve) for x in value)
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    return value


def _is_asked(graph: Graph) -> bool:
    return not graph.constants and not _is_trivial(graph)


def _is_trivial(graph: Graph) -> bool:
    return all(node.op in ("input", "literal") for node in graph.nodes())
