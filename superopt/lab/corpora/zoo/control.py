"""Snippets of control and estimation: filters, low-rank updates, fusion, state-space models."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("Woodbury identity, which divides by the diagonal", cancellation=True)
def woodbury_solve(draw: SnippetDraw) -> TwoForms:
    """Solution with a diagonal matrix plus one of low rank."""

    def fn(d: Array, u: Array, y: Array) -> Array:
        return jnp.linalg.inv(jnp.diag(d) + u @ u.T) @ y

    def hand(d: Array, u: Array, y: Array) -> Array:
        ud, yd = u / d[:, None], y / d
        return yd - ud @ jnp.linalg.solve(jnp.eye(u.shape[1]) + u.T @ ud, u.T @ yd)

    return TwoForms(fn, hand, (draw.uniform(1, 2, 384), draw(384, 8, scale=0.1), draw(384)))


@snippet("Sylvester's identity: det(I + U U') = det(I + U' U)")
def logdet_of_low_rank(draw: SnippetDraw) -> TwoForms:
    """Log-determinant of the identity plus a matrix of low rank."""
    return TwoForms(
        lambda u: jnp.linalg.slogdet(jnp.eye(u.shape[0]) + u @ u.T)[1],
        lambda u: jnp.linalg.slogdet(jnp.eye(u.shape[1]) + u.T @ u)[1],
        (draw(320, 12, scale=0.1),),
    )


@snippet("products of all inputs at once, before and after the recurrence", frozen=(1, 2, 3))
def state_space_rollout(draw: SnippetDraw) -> TwoForms:
    """Outputs of a linear system over a sequence of inputs."""

    def fn(u: Array, a: Array, b: Array, c: Array, x: Array) -> Array:
        def step(x: Array, u: Array) -> tuple[Array, Array]:
            x = a @ x + b @ u
            return x, c @ x

        return lax.scan(step, x, u)[1]

    def hand(u: Array, a: Array, b: Array, c: Array, x: Array) -> Array:
        def step(x: Array, u: Array) -> tuple[Array, Array]:
            x = a @ x + u
            return x, x

        return lax.scan(step, x, u @ b.T)[1] @ c.T

    a = draw.weight(128, 128) * np.float32(0.5)
    return TwoForms(fn, hand, (draw(256, 128), a, draw.weight(128, 128), draw.weight(128, 128), draw(128)))


@snippet("associativity: C (A (A ... B)) without powers of A (Ho and Kalman 1966)")
def markov_parameters(draw: SnippetDraw) -> TwoForms:
    """Impulse response of a linear system."""

    def fn(a: Array, b: Array, c: Array) -> Array:
        def step(power: Array, _: None) -> tuple[Array, Array]:
            return a @ power, c @ power @ b

        return lax.scan(step, jnp.eye(a.shape[0]), None, length=32)[1]

    def hand(a: Array, b: Array, c: Array) -> Array:
        def step(x: Array, _: None) -> tuple[Array, Array]:
            return a @ x, c @ x

        return lax.scan(step, b, None, length=32)[1]

    return TwoForms(fn, hand, (draw.weight(96, 96) * np.float32(0.8), draw(96, 4), draw(4, 96)))


@snippet("repeated squaring")
def euler_steps(draw: SnippetDraw) -> TwoForms:
    """Many steps of a linear system from many starts."""

    def fn(a: Array, x: Array) -> Array:
        return lax.fori_loop(0, 256, lambda _, x: x + 0.01 * (a @ x), x)

    def hand(a: Array, x: Array) -> Array:
        step = jnp.eye(a.shape[0]) + 0.01 * a
        for _ in range(8):
            step = step @ step
        return step @ x

    return TwoForms(fn, hand, (draw.weight(64, 64), draw(64, 64)))


@snippet("trace of a product: tr(X Q X') = sum of (X Q) * X")
def stage_costs(draw: SnippetDraw) -> TwoForms:
    """Quadratic cost of a trajectory."""
    return TwoForms(
        lambda x, q: jnp.trace(x @ q @ x.T), lambda x, q: jnp.sum((x @ q) * x), (draw(1000, 32), draw.definite(32))
    )


@snippet("parallel sum: (A^-1 + B^-1)^-1 = A (A + B)^-1 B")
def sensor_fusion(draw: SnippetDraw) -> TwoForms:
    """Best estimate from two, with their covariances."""

    def fn(p: Array, x: Array, q: Array, y: Array) -> Array:
        a, b = jnp.linalg.inv(p), jnp.linalg.inv(q)
        return jnp.linalg.inv(a + b) @ (a @ x + b @ y)

    def hand(p: Array, x: Array, q: Array, y: Array) -> Array:
        solved = jnp.linalg.solve(p + q, jnp.stack([x, y], 1))
        return q @ solved[:, 0] + p @ solved[:, 1]

    return TwoForms(fn, hand, (draw.definite(128), draw(128), draw.definite(128), draw(128)))
