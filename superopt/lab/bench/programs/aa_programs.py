"""Programs of the A/A suite: sixty with nothing to improve, in sizes of some microseconds to milliseconds.

All arguments are live: with frozen weights there would be work to do ahead of time, which is a gain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

AAProgram = tuple[Callable[..., Any], tuple[Any, ...]]


def _arrays(seed: int, *shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def _program(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], AAProgram]:
    return lambda: (fn, _arrays(len(shapes) + sum(map(sum, shapes)), *shapes))


def _softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, axis=-1)


def _normalised(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)


def _chain(depth: int) -> Callable[..., jax.Array]:
    steps = (jnp.tanh, jnp.sin, jax.nn.sigmoid, jnp.cos, jnp.arctan)

    def run(x: jax.Array, y: jax.Array) -> jax.Array:
        for k in range(depth):
            x = steps[k % len(steps)](x) * y
        return x

    return run


def _recurrence(w: jax.Array, xs: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda h, x: (jnp.tanh(w @ h + x), None), jnp.zeros(xs.shape[1:], xs.dtype), xs)[0]


def _family(
    name: str, fn: Callable[..., Any], *cases: tuple[tuple[int, ...], ...]
) -> dict[str, Callable[[], AAProgram]]:
    return {f"{name}-{k}": _program(fn, *shapes) for k, shapes in enumerate(cases, start=1)}


PROGRAMS: dict[str, Callable[[], AAProgram]] = {
    **_family(
        "product",
        lambda a, b: a @ b,
        ((64, 64), (64, 64)),
        ((128, 256), (256, 96)),
        ((384, 384), (384, 384)),
        ((512, 768), (768, 256)),
        ((640, 640), (640, 640)),
    ),
    **_family("product-bias", lambda a, b, c: jnp.maximum(a @ b + c, 0.0), ((96, 200), (200, 160), (160,)),
              ((256, 256), (256, 512), (512,)), ((300, 700), (700, 300), (300,))),
    **_family("gram", lambda a: a @ a.T, ((96, 320),), ((256, 512),)),
    **_family("matrix-vector", lambda a, x: a @ x, ((256, 256), (256,)), ((1024, 1024), (1024,)),
              ((2048, 768), (768,))),
    **_family("batched", lambda a, b: jnp.einsum("bij,bjk->bik", a, b), ((8, 64, 64), (8, 64, 64)),
              ((12, 128, 64), (12, 64, 128)), ((4, 200, 200), (4, 200, 200))),
    **_family("chain-short", _chain(2), ((256, 256), (256, 256)), ((1000, 300), (1000, 300)),
              ((2048, 512), (2048, 512))),
    **_family("chain-long", _chain(8), ((128, 128), (128, 128)), ((512, 512), (512, 512)), ((700, 900), (700, 900))),
    **_family("add", lambda x, y: x + y, ((300, 300), (300, 300)), ((1500, 1000), (1500, 1000))),
    **_family("softmax", _softmax, ((64, 512),), ((512, 512),), ((8, 128, 128),)),
    **_family("normalised", _normalised, ((128, 256),), ((512, 768),), ((16, 64, 128),)),
    **_family("sum-rows", lambda x: x.sum(-1), ((256, 256),), ((1024, 1024),), ((64, 8000),)),
    **_family("max-columns", lambda x: x.max(0), ((256, 256),), ((1024, 1024),), ((3000, 200),)),
    **_family("mean-square", lambda x: jnp.mean(jnp.square(x)), ((400, 400),), ((1200, 1200),)),
    **_family("transposed", lambda x: x.T + 1.0, ((300, 500),), ((1024, 1024),)),
    **_family("joined", lambda x, y: jnp.concatenate([x, y], axis=1), ((256, 256), (256, 128)),
              ((800, 500), (800, 600))),
    **_family("chosen", lambda x, y: jnp.where(x > 0, x, y * x), ((512, 512), (512, 512)), ((1300, 700), (1300, 700))),
    **_family("running-sum", lambda x: jnp.cumsum(x, axis=0), ((128, 256),)),
    **_family("distance", lambda x, y: jnp.sqrt(jnp.sum(jnp.square(x - y), axis=-1)), ((500, 300), (500, 300)),
              ((64, 4000), (64, 4000))),
    **_family("outer", lambda x, y: x[:, None] * y[None, :], ((500,), (300,)), ((1500,), (1000,))),
    **_family("sorted", lambda x: jnp.sort(x, axis=-1), ((64, 256),), ((20, 3000),)),
    **_family("largest", lambda x: jnp.argmax(x, axis=-1), ((256, 200),), ((1000, 800),)),
    **_family("blend", lambda x, y: 0.25 * x + 0.75 * y, ((400, 400), (400, 400)), ((1200, 800), (1200, 800))),
    **_family("cube", lambda x: x**3, ((500, 500),), ((1100, 1100),)),
    **_family("recurrence", _recurrence, ((128, 128), (20, 128)),),
    **_family("rounded", lambda x: jnp.floor(x * 8.0), ((600, 500),)),
    **_family("clipped", lambda x: jnp.clip(x, -1.0, 1.0), ((512, 700),)),
}  # fmt: skip
