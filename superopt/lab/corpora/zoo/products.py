"""Snippets of linear algebra and indicators: orders of products, diagonals, traces, Kronecker products, solves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("associativity: (A B) v = A (B v)")
def chain_with_vector(draw: SnippetDraw) -> TwoForms:
    """Two matrices and a vector."""
    return TwoForms(lambda a, b, v: a @ b @ v, lambda a, b, v: a @ (b @ v), (draw(512, 512), draw(512, 512), draw(512)))


@snippet("product with a diagonal matrix scales rows and columns")
def diagonals_around(draw: SnippetDraw) -> TwoForms:
    """A matrix between two diagonal ones."""
    return TwoForms(
        lambda d, w, e: jnp.diag(d) @ w @ jnp.diag(e),
        lambda d, w, e: d[:, None] * w * e,
        (draw(400), draw(400, 400), draw(400)),
    )


@snippet("diagonal of a product: sums over rows and columns")
def diagonal_of_product(draw: SnippetDraw) -> TwoForms:
    """Diagonal of a product."""
    return TwoForms(
        lambda a, b: jnp.diag(a @ b), lambda a, b: jnp.sum(a * b.T, axis=1), (draw(800, 200), draw(200, 800))
    )


@snippet("product with a triangle of ones is a prefix sum")
def triangle_of_ones(draw: SnippetDraw) -> TwoForms:
    """Running totals by a product."""

    def fn(x: Array) -> Array:
        n = x.shape[0]
        return jnp.tril(jnp.ones((n, n))) @ x

    return TwoForms(fn, lambda x: jnp.cumsum(x, axis=0), (draw(1024, 16),))


@snippet("product with rows of the identity is a gather")
def permutation_matrix(draw: SnippetDraw) -> TwoForms:
    """Rows in another order by a product."""

    def fn(x: Array, order: Array) -> Array:
        return jnp.eye(x.shape[0])[order] @ x

    order = np.argsort(draw(1024)).astype(np.int32)
    return TwoForms(fn, lambda x, order: x[order], (draw(1024, 32), order))


@snippet("(A (x) B)^-1 = A^-1 (x) B^-1")
def kronecker_solve(draw: SnippetDraw) -> TwoForms:
    """Solution with a Kronecker product."""

    def hand(a: Array, b: Array, y: Array) -> Array:
        y = jnp.linalg.solve(a, y.reshape(a.shape[0], b.shape[0]))
        return jnp.linalg.solve(b, y.T).T.ravel()

    return TwoForms(
        lambda a, b, y: jnp.linalg.solve(jnp.kron(a, b), y), hand, (draw.definite(20), draw.definite(20), draw(400))
    )


@snippet("Householder 1958: (I - 2 v v') A = A - 2 v (v' A)")
def reflection(draw: SnippetDraw) -> TwoForms:
    """A Householder reflection of a matrix."""

    def fn(v: Array, a: Array) -> Array:
        return (jnp.eye(v.shape[0]) - 2 * jnp.outer(v, v) / (v @ v)) @ a

    return TwoForms(fn, lambda v, a: a - jnp.outer(v, (2 / (v @ v)) * (v @ a)), (draw(400), draw(400, 400)))


@snippet("blocks on the diagonal are a batch")
def block_diagonal(draw: SnippetDraw) -> TwoForms:
    """A block-diagonal matrix times a matrix."""

    def fn(blocks: Array, x: Array) -> Array:
        return jax.scipy.linalg.block_diag(*blocks) @ x

    def hand(blocks: Array, x: Array) -> Array:
        return (blocks @ x.reshape(16, 32, -1)).reshape(x.shape)

    return TwoForms(fn, hand, (draw(16, 32, 32), draw(512, 64)))


@snippet("|A B|^2 = sum of A'A * B B'")
def norm_of_low_rank(draw: SnippetDraw) -> TwoForms:
    """Squared norm of a product of thin matrices."""
    return TwoForms(
        lambda a, b: jnp.sum((a @ b) ** 2),
        lambda a, b: jnp.sum((a.T @ a) * (b @ b.T)),
        (draw(1000, 16), draw(16, 1000)),
    )


@snippet("solve in place of an inverse")
def inverse_times_vector(draw: SnippetDraw) -> TwoForms:
    """An inverse times a vector."""
    return TwoForms(
        lambda a, b: jnp.linalg.inv(a) @ b, lambda a, b: jnp.linalg.solve(a, b), (draw.definite(256), draw(256))
    )


@snippet("rows of a product are products of rows")
def rows_of_product(draw: SnippetDraw) -> TwoForms:
    """Some rows of a product."""
    return TwoForms(
        lambda a, b, rows: (a @ b)[rows],
        lambda a, b, rows: a[rows] @ b,
        (draw(800, 256), draw(256, 256), draw.below(800, 40)),
    )


@snippet("a block of a product is a product of blocks")
def corner_of_product(draw: SnippetDraw) -> TwoForms:
    """A block of a product."""
    return TwoForms(lambda a, b: (a @ b)[:32, :64], lambda a, b: a[:32] @ b[:, :64], (draw(400, 400), draw(400, 400)))


@snippet("a mask that is an outer product is two scalings")
def masked_product(draw: SnippetDraw) -> TwoForms:
    """A matrix with masked rows and columns, times a matrix."""

    def fn(a: Array, rows: Array, columns: Array, x: Array) -> Array:
        return (a * (rows[:, None] * columns[None, :])) @ x

    def hand(a: Array, rows: Array, columns: Array, x: Array) -> Array:
        return rows[:, None] * (a @ (columns[:, None] * x))

    return TwoForms(fn, hand, (draw(1200, 1200), draw.flags(0.5, 1200), draw.flags(0.5, 1200), draw(1200, 8)))
