"""Snippets of science: many bodies, tensors, quantum states, kinetics, fields on grids, derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("linearity: sum_j w_ij (x_j - x_i) = (W x)_i - x_i sum_j w_ij", cancellation=True)
def gravity(draw: SnippetDraw) -> TwoForms:
    """Accelerations of bodies that attract each other, softened."""

    def strengths(x: Array, m: Array) -> Array:
        d = x[None] - x[:, None]
        return m / (jnp.sum(d * d, -1) + 0.1) ** 1.5

    def fn(x: Array, m: Array) -> Array:
        return jnp.sum(strengths(x, m)[:, :, None] * (x[None] - x[:, None]), axis=1)

    def hand(x: Array, m: Array) -> Array:
        s = jnp.sum(x * x, -1)
        w = m * lax.rsqrt(s[:, None] + s - 2 * (x @ x.T) + 0.1) ** 3
        return w @ x - jnp.sum(w, 1, keepdims=True) * x

    return TwoForms(fn, hand, (draw(512, 3), draw.uniform(0.5, 1.5, 512)))


@snippet("Kronecker sum: (A (x) I + I (x) B) vec X = vec(A X + X B')", frozen=(0, 1))
def laplacian_of_grid(draw: SnippetDraw) -> TwoForms:
    """Product of a grid's Laplacian with a field."""

    def fn(a: Array, b: Array, field: Array) -> Array:
        whole = jnp.kron(a, jnp.eye(32)) + jnp.kron(jnp.eye(32), b)
        return (whole @ field.ravel()).reshape(field.shape)

    return TwoForms(fn, lambda a, b, field: a @ field + field @ b.T, (draw(32, 32), draw(32, 32), draw(32, 32)))


@snippet("trace with an outer product: tr(psi psi' O) = psi' O psi", frozen=(1,))
def expectation_value(draw: SnippetDraw) -> TwoForms:
    """Expectation of an observable in a pure state."""
    return TwoForms(
        lambda psi, o: jnp.trace(jnp.outer(psi, psi) @ o),
        lambda psi, o: psi @ (o @ psi),
        (draw(400, scale=0.05), draw.definite(400)),
    )


@snippet("associativity: small matrices are multiplied first")
def chain_of_rotations(draw: SnippetDraw) -> TwoForms:
    """A cloud of points turned by four joints, one after the other."""

    def fn(points: Array, joints: Array) -> Array:
        for k in range(4):
            points = points @ joints[k].T
        return points

    def hand(points: Array, joints: Array) -> Array:
        return points @ (joints[3] @ joints[2] @ joints[1] @ joints[0]).T

    return TwoForms(fn, hand, (draw(50000, 3), draw(4, 3, 3)))


@snippet("cosine of a difference: sum_ij cos(a_i - a_j) = (sum cos a)^2 + (sum sin a)^2")
def structure_factor(draw: SnippetDraw) -> TwoForms:
    """Structure factor of a configuration of atoms."""

    def fn(x: Array, k: Array) -> Array:
        phase = jnp.einsum("ijd,kd->kij", x[:, None] - x[None], k)
        return jnp.sum(jnp.cos(phase), axis=(1, 2)) / x.shape[0]

    def hand(x: Array, k: Array) -> Array:
        a = k @ x.T
        return (jnp.sum(jnp.cos(a), 1) ** 2 + jnp.sum(jnp.sin(a), 1) ** 2) / x.shape[0]

    return TwoForms(fn, hand, (draw(128, 3), draw(32, 3, scale=0.3)))


@snippet("exponential of a sum: a Gaussian in two dimensions is a product of two")
def gaussian_splats(draw: SnippetDraw) -> TwoForms:
    """Field of many Gaussian sources on a grid."""

    def fn(x: Array, y: Array, centres: Array, weight: Array) -> Array:
        dx, dy = x[:, None, None] - centres[:, 0], y[None, :, None] - centres[:, 1]
        return jnp.sum(weight * jnp.exp(-(dx**2 + dy**2) / 0.5), axis=-1)

    def hand(x: Array, y: Array, centres: Array, weight: Array) -> Array:
        gx = jnp.exp(-((x[:, None] - centres[:, 0]) ** 2) / 0.5)
        gy = jnp.exp(-((y[:, None] - centres[:, 1]) ** 2) / 0.5)
        return (gx * weight) @ gy.T

    return TwoForms(fn, hand, (draw(128), draw(128), draw(64, 2), draw.uniform(0, 1, 64)))


@snippet("chain rule: a Jacobian times a vector is one directional derivative")
def jacobian_vector_product(draw: SnippetDraw) -> TwoForms:
    """Sensitivity of a network's outputs in one direction."""

    def net(w1: Array, w2: Array, x: Array) -> Array:
        return jnp.tanh(jnp.tanh(x @ w1) @ w2)

    def fn(w1: Array, w2: Array, x: Array, v: Array) -> Array:
        return jax.jacfwd(lambda y: net(w1, w2, y))(x) @ v

    def hand(w1: Array, w2: Array, x: Array, v: Array) -> Array:
        return jax.jvp(lambda y: net(w1, w2, y), (x,), (v,))[1]

    return TwoForms(fn, hand, (draw.weight(256, 256), draw.weight(256, 256), draw(256), draw(256)))


@snippet("Pearlmutter 1994: a Hessian times a vector is the derivative of a gradient")
def hessian_vector_product(draw: SnippetDraw) -> TwoForms:
    """Curvature of a loss in one direction."""

    def loss(x: Array, a: Array, y: Array) -> Array:
        return jnp.mean(jnp.log1p(jnp.exp(-y * (a @ x))))

    def fn(x: Array, v: Array, a: Array, y: Array) -> Array:
        return jax.hessian(loss)(x, a, y) @ v

    def hand(x: Array, v: Array, a: Array, y: Array) -> Array:
        return jax.jvp(lambda z: jax.grad(loss)(z, a, y), (x,), (v,))[1]

    return TwoForms(fn, hand, (draw(128, scale=0.1), draw(128), draw(400, 128), np.sign(draw(400))))
