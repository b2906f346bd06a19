"""Well-formedness of a graph: the invariants every pass may rely on.

Nodes are typed when they are made, so most of this can only fail through a wrong `Graph` around them.  Examples are an
input that is used and not declared, two inputs of one name, constants that do not fit.  Types and attributes are
recomputed all the same, which covers nodes made by other means (unpickled, patched).
"""

from __future__ import annotations

from superopt.errors import ShapeError
from superopt.ir.graph import Graph, Node, bodies_of
from superopt.ir.ops.table import canonical, result_types
from superopt.ir.scalar import DTYPE


def check_graph(graph: Graph) -> None:
    """Raise unless the graph is well-formed.

    Raises:
        ShapeError: names the fault and its place.
    """
    _check_inputs(graph)
    declared = set(graph.inputs)
    for node in graph.nodes():
        if node.op == "input" and node not in declared:
            raise ShapeError(f"the input {node['name']!r} ({node.type}) is used but not among the inputs of the graph")
        _check_node(node)
        for body in bodies_of(node):
            if body.constants:
                raise ShapeError(f"a body of {node.op} has constants of its own: {sorted(body.constants)}")
            check_graph(body)
    for node in graph.outputs:
        if len(node.types) != 1:
            raise ShapeError(f"the output {node.op} has {len(node.types)} results; outputs are single results")


def _check_inputs(graph: Graph) -> None:
    names: set[str] = set()
    for node in graph.inputs:
        if node.op != "input":
            raise ShapeError(f"{node.op} stands among the inputs of the graph")
        if node["name"] in names:
            raise ShapeError(f"two inputs are named {node['name']!r}")
        names.add(node["name"])
    by_name = {node["name"]: node for node in graph.inputs}
    for name, array in graph.constants.items():
        node = by_name.get(name)
        if node is None:
            raise ShapeError(f"the constant {name!r} is not an input of the graph; inputs are {sorted(names)}")
        if not node["frozen"]:
            raise ShapeError(f"the constant {name!r} is not declared frozen")
        if array.shape != node.shape or array.dtype != DTYPE.get(node.dtype, array.dtype):
            raise ShapeError(f"the constant {name!r} is {node.type}, its value {array.dtype}{list(array.shape)}")


def _check_node(node: Node) -> None:
    if node.op == "result":
        if len(node.inputs[0].types) == 1:
            raise ShapeError(f"result of {node.inputs[0].op}, which has a single result")
    else:
        for x in node.inputs:
            if len(x.types) != 1:
                raise ShapeError(f"{node.op} reads {x.op}, which has {len(x.types)} results, without a result node")
    if repr(canonical(node.op, node.attrs)) != repr(node.attrs):
        raise ShapeError(f"attributes of {node.op} are not in canonical form: {node.attrs}")
    expected = result_types(node.op, node.inputs, node.attrs)
    if expected != node.types:
        raise ShapeError(f"{node.op} has the type {node.types}; its operands give {expected}")
