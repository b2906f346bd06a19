"""Scalar functions as instructions: the table of `superopt.kernels.math`, under a licence, rounded to the dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence

from superopt.errors import UnsupportedKernel
from superopt.ir.scalar import HALVES, SCALARS
from superopt.kernels.emit.licence import Licence
from superopt.kernels.emit.types import constant, is_float, is_signed, register
from superopt.kernels.llvm.module import Function, vector
from superopt.kernels.math import ops as vecmath_ops
from superopt.kernels.math import table as vecmath

_EXACT = ("sqrt", "rsqrt")  # transcendental in the table, instructions here


def apply(
    f: Function, fn: str, dtype: str, args: Sequence[str], lanes: int, licence: Licence, which: str = "bool"
) -> str:
    """A scalar function on held values.

    Args:
        f: the function written into.
        fn: name in the table of scalar functions.
        dtype: of the operands.
        args: operands, all scalars or all with lanes.
        lanes: 0 for scalars.
        licence: what may be inexact.
        which: dtype of the selector of `select_n`.

    Raises:
        UnsupportedKernel: the licence excludes the function.
    """
    if SCALARS[fn].transcendental and fn not in _EXACT and not licence.polynomial:
        raise UnsupportedKernel(f"{fn} is a polynomial, which the licence excludes")
    made = vecmath.apply(f, fn, dtype, tuple(args), lanes, which)
    if dtype in HALVES and not SCALARS[fn].predicate and not licence.excess and not SCALARS[fn].closed:
        return vecmath_ops.rounded(f, made, dtype, lanes)
    return made


def combine(f: Function, monoid: str, dtype: str, a: str, b: str, lanes: int) -> str:
    """Two values of a monoid as one; no rounding of 16-bit floats."""
    type_ = register(dtype, lanes)
    float_ = is_float(dtype)
    if monoid in ("sum", "prod"):
        if dtype == "bool":
            return f.value(f"{'or' if monoid == 'sum' else 'and'} {type_} {a}, {b}")
        return f.value(f"{'f' if float_ else ''}{'add' if monoid == 'sum' else 'mul'} {type_} {a}, {b}")
    if monoid in ("and", "or", "xor"):
        return f.value(f"{monoid} {type_} {a}, {b}")
    if float_:
        return f.fmaximum(a, b, type_) if monoid == "max" else f.fminimum(a, b, type_)
    if dtype == "bool":
        return f.value(f"{'or' if monoid == 'max' else 'and'} {type_} {a}, {b}")
    return f.intrinsic(f"{'s' if is_signed(dtype) else 'u'}{monoid}", type_, (type_, a), (type_, b))


def across(f: Function, monoid: str, dtype: str, x: str, lanes: int) -> str:
    """All lanes combined into a scalar."""
    if dtype == "bool" and monoid not in ("and", "or", "xor"):
        monoid = "or" if monoid in ("sum", "max") else "and"
    if is_float(dtype) and monoid in ("max", "min"):
        return _extreme(f, monoid, dtype, x, lanes)
    name = "product" if monoid == "prod" else monoid
    return f.reduce(name, register(dtype, lanes), x, is_signed(dtype))


def _extreme(f: Function, monoid: str, dtype: str, x: str, lanes: int) -> str:
    """The extreme lane: by halves, NaN looked for apart (LLVM's own form orders zeros, at several times the cost)."""
    type_, flags = register(dtype, lanes), vector("i1", lanes)
    nan = f.reduce("or", flags, f.value(f"fcmp uno {type_} {x}, {x}"))
    order, width, left = "ogt" if monoid == "max" else "olt", lanes, x
    while width > 1:
        width //= 2
        whole, half = register(dtype, 2 * width), register(dtype, width)
        a, b = [
            f.value(f"shufflevector {whole} {left}, {whole} poison, <{width} x i32> {indices}")
            for indices in (_span(0, width), _span(width, 2 * width))
        ]
        better = f.value(f"fcmp {order} {half} {a}, {b}")
        left = f.value(f"select {vector('i1', width)} {better}, {half} {a}, {half} {b}")
    element = register(dtype)
    extreme = f.extract(register(dtype, 1), left, 0)
    return f.value(f"select i1 {nan}, {element} {constant(math.nan, dtype)}, {element} {extreme}")


def _span(first: int, end: int) -> str:
    return "<" + ", ".join(f"i32 {j}" for j in range(first, end)) + ">"
