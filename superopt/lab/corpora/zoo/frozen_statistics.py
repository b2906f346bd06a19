"""The frozen third of `statistics`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("diagonal of a product: diag(A B)_i = sum_k A_ik B_ki")
def mahalanobis(draw: SnippetDraw) -> TwoForms:
    """Squared Mahalanobis distances of all rows from a mean."""

    def fn(x: Array, mean: Array, precision: Array) -> Array:
        d = x - mean
        return jnp.diag(d @ precision @ d.T)

    def hand(x: Array, mean: Array, precision: Array) -> Array:
        d = x - mean
        return jnp.sum((d @ precision) * d, -1)

    return TwoForms(fn, hand, (draw(1000, 64), draw(64), draw.definite(64)))


@snippet("quadratic form: vec(x x').w = x' W x", frozen=(1, 2))
def quadratic_features(draw: SnippetDraw) -> TwoForms:
    """Regression on all products of two features."""

    def fn(x: Array, w: Array, b: Array) -> Array:
        features = (x[:, :, None] * x[:, None, :]).reshape(x.shape[0], -1)
        return features @ w + b

    def hand(x: Array, w: Array, b: Array) -> Array:
        d = x.shape[1]
        return jnp.sum((x @ w.reshape(d, d)) * x, -1) + b

    return TwoForms(fn, hand, (draw(512, 64), draw(64 * 64, scale=0.02), draw(1)))


@snippet("product with a diagonal matrix scales columns", frozen=(0,))
def weighted_least_squares(draw: SnippetDraw) -> TwoForms:
    """Normal equations of a weighted regression."""

    def fn(x: Array, weight: Array, y: Array) -> Array:
        w = jnp.diag(weight)
        return jnp.linalg.solve(x.T @ w @ x, x.T @ w @ y)

    def hand(x: Array, weight: Array, y: Array) -> Array:
        xw = x.T * weight
        return jnp.linalg.solve(xw @ x, xw @ y)

    return TwoForms(fn, hand, (draw(1000, 32), draw.uniform(0.5, 1.5, 1000), draw(1000)))


@snippet("centring is a projection: tr(K H L H) = sum of (H K H) * L")
def hsic(draw: SnippetDraw) -> TwoForms:
    """Independence criterion of two kernel matrices."""

    def fn(k: Array, l: Array) -> Array:
        n = k.shape[0]
        h = jnp.eye(n) - jnp.ones((n, n)) / n
        return jnp.trace(k @ h @ l @ h) / (n - 1) ** 2

    def hand(k: Array, l: Array) -> Array:
        n = k.shape[0]
        k = k - jnp.mean(k, 0) - jnp.mean(k, 1, keepdims=True) + jnp.mean(k)
        return jnp.sum(k * l.T) / (n - 1) ** 2

    return TwoForms(fn, hand, (draw.definite(384), draw.definite(384)))


@snippet("Goodfellow 2015: |x d'|^2 = |x|^2 |d|^2")
def per_example_gradient_norms(draw: SnippetDraw) -> TwoForms:
    """Norms of the gradients of a linear layer, one for each example."""

    def fn(x: Array, delta: Array) -> Array:
        gradients = jnp.einsum("ni,no->nio", x, delta)
        return jnp.sqrt(jnp.sum(gradients**2, axis=(1, 2)))

    return TwoForms(fn, lambda x, d: jnp.sqrt(jnp.sum(x * x, 1) * jnp.sum(d * d, 1)), (draw(128, 128), draw(128, 128)))


@snippet("associativity: (J' J) v = J' (J v)")
def fisher_vector_product(draw: SnippetDraw) -> TwoForms:
    """Product of a damped Fisher matrix with a direction."""

    def fn(scores: Array, v: Array) -> Array:
        n, d = scores.shape
        return (scores.T @ scores / n + 0.1 * jnp.eye(d)) @ v

    return TwoForms(fn, lambda s, v: s.T @ (s @ v) / s.shape[0] + 0.1 * v, (draw(1000, 400), draw(400)))
