"""Snippets of finance: portfolios, factor models, option prices, discounting, scenarios."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("diagonal of a product: diag(W C W')_i = sum_k (W C)_ik W_ik")
def portfolio_variances(draw: SnippetDraw) -> TwoForms:
    """Variances of many portfolios."""
    return TwoForms(
        lambda w, c: jnp.diag(w @ c @ w.T), lambda w, c: jnp.sum((w @ c) * w, 1), (draw(1000, 128), draw.definite(128))
    )


@snippet("functions of one axis are computed before the mesh (Black and Scholes 1973)")
def black_scholes_mesh(draw: SnippetDraw) -> TwoForms:
    """Call prices on a mesh of spots, strikes and maturities."""

    def fn(s: Array, k: Array, t: Array) -> Array:
        s, k, t = jnp.meshgrid(s, k, t, indexing="ij")
        d1 = (jnp.log(s / k) + (0.03 + 0.5 * 0.2**2) * t) / (0.2 * jnp.sqrt(t))
        d2 = d1 - 0.2 * jnp.sqrt(t)
        cdf = jax.scipy.stats.norm.cdf
        return s * cdf(d1) - k * jnp.exp(-0.03 * t) * cdf(d2)

    def hand(s: Array, k: Array, t: Array) -> Array:
        root = 0.2 * jnp.sqrt(t)
        d1 = (jnp.log(s)[:, None, None] - jnp.log(k)[:, None]) / root + (0.03 + 0.5 * 0.2**2) * t / root
        cdf = jax.scipy.stats.norm.cdf
        return s[:, None, None] * cdf(d1) - k[:, None] * jnp.exp(-0.03 * t) * cdf(d1 - root)

    return TwoForms(fn, hand, (draw.uniform(80, 120, 48), draw.uniform(80, 120, 48), draw.uniform(0.2, 2, 32)))


@snippet("the last of running products is a product: prod exp(r) = exp(sum r)")
def european_option_paths(draw: SnippetDraw) -> TwoForms:
    """Price of an option on the last value of simulated paths."""

    def fn(z: Array, s0: Array, strike: Array) -> Array:
        paths = s0 * jnp.cumprod(jnp.exp(0.0001 + 0.01 * z), axis=1)
        return jnp.mean(jnp.maximum(paths[:, -1] - strike, 0))

    def hand(z: Array, s0: Array, strike: Array) -> Array:
        last = s0 * jnp.exp(0.0001 * z.shape[1] + 0.01 * jnp.sum(z, 1))
        return jnp.mean(jnp.maximum(last - strike, 0))

    return TwoForms(fn, hand, (draw(4096, 128), np.float32(100), np.float32(95)))


@snippet("a sum of products over one axis is a product of matrices")
def bond_prices(draw: SnippetDraw) -> TwoForms:
    """Prices of all bonds under all curves."""

    def fn(flows: Array, rates: Array) -> Array:
        years = jnp.arange(1, flows.shape[1] + 1)
        return jnp.sum(flows[None] * jnp.exp(-rates[:, None, :] * years), axis=-1)

    def hand(flows: Array, rates: Array) -> Array:
        return jnp.exp(-rates * jnp.arange(1, flows.shape[1] + 1)) @ flows.T

    return TwoForms(fn, hand, (draw.uniform(0, 5, 500, 40), draw.uniform(0.01, 0.05, 500, 40)))


@snippet("a recurrence of which only the end is read is a weighted sum (RiskMetrics 1996)")
def smoothed_covariance(draw: SnippetDraw) -> TwoForms:
    """Exponentially weighted covariance of returns."""

    def fn(r: Array) -> Array:
        def step(c: Array, x: Array) -> tuple[Array, None]:
            return 0.94 * c + 0.06 * jnp.outer(x, x), None

        return lax.scan(step, jnp.zeros((r.shape[1], r.shape[1])), r)[0]

    def hand(r: Array) -> Array:
        n = r.shape[0]
        return (r * (0.06 * 0.94 ** jnp.arange(n - 1, -1, -1))[:, None]).T @ r

    return TwoForms(fn, hand, (draw(256, 96),))


@snippet("a sum over columns commutes with a product")
def total_of_books(draw: SnippetDraw) -> TwoForms:
    """Gains of all books together, by scenario."""
    return TwoForms(
        lambda shocks, books: jnp.sum(shocks @ books, axis=1),
        lambda shocks, books: shocks @ jnp.sum(books, 1),
        (draw(4000, 128), draw(128, 64)),
    )


@snippet("backward induction with one payoff is a binomial sum (Cox, Ross and Rubinstein 1979)")
def binomial_option(draw: SnippetDraw) -> TwoForms:
    """Prices of European options on a binomial tree, one for each spot."""
    n, up, p, discount = 256, 1.01, 0.503, math.exp(-0.0001)

    def payoff(s: Array) -> Array:
        return jnp.maximum(100.0 - s[:, None] * up ** (2.0 * jnp.arange(n + 1) - n), 0)

    def fn(s: Array) -> Array:
        def back(_: int, v: Array) -> Array:
            later = jnp.concatenate([v[:, 1:], v[:, -1:]], axis=1)
            return discount * (p * later + (1 - p) * v)

        return lax.fori_loop(0, n, back, payoff(s))[:, 0]

    def hand(s: Array) -> Array:
        return payoff(s) @ weights

    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(n + 1)]
    chances = [math.exp(c + k * math.log(p) + (n - k) * math.log(1 - p)) for k, c in enumerate(logs)]
    weights = np.array(chances) * discount**n
    return TwoForms(fn, hand, (draw.uniform(80, 120, 64),))


@snippet("associativity: (B F B' + D) w = B (F (B' w)) + d w", frozen=(0, 1, 2))
def factor_model_exposures(draw: SnippetDraw) -> TwoForms:
    """Exposure of a portfolio under a factor model."""

    def fn(b: Array, f: Array, d: Array, w: Array) -> Array:
        return (b @ f @ b.T + jnp.diag(d)) @ w

    return TwoForms(
        fn,
        lambda b, f, d, w: b @ (f @ (b.T @ w)) + d * w,
        (draw(1000, 20), draw.definite(20), draw.uniform(0.1, 1, 1000), draw(1000)),
    )


@snippet("associativity: X' (X w) in place of (X' X) w")
def risk_by_asset(draw: SnippetDraw) -> TwoForms:
    """Contributions of all assets to the risk of a portfolio."""

    def fn(x: Array, w: Array) -> Array:
        c = x.T @ x / x.shape[0]
        return w * (c @ w) / jnp.sqrt(w @ c @ w)

    def hand(x: Array, w: Array) -> Array:
        gains = x @ w
        return w * (x.T @ gains / x.shape[0]) / jnp.sqrt(jnp.mean(gains * gains))

    return TwoForms(fn, hand, (draw(500, 400), draw.uniform(0, 1, 400)))


@snippet("quadratic form: sum_ij G_ij x_i x_j = x' G x")
def second_order_gains(draw: SnippetDraw) -> TwoForms:
    """Gains to second order in all pairs of risk factors, by scenario."""

    def fn(x: Array, delta: Array, gamma: Array) -> Array:
        pairs = x[:, :, None] * x[:, None, :]
        return x @ delta + 0.5 * jnp.sum(pairs * gamma, axis=(1, 2))

    def hand(x: Array, delta: Array, gamma: Array) -> Array:
        return x @ delta + 0.5 * jnp.sum((x @ gamma) * x, 1)

    return TwoForms(fn, hand, (draw(2000, 48), draw(48), draw(48, 48)))
