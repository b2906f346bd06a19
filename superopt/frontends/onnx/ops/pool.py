"""Pooling as `reduce_window`.

`ceil_mode` adds a last window when it starts inside the data or its low padding; the windows read beyond the end are
filled with the neutral element, and an average divides by the number of positions that count.  Arg-max of MaxPool and
its inverse use flat indices into the tensor.
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
from superopt.frontends.onnx.ops.conv import Pads, window_pads
from superopt.frontends.onnx.ops.elementwise import ratio

MAX_EXTENT = 2**24
MAX_OFFSETS = 4096


@dataclass(frozen=True, slots=True)
class Window:
    """Geometry of a pooling window over the spatial axes; `pads` include what `ceil_mode` reads beyond the end."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Pads
    declared: Pads


def window_of(call: Call, space: Sequence[int]) -> Window:
    """The window that the node's attributes describe."""
    k = len(space)
    sizes = tuple(call.attrs["kernel_shape"])
    if len(sizes) != k:
        raise InputError(f"kernel_shape {list(sizes)} for {k} spatial axes")
    strides = tuple(call.attrs.get("strides") or [1] * k)
    dilations = tuple(call.attrs.get("dilations") or [1] * k)
    if min(*sizes, *strides, *dilations, 1) < 1 or max(*sizes, *strides, *dilations, 1) > MAX_EXTENT:
        raise InputError(f"a window of {list(sizes)}, strides {list(strides)}, dilations {list(dilations)}")
    extent = [(s - 1) * d + 1 for s, d in zip(sizes, dilations, strict=True)]
    declared = window_pads(call.attrs["auto_pad"], call.attrs.get("pads"), space, extent, strides)
    pads: Pads = []
    for size, e, stride, (lo, hi) in zip(space, extent, strides, declared, strict=True):
        if call.attrs.get("ceil_mode", 0):
            count = -(-(size + lo + hi - e) // stride) + 1
            if (count - 1) * stride >= size + lo:
                count -= 1
            hi = max(hi, (count - 1) * stride + e - size - lo)
        pads.append((lo, hi))
    return Window(sizes, strides, dilations, pads, declared)


def _reduce(x: Any, init: Any, combine: Any, w: Window) -> Any:
    return lax.reduce_window(
        x, np.asarray(init, x.dtype), combine, (1, 1, *w.sizes), (1, 1, *w.strides), ((0, 0), (0, 0), *w.pads),
        window_dilation=(1, 1, *w.dilations),
    )  # fmt: skip


@op("MaxPool")
def _max_pool(call: Call, x: Any) -> Any:
    window = window_of(call, x.shape[2:])
    dtype = np.dtype(x.dtype)
    lowest = -np.inf if is_float(dtype) else np.iinfo(dtype).min
    pooled = _reduce(x, lowest, lax.max, window)
    if not call.wants(1):
        return pooled
    return pooled, _arg_max(call, x, window, lowest)


def _arg_max(call: Call, x: Any, w: Window, lowest: Any) -> Any:
    """Flat index of the first largest element of each window."""
    space = x.shape[2:]
    order = range(len(space)) if not call.attrs["storage_order"] else range(len(space))[::-1]
    strides = [0] * len(space)
    step = 1
    for axis in reversed(order):
        strides[axis], step = step, step * space[axis]
    bounded(math.prod(w.sizes), MAX_OFFSETS, "a window with arg-max")
    padding = ((0, 0), (0, 0), *w.pads)
    padded = lax.pad(x, np.asarray(lowest, x.dtype), [(lo, hi, 0) for lo, hi in padding])
    best: Any = None
    where: Any = None
    plane = lax.broadcasted_iota(np.int64, x.shape, 0) * x.shape[1] + lax.broadcasted_iota(np.int64, x.shape, 1)
    flat = plane * math.prod(space) + sum(
        lax.broadcasted_iota(np.int64, x.shape, 2 + i) * s for i, s in enumerate(strides)
    )
    indices = lax.pad(flat, np.int64(-1), [(lo, hi, 0) for lo, hi in padding])
    sizes = padded.shape[2:]
    for offset in np.ndindex(*w.sizes):
        call.spend()
        starts = [o * d for o, d in zip(offset, w.dilations, strict=True)]
        last = [e - (s - 1) * d for e, s, d in zip(sizes, w.sizes, w.dilations, strict=True)]
        place = (slice(None), slice(None), *(
            slice(a, a + n, stride) for a, n, stride in zip(starts, last, w.strides, strict=True)
        ))  # fmt: skip
        value, index = padded[place], indices[place]
        if best is None:
            best, where = value, index
        else:
            better = (value > best) | ((where < 0) & (index >= 0))
            best, where = jnp.where(better, value, best), jnp.where(better, index, where)
    return where


@op("AveragePool", wide=True)
def _average_pool(call: Call, x: Any) -> Any:
    window = window_of(call, x.shape[2:])
    total = _reduce(x, 0, lax.add, window)
    if all(pad == (0, 0) for pad in window.pads):
        return ratio(call, total, np.asarray(math.prod(window.sizes), x.dtype))
    return ratio(call, total, _counts(call, x.shape[2:], window, np.dtype(x.dtype)))


def _counts(call: Call, space: Sequence[int], w: Window, dtype: np.dtype) -> np.ndarray:
    """How many positions each window averages over: a product of one count per axis, known at conversion."""
    counts = np.ones((1, 1), np.float64)
    for axis, size in enumerate(space):
        lo, hi = w.declared[axis] if call.attrs.get("count_include_pad", 0) else (0, 0)
        extent = (w.sizes[axis] - 1) * w.dilations[axis] + 1
        total = size + sum(w.pads[axis])
        bounded(total, 2**26, "a padded size")
        starts = np.arange(0, total - extent + 1, w.strides[axis]) - w.pads[axis][0]
        bounded(starts.size * w.sizes[axis], 2**26, "a window count")
        reads = starts[:, None] + np.arange(w.sizes[axis]) * w.dilations[axis]
        inside = ((reads >= -lo) & (reads < size + hi)).sum(1)
        counts = counts[..., None] * np.maximum(inside, 1)
    return counts.astype(dtype)


@op("LpPool", wide=True)
def _lp_pool(call: Call, x: Any) -> Any:
    p = call.attrs["p"]
    window = window_of(call, x.shape[2:])
    return _root(_reduce(_power(x, p), 0, lax.add, window), p)


@op("GlobalAveragePool", wide=True)
def _global_average_pool(call: Call, x: Any) -> Any:
    count = np.asarray(math.prod(x.shape[2:]), x.dtype)
    return ratio(call, jnp.sum(x, tuple(range(2, x.ndim)), keepdims=True), count)


@op("GlobalMaxPool")
def _global_max_pool(call: Call, x: Any) -> Any:
    return jnp.max(x, tuple(range(2, x.ndim)), keepdims=True)


@op("GlobalLpPool", wide=True)
def _global_lp_pool(call: Call, x: Any) -> Any:
    p = call.attrs["p"]
    return _root(jnp.sum(_power(x, p), tuple(range(2, x.ndim)), keepdims=True), p)


def _power(x: Any, p: int) -> Any:
    return x * x if p == 2 else jnp.power(jnp.abs(x), np.asarray(p, x.dtype))


def _root(x: Any, p: int) -> Any:
    return jnp.sqrt(x) if p == 2 else jnp.power(x, np.asarray(1.0 / p, x.dtype))


@op("MaxUnpool")
def _max_unpool(call: Call, x: Any, indices: Any, output_shape: Any = None) -> Any:
    k = x.ndim - 2
    strides = call.attrs.get("strides") or [1] * k
    pads = call.attrs.get("pads") or [0] * (2 * k)
    natural = [
        (d - 1) * s + e - pads[i] - pads[k + i]
        for i, (d, s, e) in enumerate(zip(x.shape[2:], strides, call.attrs["kernel_shape"], strict=True))
    ]
    sizes = (*x.shape[:2], *natural)
    wanted = sizes if output_shape is None else call.ints(output_shape, "output_shape")
    call.room(wanted)
    flat = jnp.zeros(math.prod(sizes), x.dtype).at[indices.ravel()].set(x.ravel())
    grown = [(0, w - s, 0) for w, s in zip(wanted, sizes, strict=True)]
    return lax.pad(flat.reshape(sizes), np.zeros((), x.dtype), grown)
