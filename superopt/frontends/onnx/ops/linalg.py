"""Products: MatMul, Gemm, Einsum, their integer forms, and the determinant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.frontends.onnx.data import is_float
from superopt.frontends.onnx.eval import Call, is_half, op
from superopt.frontends.onnx.ops.elementwise import cast
from superopt.frontends.symbolic.known import equal_shapes


def matmul(a: Any, b: Any, accumulate: Any = None) -> Any:
    """NumPy's `matmul`, as one `dot_general` where the leading axes agree."""
    if (a.ndim == 2 and b.ndim == 2) or (a.ndim == b.ndim > 2 and equal_shapes(a.shape[:-2], b.shape[:-2])):
        lead = tuple(range(a.ndim - 2))
        numbers = (((a.ndim - 1,), (b.ndim - 2,)), (lead, lead))
        return lax.dot_general(a, b, numbers, preferred_element_type=accumulate)
    if a.ndim >= 2 and b.ndim == 2:
        return lax.dot_general(a, b, (((a.ndim - 1,), (0,)), ((), ())), preferred_element_type=accumulate)
    return jnp.matmul(a, b, preferred_element_type=accumulate)


def singles(x: Any) -> Any:
    """The type that products of halves are summed in where more is added to them; None for other numbers."""
    return np.float32 if is_half(x) else None


@op("MatMul")
def _matmul(call: Call, a: Any, b: Any) -> Any:
    return matmul(a, b, None if is_float(np.dtype(a.dtype)) else a.dtype)


@op("Gemm")
def _gemm(call: Call, a: Any, b: Any, c: Any = None) -> Any:
    contract = ((0 if call.attrs["transA"] else 1,), (1 if call.attrs["transB"] else 0,))
    accumulate = singles(a) if is_float(np.dtype(a.dtype)) else a.dtype
    result = lax.dot_general(a, b, (contract, ((), ())), preferred_element_type=accumulate)
    c = c if c is None else c.astype(result.dtype)
    return scaled_sum(result, call.attrs["alpha"], c, call.attrs["beta"]).astype(a.dtype)


def scaled_sum(x: Any, alpha: float, c: Any, beta: float) -> Any:
    """`alpha x + beta c` in the type of `x`; integers are scaled as fractions and rounded towards zero at the end."""
    c = None if beta == 0.0 else c
    if alpha == 1.0 and (c is None or beta == 1.0):
        return x if c is None else x + c
    wide = x if is_float(np.dtype(x.dtype)) else x.astype(np.float64)
    total = wide if alpha == 1.0 else wide * np.asarray(alpha, wide.dtype)
    if c is not None:
        total = total + c.astype(wide.dtype) * np.asarray(beta, wide.dtype)
    return cast(jnp, total, np.dtype(x.dtype))


@op("Einsum", wide=True)
def _einsum(call: Call, *operands: Any) -> Any:
    return jnp.einsum(call.attrs["equation"].replace(" ", ""), *operands)


@op("Det", wide=True)
def _det(call: Call, x: Any) -> Any:
    return jnp.linalg.det(x)


def centred(x: Any, zero_point: Any, axis: int | None = None) -> Any:
    """A tensor of eight-bit numbers as int32 with its zero point taken off (`axis`: that of a per-row zero point)."""
    wide = x.astype(np.float32 if is_float(np.dtype(x.dtype)) else np.int32)
    if zero_point is not None:
        wide = wide - along(zero_point.astype(wide.dtype), x.ndim, axis)
    return wide.astype(np.int32)


def along(values: Any, rank: int, axis: int | None) -> Any:
    """One value as a scalar; several, one for each place of an axis, so that they meet a tensor of this rank there."""
    if values.size == 1:
        return values.reshape(())
    if values.ndim == 1 and axis is not None:
        return values.reshape([-1 if i == axis % rank else 1 for i in range(rank)])
    return values


_EXACT = 1 << 24  # sums of integers that stay below are exact in float32, in any order


def is_byte(x: Any) -> bool:
    """Whether these are integers of 8 bits."""
    return np.dtype(x.dtype) in (np.int8, np.uint8)


class Shifted(NamedTuple):
    """Integers and their zero point (None: 0), which is taken off before a product."""

    value: Any
    zero: Any


def terms_exact_in_float32(a: Shifted, b: Shifted) -> int:
    """Number of products of these tensors, with their zero points taken off, whose sum is exact in float32."""
    if not (is_byte(a.value) and is_byte(b.value)):
        return 0
    greatest = [128 if x.zero is None and x.value.dtype == np.int8 else 255 for x in (a, b)]
    return _EXACT // (greatest[0] * greatest[1])


def summed_exactly(product: Callable[..., Any], left: Any, right: Any, axes: tuple[int, int], step: int) -> Any:
    """Sums of products of integers as int32, in blocks whose sums float32 holds.

    Args:
        product: of two arrays of float32.
        left, right: the integers.
        axes: the axis of either that is summed over.
        step: length of a block.
    """
    terms = left.shape[axes[0]]
    sides = [(left.astype(np.float32), axes[0]), (right.astype(np.float32), axes[1])]

    def block(begin: int) -> Any:
        end = min(begin + step, terms)
        total = product(*[lax.slice_in_dim(x, begin, end, axis=axis) for x, axis in sides])
        return lax.round(total, lax.RoundingMethod.TO_NEAREST_EVEN).astype(np.int32)  # schedules may sum otherwise

    first, *others = map(block, range(0, max(terms, 1), step))
    return sum(others, first)


@op("MatMulInteger", operands=((Shifted, 0, 2), (Shifted, 1, 3)))
def _matmul_integer(call: Call, a: Shifted, b: Shifted) -> Any:
    step, terms = terms_exact_in_float32(a, b), a.value.shape[-1]
    left, right = centred(*a, -2), centred(*b, -1)
    if not step or not isinstance(terms, int) or min(left.ndim, right.ndim) < 2:
        return matmul(left, right, np.int32)
    return summed_exactly(matmul, left, right, (-1, -2), step)
