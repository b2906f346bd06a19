"""Sampling at live positions: GridSample, RoiAlign, deformable convolution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.errors import InputError
from superopt.frontends.onnx.eval import Call, bounded, op
from superopt.frontends.onnx.host import HostValueError
from superopt.frontends.onnx.ops.activations import like
from superopt.frontends.onnx.ops.conv import add_bias, window_pads


def _reflect(x: Any, low: float, high: float) -> Any:
    """Positions folded back into the interval."""
    span = high - low
    if span <= 0:
        return jnp.zeros_like(x)
    away = jnp.abs(x - like(x, low))
    turns = jnp.floor(away / like(x, span))
    rest = away - turns * like(x, span)
    even = jnp.mod(turns, like(x, 2)) == 0
    return jnp.where(even, rest + like(x, low), like(x, high) - rest)


def _padded(position: Any, size: int, mode: str, align: bool) -> Any:
    if mode == "border":
        return jnp.clip(position, like(position, 0), like(position, size - 1))
    if mode == "reflection":
        ends = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
        return _reflect(position, *ends)
    return position


def _read(x: Any, taps: Sequence[Any], mode: str, align: bool) -> Any:
    """`x[n, :, taps]` as `[n, c, points]`, zero outside; taps are whole positions `[n, points]`."""
    space = x.shape[2:]
    inside: Any = None
    flat: Any = None
    for tap, size in zip(taps, space, strict=True):
        tap = _padded(tap, size, mode, align)
        ok = (tap >= 0) & (tap <= size - 1)
        inside = ok if inside is None else inside & ok
        index = jnp.clip(tap, like(tap, 0), like(tap, size - 1)).astype(np.int32)
        flat = index if flat is None else flat * np.int32(size) + index
    values = jnp.take_along_axis(x.reshape(*x.shape[:2], -1), flat[:, None, :], 2, mode="clip")
    return jnp.where(inside[:, None, :], values, jnp.zeros((), x.dtype))


def _cubic_weights(t: Any, a: float = -0.75) -> list[Any]:
    def near(d: Any) -> Any:
        return ((like(t, a + 2) * d - like(t, a + 3)) * d) * d + like(t, 1)

    def far(d: Any) -> Any:
        return ((like(t, a) * d - like(t, 5 * a)) * d + like(t, 8 * a)) * d - like(t, 4 * a)

    one = like(t, 1)
    return [far(t + one), near(t), near(one - t), far(like(t, 2) - t)]


@op("GridSample", wide=True)
def _grid_sample(call: Call, x: Any, grid: Any) -> Any:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(call.attrs["mode"], call.attrs["mode"])
    pad, align = call.attrs["padding_mode"], bool(call.attrs["align_corners"])
    space = x.shape[2:]
    if grid.shape[-1] != len(space) or mode not in ("linear", "cubic", "nearest"):
        raise InputError(f"grid of shape {list(grid.shape)} and mode {mode!r} for data of shape {list(x.shape)}")
    points = grid.reshape(grid.shape[0], -1, len(space)).astype(x.dtype)
    positions = []
    for i, size in enumerate(space):
        g = points[..., len(space) - 1 - i]
        one, half = like(g, 1), like(g, 0.5)
        at = (g + one) * half * like(g, size - 1) if align else ((g + one) * like(g, size) - one) * half
        if mode == "nearest":
            at = lax.round(at, lax.RoundingMethod.TO_NEAREST_EVEN)
        positions.append(_padded(at, size, pad, align) if mode != "cubic" else at)
    sampled = _interpolate(x, positions, mode, pad, align)
    return sampled.reshape(*x.shape[:2], *grid.shape[1:-1])


def _interpolate(x: Any, positions: Sequence[Any], mode: str, pad: str, align: bool) -> Any:
    if mode == "nearest":
        return _read(x, positions, pad, align)
    lows = [jnp.floor(p) for p in positions]
    fractions = [p - low for p, low in zip(positions, lows, strict=True)]
    if mode == "cubic":
        weights = [_cubic_weights(f) for f in fractions]
        offsets = range(-1, 3)
    else:
        weights = [[like(f, 1) - f, f] for f in fractions]
        offsets = range(2)
    total: Any = None
    for corner in itertools.product(range(len(offsets)), repeat=len(positions)):
        taps = [low + like(low, offsets[c]) for low, c in zip(lows, corner, strict=True)]
        weight: Any = weights[0][corner[0]]
        for w, c in zip(weights[1:], corner[1:], strict=True):
            weight = weight * w[c]
        part = _read(x, taps, pad, align) * weight[:, None, :]
        total = part if total is None else total + part
    return total


@op("RoiAlign", wide=True)
def _roi_align(call: Call, x: Any, rois: Any, batch: Any) -> Any:
    attrs = call.attrs
    height, width, ratio = attrs["output_height"], attrs["output_width"], attrs["sampling_ratio"]
    if ratio <= 0:
        raise HostValueError("RoiAlign with an adaptive sampling ratio takes as many samples as boxes are large")
    for cells in (height, width):
        bounded(cells * ratio, 2**16, "a grid")
    shift = 0.5 if attrs.get("coordinate_transformation_mode", "output_half_pixel") == "half_pixel" else 0.0
    boxes = rois * like(rois, attrs["spatial_scale"]) - like(rois, shift)
    positions = []
    for low, high, cells, axis in ((1, 3, height, 2), (0, 2, width, 3)):
        extent = boxes[:, high] - boxes[:, low]
        if shift == 0.0:
            extent = jnp.maximum(extent, like(extent, 1))
        steps = (np.arange(cells * ratio) + 0.5) / (cells * ratio)
        at = boxes[:, low, None] + extent[:, None] * steps.astype(rois.dtype)
        size = x.shape[axis]
        outside = (at < like(at, -1)) | (at > like(at, size))
        positions.append((jnp.clip(at, like(at, 0), like(at, size - 1)), outside))
    (ys, y_out), (xs, x_out) = positions
    count, n_y, n_x = rois.shape[0], height * ratio, width * ratio
    grid_y = jnp.broadcast_to(ys[:, :, None], (count, n_y, n_x)).reshape(count, -1)
    grid_x = jnp.broadcast_to(xs[:, None, :], (count, n_y, n_x)).reshape(count, -1)
    outside = (y_out[:, :, None] | x_out[:, None, :]).reshape(count, 1, -1)
    images = jnp.take(x, batch.astype(np.int32), 0, mode="clip")
    combine = jnp.max if attrs["mode"] == "max" else jnp.mean
    if attrs["mode"] == "max":
        sampled = _largest_corner(images, grid_y, grid_x)
    else:
        sampled = _interpolate(images, [grid_y, grid_x], "linear", "border", True)
    sampled = jnp.where(outside, jnp.zeros((), x.dtype), sampled)
    return combine(sampled.reshape(count, x.shape[1], height, ratio, width, ratio), (3, 5))


def _largest_corner(images: Any, ys: Any, xs: Any) -> Any:
    """Max mode takes the largest weighted corner, not their sum."""
    lows = [jnp.floor(ys), jnp.floor(xs)]
    fractions = [ys - lows[0], xs - lows[1]]
    best: Any = None
    for a, b in itertools.product(range(2), repeat=2):
        weight = (fractions[0] if a else 1 - fractions[0]) * (fractions[1] if b else 1 - fractions[1])
        taps = [lows[0] + like(ys, a), lows[1] + like(xs, b)]
        part = _read(images, taps, "border", True) * weight[:, None, :]
        best = part if best is None else jnp.maximum(best, part)
    return best


@op("DeformConv", wide=True)
def _deform_conv(call: Call, x: Any, w: Any, offset: Any, bias: Any = None, mask: Any = None) -> Any:
    k = x.ndim - 2
    n, channels = x.shape[:2]
    kernel = tuple(w.shape[2:])
    strides, dilations = call.attrs.get("strides") or [1] * k, call.attrs.get("dilations") or [1] * k
    extent = [(s - 1) * d + 1 for s, d in zip(kernel, dilations, strict=True)]
    pads = window_pads("NOTSET", call.attrs.get("pads"), x.shape[2:], extent, strides)
    groups, parts = call.attrs["group"], call.attrs["offset_group"]
    out = offset.shape[2:]
    per = channels // parts
    moved = offset.reshape(n * parts, *kernel, k, *out)
    images = x.reshape(n * parts, per, *x.shape[2:])
    columns = []
    bounded(math.prod(kernel), 4096, "a deformable kernel")
    for tap in np.ndindex(*kernel):
        call.spend()
        positions = []
        for i in range(k):
            start = np.arange(out[i]) * strides[i] - pads[i][0] + tap[i] * dilations[i]
            fixed = start.reshape([-1 if j == i else 1 for j in range(k)]).astype(x.dtype)
            positions.append((moved[(slice(None), *tap, i)] + fixed).reshape(n * parts, -1))
        sampled = _interpolate(images, positions, "linear", "zeros", True)
        if mask is not None:
            gate = mask.reshape(n * parts, *kernel, *out)[(slice(None), *tap)]
            sampled = sampled * gate.reshape(n * parts, 1, -1)
        columns.append(sampled.reshape(n, channels, -1))
    stacked = jnp.stack(columns, 2).reshape(n, groups, (channels // groups) * len(columns), -1)
    matrix = w.reshape(groups, w.shape[0] // groups, -1)
    result = jnp.einsum("gok,ngkp->ngop", matrix, stacked)
    return add_bias(result.reshape(n, w.shape[0], *out), bias)
