"""Forms that differ only in what is computed ahead of time.

Rules that move scales and biases reach one value by several ways, `x W + (B - M S)` and `x W + (-M S + B)`; the
frozen operands are equal, but no rule says so, because nothing is matched at frozen classes.  Each variant would feed
the rules above it, and the variants multiply from layer to layer.  Since frozen values cost nothing in the objective,
one of the forms is enough: of e-nodes of a class that agree in op, live operands and size of the frozen operands, the
oldest stays listed.  What the program itself says is never hidden.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import prod

from rewrites.egraph.enode import ENode, Ref
from rewrites.egraph.graph import EGraph
from rewrites.egraph.shape import broadcast_views
from superopt.ir.graph import Attrs
from superopt.ir.ops.table import CONVOLUTIONS, PRODUCTS
from superopt.ir.scalar import COMMUTATIVE


def hide_variants(eg: EGraph, classes: Iterable[int]) -> int:
    """Hide all but the oldest of the forms that differ only in frozen operands; how many were hidden."""
    hidden = 0
    for cls in classes:
        nodes = eg.enodes(cls)
        if len(nodes) < 2:
            continue
        seen: set[Hashable] = set()
        for node in sorted(nodes, key=eg.origin.__contains__):
            key = _live_part(eg, node)
            if key is None:
                continue
            if key in seen and node in eg.origin:
                eg.hide(node)
                hidden += 1
            seen.add(key)
    return hidden


def _live_part(eg: EGraph, node: ENode) -> Hashable:
    """What an e-node with live and frozen operands does to the live ones; None for any other."""
    frozen = [eg.frozen(child) for child in node[1:]]
    if all(frozen) or not any(frozen):
        return None
    op, attrs = eg.op_of(node), eg.attrs_of(node)
    if op == "macro":
        v = eg.values_of(node)
        return v["rule"], _signature(eg, v["op"], v["attrs"], node[1:], frozen)
    return _signature(eg, op, attrs, node[1:], frozen)


def _signature(eg: EGraph, op: str, attrs: Attrs, children: tuple[Ref, ...], frozen: list[bool]) -> Hashable:
    operands = [
        (_stored(eg, child), -1) if is_frozen else (-1, eg.find_class(child))
        for child, is_frozen in zip(children, frozen, strict=True)
    ]
    if op in COMMUTATIVE:
        return op, tuple(sorted(operands))
    if op in PRODUCTS:
        v = dict(attrs)
        contracted, batch = v["dimension_numbers"]
        side = frozen.index(False)
        return op, contracted[side], batch[side], v["precision"], v["preferred_element_type"], tuple(sorted(operands))
    if op in CONVOLUTIONS:
        v = dict(attrs)
        image, kernel, _ = v.pop("dimension_numbers")
        return op, (kernel if frozen[0] else image), tuple(sorted(v.items())), tuple(operands)
    return op, attrs, tuple(operands)


def _stored(eg: EGraph, ref: Ref) -> int:
    """Number of elements that a frozen tensor takes in memory."""
    for source, _ in broadcast_views(eg, ref):
        return prod(eg.shape(source))
    return prod(eg.shape(ref))
