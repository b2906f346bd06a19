"""Linear algebra: chains and sums of products, small batched products, distances."""

from __future__ import annotations

import random
from typing import Any

import jax.numpy as jnp

from superopt.lab.training.families import layers as L
from superopt.lab.training.program import Described, Maker, WeightSource, spec

_SIZES = (8, 24, 40, 97, 130, 200, 288, 350, 520, 777)


def chains(rng: random.Random) -> Described:
    """Products of three or four matrices, sums that share a factor, updates of low rank."""
    m, n, k, p = (rng.choice(_SIZES) for _ in range(4))
    rank = rng.choice((2, 5, 16))

    def fn(w: WeightSource, a: Any, b: Any, x: Any) -> Any:
        c = w(k, n)
        shared = a @ c + b @ c
        chain = (a @ w(k, rank)) @ (w(rank, p) @ w(p, n))
        scaled = (w.positive(m)[:, None] * a) @ c
        left = (a @ b.T) @ x
        update = x + w(m, rank) @ (w(rank, m) @ x)
        return shared + chain, jnp.tanh(scaled), left, update.T @ x, (x * 2.0) @ (w(p, n) * 0.5)

    return Described(fn, (spec(m, k), spec(m, k), spec(m, p)))


def forms(rng: random.Random) -> Described:
    """Quadratic and bilinear forms, Gram matrices, traces, outer products, triangular masks."""
    rows, width = rng.choice((1, 4, 64, 150, 333)), rng.choice((50, 96, 177, 256, 512, 1000))

    def fn(w: WeightSource, x: Any, y: Any) -> Any:
        form = jnp.einsum("ri,ij,rj->r", x, w(width, width), y)
        gram = x.T @ x / rows + 1e-3 * jnp.eye(width, dtype=jnp.float32)
        trace = jnp.sum(x * (y @ w(width, width)))
        outer = jnp.einsum("ri,rj->ij", x, y)
        lower = jnp.tril(outer + outer.T)
        v = w(width, 1)[:, 0]
        steps = v
        for _ in range(2):
            steps = gram @ steps
            steps = steps / jnp.sqrt(jnp.sum(steps * steps) + 1e-6)
        return form, trace, lower @ v, steps, (x - y) @ (w(width, 7) + w(width, 7))

    return Described(fn, (spec(rows, width), spec(rows, width)))


def small_batches(rng: random.Random) -> Described:
    """Many small products: chains of transforms, blocks of a block-diagonal matrix, experts, capsules."""
    count = rng.choice((33, 100, 256, 600, 2000))
    size, width = rng.choice((2, 3, 4, 5, 8)), rng.choice((4, 9, 16, 30))
    blocks = rng.choice((4, 6, 12))

    def fn(w: WeightSource, a: Any, b: Any, x: Any) -> Any:
        pose = a @ b
        points = jnp.einsum("nij,njk->nik", pose, w(count, size, width))
        turned = jnp.einsum("nij,nkj->nik", a, b)
        inner = jnp.einsum("nij,nij->n", a, b)
        y = jnp.einsum("rbi,bij->rbj", x.reshape(x.shape[0], blocks, -1), w(blocks, x.shape[1] // blocks, width))
        experts = jnp.einsum("rbj,rb->rj", L.relu(y), L.softmax(x @ w(x.shape[1], blocks)))
        return points * inner[:, None, None], turned + jnp.swapaxes(pose, 1, 2), experts

    rows = rng.choice((1, 7, 32))
    return Described(fn, (spec(count, size, size), spec(count, size, size), spec(rows, blocks * rng.choice((8, 21)))))


def distances(rng: random.Random) -> Described:
    """Distances to centres: radial kernels, soft assignments, mixtures, nearest centres."""
    rows, centres, width = (
        rng.choice((1, 20, 90, 250, 700)),
        rng.choice((32, 60, 130, 256)),
        rng.choice((5, 16, 47, 120, 300)),
    )

    def fn(w: WeightSource, x: Any) -> Any:
        c = w(centres, width)
        d = jnp.sum(x * x, -1)[:, None] - 2.0 * (x @ c.T) + jnp.sum(c * c, -1)
        kernel = jnp.exp(-0.5 * d)
        soft = L.softmax(-d / 0.3)
        direct = jnp.sum(jnp.square(x[:, None, :8] - w(centres, 8)[None]), -1) if width >= 8 else d
        near = jnp.argmin(d, -1)
        update = soft.T @ x / (soft.sum(0)[:, None] + 1e-3)
        cosine = x / jnp.sqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6) @ w(width, 9)
        return kernel @ w(centres, 3), update, direct, near, cosine

    return Described(fn, (spec(rows, width),))


FAMILIES: dict[str, Maker] = {
    "product-chains": chains, "matrix-forms": forms, "small-batches": small_batches, "distances": distances,
}  # fmt: skip
