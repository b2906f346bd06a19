"""Elementwise ops: one scalar function at one index.

All operands have the shape of the result (broadcasts are nodes of their own); only the bounds of `clamp` and the
selector of `select_n` may be scalars.  The scalar functions themselves, with their dtypes, live in
`superopt.ir.scalar`.  Ops that are compositions are written as such: `square` is a product, `integer_pow` a chain of
products, `clamp` a min of a max.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from superopt.ir.algebra import AnyAlgebra, Index, Reader
from superopt.ir.ops.axes import KeptAxes
from superopt.ir.ops.record import (
    Attr,
    Op,
    Site,
    Types,
    Values,
    define,
    dtype,
    is_float,
    is_integer,
    one_of,
    require,
    require_shape,
    size,
)
from superopt.ir.scalar import SCALARS
from superopt.ir.types import DTYPES, TensorType

TABLE: dict[str, Op] = {}
_AXES = KeptAxes(tensors=None)

_CALLED = {"round": "round_even", "square": "mul", "integer_pow": "mul"}  # op -> its function, of another name


def accepts(op: str, name: str) -> bool:
    """Whether this op takes operands of this dtype."""
    fn = SCALARS.get(_CALLED.get(op, op))
    return fn is None or fn.accepts(name)


def _same(op: str, types: Types) -> TensorType:
    first = types[0]
    for other in types[1:]:
        if other is not first:
            require_shape(other.shape, first.shape, f"{op} needs operands of one shape", types)
            require(other.dtype == first.dtype, f"{op} needs operands of one dtype", types)
    require(accepts(op, first.dtype), f"{op} does not take {first.dtype}", types)
    return first


def _facts(name: str) -> dict[str, bool]:
    fn = SCALARS[name]
    return {"partial": fn.partial, "poles": fn.poles, "kept": fn.kept}


def _plain(name: str, arity: int) -> None:
    def rule(types: Types, attrs: Values) -> TensorType:
        return _same(name, types)

    def at(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
        return k.op(name, site.out.dtype, *[x(*i) for x in xs])

    define(TABLE, name, "elementwise", arity, rule, at, axes=_AXES, **_facts(name))


def _predicate(name: str, arity: int) -> None:
    def rule(types: Types, attrs: Values) -> TensorType:
        return TensorType(_same(name, types).shape, "bool")

    def at(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
        return k.op(name, site.inputs[0].dtype, *[x(*i) for x in xs])

    define(TABLE, name, "elementwise", arity, rule, at, axes=_AXES, **_facts(name))


def _round_rule(types: Types, attrs: Values) -> TensorType:
    return _same("round", types)


def _round(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    fn = "round_even" if site.attrs["rounding_method"] else "round_away"
    return k.op(fn, site.out.dtype, xs[0](*i))


def _square_rule(types: Types, attrs: Values) -> TensorType:
    return _same("square", types)


def _square(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    x = xs[0](*i)
    return k.op("mul", site.out.dtype, x, x)


def _integer_pow_rule(types: Types, attrs: Values) -> TensorType:
    x = _same("integer_pow", types)
    require(attrs["y"] >= 0 or is_float(x.dtype), "a negative integer_pow needs a float", types, y=attrs["y"])
    return x


def _integer_pow(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    """x^y by squaring; x^-y = 1 / x^y; x^0 = 1."""
    name, y, power = site.out.dtype, abs(int(site.attrs["y"])), xs[0](*i)
    result = None
    while y:
        if y & 1:
            result = power if result is None else k.op("mul", name, result, power)
        y >>= 1
        if y:
            power = k.op("mul", name, power, power)
    one = k.const(1.0 if is_float(name) else 1, name)
    if result is None:
        return one
    return result if site.attrs["y"] > 0 else k.op("div", name, one, result)


def _pow_rule(types: Types, attrs: Values) -> TensorType:
    x, y = types
    require_shape(y.shape, x.shape, "pow needs operands of one shape", types)
    require(is_float(x.dtype), "pow needs a float base", types)
    fits = y.dtype == x.dtype or is_integer(y.dtype)
    require(fits, "pow needs an exponent of the same dtype, or an integer one", types)
    return x


def _pow(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    x, y = site.inputs
    exponent = xs[1](*i)
    if x.dtype != y.dtype:
        exponent = k.convert(exponent, y.dtype, x.dtype)
    return k.op("pow", x.dtype, xs[0](*i), exponent)


def _select_rule(types: Types, attrs: Values) -> TensorType:
    require(len(types) >= 2, "select_n needs a selector and at least one case", types)
    which, first = types[0], types[1]
    for other in types[2:]:
        require_shape(other.shape, first.shape, "select_n needs cases of one type", types)
        require(other.dtype == first.dtype, "select_n needs cases of one type", types)
    if which.shape:
        require_shape(
            which.shape, first.shape, "select_n needs a selector of the shape of its cases, or a scalar", types
        )
    require(which.dtype in ("bool", "int32"), "select_n selects by bool or int32", types)
    require(which.dtype != "bool" or len(types) <= 3, "a bool selector chooses between two cases", types)
    return first


def _select(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    which = xs[0](*i) if site.inputs[0].shape else xs[0]()
    if len(xs) == 2:
        return xs[1](*i)
    return k.op("select_n", site.out.dtype, which, *[x(*i) for x in xs[1:]])


def _clamp_rule(types: Types, attrs: Values) -> TensorType:
    low, x, high = types
    for bound in (low, high):
        if bound.shape:
            require_shape(bound.shape, x.shape, "clamp needs bounds that are scalars or have the shape of x", types)
        require(bound.dtype == x.dtype, "clamp needs operands of one dtype", types)
    return x


def _clamp(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    low, x, high = [x(*i) if t.shape else x() for x, t in zip(xs, site.inputs, strict=True)]
    return k.op("min", site.out.dtype, k.op("max", site.out.dtype, x, low), high)


def _convert_rule(types: Types, attrs: Values) -> TensorType:
    require(attrs["new_dtype"] in DTYPES, "unknown dtype", types, new_dtype=attrs["new_dtype"])
    return TensorType(types[0].shape, attrs["new_dtype"])


def _convert(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    source, target = site.inputs[0].dtype, site.out.dtype
    return xs[0](*i) if source == target else k.convert(xs[0](*i), source, target)


for _name, _fn in SCALARS.items():
    if _name not in ("round_away", "round_even", "pow", "select_n"):  # of ops that are written below
        assert _fn.arity is not None
        (_predicate if _fn.predicate else _plain)(_name, _fn.arity)
define(TABLE, "round", "elementwise", 1, _round_rule, _round, Attr("rounding_method", one_of(0, 1), 0), axes=_AXES)
define(TABLE, "square", "elementwise", 1, _square_rule, _square, axes=_AXES)
define(
    TABLE, "integer_pow", "elementwise", 1, _integer_pow_rule, _integer_pow,
    Attr("y", size), axes=_AXES, partial=True, poles=True,
)  # fmt: skip
define(TABLE, "pow", "elementwise", 2, _pow_rule, _pow, axes=_AXES, **_facts("pow"))
define(TABLE, "select_n", "elementwise", None, _select_rule, _select, axes=_AXES)
define(TABLE, "clamp", "elementwise", 3, _clamp_rule, _clamp, axes=_AXES)
define(TABLE, "convert_element_type", "elementwise", 1, _convert_rule, _convert, Attr("new_dtype", dtype), axes=_AXES)
