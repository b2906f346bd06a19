"""The frozen third of `finance`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("a mean of running sums is a weighted sum: the log of a geometric mean (Kemna and Vorst 1990)")
def asian_options(draw: SnippetDraw) -> TwoForms:
    """Prices of options on the geometric average of simulated paths, one for each strike."""

    def fn(z: Array, s0: Array, strikes: Array) -> Array:
        paths = s0 * jnp.exp(jnp.cumsum(0.0001 + 0.01 * z, axis=1))
        average = jnp.exp(jnp.mean(jnp.log(paths), axis=1))
        return jnp.mean(jnp.maximum(average[:, None] - strikes, 0), axis=0)

    def hand(z: Array, s0: Array, strikes: Array) -> Array:
        n = z.shape[1]
        average = s0 * jnp.exp(0.0001 * (n + 1) / 2 + z @ (0.01 * jnp.arange(n, 0, -1) / n))
        return jnp.mean(jnp.maximum(average[:, None] - strikes, 0), axis=0)

    return TwoForms(fn, hand, (draw(4096, 128), np.float32(100), draw.uniform(80, 105, 8)))


@snippet("bilinearity: the sum of all inner products is the square of a sum", cancellation=True)
def mean_correlation(draw: SnippetDraw) -> TwoForms:
    """Mean correlation of all pairs of assets."""

    def standardised(x: Array) -> Array:
        return (x - jnp.mean(x, 0)) / jnp.std(x, 0)

    def fn(x: Array) -> Array:
        z, n = standardised(x), x.shape[1]
        c = z.T @ z / x.shape[0]
        return jnp.sum(c * (1 - jnp.eye(n))) / (n * (n - 1))

    def hand(x: Array) -> Array:
        total, n = jnp.sum(standardised(x), 1), x.shape[1]
        return (jnp.mean(total * total) - n) / (n * (n - 1))

    return TwoForms(fn, hand, (draw(500, 400) + draw(500, 1),))


@snippet("(S^-1 + P' O^-1 P)^-1 in terms of S + the size of the views (He and Litterman 1999)")
def black_litterman(draw: SnippetDraw) -> TwoForms:
    """Expected returns of all assets, given those of equilibrium and a few views."""

    def fn(c: Array, prior: Array, p: Array, views: Array, doubt: Array) -> Array:
        precision, sure = jnp.linalg.inv(0.05 * c), jnp.linalg.inv(jnp.diag(doubt))
        return jnp.linalg.inv(precision + p.T @ sure @ p) @ (precision @ prior + p.T @ sure @ views)

    def hand(c: Array, prior: Array, p: Array, views: Array, doubt: Array) -> Array:
        spread = 0.05 * (c @ p.T)
        gain = jax.scipy.linalg.solve(p @ spread + jnp.diag(doubt), views - p @ prior, assume_a="pos")
        return prior + spread @ gain

    return TwoForms(fn, hand, (draw.definite(256), draw(256), draw(8, 256), draw(8), draw.uniform(0.5, 1, 8)))


@snippet("the maximum over all earlier times is a running maximum")
def largest_drawdown(draw: SnippetDraw) -> TwoForms:
    """Largest relative loss from any day to a later one, by strategy."""

    def fn(returns: Array) -> Array:
        value = jnp.exp(jnp.cumsum(0.01 * returns, axis=1))
        losses = 1 - value[:, None, :] / value[:, :, None]
        return jnp.max(jnp.triu(losses), axis=(1, 2))

    def hand(returns: Array) -> Array:
        value = jnp.exp(jnp.cumsum(0.01 * returns, axis=1))
        return jnp.max(1 - value / lax.cummax(value, axis=1), axis=1)

    return TwoForms(fn, hand, (draw(32, 500),))


@snippet("the Jacobian of a function of each element is diagonal: one directional derivative")
def yield_sensitivities(draw: SnippetDraw) -> TwoForms:
    """Durations of bonds: derivatives of prices by yields, over prices."""

    def prices(y: Array, flows: Array) -> Array:
        years = 0.5 * jnp.arange(1, flows.shape[1] + 1)
        return jnp.sum(flows * jnp.exp(-y[:, None] * years), axis=1)

    def fn(y: Array, flows: Array) -> Array:
        return -jnp.diag(jax.jacfwd(prices)(y, flows)) / prices(y, flows)

    def hand(y: Array, flows: Array) -> Array:
        value, slope = jax.jvp(lambda y: prices(y, flows), (y,), (jnp.ones_like(y),))
        return -slope / value

    return TwoForms(fn, hand, (draw.uniform(0.01, 0.06, 256), draw.uniform(0, 5, 256, 60)))


@snippet("sums up to every maturity are running sums")
def swap_rates(draw: SnippetDraw) -> TwoForms:
    """Fair fixed rates of swaps of all maturities, under many curves."""

    def fn(forwards: Array) -> Array:
        discounts = jnp.exp(-0.25 * jnp.cumsum(forwards, axis=1))
        periods = jnp.arange(forwards.shape[1])

        def rate(maturity: Array) -> Array:
            annuity = 0.25 * jnp.sum(jnp.where(periods <= maturity, discounts, 0), axis=1)
            return (1 - discounts[:, maturity]) / annuity

        return jax.vmap(rate, out_axes=1)(periods)

    def hand(forwards: Array) -> Array:
        discounts = jnp.exp(-0.25 * jnp.cumsum(forwards, axis=1))
        return (1 - discounts) / (0.25 * jnp.cumsum(discounts, axis=1))

    return TwoForms(fn, hand, (draw.uniform(0.01, 0.05, 500, 120),))
