"""Activation functions and the softmax family, written out of `jax.lax` primitives.

Softmax before opset 13 flattens to a matrix at `axis`; from 13 on it normalises along one axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.frontends.onnx.data import is_float
from superopt.frontends.onnx.eval import Call, op
from superopt.frontends.onnx.ops.elementwise import cast


def like(x: Any, value: float) -> np.ndarray:
    """A scalar of the array's dtype."""
    return np.asarray(value, x.dtype)


def softplus(x: Any) -> Any:
    """`log(1 + exp(x))` without overflow."""
    return jnp.maximum(x, like(x, 0)) + lax.log1p(lax.exp(-lax.abs(x)))


def _hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    line = x * like(x, alpha) + like(x, beta)
    return jnp.minimum(jnp.maximum(line, like(x, 0)), like(x, 1))


CURVES: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "Affine": (lambda x, alpha, beta: x * like(x, alpha) + like(x, beta), (1.0, 0.0)),
    "Elu": (lambda x, alpha: jnp.where(x > 0, x, like(x, alpha) * lax.expm1(jnp.minimum(x, like(x, 0)))), (1.0,)),
    "HardSigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "LeakyRelu": (lambda x, alpha: jnp.where(x >= 0, x, x * like(x, alpha)), (0.01,)),
    "Relu": (lambda x: jnp.maximum(x, like(x, 0)), ()),
    "ScaledTanh": (lambda x, alpha, beta: like(x, alpha) * lax.tanh(like(x, beta) * x), (1.0, 1.0)),
    "Sigmoid": (lax.logistic, ()),
    "Softplus": (softplus, ()),
    "Softsign": (lambda x: x / (like(x, 1) + lax.abs(x)), ()),
    "Tanh": (lax.tanh, ()),
    "ThresholdedRelu": (lambda x, alpha: jnp.where(x > like(x, alpha), x, like(x, 0)), (1.0,)),
}
"""Functions that are operators, and parts of others by name: of a value and of parameters with these defaults."""


@op("Relu", "ThresholdedRelu")
@op("Elu", "HardSigmoid", "LeakyRelu", "Sigmoid", "Softplus", "Softsign", wide=True)
def _curve(call: Call, x: Any) -> Any:
    compute, defaults = CURVES[call.node.op_type]
    return compute(x, *[call.attrs[name] for name in ("alpha", "beta")[: len(defaults)]])


@op("PRelu")
def _prelu(call: Call, x: Any, slope: Any) -> Any:
    return jnp.where(x >= like(x, 0), x, x * slope)


@op("Celu", wide=True)
def _celu(call: Call, x: Any) -> Any:
    alpha = like(x, call.attrs["alpha"])
    return jnp.maximum(x, like(x, 0)) + alpha * lax.expm1(jnp.minimum(x, like(x, 0)) / alpha)


@op("Selu", wide=True)
def _selu(call: Call, x: Any) -> Any:
    alpha, gamma = like(x, call.attrs["alpha"]), like(x, call.attrs["gamma"])
    return gamma * jnp.where(x > like(x, 0), x, alpha * lax.expm1(jnp.minimum(x, like(x, 0))))


@op("HardSwish", wide=True)
def _hard_swish(call: Call, x: Any) -> Any:
    gate = jnp.minimum(jnp.maximum(x * like(x, 1 / 6) + like(x, 0.5), like(x, 0)), like(x, 1))
    return x * gate


@op("Mish", wide=True)
def _mish(call: Call, x: Any) -> Any:
    return x * lax.tanh(softplus(x))


@op("Swish", wide=True)
def _swish(call: Call, x: Any) -> Any:
    alpha = call.attrs["alpha"]
    return x * lax.logistic(x if alpha == 1.0 else x * like(x, alpha))


@op("Gelu", wide=True)
def _gelu(call: Call, x: Any) -> Any:
    return gelu(x, call.attrs["approximate"] == "tanh")


def gelu(x: Any, by_tanh: bool = False) -> Any:
    """`x` times the probability of a smaller standard normal number, or that by an approximation."""
    if by_tanh:
        inner = like(x, math.sqrt(2 / math.pi)) * (x + like(x, 0.044715) * lax.integer_pow(x, 3))
        return like(x, 0.5) * x * (like(x, 1) + lax.tanh(inner))
    return like(x, 0.5) * x * (like(x, 1) + lax.erf(x * like(x, math.sqrt(0.5))))


@op("Shrink", wide=True)
def _shrink(call: Call, x: Any) -> Any:
    # the attributes are fractions also where the values are integers
    wide = x if is_float(np.dtype(x.dtype)) else x.astype(np.float64)
    lambd, bias = like(wide, call.attrs["lambd"]), like(wide, call.attrs["bias"])
    small, large = wide < -lambd, wide > lambd
    if not is_float(np.dtype(x.dtype)) and float(call.attrs["bias"]).is_integer():  # exact, as no double is
        whole = np.asarray(int(call.attrs["bias"]), x.dtype)
        return jnp.where(small, x + whole, jnp.where(large, x - whole, like(x, 0)))
    result = jnp.where(small, wide + bias, jnp.where(large, wide - bias, like(wide, 0)))
    return cast(jnp, result, np.dtype(x.dtype))


def _softmax_axes(call: Call, x: Any) -> tuple[Any, tuple[int, ...]]:
    axis = call.attrs["axis"]
    if call.since >= 13:
        return x, (axis % x.ndim,)
    axis = axis % x.ndim if axis < 0 else axis
    return x, tuple(a for a in range(axis, x.ndim))


def softmax(x: Any, axes: tuple[int, ...]) -> Any:
    """`exp(x - max) / sum(exp(x - max))` over the axes."""
    shifted = lax.exp(x - lax.stop_gradient(jnp.max(x, axes, keepdims=True)))
    return shifted / jnp.sum(shifted, axes, keepdims=True)


@op("Softmax", wide=True)
def _softmax(call: Call, x: Any) -> Any:
    return softmax(*_softmax_axes(call, x))


@op("LogSoftmax", wide=True)
def _log_softmax(call: Call, x: Any) -> Any:
    x, axes = _softmax_axes(call, x)
    shifted = x - lax.stop_gradient(jnp.max(x, axes, keepdims=True))
    return shifted - lax.log(jnp.sum(lax.exp(shifted), axes, keepdims=True))


@op("Hardmax")
def _hardmax(call: Call, x: Any) -> Any:
    x, axes = _softmax_axes(call, x)
    kept = [d for i, d in enumerate(x.shape) if i not in axes]
    flat = x.reshape(*kept, -1) if call.since < 13 else jnp.moveaxis(x, axes[0], -1)
    chosen = jax.nn.one_hot(jnp.argmax(flat, -1), flat.shape[-1], dtype=x.dtype)
    return chosen.reshape(x.shape) if call.since < 13 else jnp.moveaxis(chosen, -1, axes[0])
