"""The frozen third of `science`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("contraction order: cores with vectors first (tensor trains, Oseledets 2011)")
def tensor_train_entry(draw: SnippetDraw) -> TwoForms:
    """Multilinear form of a tensor that is given by its cores."""

    def fn(a: Array, b: Array, c: Array, d: Array, x: Array) -> Array:
        whole = jnp.einsum("ir,rjs->ijs", a, b)
        whole = jnp.einsum("ijs,skt->ijkt", whole, c)
        whole = jnp.einsum("ijkt,tl->ijkl", whole, d)
        return jnp.einsum("ijkl,i,j,k,l->", whole, x[0], x[1], x[2], x[3])

    def hand(a: Array, b: Array, c: Array, d: Array, x: Array) -> Array:
        left = jnp.einsum("r,rjs,j->s", x[0] @ a, b, x[1])
        return jnp.einsum("s,skt,k,t->", left, c, x[2], d @ x[3])

    return TwoForms(fn, hand, (draw(24, 8), draw(8, 24, 8), draw(8, 24, 8), draw(8, 24), draw(4, 24)))


@snippet("Gram matrix of a Khatri-Rao product: (A * B)'(A * B) = A'A o B'B (Kolda and Bader 2009)")
def khatri_rao_gram(draw: SnippetDraw) -> TwoForms:
    """Normal matrix of a step of alternating least squares."""

    def fn(a: Array, b: Array) -> Array:
        kr = (a[:, None, :] * b[None, :, :]).reshape(-1, a.shape[1])
        return kr.T @ kr

    return TwoForms(fn, lambda a, b: (a.T @ a) * (b.T @ b), (draw(128, 32), draw(128, 32)))


@snippet("distributivity: <X, sum_r a_r o b_r o c_r> = sum_r X(a_r, b_r, c_r)")
def fit_of_factors(draw: SnippetDraw) -> TwoForms:
    """Inner product of a tensor with its canonical decomposition."""

    def fn(x: Array, a: Array, b: Array, c: Array) -> Array:
        approximation = jnp.sum(a[:, None, None, :] * b[None, :, None, :] * c[None, None, :, :], -1)
        return jnp.sum(x * approximation)

    def hand(x: Array, a: Array, b: Array, c: Array) -> Array:
        n = x.shape[0]
        first = (x.reshape(n * n, n) @ c).reshape(n, n, -1)
        return jnp.sum(a * jnp.sum(first * b, 1))

    return TwoForms(fn, hand, (draw(64, 64, 64), draw(64, 16), draw(64, 16), draw(64, 16)))


@snippet("partial trace of a pure state: psi psi', traced over its second part, is Psi Psi'")
def reduced_density_matrix(draw: SnippetDraw) -> TwoForms:
    """Density matrix of a part of a system in a pure state."""

    def fn(psi: Array) -> Array:
        rho = jnp.outer(psi, psi).reshape(32, 32, 32, 32)
        return jnp.trace(rho, axis1=1, axis2=3)

    def hand(psi: Array) -> Array:
        psi = psi.reshape(32, 32)
        return psi @ psi.T

    return TwoForms(fn, hand, (draw(1024, scale=1 / 32),))


@snippet("associativity: (V D V') x = V (D (V' x))", frozen=(0,))
def spectral_function(draw: SnippetDraw) -> TwoForms:
    """Propagation of a state by the eigenvectors of its generator."""

    def fn(vectors: Array, values: Array, state: Array) -> Array:
        return vectors @ jnp.diag(jnp.exp(-0.1 * values)) @ vectors.T @ state

    def hand(vectors: Array, values: Array, state: Array) -> Array:
        return vectors @ (jnp.exp(-0.1 * values) * (vectors.T @ state))

    return TwoForms(fn, hand, (draw.weight(400, 400), draw.uniform(0, 2, 400), draw(400)))


@snippet("Kronecker product with identities acts on one axis", frozen=(0,))
def one_qubit_gate(draw: SnippetDraw) -> TwoForms:
    """A gate on one of ten qubits."""

    def fn(gate: Array, state: Array) -> Array:
        return jnp.kron(jnp.kron(jnp.eye(32), gate), jnp.eye(16)) @ state

    def hand(gate: Array, state: Array) -> Array:
        return jnp.einsum("ab,ibj->iaj", gate, state.reshape(32, 2, 16)).ravel()

    return TwoForms(fn, hand, (draw(2, 2), draw(1024)))


@snippet("product of powers: prod_s c_s^n_s = exp(sum_s n_s log c_s)", frozen=(1, 2))
def mass_action_rates(draw: SnippetDraw) -> TwoForms:
    """Rates of reactions by the law of mass action."""

    def fn(c: Array, orders: Array, k: Array) -> Array:
        return k * jnp.prod(c[:, None, :] ** orders, axis=-1)

    def hand(c: Array, orders: Array, k: Array) -> Array:
        return k * jnp.exp(jnp.log(c) @ orders.T)

    orders = draw.below(3, 96, 48).astype(np.float32) * draw.flags(0.1, 96, 48)
    return TwoForms(fn, hand, (draw.uniform(0.5, 2, 128, 48), orders, draw.uniform(0.1, 1, 96)))
