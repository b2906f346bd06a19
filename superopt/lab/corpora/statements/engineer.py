"""Statements that a compiler engineer would ask about: simplifications, layers written in two ways, attention, losses.

simplifier    Algebra, reshapes, slices, pads, concatenations, broadcasts, reductions, gathers.
layers        Normalisations, activations, projections, convolutions as products, recurrent cells.
attention     Heads merged and apart, grouped keys, rotary positions, scales, biases, linear attention, a cache.
losses        Cross entropies, distances, gradients by hand against `jax.grad`.
steps         Optimisers and quantisation in floats.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from superopt.lab.corpora.statements.kinds import TensorFunction
from verifier.statements.statement import Statement, make_statement

EngineerCase = tuple[TensorFunction, TensorFunction, str]
"""Two functions, and the shapes of their arguments separated by semicolons; constraints behind a bar."""


def softmax(s: Any, axis: int = -1) -> Any:
    e = jnp.exp(s - jnp.max(s, axis, keepdims=True))
    return e / jnp.sum(e, axis, keepdims=True)


def _moments(x: Any, axis: int = -1) -> tuple[Any, Any]:
    mean = jnp.mean(x, axis, keepdims=True)
    return mean, jnp.mean((x - mean) ** 2, axis, keepdims=True)


def _layer_norm(x: Any, g: Any, b: Any) -> Any:
    mean, variance = _moments(x)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * g + b


def _rms_norm(x: Any, g: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g


def _heads(x: Any, heads: int) -> Any:
    """[t, heads * d] -> [heads, t, d]."""
    return jnp.transpose(x.reshape(x.shape[0], heads, x.shape[1] // heads), (1, 0, 2))


def _attend(q: Any, k: Any, v: Any, scale: float = 0.125) -> Any:
    return softmax(scale * (q @ jnp.swapaxes(k, -1, -2))) @ v


def _rotate(x: Any, c: Any, s: Any) -> Any:
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1)


def _two_blocks(q: Any, k: Any, v: Any, k2: Any, v2: Any) -> Any:
    """Attention over two blocks of keys, merged by their maxima and sums."""
    s, s2 = q @ k.T, q @ k2.T
    m, m2 = jnp.max(s, -1, keepdims=True), jnp.max(s2, -1, keepdims=True)
    m3 = jnp.maximum(m, m2)
    p, p2 = jnp.exp(s - m), jnp.exp(s2 - m2)
    a, a2 = jnp.exp(m - m3), jnp.exp(m2 - m3)
    return (a * (p @ v) + a2 * (p2 @ v2)) / (a * jnp.sum(p, -1, keepdims=True) + a2 * jnp.sum(p2, -1, keepdims=True))


_SIMPLIFIER: dict[str, EngineerCase] = {
    "transpose-of-product": (lambda a, b: (a @ b).T, lambda a, b: b.T @ a.T, "m k;k n"),
    "reshape-of-reshape": (
        lambda x: x.reshape(-1).reshape(x.shape[1], x.shape[0]),
        lambda x: x.reshape(x.shape[1], x.shape[0]),
        "m n|m >= 1|n >= 1",
    ),
    "transpose-of-transpose": (lambda x: jnp.transpose(jnp.transpose(x, (1, 2, 0)), (2, 0, 1)), lambda x: x, "a b c"),
    "slice-of-pad": (lambda x: jnp.pad(x, ((2, 3), (0, 1)))[2:-3, :-1], lambda x: x, "m n"),
    "pad-of-pad": (lambda x: jnp.pad(jnp.pad(x, (1, 2)), (3, 4)), lambda x: jnp.pad(x, (4, 6)), "n"),
    "slice-of-concat": (lambda a, b: jnp.concatenate([a, b])[a.shape[0] :], lambda a, b: b, "m k;n k"),
    "concat-of-slices": (lambda x: jnp.concatenate([x[:3], x[3:]]), lambda x: x, "n k|n >= 3"),
    "sum-of-concat": (
        lambda a, b: jnp.sum(jnp.concatenate([a, b]), 0),
        lambda a, b: jnp.sum(a, 0) + jnp.sum(b, 0),
        "m k;n k",
    ),
    "max-of-concat": (
        lambda a, b: jnp.max(jnp.concatenate([a, b]), 0),
        lambda a, b: jnp.maximum(jnp.max(a, 0), jnp.max(b, 0)),
        "m k;n k|m >= 1|n >= 1",
    ),
    "sum-of-broadcast": (lambda x: jnp.sum(jnp.broadcast_to(x[:, None], (x.shape[0], 7)), 1), lambda x: 7 * x, "n"),
    "sum-of-transpose": (lambda x: jnp.sum(x.T, 0), lambda x: jnp.sum(x, 1), "m n"),
    "sum-of-reshape": (lambda x: jnp.sum(x.reshape(-1)), lambda x: jnp.sum(x), "m n"),
    "reverse-twice": (lambda x: x[::-1][::-1], lambda x: x, "n"),
    "sum-of-reverse": (lambda x: jnp.sum(x[::-1], 0), lambda x: jnp.sum(x, 0), "m n"),
    "broadcast-of-broadcast": (
        lambda x: jnp.broadcast_to(x[None], (3, x.shape[0]))[None] + 0 * jnp.zeros((5, 1, 1)),
        lambda x: jnp.broadcast_to(x, (5, 3, x.shape[0])),
        "n",
    ),
    "product-with-broadcast": (
        lambda a, b: a @ jnp.broadcast_to(b[:, None], (b.shape[0], 4)),
        lambda a, b: jnp.broadcast_to((a @ b)[:, None], (a.shape[0], 4)),
        "m k;k",
    ),
    "scalar-through-product": (lambda a, b, s: (s * a) @ b, lambda a, b, s: s * (a @ b), "m k;k n;"),
    "diagonal-through-product": (lambda a, b, d: (a * d) @ b, lambda a, b, d: a @ (d[:, None] * b), "m k;k n;k"),
    "product-of-concat": (
        lambda a, b, w: jnp.concatenate([a, b], 1) @ w,
        lambda a, b, w: a @ w[: a.shape[1]] + b @ w[a.shape[1] :],
        "m j;m k;j+k n",
    ),
    "two-products-one": (
        lambda x, u, v: (x @ u, x @ v),
        lambda x, u, v: (
            (x @ jnp.concatenate([u, v], 1))[:, : u.shape[1]],
            (x @ jnp.concatenate([u, v], 1))[:, u.shape[1] :],
        ),
        "m k;k n;k p",
    ),
    "slice-of-product": (lambda a, b: (a @ b)[:, 2:], lambda a, b: a @ b[:, 2:], "m k;k n|n >= 2"),
    "select-same": (lambda c, x: jnp.where(c, x, x), lambda c, x: x, "bool[n];n"),
    "select-not": (lambda c, x, y: jnp.where(~c, x, y), lambda c, x, y: jnp.where(c, y, x), "bool[n];n;n"),
    "select-of-select": (
        lambda c, x, y: jnp.where(c, jnp.where(c, x, y), y),
        lambda c, x, y: jnp.where(c, x, y),
        "bool[n];n;n",
    ),
    "subtract-as-add": (lambda x, y: x - y, lambda x, y: x + -y, "n;n"),
    "divide-by-constant": (lambda x: x / 4.0, lambda x: x * 0.25, "n"),
    "divide-of-divide": (lambda x, y, z: (x / y) / z, lambda x, y, z: x / (y * z), "n;n;n"),
    "exp-of-sum": (lambda x, y: jnp.exp(x) * jnp.exp(y), lambda x, y: jnp.exp(x + y), "n;n"),
    "power-as-products": (lambda x: x**4, lambda x: (x * x) * (x * x), "n"),
    "square-root-squared": (lambda x: lax.rsqrt(x) * lax.rsqrt(x), lambda x: 1 / x, "n"),
    "log-of-root": (lambda x: jnp.log(jnp.sqrt(x)), lambda x: 0.5 * jnp.log(x), "n"),
    "clamp-as-max-min": (lambda x: jnp.clip(x, -1.0, 1.0), lambda x: jnp.minimum(jnp.maximum(x, -1.0), 1.0), "n"),
    "abs-squared": (lambda x: jnp.abs(x) * jnp.abs(x), lambda x: x * x, "n"),
    "take-of-take": (
        lambda x, i, j: jnp.take(jnp.take(x, i, mode="clip"), j, mode="clip"),
        lambda x, i, j: jnp.take(x, jnp.take(i, j, mode="clip"), mode="clip"),
        "n;int32[m];int32[p]|m >= 1",
    ),
    "take-of-rows": (
        lambda x, w, i: jnp.take(x, i, axis=0, mode="clip") @ w,
        lambda x, w, i: jnp.take(x @ w, i, axis=0, mode="clip"),
        "m k;k n;int32[p]",
    ),
    "dynamic-slice-of-slice": (lambda x: lax.dynamic_slice(x, (2,), (4,))[1:3], lambda x: x[3:5], "n|n >= 6"),
    "product-over-two-parts": (lambda x: jnp.prod(x, 0), lambda x: x[0] * x[1] * x[2], "3 n"),
    "cumulative-sum-last": (lambda x: jnp.cumsum(x, 0)[-1], lambda x: jnp.sum(x, 0), "n k|n >= 1"),
}
_LAYERS: dict[str, EngineerCase] = {
    "layer-norm-by-moments": (
        _layer_norm,
        lambda x, g, b: (
            (x - jnp.mean(x, -1, keepdims=True))
            * g
            * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) - jnp.mean(x, -1, keepdims=True) ** 2 + 1e-5)
            + b
        ),
        "m n;n;n|n >= 1",
    ),
    "layer-norm-of-shifted": (
        lambda x, g, b, s: _layer_norm(x + s, g, b),
        lambda x, g, b, s: _layer_norm(x, g, b),
        "m n;n;n;|n >= 1",
    ),
    "rms-norm-scale-folded": (
        lambda x, g, w: _rms_norm(x, g) @ w,
        lambda x, g, w: _rms_norm(x, jnp.ones_like(g)) @ (g[:, None] * w),
        "m k;k;k n",
    ),
    "norm-scale-into-product": (
        lambda x, g, b, w: _layer_norm(x, g, b) @ w,
        lambda x, g, b, w: _layer_norm(x, jnp.ones_like(g), jnp.zeros_like(b)) @ (g[:, None] * w) + b @ w,
        "m k;k;k;k n|k >= 1",
    ),
    "batch-norm-folded": (
        lambda x, w, m, v, g, b: (x @ w - m) * lax.rsqrt(v + 1e-5) * g + b,
        lambda x, w, m, v, g, b: x @ (w * (lax.rsqrt(v + 1e-5) * g)) + (b - m * lax.rsqrt(v + 1e-5) * g),
        "m k;k n;n;n;n;n",
    ),
    "group-norm-by-parts": (
        lambda x: (
            lambda y: ((y - jnp.mean(y, -1, keepdims=True)) * lax.rsqrt(_moments(y)[1] + 1e-5)).reshape(x.shape)
        )(x.reshape(x.shape[0], 4, -1)),
        lambda x: jnp.concatenate(
            [(p - _moments(p)[0]) * lax.rsqrt(_moments(p)[1] + 1e-5) for p in jnp.split(x, 4, 1)], 1
        ),
        "m 4*n|n >= 1|m >= 1",
    ),
    "linear-of-linear": (
        lambda x, a, b, c, d: (x @ a + b) @ c + d,
        lambda x, a, b, c, d: x @ (a @ c) + (b @ c + d),
        "m k;k n;n;n p;p",
    ),
    "residual-into-product": (lambda x, w: x + x @ w, lambda x, w: x @ (w + jnp.eye(w.shape[0])), "m k;k k"),
    "swish": (lambda x: x * jax.nn.sigmoid(x), jax.nn.silu, "n"),
    "sigmoid-by-tanh": (jax.nn.sigmoid, lambda x: 0.5 * (1 + jnp.tanh(0.5 * x)), "n"),
    "softplus-of-sigmoid": (lambda x: -jnp.log(jax.nn.sigmoid(-x)), lambda x: jnp.log1p(jnp.exp(x)), "n"),
    "gelu-approximations-agree": (
        lambda x: jax.nn.gelu(x, approximate=True),
        lambda x: x * jax.nn.sigmoid(1.5957691216057308 * (x + 0.044715 * x**3)),
        "n",
    ),
    "relu-by-abs": (jax.nn.relu, lambda x: 0.5 * (x + jnp.abs(x)), "n"),
    "leaky-relu-by-relu": (
        lambda x: jnp.where(x >= 0, x, 0.1 * x),
        lambda x: jnp.maximum(x, 0) + 0.1 * jnp.minimum(x, 0),
        "n",
    ),
    "gated-unit-merged": (
        lambda x, u, v: jax.nn.silu(x @ u) * (x @ v),
        lambda x, u, v: (lambda h: jax.nn.silu(h[:, : u.shape[1]]) * h[:, u.shape[1] :])(
            x @ jnp.concatenate([u, v], 1)
        ),
        "m k;k n;k n",
    ),
    "mixture-of-two": (
        lambda x, u, v, g: g * (x @ u) + (1 - g) * (x @ v),
        lambda x, u, v, g: x @ v + g * (x @ (u - v)),
        "m k;k n;k n;",
    ),
    "pointwise-convolution": (
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")),
        lambda x, w: x @ w[0],
        "b n c;1 c o",
    ),
    "convolution-as-shifts": (
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")),
        lambda x, w: x[:, :-2] @ w[0] + x[:, 1:-1] @ w[1] + x[:, 2:] @ w[2],
        "b n c;3 c o|n >= 2",
    ),
    "average-of-windows": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (2,), "VALID"),
        lambda x: jnp.sum(x.reshape(-1, 2), 1),
        "2*n",
    ),
    "max-pool-apart": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID"),
        lambda x: jnp.maximum(jnp.maximum(x[:-1, :-1], x[1:, :-1]), jnp.maximum(x[:-1, 1:], x[1:, 1:])),
        "m n|m >= 1|n >= 1",
    ),
    "lstm-gates-merged": (
        lambda x, h, a, b, u, v: jax.nn.sigmoid(x @ a + h @ b) * jnp.tanh(x @ u + h @ v),
        lambda x, h, a, b, u, v: (lambda z: jax.nn.sigmoid(z[:, : a.shape[1]]) * jnp.tanh(z[:, a.shape[1] :]))(
            jnp.concatenate([x, h], 1) @ jnp.concatenate([jnp.concatenate([a, u], 1), jnp.concatenate([b, v], 1)])
        ),
        "m k;m n;k n;n n;k n;n n",
    ),
    "gru-mixing": (lambda z, h, c: (1 - z) * h + z * c, lambda z, h, c: h + z * (c - h), "n;n;n"),
    "embedding-as-product": (
        lambda e, i: jnp.take(e, i, axis=0, mode="clip"),
        lambda e, i: jax.nn.one_hot(jnp.clip(i, 0, e.shape[0] - 1), e.shape[0]) @ e,
        "v d;int32[n]|v >= 1",
    ),
    "dropout-scale-folded": (lambda x, m, w: (x * m / 0.9) @ w, lambda x, m, w: (x * m) @ (w / 0.9), "m k;m k;k n"),
    "mean-pool-through-linear": (lambda x, w: jnp.mean(x @ w, 0), lambda x, w: jnp.mean(x, 0) @ w, "m k;k n|m >= 1"),
}
_ATTENTION: dict[str, EngineerCase] = {
    "softmax-shift": (lambda s, c: softmax(s + c), lambda s, c: softmax(s), "m n;m 1"),
    "softmax-without-maximum": (softmax, lambda s: jnp.exp(s) / jnp.sum(jnp.exp(s), -1, keepdims=True), "m n|n >= 1"),
    "softmax-over-other-axis": (lambda s: softmax(s.T, 0).T, softmax, "m n|n >= 1"),
    "log-softmax": (lambda s: jnp.log(softmax(s)), lambda s: s - jax.nn.logsumexp(s, -1, keepdims=True), "m n|n >= 1"),
    "scale-into-query": (
        lambda q, k, v: softmax(0.125 * (q @ k.T)) @ v,
        lambda q, k, v: softmax((0.125 * q) @ k.T) @ v,
        "m d;n d;n e|n >= 1",
    ),
    "divide-after-product": (
        lambda q, k, v: softmax(q @ k.T) @ v,
        lambda q, k, v: (lambda e: (e @ v) / jnp.sum(e, -1, keepdims=True))(
            jnp.exp(q @ k.T - jnp.max(q @ k.T, -1, keepdims=True))
        ),
        "m d;n d;n e|n >= 1",
    ),
    "value-projection-last": (
        lambda q, k, v, w: _attend(q, k, v @ w),
        lambda q, k, v, w: _attend(q, k, v) @ w,
        "m d;n d;n e;e f|n >= 1",
    ),
    "query-key-folded": (
        lambda x, y, a, b: (x @ a) @ (y @ b).T,
        lambda x, y, a, b: (x @ (a @ b.T)) @ y.T,
        "m c;n c;c d;c d",
    ),
    "key-bias-cancels": (
        lambda q, k, v, b: softmax(q @ (k + b).T) @ v,
        lambda q, k, v, b: softmax(q @ k.T) @ v,
        "m d;n d;n e;d|n >= 1",
    ),
    "heads-merged": (
        lambda q, k, v: jnp.transpose(_attend(_heads(q, 2), _heads(k, 2), _heads(v, 2)), (1, 0, 2)).reshape(
            q.shape[0], -1
        ),
        lambda q, k, v: jnp.concatenate(
            [
                _attend(a, b, c)
                for a, b, c in zip(jnp.split(q, 2, 1), jnp.split(k, 2, 1), jnp.split(v, 2, 1), strict=True)
            ],
            1,
        ),
        "m 2*d;n 2*d;n 2*d|n >= 1|m >= 1|d >= 1",
    ),
    "output-by-heads": (
        lambda a, b, w: jnp.concatenate([a, b], 1) @ w,
        lambda a, b, w: a @ w[: a.shape[1]] + b @ w[a.shape[1] :],
        "m d;m d;2*d e",
    ),
    "grouped-keys": (
        lambda q, k, v: _attend(q, jnp.broadcast_to(k[None], (4, *k.shape)), jnp.broadcast_to(v[None], (4, *v.shape))),
        lambda q, k, v: _attend(q, k, v),
        "4 m d;n d;n e|n >= 1",
    ),
    "grouped-queries-together": (
        lambda q, k, v: _attend(q, k[None], v[None]),
        lambda q, k, v: _attend(q.reshape(-1, q.shape[2]), k, v).reshape(4, -1, v.shape[1]),
        "4 m d;n d;n e|n >= 1|m >= 1|d >= 1|e >= 1",
    ),
    "two-blocks-of-keys": (
        lambda q, k, v, k2, v2: softmax(q @ jnp.concatenate([k, k2]).T) @ jnp.concatenate([v, v2]),
        _two_blocks,
        "m d;n d;n e;p d;p e|n >= 1|p >= 1",
    ),
    "cache-of-keys": (
        lambda x, y, w: jnp.concatenate([x, y]) @ w,
        lambda x, y, w: jnp.concatenate([x @ w, y @ w]),
        "m d;1 d;d e",
    ),
    "linear-attention": (lambda q, k, v: (q @ k.T) @ v, lambda q, k, v: q @ (k.T @ v), "m d;n d;n e"),
    "linear-attention-normalised": (
        lambda q, k, v: ((q @ k.T) @ v) / jnp.sum(q @ k.T, -1, keepdims=True),
        lambda q, k, v: (q @ (k.T @ v)) / (q @ jnp.sum(k, 0))[:, None],
        "m d;n d;n e",
    ),
    "causal-linear-attention": (
        lambda q, k, v: jnp.tril(q @ k.T) @ v,
        lambda q, k, v: jnp.einsum("nd,nde->ne", q, jnp.cumsum(jnp.einsum("nd,ne->nde", k, v), 0)),
        "n d;n d;n e",
    ),
    "rotary-is-linear": (
        lambda x, y, c, s: _rotate(x + y, c, s),
        lambda x, y, c, s: _rotate(x, c, s) + _rotate(y, c, s),
        "m 2*d;m 2*d;m d;m d",
    ),
    "rotary-by-complex-parts": (
        lambda x, c, s: _rotate(x, c, s),
        lambda x, c, s: (
            x * jnp.concatenate([c, c], -1)
            + jnp.concatenate([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], -1) * jnp.concatenate([s, s], -1)
        ),
        "m 2*d;m d;m d",
    ),
    "bias-by-position": (
        lambda q, k, b: q @ k.T + b[:, None] * jnp.ones((1, k.shape[0])),
        lambda q, k, b: q @ k.T + b[:, None],
        "m d;n d;m",
    ),
    "alibi-shift": (
        lambda s: softmax(
            s + jnp.arange(s.shape[1], dtype="float32")[None] - jnp.arange(s.shape[0], dtype="float32")[:, None]
        ),
        lambda s: softmax(s + jnp.arange(s.shape[1], dtype="float32")[None]),
        "m n|n >= 1",
    ),
    "temperature": (lambda s, t: softmax(s / t), lambda s, t: softmax(s * (1 / t)), "m n;|n >= 1"),
    "soft-cap": (lambda s: 30 * jnp.tanh(s / 30), lambda s: 30 * (2 * jax.nn.sigmoid(s / 15) - 1), "m n"),
    "query-norm-scale": (
        lambda q, k: (q * lax.rsqrt(jnp.sum(q * q, -1, keepdims=True))) @ k.T,
        lambda q, k: (q @ k.T) * lax.rsqrt(jnp.sum(q * q, -1, keepdims=True)),
        "m d;n d",
    ),
}
_LOSSES: dict[str, EngineerCase] = {
    "cross-entropy": (
        lambda s, y: -jnp.sum(y * jnp.log(softmax(s)), -1),
        lambda s, y: jnp.sum(y * (jax.nn.logsumexp(s, -1, keepdims=True) - s), -1),
        "m n;m n|n >= 1",
    ),
    "binary-cross-entropy": (
        lambda x, y: -(y * jnp.log(jax.nn.sigmoid(x)) + (1 - y) * jnp.log(1 - jax.nn.sigmoid(x))),
        lambda x, y: jnp.log1p(jnp.exp(x)) - x * y,
        "n;n",
    ),
    "squared-distances": (
        lambda x, y: jnp.sum((x[:, None] - y[None]) ** 2, -1),
        lambda x, y: jnp.sum(x * x, 1)[:, None] + jnp.sum(y * y, 1)[None] - 2 * x @ y.T,
        "m d;n d",
    ),
    "variance-by-moments": (
        lambda x: jnp.mean((x - jnp.mean(x)) ** 2),
        lambda x: jnp.mean(x * x) - jnp.mean(x) ** 2,
        "n|n >= 1",
    ),
    "gradient-of-square": (jax.grad(lambda x: jnp.sum(x * x)), lambda x: 2 * x, "n"),
    "gradient-of-linear": (
        lambda x, w: jax.grad(lambda a: jnp.sum(a @ w))(x),
        lambda x, w: jnp.broadcast_to(jnp.sum(w, 1), x.shape),
        "m k;k n",
    ),
    "gradient-of-distance": (
        lambda x, y: jax.grad(lambda a: jnp.sum((a - y) ** 2))(x),
        lambda x, y: 2 * (x - y),
        "n;n",
    ),
    "gradient-of-sigmoid": (
        jax.grad(lambda x: jnp.sum(jax.nn.sigmoid(x))),
        lambda x: jax.nn.sigmoid(x) * (1 - jax.nn.sigmoid(x)),
        "n",
    ),
    "gradient-of-logsumexp": (
        jax.grad(lambda s: jnp.sum(jnp.log(jnp.sum(jnp.exp(s), -1)))),
        lambda s: jnp.exp(s) / jnp.sum(jnp.exp(s), -1, keepdims=True),
        "m n|n >= 1",
    ),
    "gradient-of-cross-entropy": (
        lambda s, y: jax.grad(lambda a: jnp.sum(jax.nn.logsumexp(a, -1) - jnp.sum(a * y, -1)))(s),
        lambda s, y: softmax(s) - y,
        "m n;m n|n >= 1",
    ),
}
_STEPS: dict[str, EngineerCase] = {
    "momentum-unrolled": (lambda m, g, h: 0.9 * (0.9 * m + g) + h, lambda m, g, h: 0.81 * m + (0.9 * g + h), "n;n;n"),
    "adam-bias-folded": (
        lambda w, m, v: w - 0.1 * (m / 0.5) / (jnp.sqrt(v / 0.25) + 1e-8),
        lambda w, m, v: w - 0.2 * m / (2 * jnp.sqrt(v) + 1e-8),
        "n;n;n",
    ),
    "exponential-average": (lambda a, x: 0.99 * a + 0.01 * x, lambda a, x: a + 0.01 * (x - a), "n;n"),
    "weight-decay": (lambda w, g: w - 0.1 * (g + 0.01 * w), lambda w, g: 0.999 * w - 0.1 * g, "n;n"),
    "low-rank-update": (lambda x, w, a, b: x @ (w + a @ b), lambda x, w, a, b: x @ w + (x @ a) @ b, "m k;k n;k r;r n"),
    "dequantise-after-product": (
        lambda x, q, s: x @ (q.astype("float32") * s),
        lambda x, q, s: (x @ q.astype("float32")) * s,
        "m k;int8[k,n];n",
    ),
    "dequantise-zero-point": (
        lambda x, q, z: x @ (q.astype("float32") - z),
        lambda x, q, z: x @ q.astype("float32") - jnp.sum(x, 1, keepdims=True) * z,
        "m k;int8[k,n];n",
    ),
    "row-scales": (
        lambda a, b, s, t: (a * s[:, None]) @ (b * t),
        lambda a, b, s, t: (a @ b) * (s[:, None] * t),
        "m k;k n;m;n",
    ),
    "mean-of-squares-by-norm": (lambda x: jnp.sqrt(jnp.sum(x * x)) ** 2, lambda x: jnp.sum(x * x), "n"),
    "outer-products": (lambda a, b: jnp.sum(a[:, :, None] * b[:, None, :], 0), lambda a, b: a.T @ b, "n d;n e"),
}


def _made(name: str, case: EngineerCase) -> Statement:
    left, right, text = case
    shapes, *constraints = text.split("|")
    return make_statement(name, left, right, tuple(shapes.split(";")), {}, tuple(constraints), f"{__name__}:{name}")


STATEMENTS = tuple(
    _made(name, case) for table in (_SIMPLIFIER, _LAYERS, _ATTENTION, _LOSSES, _STEPS) for name, case in table.items()
)
