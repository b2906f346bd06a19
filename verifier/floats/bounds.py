"""Evaluation of a loop program in float64, with a bound on the rounding error of each value.

A value is an array of float64 where it is exact, else one of complex numbers: real part the value, imaginary part the
bound.  An operation is rounded in the dtype of the program; a sum of n terms may be taken in any order, products in it
rounded or not.  The error of such a sum grows with the root of n and with the sum of the *absolute* terms.  This is the
typical error of many roundings of either sign, not the worst case.  Where a value may overflow in its dtype, or is NaN,
the bound is infinite or NaN.  Denormals may be flushed to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from superopt.ir.interp import Numbers
from superopt.ir.matmul import Product
from superopt.ir.ops.record import accumulator, identity
from superopt.ir.scalar import DTYPE, PREDICATES, SCALARS, Array
from superopt.ir.types import FLOATS, UNIT_ROUNDOFF, Size

_LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
_MOST = {"float16": 65504.0, "bfloat16": 3.38e38, "float32": 3.4028e38, "float64": 1.797e308}
_FUNCTION = 16.0  # roundings that a function counts as: 6 units in the last place, and those of its operands
_QUOTIENT = 3.0  # a product with the rounded reciprocal
_EXACT = frozenset({"neg", "abs", "max", "min", "sign", "floor", "ceil", "round_away", "round_even", "select_n"})
_COMPLEX = np.dtype(np.complex128)
Parts = tuple[Array, Array]


def parts(x: Array) -> Parts:
    """Split an array into value and bound."""
    x = np.asarray(x)
    return (x.real, x.imag) if x.dtype == _COMPLEX else (x, np.float64(0.0))


def joined(value: Array, bound: Array) -> Array:
    """Join value and bound into one complex array."""
    out = np.empty(np.broadcast_shapes(np.shape(value), np.shape(bound)), _COMPLEX)
    out.real, out.imag = value, bound
    return out


def rounded(value: Array, bound: Array, dtype: str, times: float = 1.0) -> Array:
    """The value and bound after `times` roundings in a dtype; the bound is infinite where the value may overflow."""
    unit, least, most = UNIT_ROUNDOFF[dtype], _LEAST[dtype], _MOST[dtype]
    size = np.abs(value)
    bound = bound + (times * unit * size + times * least)
    return joined(value, np.where(size + bound > most, np.inf, bound))


class Bounds(Numbers):
    """The algebra of values with bounds, over a grid."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size, wide=True)

    def array(self, value: Any) -> Array:
        """The value as an array."""
        return np.asarray(self._arrays((value,))[0])

    def const(self, value: bool | int | float, dtype: str) -> Array:
        exact = DTYPE[dtype].type(value)
        return exact if dtype == "int32" else np.float64(exact)

    def op(self, fn: str, dtype: str, *args: Array) -> Array:
        if dtype == "int32":
            return super().op(fn, dtype, *args)
        if fn == "mul" and self.depth:
            a, b = [x if isinstance(x, Product) else np.asarray(x) for x in args]
            if not isinstance(a, Product) and not isinstance(b, Product):
                if dtype != accumulator(dtype):
                    a = rounded(*parts(a), dtype)
                if a.dtype != b.dtype:
                    a, b = [joined(*parts(x)) for x in (a, b)]
                if Product.worth(a, b):
                    return BoundedProduct(a, b)
        return self._checked(_applied(fn, dtype, [parts(x) for x in self._arrays(args)]))

    def convert(self, value: Array, source: str, target: str) -> Array:
        (value,) = self._arrays((value,))
        if target == "bool":
            return _applied("ne", source, [parts(value), (np.float64(0.0), np.float64(0.0))])
        if target not in FLOATS or source not in (*FLOATS, "bool"):
            return super().convert(value, source, target)
        if source == "bool" or (UNIT_ROUNDOFF[source] >= UNIT_ROUNDOFF[target] and _MOST[source] <= _MOST[target]):
            return value
        return rounded(*parts(value), target)

    def reduce(self, monoid: str, extents: Sequence[Size], body: Callable[..., Array], dtype: str) -> Array:
        sizes = [int(str(n)) for n in extents]
        if 0 in sizes:
            return np.float64(identity(monoid, dtype))
        if monoid in ("prod", "and", "or"):
            (total, *others) = factors = [self.array(body(*at)) for at in np.ndindex(*sizes)]
            for x in others:
                total = _applied("mul" if monoid == "prod" else monoid, dtype, [parts(total), parts(x)])
            return _in_any_order(total, factors, dtype) if monoid == "prod" else total
        within = accumulator(dtype)
        grown = (2.0 + 2.0 * math.sqrt(math.prod(sizes))) * UNIT_ROUNDOFF.get(within, 0.0)

        def terms(*at: Array) -> Array:
            x = body(*at)
            if isinstance(x, Product):
                return BoundedProduct(_more(x.a, grown), x.b)
            return _more(x, grown)

        total = self._fold(monoid, (), sizes, terms if monoid == "sum" else body, _COMPLEX)
        if monoid != "sum":
            return total
        value, bound = parts(total)  # a partial sum may overflow
        return rounded(value, np.where(bound > grown * _MOST[within], np.inf, bound), dtype)


class BoundedProduct(Product):
    """The product `a * b` of values with bounds, kept unevaluated so that a sum of it may become a matrix product."""

    __slots__ = ()

    def array(self) -> Array:
        (a, d), (b, e) = parts(self.a), parts(self.b)
        return joined(a * b, np.abs(a) * e + d * (np.abs(b) + e))

    def guarded(self, guard: Array) -> Product | None:
        part = super().guarded(guard)
        return None if part is None else BoundedProduct(part.a, part.b)

    def times(self, left: Array, right: Array) -> Array:
        (a, d), (b, e) = parts(left), parts(right)
        value = np.matmul(np.ascontiguousarray(a), np.ascontiguousarray(b))
        size = np.abs(b)
        bound = np.matmul(np.ascontiguousarray(d), size + e) if np.ndim(d) else np.zeros(())
        return joined(value, bound + np.matmul(np.abs(a), np.ascontiguousarray(e)) if np.any(e) else bound)


def _more(x: Array, unit: float) -> Array:
    value, bound = parts(x)
    return joined(value, bound + unit * np.abs(value))


def _in_any_order(total: Array, factors: Sequence[Array], dtype: str) -> Array:
    """A product with an infinite bound where the product of some of its factors may overflow or underflow."""
    great, small = np.float64(1.0), np.float64(1.0)
    for x in factors:
        size = np.abs(parts(x)[0])
        great, small = great * np.maximum(size, 1.0), small * np.where(size == 0, 1.0, np.minimum(size, 1.0))
    value, bound = parts(total)
    return joined(value, np.where((great > _MOST[dtype]) | (small < _LEAST[dtype]), np.inf, bound))


def _applied(fn: str, dtype: str, xs: Sequence[Parts]) -> Array:
    """Apply a scalar function to values with bounds."""
    if fn in _FORMS:
        value, bound = _FORMS[fn](*[x for pair in xs for x in pair])
    elif fn == "select_n":
        value, bound = _chosen(xs)
    elif dtype == "bool":
        value = SCALARS[fn].numpy(*[x != 0 for x, _ in xs])
        bound = np.minimum(sum([e for _, e in xs]), 1.0)
    else:
        value, bound = _around(fn, [x for x, _ in xs], [e for _, e in xs])
    value = np.asarray(value, np.float64)
    if fn in PREDICATES or dtype == "bool":
        return joined(value, bound) if np.any(bound) else value
    if fn in _EXACT:
        return joined(value, bound) if np.any(bound) else value
    times = _QUOTIENT if fn == "div" else 1.0 if fn in _FORMS else _FUNCTION
    return rounded(value, bound, dtype, times)


def _around(fn: str, xs: list[Array], bounds: list[Array]) -> Parts:
    """The value of a function, and a bound from its values at the ends of each operand's interval in turn."""
    call = SCALARS[fn].numpy
    value = np.asarray(call(*xs), np.float64)
    bound: Array = np.float64(0.0)
    for j, e in enumerate(bounds):
        if np.any(e):
            ends = [np.abs(call(*xs[:j], x, *xs[j + 1 :]) - value) for x in (xs[j] - e, xs[j] + e)]
            bound = bound + np.maximum(*ends)
    return value, bound


def _chosen(xs: Sequence[Parts]) -> Parts:
    (which, doubt), (b, e), (a, d) = xs
    value, bound = _where(which != 0, a, b), _where(which != 0, d, e)
    return value, _where(doubt > 0, np.abs(a - b) + np.maximum(d, e), bound) if np.any(doubt) else bound


def _where(c: Array, a: Array, b: Array) -> Array:
    return np.where(c, a, b)  # pyright: ignore[reportUnknownVariableType] (of Any)


def _compared(fn: str) -> Callable[[Array, Array, Array, Array], Parts]:
    def call(a: Array, d: Array, b: Array, e: Array) -> Parts:
        doubt = d + e
        near = ~(np.abs(a - b) > doubt) & (doubt != 0)  # NaN is in doubt, too
        return SCALARS[fn].numpy(a, b), np.where(near, 1.0, 0.0)

    return call


def _quotient(a: Array, d: Array, b: Array, e: Array) -> Parts:
    value, least = a / b, np.abs(b) - e
    return value, np.where(least > 0, (d + np.abs(value) * e) / least, np.inf)


_UNARY: dict[str, Callable[[Array, Array], Parts]] = {
    "neg": lambda a, d: (-a, d),
    "abs": lambda a, d: (np.abs(a), d),
}
_BINARY: dict[str, Callable[[Array, Array, Array, Array], Parts]] = {
    "add": lambda a, d, b, e: (a + b, d + e),
    "sub": lambda a, d, b, e: (a - b, d + e),
    "mul": lambda a, d, b, e: (a * b, np.abs(a) * e + d * (np.abs(b) + e)),
    "div": _quotient,
    "max": lambda a, d, b, e: (np.maximum(a, b), np.maximum(d, e)),
    "min": lambda a, d, b, e: (np.minimum(a, b), np.maximum(d, e)),
    **{fn: _compared(fn) for fn in ("eq", "ne", "lt", "le", "gt", "ge")},
}
_FORMS: dict[str, Callable[..., Parts]] = {**_UNARY, **_BINARY}
