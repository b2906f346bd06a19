"""Reductions: an unordered fold of a monoid over axes, windows or prefixes.

Empty axes give the identity of the monoid.  A window or prefix is a fold over a range under a guard, whose else-branch
is the identity; sums and products of 16-bit floats are formed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from superopt.ir.algebra import MONOIDS, AnyAlgebra, Index, Reader
from superopt.ir.ops.axes import Act, Along, AxisRule, Flow, KeptAxes, Laid, Order, Shapes, runs, singly
from superopt.ir.ops.record import (
    Attr,
    Op,
    Site,
    Types,
    Values,
    axes,
    define,
    dtype,
    flag,
    identity,
    is_float,
    is_integer,
    literally,
    nested,
    optional,
    positions,
    require,
    require_axes,
    size,
    sizes,
    spread,
)
from superopt.ir.types import Size, TensorType

TABLE: dict[str, Op] = {}
REDUCE = {f"reduce_{monoid}": monoid for monoid in MONOIDS}
ARG = {"argmax": "max", "argmin": "min"}
WINDOW = {f"reduce_window_{monoid}": monoid for monoid in ("sum", "max", "min")}
CUMULATIVE = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}


def _without(x: TensorType, removed: Sequence[int], name: str) -> TensorType:
    return TensorType(tuple([n for d, n in enumerate(x.shape) if d not in removed]), name)


class _Reduced(AxisRule):
    """The result has the operand's axes but those that are reduced."""

    def __init__(self, complete: bool = True) -> None:
        """Make the flow; `complete` says whether the result depends on elements alone, not on their positions."""
        self.complete = complete

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Size]) -> Flow:
        """Return the operand's axes as atoms."""
        axes = singly(len(shapes[0]))
        kept = [axis for axis in axes if axis[0] not in v["axes"]]
        return Flow((axes,), runs(kept), complete=self.complete)

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Lay the result as the axes that are left lie."""
        (order,), over = orders, v["axes"]
        left = [axis for axis in range(len(order)) if axis not in over]
        reduced = tuple(sorted([order.index(axis) for axis in over]))
        return Laid({**v, "axes": reduced}, (0,), tuple([left.index(axis) for axis in order if axis not in over]))


def _windowed(v: Values, shape: Sequence[Size]) -> dict[int, Act]:
    numbers = zip(v["window_dimensions"], v["window_strides"], v["padding"], strict=True)
    return {i: Act(Along.WINDOW, (size, step, *pad), (1, 1, 0, 0)) for i, (size, step, pad) in enumerate(numbers)}


def _dense(v: Values) -> bool:
    return all(literally(d, 1) for d in (*v["base_dilation"], *v["window_dilation"]))


def _scanned(v: Values, shape: Sequence[Size]) -> dict[int, Act]:
    return {v["axis"]: Act(Along.SCAN)}


_WINDOWS = KeptAxes(
    each=("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation"),
    act=_windowed, complete=_dense,
)  # fmt: skip


def _accepts(monoid: str, name: str) -> bool:
    if monoid in ("sum", "prod"):
        return name != "bool"
    return monoid in ("max", "min") or not is_float(name)


def _reduction(name: str, monoid: str) -> None:
    def rule(types: Types, attrs: Values) -> TensorType:
        (x,) = types
        require_axes("axes", attrs["axes"], x.rank, types)
        require(_accepts(monoid, x.dtype), f"{name} does not take {x.dtype}", types)
        return _without(x, attrs["axes"], x.dtype)

    def at(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
        shape = site.inputs[0].shape
        over: tuple[int, ...] = site.attrs["axes"]

        def body(*r: Any) -> Any:
            kept, reduced = iter(i), iter(r)
            return xs[0](*[next(reduced) if d in over else next(kept) for d in range(len(shape))])

        return k.reduce(monoid, [shape[d] for d in over], body, site.out.dtype)

    define(TABLE, name, "reduction", 1, rule, at, Attr("axes", axes), axes=_Reduced())


def _arg(name: str, monoid: str) -> None:
    def rule(types: Types, attrs: Values) -> TensorType:
        (x,) = types
        require(len(attrs["axes"]) == 1, f"{name} takes one axis", types, axes=attrs["axes"])
        require_axes("axes", attrs["axes"], x.rank, types)
        require(x.shape[attrs["axes"][0]] >= 1, f"{name} needs an axis that is not empty", types, axes=attrs["axes"])
        require(is_integer(attrs["index_dtype"]), f"{name} gives an integer", types, index_dtype=attrs["index_dtype"])
        return _without(x, attrs["axes"], attrs["index_dtype"])

    def at(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
        """Return the least r with x[r] = the extreme value; NaN counts as the extreme (the fold then returns it)."""
        x, index = site.inputs[0], site.out.dtype
        axis: int = site.attrs["axes"][0]

        def value(r: Any) -> Any:
            return xs[0](*i[:axis], r, *i[axis:])

        best = k.reduce(monoid, [x.shape[axis]], value, x.dtype)

        def index_of_extreme(r: Any) -> Any:
            """Return r where x[r] is the extreme value, else the largest index."""
            v = value(r)
            hit = k.op("eq", x.dtype, v, best)
            if is_float(x.dtype):
                hit = k.op("or", "bool", hit, k.op("ne", x.dtype, v, v))
            return k.op("select_n", index, hit, k.const(identity("min", index), index), k.from_index(r, index))

        return k.reduce("min", [x.shape[axis]], index_of_extreme, index)

    define(
        TABLE, name, "reduction", 1, rule, at,
        Attr("axes", axes), Attr("index_dtype", dtype, "int32"), axes=_Reduced(complete=False),
    )  # fmt: skip


def _window_complete(attrs: dict[str, Any]) -> None:
    rank = len(attrs["window_dimensions"])
    for name, value in (("window_strides", 1), ("base_dilation", 1), ("window_dilation", 1), ("padding", (0, 0))):
        if attrs[name] is None:
            attrs[name] = (value,) * rank


def _window(name: str, monoid: str) -> None:
    def rule(types: Types, attrs: Values) -> TensorType:
        (x,) = types
        require(_accepts(monoid, x.dtype), f"{name} does not take {x.dtype}", types)
        shape: list[Size] = []
        for key in ("window_dimensions", "window_strides", "base_dilation", "window_dilation", "padding"):
            require(len(attrs[key]) == x.rank, f"{name} needs {x.rank} entries in {key}", types, **{key: attrs[key]})
        for d, n in enumerate(x.shape):
            window, stride = attrs["window_dimensions"][d], attrs["window_strides"][d]
            base, dilation = attrs["base_dilation"][d], attrs["window_dilation"][d]
            for key, v in (("window", window), ("stride", stride), ("base dilation", base), ("dilation", dilation)):
                require(v >= 1, f"{name} needs a positive {key} on axis {d}", types, **attrs)
            low, high = attrs["padding"][d]
            extent, size = spread(n, base, f"axis {d}"), spread(window, dilation, "a window")
            shape.append(positions(extent + low + high, size, stride))
        return TensorType(tuple(shape), x.dtype)

    def at(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
        attrs, shape, out = site.attrs, site.inputs[0].shape, site.out.dtype

        def body(*r: Any) -> Any:
            guards: list[Any] = []
            source: list[Any] = []
            for d, n in enumerate(shape):
                p = i[d] * attrs["window_strides"][d] + r[d] * attrs["window_dilation"][d] - attrs["padding"][d][0]
                base = attrs["base_dilation"][d]
                if not literally(base, 1):
                    guards.append(k.eq(p % base, 0))
                    p = p // base
                guards += [p >= 0, p < n]
                source.append(p)
            return k.where(k.all(*guards), lambda: xs[0](*source), lambda: k.const(identity(monoid, out), out))

        return k.reduce(monoid, list(attrs["window_dimensions"]), body, out)

    define(
        TABLE, name, "reduction", 1, rule, at,
        Attr("window_dimensions", sizes), Attr("window_strides", optional(sizes), None),
        Attr("padding", optional(nested), None), Attr("base_dilation", optional(sizes), None),
        Attr("window_dilation", optional(sizes), None),
        axes=_WINDOWS, complete=_window_complete,
    )  # fmt: skip


def _prefix(name: str, monoid: str) -> None:
    def rule(types: Types, attrs: Values) -> TensorType:
        (x,) = types
        require_axes("axis", (attrs["axis"],), x.rank, types)
        require(_accepts(monoid, x.dtype), f"{name} does not take {x.dtype}", types)
        return x

    def at(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
        axis: int = site.attrs["axis"]
        out, n = site.out.dtype, site.out.shape[axis]

        def body(r: Any) -> Any:
            inside = r >= i[axis] if site.attrs["reverse"] else r <= i[axis]
            return k.where(
                k.all(inside), lambda: xs[0](*i[:axis], r, *i[axis + 1 :]), lambda: k.const(identity(monoid, out), out)
            )

        return k.reduce(monoid, [n], body, out)

    define(
        TABLE, name, "reduction", 1, rule, at,
        Attr("axis", size), Attr("reverse", flag, False), axes=KeptAxes(one="axis", act=_scanned),
    )  # fmt: skip


for _table, _make in ((REDUCE, _reduction), (WINDOW, _window), (CUMULATIVE, _prefix), (ARG, _arg)):
    for _name, _monoid in _table.items():
        _make(_name, _monoid)
