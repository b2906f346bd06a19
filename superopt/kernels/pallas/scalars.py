"""Scalar functions and monoids on blocks, in `jax.lax` operations that Triton has.

Sixteen-bit floats are float32 from load to store: a fused kernel rounds once where separate ops round after each.
Maxima and minima propagate NaN and integers divide as the table of scalar functions defines, whatever the device does.
Functions that Triton lacks are written out (erf, rounding) or refused (erfc, lgamma, 64-bit types without x64).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from superopt.errors import UnsupportedKernel
from superopt.ir.ops.record import identity
from superopt.ir.scalar import DTYPE, HALVES, SCALARS

Block = Any  # a jax array (or tracer) or a NumPy scalar

_WIDE = ("int64", "uint64", "float64")
_LACKING = frozenset(["lgamma", "digamma", "bessel_i0e", "bessel_i1e"])  # functions of the table that Triton lacks


def held(dtype: str) -> np.dtype[Any]:
    """Return the dtype of values of this dtype in registers.

    Raises:
        UnsupportedKernel: it has 64 bits and jax runs without x64.
    """
    if dtype in _WIDE and not jax.config.read("jax_enable_x64"):
        raise UnsupportedKernel(f"{dtype} needs jax_enable_x64 on a GPU")
    return np.dtype(np.float32) if dtype in HALVES else DTYPE[dtype]


def constant(value: bool | int | float, dtype: str) -> Block:
    """Return a constant as a NumPy scalar."""
    return held(dtype).type(value)


def convert(x: Block, source: str, target: str) -> Block:
    """Convert a value to another dtype: floats truncate and saturate to integers, nonzero values are true."""
    to = held(target)
    if _fixed(x):
        x = jnp.asarray(x)
    if target == "bool":
        return x if source == "bool" else x != x.dtype.type(0)
    if DTYPE[target].kind in "iu" and source not in ("bool",) and held(source).kind == "f":
        info = np.iinfo(to)
        number = jnp.where(x != x, np.zeros((), x.dtype)[()], x)
        inside = jnp.clip(number, x.dtype.type(info.min), np.nextafter(x.dtype.type(info.max), x.dtype.type(0)))
        exact = jnp.where(number >= x.dtype.type(info.max), to.type(info.max), lax.convert_element_type(inside, to))
        return exact
    return lax.convert_element_type(x, to)


def apply(fn: str, dtype: str, args: tuple[Block, ...]) -> Block:
    """Apply a scalar function to blocks in the register dtype of its operands.

    Raises:
        UnsupportedKernel: Triton has no such function.
    """
    special = _SPECIAL.get(fn)
    if special is not None:
        return special(*args)
    if has_code(fn):
        return getattr(lax, fn)(*together(args))
    raise UnsupportedKernel(f"no GPU code for the scalar function {fn} on {dtype}")


def has_code(fn: str) -> bool:
    """Whether Triton has this scalar function, or it is written out here."""
    return fn in SCALARS and fn not in _LACKING


def together(args: tuple[Block, ...]) -> tuple[Block, ...]:
    """Broadcast blocks to one shape; `lax` functions do not broadcast."""
    shape = np.broadcast_shapes(*[np.shape(x) for x in args])
    return tuple([jnp.broadcast_to(x, shape) for x in args])


def _fixed(x: Block) -> bool:
    """Whether the block is a constant."""
    return isinstance(x, np.generic)


def _is_float(x: Block) -> bool:
    return np.dtype(x.dtype).kind == "f"


def _nan(x: Block) -> Block | None:
    """Return the mask where a block is NaN; None where it cannot be."""
    return None if not _is_float(x) or (_fixed(x) and x == x) else x != x


def _extreme(fn: Callable[..., Block]) -> Callable[..., Block]:
    def call(a: Block, b: Block) -> Block:
        value = fn(a, b)
        for x in (a, b):
            where = _nan(x)
            if where is not None:
                value = jnp.where(where, np.dtype(value.dtype).type(np.nan), value)
        return value

    return call


def _boolean(logical: Callable[..., Block]) -> Callable[..., Block]:
    return lambda *args: logical(*together(args))


def _div(a: Block, b: Block) -> Block:
    if _is_float(a) or _is_float(b):
        return lax.div(*together((a, b)))
    if _fixed(b) and bool(b):
        return lax.div(*together((a, b)))
    kind = np.dtype(b.dtype)
    zero = b == kind.type(0)
    minus = kind.type(-1) if kind.kind == "i" else kind.type(np.iinfo(kind).max)
    return jnp.where(zero, minus, lax.div(*together((a, jnp.where(zero, kind.type(1), b)))))


def _rem(a: Block, b: Block) -> Block:
    if _is_float(a) or _is_float(b) or (_fixed(b) and bool(b)):
        return lax.rem(*together((a, b)))
    zero = b == np.dtype(b.dtype).type(0)
    return jnp.where(zero, a, lax.rem(*together((a, jnp.where(zero, np.dtype(b.dtype).type(1), b)))))


def _shift(fn: Callable[..., Block], signed_fill: bool) -> Callable[..., Block]:
    def call(a: Block, b: Block) -> Block:
        kind = np.dtype(a.dtype)
        bits = kind.itemsize * 8
        inside = (b >= kind.type(0)) & (b < kind.type(bits))
        if signed_fill:
            return fn(*together((a, jnp.where(inside, b, kind.type(bits - 1)))))
        return jnp.where(inside, fn(*together((a, jnp.where(inside, b, kind.type(0))))), kind.type(0))

    return call


def _round_even(x: Block) -> Block:
    kind = np.dtype(x.dtype)
    low = jnp.floor(x)
    part = x - low
    odd = low - kind.type(2) * jnp.floor(low * kind.type(0.5))
    up = (part > kind.type(0.5)) | ((part == kind.type(0.5)) & (odd == kind.type(1)))
    return jnp.where(up, low + kind.type(1), low)


def _round_away(x: Block) -> Block:
    kind = np.dtype(x.dtype)
    size = jnp.abs(x)
    low = jnp.floor(size)
    away = jnp.where(size - low >= kind.type(0.5), low + kind.type(1), low)
    return jnp.where(x < kind.type(0), -away, away)


# erf on float32: x * p(x^2) / q(x^2) on [-3.83, 3.83], outside which it is 1 to the last bit
_ERF_P = (0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145, 1.128379143519084)
_ERF_Q = (
    -1.1791602954361697e-7,
    0.000023547966471313185,
    0.0010179625278914885,
    0.014070470171167667,
    0.11098505178285362,
    0.49746925110067538,
    1.0,
)


def _polynomial(x: Block, coefficients: tuple[float, ...]) -> Block:
    kind = np.dtype(x.dtype)
    value = kind.type(coefficients[0])
    for c in coefficients[1:]:
        value = value * x + kind.type(c)
    return value


# erfc(|x|) = t exp(p(t) - x^2) with t = 1 / (1 + |x| / 2), to 1.2e-7 of its value
_ERFC = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
    -1.26551223,
)  # fmt: skip


def _single(fn: str, x: Block) -> None:
    if np.dtype(x.dtype) != np.float32:
        raise UnsupportedKernel(f"no GPU code for {fn} on {x.dtype}")


def _erfc(x: Block) -> Block:
    _single("erfc", x)
    one = np.float32(1)
    size = jnp.abs(x)
    t = one / (one + np.float32(0.5) * size)
    tail = t * jnp.exp(_polynomial(t, _ERFC) - size * size)
    return jnp.where(x < np.float32(0), np.float32(2) - tail, tail)


def _erf(x: Block) -> Block:
    _single("erf", x)
    limit = np.float32(3.832506856900711)
    near = jnp.where(x > limit, limit, jnp.where(x < -limit, -limit, x))  # keeps NaN
    square = near * near
    return near * _polynomial(square, _ERF_P) / _polynomial(square, _ERF_Q)


def _select_n(which: Block, *cases: Block) -> Block:
    if np.dtype(which.dtype) == np.bool_:
        return jnp.where(which, cases[1], cases[0])
    value = cases[0]
    for j, case in enumerate(cases[1:], 1):
        value = jnp.where(which >= np.dtype(which.dtype).type(j), case, value)
    return value


_SPECIAL: dict[str, Callable[..., Block]] = {
    "max": _extreme(jnp.maximum), "min": _extreme(jnp.minimum), "div": _div, "rem": _rem, "erf": _erf,
    "erfc": _erfc,
    "and": _boolean(lax.bitwise_and), "or": _boolean(lax.bitwise_or), "xor": _boolean(lax.bitwise_xor),
    "not": lax.bitwise_not, "round_even": _round_even, "round_away": _round_away, "select_n": _select_n,
    "shift_left": _shift(lax.shift_left, False), "shift_right_logical": _shift(lax.shift_right_logical, False),
    "shift_right_arithmetic": _shift(lax.shift_right_arithmetic, True),
}  # fmt: skip


# ---- monoids


def neutral(monoid: str, dtype: str) -> Block:
    """Return the identity of a monoid, as a constant."""
    return constant(identity(monoid, dtype), dtype)


def combine(monoid: str, a: Block, b: Block) -> Block:
    """Combine two partial results of a reduction."""
    match monoid:
        case "sum":
            return a + b
        case "prod":
            return a * b
        case "max" | "min" | "and" | "or" | "xor":
            return _SPECIAL[monoid](a, b)
        case _:
            raise UnsupportedKernel(f"no GPU code for the monoid {monoid}")


def across(monoid: str, dtype: str) -> bool:
    """Whether Triton can reduce a block along one of its axes with this monoid."""
    return monoid in ("sum", "max", "min") or (monoid in ("and", "or") and dtype == "bool")


def reduce_axis(monoid: str, x: Block, axis: int) -> Block:
    """Reduce a block along an axis, which stays with extent 1 unless it is the first."""
    keep = axis > 0
    match monoid:
        case "sum":
            return jnp.sum(x, axis=axis, keepdims=keep, dtype=x.dtype)
        case "and" | "or":
            fold = jnp.min if monoid == "and" else jnp.max
            return fold(x.astype(np.int32), axis=axis, keepdims=keep) != np.int32(0)
        case _:
            value = (jnp.max if monoid == "max" else jnp.min)(x, axis=axis, keepdims=keep)
            if not _is_float(x):
                return value
            broken = jnp.max((x != x).astype(np.int32), axis=axis, keepdims=keep) > np.int32(0)
            return jnp.where(broken, np.dtype(x.dtype).type(np.nan), value)
