"""The physical layouts that an op wants for its operands, and the layouts worth trying per class.

A layout is an interned permutation L of the natural axes of a class: the physical tensor is `transpose(value, L)`, so
physical axis i is natural axis L[i]. `wanted` takes the order `d` desired for the result of an option, over the
e-node's own axes, and returns the order in which each operand should be. It is that of the result, as far as axes stay
axes: the facet `axes` of the op's entry says so. Products and convolutions take operands as they lie and put the order
into their dimension numbers. Ops without the facet want natural order. `emit.build` makes the node for exactly these
orders, so the program built is the one priced.

Unit axes carry no layout: two orders that differ only in them are the same.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from rewrites.egraph import perm
from superopt.ir.ops.axes import Flow, permuted
from superopt.ir.ops.axes import Order as Order
from superopt.ir.ops.contraction import free_axes
from superopt.ir.ops.table import CONTRACTIONS, CONVOLUTIONS, PRODUCTS, REDUCTIONS
from superopt.ir.types import Shape
from superopt.search.snapshot import Option, OptionForm, Snapshot

Current = tuple["Order | None", ...]
MAX_CANDIDATES = 4  # layouts of a class, its own among them


def without_units(order: Sequence[int], shape: Shape) -> list[int]:
    """The order restricted to axes of size other than 1."""
    return [axis for axis in order if shape[axis] != 1]


def same(a: Sequence[int], b: Sequence[int], shape: Shape) -> bool:
    """Whether the two orders lay out a tensor of this shape alike."""
    return a == b or without_units(a, shape) == without_units(b, shape)


def wanted(form: OptionForm, d: Order, current: Current) -> tuple[Order, ...]:
    """Order of each operand's axes, for a result in order `d`.

    Args:
        form: the option's form.
        d: desired order of the e-node's result axes.
        current: order in which each operand lies; None for frozen operands, which can be stored in any order.
    """
    if form.flow is None or form.axes is None or not form.axes.follows:
        return tuple(_natural(s) for s in form.shapes)
    if form.op in PRODUCTS:
        return _product(form, d, current)
    if form.op in CONVOLUTIONS:
        return _convolution(form, d, current)
    return tuple(_followed(form.flow, k, form, d, lies) for k, lies in enumerate(current))


def _natural(shape: Shape) -> Order:
    return tuple(range(len(shape)))


def _followed(flow: Flow, k: int, form: OptionForm, d: Order, lies: Order | None) -> Order:
    """Axes of an operand as the result has them, then those that it lacks.

    An operand that is reduced stays as it lies: any order of the reduced axes will do, and the result is the smaller
    one to move.
    """
    own = flow.operands[k][: len(form.shapes[k])]
    if flow.regroups:
        return tuple([own.index((atom,)) for g in regroup_order(form, d) for atom in flow.result[g].atoms])
    place = {atoms: axis for axis, atoms in enumerate(own)}
    there = [place[atoms] for atoms in permuted(flow.axes, d) if atoms in place]
    lost = [axis for axis in range(len(own)) if axis not in there]
    return lies if lost and lies is not None else (*there, *lost)


def regroup_order(form: OptionForm, d: Order) -> list[int]:
    """Order of the runs of a regroup for a result in order `d`: by the first axis of each that `d` meets."""
    assert form.flow is not None
    runs = form.flow.result
    owner = [g for g, run in enumerate(runs) for _ in range(run.axes)]
    seen = list(dict.fromkeys(owner[axis] for axis in d if form.shape[axis] != 1))
    return seen + [g for g in range(len(runs)) if g not in seen]


def dot_free(form: OptionForm) -> tuple[list[int], list[int]]:
    """Axes of either operand of a product that are neither contracted nor batch axes."""
    left, right = form.shapes
    return free_axes(form.attrs["dimension_numbers"], (len(left), len(right)))


def dot_labels(form: OptionForm) -> list[tuple[int, int]]:
    """Each result axis of a product: (-1, batch index), (0, lhs axis) or (1, rhs axis)."""
    batch = form.attrs["dimension_numbers"][1]
    free = [(side, axis) for side, axes in enumerate(dot_free(form)) for axis in axes]
    return [(-1, i) for i in range(len(batch[0]))] + free


def dot_first(form: OptionForm, d: Order) -> int:
    """The operand whose free axes stand first in the desired result.

    Where unit axes leave that open (a matrix times a vector), a frozen matrix stands second, stored [inner, columns].
    """
    labels = dot_labels(form)
    sides = list(dict.fromkeys(labels[axis][0] for axis in d if labels[axis][0] >= 0 and form.shape[axis] != 1))
    if len(sides) == 2:
        return sides[0]
    return 1 if form.frozen[0] is not None and form.frozen[1] is None else 0


def _product(form: OptionForm, d: Order, current: Current) -> tuple[Order, ...]:
    """Live operands as they lie; frozen ones as [batch, rows, inner] in front, [batch, inner, columns] behind."""
    contracted, batch = form.attrs["dimension_numbers"]
    labels, first = dot_labels(form), dot_first(form, d)
    out: list[Order] = []
    for side in (0, 1):
        order = current[side]
        if order is None:
            free = [labels[axis][1] for axis in d if labels[axis][0] == side]
            other = current[1 - side]
            pairs = list(range(len(contracted[side])))
            if other is not None:  # the contracted axes in the order in which the other operand holds them
                place = {axis: i for i, axis in enumerate(other)}
                pairs.sort(key=lambda i: place[contracted[1 - side][i]])
            inner = [contracted[side][i] for i in pairs]
            order = (*batch[side], *free, *inner) if side == first else (*batch[side], *inner, *free)
        out.append(order)
    return tuple(out)


def _roles(spec: Sequence[int], order: Sequence[int]) -> list[int]:
    """Role (0 batch, 1 feature, 2.. spatial) at each physical position."""
    place = {axis: role for role, axis in enumerate(spec)}
    return [place[axis] for axis in order]


def _channels_last(spec: Sequence[int], order: Sequence[int], shape: Shape) -> bool:
    roles = [role for role, axis in zip(_roles(spec, order), order, strict=True) if shape[axis] != 1]
    return bool(roles) and roles[-1] == 1


def _convolution(form: OptionForm, d: Order, current: Current) -> tuple[Order, ...]:
    """Channels last if the result is desired or the input lies so.

    XLA:CPU convolves channels last and transposes other layouts, so nothing is lost by stating it.
    """
    lhs, rhs, out = form.attrs["dimension_numbers"]
    spatial, lies = tuple(range(2, len(out))), current[0]
    here = lies is not None and _channels_last(lhs, lies, form.shapes[0])
    if not spatial or here or _channels_last(out, d, form.shape):
        return permuted(lhs, (0, *spatial, 1)), (*rhs[2:], rhs[1], rhs[0])
    return tuple(lhs), tuple(rhs)


def forward(form: OptionForm, position: int, order: Order) -> Order | None:
    """Result order that follows from one operand's order; None where none follows, as from a slice at positions."""
    flow = form.flow
    if flow is None or form.axes is None or not form.axes.follows or form.axes.data is not None:
        return None
    own = flow.operands[position][: len(order)]
    if flow.regroups:
        start = list(itertools.accumulate((run.axes for run in flow.result), initial=0))
        owner = {atom: g for g, run in enumerate(flow.result) for atom in run.atoms}
        seen = list(dict.fromkeys(owner[own[axis][0]] for axis in order))
        seen += [g for g in range(len(flow.result)) if g not in seen]
        return tuple(i for g in seen for i in range(start[g], start[g + 1]))
    place = {atoms: axis for axis, atoms in enumerate(flow.axes)}
    new, lost = [a for a in flow.axes if a not in own], [a for a in own if a not in place]
    if form.op in CONTRACTIONS and len(new) == len(lost) == 1 and _leads(form, position):
        place[lost[0]] = place[new[0]]  # the new axis takes the place of the contracted one
    elif form.op in CONTRACTIONS or new:
        return None
    return tuple([place[atoms] for atoms in permuted(own, order) if atoms in place])


def _leads(form: OptionForm, position: int) -> bool:
    """Whether the result of a contraction lies as this operand: an image, or an operand of a product without batch."""
    return position == 0 if form.op in CONVOLUTIONS else not form.attrs["dimension_numbers"][1][0]


def backward(form: OptionForm, d: Order) -> list[tuple[int, Order]]:
    """(operand position, order) of the operands that a result order carries over to."""
    if form.flow is None or form.axes is None or not form.axes.follows or form.op in REDUCTIONS:
        return []
    if form.op not in CONTRACTIONS:
        orders = wanted(form, d, (None,) * len(form.shapes))
        return [(k, order) for k, order in enumerate(orders) if len(order) > 1]
    out: list[tuple[int, Order]] = []
    for side in (0, 1):
        led = form.op in CONVOLUTIONS or (form.frozen[side] is None and form.frozen[1 - side] is not None)
        natural = forward(form, side, _natural(form.shapes[side])) if led else None
        if natural is not None:
            out.append((side, tuple(natural.index(axis) for axis in d)))
    return out


def candidates(snapshot: Snapshot, rounds: int = 3, limit: int = MAX_CANDIDATES) -> list[list[int]]:
    """Layouts worth trying per class, the program's own first.

    Convolutions suggest channels first and last, products the two orders of their free axes; suggestions spread
    through ops that carry an order over, and the most suggested ones are kept.  Inputs stay as they come.
    """
    votes: list[Counter[int]] = [Counter({home: 1_000_000}) for home in snapshot.home]
    for c, row in enumerate(snapshot.options):
        for option in row:
            for position, order in _suggestions(option.form):
                _vote(votes, option, c, position, order, 8)
    for _ in range(rounds):
        before = [[layout for layout, _ in v.most_common(limit)] for v in votes]
        for c, row in enumerate(snapshot.options):
            for option in row:
                _spread(votes, before, option, c)
    out: list[list[int]] = []
    for c, vote in enumerate(votes):
        shape = snapshot.shapes[c]
        fixed = [o.out for o in snapshot.options[c] if o.form.op == "input" or o.control]
        if fixed:
            out.append(fixed[:1])
            continue
        kept: list[int] = []
        seen: set[tuple[int, ...]] = set()
        for layout, _ in sorted(vote.items(), key=lambda item: (-item[1], item[0])):
            key = tuple(without_units(perm.perm_of(layout, len(shape)), shape))
            if key not in seen and len(kept) < limit:
                seen.add(key)
                kept.append(layout)
        out.append(kept)
    return out


def _suggestions(form: OptionForm) -> list[tuple[int, Order]]:
    """(operand position or -1 for the result, order) that an op prefers."""
    if form.op in CONVOLUTIONS:
        lhs, _, out = form.attrs["dimension_numbers"]
        spatial = list(range(2, len(out)))
        roles = ([0, *spatial, 1], [0, 1, *spatial])
        return [(p, tuple(spec[r] for r in rs)) for rs in roles for p, spec in ((-1, out), (0, lhs))]
    if form.op in PRODUCTS:
        labels = dot_labels(form)
        parts = [[i for i, (side, _) in enumerate(labels) if side == s] for s in (-1, 0, 1)]
        out_orders = [(-1, (*parts[0], *parts[1], *parts[2])), (-1, (*parts[0], *parts[2], *parts[1]))]
        contracted, batch = form.attrs["dimension_numbers"]
        for side, free in enumerate(dot_free(form)):
            out_orders.append((side, (*batch[side], *free, *contracted[side])))
            out_orders.append((side, (*batch[side], *contracted[side], *free)))
        return out_orders
    return []


def _vote(votes: list[Counter[int]], option: Option, c: int, position: int, order: Order, weight: int) -> None:
    if position < 0:
        votes[c][perm.compose(option.out, perm.intern(order))] += weight
        return
    for at, k, p in option.live:
        if at == position:
            votes[k][perm.compose(p, perm.intern(order))] += weight


def _spread(votes: list[Counter[int]], before: list[list[int]], option: Option, c: int) -> None:
    form = option.form
    for layout in before[c]:
        d = perm.perm_of(perm.compose(option.out_inverse, layout), len(form.shape))
        for position, order in backward(form, d):
            _vote(votes, option, c, position, order, 1)
    for position, k, p in option.live:
        rank = len(form.shapes[position])
        for layout in before[k]:
            order = perm.perm_of(perm.compose(perm.inverse(p), layout), rank)
            result = forward(form, position, order)
            if result is not None:
                _vote(votes, option, c, -1, result, 1)
