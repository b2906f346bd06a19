"""Products of floats at several precisions: operands below the highest precision are rounded by an unknown function.

On a CPU the precision of a product has no effect.  Other devices first round the operands of a product below the
highest precision, each in its own way.  Such operands are therefore uninterpreted values: equal operands at one
precision give equal values.  At the highest precision operands are exact.
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
    """Whether there are products of floats at several precisions."""
    return len({of_product(node) for node in topological(roots)} - {""}) > 1


def apart(graph: Graph, root: Node, rounded: dict[Node, tuple[Node, str]]) -> Node:
    """A result in which products read rounded operands, each a fresh input.

    Args:
        graph: the program, whose names are taken.
        root: the result.
        rounded: gets each fresh input, with the operand for which it stands and the precision.
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
