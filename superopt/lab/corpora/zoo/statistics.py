"""Snippets of statistics and learning: distances, kernels, likelihoods, quadratic forms, counts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("expanded square: |x - y|^2 = |x|^2 + |y|^2 - 2 x.y", cancellation=True)
def pairwise_distances(draw: SnippetDraw) -> TwoForms:
    """Squared distances of all pairs of points."""

    def hand(x: Array, y: Array) -> Array:
        return jnp.sum(x * x, -1)[:, None] + jnp.sum(y * y, -1) - 2 * (x @ y.T)

    return TwoForms(lambda x, y: jnp.sum((x[:, None] - y[None]) ** 2, -1), hand, (draw(512, 64), draw(512, 64)))


@snippet("expanded square below an exponential: exp(-|x - y|^2 / 2) = e(x) e(y) exp(x.y)", cancellation=True)
def rbf_regression(draw: SnippetDraw) -> TwoForms:
    """Predictions of a kernel regression with a Gaussian kernel."""

    def fn(x: Array, centres: Array, coefficients: Array) -> Array:
        distances = jnp.sum((x[:, None, :] - centres[None, :, :]) ** 2, axis=-1)
        return jnp.exp(-distances / 64.0) @ coefficients

    def hand(x: Array, centres: Array, coefficients: Array) -> Array:
        squares = jnp.sum(x * x, -1)[:, None] + jnp.sum(centres * centres, -1)
        return jnp.exp((2 * (x @ centres.T) - squares) / 64.0) @ coefficients

    return TwoForms(fn, hand, (draw(256, 32), draw(400, 32), draw(400, 8)))


@snippet("expanded square of a diagonal Gaussian", frozen=(1, 2, 3), cancellation=True)
def gaussian_mixture(draw: SnippetDraw) -> TwoForms:
    """Log-likelihood of points under a mixture of diagonal Gaussians."""

    def fn(x: Array, mean: Array, variance: Array, weight: Array) -> Array:
        z = (x[:, None] - mean) ** 2 / variance
        logs = jnp.log(weight) - 0.5 * jnp.sum(z + jnp.log(2 * jnp.pi * variance), -1)
        return jax.nn.logsumexp(logs, axis=1)

    def hand(x: Array, mean: Array, variance: Array, weight: Array) -> Array:
        precise = 1 / variance
        constant = jnp.log(weight) - 0.5 * jnp.sum(mean * mean * precise + jnp.log(2 * jnp.pi * variance), -1)
        logs = x @ (mean * precise).T - 0.5 * ((x * x) @ precise.T) + constant
        return jax.nn.logsumexp(logs, axis=1)

    return TwoForms(fn, hand, (draw(1000, 32), draw(64, 32), draw.uniform(0.5, 2, 64, 32), draw.stochastic(64)))


@snippet("variance of a linear form: Var(X w) = w' Cov(X) w")
def variance_of_projections(draw: SnippetDraw) -> TwoForms:
    """Variance of many linear combinations of the same variables."""

    def hand(x: Array, w: Array) -> Array:
        x = x - jnp.mean(x, 0)
        return jnp.sum(w * ((x.T @ x / x.shape[0]) @ w), 0)

    return TwoForms(lambda x, w: jnp.var(x @ w, axis=0), hand, (draw(4000, 64), draw(64, 512)))


@snippet("trace is cyclic: tr(X S X') = tr(S X' X)")
def effective_degrees_of_freedom(draw: SnippetDraw) -> TwoForms:
    """Trace of the hat matrix of a ridge regression."""

    def fn(x: Array) -> Array:
        inverse = jnp.linalg.inv(x.T @ x + 10.0 * jnp.eye(x.shape[1]))
        return jnp.trace(x @ inverse @ x.T)

    def hand(x: Array) -> Array:
        gram = x.T @ x
        return jnp.trace(jnp.linalg.solve(gram + 10.0 * jnp.eye(x.shape[1]), gram))

    return TwoForms(fn, hand, (draw(1000, 48),))


@snippet("indicator as arithmetic: log p^x (1-p)^(1-x) = x log p + (1-x) log(1-p)", frozen=(1,), cancellation=True)
def bernoulli_naive_bayes(draw: SnippetDraw) -> TwoForms:
    """Log-likelihood of binary features in every class."""

    def fn(x: Array, p: Array) -> Array:
        return jnp.sum(jnp.log(jnp.where(x[:, None, :] > 0, p, 1 - p)), axis=-1)

    def hand(x: Array, p: Array) -> Array:
        no = jnp.log(1 - p)
        return (x > 0).astype(p.dtype) @ (jnp.log(p) - no).T + jnp.sum(no, -1)

    return TwoForms(fn, hand, (draw.flags(0.3, 256, 128), draw.uniform(0.1, 0.9, 32, 128)))


@snippet("kernel trick: phi(x).phi(y) = (x.y)^2 for phi(x) = vec(x x')")
def polynomial_kernel(draw: SnippetDraw) -> TwoForms:
    """Kernel matrix of quadratic features."""

    def fn(x: Array, y: Array) -> Array:
        phi = jax.vmap(lambda v: jnp.outer(v, v).ravel())
        return phi(x) @ phi(y).T

    return TwoForms(fn, lambda x, y: (x @ y.T) ** 2, (draw(200, 40), draw(200, 40)))


@snippet("bilinearity: mean of x_i.y_j = mean(x).mean(y)")
def mean_of_kernel(draw: SnippetDraw) -> TwoForms:
    """Mean of a linear kernel over all pairs of two samples."""
    return TwoForms(
        lambda x, y: jnp.mean(x @ y.T), lambda x, y: jnp.mean(x, 0) @ jnp.mean(y, 0), (draw(1500, 32), draw(1500, 32))
    )


@snippet("Rendle 2010: sum over pairs = ((sum)^2 - sum of squares) / 2", frozen=(1,), cancellation=True)
def factorization_machine(draw: SnippetDraw) -> TwoForms:
    """Interactions of all pairs of features, through factors."""

    def fn(x: Array, v: Array) -> Array:
        strength = jnp.triu(v @ v.T, k=1)
        return jnp.einsum("bi,ij,bj->b", x, strength, x)

    def hand(x: Array, v: Array) -> Array:
        return 0.5 * jnp.sum((x @ v) ** 2 - (x * x) @ (v * v), -1)

    return TwoForms(fn, hand, (draw.flags(0.3, 512, 400) * draw.uniform(0.5, 1, 512, 400), draw(400, 8)))


@snippet("product with one-hot rows is a sum by segments")
def class_means(draw: SnippetDraw) -> TwoForms:
    """Mean of the features of every class."""

    def fn(x: Array, label: Array) -> Array:
        member = jax.nn.one_hot(label, 256)
        return (member.T @ x) / jnp.maximum(jnp.sum(member, 0), 1)[:, None]

    def hand(x: Array, label: Array) -> Array:
        count = jax.ops.segment_sum(jnp.ones(x.shape[0]), label, 256)
        return jax.ops.segment_sum(x, label, 256) / jnp.maximum(count, 1)[:, None]

    return TwoForms(fn, hand, (draw(4000, 64), draw.below(256, 4000)))


@snippet("inner product with a one-hot row is an element")
def cross_entropy(draw: SnippetDraw) -> TwoForms:
    """Loss of a classifier with many classes."""

    def fn(logits: Array, label: Array) -> Array:
        return -jnp.mean(jnp.sum(jax.nn.one_hot(label, 8192) * jnp.log(jax.nn.softmax(logits)), -1))

    def hand(logits: Array, label: Array) -> Array:
        picked = jnp.take_along_axis(logits, label[:, None], 1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    return TwoForms(fn, hand, (draw(256, 8192), draw.below(8192, 256)))


@snippet("associativity: (X V) D V' = X (V D V')")
def whitening(draw: SnippetDraw) -> TwoForms:
    """Whitening of data by the eigenvectors of their covariance."""

    def fn(x: Array, vectors: Array, values: Array) -> Array:
        return (x - jnp.mean(x, 0)) @ vectors @ jnp.diag(1 / jnp.sqrt(values)) @ vectors.T

    def hand(x: Array, vectors: Array, values: Array) -> Array:
        return (x - jnp.mean(x, 0)) @ ((vectors / jnp.sqrt(values)) @ vectors.T)

    return TwoForms(fn, hand, (draw(4000, 96), draw.weight(96, 96), draw.uniform(0.5, 2, 96)))


@snippet("cosine of two vectors: normalise first, then multiply matrices")
def cosine_similarities(draw: SnippetDraw) -> TwoForms:
    """Cosines of all pairs of vectors."""

    def fn(x: Array, y: Array) -> Array:
        a, b = x[:, None, :], y[None, :, :]
        return jnp.sum(a * b, -1) / (jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1))

    def hand(x: Array, y: Array) -> Array:
        x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        return x @ (y / jnp.linalg.norm(y, axis=-1, keepdims=True)).T

    return TwoForms(fn, hand, (draw(1000, 96), draw(1000, 96)))


@snippet("one Cholesky factor gives solution and determinant (Rasmussen and Williams 2006)")
def gaussian_process_evidence(draw: SnippetDraw) -> TwoForms:
    """Log-evidence of observations under a Gaussian process."""

    def kernel(x: Array) -> Array:
        return jnp.exp(-0.5 * (x[:, None] - x[None, :]) ** 2) + 0.1 * jnp.eye(x.shape[0])

    def fn(x: Array, y: Array) -> Array:
        k = kernel(x)
        return -0.5 * y @ jnp.linalg.inv(k) @ y - 0.5 * jnp.linalg.slogdet(k)[1]

    def hand(x: Array, y: Array) -> Array:
        root = jnp.linalg.cholesky(kernel(x))
        z = jax.scipy.linalg.solve_triangular(root, y, lower=True)
        return -0.5 * z @ z - jnp.sum(jnp.log(jnp.diag(root)))

    return TwoForms(fn, hand, (draw.uniform(0, 100, 256), draw(256)))
