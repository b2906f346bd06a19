"""The frozen third of `products`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("trace of a product: tr(A B) = sum of A * B'")
def trace_of_product(draw: SnippetDraw) -> TwoForms:
    """Trace of a product."""
    return TwoForms(lambda a, b: jnp.trace(a @ b), lambda a, b: jnp.sum(a * b.T), (draw(512, 512), draw(512, 512)))


@snippet("(A (x) B) vec X = vec(A X B')")
def kronecker_product(draw: SnippetDraw) -> TwoForms:
    """A Kronecker product times a vector."""

    def hand(a: Array, b: Array, x: Array) -> Array:
        return (a @ x.reshape(a.shape[1], b.shape[1]) @ b.T).ravel()

    return TwoForms(lambda a, b, x: jnp.kron(a, b) @ x, hand, (draw(40, 40), draw(40, 40), draw(1600)))


@snippet("det(A (x) B) = det(A)^m det(B)^n")
def kronecker_determinant(draw: SnippetDraw) -> TwoForms:
    """Log-determinant of a Kronecker product."""

    def hand(a: Array, b: Array) -> Array:
        return b.shape[0] * jnp.linalg.slogdet(a)[1] + a.shape[0] * jnp.linalg.slogdet(b)[1]

    return TwoForms(
        lambda a, b: jnp.linalg.slogdet(jnp.kron(a, b))[1], hand, (draw.definite(20) * 2, draw.definite(20) * 2)
    )


@snippet("(u v') X = u (v' X)")
def outer_product_times(draw: SnippetDraw) -> TwoForms:
    """An outer product times a matrix."""
    return TwoForms(
        lambda u, v, x: jnp.outer(u, v) @ x, lambda u, v, x: u[:, None] * (v @ x), (draw(600), draw(600), draw(600, 64))
    )


@snippet("1' A B 1 = (1' A) (B 1)")
def sum_of_product(draw: SnippetDraw) -> TwoForms:
    """Sum of all elements of a product."""
    return TwoForms(
        lambda a, b: jnp.sum(a @ b),
        lambda a, b: jnp.sum(a, 0) @ jnp.sum(b, 1),
        (1 + draw(512, 256), 1 + draw(256, 512)),
    )


@snippet("det(A' A) = det(A)^2")
def logdet_of_gram(draw: SnippetDraw) -> TwoForms:
    """Log-determinant of the Gram matrix of a square matrix."""
    return TwoForms(
        lambda a: jnp.linalg.slogdet(a.T @ a)[1], lambda a: 2 * jnp.linalg.slogdet(a)[1], (draw.definite(384) * 2,)
    )


@snippet("associativity: A (A'A)^-1 (A' b)")
def projection_onto_columns(draw: SnippetDraw) -> TwoForms:
    """Projection of a vector onto the columns of a matrix."""
    return TwoForms(
        lambda a, b: a @ jnp.linalg.inv(a.T @ a) @ a.T @ b,
        lambda a, b: a @ jnp.linalg.solve(a.T @ a, a.T @ b),
        (draw(1000, 32), draw(1000)),
    )


@snippet("a product with a scattered vector reads the rows that are there", frozen=(2,))
def scattered_features(draw: SnippetDraw) -> TwoForms:
    """Sparse features, made dense, through a layer."""

    def fn(index: Array, value: Array, w: Array) -> Array:
        return jnp.zeros(w.shape[0]).at[index].add(value) @ w

    return TwoForms(
        fn, lambda i, value, w: value @ w[i], (draw.below(16384, 40), draw(40), draw(16384, 256, scale=0.1))
    )


@snippet("associativity: A (A (... x)) in place of A^8 x")
def power_times_matrix(draw: SnippetDraw) -> TwoForms:
    """A high power of a matrix times a vector."""

    def hand(a: Array, x: Array) -> Array:
        for _ in range(8):
            x = a @ x
        return x

    return TwoForms(lambda a, x: jnp.linalg.matrix_power(a, 8) @ x, hand, (draw.weight(256, 256), draw(256)))
