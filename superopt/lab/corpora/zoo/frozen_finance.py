"""The frozen third of `finance`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("associativity: (B F B' + D) w = B (F (B' w)) + d w", frozen=(0, 1, 2))
def factor_model_risk(draw: SnippetDraw) -> TwoForms:
    """Exposure of a portfolio under a factor model."""

    def fn(b: Array, f: Array, d: Array, w: Array) -> Array:
        return (b @ f @ b.T + jnp.diag(d)) @ w

    return TwoForms(
        fn,
        lambda b, f, d, w: b @ (f @ (b.T @ w)) + d * w,
        (draw(1000, 20), draw.definite(20), draw.uniform(0.1, 1, 1000), draw(1000)),
    )


@snippet("associativity: X' (X w) in place of (X' X) w")
def risk_contributions(draw: SnippetDraw) -> TwoForms:
    """Contributions of all assets to the risk of a portfolio."""

    def fn(x: Array, w: Array) -> Array:
        c = x.T @ x / x.shape[0]
        return w * (c @ w) / jnp.sqrt(w @ c @ w)

    def hand(x: Array, w: Array) -> Array:
        gains = x @ w
        return w * (x.T @ gains / x.shape[0]) / jnp.sqrt(jnp.mean(gains * gains))

    return TwoForms(fn, hand, (draw(500, 400), draw.uniform(0, 1, 400)))


@snippet("quadratic form: sum_ij G_ij x_i x_j = x' G x")
def delta_gamma_gains(draw: SnippetDraw) -> TwoForms:
    """Gains to second order in all pairs of risk factors, by scenario."""

    def fn(x: Array, delta: Array, gamma: Array) -> Array:
        pairs = x[:, :, None] * x[:, None, :]
        return x @ delta + 0.5 * jnp.sum(pairs * gamma, axis=(1, 2))

    def hand(x: Array, delta: Array, gamma: Array) -> Array:
        return x @ delta + 0.5 * jnp.sum((x @ gamma) * x, 1)

    return TwoForms(fn, hand, (draw(2000, 48), draw(48), draw(48, 48)))
