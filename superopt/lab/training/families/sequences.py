"""Sequences: recurrent cells unrolled a few steps, dilated convolutions in one dimension, prefix sums, filters."""

from __future__ import annotations

import random
from typing import Any

import jax.numpy as jnp
from jax import lax

from superopt.lab.training.families import layers as L
from superopt.lab.training.program import Described, Maker, WeightSource, spec


def recurrent(rng: random.Random) -> Described:
    """Gated recurrent units, minimal gated units or plain cells, a few steps."""
    batch = rng.choice((1, 1, 5, 16, 32))
    width, inputs = rng.choice((100, 128, 200, 310, 640, 900)), rng.choice((24, 128, 300))
    kind, steps = rng.choice(("gru", "minimal", "plain")), rng.choice((1, 2, 3))

    def fn(w: WeightSource, xs: Any, h: Any) -> Any:
        count = {"gru": 3, "minimal": 2, "plain": 1}[kind]
        ws, us = [w(inputs, width) for _ in range(count)], [w(width, width) for _ in range(count)]
        bs = [w(width) for _ in range(count)]
        for t in range(steps):
            x = xs[t]
            if kind == "plain":
                h = jnp.tanh(x @ ws[0] + h @ us[0] + bs[0])
                continue
            f = L.sigmoid(x @ ws[0] + h @ us[0] + bs[0])
            if kind == "minimal":
                n = jnp.tanh(x @ ws[1] + (f * h) @ us[1] + bs[1])
            else:
                r = L.sigmoid(x @ ws[2] + h @ us[2] + bs[2])
                n = jnp.tanh(x @ ws[1] + r * (h @ us[1] + bs[1]))
            h = (1.0 - f) * h + f * n
        return h, L.softmax(L.dense(w, h, 50))

    return Described(fn, (spec(steps, batch, inputs), spec(batch, width)))


def dilated(rng: random.Random) -> Described:
    """Gated dilated convolutions over time with residual and skip paths."""
    batch = rng.choice((1, 1, 2))
    width, skip, length = rng.choice((16, 25, 64, 120)), rng.choice((20, 48)), rng.choice((100, 257, 500, 1500, 4000))
    gated = rng.random() < 0.6

    def along(w: WeightSource, x: Any, out: int, size: int, dilation: int) -> Any:
        pad = (size - 1) * dilation
        return lax.conv_general_dilated(
            x,
            w(out, x.shape[1], size, 1)[..., 0],
            (1,),
            ((pad, 0),),
            rhs_dilation=(dilation,),
            dimension_numbers=("NCH", "OIH", "NCH"),
        )

    def fn(w: WeightSource, x: Any) -> Any:
        total: Any = 0.0
        x = along(w, x, width, 1, 1)
        for dilation in (1, 2, 4):
            y = along(w, x, width, rng_size, dilation)
            if gated:
                y = jnp.tanh(y) * L.sigmoid(along(w, x, width, rng_size, dilation))
            else:
                y = L.relu(y + w(width)[:, None])
            total = total + along(w, y, skip, 1, 1)
            x = x + along(w, y, width, 1, 1)
        return along(w, L.relu(total), 30, 1, 1)

    rng_size = rng.choice((2, 3))
    return Described(fn, (spec(batch, rng.choice((1, 13)), length),))


def prefix(rng: random.Random) -> Described:
    """Prefix sums, moving sums, integral images, running maxima."""
    rows, length = rng.choice((1, 4, 31, 64, 200)), rng.choice((128, 333, 1000, 2048, 5000))
    size, window = rng.choice((40, 75, 160, 300)), rng.choice((3, 5, 8))

    def fn(w: WeightSource, x: Any, y: Any) -> Any:
        total = jnp.cumsum(x, -1)
        moving = (total[:, window:] - total[:, :-window]) / window
        decay = jnp.exp(jnp.cumsum(-jnp.abs(x * w.positive(length)), -1))
        image = jnp.cumsum(jnp.cumsum(y, 0), 1)
        boxes = image[window:, window:] - image[:-window, window:] - image[window:, :-window]
        high = lax.cummax(total, axis=1)
        back = jnp.flip(jnp.cumsum(jnp.flip(x, -1), -1), -1)
        return moving, decay * x, boxes + image[:-window, :-window], high - total, back / (1.0 + jnp.abs(total))

    return Described(fn, (spec(rows, length), spec(size, size)))


def filters(rng: random.Random) -> Described:
    """Frames of a signal through windows, a transform as a product, mel bands and a logarithm; separable filters."""
    frames, length, bands = rng.choice((9, 61, 200)), rng.choice((100, 256, 600)), rng.choice((13, 20, 40))
    size, taps = rng.choice((64, 101, 256, 401)), rng.choice((3, 5))

    def fn(w: WeightSource, x: Any, image: Any) -> Any:
        windowed = x * w.positive(length)
        re, im = windowed @ w(length, length // 2), windowed @ w(length, length // 2)
        power = re * re + im * im
        mel = jnp.log(power @ w.positive(length // 2, bands) + 1e-4)
        mel = (mel - mel.mean(0)) * lax.rsqrt(jnp.square(mel - mel.mean(0)).mean(0) + 1e-3)
        cepstrum = mel @ w(bands, bands)
        row, column = w(taps), w(taps)
        across: Any = sum(image[:, k : size - taps + 1 + k] * row[k] for k in range(taps))
        down: Any = sum(across[k : size - taps + 1 + k] * column[k] for k in range(taps))
        gx, gy = down[1:, :-1] - down[:-1, :-1], down[:-1, 1:] - down[:-1, :-1]
        return cepstrum, jnp.sqrt(gx * gx + gy * gy + 1e-6)

    return Described(fn, (spec(frames, length), spec(size, size)))


FAMILIES: dict[str, Maker] = {"recurrent": recurrent, "dilated": dilated, "prefix": prefix, "filters": filters}
