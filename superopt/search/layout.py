"""The physical layouts that an op wants for its operands, and the layouts worth trying per class.

A layout is an interned permutation L of the natural axes of a class: the physical tensor is `transpose(value, L)`, so
physical axis i is natural axis L[i].  `wanted` takes the order `d` desired for the result of an option (over the
e-node's own axes), and returns the order in which each operand should be.  Elementwise ops and window ops pass the
order on.  Products and convolutions take operands as they lie and put the order into their dimension numbers.  Unknown
ops want natural order.  `emit.build` makes the node for exactly these orders, so the program built is the one priced.

Unit axes carry no layout: two orders that differ only in them are the same.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from rewrites.egraph import perm
from superopt.ir.ops.contraction import free_axes
from superopt.ir.ops.reduction import CUMULATIVE
from superopt.ir.ops.table import CONVOLUTIONS, ELEMENTWISE, PRODUCTS, REDUCTIONS, WINDOWS
from superopt.ir.types import Shape
from superopt.search.snapshot import Option, OptionForm, Snapshot

Order = tuple[int, ...]
Current = tuple["Order | None", ...]
MAX_CANDIDATES = 4


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
    handler = _WANTED.get(form.op)
    if handler is not None:
        return handler(form, d, current)
    if form.op in ELEMENTWISE:
        return tuple(d if len(s) == len(d) else _natural(s) for s in form.shapes)
    return tuple(_natural(s) for s in form.shapes)


def _natural(shape: Shape) -> Order:
    return tuple(range(len(shape)))


def _first_aligned(form: OptionForm, d: Order, current: Current) -> tuple[Order, ...]:
    """Operands of full rank follow the result (slice, pad, windows, concatenation, dynamic slices)."""
    return tuple(d if len(s) == len(d) and i < _aligned_count(form) else _natural(s) for i, s in enumerate(form.shapes))


def _aligned_count(form: OptionForm) -> int:
    if form.op == "concatenate":
        return len(form.shapes)
    return 2 if form.op == "dynamic_update_slice" else 1


def _broadcast(form: OptionForm, d: Order, current: Current) -> tuple[Order, ...]:
    dims = form.attrs["broadcast_dimensions"]
    return (tuple(dims.index(axis) for axis in d if axis in dims),)


def _transpose(form: OptionForm, d: Order, current: Current) -> tuple[Order, ...]:
    permutation = form.attrs["permutation"]
    return (tuple(permutation[axis] for axis in d),)


def _reduce(form: OptionForm, d: Order, current: Current) -> tuple[Order, ...]:
    """The operand as it lies; any order of the reduced axes will do, and the result is the smaller one to move."""
    if current[0] is not None:
        return (current[0],)
    axes = form.attrs["axes"]
    rest = [i for i in range(len(form.shapes[0])) if i not in axes]
    return ((*(rest[i] for i in d), *axes),)


def regroup_order(form: OptionForm, d: Order) -> list[int]:
    """Order of the groups of a regroup for a result in order `d`: by the first axis of each that `d` meets."""
    groups = form.attrs["groups"]
    owner = [g for g, (_, sizes) in enumerate(groups) for _ in sizes]
    seen = list(dict.fromkeys(owner[axis] for axis in d if form.shape[axis] != 1))
    return seen + [g for g in range(len(groups)) if g not in seen]


def _regroup(form: OptionForm, d: Order, current: Current) -> tuple[Order, ...]:
    groups = form.attrs["groups"]
    return (tuple(axis for g in regroup_order(form, d) for axis in groups[g][0]),)


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


def _dot(form: OptionForm, d: Order, current: Current) -> tuple[Order, ...]:
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


def conv_roles(spec: Sequence[int], order: Sequence[int]) -> list[int]:
    """Role (0 batch, 1 feature, 2.. spatial) at each physical position."""
    place = {axis: role for role, axis in enumerate(spec)}
    return [place[axis] for axis in order]


def _channels_last(spec: Sequence[int], order: Sequence[int], shape: Shape) -> bool:
    roles = [role for role, axis in zip(conv_roles(spec, order), order, strict=True) if shape[axis] != 1]
    return bool(roles) and roles[-1] == 1


def conv_result_roles(form: OptionForm, d: Order, lhs_current: Order | None) -> list[int]:
    """Role order in which a convolution works: channels last if its result is desired or its input lies so.

    XLA:CPU convolves channels last and transposes other layouts, so nothing is lost by stating it.
    """
    lhs, _, out = form.attrs["dimension_numbers"]
    spatial = list(range(2, len(out)))
    here = lhs_current is not None and _channels_last(lhs, lhs_current, form.shapes[0])
    return [0, *spatial, 1] if here or _channels_last(out, d, form.shape) else [0, 1, *spatial]


def _conv(form: OptionForm, d: Order, current: Current) -> tuple[Order, ...]:
    lhs, rhs, _ = form.attrs["dimension_numbers"]
    roles = conv_result_roles(form, d, current[0])
    image = tuple(lhs[role] for role in roles)
    kernel = (*rhs[2:], rhs[1], rhs[0]) if roles[-1] == 1 else tuple(rhs)
    return (image, kernel)


_Handler = Callable[[OptionForm, Order, Current], "tuple[Order, ...]"]
_WANTED: dict[str, _Handler] = {
    **dict.fromkeys(("slice", "pad", "rev", "concatenate", "dynamic_slice", "dynamic_update_slice"), _first_aligned),
    **dict.fromkeys(WINDOWS, _first_aligned),
    **dict.fromkeys(CUMULATIVE, _first_aligned),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(PRODUCTS, _dot),
    **dict.fromkeys(CONVOLUTIONS, _conv),
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "regroup": _regroup,
}


def forward(form: OptionForm, position: int, order: Order) -> Order | None:
    """Result order that follows from one operand's order; None where none follows."""
    op, rank = form.op, len(form.shape)
    if op in ELEMENTWISE or op in WINDOWS or op in CUMULATIVE or op in ("slice", "pad", "rev", "concatenate"):
        return order if len(order) == rank else None
    if op in CONVOLUTIONS and position == 0:
        lhs, _, out = form.attrs["dimension_numbers"]
        return tuple(out[role] for role in conv_roles(lhs, order))
    if op in PRODUCTS:
        return _dot_forward(form, position, order)
    if op in REDUCTIONS:
        rest = [i for i in range(len(form.shapes[0])) if i not in form.attrs["axes"]]
        return tuple(rest.index(axis) for axis in order if axis in rest)
    if op == "regroup":
        groups = form.attrs["groups"]
        start = list(itertools.accumulate((len(sizes) for _, sizes in groups), initial=0))
        owner = {axis: g for g, (axes, _) in enumerate(groups) for axis in axes}
        seen = list(dict.fromkeys(owner[axis] for axis in order))
        seen += [g for g in range(len(groups)) if g not in seen]
        return tuple(i for g in seen for i in range(start[g], start[g + 1]))
    return None


def _dot_forward(form: OptionForm, position: int, order: Order) -> Order | None:
    """Result order of a product with a matrix: the new axis takes the place of the contracted one."""
    contracted, batch = form.attrs["dimension_numbers"]
    other = 1 - position
    new = dot_free(form)[other]
    if batch[0] or len(contracted[0]) != 1 or len(new) != 1:
        return None
    labels = dot_labels(form)
    place = {axis: i for i, (side, axis) in enumerate(labels) if side == position}
    place[contracted[position][0]] = labels.index((other, new[0]))
    return tuple(place[axis] for axis in order)


def backward(form: OptionForm, d: Order) -> list[tuple[int, Order]]:
    """(operand position, order) of the operands that a result order carries over to."""
    op, rank = form.op, len(form.shape)
    if op in PRODUCTS:
        out: list[tuple[int, Order]] = []
        for side in (0, 1):
            if form.frozen[side] is None and form.frozen[1 - side] is not None:
                natural = _dot_forward(form, side, _natural(form.shapes[side]))
                if natural is not None:
                    out.append((side, tuple(natural.index(axis) for axis in d)))
        return out
    if op in CONVOLUTIONS:
        lhs, _, result = form.attrs["dimension_numbers"]
        return [(0, tuple(lhs[role] for role in conv_roles(result, d)))]
    if op in REDUCTIONS:
        return []
    if op in _WANTED or op in ELEMENTWISE:
        orders = wanted(form, d, (None,) * len(form.shapes))
        keep = op in ("broadcast_in_dim", "regroup", "transpose")
        return [(i, o) for i, o in enumerate(orders) if len(o) > 1 and (keep or len(o) == rank)]
    return []


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
