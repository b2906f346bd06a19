"""A product whose results are quantised, one of them near the middle between two integers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from superopt.arrays.bundles import random_values
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph

_SHAPES = {"x": (9, 40), "w": (40, 33)}
_DRAWN = random_values({name: (shape, "float32") for name, shape in _SHAPES.items()}, 0)
_EXACT = float(_DRAWN["x"][0].astype(np.float64) @ _DRAWN["w"][:, 0].astype(np.float64))
SCALE = abs(_EXACT) / (np.floor(abs(_EXACT) / 0.1) + 0.5)  # about 0.1, so that the first result is such a middle
OTHERS = ({"scale": 1.01 * SCALE}, {"zero": 101}, {"zero": 99}, {"off": 0.05}, {"off": 0.5})


def quantised(scale: float = SCALE, zero: int = 100, off: float = 0.0) -> Graph:
    """Return the graph of the product with another scale, zero point or rounding."""

    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.clip(jnp.round((x @ w) / np.float32(scale) + np.float32(off)) + zero, 0, 255).astype(jnp.uint8)

    return import_function(f, tuple(jnp.zeros(shape) for shape in _SHAPES.values())).graph
