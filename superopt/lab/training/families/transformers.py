"""Transformers: images, one token at a time with a cache, rotary prefill, relative positions and cross attention."""

from __future__ import annotations

import math
import random
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.lab.training.families import layers as L
from superopt.lab.training.program import Described, Maker, WeightSource, spec


def vision(rng: random.Random) -> Described:
    """Patches of an image through one pre-norm block."""
    batch = rng.choice((1, 1, 1, 4))
    heads, per = rng.choice((2, 3, 5, 8)), rng.choice((16, 24, 40, 72))
    width, patch, grid = heads * per, rng.choice((4, 7, 8)), rng.choice((7, 10, 14))
    inner = rng.choice((2, 3)) * width

    def fn(w: WeightSource, x: Any) -> Any:
        y = lax.conv_general_dilated(x, w(width, 3, patch, patch), (patch, patch), "VALID")
        x = y.reshape(batch, width, grid * grid).transpose(0, 2, 1) + w(grid * grid, width)
        y = L.dense(w, L.layer_norm(w, x), 3 * width)
        q, k, v = (L.split_heads(z, heads) for z in jnp.split(y, 3, -1))
        a = L.softmax(q @ jnp.swapaxes(k, -1, -2) / math.sqrt(per))
        x = x + L.dense(w, L.merge_heads(a @ v), width)
        return x + L.dense(w, L.gelu(L.dense(w, L.layer_norm(w, x), inner)), width)

    return Described(fn, (spec(batch, 3, grid * patch, grid * patch),))


def decode(rng: random.Random) -> Described:
    """One token against a cache of keys and values."""
    batch = rng.choice((1, 1, 1, 8))
    heads, per = rng.choice((4, 6, 10, 16)), rng.choice((32, 50, 80))
    width, length = heads * per, rng.choice((77, 128, 300, 700, 1500))
    inner = rng.choice((2, 4)) * width

    def fn(w: WeightSource, x: Any, keys: Any, values: Any, mask: Any) -> Any:
        y = L.layer_norm(w, x)
        q = L.dense(w, y, width).reshape(batch, heads, per)
        k = L.dense(w, y, width).reshape(batch, heads, 1, per)
        v = L.dense(w, y, width).reshape(batch, heads, 1, per)
        keys, values = jnp.concatenate([keys, k], 2), jnp.concatenate([values, v], 2)
        score = jnp.einsum("bhd,bhtd->bht", q, keys) * (per**-0.5) + mask
        y = jnp.einsum("bht,bhtd->bhd", L.softmax(score), values)
        x = x + L.dense(w, y.reshape(batch, width), width)
        x = x + L.dense(w, L.gelu(L.dense(w, L.layer_norm(w, x), inner)), width)
        return x, keys, values

    cache = (batch, heads, length, per)
    return Described(fn, (spec(batch, width), spec(*cache), spec(*cache), spec(length + 1)))


def prefill(rng: random.Random) -> Described:
    """Root-mean-square norms, rotary positions, shared key heads, a causal mask and a gated perceptron."""
    groups, per = rng.choice((1, 2, 3)), rng.choice((16, 32, 48, 80))
    each = rng.choice((2, 3, 4))
    heads, rows = groups * each, rng.choice((17, 50, 90, 160, 250))
    width, inner = heads * per, rng.choice((256, 424, 1100))
    angles = np.outer(np.arange(rows), 10000.0 ** (-np.arange(per // 2) / (per // 2)))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    mask = np.where(np.tri(rows, dtype=bool), 0.0, -1e9).astype(np.float32)

    def turn(x: Any) -> Any:
        a, b = x[..., : per // 2], x[..., per // 2 :]
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def fn(w: WeightSource, x: Any) -> Any:
        y = L.rms_norm(w, x)
        q = turn(L.split_heads(L.dense(w, y, width, False), heads)).reshape(groups, each, rows, per)
        k = turn(L.split_heads(L.dense(w, y, groups * per, False), groups))
        v = L.split_heads(L.dense(w, y, groups * per, False), groups)
        a = L.softmax(jnp.einsum("gerd,gtd->gert", q, k) * (per**-0.5) + mask)
        y = jnp.einsum("gert,gtd->gerd", a, v).reshape(heads, rows, per)
        x = x + L.dense(w, L.merge_heads(y), width, False)
        y = L.rms_norm(w, x)
        return x + L.dense(w, L.swish(L.dense(w, y, inner, False)) * L.dense(w, y, inner, False), width, False)

    return Described(fn, (spec(rows, width),))


def relative(rng: random.Random) -> Described:
    """Self attention with a table of relative positions, then cross attention to another sequence."""
    batch = rng.choice((1, 1, 2))
    heads, per = rng.choice((3, 4, 7)), rng.choice((12, 32, 56))
    width, rows, others = heads * per, rng.choice((11, 48, 100, 180)), rng.choice((19, 70, 140))
    inner = rng.choice((240, 384, 900))
    distance = np.clip(np.arange(rows)[:, None] - np.arange(rows)[None], -8, 8) + 8

    def attend(w: WeightSource, x: Any, y: Any, bias: Any) -> Any:
        q = L.split_heads(L.dense(w, x, width, False), heads)
        k = L.split_heads(L.dense(w, y, width, False), heads)
        v = L.split_heads(L.dense(w, y, width, False), heads)
        a = jnp.einsum("bhid,bhjd->bhij", q, k)
        return L.dense(w, L.merge_heads(L.softmax(a if bias is None else a + bias) @ v), width, False)

    def fn(w: WeightSource, x: Any, y: Any) -> Any:
        bias = jnp.moveaxis(jnp.take(w(17, heads), distance, axis=0, mode="clip"), -1, 0)
        z = L.rms_norm(w, x)
        x = x + attend(w, z, z, bias)
        x = x + attend(w, L.rms_norm(w, x), y, None)
        return x + L.dense(w, L.relu(L.dense(w, L.rms_norm(w, x), inner, False)), width, False)

    return Described(fn, (spec(batch, rows, width), spec(batch, others, width)))


FAMILIES: dict[str, Maker] = {
    "vision-transformer": vision, "decode": decode, "prefill": prefill, "relative-attention": relative,
}  # fmt: skip
