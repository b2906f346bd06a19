"""Layers that families share; each takes its weights from a source that is passed in."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from superopt.lab.training.program import WeightSource


def conv(
    w: WeightSource,
    x: Any,
    out: int,
    size: int = 3,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
    bias: bool = False,
) -> Any:
    """Channels-first convolution, padded to keep the resolution at stride 1."""
    pad = dilation * (size - 1) // 2
    y = lax.conv_general_dilated(
        x,
        w(out, x.shape[1] // groups, size, size),
        (stride, stride),
        ((pad, pad), (pad, pad)),
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        feature_group_count=groups,
    )
    return y + w(out)[None, :, None, None] if bias else y


def conv_last(w: WeightSource, x: Any, out: int, size: int = 3, stride: int = 1, groups: int = 1) -> Any:
    """Channels-last convolution with kernels of HWIO."""
    return lax.conv_general_dilated(
        x,
        jnp.transpose(w(out, x.shape[3] // groups, size, size), (2, 3, 1, 0)),
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def scaled(w: WeightSource, x: Any) -> Any:
    """Batch norm of stored statistics, channels first."""
    c = x.shape[1]
    mean, var, scale, bias = w(c), w.positive(c), w.positive(c), w(c)
    factor = scale * lax.rsqrt(var + 1e-3)
    return (x - mean[:, None, None]) * factor[:, None, None] + bias[:, None, None]


def dense(w: WeightSource, x: Any, out: int, bias: bool = True) -> Any:
    """x W + b over the last axis."""
    y = x @ w(x.shape[-1], out)
    return y + w(out) if bias else y


def relu(x: Any) -> Any:
    """max(x, 0)"""
    return jnp.maximum(x, 0.0)


def sigmoid(x: Any) -> Any:
    """The logistic function."""
    return lax.logistic(x)


def swish(x: Any) -> Any:
    """x times its logistic."""
    return x * lax.logistic(x)


def gelu(x: Any) -> Any:
    """Gaussian error unit by tanh."""
    return 0.5 * x * (1.0 + jnp.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def layer_norm(w: WeightSource, x: Any) -> Any:
    """Layer norm over the last axis."""
    d = x - x.mean(-1, keepdims=True)
    return d * lax.rsqrt((d * d).mean(-1, keepdims=True) + 1e-6) * w.positive(x.shape[-1]) + w(x.shape[-1])


def rms_norm(w: WeightSource, x: Any) -> Any:
    """Scaled by the root mean square of the last axis."""
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w.positive(x.shape[-1])


def softmax(x: Any, axis: int = -1) -> Any:
    """Softmax over an axis."""
    e = jnp.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def max_pool(x: Any, size: int, stride: int, pad: int = 0) -> Any:
    """Channels-first max pooling."""
    pads = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, size, size), (1, 1, stride, stride), pads)


def avg_pool(x: Any, size: int, stride: int, pad: int = 0) -> Any:
    """Channels-first average pooling, padding counted."""
    pads = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    return lax.reduce_window(x, 0.0, lax.add, (1, 1, size, size), (1, 1, stride, stride), pads) / (size * size)


def split_heads(x: Any, heads: int) -> Any:
    """[..., rows, width] as [..., heads, rows, width per head]."""
    *lead, rows, width = x.shape
    return jnp.moveaxis(x.reshape(*lead, rows, heads, width // heads), -2, -3)


def merge_heads(x: Any) -> Any:
    """The reverse of `split_heads`."""
    y = jnp.moveaxis(x, -3, -2)
    return y.reshape(*y.shape[:-2], y.shape[-2] * y.shape[-1])
