"""Snippets on graphs: messages, gathers, adjacency matrices, Laplacians, readouts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("a gather of rows commutes with a linear map of each row", frozen=(3,))
def messages_of_sources(draw: SnippetDraw) -> TwoForms:
    """Messages of source nodes through a layer, added up at their targets."""

    def fn(h: Array, source: Array, target: Array, w: Array) -> Array:
        return jax.ops.segment_sum(jax.nn.relu(h[source] @ w), target, 1000)

    def hand(h: Array, source: Array, target: Array, w: Array) -> Array:
        return jax.ops.segment_sum(jax.nn.relu(h @ w)[source], target, 1000)

    return TwoForms(fn, hand, (draw(1000, 128), draw.below(1000, 8000), draw.below(1000, 8000), draw.weight(128, 128)))


@snippet("inner product with concatenated vectors is a sum: a.[x, y] = a1.x + a2.y", frozen=(1,))
def graph_attention_scores(draw: SnippetDraw) -> TwoForms:
    """Scores of all pairs of nodes, as in graph attention networks (Velickovic et al. 2018)."""

    def fn(h: Array, a: Array) -> Array:
        n, d = h.shape
        pairs = jnp.concatenate(
            [jnp.broadcast_to(h[:, None], (n, n, d)), jnp.broadcast_to(h[None], (n, n, d))], axis=-1
        )
        return jax.nn.softmax(jax.nn.leaky_relu(pairs @ a, 0.2), axis=-1)

    def hand(h: Array, a: Array) -> Array:
        d = h.shape[1]
        return jax.nn.softmax(jax.nn.leaky_relu((h @ a[:d])[:, None] + h @ a[d:], 0.2), axis=-1)

    return TwoForms(fn, hand, (draw(256, 32), draw(64, scale=0.2)))


@snippet("a linear map of a difference is a difference of maps", frozen=(1,))
def all_pairs_messages(draw: SnippetDraw) -> TwoForms:
    """Relations of all pairs of objects through a layer, added up for each object."""

    def fn(x: Array, w: Array) -> Array:
        return jnp.sum(jax.nn.relu((x[:, None] - x[None]) @ w), axis=1)

    def hand(x: Array, w: Array) -> Array:
        y = x @ w
        return jnp.sum(jax.nn.relu(y[:, None] - y[None]), axis=1)

    return TwoForms(fn, hand, (draw(128, 64), draw.weight(64, 64)))


@snippet("(D - A) x = d x - A x, D diagonal", frozen=(0,))
def laplacian_product(draw: SnippetDraw) -> TwoForms:
    """Product of a graph's Laplacian with signals on its nodes."""

    def fn(a: Array, x: Array) -> Array:
        return (jnp.diag(jnp.sum(a, axis=1)) - a) @ x

    return TwoForms(fn, lambda a, x: jnp.sum(a, 1)[:, None] * x - a @ x, (draw.flags(0.02, 1000, 1000), draw(1000, 16)))


@snippet("diagonal factors scale rows, and A (X W) is cheaper than (A X) W (Kipf and Welling 2017)", frozen=(2,))
def graph_convolution(draw: SnippetDraw) -> TwoForms:
    """A layer of a graph convolutional network with a dense adjacency."""

    def fn(a: Array, x: Array, w: Array) -> Array:
        a = a + jnp.eye(a.shape[0])
        root = jnp.diag(1 / jnp.sqrt(jnp.sum(a, axis=1)))
        return jax.nn.relu(root @ a @ root @ x @ w)

    def hand(a: Array, x: Array, w: Array) -> Array:
        s = lax.rsqrt(jnp.sum(a, 1, keepdims=True) + 1)
        y = s * (x @ w)
        return jax.nn.relu(s * (a @ y + y))

    return TwoForms(fn, hand, (draw.flags(0.02, 500, 500), draw(500, 128), draw.weight(128, 16)))


@snippet("associativity: A (A (A x)) (Wu et al. 2019)")
def three_hops(draw: SnippetDraw) -> TwoForms:
    """Features after three steps along the edges."""
    return TwoForms(
        lambda a, x: a @ a @ a @ x, lambda a, x: a @ (a @ (a @ x)), (draw.flags(0.02, 500, 500), draw(500, 16))
    )


@snippet("trace of a product: tr(A A A) = sum of (A A) * A'")
def triangles(draw: SnippetDraw) -> TwoForms:
    """Number of triangles of a graph."""
    return TwoForms(
        lambda a: jnp.trace(a @ a @ a) / 6, lambda a: jnp.sum((a @ a) * a.T) / 6, (draw.flags(0.05, 400, 400),)
    )


@snippet("a sum by segments of an affine map: W sum(x) + count b", frozen=(2, 3))
def readout_of_graphs(draw: SnippetDraw) -> TwoForms:
    """Sums over the nodes of many graphs after an affine layer."""

    def fn(x: Array, graph: Array, w: Array, b: Array) -> Array:
        return jax.ops.segment_sum(x @ w + b, graph, 64)

    def hand(x: Array, graph: Array, w: Array, b: Array) -> Array:
        count = jax.ops.segment_sum(jnp.ones(x.shape[0]), graph, 64)
        return jax.ops.segment_sum(x, graph, 64) @ w + count[:, None] * b

    return TwoForms(fn, hand, (draw(4000, 64), np.sort(draw.below(64, 4000)), draw.weight(64, 256), draw(256)))


@snippet("transform before gathering: rows of h W_r for every relation (Schlichtkrull et al. 2018)", frozen=(4,))
def relational_messages(draw: SnippetDraw) -> TwoForms:
    """Messages with a matrix for each kind of edge."""

    def fn(h: Array, source: Array, kind: Array, target: Array, w: Array) -> Array:
        return jax.ops.segment_sum(jnp.einsum("ed,edf->ef", h[source], w[kind]), target, 200)

    def hand(h: Array, source: Array, kind: Array, target: Array, w: Array) -> Array:
        return jax.ops.segment_sum(jnp.einsum("nd,rdf->rnf", h, w)[kind, source], target, 200)

    args = draw(200, 64), draw.below(200, 2000), draw.below(8, 2000), draw.below(200, 2000), draw.weight(8, 64, 64)
    return TwoForms(fn, hand, args)


@snippet("associativity: H (W (H' X))", frozen=(0,))
def hypergraph_convolution(draw: SnippetDraw) -> TwoForms:
    """Smoothing over the edges of a hypergraph (Feng et al. 2019)."""
    return TwoForms(
        lambda h, w, x: h @ jnp.diag(w) @ h.T @ x,
        lambda h, w, x: h @ (w[:, None] * (h.T @ x)),
        (draw.flags(0.02, 600, 400), draw.uniform(0.5, 1, 400), draw(600, 16)),
    )
