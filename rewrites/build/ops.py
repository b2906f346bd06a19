"""Building the structural ops of right sides: products, convolutions, reductions, windows and movement."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rewrites.build import dynamic, roles
from rewrites.build.arrange import (
    BuildError,
    Built,
    arrange,
    atomic,
    axis_of,
    extent,
    labels_in,
    reshape,
    sizes_in,
    with_axes,
    without,
)
from rewrites.build.dynamic import per_axis_operand
from rewrites.language.named import Env, labels_of, per_axis
from rewrites.language.term import PHYSICAL, Term
from rewrites.match.labels import Axis, Layout

if TYPE_CHECKING:
    from rewrites.build.terms import Builder

_Op: TypeAlias = "Callable[[Builder, Term, Layout | None, Env], Built]"


def _only(built: Built, other: Built, labels: Sequence[int]) -> list[int]:
    """Contracted labels that one operand lacks: they must have size 1."""
    a, b = sizes_in(built[1]), sizes_in(other[1])
    miss = [label for label in labels if (label in a) != (label in b)]
    if any({**a, **b}[label] != 1 for label in miss):
        raise BuildError("a contracted axis is missing in one operand")
    return miss


def _dot(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """Positions of labels are the dimension numbers; operands are swapped where the hint says so."""
    x, y = (b.go(a, hint, env) for a in t.args)
    contracted = labels_of(env, t["over"])
    miss = _only(x, y, contracted)
    x, y = without(x, miss), without(y, miss)
    in_x, in_y = sizes_in(x[1]), sizes_in(y[1])
    both = {label for label in in_x if label in in_y}
    blocks = _blocks(x[1], y[1], set(contracted))
    inside = {label for block in blocks for label, _ in block}
    x = _apart(b, x, both - inside, blocks)
    y = _apart(b, y, both - inside, blocks)
    wanted = labels_in(hint) if hint is not None else []
    free = [label for label in wanted if (label in in_x) != (label in in_y)]
    lead = next((label for label in free if {**in_x, **in_y}[label] != 1), None)
    if lead in in_y:
        x, y, in_x, in_y = y, x, in_y, in_x
    batch = [label for label in labels_in(x[1]) if label in both and label not in contracted]
    place = {label: i for i, label in enumerate(wanted)}
    batch.sort(key=lambda label: place.get(label, len(place)))
    later = {label for block in blocks for label, _ in block[1:]}
    over = [label for label in labels_in(x[1]) if label in both and label in contracted and label not in later]

    def at(built: Built, labels: Sequence[int]) -> tuple[int, ...]:
        return tuple(axis_of(built[1], label) for label in labels)

    numbers = ((at(x, over), at(y, over)), (at(x, batch), at(y, batch)))
    out: list[Axis] = [((label, in_x[label]),) for label in batch]
    for built in (x, y):
        out += [axis for axis in built[1] if not any(label in both for label, _ in axis)]
    value = b.target.mk(
        PHYSICAL["dot"], x[0], y[0], dimension_numbers=numbers, precision=b.precision,
        preferred_element_type=b.preferred,
    )  # fmt: skip
    return value, tuple(out)


def _blocks(x: Layout, y: Layout, contracted: set[int]) -> list[Axis]:
    """Merged axes of one operand that are contracted as a whole, and lie in the other in the same order."""
    out: list[Axis] = []
    for one, other in ((x, y), (y, x)):
        where = {label: i for i, label in enumerate(labels_in(other))}
        for axis in one:
            labels = [label for label, _ in axis]
            if len(axis) < 2 or not contracted.issuperset(labels) or not all(label in where for label in labels):
                continue
            start = where[labels[0]]
            follow = all(where[label] == start + i for i, label in enumerate(labels))
            if follow and not any({*held} & {*axis} for held in out):
                out.append(axis)
    return out


def _apart(b: Builder, built: Built, only: set[int], blocks: Sequence[Axis]) -> Built:
    """Split merged axes that hold a label of `only`, and make one axis of every block; axes without a label go."""
    first = {block[0]: block for block in blocks}
    inside = {e for block in blocks for e in block}
    want: list[Axis] = []
    for axis in built[1]:
        if not inside.isdisjoint(axis) or (len(axis) > 1 and any(label in only for label, _ in axis)):
            want += [first.get(e, (e,)) for e in axis if e in first or e not in inside]
        elif axis:
            want.append(axis)
    return arrange(b.target, built, want)


def _conv(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """An operand whose groups of labels already are one axis each keeps its order; the result follows the hint."""
    if not any(env.labels[r] for r, _ in t["win"]):
        return _dot(b, t, hint, env)  # a convolution without windows
    x, w = (b.go(a, hint, env) for a in t.args)
    features = labels_of(env, t["over"])
    miss = _only(x, w, features)
    x, w = without(x, miss), without(w, miss)
    in_x, in_w = sizes_in(x[1]), sizes_in(w[1])
    window = dict(per_axis(t, env))
    spatial = list(window)
    inner = [label for label in labels_in(x[1]) if label in features]
    busy = {*inner, *spatial}
    group = [label for label in in_x if label in in_w and label not in busy]
    batch = [label for label in in_x if label not in in_w and label not in busy]
    outer = [label for label in in_w if label not in in_x and label not in busy]

    def axis(labels: Sequence[int], size: dict[int, int]) -> Axis:
        return tuple((label, size[label]) for label in labels if label in size)

    xv, x_spec = _place(b, x, [axis(s, in_x) for s in (batch, group + inner, *([label] for label in spatial))])
    wv, w_spec = _place(b, w, [axis(s, in_w) for s in (group + outer, inner, *([label] for label in spatial))])
    sizes = b.sizes(t, env)
    out: list[Axis] = [axis(batch, in_x), axis(group + outer, in_w), *[((s, sizes[s]),) for s in spatial]]
    o_spec = _follow(out, hint) or x_spec
    lay: list[Axis] = [()] * len(out)
    for held, position in zip(out, o_spec, strict=True):
        lay[position] = held
    value = b.target.mk(
        PHYSICAL["conv"], xv, wv,
        window_strides=tuple(window[s][0] for s in spatial),
        padding=tuple((window[s][1], window[s][2]) for s in spatial),
        lhs_dilation=tuple(window[s][3] for s in spatial),
        rhs_dilation=tuple(window[s][4] for s in spatial),
        dimension_numbers=(x_spec, w_spec, o_spec),
        feature_group_count=math.prod([in_x[label] for label in group]),
        precision=b.precision, preferred_element_type=b.preferred,
    )  # fmt: skip
    return value, tuple(lay)


def _place(b: Builder, built: Built, groups: Sequence[Axis]) -> tuple[Any, tuple[int, ...]]:
    """A tensor with one axis per group, and where each group is; the physical order is kept where it can be."""
    lay = list(built[1])
    free = [i for i, axis in enumerate(lay) if not axis]
    if all(group in lay for group in groups if group):
        need = sum(not group for group in groups)
        while len(free) < need:
            free.append(len(lay))
            lay.append(())
        if len(lay) == len(groups):
            spec = tuple(lay.index(group) if group else free.pop(0) for group in groups)
            return reshape(b.target, built[0], tuple(map(extent, lay))), spec
    order = _as_it_lies(groups, labels_in(lay))
    value, _ = arrange(b.target, built, [groups[i] for i in order])
    return value, tuple(order.index(i) for i in range(len(groups)))


def _as_it_lies(groups: Sequence[Axis], labels: Sequence[int]) -> list[int]:
    """The groups (batch or outputs, features, spatial axes) in the order of their labels.

    Features stand where their last label is; a batch of one stands in front, a single feature at the end.
    """
    place = {label: float(i) for i, label in enumerate(labels)}

    def key(i: int) -> float:
        at = [place[label] for label, _ in groups[i]]
        if i == 1:
            return max(at, default=float(len(labels)))
        return min(at, default=-1.0 if i == 0 else -0.5)

    return sorted(range(len(groups)), key=key)


def _follow(out: Sequence[Axis], hint: Layout | None) -> tuple[int, ...] | None:
    """Where the hint has the axes of a result, if it has exactly these."""
    if hint is None or len(hint) != len(out):
        return None
    if any(axis and axis not in hint for axis in out) or sum(not a for a in out) != sum(not h for h in hint):
        return None
    free = [i for i, axis in enumerate(hint) if not axis]
    return tuple(hint.index(axis) if axis else free.pop(0) for axis in out)


def _reduce(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    over = set(labels_of(env, t["over"]))
    value, lay = atomic(b.target, b.go(t.args[0], None, env), over, squeeze=False)
    axes = tuple(i for i, axis in enumerate(lay) if axis and axis[0][0] in over)
    if not axes:
        return value, lay
    op, attrs = b.match.metas.get(t["kind"], (f"reduce_{t['kind']}", ()))
    kept = tuple(axis for i, axis in enumerate(lay) if i not in axes)
    return b.target.mk(op, value, **{**dict(attrs), "axes": axes}), kept


def _scan(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    (label,) = labels_of(env, t["over"])
    value, lay = atomic(b.target, b.go(t.args[0], hint, env), {label}, squeeze=False)
    if label not in labels_in(lay):
        return value, lay
    return b.target.mk(f"cum{t['kind']}", value, axis=axis_of(lay, label), reverse=t["reverse"]), lay


def _concat(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    (label,) = labels_of(env, t["over"])
    parts = [_with_axis(b, atomic(b.target, b.go(a, hint, env), {label}, squeeze=False), label, hint) for a in t.args]
    first, lay = parts[0]
    position = axis_of(lay, label)
    values = [first]
    total = sizes_in(lay)[label]
    for part in parts[1:]:
        n = sizes_in(part[1])[label]
        total += n
        values.append(arrange(b.target, part, (*lay[:position], ((label, n),), *lay[position + 1 :]))[0])
    value = b.target.mk("concatenate", *values, dimension=position)
    return value, (*lay[:position], ((label, total),), *lay[position + 1 :])


def _with_axis(b: Builder, built: Built, label: int, hint: Layout | None) -> Built:
    """The tensor with an axis for a label: a new one behind the label before it in the hint, else in front."""
    value, lay = built
    if label in labels_in(lay):
        return built
    order = labels_in(hint or ())
    before = order[: order.index(label)] if label in order else []
    place = next((axis_of(lay, x) + 1 for x in reversed(before) if x in labels_in(lay)), 0)
    lay = (*lay[:place], ((label, 1),), *lay[place:])
    return reshape(b.target, value, tuple(map(extent, lay))), lay


def _rev(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    over = set(labels_of(env, t["over"]))
    value, lay = atomic(b.target, b.go(t.args[0], hint, env), over, squeeze=False)
    dims = tuple(i for i, axis in enumerate(lay) if axis and axis[0][0] in over)
    return (b.target.mk("rev", value, dimensions=dims) if dims else value), lay


def _lay(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """A hint on the physical order; in an e-graph it costs and does nothing."""
    size = b.sizes(t, env)
    want = tuple(((x, size[x]),) for x in labels_of(env, t["order"]) if x in size)
    return arrange(b.target, b.go(t.args[0], want, env), want)


def _slice(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    value, acts, lay = per_axis_operand(b, t, hint, env, (0, 1, 1))
    shape = b.target.shape(value)
    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    for i, act in enumerate(acts):
        if act is not None:
            starts[i], limits[i], strides[i] = act[0], shape[i] if act[1] is None else act[1], act[2]
    return _sliced(b, value, starts, limits, strides), lay


def _sliced(b: Builder, value: Any, starts: list[int], limits: list[int], strides: list[int]) -> Any:
    if not any(starts) and limits == list(b.target.shape(value)) and all(s == 1 for s in strides):
        return value
    return b.target.mk(
        "slice", value, start_indices=tuple(starts), limit_indices=tuple(limits), strides=tuple(strides)
    )  # fmt: skip


def _at(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    acts = dict(per_axis(t, env))
    value, lay = atomic(b.target, b.go(t.args[0], hint, env), acts, squeeze=False)
    shape = b.target.shape(value)
    starts, limits = [0] * len(shape), list(shape)
    out: list[Axis] = []
    for i, axis in enumerate(lay):
        act = acts.get(axis[0][0]) if len(axis) == 1 else None
        if act is not None:
            starts[i], limits[i] = act[0], act[0] + 1
        out.append(() if act is not None else axis)
    return _sliced(b, value, starts, limits, [1] * len(shape)), tuple(out)


def _pad(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    value, acts, lay = per_axis_operand(b, t, hint, env, (0, 0, 0))
    config = tuple((0, 0, 0) if act is None else act for act in acts)
    if not any(map(any, config)):
        return value, lay
    fill = b.go(t.args[1], None, env)
    return b.target.mk("pad", value, arrange(b.target, fill, ())[0], padding_config=config), lay


def _window(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    value, acts, lay = per_axis_operand(b, t, hint, env, (1, 1, 0, 0))
    full = [(1, 1, 0, 0) if act is None else act for act in acts]
    if all(act == (1, 1, 0, 0) for act in full):
        return value, lay
    value = b.target.mk(
        f"reduce_window_{t['kind']}", value,
        window_dimensions=tuple(a[0] for a in full), window_strides=tuple(a[1] for a in full),
        padding=tuple((a[2], a[3]) for a in full),
        base_dilation=(1,) * len(full), window_dilation=(1,) * len(full),
    )  # fmt: skip
    return value, lay


def _take(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    (label,) = labels_of(env, t["over"])
    table = atomic(b.target, b.go(t.args[0], None, env), {label}, squeeze=True)
    value, lay = with_axes(b.target, table, [label])
    indices = b.go(t.args[1], None, env)
    own = tuple(axis for axis in indices[1] if axis)
    index, _ = arrange(b.target, indices, (*own, ()))
    along = axis_of(lay, label)
    rest = tuple(axis for i, axis in enumerate(lay) if i != along)
    value = b.target.mk(
        "gather", value, index,
        offset_dims=tuple(range(len(own), len(own) + len(rest))), collapsed_slice_dims=(along,),
        start_index_map=(along,), operand_batching_dims=(), start_indices_batching_dims=(), mode="clip",
        slice_sizes=tuple(1 if i == along else extent(axis) for i, axis in enumerate(lay)),
    )  # fmt: skip
    return value, (*own, *rest)


OPS: dict[str, _Op] = {
    "dot": _dot,
    "conv": _conv,
    "red": _reduce,
    "cum": _scan,
    "concat": _concat,
    "rev": _rev,
    "lay": _lay,
    "slice": _slice,
    "at": _at,
    "pad": _pad,
    "win": _window,
    "take": _take,
    "iota": dynamic.build_iota,
    "expand": dynamic.build_expand,
    "dynslice": dynamic.build_slice,
    "dynupdate": dynamic.build_update,
    "split": roles.build_split,
    "merge": roles.build_merge,
    "ren": roles.build_ren,
    "unit": roles.build_unit,
    "diag": roles.build_diag,
    "stack": roles.build_stack,
}
