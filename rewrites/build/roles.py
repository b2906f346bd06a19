"""Building terms that make and rename roles: splits, merges, new names, unit axes, diagonals, stacks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rewrites.build.arrange import (
    BuildError,
    Built,
    arrange,
    atomic,
    axis_of,
    broadcast,
    extent,
    place_beside,
    reshape,
    sizes_in,
)
from rewrites.language.named import Env, labels_of
from rewrites.language.term import Term
from rewrites.match.labels import Axis, Layout

if TYPE_CHECKING:
    from rewrites.build.terms import Builder


def build_split(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """Axis n of size o * q becomes the axes o and i."""
    whole, outer, inner = (env.labels[r] for r in t["over"])
    value, lay = atomic(b.target, b.go(t.args[0], None, env), set(whole), squeeze=False)
    sizes = b.sizes(t, env)
    parts = {n: (o, i) for n, o, i in zip(whole, outer, inner, strict=True)}
    out: list[Axis] = []
    for axis in lay:
        pair = parts.get(axis[0][0]) if len(axis) == 1 else None
        out += [axis] if pair is None else [((label, sizes[label]),) for label in pair]
    return reshape(b.target, value, tuple(map(extent, out))), tuple(out)


def build_merge(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """Axes o and i become the axis n, index n = o * size(i) + i."""
    outer, inner, whole = (env.labels[r] for r in t["over"])
    busy = {*outer, *inner}
    inside = {n: (o, i) for o, i, n in zip(outer, inner, whole, strict=True)}
    sizes = b.sizes(t.args[0], env)
    near: list[Axis] = []
    for axis in hint or ():  # the parts of the axis, side by side
        split = [x for label, _ in axis for x in inside.get(label, (label,))]
        near += [((x, sizes[x]),) for x in split] if len(split) > len(axis) else [axis]
    held = {label for axis in near for label, _ in axis}
    near += [((x, sizes[x]),) for pair in inside.values() if pair[1] not in held for x in pair if x not in held]
    built = b.go(t.args[0], tuple(near), env)
    size = sizes_in(built[1])
    value, lay = atomic(b.target, built, busy, squeeze=False)
    want: list[Axis] = []
    named: list[Axis] = []
    pairs = {o: (o, i, n) for o, i, n in zip(outer, inner, whole, strict=True)}
    for axis in lay:
        label = axis[0][0] if len(axis) == 1 else None
        if label in pairs:
            o, i, n = pairs.pop(label)
            want.append(tuple((x, size[x]) for x in (o, i) if x in size))
            named.append(((n, math.prod([size.get(x, 1) for x in (o, i)])),))
        elif label is None or label not in busy:
            want.append(axis)
            named.append(axis)
    for o, i, n in pairs.values():  # o is absent (size 1)
        want.append(tuple((x, size[x]) for x in (o, i) if x in size))
        named.append(((n, math.prod([size.get(x, 1) for x in (o, i)])),))
    return arrange(b.target, (value, lay), want)[0], tuple(named)


def build_ren(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """The same tensor; only the labels change."""
    old, new = (env.labels[r] for r in t["over"])
    names = dict(zip(old, new, strict=True))
    value, lay = b.go(t.args[0], None, env)
    return value, tuple(tuple((names.get(label, label), n) for label, n in axis) for axis in lay)


def build_unit(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """Nothing to do: an absent label means size 1."""
    return b.go(t.args[0], hint, env)


def build_diag(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """Select by the equality of two index ramps."""
    value, lay = b.go(t.args[0], None, env)
    sizes = sizes_in(lay)
    for old, new in zip(*(env.labels[r] for r in t["over"]), strict=True):
        if sizes.get(old, 1) == 1:
            continue  # the new label has size 1 too
        n = sizes[old]
        position = axis_of(lay, old)
        lay = (*lay[:position], ((new, n),), *lay[position:])
        value = broadcast(b.target, (value, lay[:position] + lay[position + 1 :]), lay)
        shape = (n, n)
        rows, columns = (b.target.mk("iota", dtype="int32", shape=shape, dimension=d) for d in (0, 1))
        same = b.target.mk("eq", rows, columns)
        mask = broadcast(b.target, (same, (((old, n),), ((new, n),))), lay)
        zero = broadcast(b.target, (b.zero(), ()), lay)
        value = b.target.mk("select_n", mask, zero, value)
    return value, lay


def build_stack(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """Concatenate along the physical axis of the role beside, or along a new first axis."""
    bounds = env.labels[b.rule.owner[t["bound"]]]
    new = tuple(
        (label, env.look(t["bound"], axis)) for label, axis in zip(labels_of(env, t["over"]), bounds, strict=True)
    )
    parts = list(b.unrolled(t, hint, env))
    if not parts:
        raise BuildError(f"rule {b.rule.name}: an empty stack cannot be unrolled")
    if not new:
        return parts[0]
    lay = parts[0][1]
    place = place_beside(lay, labels_of(env, t["beside"])) if t["beside"] else None
    if place is None:
        lay, place = ((), *lay), 0
    values = [arrange(b.target, part, lay)[0] for part in parts]
    value = values[0] if len(values) == 1 else b.target.mk("concatenate", *values, dimension=place)
    return value, (*lay[:place], (*new, *lay[place]), *lay[place + 1 :])
