"""Snippets of layers and norms: affine maps in a row, folded scales, pooling, conditioning, embeddings, mixtures."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("a scale before a product is part of the weights", frozen=(1, 2, 3, 4))
def norm_then_linear(draw: SnippetDraw) -> TwoForms:
    """A layer norm with gain and bias, and an affine layer."""

    def normal(x: Array) -> Array:
        x = x - jnp.mean(x, -1, keepdims=True)
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)

    return TwoForms(
        lambda x, g, c, w, b: (normal(x) * g + c) @ w + b,
        lambda x, g, c, w, b: normal(x) @ (g[:, None] * w) + (c @ w + b),
        (draw(1024, 256), draw.uniform(0.5, 1.5, 256), draw(256), draw.weight(256, 64), draw(64)),
    )


@snippet("affine maps compose", frozen=(1, 2, 3))
def linear_bottleneck(draw: SnippetDraw) -> TwoForms:
    """Three linear layers without activations, wide in the middle."""
    return TwoForms(
        lambda x, a, b, c: x @ a @ b @ c,
        lambda x, a, b, c: x @ (a @ b @ c),
        (draw(256, 128), draw.weight(128, 512), draw.weight(512, 512), draw.weight(512, 128)),
    )


@snippet("distributivity: x W + (x A) B = x (W + A B) (Hu et al. 2022)", frozen=(1, 2, 3))
def adapted_linear(draw: SnippetDraw) -> TwoForms:
    """A layer with a low-rank adapter, all frozen."""
    return TwoForms(
        lambda x, w, a, b: x @ w + 2.0 * ((x @ a) @ b),
        lambda x, w, a, b: x @ (w + 2.0 * (a @ b)),
        (draw(128, 384), draw.weight(384, 384), draw.weight(384, 32), draw(32, 384, scale=0.1)),
    )


@snippet("repetition commutes with a pointwise layer", frozen=(1,))
def enlarge_then_project(draw: SnippetDraw) -> TwoForms:
    """An image enlarged by repetition, and a pointwise layer."""

    def twice(x: Array) -> Array:
        return jnp.repeat(jnp.repeat(x, 2, axis=0), 2, axis=1)

    return TwoForms(
        lambda x, w: jax.nn.relu(twice(x) @ w),
        lambda x, w: twice(jax.nn.relu(x @ w)),
        (draw(40, 40, 128), draw.weight(128, 32)),
    )


@snippet("a product with concatenated rows is a sum of products; the repeated part is computed once", frozen=(2,))
def conditioned_layer(draw: SnippetDraw) -> TwoForms:
    """A layer of positions that all see one vector of conditions."""

    def fn(x: Array, c: Array, w: Array) -> Array:
        wide = jnp.broadcast_to(c[:, None, :], (*x.shape[:2], c.shape[1]))
        return jax.nn.silu(jnp.concatenate([x, wide], axis=-1) @ w)

    def hand(x: Array, c: Array, w: Array) -> Array:
        d = x.shape[-1]
        return jax.nn.silu(x @ w[:d] + (c @ w[d:])[:, None])

    return TwoForms(fn, hand, (draw(4, 256, 96), draw(4, 256), draw.weight(352, 128)))


@snippet("one-hot rows times a table are rows of it", frozen=(1,))
def one_hot_embedding(draw: SnippetDraw) -> TwoForms:
    """Embeddings of tokens by a product with one-hot rows."""
    return TwoForms(
        lambda ids, table: jax.nn.one_hot(ids, table.shape[0]) @ table,
        lambda ids, table: table[ids],
        (draw.below(4096, 64), draw(4096, 128)),
    )


@snippet("a mean of linear maps is a linear map")
def ensemble_of_heads(draw: SnippetDraw) -> TwoForms:
    """Mean of many linear heads."""
    return TwoForms(
        lambda x, w: jnp.mean(jnp.einsum("nd,kdo->kno", x, w), axis=0),
        lambda x, w: x @ jnp.mean(w, 0),
        (draw(256, 128), draw.weight(16, 128, 64)),
    )


@snippet("a batch norm with known moments is an affine map", frozen=(1, 2, 3, 4, 5, 6))
def linear_then_batch_norm(draw: SnippetDraw) -> TwoForms:
    """An affine layer and a batch norm at inference."""

    def fn(x: Array, w: Array, b: Array, mean: Array, var: Array, g: Array, c: Array) -> Array:
        return jax.nn.relu((x @ w + b - mean) / jnp.sqrt(var + 1e-5) * g + c)

    def hand(x: Array, w: Array, b: Array, mean: Array, var: Array, g: Array, c: Array) -> Array:
        s = g / jnp.sqrt(var + 1e-5)
        return jax.nn.relu(x @ (w * s) + ((b - mean) * s + c))

    vectors = (draw(256), draw(256), draw.uniform(0.5, 2, 256), draw.uniform(0.5, 2, 256), draw(256))
    return TwoForms(fn, hand, (draw(1024, 64), draw.weight(64, 256), *vectors))


@snippet("distributivity: x W + y W = (x + y) W")
def shared_projection(draw: SnippetDraw) -> TwoForms:
    """Three streams through one projection, added up."""
    return TwoForms(
        lambda x, y, z, w: x @ w + y @ w + z @ w,
        lambda x, y, z, w: (x + y + z) @ w,
        (draw(128, 256), draw(128, 256), draw(128, 256), draw.weight(256, 256)),
    )


@snippet("a mixture of weights is a product with an outer product (Yang et al. 2019)", frozen=(2,))
def conditional_weights(draw: SnippetDraw) -> TwoForms:
    """A layer whose weights are mixed for each example."""

    def fn(x: Array, a: Array, w: Array) -> Array:
        mixed = jnp.einsum("bk,kdf->bdf", a, w)
        return jnp.einsum("bd,bdf->bf", x, mixed)

    def hand(x: Array, a: Array, w: Array) -> Array:
        return (a[:, :, None] * x[:, None, :]).reshape(x.shape[0], -1) @ w.reshape(-1, w.shape[2])

    return TwoForms(fn, hand, (draw(64, 192), draw.stochastic(64, 4), draw.weight(4, 192, 192)))


@snippet("a norm without epsilon forgets a positive factor", frozen=(1, 2))
def scaled_before_norm(draw: SnippetDraw) -> TwoForms:
    """A product with a temperature, and rows of unit length."""

    def unit(x: Array) -> Array:
        return x / jnp.sqrt(jnp.sum(x * x, -1, keepdims=True))

    return TwoForms(
        lambda x, w, s: unit(jnp.exp(s) * (x @ w) / math.sqrt(x.shape[1])),
        lambda x, w, s: unit(x @ w),
        (draw(8192, 16), draw.weight(16, 64), np.float32(0.3)),
    )
