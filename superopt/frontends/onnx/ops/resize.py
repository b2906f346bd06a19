"""Resize and Upsample: each axis on its own, as a few shifted reads with weights known at conversion.

An output position reads the input around `x_original`; the taps are the `k` nearest pixels (the left one of a tie),
read beyond the edge as the edge.  Upsampling to whole multiples with the nearest pixel is a broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.errors import InputError
from superopt.frontends.onnx.data import is_float
from superopt.frontends.onnx.eval import Call, bounded, op
from superopt.frontends.onnx.ops.movement import axis_of

MAX_TAPS = 8


@dataclass(frozen=True, slots=True)
class Mode:
    """How positions and weights follow from the attributes."""

    kind: str
    coordinates: str
    nearest: str = "floor"
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False


def _original(mode: Mode, n: int, m: int, scale: float, roi: tuple[float, float]) -> np.ndarray:
    """Where each output position lies in the input."""
    x = np.arange(m, dtype=np.float64)
    width = scale * n
    if mode.coordinates == "align_corners":
        return np.zeros(m) if width == 1 else x * (n - 1) / (width - 1)
    if mode.coordinates == "asymmetric":
        return x / scale
    if mode.coordinates == "tf_crop_and_resize":
        if width == 1:
            return np.full(m, (roi[1] - roi[0]) * (n - 1) / 2 + roi[0] * (n - 1))
        return x * (roi[1] - roi[0]) * (n - 1) / (width - 1) + roi[0] * (n - 1)
    if mode.coordinates == "pytorch_half_pixel" and width == 1:
        return np.full(m, -0.5)
    shift = n / 2 * (1 - m / width) if mode.coordinates == "half_pixel_symmetric" else 0.0
    if mode.coordinates not in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
        raise InputError(f"coordinate_transformation_mode {mode.coordinates!r} is not known")
    return shift + (x + 0.5) / scale - 0.5


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    d = np.abs(distance)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def taps(mode: Mode, n: int, m: int, scale: float, roi: tuple[float, float]) -> tuple[np.ndarray, np.ndarray, Any]:
    """Indices and weights, each `[m, k]`, and which outputs lie outside (None: none can)."""
    x = _original(mode, n, m, scale, roi)
    base = np.ceil(x).astype(np.int64) - 1
    ratio = x - base
    if mode.kind == "nearest":
        step = {"floor": ratio == 1, "ceil": np.ones(m, bool), "round_prefer_floor": ratio > 0.5,
                "round_prefer_ceil": ratio >= 0.5}[mode.nearest]  # fmt: skip
        index, weight = (base + step)[:, None], np.ones((m, 1))
    else:
        reach = 2 if mode.kind == "cubic" else 1
        shrink = min(scale, 1.0) if mode.antialias else 1.0
        start = math.floor(-reach / shrink) + 1
        bounded(m * (2 - 2 * start), 2**26, "a filter")
        offsets = np.arange(start, 2 - start)
        distance = (offsets[None, :] - ratio[:, None]) * shrink
        index = base[:, None] + offsets
        weight = _cubic(distance, mode.cubic_a) if mode.kind == "cubic" else np.clip(1 - np.abs(distance), 0, 1)
        if mode.antialias:
            weight = weight / weight.sum(1, keepdims=True)
        if mode.exclude_outside:
            weight = np.where((index < 0) | (index >= n), 0, weight)
            weight = weight / weight.sum(1, keepdims=True)
    outside = (x < 0) | (x > n - 1) if mode.coordinates == "tf_crop_and_resize" else None
    return np.clip(index, 0, n - 1), weight, outside


def _along(x: Any, axis: int, index: np.ndarray, weight: np.ndarray) -> Any:
    n, (m, k) = x.shape[axis], index.shape
    if k == 1:
        factor = m // n if n else 0
        if factor and m == n * factor and (index[:, 0] == np.arange(m) // factor).all():
            shape = (*x.shape[: axis + 1], factor, *x.shape[axis + 1 :])
            kept = [i for i in range(len(shape)) if i != axis + 1]
            return lax.broadcast_in_dim(x, shape, kept).reshape(*x.shape[:axis], m, *x.shape[axis + 1 :])
        return jnp.take(x, index[:, 0], axis, mode="clip")
    if k > MAX_TAPS:
        matrix = np.zeros((m, n))
        np.add.at(matrix, (np.arange(m)[:, None], index), weight)
        moved = lax.dot_general(x, matrix.astype(x.dtype), (((axis,), (1,)), ((), ())))
        return jnp.moveaxis(moved, -1, axis)
    column = [-1 if i == axis else 1 for i in range(x.ndim)]
    total: Any = None
    for i in range(k):
        if not weight[:, i].any():
            continue
        part = jnp.take(x, index[:, i], axis, mode="clip") * weight[:, i].astype(x.dtype).reshape(column)
        total = part if total is None else total + part
    return total


def resize(
    x: Any, sizes: Sequence[int], scales: Sequence[float], rois: Sequence[tuple[float, float]], mode: Mode,
    fill: float = 0.0,
) -> Any:  # fmt: skip
    """The tensor with each axis resized."""
    dtype = x.dtype
    if mode.kind != "nearest" and not is_float(np.dtype(dtype)):
        x = x.astype(np.float32)
    for axis, (m, scale, roi) in enumerate(zip(sizes, scales, rois, strict=True)):
        bounded(m, 2**24, "a size")
        n = x.shape[axis]
        if m == n and scale == 1.0 and mode.coordinates != "tf_crop_and_resize":
            continue
        index, weight, outside = taps(mode, n, m, scale, roi)
        x = _along(x, axis, index, weight)
        if outside is not None and outside.any():
            mask = outside.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
            x = jnp.where(mask, np.asarray(fill, x.dtype), x)
    return x if x.dtype == dtype else jnp.round(x).astype(dtype)


@op("Upsample", wide=True)
def _upsample(call: Call, x: Any, scales: Any = None) -> Any:
    factors = call.attrs["scales"] if scales is None else [float(v) for v in call.static(scales, "scales")]
    return _by_scales(call, x, factors)


def _by_scales(call: Call, x: Any, factors: Sequence[float]) -> Any:
    sizes = [math.floor(d * f) for d, f in zip(x.shape, factors, strict=True)]
    call.room(sizes)
    mode = Mode("nearest" if call.attrs["mode"] == "nearest" else "linear", "asymmetric")
    return resize(x, sizes, factors, [(0.0, 1.0)] * x.ndim, mode)


@op("Resize", wide=True)
def _resize(call: Call, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    if call.since < 11:
        return _by_scales(call, x, [float(v) for v in call.static(roi, "scales")])
    attrs, rank = call.attrs, x.ndim
    axes = [axis_of(a, rank) for a in attrs.get("axes") or range(rank)]
    factors, target = [1.0] * rank, list(x.shape)
    given = None if scales is None or scales.size == 0 else call.static(scales, "scales").astype(np.float64)
    if given is not None:
        for axis, factor in zip(axes, given, strict=True):
            factors[axis], target[axis] = float(factor), math.floor(x.shape[axis] * float(factor))
    else:
        wanted = call.ints(sizes, "sizes")
        ratios = [w / x.shape[a] for a, w in zip(axes, wanted, strict=True)]
        policy = attrs.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            best = min(ratios) if policy == "not_larger" else max(ratios)
            ratios, wanted = [best] * len(axes), tuple(math.floor(best * x.shape[a] + 0.5) for a in axes)
        for axis, factor, size in zip(axes, ratios, wanted, strict=True):
            factors[axis], target[axis] = factor, size
    if any(t < 0 or f <= 0 for t, f in zip(target, factors, strict=True)):
        raise InputError(f"cannot resize {list(x.shape)} to {target}")
    call.room(target)
    rois = [(0.0, 1.0)] * rank
    if attrs["coordinate_transformation_mode"] == "tf_crop_and_resize" and roi is not None:
        ends = call.static(roi, "roi").astype(np.float64)
        for i, axis in enumerate(axes):
            rois[axis] = (float(ends[i]), float(ends[len(axes) + i]))
    mode = Mode(
        attrs["mode"], attrs["coordinate_transformation_mode"], attrs["nearest_mode"], attrs["cubic_coeff_a"],
        bool(attrs.get("antialias", 0)), bool(attrs["exclude_outside"]),
    )  # fmt: skip
    if mode.kind not in ("nearest", "linear", "cubic"):
        raise InputError(f"mode {mode.kind!r} is not known")
    return resize(x, target, factors, rois, mode, attrs["extrapolation_value"])
