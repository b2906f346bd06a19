"""Alternative forms of one operation, as kernel graphs in physical layout.

A convolution is a convolution in several layouts, a product over patches, a sum of shifted products or, when depthwise,
of shifted multiply-adds.  A pool is a window reduction or a maximum of slices.  The search chooses among such forms, so
the cost model is calibrated on them.  Layout strings name physical axes: `NHWC`, `OIHW`.
"""

from __future__ import annotations

import itertools

from superopt.ir.build import conv, dot, fill, spread, tensor
from superopt.ir.graph import Node, literal, mk


def padded(x: Node, layout: str, pad: int, value: float = 0.0) -> Node:
    """Return data padded on both sides of the spatial axes."""
    if pad == 0:
        return x
    config = tuple((pad, pad, 0) if a in "HW" else (0, 0, 0) for a in layout)
    return mk("pad", x, literal(value, x.dtype), padding_config=config)


def window(x: Node, layout: str, i: int, j: int, size: int, stride: int) -> Node:
    """Return the slice of data at offset `(i, j)` of a window, `size` positions along each spatial axis."""
    start, limit, step = [0] * len(layout), list(x.shape), [1] * len(layout)
    for axis, offset in (("H", i), ("W", j)):
        k = layout.index(axis)
        start[k], limit[k], step[k] = offset, offset + (size - 1) * stride + 1, stride
    return mk("slice", x, start_indices=tuple(start), limit_indices=tuple(limit), strides=tuple(step))


def out_size(size: int, k: int, stride: int, pad: int) -> int:
    """Return the number of positions of a window of `k` along an axis."""
    return (size + 2 * pad - k) // stride + 1


def data(layout: str, n: int, c: int, size: int) -> Node:
    """Image data."""
    sizes = {"N": n, "C": c, "H": size, "W": size}
    return tensor("x", *(sizes[a] for a in layout))


def weights(layout: str, o: int, i: int, k: int) -> Node:
    """A convolution kernel."""
    sizes = {"O": o, "I": i, "H": k, "W": k}
    return tensor("w", *(sizes[a] for a in layout), frozen=True)


def conv_plain(layouts: str, n: int, c: int, o: int, size: int, k: int, stride: int, groups: int = 1) -> Node:
    """Return a plain convolution, `layouts` like "NHWC,HWIO,NHWC"."""
    lhs, rhs, out = layouts.split(",")
    x, w = data(lhs, n, c, size), weights(rhs, o, c // groups, k)
    return conv(x, w, (lhs, rhs, out), stride, k // 2, groups)


def conv_as_dot(layout: str, n: int, c: int, o: int, size: int, stride: int) -> Node:
    """A 1x1 convolution as a product; channels first puts the weights first."""
    x = data(layout, n, c, size)
    if stride > 1:
        x = window(x, layout, 0, 0, out_size(size, 1, stride, 0), stride)
    if layout == "NHWC":
        return dot(x, tensor("w", c, o, frozen=True), ((3,), (0,)))
    return dot(tensor("w", o, c, frozen=True), x, ((1,), (1,)))


def conv_patches(n: int, c: int, o: int, size: int, k: int, stride: int, *, stacked: bool) -> Node:
    """A convolution as a product over patches, by concatenation along channels or along a new tap axis."""
    pad, layout = k // 2, "NHWC"
    m = out_size(size, k, stride, pad)
    x = padded(data(layout, n, c, size), layout, pad)
    taps = [window(x, layout, i, j, m, stride) for i, j in itertools.product(range(k), repeat=2)]
    if stacked:
        taps = [mk("reshape", t, new_sizes=(n, m, m, 1, c)) for t in taps]
        patches = mk("concatenate", *taps, dimension=3)
        return dot(patches, tensor("w", k * k, c, o, frozen=True), ((3, 4), (0, 1)))
    return dot(mk("concatenate", *taps, dimension=3), tensor("w", k * k * c, o, frozen=True), ((3,), (0,)))


def conv_shifted_dots(n: int, c: int, o: int, size: int, k: int, stride: int) -> Node:
    """A convolution as a sum of products of shifted slices."""
    pad, layout = k // 2, "NHWC"
    m = out_size(size, k, stride, pad)
    x, w = padded(data(layout, n, c, size), layout, pad), tensor("w", k, k, c, o, frozen=True)
    total: Node | None = None
    for i, j in itertools.product(range(k), repeat=2):
        tap = mk("slice", w, start_indices=(i, j, 0, 0), limit_indices=(i + 1, j + 1, c, o), strides=(1, 1, 1, 1))
        term = dot(window(x, layout, i, j, m, stride), mk("reshape", tap, new_sizes=(c, o)), ((3,), (0,)))
        total = term if total is None else mk("add", total, term)
    assert total is not None
    return total


def depthwise_shifts(layout: str, n: int, c: int, size: int, k: int, stride: int) -> Node:
    """A depthwise convolution as a sum of shifted multiply-adds."""
    pad = k // 2
    m = out_size(size, k, stride, pad)
    x, w = padded(data(layout, n, c, size), layout, pad), tensor("w", k, k, c, frozen=True)
    total: Node | None = None
    for i, j in itertools.product(range(k), repeat=2):
        tap = mk("slice", w, start_indices=(i, j, 0), limit_indices=(i + 1, j + 1, c), strides=(1, 1, 1))
        piece = window(x, layout, i, j, m, stride)
        scale = spread(mk("reshape", tap, new_sizes=(c,)), piece.shape, layout.index("C"))
        term = mk("mul", piece, scale)
        total = term if total is None else mk("add", total, term)
    assert total is not None
    return total


def pool_window(op: str, layout: str, n: int, c: int, size: int, k: int, stride: int, pad: int) -> Node:
    """A pool as a window reduction (`op`: max or sum)."""
    dims = tuple(k if a in "HW" else 1 for a in layout)
    strides = tuple(stride if a in "HW" else 1 for a in layout)
    padding = tuple((pad, pad) if a in "HW" else (0, 0) for a in layout)
    return mk(
        f"reduce_window_{op}", data(layout, n, c, size), window_dimensions=dims, window_strides=strides, padding=padding
    )


def pool_shifts(op: str, layout: str, n: int, c: int, size: int, k: int, stride: int, pad: int) -> Node:
    """A pool as a maximum or sum of shifted slices."""
    m = out_size(size, k, stride, pad)
    x = padded(data(layout, n, c, size), layout, pad, float("-inf") if op == "max" else 0.0)
    taps = [window(x, layout, i, j, m, stride) for i, j in itertools.product(range(k), repeat=2)]
    total = taps[0]
    for tap in taps[1:]:
        total = mk("max" if op == "max" else "add", total, tap)
    return total


def pool_separable(op: str, layout: str, n: int, c: int, size: int, k: int, pad: int) -> Node:
    """A stride-1 pool as two one-dimensional window reductions."""
    x = data(layout, n, c, size)
    for axis in "HW":
        dims = tuple(k if a == axis else 1 for a in layout)
        padding = tuple((pad, pad) if a == axis else (0, 0) for a in layout)
        x = mk(f"reduce_window_{op}", x, window_dimensions=dims, window_strides=(1,) * 4, padding=padding)
    return x


def softmax(x: Node) -> Node:
    """Softmax over the last axis, as JAX writes it."""
    last, kept = x.type.rank - 1, tuple(range(x.type.rank - 1))
    top = spread(mk("reduce_max", x, axes=(last,)), x.shape, *kept)
    e = mk("exp", mk("sub", x, top))
    return mk("div", e, spread(mk("reduce_sum", e, axes=(last,)), x.shape, *kept))


def layer_norm(x: Node) -> Node:
    """Layer normalisation over the last axis with scale and shift."""
    last, kept = x.type.rank - 1, tuple(range(x.type.rank - 1))
    width = int(x.shape[last])  # pyright: ignore[reportArgumentType] (kernel shapes are concrete)
    rows = x.shape[:last]
    mean = mk("div", mk("reduce_sum", x, axes=(last,)), fill(float(width), rows))
    centred = mk("sub", x, spread(mean, x.shape, *kept))
    variance = mk("div", mk("reduce_sum", mk("mul", centred, centred), axes=(last,)), fill(float(width), rows))
    scale = mk("rsqrt", mk("add", variance, fill(1e-5, rows)))
    normal = mk("mul", centred, spread(scale, x.shape, *kept))
    gain, shift = tensor("gain", width, frozen=True), tensor("shift", width, frozen=True)
    return mk("add", mk("mul", normal, spread(gain, x.shape, last)), spread(shift, x.shape, last))


def gelu(x: Node, *, by_tanh: bool) -> Node:
    """Gelu by erf or by tanh."""
    half = mk("mul", x, fill(0.5, x.shape))
    if by_tanh:
        cube = mk("mul", fill(0.044715, x.shape), mk("integer_pow", x, y=3))
        inner = mk("tanh", mk("mul", fill(0.797884, x.shape), mk("add", x, cube)))
    else:
        inner = mk("erf", mk("mul", x, fill(0.707107, x.shape)))
    return mk("mul", half, mk("add", fill(1.0, x.shape), inner))
