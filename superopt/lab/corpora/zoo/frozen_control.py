"""The frozen third of `control`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("(I - K H) P = P - K (H P), and one factorisation of S (Kalman 1960)", frozen=(3, 4))
def kalman_update(draw: SnippetDraw) -> TwoForms:
    """Update of a state and its covariance by a measurement, with its log-likelihood."""

    def fn(x: Array, p: Array, z: Array, h: Array, r: Array) -> tuple[Array, Array, Array]:
        s = h @ p @ h.T + r
        k = p @ h.T @ jnp.linalg.inv(s)
        e = z - h @ x
        nll = 0.5 * (e @ jnp.linalg.inv(s) @ e + jnp.linalg.slogdet(s)[1])
        return x + k @ e, (jnp.eye(p.shape[0]) - k @ h) @ p, nll

    def hand(x: Array, p: Array, z: Array, h: Array, r: Array) -> tuple[Array, Array, Array]:
        ph, hp, e = p @ h.T, h @ p, z - h @ x
        s = h @ ph + r
        solved = jnp.linalg.solve(s, jnp.concatenate([hp, e[:, None]], axis=1))
        nll = 0.5 * (e @ solved[:, -1] + jnp.linalg.slogdet(s)[1])
        return x + ph @ solved[:, -1], p - ph @ solved[:, :-1], nll

    return TwoForms(fn, hand, (draw(256), draw.definite(256), draw(16), draw.weight(16, 256), draw.definite(16)))


@snippet("Sherman-Morrison formula")
def recursive_least_squares(draw: SnippetDraw) -> TwoForms:
    """Covariance and gain of a regression after one more example."""

    def fn(p: Array, x: Array) -> tuple[Array, Array]:
        p = jnp.linalg.inv(jnp.linalg.inv(p) + jnp.outer(x, x))
        return p, p @ x

    def hand(p: Array, x: Array) -> tuple[Array, Array]:
        px, xp = p @ x, x @ p
        c = 1 / (1 + x @ px)
        return p - c * jnp.outer(px, xp), c * px

    return TwoForms(fn, hand, (draw.definite(128), draw(128, scale=0.1)))


@snippet("A^k B (A^k B)' needs the narrow product alone")
def controllability_gramian(draw: SnippetDraw) -> TwoForms:
    """Gramian of a linear system over a finite horizon."""

    def fn(a: Array, b: Array) -> Array:
        total, power = jnp.zeros_like(a), jnp.eye(a.shape[0])
        for _ in range(16):
            total = total + power @ b @ b.T @ power.T
            power = power @ a
        return total

    def hand(a: Array, b: Array) -> Array:
        parts = [b]
        for _ in range(15):
            parts.append(a @ parts[-1])
        wide = jnp.concatenate(parts, axis=1)
        return wide @ wide.T

    return TwoForms(fn, hand, (draw.weight(128, 128) * np.float32(0.8), draw(128, 4)))
