"""Snippets of loops: products out of scans, invariant work, powers, recurrences, neighbouring scans, stacked layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("products of all inputs at once, with concatenated inputs apart", frozen=(1, 2))
def lstm(draw: SnippetDraw) -> TwoForms:
    """A layer of long short-term memory over a sequence."""

    def gates(z: Array, c: Array) -> tuple[Array, Array]:
        i, f, g, o = jnp.split(z, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    def fn(xs: Array, w: Array, b: Array, h: Array) -> Array:
        def step(state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
            h, c = gates(jnp.concatenate([x, state[0]], axis=-1) @ w + b, state[1])
            return (h, c), h

        return lax.scan(step, (h, h), xs)[1]

    def hand(xs: Array, w: Array, b: Array, h: Array) -> Array:
        d = xs.shape[-1]

        def step(state: tuple[Array, Array], z: Array) -> tuple[tuple[Array, Array], Array]:
            h, c = gates(z + state[0] @ w[d:], state[1])
            return (h, c), h

        return lax.scan(step, (h, h), xs @ w[:d] + b)[1]

    return TwoForms(fn, hand, (draw(48, 8, 128), draw.weight(256, 512), draw(512), draw(8, 128)))


@snippet("repeated squaring (Markov chains)")
def transitions_after_many_steps(draw: SnippetDraw) -> TwoForms:
    """Transition probabilities of a Markov chain after 64 steps."""

    def hand(p: Array) -> Array:
        for _ in range(6):
            p = p @ p
        return p

    return TwoForms(lambda p: lax.fori_loop(0, 63, lambda _, q: q @ p, p), hand, (draw.stochastic(128, 128),))


@snippet("invariant Gram matrix: A' (A x - b) = (A' A) x - A' b")
def gradient_descent(draw: SnippetDraw) -> TwoForms:
    """Least squares by steps along the gradient."""

    def fn(a: Array, b: Array, x: Array) -> Array:
        return lax.fori_loop(0, 64, lambda _, x: x - 0.5 * (a.T @ (a @ x - b)) / a.shape[0], x)

    def hand(a: Array, b: Array, x: Array) -> Array:
        gram, c = a.T @ a / a.shape[0], a.T @ b / a.shape[0]
        return lax.fori_loop(0, 64, lambda _, x: x - 0.5 * (gram @ x - c), x)

    return TwoForms(fn, hand, (draw(2000, 48), draw(2000), draw(48)))


@snippet("two recurrences over one sequence are one loop, with products of all inputs before it", frozen=(1, 2))
def two_recurrences(draw: SnippetDraw) -> TwoForms:
    """Two recurrent layers over the same sequence."""

    def run(xs: Array, wx: Array, wh: Array) -> Array:
        def step(h: Array, x: Array) -> tuple[Array, None]:
            return jnp.tanh(x @ wx + h @ wh), None

        return lax.scan(step, jnp.zeros((xs.shape[1], wh.shape[0])), xs)[0]

    def fn(xs: Array, wx: Array, wh: Array) -> tuple[Array, Array]:
        return run(xs, wx[0], wh[0]), run(xs, wx[1], wh[1])

    def hand(xs: Array, wx: Array, wh: Array) -> tuple[Array, Array]:
        def step(h: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
            return (jnp.tanh(x[0] + h[0] @ wh[0]), jnp.tanh(x[1] + h[1] @ wh[1])), None

        first = jnp.zeros((xs.shape[1], wh.shape[1]))
        return lax.scan(step, (first, first), (xs @ wx[0], xs @ wx[1]))[0]

    return TwoForms(fn, hand, (draw(96, 8, 128), draw.weight(2, 128, 128), draw.weight(2, 128, 128)))


@snippet("on few cores a loop does half the work of an associative scan (Blelloch 1990)")
def linear_recurrence(draw: SnippetDraw) -> TwoForms:
    """A gated recurrence of many channels, as in state-space layers."""

    def fn(a: Array, b: Array) -> Array:
        def joined(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
            return x[0] * y[0], y[0] * x[1] + y[1]

        return lax.associative_scan(joined, (a, b))[1]

    def hand(a: Array, b: Array) -> Array:
        def step(h: Array, ab: tuple[Array, Array]) -> tuple[Array, Array]:
            h = ab[0] * h + ab[1]
            return h, h

        return lax.scan(step, jnp.zeros(a.shape[1]), (a, b))[1]

    return TwoForms(fn, hand, (draw.uniform(0.5, 1, 4096, 64), draw(4096, 64)))


@snippet("a loop over stacked layers is the layers, one after the other", frozen=(1, 2, 3))
def stacked_layers(draw: SnippetDraw) -> TwoForms:
    """Blocks of a network in a loop over their stacked weights."""

    def block(x: Array, g: Array, w1: Array, w2: Array) -> Array:
        y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g
        return x + jax.nn.gelu(y @ w1) @ w2

    def fn(x: Array, g: Array, w1: Array, w2: Array) -> Array:
        return lax.scan(lambda x, p: (block(x, *p), None), x, (g, w1, w2))[0]

    def hand(x: Array, g: Array, w1: Array, w2: Array) -> Array:
        for k in range(g.shape[0]):
            x = block(x, g[k], w1[k], w2[k])
        return x

    return TwoForms(
        fn, hand, (draw(32, 192), draw.uniform(0.5, 1.5, 6, 192), draw.weight(6, 192, 384), draw.weight(6, 384, 192))
    )


@snippet("a sum of outer products is a product of matrices")
def accumulated_products(draw: SnippetDraw) -> TwoForms:
    """Cross-covariance added up example by example."""

    def fn(x: Array, y: Array) -> Array:
        def step(c: Array, xy: tuple[Array, Array]) -> tuple[Array, None]:
            return c + jnp.outer(xy[0], xy[1]), None

        return lax.scan(step, jnp.zeros((x.shape[1], y.shape[1])), (x, y))[0]

    return TwoForms(fn, lambda x, y: x.T @ y, (draw(4096, 128), draw(4096, 128)))


@snippet("associativity: A' (A v) in place of (A' A) v")
def power_iteration(draw: SnippetDraw) -> TwoForms:
    """Leading right singular vector by power iteration."""

    def fn(a: Array, v: Array) -> Array:
        def step(_: int, v: Array) -> Array:
            v = a.T @ a @ v
            return v / jnp.linalg.norm(v)

        return lax.fori_loop(0, 8, step, v)

    def hand(a: Array, v: Array) -> Array:
        def step(_: int, v: Array) -> Array:
            v = a.T @ (a @ v)
            return v / jnp.linalg.norm(v)

        return lax.fori_loop(0, 8, step, v)

    return TwoForms(fn, hand, (draw(600, 400), draw(400)))


@snippet("a loop over independent rows is a batch", frozen=(1, 2))
def rows_by_map(draw: SnippetDraw) -> TwoForms:
    """A small network, one example after the other."""
    return TwoForms(
        lambda x, w, v: lax.map(lambda row: jnp.tanh(row @ w) @ v, x),
        lambda x, w, v: jnp.tanh(x @ w) @ v,
        (draw(256, 128), draw.weight(128, 256), draw.weight(256, 16)),
    )


@snippet("the inverse of a diagonal matrix divides, and is invariant")
def jacobi_iteration(draw: SnippetDraw) -> TwoForms:
    """Solution of a linear system by Jacobi's iteration."""

    def fn(a: Array, b: Array) -> Array:
        d = jnp.diag(jnp.diag(a))

        def step(_: int, x: Array) -> Array:
            return jnp.linalg.inv(d) @ (b - (a - d) @ x)

        return lax.fori_loop(0, 20, step, jnp.zeros_like(b))

    def hand(a: Array, b: Array) -> Array:
        d = jnp.diag(a)
        return lax.fori_loop(0, 20, lambda _, x: x + (b - a @ x) / d, jnp.zeros_like(b))

    return TwoForms(fn, hand, (draw(160, 160, scale=0.02) + 2 * np.eye(160, dtype=np.float32), draw(160)))


@snippet("associativity within a loop: U (V x) in place of (U V) x")
def low_rank_dynamics(draw: SnippetDraw) -> TwoForms:
    """A network of neurons whose connections have low rank, for a number of steps that is given."""

    def fn(u: Array, v: Array, x: Array, steps: Array) -> Array:
        def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
            return state[0] + 1, 0.9 * state[1] + 0.1 * jnp.tanh((u @ v) @ state[1])

        return lax.while_loop(lambda s: s[0] < steps, body, (jnp.int32(0), x))[1]

    def hand(u: Array, v: Array, x: Array, steps: Array) -> Array:
        def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
            return state[0] + 1, 0.9 * state[1] + 0.1 * jnp.tanh(u @ (v @ state[1]))

        return lax.while_loop(lambda s: s[0] < steps, body, (jnp.int32(0), x))[1]

    return TwoForms(fn, hand, (draw(800, 8, scale=0.2), draw(8, 800, scale=0.05), draw(800), np.int32(40)))
