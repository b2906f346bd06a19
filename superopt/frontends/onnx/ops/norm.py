"""Normalisations, written as the arithmetic that they are (so that rules can see into them)."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from onnx import helper

from superopt.errors import InputError
from superopt.frontends.onnx.eval import Call, op
from superopt.frontends.onnx.ops.movement import axis_of


def _per_channel(vector: Any, rank: int) -> Any:
    return vector.reshape(1, -1, *([1] * (rank - 2)))


@op("BatchNormalization", wide=True)
def _batch_norm(call: Call, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    eps = call.attrs["epsilon"]
    if call.since < 9 and not call.attrs.get("spatial", 1):
        raise InputError("BatchNormalization with spatial = 0 is not supported")
    if not call.attrs.get("training_mode", 0):
        return _normalise(x, scale, bias, mean, var, eps)
    axes = tuple(i for i in range(x.ndim) if i != 1)
    wide, mean, var = promoted(x, mean, var)
    kinds = [v.dtype for v in call.values[3:5]]
    now_mean = jnp.mean(wide, axes)
    now_var = jnp.mean(jnp.square(wide - _per_channel(now_mean, x.ndim)), axes)
    keep = np.asarray(call.attrs["momentum"], mean.dtype)
    fresh = np.asarray(1.0 - call.attrs["momentum"], mean.dtype)
    result = _normalise(x, scale, bias, now_mean, now_var, eps)
    running = (mean * keep + now_mean * fresh, var * keep + now_var * fresh)
    return (result, *(r.astype(kind) for r, kind in zip(running, kinds, strict=True)))


def _normalise(x: Any, scale: Any, bias: Any, mean: Any, var: Any, eps: float) -> Any:
    kind = x.dtype
    x, scale, bias, mean, var = promoted(x, scale, bias, mean, var)
    factor = scale * lax.rsqrt(var + np.asarray(eps, var.dtype))
    centred = x - _per_channel(mean, x.ndim)
    return (centred * _per_channel(factor, x.ndim) + _per_channel(bias, x.ndim)).astype(kind)


def promoted(*arrays: Any) -> list[Any]:
    """The arrays in the widest of their types: data and statistics may have types of their own."""
    wide = functools.reduce(jnp.promote_types, (x.dtype for x in arrays))
    return [x.astype(wide) for x in arrays]


def standardised(x: Any, axes: tuple[int, ...], eps: float, *, centre: bool = True) -> tuple[Any, Any, Any]:
    """Values of variance 1 over the axes (around the mean, or around 0), their mean, and what they were scaled by."""
    mean = jnp.mean(x, axes, keepdims=True) if centre else jnp.zeros((), x.dtype)
    moved = x - mean if centre else x
    inverse = lax.rsqrt(jnp.mean(jnp.square(moved), axes, keepdims=True) + np.asarray(eps, x.dtype))
    return moved * inverse, mean, inverse


@op("InstanceNormalization", wide=True)
def _instance_norm(call: Call, x: Any, scale: Any, bias: Any) -> Any:
    axes = tuple(range(2, x.ndim))
    normal, _, _ = standardised(x, axes, call.attrs["epsilon"])
    return normal * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


@op("GroupNormalization", wide=True)
def _group_norm(call: Call, x: Any, scale: Any, bias: Any) -> Any:
    groups, n, channels = call.attrs["num_groups"], x.shape[0], x.shape[1]
    stash = helper.tensor_dtype_to_np_dtype(call.attrs.get("stash_type", 1))
    wide = x.reshape(n, groups, -1).astype(stash)
    normal = standardised(wide, (2,), call.attrs["epsilon"])[0].astype(x.dtype)
    if call.since < 21:
        # one scale per group
        scale, bias = (jnp.repeat(v, channels // groups) for v in (scale, bias))
    return normal.reshape(x.shape) * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


@op("LayerNormalization", wide=True)
def _layer_norm(call: Call, x: Any, scale: Any, bias: Any = None) -> Any:
    axes = tuple(range(axis_of(call.attrs["axis"], x.ndim), x.ndim))
    told = np.dtype(helper.tensor_dtype_to_np_dtype(call.attrs["stash_type"]))
    stash = x.dtype if x.dtype.itemsize > told.itemsize else told  # doubles stay such, as in ONNX Runtime
    normal, mean, inverse = standardised(x.astype(stash), axes, call.attrs["epsilon"])
    result = normal.astype(x.dtype) * scale
    result = result if bias is None else result + bias
    return (result, mean.astype(told), inverse.astype(told)) if call.n_outputs > 1 else result


@op("RMSNormalization", wide=True)
def _rms_norm(call: Call, x: Any, scale: Any) -> Any:
    axes = tuple(range(axis_of(call.attrs["axis"], x.ndim), x.ndim))
    stash = helper.tensor_dtype_to_np_dtype(call.attrs["stash_type"])
    normal, _, _ = standardised(x.astype(stash), axes, call.attrs["epsilon"], centre=False)
    return (normal.astype(scale.dtype) * scale).astype(scale.dtype)


@op("LRN", wide=True)
def _lrn(call: Call, x: Any) -> Any:
    size = call.attrs["size"]
    low = (size - 1) // 2
    window = (1, size, *([1] * (x.ndim - 2)))
    pads = ((0, 0), (low, size - 1 - low), *([(0, 0)] * (x.ndim - 2)))
    total = lax.reduce_window(x * x, np.zeros((), x.dtype), lax.add, window, (1,) * x.ndim, pads)
    alpha, bias = np.asarray(call.attrs["alpha"] / size, x.dtype), np.asarray(call.attrs["bias"], x.dtype)
    return x / lax.pow(bias + alpha * total, jnp.full(x.shape, call.attrs["beta"], x.dtype))


@op("MeanVarianceNormalization", wide=True)
def _mean_variance_norm(call: Call, x: Any) -> Any:
    axes = tuple(axis_of(a, x.ndim) for a in call.attrs.get("axes", (0, 2, 3)))
    moved = x - jnp.mean(x, axes, keepdims=True)
    deviation = jnp.sqrt(jnp.mean(jnp.square(moved), axes, keepdims=True))
    return moved / (deviation + np.asarray(1e-9, x.dtype))


@op("LpNormalization", wide=True)
def _lp_norm(call: Call, x: Any) -> Any:
    axis = axis_of(call.attrs["axis"], x.ndim)
    if call.attrs["p"] == 1:
        norm = jnp.sum(jnp.abs(x), axis, keepdims=True)
    else:
        norm = jnp.sqrt(jnp.sum(x * x, axis, keepdims=True))
    zero = norm == np.zeros((), x.dtype)
    return jnp.where(zero, np.zeros((), x.dtype), x / jnp.where(zero, np.ones((), x.dtype), norm))
