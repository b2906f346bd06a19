"""Optimiser steps of the preview training operators: each updates any number of tensors at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.frontends.onnx.eval import Call, op
from superopt.frontends.onnx.ops.activations import like

_DOMAIN = "ai.onnx.preview.training"


def _each(values: Sequence[Any], kinds: int, step: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
    """Apply the step to the i-th tensor of every kind; results grouped by kind again."""
    count = len(values) // kinds
    results = [step(*values[i::count]) for i in range(count)]
    return tuple(r[k] for k in range(kinds - 1) for r in results)


@op("Adagrad", domain=_DOMAIN, wide=True)
def _adagrad(call: Call, rate: Any, time: Any, *values: Any) -> Any:
    attrs = call.attrs
    rate = rate / (1 + time.astype(rate.dtype) * like(rate, attrs["decay_factor"]))

    def step(x: Any, g: Any, h: Any) -> tuple[Any, ...]:
        g = g + x * like(x, attrs["norm_coefficient"])
        h = h + g * g
        return x - rate * g / (jnp.sqrt(h) + like(x, attrs["epsilon"])), h

    return _each(values, 3, step)


@op("Momentum", domain=_DOMAIN, wide=True)
def _momentum(call: Call, rate: Any, time: Any, *values: Any) -> Any:
    attrs = call.attrs
    beta = jnp.where(time > 0, np.float32(attrs["beta"]), np.float32(1))
    alpha = attrs["alpha"]

    def step(x: Any, g: Any, v: Any) -> tuple[Any, ...]:
        g = g + x * like(x, attrs["norm_coefficient"])
        v = v * like(x, alpha) + g * beta.astype(x.dtype)
        return x - rate * (g + v * like(x, alpha) if attrs["mode"] == "nesterov" else v), v

    return _each(values, 3, step)


@op("Adam", domain=_DOMAIN, wide=True)
def _adam(call: Call, rate: Any, time: Any, *values: Any) -> Any:
    attrs = call.attrs
    alpha, beta = attrs["alpha"], attrs["beta"]
    elapsed = time.astype(rate.dtype)
    correction = jnp.sqrt(1 - lax.pow(like(rate, beta), elapsed)) / (1 - lax.pow(like(rate, alpha), elapsed))
    rate = jnp.where(time > 0, rate * correction, rate)

    def step(x: Any, g: Any, v: Any, h: Any) -> tuple[Any, ...]:
        g = g + x * like(x, attrs["norm_coefficient"])
        v = v * like(x, alpha) + g * like(x, 1 - alpha)
        h = h * like(x, beta) + g * g * like(x, 1 - beta)
        new = x - rate * v / (jnp.sqrt(h) + like(x, attrs["epsilon"]))
        return new * like(x, 1 - attrs["norm_coefficient_post"]), v, h

    return _each(values, 4, step)
