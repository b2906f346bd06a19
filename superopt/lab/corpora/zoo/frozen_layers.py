"""The frozen third of `layers`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("the mean commutes with an affine map", frozen=(1, 2))
def mean_after_linear(draw: SnippetDraw) -> TwoForms:
    """Mean over the positions of an affine layer."""
    return TwoForms(
        lambda x, w, b: jnp.mean(x @ w + b, axis=1),
        lambda x, w, b: jnp.mean(x, axis=1) @ w + b,
        (draw(8, 128, 384), draw.weight(384, 384), draw(384)),
    )


@snippet("associativity: (x A) B (Hu et al. 2022)", frozen=(1,))
def adapter_in_training(draw: SnippetDraw) -> TwoForms:
    """A layer with a low-rank adapter that changes between calls."""
    return TwoForms(
        lambda x, w, a, b: x @ w + x @ (a @ b),
        lambda x, w, a, b: x @ w + (x @ a) @ b,
        (draw(64, 512), draw.weight(512, 512), draw.weight(512, 8), draw(8, 512, scale=0.1)),
    )


@snippet("the mean over positions commutes with a pointwise convolution", frozen=(1,))
def pooled_pointwise(draw: SnippetDraw) -> TwoForms:
    """A pointwise convolution and a mean over the image."""

    def fn(x: Array, w: Array) -> Array:
        y = lax.conv_general_dilated(x, w[None, None], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.mean(y, axis=(1, 2))

    return TwoForms(fn, lambda x, w: jnp.mean(x, (1, 2)) @ w, (draw(2, 28, 28, 128), draw.weight(128, 256)))


@snippet("a gather of rows commutes with a product", frozen=(1, 2))
def embedding_then_projection(draw: SnippetDraw) -> TwoForms:
    """Embeddings of tokens through a projection (ALBERT, Lan et al. 2020)."""
    return TwoForms(
        lambda ids, table, w: table[ids] @ w,
        lambda ids, table, w: (table @ w)[ids],
        (draw.below(1000, 2048), draw(1000, 128), draw.weight(128, 384)),
    )
