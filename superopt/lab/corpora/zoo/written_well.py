"""Snippets with nothing to gain: forms that a knowledgeable person would leave as they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet, well_written


@snippet("a product of full matrices")
def square_product(draw: SnippetDraw) -> TwoForms:
    """A product of two square matrices."""
    return well_written(lambda a, b: a @ b, draw(384, 384), draw(384, 384))


@snippet("two layers with an activation between")
def two_layers(draw: SnippetDraw) -> TwoForms:
    """A network of two layers, weights live."""
    args = draw(128, 256), draw.weight(256, 512), draw.weight(512, 256)
    return well_written(lambda x, w, v: jax.nn.relu(x @ w) @ v, *args)


@snippet("a stable softmax")
def softmax_of_rows(draw: SnippetDraw) -> TwoForms:
    """Softmax of rows."""
    return well_written(lambda x: jax.nn.softmax(x, axis=-1), draw(512, 1000))


@snippet("Vaswani et al. 2017")
def one_head(draw: SnippetDraw) -> TwoForms:
    """Attention of one head."""
    return well_written(lambda q, k, v: jax.nn.softmax(q @ k.T / 8.0) @ v, draw(256, 64), draw(256, 64), draw(256, 64))


@snippet("a strided convolution")
def strided_convolution(draw: SnippetDraw) -> TwoForms:
    """A convolution of an image with stride two."""
    return well_written(lambda x, w: lax.conv(x, w, (2, 2), "SAME"), draw(1, 32, 56, 56), draw(64, 32, 3, 3, scale=0.1))


@snippet("products of inputs before the recurrence")
def gated_recurrence(draw: SnippetDraw) -> TwoForms:
    """A gated recurrence whose inputs are multiplied before the loop."""

    def fn(xs: Array, wz: Array, wh: Array, u: Array) -> Array:
        def step(h: Array, zx: tuple[Array, Array]) -> tuple[Array, None]:
            z = jax.nn.sigmoid(zx[0])
            return (1 - z) * h + z * jnp.tanh(zx[1] + h @ u), None

        return lax.scan(step, jnp.zeros((xs.shape[1], u.shape[0])), (xs @ wz, xs @ wh))[0]

    return well_written(fn, draw(32, 8, 128), draw.weight(128, 128), draw.weight(128, 128), draw.weight(128, 128))


@snippet("Cholesky factorisation")
def definite_solve(draw: SnippetDraw) -> TwoForms:
    """Solution with a definite matrix by its Cholesky factor."""

    def fn(a: Array, b: Array) -> Array:
        return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b)

    return well_written(fn, draw.definite(256), draw(256, 8))


@snippet("log-sum-exp with its maximum")
def log_partition(draw: SnippetDraw) -> TwoForms:
    """Log-partition function of rows."""
    return well_written(lambda x: jax.nn.logsumexp(x, axis=-1), draw(1024, 2000))


@snippet("elementwise functions in one pass")
def activation(draw: SnippetDraw) -> TwoForms:
    """An activation with a gate."""
    return well_written(lambda x, y: jax.nn.gelu(x) * y, draw(1000, 1000), draw(1000, 1000))


@snippet("Horner's rule")
def series(draw: SnippetDraw) -> TwoForms:
    """A polynomial by Horner's rule."""

    def fn(x: Array) -> Array:
        y = jnp.full_like(x, 1 / 120)
        for c in (1 / 24, 1 / 6, 0.5, 1.0, 1.0):
            y = y * x + c
        return y

    return well_written(fn, draw.uniform(-1, 1, 3000000))


@snippet("a gather of rows")
def rows_of_table(draw: SnippetDraw) -> TwoForms:
    """Rows of a table, and their norms."""
    return well_written(lambda t, i: jnp.linalg.norm(t[i], axis=-1), draw(5000, 256), draw.below(5000, 8000))


@snippet("binary search")
def interpolation(draw: SnippetDraw) -> TwoForms:
    """Values of a table between its knots."""
    knots = np.sort(draw.uniform(0, 1, 500))
    return well_written(lambda x, k, v: jnp.interp(x, k, v), draw.uniform(0, 1, 20000), knots, draw(500))


@snippet("on few cores a loop reads and writes once")
def running_sums_in_a_loop(draw: SnippetDraw) -> TwoForms:
    """Running sums of channels by a loop."""

    def fn(x: Array) -> Array:
        def step(total: Array, row: Array) -> tuple[Array, Array]:
            total = total + row
            return total, total

        return lax.scan(step, jnp.zeros(x.shape[1]), x)[1]

    return well_written(fn, draw(8192, 64))
