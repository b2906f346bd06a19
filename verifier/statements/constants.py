"""Naming of arrays that functions close over by their contents, so that equal arrays have one name."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.graph import Graph, Node, make_input
from superopt.ir.program import replace as replaced


def by_contents(graphs: Sequence[Graph]) -> list[Graph]:
    """The graphs with their constants named by dtype, shape and bytes."""
    taken = {x["name"] for graph in graphs for x in graph.inputs if x["name"] not in graph.constants}
    names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def name_of(graph: Graph, node: Node) -> str:
        array = graph.constants[node["name"]]
        name = f"const{len(names)}"
        while name in taken:
            name += "_"
        return names.setdefault((str(array.dtype), array.shape, array.tobytes()), name)

    return [
        _renamed(graph, {x: name_of(graph, x) for x in graph.inputs if x["name"] in graph.constants})
        for graph in graphs
    ]


def _renamed(graph: Graph, names: dict[Node, str]) -> Graph:
    if not names:
        return graph
    named = {node: make_input(name, node.shape, node.dtype, frozen=True) for node, name in names.items()}
    inputs = tuple(dict.fromkeys(named.get(x, x) for x in graph.inputs))
    constants = {name: graph.constants[node["name"]] for node, name in names.items()}
    return Graph(inputs, replaced(graph.outputs, named), constants)
