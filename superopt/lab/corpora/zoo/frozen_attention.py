"""The frozen third of `attention`."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("two linear maps: x Wk q = x (Wk q), p (x Wv) = (p x) Wv", frozen=(1, 2, 3))
def pooling_by_query(draw: SnippetDraw) -> TwoForms:
    """Attention of one learned query over a sequence."""

    def fn(x: Array, q: Array, wk: Array, wv: Array) -> Array:
        p = jax.nn.softmax((x @ wk) @ q / math.sqrt(q.shape[0]), axis=-1)
        return jnp.einsum("bs,bsd->bd", p, x @ wv)

    def hand(x: Array, q: Array, wk: Array, wv: Array) -> Array:
        p = jax.nn.softmax(x @ (wk @ q) / math.sqrt(q.shape[0]), axis=-1)
        return jnp.einsum("bs,bsd->bd", p, x) @ wv

    return TwoForms(fn, hand, (draw(8, 128, 384), draw(384), draw.weight(384, 384), draw.weight(384, 384)))


@snippet("one key head for all queries: heads are rows (Shazeer 2019)")
def multi_query_prefill(draw: SnippetDraw) -> TwoForms:
    """Attention of eight query heads over one key head."""

    def fn(q: Array, k: Array, v: Array) -> Array:
        k, v = (jnp.broadcast_to(x[:, None], (x.shape[0], 8, *x.shape[1:])) for x in (k, v))
        return jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8.0, axis=-1) @ v

    def hand(q: Array, k: Array, v: Array) -> Array:
        rows = q.reshape(q.shape[0], -1, q.shape[3])
        return (jax.nn.softmax(rows @ jnp.swapaxes(k, 1, 2) / 8.0, axis=-1) @ v).reshape(q.shape)

    return TwoForms(fn, hand, (draw(2, 8, 128, 64), draw(2, 256, 64), draw(2, 256, 64)))


@snippet("chunks: masked scores within, a running state between (Hua et al. 2022)")
def causal_linear_attention(draw: SnippetDraw) -> TwoForms:
    """Linear attention of which each position sees those before it."""

    def fn(q: Array, k: Array, v: Array) -> Array:
        return jnp.tril(q @ k.T) @ v

    def hand(q: Array, k: Array, v: Array) -> Array:
        q, k, v = (x.reshape(16, 64, 64) for x in (q, k, v))
        states = jnp.cumsum(jnp.swapaxes(k, 1, 2) @ v, axis=0)
        before = jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])
        return (jnp.tril(q @ jnp.swapaxes(k, 1, 2)) @ v + q @ before).reshape(1024, 64)

    return TwoForms(fn, hand, (draw(1024, 64), draw(1024, 64), draw(1024, 64)))


@snippet("absorbed projections of a latent cache (DeepSeek-V2, 2024)", frozen=(2, 3))
def latent_cache_decode(draw: SnippetDraw) -> TwoForms:
    """One step of decoding from a cache of compressed keys and values."""

    def fn(q: Array, cache: Array, wk: Array, wv: Array) -> Array:
        k, v = jnp.einsum("tc,hcd->htd", cache, wk), jnp.einsum("tc,hcd->htd", cache, wv)
        p = jax.nn.softmax(jnp.einsum("hd,htd->ht", q, k) / 8.0, axis=-1)
        return jnp.einsum("ht,htd->hd", p, v)

    def hand(q: Array, cache: Array, wk: Array, wv: Array) -> Array:
        p = jax.nn.softmax(jnp.einsum("hd,hcd->hc", q, wk) @ cache.T / 8.0, axis=-1)
        return jnp.einsum("hc,hcd->hd", p @ cache, wv)

    return TwoForms(fn, hand, (draw(8, 64), draw(512, 128), draw.weight(8, 128, 64), draw.weight(8, 128, 64)))


@snippet("a row of a product is the product of a row", frozen=(1, 2, 3, 4))
def last_position(draw: SnippetDraw) -> TwoForms:
    """Next-token features of a layer of which only the last position is read."""

    def fn(x: Array, wq: Array, wk: Array, wv: Array, wo: Array) -> Array:
        p = jax.nn.softmax((x @ wq) @ (x @ wk).T / 16.0, axis=-1)
        return jnp.tanh((p @ (x @ wv)) @ wo)[-1]

    def hand(x: Array, wq: Array, wk: Array, wv: Array, wo: Array) -> Array:
        p = jax.nn.softmax(x @ (wk @ (wq.T @ x[-1])) / 16.0)
        return jnp.tanh(((p @ x) @ wv) @ wo)

    return TwoForms(fn, hand, (draw(256, 256), *(draw.weight(256, 256) for _ in range(4))))


@snippet("a gather of rows commutes with a product", frozen=(2,))
def masked_language_head(draw: SnippetDraw) -> TwoForms:
    """Scores over a vocabulary at the masked positions alone."""
    return TwoForms(
        lambda h, where, w: (h @ w)[where],
        lambda h, where, w: h[where] @ w,
        (draw(512, 256), draw.below(512, 32), draw.weight(256, 2048)),
    )


@snippet("a product with repeated rows is a repeated product", frozen=(2, 3))
def shared_context(draw: SnippetDraw) -> TwoForms:
    """Attention of a batch of queries over one context."""

    def fn(q: Array, context: Array, wk: Array, wv: Array) -> Array:
        context = jnp.repeat(context[None], q.shape[0], axis=0)
        k, v = context @ wk, context @ wv
        return jax.nn.softmax(q @ jnp.swapaxes(k, 1, 2) / 16.0, axis=-1) @ v

    def hand(q: Array, context: Array, wk: Array, wv: Array) -> Array:
        k, v = context @ wk, context @ wv
        return (jax.nn.softmax(q.reshape(-1, 256) @ k.T / 16.0, axis=-1) @ v).reshape(q.shape)

    return TwoForms(fn, hand, (draw(16, 8, 256), draw(128, 256), draw.weight(256, 256), draw.weight(256, 256)))
