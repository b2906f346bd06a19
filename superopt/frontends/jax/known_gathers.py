"""Gathers at positions that are known when a function is imported, as slices and diagonals.

`x[:, 1:]` with symbolic sizes is a gather of one block at a constant position: a slice.  `x[i, i]` with an iota i is a
gather of single elements at positions that count up along an axis of the indices.  An axis of `x` that is read so is a
slice of it.  Two axes that are read at the same count are a diagonal, which is a gather of one element from each row.
The positions of all windows, `x[i + j]` with two iotas, are written as that sum, whatever computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from superopt.frontends.jax.builders import reshape, transpose, window
from superopt.frontends.jax.sizes import has_symbols
from superopt.ir.graph import Node, mk
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import lookup
from superopt.ir.types import Size

_OPS, _ENTRIES = 64, 1 << 22  # of a computation of positions at import: 60 ms for all windows of 128 of 16,384 samples
CountedAxis: TypeAlias = "tuple[int, int | None]"
"""Position along an axis of the first index, and the axis of the indices along which it counts up (None: it stays)."""


def block(x: Node, where: Node, mapped: Sequence[int], collapsed: Sequence[int], taken: Sequence[Size]) -> Node | None:
    """A gather of one block at a constant position as a slice; None for other gathers."""
    start = where
    while start.op in ("broadcast_in_dim", "reshape"):
        (start,) = start.inputs
    if len(where.shape) != 1 or start.op != "literal":
        return None
    first: list[Size] = [start["value"] if d in mapped else 0 for d in range(len(x.shape))]
    cut = window(x, first, [a + n for a, n in zip(first, taken, strict=True)])
    return reshape(cut, [n for d, n in enumerate(taken) if d not in collapsed])


def elements(x: Node, where: Node, mapped: Sequence[int], offset: Sequence[int], out: Sequence[Size]) -> Node | None:
    """A gather of single elements along some axes, of all along others, at positions that count up; else None.

    Args:
        x: the operand.
        where: positions along the axes `mapped`, as the last axis.
        mapped: axes of the operand of which one element is read.
        offset: axes of the result along which all elements of the other axes are read.
        out: shape of the result.
    """
    counts = None if has_symbols(x.shape) else _counts(where)
    if counts is None:
        return None
    along = {a for _, a in counts}
    if any(n != 1 and a not in along for a, n in enumerate(where.shape[:-1])):
        return None  # entries that are read several times
    first, limit = [0] * len(x.shape), list(x.shape)
    rows = [d for d in range(len(out)) if d not in offset]
    kept = iter(offset)
    place: list[int | None] = [None if d in mapped else next(kept) for d in range(len(x.shape))]
    for d, (start, a) in zip(mapped, counts, strict=True):
        first[d], limit[d] = start, start + (1 if a is None else where.shape[a])
        place[d] = None if a is None else rows[a]
        if start < 0 or not isinstance(n := x.shape[d], int) or limit[d] > n:
            return None
    cut = window(x, first, limit)
    while (pair := _twice(place)) is not None:
        cut = _diagonal(cut, *pair)
        del place[pair[1]]
    cut = reshape(cut, [n for n, d in zip(cut.shape, place, strict=True) if d is not None])
    order = [d for d in place if d is not None]
    return reshape(transpose(cut, [order.index(d) for d in sorted(order)]), out)


def sum_of_counts(x: Node, axis: int, where: Node) -> tuple[Node, Node, list[int]] | None:
    """Positions that are a number and two counts along different axes, up or down; None for others.

    Args:
        x: the operand.
        axis: the axis of the operand along which they are.
        where: the positions, as the last axis.

    Returns:
        The operand from the first position on, the sum of both counts upwards, and the axes that count down.
    """
    entries = _known(where) if where.shape[-1:] == (1,) and where.dtype in ("int32", "int64") else None
    size = x.shape[axis]
    axes = [a for a, n in enumerate(where.shape) if n != 1]
    if entries is None or len(axes) != 2 or not entries.size or not isinstance(size, int) or has_symbols(x.shape):
        return None
    down = [a for a in axes if entries.take(0, a).flat[0] > entries.take(1, a).flat[0]]
    first, last = int(entries.min()), int(entries.max())
    one, two = (np.arange(entries.shape[a]).reshape(_along(entries, a)) for a in axes)
    if first < 0 or last >= size or not (np.flip(entries, tuple(down)) == first + one + two).all():
        return None
    begin = [first if d == axis else 0 for d in range(len(x.shape))]
    count = mk("add", *[mk("iota", dtype=str(where.dtype), shape=where.shape, dimension=a) for a in axes])
    return window(x, begin, x.shape), count, down


def _along(entries: np.ndarray, axis: int) -> list[int]:
    """The shape of numbers along one axis of some entries."""
    return [n if a == axis else 1 for a, n in enumerate(entries.shape)]


def _counts(where: Node) -> list[CountedAxis] | None:
    """Begin and direction of the positions along each axis; None where they are unknown or do not count up."""
    entries = _known(where)
    if entries is None or not entries.size:
        return None
    counts = [_count(entries[..., j]) for j in range(entries.shape[-1])]
    return None if None in counts else [count for count in counts if count is not None]


def _count(entries: np.ndarray) -> CountedAxis | None:
    """The first of some positions, and the axis along which they count up; None where they do anything else."""
    first = int(entries.flat[0])
    if (entries == first).all():
        return first, None
    for axis, n in enumerate(entries.shape):
        places = first + np.arange(n).reshape(_along(entries, axis))
        if (entries == places).all():
            return first, axis
    return None


def _known(where: Node) -> np.ndarray | None:
    """The value of integers that depend on no input and are quickly computed; None for others."""
    seen: set[Node] = set()
    waiting = [where]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        computed = node.op == "literal" or lookup(node.op).at is not None
        sizes = [n for n in node.shape if isinstance(n, int)] if computed else []
        if len(seen) == _OPS or not computed or len(sizes) < len(node.shape) or prod(sizes) > _ENTRIES:
            return None
        seen.add(node)
        waiting += node.inputs
    return evaluate([where])[0]


def _twice(place: Sequence[int | None]) -> tuple[int, int] | None:
    """The first two axes with one place in the result."""
    for j, d in enumerate(place):
        if d is not None and d in place[:j]:
            return place.index(d), j
    return None


def _diagonal(x: Node, i: int, j: int) -> Node:
    """The elements at equal positions along axes i < j of one length, along axis i."""
    n, rest = x.shape[i], [d for d in range(len(x.shape)) if d not in (i, j)]
    counted = reshape(mk("iota", dtype="int32", shape=(n,), dimension=0), (n, 1))
    return mk(
        "gather", x, counted, offset_dims=tuple([d - (d > j) for d in rest]), collapsed_slice_dims=(j,),
        start_index_map=(j,), operand_batching_dims=(i,), start_indices_batching_dims=(0,),
        slice_sizes=tuple([1 if d in (i, j) else m for d, m in enumerate(x.shape)]), mode="clip",
    )  # fmt: skip
