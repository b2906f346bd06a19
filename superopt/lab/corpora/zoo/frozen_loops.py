"""The frozen third of `loops`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("products of all inputs at once, before the recurrence", frozen=(1, 2))
def recurrent_network(draw: SnippetDraw) -> TwoForms:
    """A recurrent layer over a sequence."""

    def fn(xs: Array, wx: Array, wh: Array, h: Array) -> Array:
        def step(h: Array, x: Array) -> tuple[Array, Array]:
            h = jnp.tanh(x @ wx + h @ wh)
            return h, h

        return lax.scan(step, h, xs)[1]

    def hand(xs: Array, wx: Array, wh: Array, h: Array) -> Array:
        def step(h: Array, x: Array) -> tuple[Array, Array]:
            h = jnp.tanh(x + h @ wh)
            return h, h

        return lax.scan(step, h, xs @ wx)[1]

    return TwoForms(fn, hand, (draw(64, 8, 256), draw.weight(256, 256), draw.weight(256, 256), draw(8, 256)))


@snippet("invariant exponential, and diagonal factors that scale (Cuturi 2013)")
def sinkhorn(draw: SnippetDraw) -> TwoForms:
    """Transport between two distributions."""

    def fn(cost: Array, a: Array, b: Array) -> Array:
        def step(_: int, uv: tuple[Array, Array]) -> tuple[Array, Array]:
            u = a / (jnp.exp(-cost / 0.5) @ uv[1])
            return u, b / (jnp.exp(-cost / 0.5).T @ u)

        u, v = lax.fori_loop(0, 20, step, (jnp.ones_like(a), jnp.ones_like(b)))
        return jnp.diag(u) @ jnp.exp(-cost / 0.5) @ jnp.diag(v)

    def hand(cost: Array, a: Array, b: Array) -> Array:
        k = jnp.exp(-cost / 0.5)

        def step(_: int, uv: tuple[Array, Array]) -> tuple[Array, Array]:
            u = a / (k @ uv[1])
            return u, b / (k.T @ u)

        u, v = lax.fori_loop(0, 20, step, (jnp.ones_like(a), jnp.ones_like(b)))
        return u[:, None] * k * v

    return TwoForms(fn, hand, (draw.uniform(0, 1, 256, 256), draw.stochastic(256), draw.stochastic(256)))


@snippet("Horner's rule")
def polynomial_values(draw: SnippetDraw) -> TwoForms:
    """Values of a polynomial, coefficient by coefficient."""

    def fn(c: Array, x: Array) -> Array:
        return jnp.sum(c * x[:, None] ** jnp.arange(c.shape[0]), axis=-1)

    def hand(c: Array, x: Array) -> Array:
        y = jnp.zeros_like(x)
        for k in range(c.shape[0] - 1, -1, -1):
            y = y * x + c[k]
        return y

    return TwoForms(fn, hand, (draw(12), draw.uniform(-1, 1, 16384)))


@snippet("one-hot products are gathers, and all of them come before the loop", frozen=(1, 2))
def hidden_markov_forward(draw: SnippetDraw) -> TwoForms:
    """Log-likelihood of a sequence of symbols under a hidden Markov model."""

    def moved(alpha: Array, seen: Array, transition: Array) -> tuple[Array, Array]:
        alpha = (alpha @ transition) * seen
        total = jnp.sum(alpha)
        return alpha / total, jnp.log(total)

    def fn(symbols: Array, transition: Array, emission: Array) -> Array:
        def step(alpha: Array, symbol: Array) -> tuple[Array, Array]:
            return moved(alpha, emission @ jax.nn.one_hot(symbol, emission.shape[1]), transition)

        n = transition.shape[0]
        return jnp.sum(lax.scan(step, jnp.full(n, 1 / n), symbols)[1])

    def hand(symbols: Array, transition: Array, emission: Array) -> Array:
        n = transition.shape[0]
        return jnp.sum(lax.scan(lambda a, s: moved(a, s, transition), jnp.full(n, 1 / n), emission.T[symbols])[1])

    return TwoForms(fn, hand, (draw.below(512, 256), draw.stochastic(64, 64), draw.stochastic(64, 512)))
