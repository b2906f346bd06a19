"""The frozen third of `graphs`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("a product with concatenated rows is a sum of products", frozen=(3,))
def edge_features(draw: SnippetDraw) -> TwoForms:
    """Edges from both of their nodes, as in message-passing networks (Gilmer et al. 2017)."""

    def fn(h: Array, source: Array, target: Array, w: Array) -> Array:
        return jax.nn.relu(jnp.concatenate([h[source], h[target]], axis=-1) @ w)

    def hand(h: Array, source: Array, target: Array, w: Array) -> Array:
        d = h.shape[1]
        return jax.nn.relu((h @ w[:d])[source] + (h @ w[d:])[target])

    return TwoForms(fn, hand, (draw(600, 96), draw.below(600, 6000), draw.below(600, 6000), draw.weight(192, 64)))


@snippet("rank-one update: (aP + b 1') r = a P r + b sum(r)")
def teleporting_walk(draw: SnippetDraw) -> TwoForms:
    """One step of PageRank from many starts."""

    def fn(p: Array, v: Array, r: Array) -> Array:
        n = p.shape[0]
        google = 0.85 * p + 0.15 * jnp.outer(v, jnp.ones(n))
        return google @ r

    def hand(p: Array, v: Array, r: Array) -> Array:
        return 0.85 * (p @ r) + 0.15 * v[:, None] * jnp.sum(r, 0)

    return TwoForms(fn, hand, (draw.stochastic(1000, 1000), draw.stochastic(1000), draw.stochastic(1000, 4)))


@snippet("a sum by segments commutes with a linear map", frozen=(4,))
def weighted_messages(draw: SnippetDraw) -> TwoForms:
    """Neighbours weighted by attention, through a layer."""

    def fn(h: Array, alpha: Array, source: Array, target: Array, w: Array) -> Array:
        return jax.ops.segment_sum(alpha[:, None] * (h[source] @ w), target, 800)

    def hand(h: Array, alpha: Array, source: Array, target: Array, w: Array) -> Array:
        return jax.ops.segment_sum(alpha[:, None] * (h @ w)[source], target, 800)

    args = draw(800, 96), draw.uniform(0, 1, 8000), draw.below(800, 8000), draw.below(800, 8000), draw.weight(96, 96)
    return TwoForms(fn, hand, args)


@snippet("product with an incidence matrix is a sum by segments")
def incidence_product(draw: SnippetDraw) -> TwoForms:
    """Flows of edges added up at the nodes."""

    def fn(flow: Array, target: Array) -> Array:
        incidence = (target[None, :] == jnp.arange(500)[:, None]).astype(flow.dtype)
        return incidence @ flow

    return TwoForms(fn, lambda flow, t: jax.ops.segment_sum(flow, t, 500), (draw(4000, 32), draw.below(500, 4000)))
