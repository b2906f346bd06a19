"""Indexing by values: dynamic slices, gathers, and sums by segments.

A start read from a tensor is clipped so that the slice stays inside; this is the meaning of the primitives
(`lax.dynamic_slice` wraps negative starts before it binds one).  `gather` in mode `fill` gives a fill value (NaN, the
least signed or the greatest unsigned integer, True) wherever the slice would leave the operand.  Mode
`promise_in_bounds` reads as `clip`, which is the same where the promise holds.  `segment_sum` adds up the rows of each
segment; a row whose segment there is not belongs to none.  XLA adds them in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from superopt.errors import ShapeError
from superopt.ir.algebra import AnyAlgebra, Index, Reader
from superopt.ir.ops.axes import (
    AxisAtom,
    AxisRule,
    AxisRun,
    Flow,
    KeptAxes,
    Laid,
    Order,
    Shapes,
    permuted,
    runs,
    singly,
)
from superopt.ir.ops.record import (
    Attr,
    Op,
    Site,
    Types,
    Values,
    define,
    identity,
    is_float,
    is_integer,
    literally,
    one_of,
    require,
    require_axes,
    require_shape,
    show,
    size,
    sizes,
)
from superopt.ir.types import SIGNED, Size, TensorType

TABLE: dict[str, Op] = {}


def _starts(name: str, types: Types, first: int) -> None:
    x, starts = types[0], types[first:]
    if len(starts) != x.rank or any(t.shape != () or not is_integer(t.dtype) for t in starts):
        raise ShapeError(f"{name} needs {x.rank} scalar integer starts; got {show(types)}")


def _dynamic_slice_rule(types: Types, attrs: Values) -> TensorType:
    x, shape = types[0], attrs["slice_sizes"]
    _starts("dynamic_slice", types, 1)
    require(len(shape) == x.rank, f"dynamic_slice needs {x.rank} slice_sizes", types, slice_sizes=shape)
    for n, m in zip(x.shape, shape, strict=True):
        for fact in (m >= 0, m <= n):
            require(fact, "dynamic_slice needs 0 <= slice size <= size", types, slice_sizes=shape)
    return TensorType(shape, x.dtype)


def _dynamic_slice(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    whole, part = site.inputs[0].shape, site.out.shape
    starts = [k.clip(k.to_index(s()), 0, n - m) for s, n, m in zip(xs[1:], whole, part, strict=True)]
    return xs[0](*[p + s for p, s in zip(i, starts, strict=True)])


def _dynamic_update_slice_rule(types: Types, attrs: Values) -> TensorType:
    require(len(types) >= 2, "dynamic_update_slice needs an operand and an update", types)
    x, update = types[:2]
    _starts("dynamic_update_slice", types, 2)
    alike = update.dtype == x.dtype and update.rank == x.rank
    require(alike, "dynamic_update_slice needs an update of the same dtype and rank", types)
    for n, m in zip(x.shape, update.shape, strict=True):
        require(m <= n, "dynamic_update_slice needs an update that fits", types)
    return x


def _dynamic_update_slice(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    whole, part = site.inputs[0].shape, site.inputs[1].shape
    starts = [k.clip(k.to_index(s()), 0, n - m) for s, n, m in zip(xs[2:], whole, part, strict=True)]
    inner = [p - s for p, s in zip(i, starts, strict=True)]
    guards = [g for q, m in zip(inner, part, strict=True) for g in (q >= 0, q < m)]
    return k.where(k.all(*guards), lambda: xs[1](*inner), lambda: xs[0](*i))


_NUMBERS = (
    "offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims", "start_indices_batching_dims",
)  # fmt: skip


def _gather_rule(types: Types, attrs: Values) -> TensorType:
    x, indices = types
    offset, collapsed, start_map, batch, index_batch = (attrs[name] for name in _NUMBERS)
    slices = attrs["slice_sizes"]
    given = {name: attrs[name] for name in (*_NUMBERS, "slice_sizes")}

    def check(condition: Any, message: str) -> None:
        require(condition, f"gather: {message}", types, **given)

    check(indices.rank >= 1 and is_integer(indices.dtype), "indices must be integers of rank >= 1")
    out_rank = len(offset) + indices.rank - 1
    require_axes("offset_dims", offset, out_rank, types)
    require_axes("start_index_map", start_map, x.rank, types)
    require_axes("collapsed_slice_dims and operand_batching_dims", (*collapsed, *batch), x.rank, types)
    require_axes("start_indices_batching_dims", index_batch, indices.rank - 1, types)
    for name, value in (("offset_dims", offset), ("collapsed_slice_dims", collapsed), ("operand_batching_dims", batch)):
        check(list(value) == sorted(value), f"{name} must increase")
    check(not set(start_map) & set(batch), "start_index_map and operand_batching_dims must not meet")
    check(literally(indices.shape[-1], len(start_map)), "the last axis of indices must be as long as start_index_map")
    check(len(slices) == x.rank, f"slice_sizes needs {x.rank} entries")
    check(
        len(offset) + len(collapsed) + len(batch) == x.rank, "each operand axis must be offset, collapsed or batching"
    )
    check(len(batch) == len(index_batch), "as many operand_batching_dims as start_indices_batching_dims")
    for d, s in zip(batch, index_batch, strict=True):
        check(x.shape[d] == indices.shape[s], f"batching axis {d} of the operand and {s} of the indices differ")
    for d, (n, m) in enumerate(zip(x.shape, slices, strict=True)):
        for fact in (m >= 0, m <= n):
            check(fact, f"slice size {m} of axis {d} is not within {n}")
        check(d not in collapsed or literally(m, 1), f"collapsed axis {d} needs slice size 1")
        check(d not in batch or (isinstance(m, int) and m <= 1), f"batching axis {d} needs slice size 1")
    kept = iter([m for d, m in enumerate(slices) if d not in collapsed and d not in batch])
    rows = iter(indices.shape[:-1])
    return TensorType(tuple([next(kept) if d in offset else next(rows) for d in range(out_rank)]), x.dtype)


def fill_value(name: str) -> bool | int | float:
    """Return the value that mode `fill` gives outside the operand."""
    if is_float(name):
        return float("nan")
    if name == "bool":
        return True
    return int(np.iinfo(name).min if name in SIGNED else np.iinfo(name).max)


def _gather(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    x = site.inputs[0]
    offset, collapsed, start_map, batch, index_batch = (site.attrs[name] for name in _NUMBERS)
    slices, fill = site.attrs["slice_sizes"], site.attrs["mode"] == "fill"
    row = [p for d, p in enumerate(i) if d not in offset]
    inner = iter([i[d] for d in offset])
    source: list[Any] = [0 if d in collapsed or d in batch else next(inner) for d in range(x.rank)]
    for d, s in zip(batch, index_batch, strict=True):
        source[d] = row[s]
    guards: list[Any] = []
    for j, d in enumerate(start_map):
        start = k.to_index(xs[1](*row, j))
        last: Size = x.shape[int(d)] - slices[d]
        if fill:
            guards += [start >= 0, start <= last]
        source[d] = source[d] + k.clip(start, 0, last)

    def read() -> Any:
        return xs[0](*source)

    if not fill:
        return read()
    return k.where(k.all(*guards), read, lambda: k.const(fill_value(x.dtype), x.dtype))


class _Gathered(AxisRule):
    """The result has the rows of the indices and the axes of the slices, those that are not collapsed."""

    follows = False

    @property
    def data(self) -> int:
        """One: indices stand behind the operand."""
        return 1

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Size]) -> Flow:
        """Return atoms for axes of the operand and for rows of the indices; complete for rows of tables alone."""
        x, indices = shapes
        offset, collapsed, start_map, batch, index_batch = (v[name] for name in _NUMBERS)
        rows = [(len(x) + s,) for s in range(len(indices) - 1)]
        for axis, s in zip(batch, index_batch, strict=True):
            rows[s] = (axis,)
        inner: list[AxisAtom] = [axis for axis in range(len(x)) if axis not in collapsed and axis not in batch]
        result = dict(zip(offset, [(axis,) for axis in inner], strict=True))
        result |= dict(zip([d for d in range(len(shape)) if d not in offset], rows, strict=True))
        one = v["mode"] != "fill" and len(start_map) == 1 and start_map == collapsed
        whole = all(
            literally(m, 1) if d in (*collapsed, *batch) else m == n
            for d, (m, n) in enumerate(zip(v["slice_sizes"], x, strict=True))
        )
        operands = (tuple([(axis,) for axis in range(len(x))]), (*rows, ()))
        return Flow(operands, tuple([AxisRun(1, result[d]) for d in range(len(shape))]), complete=one and whole)

    def takes(self, v: Values, orders: Sequence[Order]) -> tuple[Order, ...]:
        """Return these orders, where the index vector stays the last axis."""
        x, indices = orders
        last = len(indices) - 1
        return (x, indices if indices[last] == last else tuple(range(len(indices))))

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Lay the result as the rows of the indices lie, then as the slices lie."""
        x, indices = orders
        offset, collapsed, start_map, batch, index_batch = (v[name] for name in _NUMBERS)
        rows = [d for d in range(len(offset) + len(indices) - 1) if d not in offset]
        inner = [axis for axis in range(len(x)) if axis not in collapsed and axis not in batch]
        have = [rows[s] for s in indices[:-1]] + [offset[inner.index(axis)] for axis in x if axis in inner]
        pairs = sorted((x.index(a), indices.index(s)) for a, s in zip(batch, index_batch, strict=True))
        attrs = {
            "offset_dims": tuple(range(len(rows), len(have))),
            "collapsed_slice_dims": tuple(sorted([x.index(axis) for axis in collapsed])),
            "start_index_map": tuple([x.index(axis) for axis in start_map]),
            "operand_batching_dims": tuple([a for a, _ in pairs]),
            "start_indices_batching_dims": tuple([s for _, s in pairs]),
            "slice_sizes": permuted(v["slice_sizes"], x),
        }
        return Laid({**v, **attrs}, (0, 1), tuple(have))


def _segment_sum_rule(types: Types, attrs: Values) -> TensorType:
    rows, segments = types
    given = {"segments": attrs["segments"]}
    require(is_integer(segments.dtype), "segment_sum needs integers that name segments", types, **given)
    summed = rows.dtype in ("float32", "float64") or is_integer(rows.dtype)
    require(summed, f"segment_sum does not take {rows.dtype}", types, **given)
    require_shape(rows.shape[: segments.rank], segments.shape, "segment_sum needs a segment for each row", types)
    require(attrs["segments"] >= 0, "segment_sum needs a number of segments", types, **given)
    return TensorType((attrs["segments"], *rows.shape[segments.rank :]), rows.dtype)


def _segment_sum(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    dtype, (segment, *inner) = site.out.dtype, i

    def body(*row: Any) -> Any:
        here = k.eq(k.to_index(xs[1](*row)), segment)
        return k.where(here, lambda: xs[0](*row, *inner), lambda: k.const(identity("sum", dtype), dtype))

    return k.reduce("sum", site.inputs[1].shape, body, dtype)


class _Segmented(AxisRule):
    """The result has an axis of segments in place of the leading axes of the rows, which the segments share."""

    follows = False

    @property
    def data(self) -> int:
        """One: segments stand behind the rows."""
        return 1

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Size]) -> Flow:
        """Return atoms for the axes of the rows, and a new one for the segments."""
        rows, segments = shapes
        own, lead = singly(len(rows)), len(segments)
        return Flow((own, own[:lead]), runs([(len(rows),), *own[lead:]]))

    def takes(self, v: Values, orders: Sequence[Order]) -> tuple[Order, ...]:
        """Return orders in which the axes of the segments lead, as they are."""
        rows, lead = orders[0], len(orders[1])
        head = tuple(range(lead))
        return (*head, *[axis for axis in rows if axis >= lead]), head

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Lay the result as the other axes of the rows lie."""
        rows, lead = orders[0], len(orders[1])
        return Laid(dict(v), (0, 1), (0, *[axis - lead + 1 for axis in rows[lead:]]))


define(
    TABLE, "dynamic_slice", "indexing", None, _dynamic_slice_rule, _dynamic_slice,
    Attr("slice_sizes", sizes), axes=KeptAxes(each=("slice_sizes",), starts=True, complete=False),
)  # fmt: skip
define(
    TABLE, "dynamic_update_slice", "indexing", None, _dynamic_update_slice_rule, _dynamic_update_slice,
    axes=KeptAxes(tensors=2, starts=True, complete=False),
)  # fmt: skip
define(
    TABLE, "gather", "indexing", 2, _gather_rule, _gather,
    Attr("offset_dims", sizes), Attr("collapsed_slice_dims", sizes), Attr("start_index_map", sizes),
    Attr("operand_batching_dims", sizes, ()), Attr("start_indices_batching_dims", sizes, ()),
    Attr("slice_sizes", sizes), Attr("mode", one_of("clip", "fill", "promise_in_bounds"), "clip"),
    axes=_Gathered(),
)  # fmt: skip
define(TABLE, "segment_sum", "indexing", 2, _segment_sum_rule, _segment_sum, Attr("segments", size), axes=_Segmented())
