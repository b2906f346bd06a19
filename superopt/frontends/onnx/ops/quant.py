"""Quantisation: to integers and small floats and back, per tensor, per axis, or per block."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from onnx import helper

from superopt.frontends.onnx.data import finfo_range, is_float
from superopt.frontends.onnx.eval import Call, op
from superopt.frontends.onnx.ops.conv import convolve
from superopt.frontends.onnx.ops.elementwise import cast
from superopt.frontends.onnx.ops.linalg import centred, matmul
from superopt.frontends.onnx.ops.movement import axis_of, slice_axis

_SMALL_INTS = {"int2": (-2, 1), "uint2": (0, 3), "int4": (-8, 7), "uint4": (0, 15)}


def int_range(dtype: np.dtype) -> tuple[int, int]:
    """Least and greatest value of an integer dtype, the small ones included."""
    if dtype.name in _SMALL_INTS:
        return _SMALL_INTS[dtype.name]
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _spread(call: Call, value: Any, x: Any) -> Any:
    """A scale or zero point stretched over the tensor: one value, one per slice of an axis, or one per block."""
    if value is None or (value.size == 1 and value.ndim <= 1):
        return value if value is None else value.reshape(())
    axis = axis_of(call.attrs.get("axis", 1), x.ndim)
    block = call.attrs.get("block_size", 0)
    if value.ndim == 1 and not block:
        return value.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    if block:
        wide = jnp.repeat(value.astype(np.int32) if _narrow(value) else value, block, axis)
        return slice_axis(wide, axis, 0, x.shape[axis])
    return value


def _narrow(value: Any) -> bool:
    return np.dtype(value.dtype).name in _SMALL_INTS


def quantise(x: Any, scale: Any, zero: Any, dtype: np.dtype, saturate: bool, precision: Any = None) -> Any:
    """Real numbers over the scale, rounded to the nearest (halves to even), shifted, and held in the type."""
    wide = np.float32 if precision is None else precision
    scaled = x.astype(wide) / scale.astype(wide)
    if is_float(dtype):
        shifted = scaled.astype(np.float32) + (0 if zero is None else zero.astype(np.float32))
        return cast(jnp, shifted, dtype, saturate=saturate)
    rounded = lax.round(scaled, lax.RoundingMethod.TO_NEAREST_EVEN).astype(np.float32)
    if zero is not None:
        rounded = rounded + zero.astype(np.float32)
    low, high = int_range(dtype)
    clipped = jnp.clip(rounded, np.float32(low), np.float32(high)).astype(np.int32)
    if dtype.name in _SMALL_INTS:
        return cast(jnp, clipped, dtype)
    return clipped.astype(dtype)


@op("QuantizeLinear")
def _quantize_linear(call: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    elem = call.attrs.get("output_dtype", 0)
    dtype = np.dtype(zero.dtype) if zero is not None else np.dtype(np.uint8)
    if zero is None and elem:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem))
    chosen = call.attrs.get("precision", 0)
    precision = helper.tensor_dtype_to_np_dtype(chosen) if chosen else None
    if precision is None and call.since >= 23 and scale.dtype == np.float16:
        precision = np.float16
    scale, zero = _spread(call, scale, x), _spread(call, zero, x)
    return quantise(x, scale, zero, dtype, bool(call.attrs.get("saturate", 1)), precision)


@op("DequantizeLinear")
def _dequantize_linear(call: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    elem = call.attrs.get("output_dtype", 0)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem)) if elem else np.dtype(scale.dtype)
    wide = np.float32 if is_float(np.dtype(x.dtype)) else np.int32
    value = x.astype(wide)
    zero = _spread(call, zero, x)
    if zero is not None:
        value = value - zero.astype(wide)
    return (value.astype(np.float32) * _spread(call, scale, x).astype(np.float32)).astype(dtype)


@op("DynamicQuantizeLinear")
def _dynamic_quantize(call: Call, x: Any) -> Any:
    return dynamic_range(x)


def dynamic_range(x: Any) -> tuple[Any, Any, Any]:
    """A tensor as unsigned bytes over its own range with 0: values, scale and zero point."""
    zero_f = np.float32(0)
    low, high = jnp.minimum(jnp.min(x), zero_f), jnp.maximum(jnp.max(x), zero_f)
    scale = (high - low) / np.float32(255)
    scale = jnp.where(scale == 0, np.float32(1), scale)
    zero = jnp.clip(lax.round(-low / scale, lax.RoundingMethod.TO_NEAREST_EVEN), zero_f, np.float32(255))
    quantised = jnp.clip(lax.round(x / scale, lax.RoundingMethod.TO_NEAREST_EVEN) + zero, zero_f, np.float32(255))
    return quantised.astype(np.uint8), scale, zero.astype(np.uint8)


def _column(scale: Any, rank: int, axis: int) -> Any:
    if scale.ndim == 1 and scale.size > 1:
        return scale.reshape([-1 if i == axis % rank else 1 for i in range(rank)])
    return scale.reshape(()) if scale.size == 1 else scale


@op("QLinearMatMul")
def _qlinear_matmul(
    call: Call, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
) -> Any:
    total = matmul(_float_centred(a, a_zero, -2), _float_centred(b, b_zero, -1), np.int32)
    wide = np.float32
    scale = _column(a_scale, a.ndim, -2).astype(wide) * _column(b_scale, b.ndim, -1).astype(wide)
    scaled = total.astype(wide) * scale
    out_zero = _column(y_zero, scaled.ndim, -2)
    return quantise(scaled, _column(y_scale, scaled.ndim, -2), out_zero, np.dtype(y_zero.dtype), True)


def _float_centred(x: Any, zero: Any, axis: int) -> Any:
    if is_float(np.dtype(x.dtype)):
        return (x.astype(np.float32) - _column(zero, x.ndim, axis).astype(np.float32)).astype(np.int32)
    return centred(x, zero, axis)


@op("QLinearConv")
def _qlinear_conv(
    call: Call, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any, y_zero: Any,
    bias: Any = None,
) -> Any:  # fmt: skip
    total = convolve(call, centred(x, x_zero), centred(w, w_zero, 0), np.int32)
    if bias is not None:
        total = total + _column(bias, total.ndim, 1)
    scale = x_scale.reshape(()) * _column(w_scale, total.ndim, 1)
    scaled = total.astype(np.float32) * scale
    return quantise(scaled, y_scale.reshape(()), y_zero.reshape(()), np.dtype(y_zero.dtype), True)


__all__ = ["finfo_range", "int_range"]
