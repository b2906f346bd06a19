"""Layers in plain JAX, and their parameters: the components of the networks of `superopt.lab.bench.programs.nets`.

`Init` makes parameters by name while a network is described, seeded and scaled so that activations keep their size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

LayerParams: TypeAlias = "dict[str, np.ndarray]"


class Net(NamedTuple):
    """A function of parameters and inputs (arrays, or structures of them), with values for both."""

    fn: Callable[..., Any]
    params: LayerParams
    inputs: tuple[Any, ...]


class Init:
    """Creates parameters by name the first time a network is described."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.params: LayerParams = {}

    def weight(self, name: str, shape: Sequence[int], fan_in: int) -> None:
        """Normal weights of variance 2 / fan_in."""
        values = self.rng.standard_normal(tuple(shape), dtype=np.float32)
        values *= np.float32(np.sqrt(2.0 / max(1, fan_in)))
        self.params[name] = values

    def vector(self, name: str, size: int, low: float, high: float) -> None:
        """A uniform vector."""
        self.params[name] = self.rng.uniform(low, high, size).astype(np.float32)

    def conv(self, name: str, cin: int, cout: int, kernel: tuple[int, int], groups: int = 1) -> None:
        """Weights of a convolution and of the batch norm after it."""
        self.weight(f"{name}.w", (cout, cin // groups, *kernel), cin // groups * kernel[0] * kernel[1])
        self.vector(f"{name}.mean", cout, -0.1, 0.1)
        self.vector(f"{name}.var", cout, 0.5, 1.5)
        self.vector(f"{name}.scale", cout, 0.5, 1.0)
        self.vector(f"{name}.bias", cout, -0.1, 0.1)

    def dense(self, name: str, cin: int, cout: int) -> None:
        """Weights and bias of a dense layer."""
        self.weight(f"{name}.w", (cin, cout), 2 * cin)
        self.vector(f"{name}.b", cout, -0.1, 0.1)

    def norm(self, name: str, size: int) -> None:
        """Scale and bias of a layer norm."""
        self.vector(f"{name}.scale", size, 0.5, 1.5)
        self.vector(f"{name}.bias", size, -0.1, 0.1)


def conv2d(x: Array, w: Array, stride: int = 1, groups: int = 1, pad: tuple[int, int] | None = None) -> Array:
    """NCHW convolution with symmetric padding (half the kernel unless given)."""
    p = pad or ((w.shape[2] - 1) // 2, (w.shape[3] - 1) // 2)
    return lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        ((p[0], p[0]), (p[1], p[1])),
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        feature_group_count=groups,
    )


def batch_norm(p: Mapping[str, Array], name: str, x: Array) -> Array:
    """Batch norm with stored statistics over axis 1."""

    def channel(v: Array) -> Array:
        return v[None, :, None, None]

    factor = p[f"{name}.scale"] * lax.rsqrt(p[f"{name}.var"] + 1e-5)
    return (x - channel(p[f"{name}.mean"])) * channel(factor) + channel(p[f"{name}.bias"])


def layer_norm(p: Mapping[str, Array], name: str, x: Array) -> Array:
    """Layer norm over the last axis."""
    d = x - jnp.mean(x, -1, keepdims=True)
    var = jnp.mean(d * d, -1, keepdims=True)
    return d * lax.rsqrt(var + 1e-5) * p[f"{name}.scale"] + p[f"{name}.bias"]


def dense(p: Mapping[str, Array], name: str, x: Array) -> Array:
    """Product with a matrix, and a bias."""
    return x @ p[f"{name}.w"] + p[f"{name}.b"]


def split_heads(x: Array, heads: int) -> Array:
    """(batch, length, size) as (batch, heads, length, size / heads)."""
    b, length, size = x.shape
    return x.reshape(b, length, heads, size // heads).transpose(0, 2, 1, 3)


def gelu(x: Array) -> Array:
    """Gaussian error linear unit by erf."""
    return x * 0.5 * (1.0 + lax.erf(x * 0.70710678))


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
    return e / jnp.sum(e, -1, keepdims=True)


def relu(x: Array) -> Array:
    """max(x, 0)"""
    return jnp.maximum(x, 0.0)


def relu6(x: Array) -> Array:
    """min(max(x, 0), 6)"""
    return jnp.minimum(jnp.maximum(x, 0.0), 6.0)


def max_pool(x: Array, size: int, stride: int, pad: int) -> Array:
    """NCHW max pooling."""
    window, strides = (1, 1, size, size), (1, 1, stride, stride)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, ((0, 0), (0, 0), (pad, pad), (pad, pad)))


def avg_pool(x: Array, size: int, stride: int, pad: int) -> Array:
    """NCHW average pooling, padding counted."""
    window, strides = (1, 1, size, size), (1, 1, stride, stride)
    total = lax.reduce_window(x, 0.0, lax.add, window, strides, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    return total * (1.0 / (size * size))
