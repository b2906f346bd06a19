"""Cases of the rewrites suite on matrices: products, their orders and merges, scans, sums; sizes are arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.bench.programs.layers import relu
from superopt.lab.bench.programs.rewrites_case import RewriteCase, Variant, normal


def _weights(seed: int, *shape: int) -> np.ndarray:
    return normal(seed, *shape, scale=float(shape[-1] ** -0.5))


def assoc(size: int = 1024) -> RewriteCase:
    """(A B) x, cheap as A (B x)."""
    return RewriteCase(
        lambda _, a, b, x: (a @ b) @ x,
        (),
        (_weights(0, size, size), _weights(1, size, size), normal(2, size, 1)),
        {"from-the-right": Variant(lambda _, a, b, x: a @ (b @ x))},
    )


def low_rank(size: int = 1024, rank: int = 32, rows: int = 64) -> RewriteCase:
    """x (u v), cheap as (x u) v."""
    return RewriteCase(
        lambda _, x, u, v: x @ (u @ v),
        (),
        (normal(3, rows, size), _weights(4, size, rank), _weights(5, rank, size)),
        {"from-the-left": Variant(lambda _, x, u, v: (x @ u) @ v)},
    )


def attention(length: int = 1024, size: int = 64) -> RewriteCase:
    """Attention without softmax, written (Q K') V."""
    return RewriteCase(
        lambda _, q, k, v: (q @ k.T) @ v,
        (),
        (normal(6, length, size), normal(7, length, size), normal(8, length, size)),
        {"from-the-right": Variant(lambda _, q, k, v: q @ (k.T @ v))},
    )


def factored(size: int = 512) -> RewriteCase:
    """A C + B C."""
    return RewriteCase(
        lambda _, a, b, c: a @ c + b @ c,
        (),
        (normal(9, size, size), normal(10, size, size), _weights(11, size, size)),
        {"factored": Variant(lambda _, a, b, c: (a + b) @ c)},
    )


def _merged(seed: int, count: int, rows: int, size: int, out: int) -> RewriteCase:
    ws = [_weights(seed + i, size, out) for i in range(count)]
    return RewriteCase(
        lambda ws, x: tuple(x @ w for w in ws),
        ws,
        (normal(12, rows, size),),
        {
            "merged": Variant(
                lambda w, x: tuple(jnp.split(x @ w, count, -1)),
                lambda ws: np.concatenate([np.asarray(w) for w in ws], 1),
            )
        },
    )


def qkv(rows: int = 128, size: int = 768) -> RewriteCase:
    """Three products of one input with frozen weights."""
    return _merged(20, 3, rows, size, size)


def eight(rows: int = 1, size: int = 512) -> RewriteCase:
    """Eight products of one row with frozen weights."""
    return _merged(24, 8, rows, size, size)


def qkv_live(rows: int = 128, size: int = 768) -> RewriteCase:
    """Three products of one input whose weights are given with every call: merging loses."""
    return RewriteCase(
        lambda _, x, *ws: tuple(x @ w for w in ws),
        (),
        (normal(13, rows, size), *(_weights(32 + i, size, size) for i in range(3))),
        {"merged": Variant(lambda _, x, *ws: tuple(jnp.split(x @ jnp.concatenate(ws, 1), 3, -1)))},
        losing=("dot-merge",),
        loss=True,
    )


def swiglu(rows: int = 1, size: int = 1024, hidden: int = 2816) -> RewriteCase:
    """The gate and up products of SwiGLU, with frozen weights."""

    def fn(p: Any, x: Array) -> Array:
        gate = x @ p["gate"]
        return gate * lax.logistic(gate) * (x @ p["up"])

    def merged(w: Array, x: Array) -> Array:
        gate, up = jnp.split(x @ w, 2, -1)
        return gate * lax.logistic(gate) * up

    return RewriteCase(
        fn,
        {"gate": _weights(36, size, hidden), "up": _weights(37, size, hidden)},
        (normal(14, rows, size),),
        {"merged": Variant(merged, lambda p: np.concatenate([np.asarray(p["gate"]), np.asarray(p["up"])], 1))},
    )


def row_transposed(size: int = 1024, out: int = 4096) -> RewriteCase:
    """x W' for one row x."""
    return RewriteCase(
        lambda w, x: x @ w.T,
        _weights(38, out, size),
        (normal(15, 1, size),),
        {
            "stored-transposed": Variant(lambda w, x: x @ w, lambda w: np.ascontiguousarray(np.asarray(w).T)),
            "column": Variant(lambda w, x: (w @ x[0])[None]),
        },
    )


def row_mlp(size: int = 768, hidden: int = 3072) -> RewriteCase:
    """Two layers on one row, weights stored [out, in]."""

    def fn(p: Any, x: Array) -> Array:
        return relu(x @ p["up"].T + p["bias"]) @ p["down"].T

    return RewriteCase(
        fn,
        {"up": _weights(39, hidden, size), "down": _weights(40, size, hidden), "bias": normal(41, hidden)},
        (normal(16, 1, size),),
        {
            "stored-transposed": Variant(
                lambda p, x: relu(x @ p["up"] + p["bias"]) @ p["down"],
                lambda p: p | {k: np.ascontiguousarray(np.asarray(p[k]).T) for k in ("up", "down")},
            ),
        },
    )


def small_products(batch: int = 4096, size: int = 8) -> RewriteCase:
    """A batch of small products."""

    def unrolled(_: Any, a: Array, b: Array) -> Array:
        total = a[:, :, 0, None] * b[:, None, 0, :]
        for k in range(1, size):
            total = total + a[:, :, k, None] * b[:, None, k, :]
        return total

    return RewriteCase(
        lambda _, a, b: a @ b,
        (),
        (normal(17, batch, size, size), normal(18, batch, size, size)),
        {"unrolled": Variant(unrolled)},
    )


def cumulative(rows: int = 64, size: int = 4096, block: int = 64) -> RewriteCase:
    """A cumulative sum along rows."""
    upper = np.triu(np.ones((block, block), np.float32))

    def blocked(_: Any, x: Array) -> Array:
        parts = x.reshape(rows, size // block, block)
        inner = jnp.cumsum(parts, -1)
        before = jnp.cumsum(inner[..., -1], -1) - inner[..., -1]
        return (inner + before[..., None]).reshape(rows, size)

    def by_dot(ones: Array, x: Array) -> Array:
        inner = x.reshape(rows, size // block, block) @ ones
        before = jnp.cumsum(inner[..., -1], -1) - inner[..., -1]
        return (inner + before[..., None]).reshape(rows, size)

    return RewriteCase(
        lambda _, x: jnp.cumsum(x, -1),
        (),
        (normal(19, rows, size),),
        {
            "blocked": Variant(blocked),
            "blocked-dot": Variant(by_dot, lambda _: upper),
            "associative-scan": Variant(lambda _, x: lax.associative_scan(jnp.add, x, axis=-1)),
        },
    )


def concat_product(rows: int = 784, size: int = 128, out: int = 128) -> RewriteCase:
    """A product of a concatenation: the sum of two products is about as fast."""
    w = _weights(42, 2 * size, out)
    return RewriteCase(
        lambda w, x, y: jnp.concatenate([x, y], -1) @ w,
        w,
        (normal(20, rows, size), normal(21, rows, size)),
        {"sum-of-dots": Variant(lambda p, x, y: x @ p[0] + y @ p[1], lambda _: (w[:size], w[size:]))},
        losing=("dot-of-concat",),
        loss=True,
    )


def block_sum(rows: int = 128, size: int = 256) -> RewriteCase:
    """A C + B D, as one product of concatenations about as fast."""
    c, d = _weights(43, size, size), _weights(44, size, size)
    return RewriteCase(
        lambda p, a, b: a @ p["c"] + b @ p["d"],
        {"c": c, "d": d},
        (normal(22, rows, size), normal(23, rows, size)),
        {"one-dot": Variant(lambda w, a, b: jnp.concatenate([a, b], -1) @ w, lambda _: np.concatenate([c, d]))},
        losing=("dot-split-k",),
        loss=True,
    )


def row_sums(rows: int = 1024, size: int = 1024) -> RewriteCase:
    """Sums of rows, as a product with ones about as fast."""
    return RewriteCase(
        lambda _, x: jnp.sum(x, -1),
        (),
        (normal(24, rows, size),),
        {"ones-dot": Variant(lambda ones, x: x @ ones, lambda _: np.ones(size, np.float32))},
        losing=("sum-as-dot",),
        loss=True,
    )


CASES: dict[str, Callable[[], RewriteCase]] = {
    "assoc-1024": assoc,
    "low-rank-1024": low_rank,
    "linear-attention-1024": attention,
    "factored-512": factored,
    "qkv-128": qkv,
    "qkv-1": lambda: qkv(1),
    "eight-products-1": eight,
    "swiglu-1": swiglu,
    "swiglu-128": lambda: swiglu(128, 768, 2048),
    "row-transposed": row_transposed,
    "row-mlp": row_mlp,
    "small-products-8": small_products,
    "cumulative-sum": cumulative,
    "qkv-live": qkv_live,
    "concat-product": concat_product,
    "block-sum": block_sum,
    "row-sums": row_sums,
}
