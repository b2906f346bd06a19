"""Convolutional networks: plain, grouped, encoder-decoder, cells of a search, ConvNeXt, feature pyramids."""

from __future__ import annotations

import random
from typing import Any

import jax.numpy as jnp

from superopt.lab.training.families import layers as L
from superopt.lab.training.program import Described, Maker, WeightSource, spec


def plain(rng: random.Random) -> Described:
    """Convolutions with bias, relu and max pooling, then dense layers."""
    batch = rng.choice((1, 1, 1, 2, 4))
    widths = [rng.choice((16, 24, 31, 48, 72, 100, 160, 224)) for _ in range(rng.choice((3, 4, 5)))]
    sizes = [rng.choice((3, 3, 3, 5, 7)) for _ in widths]
    resolution = rng.choice((20, 33, 48, 60, 90))
    pools = [rng.random() < 0.4 for _ in widths]
    features = rng.choice((90, 128, 333))

    def fn(w: WeightSource, x: Any) -> Any:
        for width, size, pool in zip(widths, sizes, pools, strict=True):
            x = L.relu(L.conv(w, x, width, size, bias=True))
            if pool:
                x = L.max_pool(x, 2, 2)
        x = L.max_pool(x, 3, 3).reshape(batch, -1)
        return L.dense(w, L.relu(L.dense(w, x, features)), 10)

    return Described(fn, (spec(batch, rng.choice((1, 3, 12)), resolution, resolution),))


def grouped(rng: random.Random) -> Described:
    """Residual blocks with grouped convolutions and batch norms."""
    batch = rng.choice((1, 1, 1, 4))
    groups = rng.choice((4, 5, 8, 16))
    width = groups * rng.choice((3, 6, 8, 12, 20))
    out = rng.choice((72, 96, 144, 200, 320))
    resolution = rng.choice((9, 17, 30, 44, 52))
    stride = rng.choice((1, 2))

    def fn(w: WeightSource, x: Any) -> Any:
        y = L.relu(L.scaled(w, L.conv(w, x, width, 1)))
        y = L.relu(L.scaled(w, L.conv(w, y, width, 3, stride, groups)))
        y = L.scaled(w, L.conv(w, y, out, 1))
        x = L.relu(y + L.scaled(w, L.conv(w, x, out, 1, stride)))
        y = L.relu(L.scaled(w, L.conv(w, x, width, 3, 1, 1)))
        return L.relu(x + L.scaled(w, L.conv(w, y, out, 3, 1, rng_groups)))

    rng_groups = rng.choice([g for g in (1, 2, 3, 4, 6, 8) if width % g == 0 and out % g == 0])
    return Described(fn, (spec(batch, rng.choice((40, 90, 176)), resolution, resolution),))


def encoder_decoder(rng: random.Random) -> Described:
    """One level of a U-net or two: down by pooling, up by repetition, skips concatenated."""
    batch = rng.choice((1, 1, 2))
    width = rng.choice((12, 20, 32, 45, 72))
    resolution = 4 * rng.choice((6, 9, 14, 19, 30))
    depth = rng.choice((1, 2))
    by_mean = rng.random() < 0.5

    def level(w: WeightSource, x: Any, width: int, depth: int) -> Any:
        x = L.relu(L.conv(w, x, width, 3, bias=True))
        x = L.relu(L.scaled(w, L.conv(w, x, width, 3)))
        if not depth:
            return x
        y = L.avg_pool(x, 2, 2) if by_mean else L.max_pool(x, 2, 2)
        y = level(w, y, 2 * width, depth - 1)
        b, c, h, v = y.shape
        y = jnp.broadcast_to(y[:, :, :, None, :, None], (b, c, h, 2, v, 2)).reshape(b, c, 2 * h, 2 * v)
        return L.relu(L.conv(w, jnp.concatenate([x, y], 1), width, 3, bias=True))

    def fn(w: WeightSource, x: Any) -> Any:
        return L.sigmoid(L.conv(w, level(w, x, width, depth), rng_classes, 1, bias=True))

    rng_classes = rng.choice((1, 2, 5, 21))
    return Described(fn, (spec(batch, rng.choice((1, 3, 4)), resolution, resolution),))


def cell(rng: random.Random) -> Described:
    """A cell of separable convolutions, poolings and skips, as architecture searches find them."""
    width = rng.choice((22, 44, 60, 84, 176))
    resolution = rng.choice((8, 15, 21, 30, 42))
    plan = [(rng.choice(("sep3", "sep5", "max", "mean", "skip", "dil")), rng.randrange(2 + k)) for k in range(5)]

    def op(w: WeightSource, x: Any, kind: str) -> Any:
        if kind in ("sep3", "sep5", "dil"):
            size = 5 if kind == "sep5" else 3
            x = L.relu(x)
            y = L.conv(w, x, width, size, 1, width, 2 if kind == "dil" else 1)
            return L.scaled(w, L.conv(w, y, width, 1))
        if kind == "max":
            return L.max_pool(x, 3, 1, 1)
        return L.avg_pool(x, 3, 1, 1) if kind == "mean" else x

    def fn(w: WeightSource, x: Any, y: Any) -> Any:
        states = [L.scaled(w, L.conv(w, L.relu(z), width, 1)) for z in (x, y)]
        for kind, source in plan:
            states.append(op(w, states[source], kind) + op(w, states[-1], "sep3" if kind == "skip" else "skip"))
        return jnp.concatenate(states[2:], 1)

    shape = (1, rng.choice((40, 66)), resolution, resolution)
    return Described(fn, (spec(*shape), spec(*shape)))


def convnext(rng: random.Random) -> Described:
    """Large depthwise kernels, layer norm and a two-layer perceptron over channels, channels last."""
    batch = rng.choice((1, 1, 3))
    width = rng.choice((30, 56, 80, 100, 200))
    resolution = rng.choice((9, 20, 27, 40))
    size = rng.choice((5, 7, 9))
    blocks = rng.choice((1, 2))

    def fn(w: WeightSource, x: Any) -> Any:
        for _ in range(blocks):
            y = L.conv_last(w, x, width, size, 1, width) + w(width)
            y = L.dense(w, L.gelu(L.dense(w, L.layer_norm(w, y), 4 * width)), width)
            x = x + y * w.positive(width)
        y = L.layer_norm(w, x)
        return L.dense(w, y.mean((1, 2)), rng_classes)

    rng_classes = rng.choice((10, 77, 100))
    return Described(fn, (spec(batch, resolution, resolution, width),))


def pyramid(rng: random.Random) -> Described:
    """A feature pyramid with detection heads: lateral convolutions, sums of repeated maps, boxes and scores."""
    size = rng.choice((5, 7, 10, 18))
    widths = [rng.choice((24, 50, 64, 96)) for _ in range(3)]
    width, anchors, classes = rng.choice((32, 40, 64, 112)), rng.choice((2, 3)), rng.choice((4, 9, 20))

    def fn(w: WeightSource, *maps: Any) -> Any:
        levels: list[Any] = []
        above: Any = None
        tower = [w(width, width, 3, 3), w(anchors * (4 + classes), width, 1, 1)]
        for x in maps:
            y = L.conv(w, x, width, 1, bias=True)
            if above is not None:
                b, c, h, v = above.shape
                y = y + jnp.broadcast_to(above[:, :, :, None, :, None], (b, c, h, 2, v, 2)).reshape(y.shape)
            above = y
            y = L.relu(_same(y, tower[0]))
            y = _same(y, tower[1]).reshape(1, anchors, 4 + classes, -1)
            levels.append(jnp.concatenate([jnp.exp(y[:, :, :4]), L.sigmoid(y[:, :, 4:])], 2))
        return jnp.concatenate(levels, 3)

    shapes = [(1, c, size << k, size << k) for k, c in enumerate(widths)]
    return Described(fn, tuple(spec(*shape) for shape in shapes))


def _same(x: Any, kernel: Any) -> Any:
    """A convolution whose kernel is shared with others."""
    return L.conv(lambda *_: kernel, x, kernel.shape[0], kernel.shape[2])  # pyright: ignore[reportArgumentType]


FAMILIES: dict[str, Maker] = {
    "plain-conv": plain,
    "grouped-conv": grouped,
    "encoder-decoder": encoder_decoder,
    "searched-cell": cell,
    "convnext": convnext,
    "pyramid": pyramid,
}
