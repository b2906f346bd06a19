"""Products of floats at several precisions: what they are to each other.

On a CPU the precision of a product says nothing.  Elsewhere operands of a product that is not of the highest precision
are rounded first, in a way that is the device's own.  Such a product is the product of two values of which nothing is
known but that equal operands of one precision give equal values; at the highest precision it is the product itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from superopt.ir.graph import Graph, Node, make_input, mk, topological
from superopt.ir.ops.table import CONTRACTIONS
from superopt.ir.types import FLOATS

CPU = "products are those of a CPU, where precision is of no account"
DEFAULT, HIGHEST = "default", "highest"


def of_product(node: Node) -> str:
    """The precision of a product of floats; empty for other operations."""
    if node.op not in CONTRACTIONS or node.inputs[0].dtype not in FLOATS:
        return ""
    return node["precision"] or DEFAULT


def several(roots: Sequence[Node]) -> bool:
    """Are there products of floats at several precisions?"""
    return len({of_product(node) for node in topological(roots)} - {""}) > 1


def apart(graph: Graph, root: Node, rounded: dict[Node, tuple[Node, str]]) -> Node:
    """A result where products read operands as their precision has them.

    Args:
        graph: the program, whose names are taken.
        root: the result.
        rounded: gets an input for each such operand, with what it stands for and the precision.
    """
    taken = {x["name"] for x in graph.inputs} | {x["name"] for x in rounded}
    names = (name for i in itertools.count() if (name := f"rounded{i}") not in taken)
    known = {of: x for x, of in rounded.items()}
    done: dict[Node, Node] = {}
    for node in topological((root,)):
        operands = [done[x] for x in node.inputs]
        precision = of_product(node)
        if precision not in ("", HIGHEST):
            for i, x in enumerate(operands):
                if (x, precision) not in known:
                    known[x, precision] = made = make_input(next(names), x.shape, x.dtype)
                    rounded[made] = x, precision
                operands[i] = known[x, precision]
        done[node] = mk(node.op, *operands, **dict(node.attrs)) if node.inputs else node
    return done[root]
