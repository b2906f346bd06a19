"""Kernels as graphs of their own: what the objective prices.

Leaves are inputs numbered in order of first use, so that equal kernels are one hash-consed node; every frozen operand
is an input of its own (two operands that happen to read one weight are priced like any two).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from rewrites.egraph import perm
from superopt.ir.graph import Node, make_input
from superopt.search.emit import ClassEmitter, Wants, arrange
from superopt.search.layout import Order, same
from superopt.search.snapshot import FrozenLeaf, Snapshot


def numbered_inputs() -> Callable[[FrozenLeaf, Order], Node]:
    """A source of fresh frozen inputs w0, w1, ..."""
    count = itertools.count()

    def stored(leaf: FrozenLeaf, order: Order) -> Node:
        shape = tuple(leaf.shape[axis] for axis in order)
        return make_input(f"w{next(count)}", shape, leaf.dtype, frozen=True)

    return stored


def kernel_node(
    wants: Wants, selection: Sequence[int], layouts: Sequence[int], materialised: Sequence[bool], c: int
) -> Node | None:
    """Output node of the kernel of a materialised class; None when it moves nothing."""
    snapshot = wants.snapshot
    leaves: dict[int, Node] = {}

    def leaf(k: int) -> Node:
        node = leaves.get(k)
        if node is None:
            shape = snapshot.shapes[k]
            physical = tuple(shape[axis] for axis in perm.perm_of(layouts[k], len(shape)))
            node = leaves[k] = make_input(f"x{len(leaves)}", physical, snapshot.dtypes[k])
        return node

    node = ClassEmitter(snapshot, wants, selection, layouts, materialised, leaf, numbered_inputs()).kernel(c)
    return None if is_free(node) else node


def is_free(node: Node) -> bool:
    """The kernel moves nothing: an input, or reshapes of one."""
    while node.op == "reshape":
        node = node.inputs[0]
    return node.op == "input"


def transpose_node(snapshot: Snapshot, c: int, lies: int, order: int) -> Node | None:
    """The kernel that transposes class `c`, or None when only unit axes move."""
    shape = snapshot.shapes[c]
    have, want = perm.perm_of(lies, len(shape)), perm.perm_of(order, len(shape))
    if same(have, want, shape):
        return None
    return arrange(make_input("x0", tuple(shape[axis] for axis in have), snapshot.dtypes[c]), have, want)
