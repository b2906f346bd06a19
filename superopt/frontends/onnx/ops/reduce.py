"""Reductions.  Axes are an attribute in old opsets and an input in newer ones; none means all axes, unless
`noop_with_empty_axes` says that none means none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.frontends.onnx.data import is_float
from superopt.frontends.onnx.eval import Call, op
from superopt.frontends.onnx.ops.elementwise import quotient, ratio
from superopt.frontends.onnx.ops.movement import axes_of, axis_of
from superopt.frontends.symbolic.known import value_of


def _axes(call: Call, x: Any, axes: Any) -> tuple[int, ...]:
    chosen = axes_of(call, axes, x.ndim)
    if not chosen:
        return () if call.attrs.get("noop_with_empty_axes", 0) else tuple(range(x.ndim))
    return chosen


def _reduce(call: Call, x: Any, how: str, axes: tuple[int, ...]) -> Any:
    return getattr(call.xp, how)(x, axis=axes, keepdims=bool(call.attrs["keepdims"]))


@op("ReduceSum", fold=True, wide=True)
def _sum(call: Call, x: Any, axes: Any = None) -> Any:
    return _total(call, x, _axes(call, x, axes))


def _total(call: Call, x: Any, axes: tuple[int, ...]) -> Any:
    return call.xp.sum(x, axis=axes, keepdims=bool(call.attrs["keepdims"]), dtype=x.dtype)


@op("ReduceProd", fold=True, wide=True)
def _prod(call: Call, x: Any, axes: Any = None) -> Any:
    chosen = _axes(call, x, axes)
    return call.xp.prod(x, axis=chosen, keepdims=bool(call.attrs["keepdims"]), dtype=x.dtype)


@op("ReduceMax", "ReduceMin", fold=True)
def _extreme(call: Call, x: Any, axes: Any = None) -> Any:
    largest = call.node.op_type == "ReduceMax"
    chosen = _axes(call, x, axes)
    if not all(x.shape[a] for a in chosen):
        return _empty_extreme(call, x, chosen, largest)
    return _reduce(call, x, "max" if largest else "min", chosen)


def _empty_extreme(call: Call, x: Any, axes: tuple[int, ...], largest: bool) -> Any:
    """Over no elements the largest is the least value of the type."""
    dtype = np.dtype(x.dtype)
    if is_float(dtype):
        fill: Any = -np.inf if largest else np.inf
    elif dtype == np.bool_:
        fill = not largest
    else:
        fill = np.iinfo(dtype).min if largest else np.iinfo(dtype).max
    sizes = [1 if i in axes else d for i, d in enumerate(x.shape) if i not in axes or call.attrs["keepdims"]]
    return jnp.full(sizes, fill, dtype)


@op("ReduceMean", fold=True, wide=True)
def _mean(call: Call, x: Any, axes: Any = None) -> Any:
    chosen = _axes(call, x, axes)
    count = math.prod(x.shape[a] for a in chosen)
    if is_float(np.dtype(x.dtype)):
        return ratio(call, _total(call, x, chosen), value_of(count, x.dtype))
    return _integer_mean(call, x, chosen, count) if count else _total(call, x, chosen)  # 0, as ONNX Runtime has it


def _integer_mean(call: Call, x: Any, axes: tuple[int, ...], count: int) -> Any:
    """The mean of integers, cut towards zero: it is in the range of the type also where their sum is not."""
    xp = call.xp
    if np.dtype(x.dtype).itemsize < 8:
        return quotient(xp, _total(call, x.astype(np.int64), axes), np.asarray(count, np.int64)).astype(x.dtype)
    n, bits, mask = (np.asarray(v, x.dtype) for v in (count, 32, 2**32 - 1))  # halves, whose sums do not overflow
    high, low = _total(call, xp.right_shift(x, bits), axes), _total(call, xp.bitwise_and(x, mask), axes)
    rest = xp.left_shift(xp.remainder(high, n), bits) + low
    floor = xp.left_shift(xp.floor_divide(high, n), bits) + xp.floor_divide(rest, n)
    if x.dtype == np.uint64:
        return floor
    zero = np.zeros((), x.dtype)
    return floor + ((floor < zero) & (xp.remainder(rest, n) != zero)).astype(x.dtype)


def _wide(x: Any) -> Any:
    """Integers as the floats that roots and logarithms of them are computed in."""
    return x if is_float(np.dtype(x.dtype)) else x.astype(np.float64)


# the norm of integers is in their range also where squares are not
_SUMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "ReduceL1": (jnp.abs, jnp.asarray),
    "ReduceL2": (lambda x: _wide(x) * _wide(x), jnp.sqrt),
    "ReduceLogSum": (_wide, jnp.log),
    "ReduceSumSquare": (lambda x: x * x, jnp.asarray),
}
"""Operator -> the function that is summed, and the function of the sum."""


@op(*_SUMS, wide=True)
def _of_sum(call: Call, x: Any, axes: Any = None) -> Any:
    summed, made = _SUMS[call.node.op_type]
    return made(_reduce(call, summed(x), "sum", _axes(call, x, axes))).astype(x.dtype)


@op("ReduceLogSumExp", wide=True)
def _log_sum_exp(call: Call, x: Any, axes: Any = None) -> Any:
    chosen = _axes(call, x, axes)
    if not all(x.shape[a] for a in chosen):
        return jnp.log(_reduce(call, x, "sum", chosen)).astype(x.dtype)
    peak = jnp.max(x, chosen, keepdims=True)
    # a peak that is not finite would give inf - inf
    peak = jnp.where(jnp.isfinite(peak), peak, jnp.zeros((), x.dtype))
    logs = jnp.log(_reduce(call, jnp.exp(x - peak), "sum", chosen))
    return (logs + peak.reshape(logs.shape)).astype(x.dtype)


@op("ArgMax", "ArgMin")
def _arg(call: Call, x: Any) -> Any:
    axis = axis_of(call.attrs["axis"], x.ndim)
    pick = lax.argmax if call.node.op_type == "ArgMax" else lax.argmin
    last = bool(call.attrs.get("select_last_index", 0))
    index = pick(lax.rev(x, (axis,)) if last else x, axis, np.int64)
    index = np.int64(x.shape[axis] - 1) - index if last else index
    return jnp.expand_dims(index, axis) if call.attrs["keepdims"] else index


@op("CumSum", "CumProd", wide=True)
def _cumulative(call: Call, x: Any, axis: Any) -> Any:
    along = axis_of(int(call.static(axis, "axis").ravel()[0]), x.ndim)
    summed = call.node.op_type == "CumSum"
    reverse = bool(call.attrs["reverse"])
    total = (lax.cumsum if summed else lax.cumprod)(x, along, reverse)
    if not call.attrs["exclusive"]:
        return total
    neutral = np.asarray(0 if summed else 1, x.dtype)
    config = [(0, 0, 0)] * x.ndim
    config[along] = (-1, 1, 0) if reverse else (1, -1, 0)
    return lax.pad(total, neutral, config)
