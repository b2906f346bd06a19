"""Shape, movement and constant ops: nothing here computes on values.

All of it folds while the operands are known and small, so that the arithmetic of shapes that exporters leave in a
model (`Shape` -> `Gather` -> `Concat` -> `Reshape`) never reaches the program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import core, lax
from onnx import helper

from superopt.errors import InputError
from superopt.frontends.onnx.eval import Call, op
from superopt.frontends.symbolic.known import (
    SizeArray,
    broadcast_sizes,
    equal,
    has_symbolic,
    integers,
    number,
    value_of,
)

_FAR = 2**31 - 1  # exporters write the ends of int32 and int64 for "as far as there are elements"


def axis_of(axis: int, rank: int) -> int:
    """The axis counted from the front.

    Raises:
        InputError: it is outside the rank.
    """
    if not -rank <= axis < rank:
        raise InputError(f"axis {axis} is outside rank {rank}")
    return axis % rank if rank else 0


def axes_of(call: Call, given: Any, rank: int) -> tuple[int, ...] | None:
    """The `axes` of a node: an attribute in old opsets, an input in newer ones; None when left out."""
    axes = call.attrs.get("axes") if given is None else call.ints(given, "axes")
    return None if axes is None else tuple(axis_of(a, rank) for a in axes)


@op("Shape", fold=True)
def _shape(call: Call, x: Any) -> Any:
    rank = len(x.shape)
    start, end = call.attrs.get("start", 0), call.attrs.get("end", rank)
    start, end = (min(max(v + rank if v < 0 else v, 0), rank) for v in (start, end))
    return integers(x.shape[start:end])


@op("Size", fold=True)
def _size(call: Call, x: Any) -> Any:
    return integers(math.prod(x.shape))


@op("Constant", fold=True)
def _constant(call: Call) -> Any:
    attrs = call.attrs
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32), ("value_int", np.int64),
                        ("value_ints", np.int64)):  # fmt: skip
        if name in attrs:
            return np.array(attrs[name], dtype)
    if "value" in attrs:
        return attrs["value"]
    if "sparse_value" in attrs:
        return attrs["sparse_value"]
    return np.array(attrs.get("value_string", attrs.get("value_strings")), object)


@op("ConstantOfShape", fold=True)
def _constant_of_shape(call: Call, shape: Any) -> Any:
    sizes = call.ints(shape, "shape")
    value = call.attrs.get("value", np.zeros(1, np.float32)).ravel()
    if value.size != 1:
        raise InputError("the value of ConstantOfShape must have one element")
    return call.room(sizes).full(sizes, value[0], value.dtype)


@op("Range", fold=True)
def _range(call: Call, start: Any, limit: Any, delta: Any) -> Any:
    bounds = [call.static(v, "bound") for v in (start, limit, delta)]
    first, last, step = (v.ravel()[0] for v in bounds)
    if any(isinstance(v, SizeArray) for v in bounds):
        return _range_of_sizes(number(first), number(last), number(step), start.dtype)
    if step == 0:
        raise InputError("a step of 0")
    count = max(math.ceil((float(last) - float(first)) / float(step)), 0)
    if call.room((count,)) is np:
        wide = np.float64 if start.dtype.kind not in "iu" else np.int64
        return (np.asarray(first, wide) + np.arange(count, dtype=wide) * np.asarray(step, wide)).astype(start.dtype)
    return first + lax.iota(start.dtype, count) * step


def _range_of_sizes(first: Any, last: Any, step: Any, dtype: Any) -> Any:
    if has_symbolic([step]) or step == 0:
        raise InputError(f"a range in steps of {step}")
    gap = (last - first) * (1 if step > 0 else -1)
    count = core.max_dim((gap + abs(step) - 1) // abs(step), 0)
    return value_of(first, dtype) + lax.iota(dtype, count) * np.asarray(step, dtype)


@op("EyeLike")
def _eye_like(call: Call, x: Any) -> Any:
    dtype = helper.tensor_dtype_to_np_dtype(call.attrs["dtype"]) if "dtype" in call.attrs else x.dtype
    return jnp.eye(*x.shape, k=call.attrs["k"], dtype=dtype)


def reshape_sizes(shape: Sequence[int], wanted: Sequence[int], allow_zero: bool) -> tuple[int, ...]:
    """Result shape of `Reshape`: 0 copies a size, -1 is what is left."""
    sizes = list(wanted)
    for i, (d, n) in enumerate(zip(wanted, shape, strict=False)):
        if not allow_zero and not equal(d, n) and d == 0:  # of a symbolic size it is asked whether it may be 0
            sizes[i] = n
    if has_symbolic([*shape, *sizes]):
        return _symbolic_sizes(shape, sizes)
    count = math.prod(shape)
    if sizes.count(-1) > 1 or any(d < -1 for d in sizes):
        raise InputError(f"cannot reshape {list(shape)} to {list(wanted)}")
    if -1 in sizes:
        rest = math.prod(d for d in sizes if d != -1)
        if rest == 0 or count % rest:
            raise InputError(f"cannot reshape {list(shape)} to {list(wanted)}")
        sizes[sizes.index(-1)] = count // rest
    if math.prod(sizes) != count:
        raise InputError(f"cannot reshape {list(shape)} to {list(wanted)}")
    return tuple(sizes)


def _symbolic_sizes(shape: Sequence[Any], sizes: Sequence[Any]) -> tuple[Any, ...]:
    open_axes = [i for i, d in enumerate(sizes) if not has_symbolic([d]) and d == -1]
    if len(open_axes) > 1 or any(not has_symbolic([d]) and d < -1 for d in sizes):
        raise InputError(f"cannot reshape {list(shape)} to {list(sizes)}")
    if not open_axes:
        return tuple(sizes)
    (axis,) = open_axes
    rest = [d for i, d in enumerate(sizes) if i != axis]
    if math.prod(rest) == 0:  # asked: -1 has no value then
        raise InputError(f"cannot reshape {list(shape)} to {list(sizes)}")
    left: list[Any] = []
    for d in shape:  # what both have is cancelled
        at = next((i for i, e in enumerate(rest) if equal(d, e)), None)
        if at is None:
            left.append(d)
        else:
            del rest[at]
    size, over = divmod(math.prod(left), math.prod(rest))
    if has_symbolic([over]) or over:
        raise InputError(f"cannot reshape {list(shape)} to {list(sizes)}")
    return (*sizes[:axis], size, *sizes[axis + 1 :])


@op("Reshape", fold=True)
def _reshape(call: Call, x: Any, shape: Any) -> Any:
    return x.reshape(reshape_sizes(x.shape, call.ints(shape, "shape"), bool(call.attrs.get("allowzero", 0))))


@op("Flatten", fold=True)
def _flatten(call: Call, x: Any) -> Any:
    axis = call.attrs["axis"]
    if not -x.ndim <= axis <= x.ndim:
        raise InputError(f"axis {axis} is outside rank {x.ndim}")
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op("Squeeze", fold=True)
def _squeeze(call: Call, x: Any, axes: Any = None) -> Any:
    chosen = axes_of(call, axes, x.ndim)
    chosen = tuple(i for i, d in enumerate(x.shape) if d == 1) if chosen is None else chosen
    if any(x.shape[a] != 1 for a in chosen if not has_symbolic([x.shape[a]])) or has_symbolic(
        [x.shape[a] for a in chosen]
    ):
        raise InputError(f"cannot squeeze axes {list(chosen)} of shape {list(x.shape)}")
    return x.reshape([d for i, d in enumerate(x.shape) if i not in chosen])


@op("Unsqueeze", fold=True)
def _unsqueeze(call: Call, x: Any, axes: Any = None) -> Any:
    given = call.attrs["axes"] if axes is None else call.ints(axes, "axes")
    rank = x.ndim + len(given)
    chosen = {axis_of(a, rank) for a in given}
    if len(chosen) != len(given):
        raise InputError(f"axes {list(given)} repeat")
    rest = iter(x.shape)
    return x.reshape([1 if i in chosen else next(rest) for i in range(rank)])


@op("Transpose", fold=True)
def _transpose(call: Call, x: Any) -> Any:
    return call.xp.transpose(x, call.attrs.get("perm", tuple(range(x.ndim))[::-1]))


@op("Expand", fold=True)
def _expand(call: Call, x: Any, shape: Any) -> Any:
    sizes = broadcast_sizes(x.shape, call.ints(shape, "shape"))
    return call.room(sizes).broadcast_to(x, sizes)


@op("Tile", fold=True)
def _tile(call: Call, x: Any, repeats: Any) -> Any:
    times = call.ints(repeats, "repeats")
    if len(times) != x.ndim or any(t < 0 for t in times):
        raise InputError(f"repeats {list(times)} for shape {list(x.shape)}")
    return call.room([d * t for d, t in zip(x.shape, times, strict=True)]).tile(x, times)


@op("Concat", fold=True)
def _concat(call: Call, *operands: Any) -> Any:
    axis = axis_of(call.attrs["axis"], operands[0].ndim)
    return operands[0] if len(operands) == 1 else call.xp.concatenate(operands, axis)


@op("Split", fold=True)
def _split(call: Call, x: Any, split: Any = None) -> Any:
    axis = axis_of(call.attrs["axis"], x.ndim)
    size = x.shape[axis]
    sizes = call.attrs.get("split") if split is None else call.ints(split, "split")
    if sizes is None:
        parts = len(call.node.output)
        if call.attrs.get("num_outputs", parts) != parts:
            raise InputError(f"num_outputs is {call.attrs['num_outputs']} and there are {parts} outputs")
        each = -(-size // parts)
        sizes = [max(min(each, size - i * each), 0) for i in range(parts)]
    if sum(sizes) != size or any(s < 0 for s in sizes):
        raise InputError(f"cannot split size {size} into {list(sizes)}")
    ends = itertools.accumulate(sizes)
    return tuple(slice_axis(x, axis, e - s, e) for s, e in zip(sizes, ends, strict=True))


def slice_axis(x: Any, axis: int, start: int, limit: int, step: int = 1) -> Any:
    """`x[start:limit:step]` along one axis (start and limit inside the size)."""
    if isinstance(x, np.ndarray):
        return x[(slice(None),) * axis + (slice(start, limit, step),)]
    return lax.slice_in_dim(x, start, limit, step, axis)


@op("Slice", fold=True)
def _slice(call: Call, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Any:
    if call.since < 10:
        first, last = call.attrs["starts"], call.attrs["ends"]
        along = call.attrs.get("axes", range(len(first)))
        by = [1] * len(first)
    else:
        first, last = call.ints(starts, "starts"), call.ints(ends, "ends")
        along = range(len(first)) if axes is None else call.ints(axes, "axes")
        by = [1] * len(first) if steps is None else call.ints(steps, "steps")
    if not len(first) == len(last) == len(by) == len(tuple(along)) or 0 in by:
        raise InputError("starts, ends, axes and steps do not fit each other")
    for start, end, axis, step in zip(first, last, along, by, strict=True):
        axis = axis_of(axis, x.ndim)
        if has_symbolic([x.shape[axis], start, end, step]):
            x = _symbolic_slice(jnp.asarray(x), axis, start, end, step)
            continue
        chosen = range(*slice(start, end, step).indices(x.shape[axis]))
        if len(chosen) == x.shape[axis] and step == 1:
            continue
        if not chosen:
            x = slice_axis(x, axis, 0, 0)
        elif step > 0:
            x = slice_axis(x, axis, chosen[0], chosen[-1] + 1, step)
        else:
            x = call.xp.flip(slice_axis(x, axis, chosen[-1], chosen[0] + 1, -step), axis)
    return x


def _symbolic_slice(x: Any, axis: int, start: Any, end: Any, step: Any) -> Any:
    """As Python slices: a bound that is out of all ranges is none, or leaves nothing."""
    sign = 1 if step > 0 else -1
    far = [0 if has_symbolic([n]) or abs(n) < _FAR else sign if n > 0 else -sign for n in (start, end)]
    if far[0] > 0 or far[1] < 0:
        return slice_axis(x, axis, 0, 0)
    begin, stop = (None if out else n for n, out in zip((start, end), far, strict=True))
    return x[(slice(None),) * axis + (slice(begin, stop, step),)]


@op("Pad", fold=True)
def _pad(call: Call, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    amounts = call.attrs["pads"] if call.since < 11 else call.ints(pads, "pads")
    along = range(x.ndim) if axes is None else [axis_of(a, x.ndim) for a in call.ints(axes, "axes")]
    half = len(amounts) // 2
    if len(amounts) != 2 * len(tuple(along)):
        raise InputError(f"{len(amounts)} pads for {len(tuple(along))} axes")
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(along):
        widths[axis] = (amounts[i], amounts[half + i])
    xp = call.room([d + lo + hi for d, (lo, hi) in zip(x.shape, widths, strict=True)])
    mode = call.attrs["mode"]
    if mode == "constant":
        if call.since < 11:
            value = np.asarray(call.attrs["value"], x.dtype)
        fill = np.zeros((), x.dtype) if value is None else value.reshape(()).astype(x.dtype)
        return lax.pad(jnp.asarray(x), fill, [(lo, hi, 0) for lo, hi in widths])
    for axis, (lo, hi) in enumerate(widths):
        x = slice_axis(x, axis, max(-lo, 0), x.shape[axis] - max(-hi, 0))
    grown = [(max(lo, 0), max(hi, 0)) for lo, hi in widths]
    return xp.pad(x, grown, mode=mode)


@op("DepthToSpace")
def _depth_to_space(call: Call, x: Any) -> Any:
    n, c, *space = x.shape
    block, k = call.attrs["blocksize"], len(space)
    deep = c // block**k
    if call.attrs.get("mode", "DCR") == "DCR":
        split = x.reshape(n, *([block] * k), deep, *space)
        order = [0, k + 1] + [a for i in range(k) for a in (k + 2 + i, 1 + i)]
    else:
        split = x.reshape(n, deep, *([block] * k), *space)
        order = [0, 1] + [a for i in range(k) for a in (k + 2 + i, 2 + i)]
    return split.transpose(order).reshape(n, deep, *(d * block for d in space))


@op("SpaceToDepth")
def _space_to_depth(call: Call, x: Any) -> Any:
    n, c, *space = x.shape
    block, k = call.attrs["blocksize"], len(space)
    split = x.reshape(n, c, *(s for d in space for s in (d // block, block)))
    blocks = [3 + 2 * i for i in range(k)]
    order = [0, *blocks, 1] if call.attrs.get("mode", "DCR") == "DCR" else [0, 1, *blocks]
    order += [2 + 2 * i for i in range(k)]
    return split.transpose(order).reshape(n, c * block**k, *(d // block for d in space))


@op("Trilu", fold=True)
def _trilu(call: Call, x: Any, k: Any = None) -> Any:
    shift = 0 if k is None else int(call.static(k, "k").ravel()[0])
    xp = call.room(x.shape)
    rows, columns = xp.arange(x.shape[-2])[:, None], xp.arange(x.shape[-1])
    kept = columns - rows >= shift if call.attrs["upper"] else columns - rows <= shift
    return xp.where(kept, x, np.zeros((), x.dtype))


@op("ReverseSequence")
def _reverse_sequence(call: Call, x: Any, lengths: Any) -> Any:
    time, batch = call.attrs["time_axis"], call.attrs["batch_axis"]
    moved = jnp.moveaxis(x, (batch, time), (0, 1))
    place = lax.broadcasted_iota(np.int32, moved.shape[:2], 1)
    size = lengths.astype(np.int32)[:, None]
    source = jnp.where(place < size, size - 1 - place, place)
    shape = (*moved.shape[:2], *([1] * (moved.ndim - 2)))
    return jnp.moveaxis(jnp.take_along_axis(moved, source.reshape(shape), 1), (0, 1), (batch, time))
