"""Movement ops: the value at an index is an operand's value at another index (or a pad value, or the index itself)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from superopt.errors import ShapeError
from superopt.ir.algebra import AnyAlgebra, Index, Reader
from superopt.ir.ops.record import (
    Attr,
    Op,
    Site,
    Types,
    Values,
    axes,
    ceil_div,
    define,
    dilated,
    dtype,
    literally,
    nested,
    optional,
    require,
    require_axes,
    require_shape,
    show,
    size,
    sizes,
)
from superopt.ir.types import DTYPES, Shape, Size, TensorType

TABLE: dict[str, Op] = {}


def _lengths(name: str, types: Types, rank: int, **attrs: Sequence[Any]) -> None:
    for key, value in attrs.items():
        require(len(value) == rank, f"{name} needs {rank} entries in {key}", types, **{key: value})


def _nonnegative(name: str, shape: Shape, types: Types, **attrs: Any) -> None:
    for n in shape:
        if not (type(n) is int and n >= 0):
            require(n >= 0, f"{name} would give the shape {shape}", types, **attrs)


# ---- broadcast, transpose, reshape


def _broadcast_rule(types: Types, attrs: Values) -> TensorType:
    (x,) = types
    shape, dims = attrs["shape"], attrs["broadcast_dimensions"]
    _lengths("broadcast_in_dim", types, x.rank, broadcast_dimensions=dims)
    require_axes("broadcast_dimensions", dims, len(shape), types)
    require(list(dims) == sorted(dims), "broadcast_dimensions must increase", types, broadcast_dimensions=dims)
    for n, d in zip(x.shape, dims, strict=True):
        fits = literally(n, 1) or n == shape[d]
        require(fits, "broadcast_in_dim stretches only axes of size 1", types, shape=shape, broadcast_dimensions=dims)
    _nonnegative("broadcast_in_dim", shape, types)
    return TensorType(shape, x.dtype)


def _broadcast(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    source = site.inputs[0].shape
    return xs[0](
        *[0 if literally(n, 1) else i[d] for n, d in zip(source, site.attrs["broadcast_dimensions"], strict=True)]
    )


def _transpose_rule(types: Types, attrs: Values) -> TensorType:
    (x,) = types
    perm: tuple[int, ...] = attrs["permutation"]
    if sorted(perm) != list(range(x.rank)):
        raise ShapeError(f"transpose needs a permutation of {x.rank} axes; got {perm} for {x}")
    return TensorType(tuple([x.shape[p] for p in perm]), x.dtype)


def _transpose(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    perm = site.attrs["permutation"]
    return xs[0](*[i[perm.index(d)] for d in range(len(perm))])


def _elements(shape: Sequence[Size]) -> Size:
    total: Size = 1
    for n in shape:
        total = total * n
    return total


def _reshape_rule(types: Types, attrs: Values) -> TensorType:
    (x,) = types
    new = attrs["new_sizes"]
    _nonnegative("reshape", new, types)
    require(_elements(new) == _elements(x.shape), "reshape must keep the number of elements", types, new_sizes=new)
    return TensorType(new, x.dtype)


def _reshape(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    return xs[0](*k.regroup(i, site.out.shape, site.inputs[0].shape))


def _regroup_rule(types: Types, attrs: Values) -> TensorType:
    (x,) = types
    groups: tuple[tuple[tuple[int, ...], Shape], ...] = attrs["groups"]
    if any(len(g) != 2 for g in groups):
        raise ShapeError(f"regroup needs groups ((in axes), (out sizes)); got {groups} for {x}")
    order: list[int] = [a for ins, _ in groups for a in ins]
    if sorted(order) != list(range(x.rank)):
        raise ShapeError(f"regroup needs every axis of {x} in exactly one group; got {groups}")
    for ins, outs in groups:
        if len(outs) > 1:  # a single size is as many as the operand has
            _nonnegative("regroup", outs, types)
        same = _elements([x.shape[a] for a in ins]) == _elements(outs)
        require(same, "regroup must keep the number of elements of each group", types, group=(ins, outs))
    return TensorType(tuple([n for _, outs in groups for n in outs]), x.dtype)


def _regroup(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    source = site.inputs[0].shape
    where: dict[int, Any] = {}
    at = 0
    groups: tuple[tuple[tuple[int, ...], Shape], ...] = site.attrs["groups"]
    for ins, outs in groups:
        part = k.regroup(i[at : at + len(outs)], outs, tuple(source[a] for a in ins))
        where |= dict(zip(ins, part, strict=True))
        at += len(outs)
    return xs[0](*[where[a] for a in range(len(source))])


# ---- barrier, rev, slice, pad, concatenate, iota


def _barrier_rule(types: Types, attrs: Values) -> TensorType:
    return types[0]


def _barrier(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    """Return the operand itself; a compiler must not fuse across it."""
    return xs[0](*i)


def _rev_rule(types: Types, attrs: Values) -> TensorType:
    require_axes("dimensions", attrs["dimensions"], types[0].rank, types)
    return types[0]


def _rev(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    shape, dims = site.out.shape, site.attrs["dimensions"]
    return xs[0](*[shape[d] - 1 - p if d in dims else p for d, p in enumerate(i)])


def _slice_complete(attrs: dict[str, Any]) -> None:
    if attrs["strides"] is None:
        attrs["strides"] = (1,) * len(attrs["start_indices"])


def _slice_rule(types: Types, attrs: Values) -> TensorType:
    (x,) = types
    start, limit, strides = attrs["start_indices"], attrs["limit_indices"], attrs["strides"]
    _lengths("slice", types, x.rank, start_indices=start, limit_indices=limit, strides=strides)
    shape: list[Size] = []
    for n, a, b, s in zip(x.shape, start, limit, strides, strict=True):
        for fact in (a >= 0, a <= b, b <= n, s >= 1):
            if fact is not True:
                require(fact, "slice needs 0 <= start <= limit <= size and strides > 0", types, **attrs)
        shape.append(ceil_div(b - a, s))
    return TensorType(tuple(shape), x.dtype)


def _slice(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    start, strides = site.attrs["start_indices"], site.attrs["strides"]
    return xs[0](*[a + p * s for a, p, s in zip(start, i, strides, strict=True)])


def _pad_rule(types: Types, attrs: Values) -> TensorType:
    x, value = types
    config = attrs["padding_config"]
    _lengths("pad", types, x.rank, padding_config=config)
    require(value.shape == () and value.dtype == x.dtype, "pad needs a scalar pad value of the dtype of x", types)
    shape: list[Size] = []
    for n, entry in zip(x.shape, config, strict=True):
        require(len(entry) == 3, "pad needs (low, high, interior) for each axis", types, padding_config=config)
        low, high, interior = entry
        require(interior >= 0, "interior padding must not be negative", types, padding_config=config)
        shape.append(low + high + dilated(n, interior + 1))
    _nonnegative("pad", tuple(shape), types, padding_config=config)
    return TensorType(tuple(shape), x.dtype)


def _pad(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    """x[(i - low) / (interior + 1)] where that is an index of x, else the pad value; negative pads crop."""
    guards: list[Any] = []
    source: list[Any] = []
    for p, n, (low, _, interior) in zip(i, site.inputs[0].shape, site.attrs["padding_config"], strict=True):
        q = p - low
        if not literally(interior, 0):
            guards.append(k.eq(q % (interior + 1), 0))
            q = q // (interior + 1)
        guards += [q >= 0, q < n]
        source.append(q)
    return k.where(k.all(*guards), lambda: xs[0](*source), lambda: xs[1]())


def _concatenate_rule(types: Types, attrs: Values) -> TensorType:
    require(len(types) > 0, "concatenate needs at least one operand")
    first = types[0]
    axis: int = attrs["dimension"]
    require_axes("dimension", (axis,), first.rank, types)
    total: Size = 0
    beside = (*first.shape[:axis], *first.shape[axis + 1 :])
    told = f"concatenate needs one dtype and equal sizes beside axis {axis}"
    for t in types:
        if t.dtype != first.dtype or t.rank != first.rank:
            raise ShapeError(f"{told}; got {show(types)}")
        require_shape((*t.shape[:axis], *t.shape[axis + 1 :]), beside, told, types)
        total = total + t.shape[axis]
    return TensorType((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)


def _concatenate(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    axis: int = site.attrs["dimension"]

    def from_(n: int, offset: Size) -> Any:
        def here() -> Any:
            return xs[n](*i[:axis], i[axis] - offset, *i[axis + 1 :])

        if n == len(xs) - 1:
            return here()
        end = offset + site.inputs[n].shape[axis]
        return k.where(i[axis] < end, here, lambda: from_(n + 1, end))

    return from_(0, 0)


def _iota_rule(types: Types, attrs: Values) -> TensorType:
    shape = attrs["shape"]
    require_axes("dimension", (attrs["dimension"],), len(shape), types)
    _nonnegative("iota", shape, types)
    known = attrs["dtype"] in DTYPES and attrs["dtype"] != "bool"
    require(known, "iota needs a number dtype", types, dtype=attrs["dtype"])
    return TensorType(shape, attrs["dtype"])


def _iota(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    return k.from_index(i[site.attrs["dimension"]], site.out.dtype)


define(
    TABLE, "broadcast_in_dim", "movement", 1, _broadcast_rule, _broadcast,
    Attr("shape", sizes), Attr("broadcast_dimensions", sizes), view=True,
)  # fmt: skip
define(TABLE, "transpose", "movement", 1, _transpose_rule, _transpose, Attr("permutation", sizes), view=True)
define(TABLE, "reshape", "movement", 1, _reshape_rule, _reshape, Attr("new_sizes", sizes), view=True)
define(TABLE, "regroup", "movement", 1, _regroup_rule, _regroup, Attr("groups", nested), view=True)
define(TABLE, "barrier", "movement", 1, _barrier_rule, _barrier)
define(TABLE, "rev", "movement", 1, _rev_rule, _rev, Attr("dimensions", axes), view=True)
define(
    TABLE, "slice", "movement", 1, _slice_rule, _slice,
    Attr("start_indices", sizes), Attr("limit_indices", sizes),
    Attr("strides", optional(sizes), None),
    complete=_slice_complete, view=True,
)  # fmt: skip
define(TABLE, "pad", "movement", 2, _pad_rule, _pad, Attr("padding_config", nested), view=True)
define(TABLE, "concatenate", "movement", None, _concatenate_rule, _concatenate, Attr("dimension", size))
define(
    TABLE, "iota", "movement", 0, _iota_rule, _iota,
    Attr("dtype", dtype, "float32"), Attr("shape", sizes), Attr("dimension", size), view=True,
)  # fmt: skip
