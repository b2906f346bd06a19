"""The frozen third of `written_well`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet, well_written


@snippet("Ba et al. 2016")
def layer_norm(draw: SnippetDraw) -> TwoForms:
    """A layer norm with gain and bias."""

    def fn(x: Array, g: Array, b: Array) -> Array:
        x = x - jnp.mean(x, -1, keepdims=True)
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * g + b

    return well_written(fn, draw(1024, 512), draw(512), draw(512))


@snippet("a prefix sum")
def prefix_sum(draw: SnippetDraw) -> TwoForms:
    """Running sums along rows."""
    return well_written(lambda x: jnp.cumsum(x, axis=-1), draw(128, 2048))


@snippet("a sort")
def largest_of_rows(draw: SnippetDraw) -> TwoForms:
    """The ten largest of each row."""
    return well_written(lambda x: lax.top_k(x, 10)[0], draw(256, 2048))


@snippet("Cooley and Tukey 1965")
def power_spectrum(draw: SnippetDraw) -> TwoForms:
    """Power spectra of rows by a fast transform."""
    return well_written(lambda x: jnp.abs(jnp.fft.rfft(x)) ** 2, draw(64, 4096))


@snippet("a sum by segments")
def sum_by_segments(draw: SnippetDraw) -> TwoForms:
    """Rows added up by their group."""
    return well_written(lambda x, s: jax.ops.segment_sum(x, s, 300), draw(20000, 64), draw.below(300, 20000))


@snippet("a product for each example")
def batch_of_products(draw: SnippetDraw) -> TwoForms:
    """A matrix times a vector for each example."""
    return well_written(lambda a, x: jnp.einsum("bij,bj->bi", a, x), draw(512, 96, 96), draw(512, 96))
