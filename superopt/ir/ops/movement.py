"""Movement ops: the value at an index is an operand's value at another index (or a pad value, or the index itself)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from superopt.errors import ShapeError
from superopt.ir.algebra import AnyAlgebra, Index, Reader
from superopt.ir.ops.axes import (
    Act,
    Along,
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


# ---- how axes flow


class _Broadcast(AxisRule):
    """Axis j of the operand is axis broadcast_dimensions[j] of the result; the others are new."""

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Any]) -> Flow:
        """Return the result's axes as atoms."""
        dims = v["broadcast_dimensions"]
        grow = [d for n, d in zip(shapes[0], dims, strict=True) if n != shape[d]]
        acts = dict.fromkeys(grow, Act(Along.STRETCH))
        return Flow((tuple([(d,) for d in dims]),), runs(singly(len(shape))), acts)

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Lay the result as wanted, where the operand lies in that order too; else new axes come last, by size."""
        shape, dims = v["shape"], v["broadcast_dimensions"]
        order = wanted
        if order is None:
            new = sorted([i for i in range(len(shape)) if i not in dims], key=lambda i: (shape[i], i))
            order = (*permuted(dims, orders[0]), *new)
        places = tuple([i for i, axis in enumerate(order) if axis in dims])
        return Laid({**v, "shape": permuted(shape, order), "broadcast_dimensions": places}, (0,), order)


class _Transposed(AxisRule):
    """Axis i of the result is axis permutation[i] of the operand."""

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Any]) -> Flow:
        """Return the operand's axes as atoms."""
        return Flow((singly(len(shape)),), runs([(axis,) for axis in v["permutation"]]))

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Lay the result as wanted, else as the operand lies."""
        permutation, (order,) = v["permutation"], orders
        have = tuple([permutation.index(axis) for axis in order]) if wanted is None else wanted
        return Laid({**v, "permutation": tuple([order.index(permutation[axis]) for axis in have])}, (0,), have)


class _Regrouped(AxisRule):
    """Groups of the operand's axes are merged row-major, and each product is split into axes of the result."""

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Any]) -> Flow:
        """Return the operand's axes as atoms, and a run of the result's axes for each group."""
        groups: tuple[tuple[tuple[int, ...], Shape], ...] = v["groups"]
        sizes = dict(enumerate(shapes[0]))
        return Flow((singly(len(sizes)),), tuple([AxisRun(len(outs), ins) for ins, outs in groups]), sizes=sizes)

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Order the groups by the place of their first axes; the result follows."""
        groups: tuple[tuple[tuple[int, ...], Shape], ...] = v["groups"]
        (order,) = orders
        placed = [(tuple([order.index(a) for a in ins]), outs) for ins, outs in groups]
        sequence = sorted(range(len(groups)), key=lambda k: (placed[k][0] or (len(order),), k))
        start = [sum([len(outs) for _, outs in groups[:k]]) for k in sequence]
        have = [first + j for first, k in zip(start, sequence, strict=True) for j in range(len(groups[k][1]))]
        return Laid({**v, "groups": tuple([placed[k] for k in sequence])}, (0,), tuple(have))


class _Reshaped(AxisRule):
    """All axes are one group: merged row-major and split, in the order in which they stand."""

    follows = False

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Any]) -> Flow:
        """Return the operand's axes as atoms of one run."""
        axes = singly(len(shapes[0]))
        return Flow((axes,), (AxisRun(len(shape), tuple(range(len(axes)))),), sizes=dict(enumerate(shapes[0])))

    def takes(self, v: Values, orders: Sequence[Order]) -> tuple[Order, ...]:
        """Return the order in which the axes stand."""
        return (tuple(range(len(orders[0]))),)

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Return the op itself."""
        return Laid(dict(v), (0,), tuple(range(len(v["new_sizes"]))))


class _Counted(AxisRule):
    """The result has only new axes, and its elements are positions along one of them."""

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Any]) -> Flow:
        """Return axes of the result alone; along one axis no attribute says more."""
        return Flow((), runs(singly(len(shape))), complete=len(shape) == 1)

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Lay the result as wanted."""
        order = tuple(range(len(v["shape"]))) if wanted is None else wanted
        return Laid({**v, "shape": permuted(v["shape"], order), "dimension": order.index(v["dimension"])}, (), order)


def _reversed(v: Values, shape: Sequence[Size]) -> dict[int, Act]:
    return dict.fromkeys(v["dimensions"], Act(Along.REVERSE))


def _sliced(v: Values, shape: Sequence[Size]) -> dict[int, Act]:
    bounds = zip(v["start_indices"], v["limit_indices"], v["strides"], shape, strict=True)
    return {i: Act(Along.WINDOW, (a, b, s), (0, n, 1)) for i, (a, b, s, n) in enumerate(bounds)}


def _padded(v: Values, shape: Sequence[Size]) -> dict[int, Act]:
    return {i: Act(Along.WINDOW, config, (0, 0, 0)) for i, config in enumerate(v["padding_config"])}


def _joined(v: Values, shape: Sequence[Size]) -> dict[int, Act]:
    return {v["dimension"]: Act(Along.JOIN)}


define(
    TABLE, "broadcast_in_dim", "movement", 1, _broadcast_rule, _broadcast,
    Attr("shape", sizes), Attr("broadcast_dimensions", sizes), axes=_Broadcast(), view=True,
)  # fmt: skip
define(
    TABLE, "transpose", "movement", 1, _transpose_rule, _transpose,
    Attr("permutation", sizes), axes=_Transposed(), view=True,
)  # fmt: skip
define(TABLE, "reshape", "movement", 1, _reshape_rule, _reshape, Attr("new_sizes", sizes), axes=_Reshaped(), view=True)
define(TABLE, "regroup", "movement", 1, _regroup_rule, _regroup, Attr("groups", nested), axes=_Regrouped(), view=True)
define(TABLE, "barrier", "movement", 1, _barrier_rule, _barrier, axes=KeptAxes())
define(
    TABLE, "rev", "movement", 1, _rev_rule, _rev,
    Attr("dimensions", axes), axes=KeptAxes(some="dimensions", act=_reversed), view=True,
)  # fmt: skip
define(
    TABLE, "slice", "movement", 1, _slice_rule, _slice,
    Attr("start_indices", sizes), Attr("limit_indices", sizes),
    Attr("strides", optional(sizes), None),
    axes=KeptAxes(each=("start_indices", "limit_indices", "strides"), act=_sliced), complete=_slice_complete, view=True,
)  # fmt: skip
define(
    TABLE, "pad", "movement", 2, _pad_rule, _pad,
    Attr("padding_config", nested), axes=KeptAxes(each=("padding_config",), act=_padded), view=True,
)  # fmt: skip
define(
    TABLE, "concatenate", "movement", None, _concatenate_rule, _concatenate,
    Attr("dimension", size), axes=KeptAxes(tensors=None, one="dimension", act=_joined),
)  # fmt: skip
define(
    TABLE, "iota", "movement", 0, _iota_rule, _iota,
    Attr("dtype", dtype, "float32"), Attr("shape", sizes), Attr("dimension", size), axes=_Counted(), view=True,
)  # fmt: skip
