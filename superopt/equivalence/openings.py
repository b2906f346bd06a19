"""Alternative forms of nodes that are equal by labels alone, on which rules can match.

An optimiser that packs several products into one reads them by slices behind the bias, and one that flattens a batch
puts reshapes around a product and the ops after it.  The rules match a slice of a product, and a product of the tensor
itself.  So slices move before elementwise functions, and reshapes behind products and such functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rewrites.language import names
from superopt.ir.graph import Node, mk
from superopt.ir.ops.table import PRODUCTS


def opened(nodes: Iterable[Node]) -> dict[Node, Node]:
    """Map nodes, operands first, to an alternative form where there is one."""
    openings: dict[Node, Node] = {}
    for node in nodes:
        if len(node.types) != 1:
            continue
        if node.op == "slice":
            other = _sliced(node, node.inputs[0])
        elif node.op in PRODUCTS:
            other = _product(node)
        elif node.op == "reshape":
            other = _shaped(node, openings.get(node.inputs[0]))
        else:
            other = _elements(node, openings) if node.op in names.ELEMENTWISE else None
        if other is not None:
            openings[node] = other
    return openings


def _sliced(node: Node, x: Node) -> Node | None:
    """A slice of an elementwise function as the function of slices."""
    if x.op not in names.ELEMENTWISE or any(y.shape not in (x.shape, ()) for y in x.inputs):
        return None
    below = [mk("slice", y, **dict(node.attrs)) if y.shape else y for y in x.inputs]
    return mk(x.op, *[_sliced(y, y.inputs[0]) or y if y.op == "slice" else y for y in below], **dict(x.attrs))


def _product(node: Node) -> Node | None:
    """A product of the rows of a flattened batch as the flattened product of the batch."""
    x, w = node.inputs
    attrs = dict(node.attrs)
    (lc, rc), (lb, rb) = attrs["dimension_numbers"]
    if lb or rb or tuple(lc) != (1,) or len(rc) != 1 or len(w.shape) != 2 or not _flattened(x):
        return None
    whole = x.inputs[0]
    attrs["dimension_numbers"] = (((len(whole.shape) - 1,), tuple(rc)), ((), ()))
    return mk("reshape", mk(node.op, whole, w, **attrs), new_sizes=node.shape)


def _elements(node: Node, found: dict[Node, Node]) -> Node | None:
    """An elementwise function of flattened batches as the flattened function of the batches."""
    forms = [found.get(x, x) for x in node.inputs]
    wholes = {x.inputs[0].shape for x in forms if _flattened(x)}
    if len(wholes) != 1:
        return None
    (whole,) = wholes
    below: list[Node] = []
    for x in forms:
        if _flattened(x):
            below.append(x.inputs[0])
        elif not x.shape:
            below.append(x)
        elif x.op == "broadcast_in_dim" and tuple(x["broadcast_dimensions"]) in ((), (1,)):
            axes = (len(whole) - 1,) if x["broadcast_dimensions"] else ()
            below.append(mk("broadcast_in_dim", x.inputs[0], shape=whole, broadcast_dimensions=axes))
        else:
            return None
    return mk("reshape", mk(node.op, *below, **dict(node.attrs)), new_sizes=node.shape)


def _shaped(node: Node, below: Node | None) -> Node | None:
    """A reshape of a node whose alternative form is a reshape, as one reshape of the tensor below both."""
    if below is None or below.op != "reshape":
        return None
    whole = below.inputs[0]
    return whole if whole.shape == node.shape else mk("reshape", whole, new_sizes=node.shape)


def _flattened(x: Node) -> bool:
    """Whether a node is a matrix of the rows of a larger tensor."""
    if x.op != "reshape" or len(x.shape) != 2:
        return False
    whole = x.inputs[0].shape
    sizes = [int(n) for n in (*whole, *x.shape)]  # pyright: ignore[reportArgumentType]  # sizes are given
    return len(whole) > 2 and whole[-1] == x.shape[1] and math.prod(sizes[:-3]) == sizes[-2]


__all__ = ["opened"]
