"""Elementwise ONNX ops: arithmetic, comparison, logic, casts, elementary functions.

Broadcasting is NumPy's (opset 7 on).  Integer division and `Mod` follow C where ONNX says so; `Pow` has the type of
its base, and is computed in a type that holds the exponent too.  Everything here folds: shape arithmetic is made of
these ops.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from onnx import helper

from superopt.errors import InputError
from superopt.frontends.onnx.data import finfo_range, is_float
from superopt.frontends.onnx.eval import Call, op
from superopt.frontends.onnx.host import HostValueError
from superopt.frontends.symbolic.known import (
    SizeArray,
    broadcast_sizes,
    holds_sizes,
    integers,
    larger,
    live,
    smaller,
)
from superopt.frontends.symbolic.known import quotient as size_quotient
from superopt.frontends.symbolic.known import remainder as size_remainder

_BINARY = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "Equal": "equal",
    "Less": "less", "Greater": "greater", "LessOrEqual": "less_equal", "GreaterOrEqual": "greater_equal",
}  # fmt: skip
_VARIADIC = {"Sum": "add", "Max": "maximum", "Min": "minimum"}
_UNARY = {
    "Neg": "negative", "Floor": "floor", "Ceil": "ceil", "Sqrt": "sqrt", "Exp": "exp", "Log": "log", "Abs": "abs",
    "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "arcsin", "Acos": "arccos", "Atan": "arctan", "Sinh": "sinh",
    "Cosh": "cosh", "Tanh": "tanh", "Asinh": "arcsinh", "Acosh": "arccosh", "Atanh": "arctanh", "Sign": "sign",
    "Not": "logical_not", "BitwiseNot": "bitwise_not", "IsNaN": "isnan", "Round": "round",
}  # fmt: skip


def broadcast_room(call: Call, *operands: Any) -> Any:
    """The array module for the broadcast of the operands."""
    return call.room(broadcast_sizes(*(x.shape for x in operands)))


def _binary(call: Call, a: Any, b: Any) -> Any:
    return getattr(broadcast_room(call, a, b), _BINARY[call.node.op_type])(a, b)


def _variadic(call: Call, *operands: Any) -> Any:
    combine: Any = getattr(broadcast_room(call, *operands), _VARIADIC[call.node.op_type])
    if _sized(*operands):
        combine = {"Max": larger, "Min": smaller}.get(call.node.op_type, combine)
    return functools.reduce(combine, operands)


def _sized(*operands: Any) -> bool:
    return any(isinstance(x, SizeArray) for x in operands)


def _unary(call: Call, x: Any) -> Any:
    result = getattr(call.xp, _UNARY[call.node.op_type])(x)
    # NumPy widens some small floats to a float of its own
    return result if result.dtype in (x.dtype, np.bool_) else result.astype(x.dtype)


op(*_BINARY, fold=True)(_binary)
op("Max", "Min", fold=True)(_variadic)
op("Sum", fold=True, wide=True)(_variadic)
op(*_UNARY, fold=True)(_unary)


@op("Mean", fold=True, wide=True)
def _mean(call: Call, *operands: Any) -> Any:
    total = functools.reduce(broadcast_room(call, *operands).add, operands)
    return ratio(call, total, np.asarray(len(operands), total.dtype))


def ratio(call: Call, a: Any, b: Any) -> Any:
    """A quotient of floats as the result of a node: rounded once where a step reads it."""
    xp = broadcast_room(call, a, b)
    known = b if isinstance(b, np.ndarray) else call.static(b) if _is_known(call, b) else None
    if xp is np or not call.decides or (known is not None and _has_exact_reciprocals(known)):
        return xp.divide(a, b)
    return divided(a, b)


def _has_exact_reciprocals(x: np.ndarray) -> bool:
    """Whether all are powers of two, whose reciprocals are normal numbers."""
    mantissa, exponent = np.frexp(x)
    return bool(np.all((np.abs(mantissa) == 0.5) & (np.abs(exponent) < np.finfo(x.dtype).maxexp - 2)))


def divided(x: Any, by: Any) -> Any:
    """A quotient of floats, rounded once.

    XLA multiplies by the reciprocal of what is broadcast, which is off by one behind a rounding: so each element has a
    divisor of its own, which the compiler cannot tell to be all the same.
    """
    return x / jnp.where(x != x, np.ones((), x.dtype), by)


@op("Div", fold=True, wide=True)
def _div(call: Call, a: Any, b: Any) -> Any:
    if is_float(np.dtype(a.dtype)):
        return ratio(call, a, b)
    return size_quotient(a, b) if _sized(a, b) else quotient(broadcast_room(call, a, b), a, b)


def quotient(xp: Any, a: Any, b: Any) -> Any:
    """Integer division as C has it: towards zero.

    Raises:
        InputError: known values are divided by zero.
    """
    if xp is jnp:
        return lax.div(*jnp.broadcast_arrays(a, b))
    if not np.all(b):
        raise InputError("integer division by zero")
    floor = a // b
    # NumPy's division floors; the least integer has no absolute value to divide instead
    return floor if a.dtype.kind == "u" else floor + ((floor * b != a) & ((a < 0) != (b < 0))).astype(a.dtype)


@op("Mod", fold=True)
def _mod(call: Call, a: Any, b: Any) -> Any:
    xp = broadcast_room(call, a, b)
    if _sized(a, b):
        return size_remainder(a, b)
    if call.attrs["fmod"]:
        return xp.fmod(a, b).astype(a.dtype) if xp is np else lax.rem(*jnp.broadcast_arrays(a, b))
    return xp.mod(a, b)


@op("Pow", fold=True, wide=True)
def _pow(call: Call, base: Any, exponent: Any) -> Any:
    xp = broadcast_room(call, base, exponent)
    known = call.static(exponent) if _is_known(call, exponent) else None
    if known is not None and known.size == 1 and xp is jnp and float(known.ravel()[0]).is_integer():
        power = int(known.ravel()[0])
        if abs(power) <= 16 and (power >= 0 or is_float(np.dtype(base.dtype))):
            shape = broadcast_sizes(base.shape, exponent.shape)
            return lax.integer_pow(jnp.broadcast_to(base, shape), power)
    if not any(is_float(np.dtype(x.dtype)) for x in (base, exponent)):
        return _integer_power(xp, base, exponent)
    wide = _power_type(np.dtype(base.dtype), np.dtype(exponent.dtype), known)
    return xp.power(base.astype(wide), exponent.astype(wide)).astype(base.dtype)


def _power_type(base: np.dtype, exponent: np.dtype, known: np.ndarray | None) -> np.dtype:
    """The float type that powers are computed in: one that holds base and exponent, as those of C are."""
    if base == exponent:
        return base
    if not (is_float(base) and is_float(exponent)):
        exact = is_float(base) and known is not None and np.array_equal(known.astype(base).astype(known.dtype), known)
        return base if exact else np.dtype(np.float64)
    return np.dtype(jnp.promote_types(base, exponent))


def _integer_power(xp: Any, base: Any, exponent: Any) -> Any:
    """Powers of integers: they wrap, as products do, and those with a negative exponent are cut towards zero."""
    wide = np.uint64 if base.dtype == np.uint64 else np.int64
    signed = np.dtype(exponent.dtype).kind == "i"
    size = xp.maximum(exponent, np.zeros((), exponent.dtype)) if signed else exponent
    power = xp.power(base.astype(wide), size.astype(wide)).astype(base.dtype)
    if not signed:
        return power
    one = np.ones((), base.dtype)
    inverse = (base == one).astype(base.dtype)
    if np.dtype(base.dtype).kind == "i":
        odd = xp.bitwise_and(exponent, np.ones((), exponent.dtype)).astype(base.dtype)
        inverse = inverse + (base == -one).astype(base.dtype) * (one - odd - odd)
    return xp.where(exponent < np.zeros((), exponent.dtype), inverse, power)


def _is_known(call: Call, value: Any) -> bool:
    return any(g is value and isinstance(v, np.ndarray) for g, v in zip(call.given, call.values, strict=True))


@op("Reciprocal", fold=True)
def _reciprocal(call: Call, x: Any) -> Any:
    return call.xp.divide(np.ones((), x.dtype), x)


@op("Erf")
def _erf(call: Call, x: Any) -> Any:
    return lax.erf(x) if is_float(np.dtype(x.dtype)) else lax.erf(x.astype(np.float32)).astype(x.dtype)


@op("BitShift", fold=True)
def _bit_shift(call: Call, x: Any, by: Any) -> Any:
    xp = broadcast_room(call, x, by)
    return xp.left_shift(x, by) if call.attrs["direction"] == "LEFT" else xp.right_shift(x, by)


@op("IsInf")
def _is_inf(call: Call, x: Any) -> Any:
    infinite = jnp.zeros(x.shape, bool)
    if call.attrs["detect_positive"]:
        infinite = jnp.logical_or(infinite, x == np.asarray(np.inf, x.dtype))
    if call.attrs["detect_negative"]:
        infinite = jnp.logical_or(infinite, x == np.asarray(-np.inf, x.dtype))
    return infinite


@op("Where", fold=True)
def _where(call: Call, condition: Any, a: Any, b: Any) -> Any:
    return broadcast_room(call, condition, a, b).where(condition, a, b)


@op("Clip", fold=True)
def _clip(call: Call, x: Any, low: Any = None, high: Any = None) -> Any:
    if call.since < 11:
        lowest, highest = finfo_range(np.dtype(x.dtype))
        # their defaults are the ends of float32, to which infinities are clipped
        low = np.asarray(max(call.attrs["min"], lowest), x.dtype)
        high = np.asarray(min(call.attrs["max"], highest), x.dtype)
    if low is not None:
        x = call.xp.maximum(x, low.reshape(()))
    return x if high is None else call.xp.minimum(x, high.reshape(()))


@op("Identity", fold=True)
def _identity(call: Call, x: Any) -> Any:
    return x


@op("Dropout", fold=True)
def _dropout(call: Call, x: Any, ratio: Any = None, training: Any = None) -> Any:
    if training is not None and bool(call.static(training, "training_mode").ravel()[0]):
        share = 0.5 if ratio is None else float(call.static(ratio, "ratio").ravel()[0])
        if share != 0.0:
            keep = jax.random.bernoulli(call.random_key(), 1.0 - share, x.shape)
            scaled = jnp.where(keep, x / np.asarray(1.0 - share, x.dtype), np.zeros((), x.dtype))
            return (scaled, keep)[: max(call.n_outputs, 1)]
    return (x, call.xp.ones(x.shape, bool)) if call.n_outputs > 1 else x


def cast(xp: Any, x: Any, dtype: np.dtype, *, saturate: bool = True, round_mode: str = "up") -> Any:
    """ONNX `Cast`: float8 and float4 targets saturate on request, integers wrap."""
    if x.dtype == dtype:
        return x
    if dtype.name == "float8_e8m0fnu":
        return _cast_e8m0(x, saturate, round_mode)
    if dtype.name.startswith(("float8", "float4")):
        x = x.astype(np.float32)
        low, high = finfo_range(dtype)
        no_inf = dtype.name.startswith("float4")
        if saturate or no_inf:
            # round first: what rounds to the largest value is not out of range
            clipped = xp.clip(x, np.float32(low), np.float32(high))
            return xp.where(xp.isnan(x), x, clipped).astype(dtype)
        return x.astype(dtype)
    if dtype.kind in "iu" and is_float(np.dtype(x.dtype)) and xp is np:
        return np.trunc(x.astype(np.float64)).astype(np.int64).astype(dtype)
    if dtype.name in ("int4", "uint4", "int2", "uint2"):
        return _cast_small_int(xp, x, dtype)
    if x.dtype.name in ("int4", "uint4", "int2", "uint2"):
        x = x.astype(np.int8 if x.dtype.name.startswith("int") else np.uint8)
    if dtype == np.bool_:
        return xp.not_equal(x, np.zeros((), x.dtype))
    return x.astype(dtype)


def _cast_small_int(xp: Any, x: Any, dtype: np.dtype) -> Any:
    bits, signed = int(dtype.name[-1]), dtype.name.startswith("int")
    wide = x.astype(np.int32)
    wide = xp.bitwise_and(wide, np.int32(2**bits - 1))
    if signed:
        wide = xp.where(wide >= np.int32(2 ** (bits - 1)), wide - np.int32(2**bits), wide)
    return wide.astype(np.int8).astype(dtype) if signed else wide.astype(np.uint8).astype(dtype)


def _cast_e8m0(x: Any, saturate: bool, round_mode: str) -> Any:
    """Powers of two only: the biased exponent of the float32 value, rounded as asked."""
    bits = lax.bitcast_convert_type(jnp.asarray(x, np.float32), np.uint32)
    exponent = (bits >> np.uint32(23)) & np.uint32(0xFF)
    mantissa = bits & np.uint32(0x7FFFFF)
    if round_mode == "up":
        carry = mantissa > 0
    elif round_mode == "nearest":
        carry = mantissa >= np.uint32(0x400000)
    else:
        carry = jnp.zeros(x.shape, bool)
    special = exponent == np.uint32(0xFF)
    limit = np.uint32(254 if saturate else 255)
    value = jnp.minimum(exponent + carry.astype(np.uint32), limit)
    is_nan = jnp.isnan(jnp.asarray(x, np.float32))
    value = jnp.where(special, jnp.where(is_nan, np.uint32(255), limit), value)
    return lax.bitcast_convert_type(value.astype(np.uint8), ml_dtypes.float8_e8m0fnu)


def _target(call: Call, elem_type: int) -> np.dtype:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    if dtype.kind in "OUST":
        raise HostValueError("strings are made on the host")
    return dtype


@op("Cast", "CastLike", fold=True)
def _cast(call: Call, x: Any, like: Any = None) -> Any:
    mode = call.attrs.get("round_mode", "up")
    target = _target(call, call.attrs["to"]) if like is None else np.dtype(like.dtype)
    if isinstance(x, SizeArray):
        return integers(x, target) if holds_sizes(target) else cast(jnp, live(x), target)
    return cast(call.xp, x, target, saturate=bool(call.attrs.get("saturate", 1)), round_mode=mode)


@op("BitCast")
def _bit_cast(call: Call, x: Any) -> Any:
    target = _target(call, call.attrs["to"])
    if x.dtype == np.bool_:
        x = x.astype(np.uint8)
    if target == np.bool_:
        return lax.bitcast_convert_type(x, np.uint8) != 0
    return lax.bitcast_convert_type(x, target)
