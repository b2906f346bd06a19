"""Builds IR nodes for options in physical layouts: the only place where a class becomes code.

`build` makes the node of one option from operands that lie in the orders of `layout.wanted`; `ClassEmitter` walks the
inlined closure of a kernel.  Lowering calls it with leaves that are the nodes of the program under construction.
Pricing calls it with leaves that are inputs, so that a kernel is a graph of its own.  Its inputs are numbered in order
of first use, so that equal kernels are one hash-consed node.  Every frozen operand is an input of its own (two operands
that happen to read one weight are priced like any two).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rewrites.egraph import perm
from superopt.ir.graph import Node, literal, make_input, mk
from superopt.ir.ops import table
from superopt.ir.ops.axes import Flow, permuted
from superopt.ir.ops.table import CONTROL, CONVOLUTIONS, ELEMENTWISE, PRODUCTS
from superopt.ir.types import Shape
from superopt.search.layout import (
    Current,
    Order,
    dot_first,
    forward,
    regroup_order,
    same,
    wanted,
)
from superopt.search.snapshot import Forms, FrozenLeaf, Option, OptionForm, Selection, Snapshot, WantedOrders


def arrange(node: Node, have: Sequence[int], want: Sequence[int]) -> Node:
    """A tensor that lies in order `have`, transposed to order `want` (both over its natural axes)."""
    if tuple(have) == tuple(want):
        return node
    place = {axis: i for i, axis in enumerate(have)}
    permutation = tuple(place[axis] for axis in want)
    shape: list[Any] = [1] * len(node.shape)
    for axis, n in zip(have, node.shape, strict=True):
        shape[axis] = n
    if same(tuple(have), tuple(want), tuple(shape)):  # only unit axes move
        return mk("reshape", node, new_sizes=tuple(shape[axis] for axis in want))
    return mk("transpose", node, permutation=permutation)


def full_shape(node: Node, shape: Shape) -> Node:
    """A scalar operand of an elementwise op, broadcast to a tensor."""
    return node if node.shape == shape else mk("broadcast_in_dim", node, shape=shape, broadcast_dimensions=())


def frozen_operand(leaf: FrozenLeaf, order: Order, stored: Callable[[FrozenLeaf, Order], Node]) -> Node:
    """A frozen operand in an order of its axes: only its source is stored, and broadcast here."""
    shape = tuple(leaf.full[axis] for axis in order)
    if leaf.value is not None:
        node = literal(leaf.value, leaf.dtype)
        dims: tuple[int, ...] = ()
    else:
        node = stored(leaf, tuple(leaf.dims.index(axis) for axis in order if axis in leaf.dims))
        dims = tuple(i for i, axis in enumerate(order) if axis in leaf.dims)
    if len(dims) == len(shape):
        return node
    return mk("broadcast_in_dim", node, shape=shape, broadcast_dimensions=dims)


def make(form: OptionForm, operands: Sequence[Node], attrs: dict[str, Any]) -> Node:
    """The node of a form's op with these attributes, wrapped again when the form is a macro."""
    if form.rule is None:
        return mk(form.op, *operands, **attrs)

    return mk("macro", *operands, rule=form.rule, op=form.op, attrs=table.canonical(form.op, attrs))


def build(form: OptionForm, d: Order, orders: Sequence[Order], operands: Sequence[Node]) -> Node:
    """The result of an option in order `d`, from operands lying in `orders`."""
    if form.op in ELEMENTWISE:
        return _elementwise(form, d, operands)
    if form.axes is None or form.flow is None:
        node = make(form, operands, form.attrs)
        return node if len(node.types) != 1 else arrange(node, tuple(range(len(form.shape))), d)
    if form.flow.regroups:
        return _regroup(form, form.flow, d, orders, operands)
    attrs, turned = form.attrs, tuple(range(len(form.shape)))
    if form.op in PRODUCTS and dot_first(form, d):
        commuted = form.axes.commuted(attrs, [len(s) for s in form.shapes])
        if commuted is not None:
            (attrs, turned), orders, operands = commuted, orders[::-1], operands[::-1]
    follows = forward(form, 0, orders[0]) if form.op in CONVOLUTIONS else d  # a convolution's result lies as its image
    laid = form.axes.laid(attrs, orders, follows)
    node = make(form, [operands[j] for j in laid.operands], laid.attrs)
    return arrange(node, permuted(turned, laid.order), d)


def _elementwise(form: OptionForm, d: Order, operands: Sequence[Node]) -> Node:
    shape = permuted(form.shape, d)
    if form.op == "clamp":
        bounds = [x if not x.shape else full_shape(x, shape) for x in (operands[0], operands[2])]
        return make(form, (bounds[0], operands[1], bounds[1]), form.attrs)
    return make(form, [full_shape(x, shape) for x in operands], form.attrs)


def _regroup(form: OptionForm, flow: Flow, d: Order, orders: Sequence[Order], operands: Sequence[Node]) -> Node:
    """A transpose that brings the merged axes side by side, then a reshape."""
    runs, sequence = flow.result, regroup_order(form, d)
    first = list(itertools.accumulate((run.axes for run in runs), initial=0))
    have = [axis for g in sequence for axis in range(first[g], first[g + 1])]
    sizes = tuple(form.shape[axis] for axis in have)
    own = flow.operands[0]
    node = arrange(operands[0], orders[0], [own.index((atom,)) for g in sequence for atom in runs[g].atoms])
    node = node if node.shape == sizes else mk("reshape", node, new_sizes=sizes)
    return arrange(node, have, d)


class Wants:
    """Memo of `layout.wanted` over interned orders; each distinct answer has a number, the same in all snapshots."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.forms, self.laid = snapshot.forms.all, snapshot.forms.laid
        self.plain, self.by_current = snapshot.forms.plain, snapshot.forms.following

    def fixed(self, fid: int, d: int) -> WantedOrders:
        """(number, interned orders) of a form that does not depend on the layouts of its operands."""
        key = fid << perm.PERM_BITS | d
        wish = self.plain.get(key)
        if wish is None:
            form = self.forms[fid]
            wish = self.plain[key] = self._new(form, d, (None,) * len(form.shapes))
        return wish

    def following(self, option: Option, d: int, layouts: Sequence[int] | Mapping[int, int]) -> WantedOrders:
        """(number, interned orders) of a form that depends on its operands, given the layout of every class."""
        form = option.form
        key = (option.fid, d, *[perm.compose(perm.inverse(p), layouts[k]) for _, k, p in option.live])
        wish = self.by_current.get(key)
        if wish is None:
            current: list[Order | None] = [None] * len(form.shapes)
            for (position, _, _), lies in zip(option.live, key[2:], strict=True):
                current[position] = perm.perm_of(lies, len(form.shapes[position]))
            wish = self.by_current[key] = self._new(form, d, tuple(current))
        return wish

    def of(self, option: Option, d: int, layouts: Sequence[int]) -> WantedOrders:
        """(number, interned orders) for a result in order `d`."""
        return self.following(option, d, layouts) if option.needs_current else self.fixed(option.fid, d)

    def _new(self, form: OptionForm, d: int, current: Current) -> WantedOrders:
        orders = tuple(map(perm.intern, wanted(form, perm.perm_of(d, len(form.shape)), current)))
        self.laid.append((form, d, orders))
        return len(self.laid) - 1, orders


class ClassEmitter:
    """Emits classes of a selection; `leaf` returns the node of a materialised class, `stored` that of a frozen leaf.

    Classes in `apart` are computed again in every kernel that inlines them, and kept from being merged.
    """

    def __init__(
        self,
        wants: Wants,
        selection: Selection,
        leaf: Callable[[int], Node],
        stored: Callable[[FrozenLeaf, Order], Node],
        apart: Iterable[int] = (),
    ) -> None:
        self.snapshot, self.wants = wants.snapshot, wants
        self.selection, self.layouts, self.materialised = selection.options, selection.layouts, selection.materialised
        self.leaf, self.stored = leaf, stored
        self.memo: dict[tuple[int, int], Node] = {}
        self._copies: dict[int, dict[int, int]] = {c: {} for c in apart}
        self._number = 0

    def kernel(self, c: int) -> Node:
        """The materialised class `c` in its layout, computed from the materialised classes that it reads."""
        self.memo = {}
        self._number += 1
        return self._inlined(c, self.layouts[c])

    def operand(self, c: int, order: int) -> Node:
        """Class `c` in an interned order of its natural axes."""
        if not self.materialised[c]:
            return self._inlined(c, order)
        rank = len(self.snapshot.shapes[c])
        node = self.leaf(c)
        if len(node.types) != 1:
            return node
        return arrange(node, perm.perm_of(self.layouts[c], rank), perm.perm_of(order, rank))

    def _inlined(self, c: int, order: int) -> Node:
        """Emit a class and those inlined into it (depth first without recursion: chains may be long)."""
        stack = [(c, order)]
        while stack:
            here = stack[-1]
            if here in self.memo:
                stack.pop()
                continue
            option = self.snapshot.options[here[0]][self.selection[here[0]]]
            d = perm.compose(option.out_inverse, here[1])
            _, interned = self.wants.of(option, d, self.layouts)
            reads = [(position, k, perm.compose(p, interned[position])) for position, k, p in option.live]
            missing = [(k, o) for _, k, o in reads if not self.materialised[k] and (k, o) not in self.memo]
            if missing:
                stack.extend(missing)
                continue
            copies = self._copies.get(here[0])
            copy = 0 if copies is None else copies.setdefault(self._number, len(copies))
            self.memo[here] = self._node(option, d, interned, reads, copy)
            stack.pop()
        return self.memo[(c, order)]

    def _node(
        self, option: Option, d: int, interned: Sequence[int], reads: Sequence[tuple[int, int, int]], copy: int
    ) -> Node:
        form = option.form
        orders = [perm.perm_of(o, len(s)) for o, s in zip(interned, form.shapes, strict=True)]
        operands: list[Any] = [None] * len(orders)
        for position, leaf in enumerate(option.frozen):
            if leaf is not None:
                operands[position] = frozen_operand(leaf, orders[position], self.stored)
        for position, k, o in reads:
            operands[position] = self.operand(k, o)
        for _ in range(copy):  # unequal operands make unequal copies
            operands[reads[0][0]] = mk("barrier", operands[reads[0][0]])
        return build(form, perm.perm_of(d, len(form.shape)), orders, operands)


# ---- kernels as graphs of their own


def numbered_inputs() -> Callable[[FrozenLeaf, Order], Node]:
    """A source of fresh frozen inputs w0, w1, ..."""
    count = itertools.count()

    def stored(leaf: FrozenLeaf, order: Order) -> Node:
        shape = tuple(leaf.shape[axis] for axis in order)
        return make_input(f"w{next(count)}", shape, leaf.dtype, frozen=True)

    return stored


def kernel_node(wants: Wants, selection: Selection, c: int) -> Node | None:
    """Output node of the kernel of a materialised class; None when it moves nothing."""
    snapshot, layouts = wants.snapshot, selection.layouts
    leaves: dict[int, Node] = {}

    def leaf(k: int) -> Node:
        node = leaves.get(k)
        if node is None:
            shape = snapshot.shapes[k]
            physical = tuple(shape[axis] for axis in perm.perm_of(layouts[k], len(shape)))
            node = leaves[k] = make_input(f"x{len(leaves)}", physical, snapshot.dtypes[k])
        return node

    node = ClassEmitter(wants, selection, leaf, numbered_inputs()).kernel(c)
    return None if is_free(node) else node


def alone(forms: Forms, number: int) -> Node | None:
    """Output node of an op as a kernel of its own, by the number of its wanted orders; None where it costs nothing."""
    if number in forms.alone:
        return forms.alone[number]
    form, d, orders = forms.laid[number]
    node: Node | None = None
    if form.op != "input" and form.op not in CONTROL:
        spelled = [perm.perm_of(o, len(s)) for o, s in zip(orders, form.shapes, strict=True)]
        stored = numbered_inputs()
        operands: list[Node] = []
        for position, leaf in enumerate(form.frozen):
            order = spelled[position]
            if leaf is not None:
                operands.append(frozen_operand(leaf, order, stored))
            else:
                shape = tuple(form.shapes[position][axis] for axis in order)
                operands.append(make_input(f"x{position}", shape, form.dtypes[position]))
        node = build(form, perm.perm_of(d, len(form.shape)), spelled, operands)
    forms.alone[number] = None if node is None or is_free(node) else node
    return forms.alone[number]


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
