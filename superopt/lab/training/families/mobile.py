"""Networks for small devices: separable convolutions, squeeze and excitation, patches and mixing by perceptrons."""

from __future__ import annotations

import random
from typing import Any

import jax.numpy as jnp

from superopt.lab.training.families import layers as L
from superopt.lab.training.program import Described, Maker, WeightSource, spec


def separable(rng: random.Random) -> Described:
    """Depthwise and pointwise convolutions with batch norm, no residual."""
    batch = rng.choice((1, 1, 1, 4))
    widths = [rng.choice((17, 24, 52, 88, 120, 240)) for _ in range(3)]
    strides = [rng.choice((1, 1, 2)) for _ in widths]
    size = rng.choice((3, 3, 5))
    resolution = rng.choice((26, 35, 50, 96, 130))

    def fn(w: WeightSource, x: Any) -> Any:
        x = L.relu(L.scaled(w, L.conv(w, x, widths[0], 3, 2)))
        for width, stride in zip(widths, strides, strict=True):
            x = L.relu(L.scaled(w, L.conv(w, x, x.shape[1], size, stride, x.shape[1])))
            x = jnp.minimum(L.relu(L.scaled(w, L.conv(w, x, width, 1))), 6.0)
        return L.dense(w, x.mean((2, 3)), 40)

    return Described(fn, (spec(batch, 3, resolution, resolution),))


def excited(rng: random.Random) -> Described:
    """Full convolutions to a wider map, squeeze and excitation, and back."""
    batch = rng.choice((1, 1, 2))
    width = rng.choice((20, 36, 50, 72))
    wide = rng.choice((60, 84, 130, 176, 300))
    squeezed = rng.choice((5, 8, 12))
    resolution = rng.choice((10, 15, 22, 29, 46))
    size = rng.choice((3, 3, 5))
    hard = rng.random() < 0.5

    def gate(x: Any) -> Any:
        return jnp.clip(x / 6.0 + 0.5, 0.0, 1.0) if hard else L.sigmoid(x)

    def fn(w: WeightSource, x: Any) -> Any:
        y = L.swish(L.scaled(w, L.conv(w, x, wide, size)))
        s = y.mean((2, 3), keepdims=True)
        s = L.swish(L.conv(w, s, squeezed, 1, bias=True))
        y = y * gate(L.conv(w, s, wide, 1, bias=True))
        x = x + L.scaled(w, L.conv(w, y, width, 1))
        s = jnp.maximum(L.dense(w, x.mean((2, 3)), squeezed), 0.0)
        return x * gate(L.dense(w, s, width))[:, :, None, None]

    return Described(fn, (spec(batch, width, resolution, resolution),))


def mixer(rng: random.Random) -> Described:
    """Perceptrons over rows and over columns in turn."""
    batch = rng.choice((1, 1, 4))
    rows, width = rng.choice((25, 49, 81, 144, 225)), rng.choice((60, 96, 130, 192, 400))
    inner_rows, inner = rng.choice((32, 50, 128)), rng.choice((144, 400, 1000))

    def fn(w: WeightSource, x: Any) -> Any:
        y = jnp.swapaxes(L.layer_norm(w, x), -1, -2)
        y = L.dense(w, L.gelu(L.dense(w, y, inner_rows)), rows)
        x = x + jnp.swapaxes(y, -1, -2)
        x = x + L.dense(w, L.gelu(L.dense(w, L.layer_norm(w, x), inner)), width)
        return L.dense(w, L.layer_norm(w, x).mean(-2), 33)

    return Described(fn, (spec(batch, rows, width),))


FAMILIES: dict[str, Maker] = {"separable-conv": separable, "squeeze-excite": excited, "mixer": mixer}
