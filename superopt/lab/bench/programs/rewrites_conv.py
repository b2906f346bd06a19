"""Cases of the rewrites suite on images: convolutions of every kind, pools, blocks.  Sizes are arguments for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.bench.programs import rewrites_forms as forms
from superopt.lab.bench.programs.layers import avg_pool, conv2d, max_pool, relu
from superopt.lab.bench.programs.rewrites_case import RewriteCase, Variant, normal
from superopt.lab.bench.programs.rewrites_forms import to_nchw, to_nhwc


def _weights(seed: int, *shape: int) -> np.ndarray:
    return normal(seed, *shape, scale=float(np.sqrt(2.0 / np.prod(shape[1:]))))


def depthwise(size: int = 112, channels: int = 32) -> RewriteCase:
    """Depthwise 3x3."""
    w = _weights(1, channels, 1, 3, 3)
    per_image = np.ascontiguousarray(w[:, 0].transpose(1, 2, 0))
    return RewriteCase(
        lambda w, x: conv2d(x, w, groups=channels),
        w,
        (normal(0, 1, channels, size, size),),
        {
            "shifts": Variant(_image_first(forms.depthwise_shifts), lambda _: per_image[..., None, None]),
            "shifts-nhwc": Variant(
                lambda w, x: to_nchw(forms.depthwise_shifts(to_nhwc(x), w, (1, 2))), lambda _: per_image
            ),
        },
    )


# the order of arguments of a variant is (prepared, image)
def _image_first(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda w, x: fn(x, w)


def grouped(size: int = 56, channels: int = 128, groups: int = 32, merged: int = 4) -> RewriteCase:
    """A grouped 3x3."""
    w = _weights(2, channels, channels // groups, 3, 3)
    few, one = forms.block_diagonal(w, groups, merged), forms.block_diagonal(w, groups, 1)
    return RewriteCase(
        lambda w, x: conv2d(x, w, groups=groups),
        w,
        (normal(0, 1, channels, size, size),),
        {
            "merged-groups": Variant(lambda w, x: conv2d(x, w, groups=merged), lambda _: few),
            "merged-groups-nhwc": Variant(
                lambda w, x: to_nchw(forms.conv_nhwc(to_nhwc(x), w, groups=merged)), lambda _: forms.hwio(few)
            ),
            "dense": Variant(lambda w, x: conv2d(x, w), lambda _: one),
            "dense-nhwc": Variant(lambda w, x: to_nchw(forms.conv_nhwc(to_nhwc(x), w)), lambda _: forms.hwio(one)),
        },
    )


def depthwise_pointwise(size: int = 28, channels: int = 32) -> RewriteCase:
    """A depthwise 3x3, then a pointwise convolution."""
    deep, point = _weights(3, channels, 1, 3, 3), _weights(4, channels, channels, 1, 1)
    both = point * deep[None, :, 0]
    deep_shifts = np.ascontiguousarray(deep[:, 0].transpose(1, 2, 0))[..., None, None]
    return RewriteCase(
        lambda p, x: conv2d(conv2d(x, p["deep"], groups=channels), p["point"]),
        {"deep": deep, "point": point},
        (normal(0, 1, channels, size, size),),
        {
            "dense": Variant(lambda w, x: conv2d(x, w), lambda _: both),
            "dense-nhwc": Variant(lambda w, x: to_nchw(forms.conv_nhwc(to_nhwc(x), w)), lambda _: forms.hwio(both)),
            "shifts-then-dot": Variant(
                lambda p, x: forms.pointwise_nchw(forms.depthwise_shifts(x, p[0]), p[1]),
                lambda _: (deep_shifts, point[:, :, 0, 0]),
            ),
        },
    )


def pointwise(size: int = 56, cin: int = 64, cout: int = 256, stride: int = 1) -> RewriteCase:
    """A 1x1 convolution."""
    w = _weights(5, cout, cin, 1, 1)
    return RewriteCase(
        lambda w, x: conv2d(x, w, stride),
        w,
        (normal(0, 1, cin, size, size),),
        {
            "dot": Variant(lambda w, x: forms.pointwise_nchw(x[:, :, ::stride, ::stride], w), lambda _: w[:, :, 0, 0]),
            "dot-nhwc": Variant(
                lambda w, x: to_nchw(to_nhwc(x[:, :, ::stride, ::stride]) @ w),
                lambda _: np.ascontiguousarray(w[:, :, 0, 0].T),
            ),
        },
    )


def pointwise_norm(size: int = 56, cin: int = 64, cout: int = 256) -> RewriteCase:
    """A 1x1 convolution with batch norm and relu."""
    w = _weights(6, cout, cin, 1, 1)
    params = {"w": w, "mean": normal(1, cout), "scale": 1 + np.abs(normal(2, cout)), "bias": normal(3, cout)}

    def fn(p: Any, x: Array) -> Array:
        mean, scale, bias = (p[k][None, :, None, None] for k in ("mean", "scale", "bias"))
        return relu((conv2d(x, p["w"]) - mean) * scale + bias)

    folded = w[:, :, 0, 0] * params["scale"][:, None]
    bias = params["bias"] - params["mean"] * params["scale"]
    return RewriteCase(
        fn,
        params,
        (normal(0, 1, cin, size, size),),
        {
            "folded": Variant(
                lambda p, x: relu(conv2d(x, p[0]) + p[1]), lambda _: (folded[..., None, None], bias[:, None, None])
            ),
            "dot": Variant(
                lambda p, x: relu(forms.pointwise_nchw(x, p[0]) + p[1]), lambda _: (folded, bias[:, None, None])
            ),
            "dot-nhwc": Variant(
                lambda p, x: to_nchw(relu(to_nhwc(x) @ p[0] + p[1])),
                lambda _: (np.ascontiguousarray(folded.T), bias),
            ),
        },
    )


def square(size: int = 56, channels: int = 64) -> RewriteCase:
    """A dense 3x3."""
    w = _weights(7, channels, channels, 3, 3)
    wide = forms.hwio(w)
    return RewriteCase(
        lambda w, x: conv2d(x, w),
        w,
        (normal(0, 1, channels, size, size),),
        {
            "nhwc": Variant(lambda w, x: to_nchw(forms.conv_nhwc(to_nhwc(x), w)), lambda _: wide),
            "im2col-nhwc": Variant(lambda w, x: to_nchw(forms.im2col_nhwc(to_nhwc(x), w)), lambda _: wide),
            "im2col-nchw": Variant(_image_first(forms.im2col_nchw), lambda _: forms.rows(w)),
            "shifted-dots": Variant(lambda w, x: to_nchw(forms.shifted_dots_nhwc(to_nhwc(x), w)), lambda _: wide),
            "winograd": Variant(
                lambda w, x: to_nchw(forms.winograd_nhwc(to_nhwc(x), w)), lambda _: forms.winograd_kernel(w)
            ),
        },
    )


def bottleneck(size: int = 56, wide: int = 256, narrow: int = 64) -> RewriteCase:
    """A bottleneck block with folded batch norms: 1x1, 3x3, 1x1, sum with the input."""
    params = {
        "a": _weights(8, narrow, wide, 1, 1),
        "b": _weights(9, narrow, narrow, 3, 3),
        "c": _weights(10, wide, narrow, 1, 1),
        "bias": [normal(11, n, 1, 1) for n in (narrow, narrow, wide)],
    }

    def fn(p: Any, x: Array) -> Array:
        y = relu(conv2d(x, p["a"]) + p["bias"][0])
        y = relu(conv2d(y, p["b"]) + p["bias"][1])
        return relu(x + (conv2d(y, p["c"]) + p["bias"][2]))

    def rows_of(w: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(w[:, :, 0, 0].T)

    def nhwc(middle: Callable[[Array, Array], Array]) -> Callable[..., Array]:
        def call(p: Any, image: Array) -> Array:
            x = to_nhwc(image)
            y = relu(x @ p["a"] + p["bias"][0])
            y = relu(middle(y, p["b"]) + p["bias"][1])
            return to_nchw(relu(x + (y @ p["c"] + p["bias"][2])))

        return call

    def dots(p: Any, x: Array) -> Array:
        y = relu(forms.pointwise_nchw(x, p["a"][:, :, 0, 0]) + p["bias"][0])
        y = relu(forms.im2col_nchw(y, p["b"]) + p["bias"][1])
        return relu(x + (forms.pointwise_nchw(y, p["c"][:, :, 0, 0]) + p["bias"][2]))

    def prepare(kernel: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], Any]:
        ready = {"a": rows_of(params["a"]), "b": kernel(params["b"]), "c": rows_of(params["c"])}
        return lambda _: ready | {"bias": [b[:, 0, 0] for b in params["bias"]]}

    return RewriteCase(
        fn,
        params,
        (normal(0, 1, wide, size, size),),
        {
            "nhwc": Variant(nhwc(forms.conv_nhwc), prepare(forms.hwio)),
            "nhwc-im2col": Variant(nhwc(forms.im2col_nhwc), prepare(forms.hwio)),
            "nhwc-winograd": Variant(nhwc(forms.winograd_nhwc), prepare(forms.winograd_kernel)),
            "dots-nchw": Variant(dots, lambda p: p | {"b": forms.rows(p["b"])}),
        },
    )


def stem(size: int = 224, cout: int = 64) -> RewriteCase:
    """A 7x7 convolution of step 2 on three channels."""
    w = _weights(12, cout, 3, 7, 7)
    folded = forms.stem_kernel(w)

    def blocks(x: Array) -> Array:
        return forms.space_to_depth(jnp.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3))))

    return RewriteCase(
        lambda w, x: conv2d(x, w, 2),
        w,
        (normal(0, 1, 3, size, size),),
        {
            "nhwc": Variant(lambda w, x: to_nchw(forms.conv_nhwc(to_nhwc(x), w, 2)), lambda _: forms.hwio(w)),
            "space-to-depth": Variant(lambda w, x: conv2d(blocks(x), w, pad=(0, 0)), lambda _: folded),
            "space-to-depth-nhwc": Variant(
                lambda w, x: to_nchw(forms.conv_nhwc(to_nhwc(blocks(x)), w, pad=0)), lambda _: forms.hwio(folded)
            ),
            "im2col-nhwc": Variant(lambda w, x: to_nchw(forms.im2col_nhwc(to_nhwc(x), w, 2)), lambda _: forms.hwio(w)),
            "im2col-nchw": Variant(lambda w, x: forms.im2col_nchw(x, w, 2), lambda _: forms.rows(w)),
        },
    )


def three_pointwise(size: int = 28, cin: int = 192, couts: tuple[int, ...] = (64, 96, 16)) -> RewriteCase:
    """Three 1x1 convolutions of one image."""
    ws = [_weights(13 + i, c, cin, 1, 1) for i, c in enumerate(couts)]
    merged = np.concatenate(ws)[:, :, 0, 0]
    ends = np.cumsum(couts)[:-1].tolist()
    return RewriteCase(
        lambda ws, x: tuple(conv2d(x, w) for w in ws),
        ws,
        (normal(0, 1, cin, size, size),),
        {
            "one-dot": Variant(lambda w, x: tuple(jnp.split(forms.pointwise_nchw(x, w), ends, 1)), lambda _: merged),
            "one-dot-nhwc": Variant(
                lambda w, x: tuple(to_nchw(y) for y in jnp.split(to_nhwc(x) @ w, ends, -1)),
                lambda _: np.ascontiguousarray(merged.T),
            ),
            "dots": Variant(
                lambda ws, x: tuple(forms.pointwise_nchw(x, w) for w in ws), lambda ws: [w[:, :, 0, 0] for w in ws]
            ),
        },
    )


def two_square(size: int = 28, channels: int = 64) -> RewriteCase:
    """Two 3x3 convolutions of one image: merging them gains nothing."""
    ws = [_weights(16, channels, channels, 3, 3), _weights(17, channels, channels, 3, 3)]
    return RewriteCase(
        lambda ws, x: tuple(conv2d(x, w) for w in ws),
        ws,
        (normal(0, 1, channels, size, size),),
        {
            "merged": Variant(
                lambda w, x: tuple(jnp.split(conv2d(x, w), 2, 1)),
                lambda ws: np.concatenate([np.asarray(w) for w in ws]),
            )
        },
        losing=("conv-merge",),
        loss=True,
    )


def fire_enlarged(size: int = 28, cin: int = 32, cout: int = 128) -> RewriteCase:
    """The expansions of a fire module: enlarging the 1x1 to merge it with the 3x3 loses."""
    one, three = _weights(18, cout, cin, 1, 1), _weights(19, cout, cin, 3, 3)
    both = np.concatenate([np.pad(one, ((0, 0), (0, 0), (1, 1), (1, 1))), three])
    return RewriteCase(
        lambda p, x: relu(jnp.concatenate([conv2d(x, p["one"]), conv2d(x, p["three"])], 1)),
        {"one": one, "three": three},
        (normal(0, 1, cin, size, size),),
        {"enlarged": Variant(lambda w, x: relu(conv2d(x, w)), lambda _: both)},
        losing=("conv-merge",),
        loss=True,
    )


def _shifted(x: Array, size: int, stride: int, pad: int, fill: float, op: Callable[[Array, Array], Array]) -> Array:
    widths = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    padded = jnp.pad(x, widths, constant_values=fill)
    high = (padded.shape[2] - size) // stride * stride + 1
    wide = (padded.shape[3] - size) // stride * stride + 1
    total: Array | None = None
    for i in range(size):
        for j in range(size):
            term = padded[:, :, i : i + high : stride, j : j + wide : stride]
            total = term if total is None else op(total, term)
    assert total is not None
    return total


def _separable(x: Array, size: int, stride: int, pad: int, fill: float, op: Callable[[Array, Array], Array]) -> Array:
    for axis in (2, 3):
        widths = [(pad, pad) if a == axis else (0, 0) for a in range(4)]
        padded = jnp.pad(x, widths, constant_values=fill)
        last = (padded.shape[axis] - size) // stride * stride + 1
        total: Array | None = None
        for i in range(size):
            term = lax.slice_in_dim(padded, i, i + last, stride, axis)
            total = term if total is None else op(total, term)
        assert total is not None
        x = total
    return x


def pool_max(size: int = 112, channels: int = 64) -> RewriteCase:
    """A 3x3 max pool of step 2."""
    return RewriteCase(
        lambda _, x: max_pool(x, 3, 2, 1),
        (),
        (normal(0, 1, channels, size, size),),
        {
            "shifted": Variant(lambda _, x: _shifted(x, 3, 2, 1, -np.inf, jnp.maximum)),
            "separable": Variant(lambda _, x: _separable(x, 3, 2, 1, -np.inf, jnp.maximum)),
        },
    )


def pool_average(size: int = 35, channels: int = 192) -> RewriteCase:
    """A 3x3 average pool of step 1."""
    return RewriteCase(
        lambda _, x: avg_pool(x, 3, 1, 1),
        (),
        (normal(0, 1, channels, size, size),),
        {
            "shifted": Variant(lambda _, x: _shifted(x, 3, 1, 1, 0.0, jnp.add) * (1 / 9)),
            "separable": Variant(lambda _, x: _separable(x, 3, 1, 1, 0.0, jnp.add) * (1 / 9)),
        },
    )


def pool_global(size: int = 7, channels: int = 2048) -> RewriteCase:
    """A global average pool."""
    return RewriteCase(
        lambda _, x: jnp.mean(x, (2, 3)),
        (),
        (normal(0, 1, channels, size, size),),
        {
            "dot": Variant(
                lambda ones, x: (x.reshape(channels, -1) @ ones)[None],
                lambda _: np.full(size * size, 1 / size**2, np.float32),
            )
        },
    )


CASES: dict[str, Callable[[], RewriteCase]] = {
    "depthwise-112": depthwise,
    "depthwise-14": lambda: depthwise(14, 384),
    "grouped-56": grouped,
    "depthwise-pointwise-28": depthwise_pointwise,
    "pointwise-56": pointwise,
    "pointwise-14": lambda: pointwise(14, 1024, 256),
    "pointwise-strided": lambda: pointwise(56, 256, 512, 2),
    "pointwise-norm-56": pointwise_norm,
    "square-56": square,
    "square-28": lambda: square(28, 128),
    "square-14": lambda: square(14, 256),
    "square-7": lambda: square(7, 512),
    "bottleneck-56": bottleneck,
    "stem-224": stem,
    "three-pointwise-28": three_pointwise,
    "pool-max-112": pool_max,
    "pool-average-35": pool_average,
    "pool-global-7": pool_global,
    "two-square-merged": two_square,
    "fire-enlarged": fire_enlarged,
}
