"""Gathers, scatters, selections and sorting.

Negative indices count from the end.  Indices that are known at conversion are normalised there, and a run of
consecutive ones becomes a slice; live ones are normalised in the program.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from onnx import helper

from superopt.errors import InputError
from superopt.frontends.onnx.eval import Call, bounded, is_half, op
from superopt.frontends.onnx.ops.movement import axis_of, slice_axis
from superopt.frontends.symbolic.known import has_symbolic, value_of


def _known(call: Call, value: Any) -> np.ndarray | None:
    for given, original in zip(call.given, call.values, strict=True):
        if given is value:
            return original if isinstance(original, np.ndarray) else None
    return None


def positive(indices: Any, size: int) -> Any:
    """Indices with negative ones counted from the end."""
    if isinstance(indices, np.ndarray):
        if indices.size and not ((indices >= -size) & (indices < size)).all():
            raise InputError(f"an index is outside size {size}")
        return np.where(indices < 0, indices + size, indices)
    return jnp.where(indices < 0, indices + value_of(size, indices.dtype), indices)


@op("Gather", fold=True)
def _gather(call: Call, x: Any, indices: Any) -> Any:
    axis = axis_of(call.attrs["axis"], x.ndim)
    size = x.shape[axis]
    known = _known(call, indices)
    sizes = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if known is not None:
        if has_symbolic([size]):
            return _at_known(x, axis, known).reshape(sizes)
        index = positive(known, size)
        if call.room(sizes) is np:
            return np.take(x, index, axis)
        flat = index.ravel()
        if flat.size and (np.diff(flat) == 1).all():
            return slice_axis(x, axis, int(flat[0]), int(flat[-1]) + 1).reshape(sizes)
    else:
        index = positive(indices, size)
    return jnp.take(x, index, axis, mode="clip")


def _at_known(x: Any, axis: int, known: np.ndarray) -> Any:
    """Entries at known places along an axis of symbolic size, side by side."""
    size = x.shape[axis]
    places = [int(i) + size if i < 0 else int(i) for i in known.ravel()]
    return lax.concatenate([slice_axis(x, axis, i, i + 1) for i in places], axis)


@op("GatherElements")
def _gather_elements(call: Call, x: Any, indices: Any) -> Any:
    axis = axis_of(call.attrs["axis"], x.ndim)
    index = positive(indices, x.shape[axis])
    # other axes may be longer than those of the indices
    for other, (have, want) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if other != axis and have != want:
            x = slice_axis(x, other, 0, want)
    return jnp.take_along_axis(x, index, axis, mode="clip")


@op("GatherND")
def _gather_nd(call: Call, x: Any, indices: Any) -> Any:
    batch = call.attrs.get("batch_dims", 0)
    depth = bounded(indices.shape[-1], x.ndim - batch, "an index depth")
    parts = [positive(indices[..., i], x.shape[batch + i]) for i in range(depth)]
    iotas = [lax.broadcasted_iota(np.int64, indices.shape[:-1], i) for i in range(batch)]
    return x[(*iotas, *parts)]


@op("ScatterElements", "Scatter")
def _scatter_elements(call: Call, x: Any, indices: Any, updates: Any) -> Any:
    axis = axis_of(call.attrs["axis"], x.ndim)
    index = positive(indices, x.shape[axis])
    place = [lax.broadcasted_iota(index.dtype, index.shape, i) for i in range(x.ndim)]
    place[axis] = index
    return _update(x, tuple(place), updates, call.attrs.get("reduction", "none"))


@op("ScatterND")
def _scatter_nd(call: Call, x: Any, indices: Any, updates: Any) -> Any:
    depth = bounded(indices.shape[-1], x.ndim, "an index depth")
    known, reduction = _known(call, indices), call.attrs.get("reduction", "none")
    fits = not has_symbolic(x.shape) and tuple(updates.shape) == (*indices.shape[:-1], *x.shape[depth:])
    if known is not None and reduction == "none" and fits:
        first = _block([positive(known[..., i], x.shape[i]) for i in range(depth)])
        if first is not None:
            return _with_block(x, first, updates)
    place = tuple(positive(indices[..., i], x.shape[i]) for i in range(depth))
    return _update(x, place, updates, reduction)


def _block(places: list[np.ndarray]) -> list[int] | None:
    """The first place along each axis, where the places are those of a block in their order: of a slice that is set."""
    if not places or places[0].ndim != len(places) or not places[0].size:
        return None
    first = [int(place.flat[0]) for place in places]
    steps = np.indices(places[0].shape)
    whole = all((place == step + low).all() for place, step, low in zip(places, steps, first, strict=True))
    return first if whole else None


def _with_block(x: Any, first: list[int], updates: Any, axis: int = 0) -> Any:
    """An array with a block of it replaced, axis after axis, as a concatenation: what is left of it stays as it is."""
    if axis == len(first):
        return updates
    low, high = first[axis], first[axis] + updates.shape[axis]
    inner = _with_block(slice_axis(x, axis, low, high), first, updates, axis + 1)
    parts = [slice_axis(x, axis, 0, low), inner, slice_axis(x, axis, high, x.shape[axis])]
    return jnp.concatenate([part for part in parts if part.shape[axis]], axis)


def _update(x: Any, place: tuple[Any, ...], updates: Any, reduction: str) -> Any:
    if is_half(x) and reduction in ("add", "mul"):
        return _update(x.astype(np.float32), place, updates.astype(np.float32), reduction).astype(x.dtype)
    at = x.at[place]
    if x.dtype == np.bool_:  # the sum of truth values is whether one is true, their product whether all are
        reduction = {"add": "max", "mul": "min"}.get(reduction, reduction)
    return {"none": at.set, "add": at.add, "mul": at.multiply, "max": at.max, "min": at.min}[reduction](updates)


@op("TensorScatter")
def _tensor_scatter(call: Call, past: Any, update: Any, write: Any = None) -> Any:
    axis = axis_of(call.attrs["axis"], past.ndim)
    length, room = update.shape[axis], past.shape[axis]
    first = jnp.zeros(past.shape[0], np.int64) if write is None else write.astype(np.int64)
    index = first[:, None] + lax.iota(np.int64, length)
    if call.attrs["mode"] == "circular":
        index = index % room
    moved, new = jnp.moveaxis(past, axis, 1), jnp.moveaxis(update, axis, 1)
    rows = lax.broadcasted_iota(np.int64, index.shape, 0)
    return jnp.moveaxis(moved.at[rows, index].set(new), 1, axis)


@op("OneHot")
def _one_hot(call: Call, indices: Any, depth: Any, values: Any) -> Any:
    size = int(call.static(depth, "depth").ravel()[0])
    rank = indices.ndim + 1
    axis = axis_of(call.attrs["axis"], rank)
    place = jnp.expand_dims(indices.astype(np.int64), axis)
    place = jnp.where(place < 0, place + size, place)
    sizes = (*indices.shape[:axis], size, *indices.shape[axis:])
    call.room(sizes)
    hot = place == lax.broadcasted_iota(np.int64, sizes, axis)
    return jnp.where(hot, values[1], values[0])


@op("TopK")
def _top_k(call: Call, x: Any, k: Any = None) -> Any:
    count = int(call.attrs["k"] if k is None else call.static(k, "k").ravel()[0])
    axis = axis_of(call.attrs["axis"], x.ndim)
    if not 0 <= count <= x.shape[axis]:
        raise InputError(f"k = {count} of size {x.shape[axis]}")
    place = lax.broadcasted_iota(np.int64, x.shape, axis)
    if call.attrs.get("largest", 1):
        # a stable ascending sort of the reversed array, read backwards, keeps the lower index of equal values
        values, order = lax.sort((lax.rev(x, (axis,)), lax.rev(place, (axis,))), dimension=axis, num_keys=1)
        values, order = lax.rev(values, (axis,)), lax.rev(order, (axis,))
    else:
        values, order = lax.sort((x, place), dimension=axis, num_keys=1)
    return slice_axis(values, axis, 0, count), slice_axis(order, axis, 0, count)


@op("Compress", sized=True)
def _compress(call: Call, x: Any, condition: Any) -> Any:
    chosen = np.flatnonzero(call.static(condition, "condition"))
    if "axis" not in call.attrs:
        return jnp.take(x.ravel(), chosen, 0, mode="clip")
    return jnp.take(x, chosen, axis_of(call.attrs["axis"], x.ndim), mode="clip")


@op("NonZero", fold=True, sized=True)
def _non_zero(call: Call, x: Any) -> Any:
    known = call.static(x, "input")
    return np.array(np.nonzero(known), np.int64).reshape(known.ndim, -1)


@op("Unique", sized=True)
def _unique(call: Call, x: Any) -> Any:
    known = call.static(x, "input")
    axis = call.attrs.get("axis")
    unique = np.unique(known, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    values, first, inverse, counts = unique
    inverse = inverse.ravel()
    if not call.attrs["sorted"]:
        order = np.argsort(first)
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@op("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _array_feature_extractor(call: Call, x: Any, indices: Any) -> Any:
    picked = jnp.take(x, indices.ravel(), x.ndim - 1, mode="clip")
    return picked.reshape(1, -1) if x.ndim == 1 else picked


@op("Binarizer", domain="ai.onnx.ml")
def _binarizer(call: Call, x: Any) -> Any:
    return (x > np.asarray(call.attrs["threshold"], x.dtype)).astype(x.dtype)


@op("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike")
def _random(call: Call, like: Any = None) -> Any:
    shape = call.attrs["shape"] if like is None else like.shape
    call.room(shape)
    default = np.float32 if like is None else like.dtype
    dtype = helper.tensor_dtype_to_np_dtype(call.attrs["dtype"]) if "dtype" in call.attrs else default
    key = call.random_key()
    if call.node.op_type.startswith("RandomUniform"):
        return jax.random.uniform(key, shape, dtype, call.attrs["low"], call.attrs["high"])
    noise = jax.random.normal(key, shape, dtype)
    return noise * np.asarray(call.attrs["scale"], dtype) + np.asarray(call.attrs["mean"], dtype)


@op("Multinomial", wide=True)
def _multinomial(call: Call, logs: Any) -> Any:
    count = bounded(call.attrs["sample_size"], 2**26, "samples")
    call.room((logs.shape[0], count, logs.shape[1]))
    drawn = jax.random.categorical(call.random_key(), logs, -1, (count, logs.shape[0]))
    return drawn.T.astype(helper.tensor_dtype_to_np_dtype(call.attrs["dtype"]))
