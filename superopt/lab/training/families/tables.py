"""Recommenders, graph networks, and pipelines of normalisations, reductions and elementwise ops."""

from __future__ import annotations

import random
from typing import Any

import jax.numpy as jnp
from jax import lax

from superopt.lab.training.families import layers as L
from superopt.lab.training.program import Described, Maker, WeightSource, spec


def recommender(rng: random.Random) -> Described:
    """Embeddings, dense features, crosses and pairwise interactions."""
    batch = rng.choice((1, 4, 16, 32, 100))
    tables, width = rng.choice((4, 7, 10)), rng.choice((8, 30, 64, 128))
    features, hidden = rng.choice((13, 40)), rng.choice((100, 256, 512))
    rows = rng.choice((50, 300, 1000))

    def fn(w: WeightSource, x: Any, ids: Any) -> Any:
        bottom = L.relu(L.dense(w, L.relu(L.dense(w, x, hidden)), width))
        looked = [jnp.take(w(rows, width), ids[:, t], axis=0, mode="clip") for t in range(tables)]
        z = jnp.stack([bottom, *looked], 1)
        pairs = jnp.einsum("bid,bjd->bij", z, z).reshape(batch, -1)
        flat = z.reshape(batch, -1)
        crossed = flat * (flat @ w(flat.shape[1], 1)) + w(flat.shape[1]) + flat
        machine = 0.5 * (jnp.square(z.sum(1)) - jnp.square(z).sum(1))
        y = jnp.concatenate([bottom, pairs, crossed, machine], 1)
        return L.sigmoid(L.dense(w, L.relu(L.dense(w, y, hidden)), 1))

    return Described(fn, (spec(batch, features), spec(batch, tables, dtype="int32")))


def graphs(rng: random.Random) -> Described:
    """Message passing over a dense adjacency: convolution, attention over neighbours, pooling."""
    nodes, width, out = rng.choice((34, 75, 128, 250)), rng.choice((24, 50, 96, 200)), rng.choice((16, 33, 64, 100))
    heads = rng.choice((1, 2, 4))

    def fn(w: WeightSource, x: Any, adjacency: Any) -> Any:
        degree = lax.rsqrt(adjacency.sum(1) + 1.0)
        h = L.relu((degree[:, None] * adjacency * degree[None]) @ (x @ w(width, out)) + w(out))
        s = h @ w(out, heads)
        t = h @ w(out, heads)
        e = s.T[:, :, None] + t.T[:, None, :]
        e = jnp.where(e > 0, e, 0.2 * e) + jnp.where(adjacency > 0, 0.0, -1e9)
        h = jnp.einsum("hij,jd->ihd", L.softmax(e), h).reshape(nodes, heads * out)
        m = L.relu(L.dense(w, h, out))
        pairs = L.relu(m[:, None, :] + (m @ w(out, out))[None, :, :])
        return L.dense(w, jnp.concatenate([m.max(0), m.mean(0)]), 12), (pairs * adjacency[:, :, None]).sum(1)

    return Described(fn, (spec(nodes, width), spec(nodes, nodes)))


def normalised(rng: random.Random) -> Described:
    """Softmaxes, group and instance norms, losses, over several axes."""
    a, b, c = rng.choice((1, 4, 12, 30)), rng.choice((16, 31, 64, 100)), rng.choice((48, 128, 333, 600))

    def fn(w: WeightSource, x: Any, y: Any) -> Any:
        log = x - x.max(-1, keepdims=True)
        log = log - jnp.log(jnp.exp(log).sum(-1, keepdims=True))
        across = L.softmax(x, 1)
        mean = x.mean((0, 2), keepdims=True)
        var = jnp.square(x - mean).mean((0, 2), keepdims=True)
        batch = (x - mean) / jnp.sqrt(var + 1e-5) * w.positive(b)[:, None] + w(b)[:, None]
        instance = (x * x).mean(-1) - jnp.square(x.mean(-1))
        focal = -jnp.sum(jnp.square(1.0 - jnp.exp(log)) * log * y, -1)
        smooth = jnp.where(jnp.abs(x - y) < 1.0, 0.5 * jnp.square(x - y), jnp.abs(x - y) - 0.5).mean()
        norm = L.layer_norm(w, x + y)
        return across.sum(0), batch, instance, focal, smooth, norm, jnp.argmax(x, -1)

    return Described(fn, (spec(a, b, c), spec(a, b, c)))


def elementwise(rng: random.Random) -> Described:
    """Long elementwise chains with broadcasts, comparisons, gathered axes and reductions between them."""
    rows, columns = rng.choice((3, 32, 100, 257, 700)), rng.choice((64, 150, 512, 999, 1500))
    steps = [rng.choice(("tanh", "exp", "gate", "poly", "norm", "where", "trig", "turn")) for _ in range(6)]

    def fn(w: WeightSource, x: Any, y: Any) -> Any:
        out: list[Any] = []
        for step in steps:
            if step == "tanh":
                x = jnp.tanh(x * w.positive(columns) + w(columns))
            elif step == "exp":
                x = jnp.exp(-jnp.abs(x)) * y
            elif step == "gate":
                x = L.sigmoid(x) * y + (1.0 - L.sigmoid(x)) * x
            elif step == "poly":
                x = ((x * 0.1 + 0.5) * x - 1.0) * x + w.positive(rows)[:, None]
            elif step == "norm":
                x = x / (jnp.sqrt(jnp.sum(x * x, 1, keepdims=True)) + 1.0)
            elif step == "where":
                x = jnp.where(x > y, jnp.log1p(jnp.abs(x)), y * y)
            elif step == "trig":
                x = jnp.sin(x) * jnp.cos(y) + lax.erf(x)
            else:
                out.append((x.T * 0.5).sum(1))
                x = jnp.flip(x, 1) + jnp.maximum(x, y)
        return (*out, x, x.max(0), jnp.sum(x * y), jnp.mean(x, 1))

    return Described(fn, (spec(rows, columns), spec(rows, columns)))


FAMILIES: dict[str, Maker] = {
    "recommender": recommender, "graph-network": graphs, "normalisations": normalised, "elementwise": elementwise,
}  # fmt: skip
