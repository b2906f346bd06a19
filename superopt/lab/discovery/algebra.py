"""Ops over tensors with anonymous axes, and their values in batches.

The type of a tensor is one entry per axis: the lengths of the parts that it was joined from (`(3,)`, `(3, 3)`), or
`SPACE` and `TAPS` for the spatial axis of images and of kernels.  A *form* is an op with everything but its operands:
which axes meet.  `forms` lists those that two types admit.  `apply` computes a form on a batch of first operands and
one second operand (or the other way round).  Values are integers in float64: exact, and equal where the terms are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

AxisParts: TypeAlias = "tuple[int, ...]"
AxesType: TypeAlias = "tuple[AxisParts, ...]"

LENGTH = 3
SAMPLES = 2
"""Independent values of every leaf: one value of a scalar would distinguish too little."""
SPACE: AxisParts = (-4,)
TAPS: AxisParts = (-3,)
BASE = ("dot", "add", "mul", "concat", "slice", "transpose", "relu", "conv")
"""The ops of TASO's generator that the library's rules are about: the default set to enumerate."""
OPS = (*BASE, "sub", "maximum", "sum", "max", "wmax", "wsum")
COMMUTE = frozenset({"add", "mul", "maximum", "dot"})
ELEMENTWISE = ("add", "mul", "maximum", "sub")
MOST_AXES = 2
"""Largest number of axes of a tensor besides the spatial one."""


@dataclass(frozen=True, slots=True)
class OpForm:
    """An op with its attributes.

    Attributes:
        op: add, mul, sub, maximum, relu, dot, conv, concat, first, rest, cut, gconv, sum, max, wsum, wmax.
        at: the axes that meet.  For elementwise ops: for each axis of the second operand, the axis of the first.  For
            dot: pairs of contracted axes.  For conv and gconv (two groups): feature axis of the image and of the
            kernel.  For concat: the joined axis of the first operand, then for each axis of the second, the axis of the
            first.  For the others: the axis.
    """

    op: str
    at: tuple[Any, ...] = ()


def extent(axis: AxisParts) -> int:
    """Length of an axis."""
    return abs(sum(axis))


def extents(t: AxesType) -> tuple[int, ...]:
    """Lengths of all axes."""
    return tuple(extent(a) for a in t)


def generic(t: AxesType) -> list[int]:
    """Axes that are neither spatial nor taps."""
    return [i for i, a in enumerate(t) if a[0] > 0]


def spatial(t: AxesType) -> int | None:
    """The spatial or taps axis, if any."""
    return next((i for i, a in enumerate(t) if a[0] < 0), None)


@cache
def unary_forms(t: AxesType, ops: frozenset[str]) -> tuple[OpForm, ...]:
    """Forms of one operand, of type `t`."""
    out: list[OpForm] = []
    if "relu" in ops and t:
        out.append(OpForm("relu"))
    if "slice" in ops:
        for i in generic(t):
            if len(t[i]) > 1:
                out += [OpForm("first", (i,)), OpForm("rest", (i,))]
            elif t[i] == (LENGTH,):
                out.append(OpForm("cut", (i,)))
    out += [OpForm(op, (i,)) for op in ("sum", "max") if op in ops for i, axis in enumerate(t) if axis != TAPS]
    out += [OpForm(op, (t.index(SPACE),)) for op in ("wsum", "wmax") if op in ops and SPACE in t]
    return tuple(out)


@cache
def binary_forms(a: AxesType, b: AxesType, ops: frozenset[str]) -> tuple[OpForm, ...]:
    """Forms whose operands have types `a` and `b`; elementwise ones want the operand with more axes first."""
    out: list[OpForm] = []
    for op in ELEMENTWISE:
        if op in ops and len(b) <= len(a):
            out += [OpForm(op, m) for m in _alignments(a, b)]
    if "dot" in ops and (spatial(a) is None or spatial(b) is None):
        out += [OpForm("dot", pairs) for pairs in _contractions(a, b)]
    if "conv" in ops and SPACE in a and TAPS in b and len(a) == 3 and len(b) == 3:
        for i, j in itertools.product(generic(a), generic(b)):
            if a[i] == b[j]:
                out.append(OpForm("conv", (i, j)))
            elif a[i] == 2 * b[j] and _halved(b[1 - j]):
                out.append(OpForm("gconv", (i, j)))
    if "concat" in ops and len(a) == len(b):
        for i in generic(a):
            if len(a[i]) < 3:
                out += [OpForm("concat", (i, *m)) for m in _alignments(a, b, i)]
    return tuple(out)


def _halved(axis: AxisParts) -> bool:
    """Whether the axis was joined from two parts of one length."""
    return len(axis) == 2 and axis[0] == axis[1]


def _alignments(a: AxesType, b: AxesType, free: int = -1) -> list[tuple[int, ...]]:
    """All ways to identify the axes of `b` with axes of `a`, of equal parts except at axis `free` of `a`."""
    alignments: list[tuple[int, ...]] = []
    for m in itertools.permutations(range(len(a)), len(b)):
        if all(a[i] == b[j] or (i == free and b[j][0] > 0 and len(b[j]) < 3) for j, i in enumerate(m)):
            alignments.append(m)
    return alignments


def _contractions(a: AxesType, b: AxesType) -> list[tuple[tuple[int, int], ...]]:
    """Pairs of contracted axes, one or two of them, such that few enough axes are left."""
    one = [((i, j),) for i in generic(a) for j in generic(b) if a[i] == b[j]]
    two = [(p, q) for (p,), (q,) in itertools.combinations(one, 2) if p[0] != q[0] and p[1] != q[1]]
    rank = len(generic(a)) + len(generic(b))
    return [pairs for pairs in one + two if rank - 2 * len(pairs) <= MOST_AXES]


def result(form: OpForm, a: AxesType, b: AxesType | None = None) -> AxesType:
    """Type of a form's result."""
    op, at = form.op, form.at
    if op in ELEMENTWISE or op in ("relu", "wsum", "wmax"):
        return a
    if op in ("sum", "max"):
        return tuple(x for i, x in enumerate(a) if i != at[0])
    if op == "cut":
        return tuple((LENGTH - 1,) if i == at[0] else x for i, x in enumerate(a))
    if op in ("first", "rest"):
        return tuple(_part(x, op) if i == at[0] else x for i, x in enumerate(a))
    assert b is not None
    if op == "dot":
        gone_a, gone_b = {i for i, _ in at}, {j for _, j in at}
        kept = [x for i, x in enumerate(a) if i not in gone_a], [x for j, x in enumerate(b) if j not in gone_b]
        return tuple(kept[0] + kept[1])
    if op in ("conv", "gconv"):
        image = [x for i, x in enumerate(a) if i != at[0] and x != SPACE]
        kernel = [x for j, x in enumerate(b) if j != at[1] and x != TAPS]
        return (*image, *kernel, SPACE)
    along, m = at[0], at[1:]
    return tuple(x + b[m.index(i)] if i == along else x for i, x in enumerate(a))


def _part(axis: AxisParts, op: str) -> AxisParts:
    return axis[:1] if op == "first" else axis[1:]


def apply(form: OpForm, a: np.ndarray, b: np.ndarray | None, types: Sequence[AxesType]) -> np.ndarray:
    """Values of a form; axis 0 counts the terms of a batch (1 on an operand that all share), axis 1 the samples."""
    op, at = form.op, form.at
    if op == "relu":
        return np.maximum(a, 0.0)
    if op in ("sum", "max"):
        return a.sum(axis=at[0] + 2) if op == "sum" else a.max(axis=at[0] + 2)
    if op in ("wsum", "wmax"):
        return _window(op, a.swapaxes(at[0] + 2, -1)).swapaxes(at[0] + 2, -1)
    if op in ("first", "rest", "cut"):
        size = extent(types[0][at[0]][:1])
        bounds = {"first": slice(0, size), "rest": slice(size, None), "cut": slice(1, None)}[op]
        return a[(slice(None),) * (at[0] + 2) + (bounds,)]
    assert b is not None
    if op in ELEMENTWISE:
        return _ELEMENTWISE[op](a, _spread(b, at, a.ndim - 2))
    if op == "concat":
        along, m = at[0], at[1:]
        b = _spread(b, m, a.ndim - 2)
        batch = max(len(a), len(b))
        a, b = (np.broadcast_to(x, (batch, *x.shape[1:])) for x in (a, b))
        return np.concatenate([a, b], axis=along + 2)
    if op == "dot":
        return _dot(a, b, [i for i, _ in at], [j for _, j in at])
    if op == "conv":
        return _conv(a, b, at, types)
    kernel = types[1]
    half = extent(kernel[at[1]]), extent(kernel[1 - at[1]]) // 2
    parts = [
        _conv(np.take(a, r * half[0] + np.arange(half[0]), at[0] + 2),
              np.take(b, r * half[1] + np.arange(half[1]), 3 - at[1]), at, types)
        for r in range(2)
    ]  # fmt: skip
    return np.concatenate(parts, axis=3)


_ELEMENTWISE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "sub": np.subtract, "maximum": np.maximum}


def _window(op: str, a: np.ndarray) -> np.ndarray:
    """Sum or maximum over three neighbours along the last axis; outside is the neutral element."""
    neutral = 0.0 if op == "wsum" else -np.inf
    wide = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(1, 1)], constant_values=neutral)
    parts = [wide[..., :-2], wide[..., 1:-1], wide[..., 2:]]
    return parts[0] + parts[1] + parts[2] if op == "wsum" else np.maximum(np.maximum(parts[0], parts[1]), parts[2])


def _spread(b: np.ndarray, m: Sequence[int], rank: int) -> np.ndarray:
    """`b` with its axes at the places `m` of `rank` axes, length 1 elsewhere."""
    order = sorted(range(len(m)), key=lambda j: m[j])
    moved = b.transpose(0, 1, *(j + 2 for j in order))
    shape = [1] * rank
    for j in order:
        shape[m[j]] = b.shape[j + 2]
    return moved.reshape(*b.shape[:2], *shape)


def _dot(a: np.ndarray, b: np.ndarray, left: Sequence[int], right: Sequence[int]) -> np.ndarray:
    """Sum over pairs of axes; the rest of `a`, then the rest of `b`."""
    rest_a = [i for i in range(a.ndim - 2) if i not in left]
    rest_b = [j for j in range(b.ndim - 2) if j not in right]
    x = a.transpose(0, 1, *(i + 2 for i in (*rest_a, *left)))
    y = b.transpose(0, 1, *(j + 2 for j in (*right, *rest_b)))
    outer, inner = x.shape[2 : 2 + len(rest_a)], y.shape[2 + len(right) :]
    n = math.prod(x.shape[2 + len(rest_a) :])
    product = x.reshape(*x.shape[:2], -1, n) @ y.reshape(*y.shape[:2], n, -1)
    return product.reshape(*product.shape[:2], *outer, *inner)


def _conv(a: np.ndarray, b: np.ndarray, at: Sequence[int], types: Sequence[AxesType]) -> np.ndarray:
    """Convolution of stride 1 that keeps the length; result axes: image without features, kernel likewise, space."""
    image, kernel = types
    (batch,) = [i for i in generic(image) if i != at[0]]
    (out,) = [j for j in generic(kernel) if j != at[1]]
    space, taps = image.index(SPACE), kernel.index(TAPS)
    x = a.transpose(0, 1, batch + 2, space + 2, at[0] + 2)
    w = b.transpose(0, 1, taps + 2, at[1] + 2, out + 2)
    reach, length = w.shape[2], x.shape[3]
    low = reach // 2
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (low, reach - 1 - low), (0, 0)))
    total: Any = 0.0
    for r in range(reach):
        total = total + padded[:, :, :, r : r + length] @ w[:, :, r, None]
    return total.transpose(0, 1, 2, 4, 3)


def weights(t: AxesType, orders: Sequence[tuple[int, ...]]) -> np.ndarray:
    """A column of 64-bit multipliers per axis order: the digest of a value is its least weighted sum."""
    shape = (SAMPLES, *extents(t))
    columns: list[np.ndarray] = []
    for order in orders:
        rng = np.random.default_rng((17, *sorted(shape), *(t[i][0] + 10 for i in order)))
        base = rng.integers(1, 2**63 - 1, size=[SAMPLES, *(shape[i + 1] for i in order)], dtype=np.int64) | 1
        back = sorted(range(len(order)), key=lambda i: order[i])
        columns.append(base.transpose(0, *(i + 1 for i in back)).reshape(-1))
    return np.stack(columns, axis=1)


@cache
def _hashing(t: AxesType) -> np.ndarray:
    """Multipliers for all axis orders that put the type into its sorted form."""
    canonical = sorted(t)
    orders = [p for p in itertools.permutations(range(len(t))) if [t[i] for i in p] == canonical]
    return weights(t, orders)


def digests(values: np.ndarray, t: AxesType) -> np.ndarray:
    """Fingerprints of a batch: equal for equal tensors, whatever the order of their axes."""
    flat = np.rint(values.reshape(len(values), -1)).astype(np.int64)
    with np.errstate(over="ignore"):
        sums = (flat[:, :, None] * _hashing(t)[None]).sum(axis=1)
        mixed = np.uint64(hash(tuple(sorted(t))) & (2**64 - 1))
        least = sums.view(np.uint64).min(axis=1) ^ mixed
    return least
