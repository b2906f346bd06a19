"""Quantisation: to integers and small floats and back, per tensor, per axis, or per block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from onnx import helper

from superopt.frontends.onnx.data import is_float
from superopt.frontends.onnx.eval import Call, op
from superopt.frontends.onnx.ops.conv import convolve
from superopt.frontends.onnx.ops.elementwise import cast, divided
from superopt.frontends.onnx.ops.linalg import along, centred, is_byte, matmul
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
    scaled = divided(x.astype(wide), scale.astype(wide))
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


@dataclass(frozen=True, slots=True)
class Quantized:
    """A tensor of integers (or small floats) for the real numbers `scale * (value - zero)`.

    Scale and zero point (None: 0) hold one value, or one for each place along an axis.
    """

    value: Any
    scale: Any
    zero: Any

    def __post_init__(self) -> None:
        if self.value is None or self.scale is None:
            raise ValueError("a quantised tensor needs its values and its scale")

    def centred(self, axis: int | None = None) -> Any:
        """The integers with the zero point at 0, as int32."""
        return centred(self.value, self.zero, axis)

    def single(self, axis: int | None = None) -> Any:
        """The integers with the zero point at 0, as float32."""
        return self.centred(axis).astype(np.float32)

    def factor(self, axis: int | None = None) -> Any:
        """The scale, to be multiplied with a tensor of the rank of this."""
        return along(self.scale, self.value.ndim, axis)

    def real(self) -> Any:
        """The numbers, in the type of the scale."""
        return self.centred().astype(self.scale.dtype) * self.factor()


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that a result is rounded to: scale and zero point (None: 0)."""

    scale: Any
    zero: Any

    def rounded(self, x: Any, like_type: Any = None, axis: int | None = None) -> Any:
        """Real numbers as quantised ones of the type of the zero point, or of another tensor where there is none."""
        if self.scale is None:
            raise ValueError("a quantised result needs its scale")
        dtype = np.dtype((like_type if self.zero is None else self.zero).dtype)
        scale, zero = (
            None if v is None else v.reshape(()) if axis is None else along(v, x.ndim, axis)
            for v in (self.scale, self.zero)
        )
        return quantise(x, scale, zero, dtype, True)


@op("QuantizeLinear", operands=(0, (Grid, 1, 2)))
def _quantize_linear(call: Call, x: Any, y: Grid) -> Any:
    scale, zero = y.scale, y.zero
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


@op("DequantizeLinear", operands=((Quantized, 0, 1, 2),))
def _dequantize_linear(call: Call, x: Quantized) -> Any:
    elem = call.attrs.get("output_dtype", 0)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem)) if elem else np.dtype(x.scale.dtype)
    wide = np.float32 if is_float(np.dtype(x.value.dtype)) else np.int32
    value = x.value.astype(wide)
    zero = _spread(call, x.zero, x.value)
    if zero is not None:
        value = value - zero.astype(wide)
    return (value.astype(np.float32) * _spread(call, x.scale, x.value).astype(np.float32)).astype(dtype)


@op("DynamicQuantizeLinear")
def _dynamic_quantize(call: Call, x: Any) -> Any:
    return dynamic_range(x)


def dynamic_range(x: Any) -> tuple[Any, Any, Any]:
    """A tensor as unsigned bytes over its own range with 0: values, scale and zero point."""
    zero_f = np.float32(0)
    low, high = jnp.min(x, initial=zero_f), jnp.max(x, initial=zero_f)
    scale = divided(high - low, np.float32(255))
    scale = jnp.where(scale == 0, np.float32(1), scale)
    zero = jnp.clip(lax.round(divided(-low, scale), lax.RoundingMethod.TO_NEAREST_EVEN), zero_f, np.float32(255))
    quantised = jnp.clip(
        lax.round(divided(x, scale), lax.RoundingMethod.TO_NEAREST_EVEN) + zero, zero_f, np.float32(255)
    )
    return quantised.astype(np.uint8), scale, zero.astype(np.uint8)


_PAIR = ((Quantized, 0, 1, 2), (Quantized, 3, 4, 5), (Grid, 6, 7))


@op("QLinearMatMul", operands=_PAIR)
def _qlinear_matmul(call: Call, a: Quantized, b: Quantized, y: Grid) -> Any:
    scale = a.factor(-2).astype(np.float32) * b.factor(-1).astype(np.float32)
    return y.rounded(sums(a, b, matmul, -2, -1) * scale, axis=-2)


def sums(a: Quantized, b: Quantized, product: Callable[..., Any], a_axis: int | None, b_axis: int | None) -> Any:
    """Sums of products of two quantised tensors, without their scales, as float32.

    Integers of 8 bits are multiplied and summed in float32, which holds their products exactly and is the type that
    the scale is applied in; wider ones in int32.

    Args:
        a, b: the tensors.
        product: of two arrays and the type to sum in (None: theirs).
        a_axis, b_axis: the axis of zero points that are not one number.
    """
    if is_byte(a.value) and is_byte(b.value):
        return product(a.single(a_axis), b.single(b_axis), None)
    return product(a.centred(a_axis), b.centred(b_axis), np.int32).astype(np.float32)


@op("QLinearConv", operands=(*_PAIR, 8))
def _qlinear_conv(call: Call, x: Quantized, w: Quantized, y: Grid, bias: Any = None) -> Any:
    total = sums(x, w, functools.partial(convolve, call), None, 0)
    if bias is not None:
        total = total + along(bias.astype(np.float32), total.ndim, 1)
    return y.rounded(total * (x.scale.reshape(()) * along(w.scale, total.ndim, 1)))
