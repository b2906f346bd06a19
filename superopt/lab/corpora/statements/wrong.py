"""Pairs of JAX functions that differ: a mistake about the order of axes, a mask, or where a mean is taken."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from superopt.lab.corpora.statements.kinds import TensorFunction
from verifier.statements.statement import Statement, make_statement


def _normalised(x: Any) -> Any:
    """LayerNorm without its scale."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def _causal(x: Any) -> Any:
    places = lax.broadcasted_iota("int32", x.shape, 0), lax.broadcasted_iota("int32", x.shape, 1)
    return jnp.where(places[0] >= places[1], x, -jnp.inf)


def _blockwise(q: Any, k: Any, v: Any, rescaled: bool) -> Any:
    """Attention over two blocks of keys, merged with or without rescaling by the change of the maximum."""
    half = k.shape[0] // 2
    total, norm, most = 0.0, 0.0, None
    for part in (slice(0, half), slice(half, None)):
        s = q @ k[part].T
        now = jnp.max(s, axis=-1, keepdims=True)
        now = now if most is None else jnp.maximum(most, now)
        old = 1.0 if most is None or not rescaled else jnp.exp(most - now)
        p = jnp.exp(s - now)
        total, norm, most = total * old + p @ v[part], norm * old + jnp.sum(p, -1, keepdims=True), now
    return total / norm


def _of(name: str, left: TensorFunction, right: TensorFunction, *specs: Any) -> Statement:
    return make_statement(name, left, right, specs, {}, (), f"{__name__}:{name}")


STATEMENTS: tuple[Statement, ...] = (
    _of("product-commutes", lambda a, b: a @ b, lambda a, b: b @ a, "n n", "n n"),
    _of("transpose-unswapped", lambda a, b: (a @ b).T, lambda a, b: a.T @ b.T, "n n", "n n"),
    _of(
        "identity-transpose-folded",  # ONNX Runtime #32228
        lambda a, b: jnp.transpose(a, (0, 1)) @ b,
        lambda a, b: lax.dot_general(a, b, (((0,), (0,)), ((), ()))),
        "n n",
        "n m",
    ),
    _of("scale-of-rows", lambda a, b, s: (a @ b) * s, lambda a, b, s: a @ (b * s[:, None]), "m n", "n n", "n"),
    _of(
        "layernorm-scale-by-row",  # ONNX Runtime #25855
        lambda x, g: _normalised(x) * g[:, None],
        lambda x, g: _normalised(x) * g,
        "n n",
        "n",
    ),
    _of(
        "batchnorm-in-training",
        lambda x, w, m: x @ w - jnp.mean(x @ w, axis=0),
        lambda x, w, m: x @ w - m,
        "b c",
        "c o",
        "o",
    ),
    _of("causal-unmasked", lambda x: jax.nn.softmax(_causal(x)), jax.nn.softmax, "n n"),
    _of(
        "online-softmax-unscaled-blocks",
        lambda q, k, v: jax.nn.softmax(q @ k.T) @ v,
        lambda q, k, v: _blockwise(q, k, v, rescaled=False),
        "m d",
        "4 d",
        "4 e",
    ),
    _of(
        "halves-unequal",
        lambda a, b: jnp.concatenate([a, b])[: (a.shape[0] + b.shape[0]) // 2],
        lambda a, b: a,
        "n",
        "m",
    ),
    _of("reshape-as-transpose", lambda a: a.reshape(a.shape[1], a.shape[0]), lambda a: a.T, "m n"),
    _of("mean-over-other-axis", lambda a: jnp.mean(a, 0), lambda a: jnp.mean(a, 1), "n n"),
    _of("cumsum-reversed", lambda a: jnp.cumsum(a[::-1])[::-1], jnp.cumsum, "n"),
)
