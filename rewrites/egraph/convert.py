"""Conversion of IR graphs into the e-graph, and of e-nodes back into IR nodes.

`import_graph` inserts every node of a graph through the normal forms.  Nodes with several results (control flow,
opaque calls) become one class with several types, read through `result` e-nodes; bodies stay graphs in attributes.
`node_of` gives the IR node that an e-node stands for, in the natural axis order of the e-node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rewrites.egraph.graph import EGraph, ENode, Ref
from superopt.ir.graph import Graph, Node, mk
from superopt.ir.ops.table import ELEMENTWISE
from superopt.machine.deadline import Deadline

_E = TypeVar("_E", bound=EGraph)


def import_graph(graph: Graph, *, max_enodes: int | None = None, deadline: Deadline | None = None) -> EGraph:
    """Return a new e-graph that holds a program; its `roots` are the outputs, its `inputs` the inputs by name."""
    return import_into(EGraph(max_enodes=max_enodes, deadline=deadline), graph)


def import_into(eg: _E, graph: Graph) -> _E:
    """Insert a program into an empty e-graph."""
    refs: dict[Node, Ref] = {}
    for node in (*graph.inputs, *graph.nodes()):
        if node not in refs:
            refs[node] = eg.add_node(node.op, [refs[x] for x in node.inputs], node.attrs)
    eg.roots = [refs[node] for node in graph.outputs]
    eg.inputs = {node["name"]: refs[node] for node in graph.inputs}
    eg.imported = list(refs.values())
    return eg


def transposed(node: Node, perm: Sequence[int]) -> Node:
    """The node transposed, or itself for the identity."""
    perm = tuple(perm)
    return node if perm == tuple(range(len(perm))) else mk("transpose", node, permutation=perm)


def node_of(eg: EGraph, enode: ENode, children: Sequence[Node]) -> Node:
    """The IR node of an e-node, in its natural axis order.

    `children` are nodes with the values of the child references.  Scalars under elementwise ops are broadcast; a
    regroup is a transpose and a reshape.
    """
    op, attrs = eg.op_of(enode), eg.attrs_of(enode)
    if op in ELEMENTWISE:
        children = _same_shape(op, children)
    elif op == "regroup":
        return _reshaped(children[0], eg.values_of(enode)["groups"])
    return mk(op, *children, **dict(attrs))


def _same_shape(op: str, children: Sequence[Node]) -> Sequence[Node]:
    """Operands of an elementwise op with scalars broadcast to the common shape."""
    full = max((c.shape for c in children), key=len)
    if op == "clamp" and children[1].shape == full and not children[0].shape and not children[2].shape:
        return children
    return [c if c.shape == full else mk("broadcast_in_dim", c, shape=full, broadcast_dimensions=()) for c in children]


def _reshaped(x: Node, groups: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Node:
    """A regroup as a transpose that brings the merged axes together, then a reshape."""
    order = [a for ins, _ in groups for a in ins]
    sizes = tuple([size for _, outs in groups for size in outs])
    moved = transposed(x, order)
    return moved if moved.shape == sizes else mk("reshape", moved, new_sizes=sizes)
