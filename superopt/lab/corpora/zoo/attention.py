"""Snippets of attention: pooling, grouped heads, latent caches, windows, linear attention, selected positions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("a product with repeated heads is one with grouped rows (Ainslie et al. 2023)")
def grouped_heads_decode(draw: SnippetDraw) -> TwoForms:
    """One step of decoding with four query heads for each key head."""

    def fn(q: Array, k: Array, v: Array) -> Array:
        k, v = jnp.repeat(k, 4, axis=0), jnp.repeat(v, 4, axis=0)
        return jax.nn.softmax(q @ jnp.swapaxes(k, 1, 2) / 8.0, axis=-1) @ v

    def hand(q: Array, k: Array, v: Array) -> Array:
        p = jax.nn.softmax(q.reshape(8, 4, 64) @ jnp.swapaxes(k, 1, 2) / 8.0, axis=-1)
        return (p @ v).reshape(32, 1, 64)

    return TwoForms(fn, hand, (draw(32, 1, 64), draw(8, 512, 64), draw(8, 512, 64)))


@snippet("associativity: (Q K') V = Q (K' V) (Katharopoulos et al. 2020)")
def linear_attention(draw: SnippetDraw) -> TwoForms:
    """Attention with a feature map in place of the softmax."""

    def fn(q: Array, k: Array, v: Array) -> Array:
        scores = (jax.nn.elu(q) + 1) @ (jax.nn.elu(k) + 1).T
        return (scores / jnp.sum(scores, axis=-1, keepdims=True)) @ v

    def hand(q: Array, k: Array, v: Array) -> Array:
        q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
        return (q @ (k.T @ v)) / (q @ jnp.sum(k, 0))[:, None]

    return TwoForms(fn, hand, (draw(1024, 64), draw(1024, 64), draw(1024, 64)))


@snippet("a mean over positions commutes with all that is linear in them", frozen=(3,))
def mean_of_attention(draw: SnippetDraw) -> TwoForms:
    """Mean over the positions of an attention layer with its output projection."""

    def fn(q: Array, k: Array, v: Array, wo: Array) -> Array:
        return jnp.mean(jax.nn.softmax(q @ k.T / 8.0, axis=-1) @ v @ wo, axis=0)

    def hand(q: Array, k: Array, v: Array, wo: Array) -> Array:
        return (jnp.mean(jax.nn.softmax(q @ k.T / 8.0, axis=-1), 0) @ v) @ wo

    return TwoForms(fn, hand, (draw(512, 64), draw(512, 64), draw(512, 256), draw.weight(256, 256)))


@snippet("one-hot rows times a table are rows of it (Raffel et al. 2020)", frozen=(1,))
def bias_of_distances(draw: SnippetDraw) -> TwoForms:
    """Bias of attention scores by the bucket of their distance."""

    def bucket(n: int) -> Array:
        return jnp.clip(jnp.arange(n)[None, :] - jnp.arange(n)[:, None], -32, 31) + 32

    def fn(scores: Array, table: Array) -> Array:
        hot = jax.nn.one_hot(bucket(scores.shape[-1]), 64)
        return jax.nn.softmax(scores + jnp.einsum("qkb,bh->hqk", hot, table), axis=-1)

    def hand(scores: Array, table: Array) -> Array:
        return jax.nn.softmax(scores + table.T[:, bucket(scores.shape[-1])], axis=-1)

    return TwoForms(fn, hand, (draw(8, 192, 192), draw(64, 8)))


@snippet("a banded mask needs two blocks of keys for each block of queries (Beltagy et al. 2020)")
def sliding_window(draw: SnippetDraw) -> TwoForms:
    """Attention of each position to the 64 up to itself."""

    def fn(q: Array, k: Array, v: Array) -> Array:
        at = jnp.arange(q.shape[0])
        far = at[:, None] - at[None, :]
        scores = jnp.where((far >= 0) & (far < 64), q @ k.T / 8.0, -1e30)
        return jax.nn.softmax(scores, axis=-1) @ v

    def hand(q: Array, k: Array, v: Array) -> Array:
        def two(x: Array) -> Array:
            x = x.reshape(-1, 64, 64)
            return jnp.concatenate([jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]), x], axis=1)

        far = 64 + jnp.arange(64)[:, None] - jnp.arange(128)[None, :]
        there = (jnp.arange(q.shape[0] // 64)[:, None] > 0) | (jnp.arange(128) >= 64)
        seen = (far >= 0) & (far < 64) & there[:, None, :]
        scores = jnp.where(seen, q.reshape(-1, 64, 64) @ jnp.swapaxes(two(k), 1, 2) / 8.0, -1e30)
        return (jax.nn.softmax(scores, axis=-1) @ two(v)).reshape(q.shape)

    return TwoForms(fn, hand, (draw(1024, 64), draw(1024, 64), draw(1024, 64)))


@snippet("a mean over heads commutes with values that they share (Lim et al. 2021)")
def heads_with_shared_values(draw: SnippetDraw) -> TwoForms:
    """Interpretable attention: heads with values of their own kind alone are averaged."""

    def fn(q: Array, k: Array, v: Array) -> Array:
        p = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) / 4.0, axis=-1)
        return jnp.mean(jnp.einsum("hqk,kd->hqd", p, v), axis=0)

    def hand(q: Array, k: Array, v: Array) -> Array:
        p = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) / 4.0, axis=-1)
        return jnp.mean(p, 0) @ v

    return TwoForms(fn, hand, (draw(8, 192, 16), draw(8, 192, 16), draw(192, 256)))
