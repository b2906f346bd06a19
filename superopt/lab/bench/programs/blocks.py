"""Blocks of today's networks as their users write them in JAX: batch 1, fp32, random weights of a sane scale.

Like the networks of `superopt.lab.bench.programs.nets`, each builder returns `Net(fn, params, inputs)`, takes its sizes
as arguments, and makes weights when it is called, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.bench.programs.layers import (
    Init,
    Net,
    batch_norm,
    conv2d,
    dense,
    layer_norm,
    max_pool,
    relu,
    split_heads,
)

NamedWeights = Mapping[str, Array]
Cache = list[tuple[Array, Array]]
"""Keys and values of every layer, each (batch, heads, positions, depth)."""


def inception_block(
    cin: int = 192, ones: int = 64, threes: tuple[int, int] = (96, 128), fives: tuple[int, int] = (16, 32),
    pooled: int = 32, size: int = 28,
) -> Net:  # fmt: skip
    """The first module of GoogLeNet: 1x1, 1x1 and 3x3, 1x1 and 5x5, pool and 1x1, concatenated."""
    init = Init(41)
    rows = (("one", cin, ones, 1), ("three.in", cin, threes[0], 1), ("three", *threes, 3),
            ("five.in", cin, fives[0], 1), ("five", *fives, 5), ("pooled", cin, pooled, 1))  # fmt: skip
    for name, i, o, kernel in rows:
        init.conv(name, i, o, (kernel, kernel))

    def fn(p: NamedWeights, x: Array) -> Array:
        def unit(name: str, v: Array) -> Array:
            return relu(batch_norm(p, name, conv2d(v, p[f"{name}.w"])))

        three, five = unit("three", unit("three.in", x)), unit("five", unit("five.in", x))
        return jnp.concatenate([unit("one", x), three, five, unit("pooled", max_pool(x, 3, 1, 1))], axis=1)

    return Net(fn, init.params, (_draw(42, (1, cin, size, size)),))


def llama_decode(
    layers: int = 4, size: int = 512, heads: int = 8, shared: int = 4, hidden: int = 1376, positions: int = 512,
    vocabulary: int = 8192,
) -> Net:  # fmt: skip
    """One step of a Llama: maps token, position and cache to (logits, cache with this token's keys and values).

    Rotary embedding, `shared` heads of keys and values for `heads` of queries, RMS norms, SwiGLU.
    """
    init, depth = Init(43), size // heads
    init.weight("token", (vocabulary, size), 2)
    for i in range(layers):
        rows = (("q", size, size), ("k", size, shared * depth), ("v", size, shared * depth), ("o", size, size),
                ("gate", size, hidden), ("up", size, hidden), ("down", hidden, size))  # fmt: skip
        for name, a, b in rows:
            init.weight(f"{i}.{name}", (a, b), 2 * a)
        init.vector(f"{i}.norm1", size, 0.5, 1.5)
        init.vector(f"{i}.norm2", size, 0.5, 1.5)
    init.vector("norm", size, 0.5, 1.5)
    init.weight("head", (size, vocabulary), 2 * size)
    frequencies = (10000.0 ** -(np.arange(0, depth, 2) / depth)).astype(np.float32)

    def norm(x: Array, scale: Array) -> Array:
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale

    def fn(p: NamedWeights, token: Array, position: Array, cache: Cache) -> tuple[Array, Cache]:
        angles = position.astype(jnp.float32) * frequencies
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        seen = jnp.arange(positions) <= position

        def turned(x: Array) -> Array:
            one, two = jnp.split(x, 2, axis=-1)
            return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)

        x = p["token"][token][:, None]
        updated: Cache = []
        for i, (keys, values) in enumerate(cache):
            y = norm(x, p[f"{i}.norm1"])
            q, k, v = (split_heads(y @ p[f"{i}.{n}"], h) for n, h in (("q", heads), ("k", shared), ("v", shared)))
            keys = lax.dynamic_update_slice_in_dim(keys, turned(k), position, axis=2)
            values = lax.dynamic_update_slice_in_dim(values, v, position, axis=2)
            updated.append((keys, values))
            grouped = turned(q).reshape(1, shared, heads // shared, depth)
            scores = jnp.einsum("bkgd,bksd->bkgs", grouped, keys) / np.sqrt(depth).astype(np.float32)
            weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
            x = x + jnp.einsum("bkgs,bksd->bkgd", weights, values).reshape(1, 1, size) @ p[f"{i}.o"]
            y = norm(x, p[f"{i}.norm2"])
            x = x + (jax.nn.silu(y @ p[f"{i}.gate"]) * (y @ p[f"{i}.up"])) @ p[f"{i}.down"]
        return norm(x[:, 0], p["norm"]) @ p["head"], updated

    shape = (1, shared, positions, depth)
    cache = [(_draw(44 + 2 * i, shape), _draw(45 + 2 * i, shape)) for i in range(layers)]
    return Net(fn, init.params, (np.array([3], np.int32), np.array(3 * positions // 4, np.int32), cache))


def linear_attention_encoder(
    layers: int = 4, size: int = 512, heads: int = 8, length: int = 512, hidden: int = 2048
) -> Net:
    """Pre-norm encoder layers with the attention phi(q) (phi(k)' v), phi = elu + 1, over the sum of its weights."""
    init = Init(61)
    for i in range(layers):
        for kind in "qkvo":
            init.dense(f"{i}.{kind}", size, size)
        init.dense(f"{i}.up", size, hidden)
        init.dense(f"{i}.down", hidden, size)
        init.norm(f"{i}.norm1", size)
        init.norm(f"{i}.norm2", size)
    init.norm("norm", size)

    def fn(p: NamedWeights, x: Array) -> Array:
        for i in range(layers):
            y = layer_norm(p, f"{i}.norm1", x)
            q, k, v = (split_heads(dense(p, f"{i}.{kind}", y), heads) for kind in "qkv")
            q, k = jax.nn.elu(q) + 1.0, jax.nn.elu(k) + 1.0
            over = jnp.einsum("bhld,bhd->bhl", q, jnp.sum(k, axis=2))
            out = jnp.einsum("bhld,bhde->bhle", q, jnp.einsum("bhld,bhle->bhde", k, v)) / over[..., None]
            x = x + dense(p, f"{i}.o", out.transpose(0, 2, 1, 3).reshape(x.shape))
            h = jax.nn.gelu(dense(p, f"{i}.up", layer_norm(p, f"{i}.norm2", x)), approximate=False)
            x = x + dense(p, f"{i}.down", h)
        return layer_norm(p, "norm", x)

    return Net(fn, init.params, (_draw(62, (1, length, size)),))


def unet_block(channels: int = 128, size: int = 32, groups: int = 32, embedded: int = 128) -> Net:
    """A level of a diffusion U-Net on image and time: a residual block, one at half the size, and one that joins them.

    A residual block is twice group norm, silu and 3x3 convolution, with the embedded time between; down is a
    convolution of stride 2, up repeats pixels before a convolution, the skip connection is concatenated.
    """
    init = Init(63)

    def biased(name: str, cin: int, cout: int, kernel: int) -> None:
        init.weight(f"{name}.w", (cout, cin, kernel, kernel), 2 * cin * kernel**2)
        init.vector(f"{name}.b", cout, -0.1, 0.1)

    wide = 2 * channels
    init.dense("time1", embedded, 4 * embedded)
    init.dense("time2", 4 * embedded, 4 * embedded)
    for name, cin, cout in (("high", channels, channels), ("low", channels, wide), ("join", wide, channels)):
        init.norm(f"{name}.norm1", cin)
        biased(f"{name}.conv1", cin, cout, 3)
        init.dense(f"{name}.time", 4 * embedded, cout)
        init.norm(f"{name}.norm2", cout)
        biased(f"{name}.conv2", cout, cout, 3)
        if cin != cout:
            biased(f"{name}.skip", cin, cout, 1)
    biased("down", channels, channels, 3)
    biased("up", wide, channels, 3)
    frequencies = (10000.0 ** -(np.arange(embedded // 2) / (embedded // 2))).astype(np.float32)

    def conv(p: NamedWeights, name: str, x: Array, stride: int = 1) -> Array:
        return conv2d(x, p[f"{name}.w"], stride) + p[f"{name}.b"][:, None, None]

    def norm(p: NamedWeights, name: str, x: Array) -> Array:
        y = x.reshape(x.shape[0], groups, -1)
        y = (y - jnp.mean(y, -1, keepdims=True)) * lax.rsqrt(jnp.var(y, -1, keepdims=True) + 1e-5)
        return y.reshape(x.shape) * p[f"{name}.scale"][:, None, None] + p[f"{name}.bias"][:, None, None]

    def block(p: NamedWeights, name: str, x: Array, time: Array) -> Array:
        y = conv(p, f"{name}.conv1", jax.nn.silu(norm(p, f"{name}.norm1", x)))
        y = y + dense(p, f"{name}.time", time)[:, :, None, None]
        y = conv(p, f"{name}.conv2", jax.nn.silu(norm(p, f"{name}.norm2", y)))
        return y + (conv(p, f"{name}.skip", x) if f"{name}.skip.w" in p else x)

    def fn(p: NamedWeights, x: Array, step: Array) -> Array:
        angles = step[:, None] * frequencies
        time = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        time = jax.nn.silu(dense(p, "time2", jax.nn.silu(dense(p, "time1", time))))
        high = block(p, "high", x, time)
        low = block(p, "low", conv(p, "down", high, 2), time)
        b, c, h, w = low.shape
        repeated = jnp.broadcast_to(low[:, :, :, None, :, None], (b, c, h, 2, w, 2)).reshape(b, c, 2 * h, 2 * w)
        return block(p, "join", jnp.concatenate([conv(p, "up", repeated), high], axis=1), time)

    return Net(fn, init.params, (_draw(64, (1, channels, size, size)), np.array([250.0], np.float32)))


def _draw(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


BLOCKS: dict[str, Callable[[], Net]] = {
    "inception_block": inception_block,
    "llama_decode": llama_decode,
    "linear_attention_encoder": linear_attention_encoder,
    "unet_block": unet_block,
}
