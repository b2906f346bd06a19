"""Scalar functions as instructions: the table of `superopt.kernels.vecmath`, under a licence, rounded to the dtype."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.errors import UnsupportedKernel
from superopt.ir.scalar import HALVES, SCALARS
from superopt.kernels import vecmath, vecmath_ops
from superopt.kernels.emit_licence import Licence
from superopt.kernels.emit_types import is_float, is_signed, register
from superopt.kernels.llvm import Function

_CLOSED = frozenset(
    ["neg", "sign", "abs", "floor", "ceil", "round_away", "round_even", "max", "min", "rem", "select_n", "nextafter"]
)  # results of 16-bit floats need no rounding
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
    if dtype in HALVES and not SCALARS[fn].predicate and not licence.excess and fn not in _CLOSED:
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
    name = "product" if monoid == "prod" else monoid
    return f.reduce(name, register(dtype, lanes), x, is_signed(dtype))
