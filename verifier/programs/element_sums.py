"""Labels of elements that depend on many others: reductions, windows, products, and reads at computed places.

A multiset is labelled by the sum of its scrambled labels.  A product sums over positions k.  Each k gets a name that
does not depend on its place: it is made from all elements of both operands at k, and equal names are distinguished by
their order.  A row is the multiset of (name of k, element), and the result is the unordered pair of rows.  Equal labels
then imply a one-to-one correspondence of the positions under which both operands agree.  A convolution is the same
product over windows; places outside of the image have a label of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from superopt.ir.graph import Node
from superopt.ir.ops.contraction import free_axes
from superopt.ir.ops.reduction import ARG, CUMULATIVE, REDUCE, WINDOW
from superopt.ir.ops.table import CONVOLUTIONS, PRODUCTS
from verifier.programs.mixing import Ids, Tags, add, mix, ordered, total

_OUTSIDE = mix(np.uint64(1))


def _ints(node: Node) -> tuple[int, ...]:
    return tuple([int(str(n)) for n in node.shape])


def padded(x: Ids, config: Sequence[tuple[int, int, int]], fill: Ids) -> Ids:
    """Pad with `fill`, by `(low, high, dilation)` for each axis; negative padding crops."""
    shape = [
        max(0, lo + hi + (0 if n == 0 else (n - 1) * d + 1)) for n, (lo, hi, d) in zip(x.shape, config, strict=True)
    ]
    out = np.full(shape, fill, np.uint64)
    source: list[slice] = []
    target: list[slice] = []
    for n, size, (lo, _, d) in zip(x.shape, shape, config, strict=True):
        first = max(0, -(lo // d)) if lo < 0 else 0
        count = len(range(first * d + lo, min(size, (n - 1) * d + 1 + lo), d)) if n else 0
        start = first * d + lo
        source.append(slice(first, first + count))
        target.append(slice(start, start + count * d if count else start, d))
    if all(s.stop > s.start for s in source):
        out[tuple(target)] = x[tuple(source)]
    return out


# ---- folds


def _fold(tag: Tags, kind: str, dtype: str, *summed: Ids) -> Ids:
    return ordered(tag("fold", kind, dtype), *summed)


def _reduce(tag: Tags, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    axes = tuple(v["axes"])
    if prod(xs[0].shape[a] for a in axes) == 1:
        return xs[0].reshape(_ints(node))
    each = mix(xs[0])  # the sum of many equal elements keeps the lower bits only; the second sum keeps the upper half
    return _fold(
        tag, node_op(node).removeprefix("reduce_"), node.dtype, total(each, axes), total(each >> np.uint64(32), axes)
    )


def node_op(node: Node) -> str:
    """The op of a node, for a macro the op that it stands for."""
    return node["op"] if node.op == "macro" else node.op


def _offsets(window: Sequence[int], dilation: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for r in product(*map(range, window)):
        yield tuple([i * d for i, d in zip(r, dilation, strict=True)])


def _at(x: Ids, offset: Sequence[int], strides: Sequence[int], sizes: Sequence[int], lead: int) -> Ids:
    """The elements at one offset within every window, over the last axes of x."""
    cut = [slice(o, o + (n - 1) * s + 1 if n else o, s) for o, s, n in zip(offset, strides, sizes, strict=True)]
    return x[(slice(None),) * lead + tuple(cut)]


def _window(tag: Tags, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    window, out = v["window_dimensions"], _ints(node)
    config = [(lo, hi, d) for (lo, hi), d in zip(v["padding"], v["base_dilation"], strict=True)]
    plain = all(c == (0, 0, 1) for c in config)
    if prod(window) == 1 and plain:
        return _at(xs[0], [0] * len(out), v["window_strides"], out, 0)
    image = padded(mix(xs[0]), config, np.asarray(np.uint64(0)))
    summed = np.zeros(out, np.uint64)
    for offset in _offsets(window, v["window_dilation"]):
        summed = add(summed, _at(image, offset, v["window_strides"], out, 0))
    return _fold(tag, node_op(node).removeprefix("reduce_window_"), node.dtype, summed)


def _prefix(tag: Tags, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    axis = v["axis"]
    x = np.flip(xs[0], axis) if v["reverse"] else xs[0]
    ids = _fold(tag, node_op(node).removeprefix("cum"), node.dtype, np.cumsum(mix(x), axis=axis, dtype=np.uint64))
    if ids.shape[axis]:
        first = (slice(None),) * axis + (slice(0, 1),)
        ids[first] = x[first]
    return np.flip(ids, axis) if v["reverse"] else ids


def _arg(tag: Tags, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    (axis,) = v["axes"]
    places = mix(np.arange(xs[0].shape[axis], dtype=np.uint64))
    row = np.moveaxis(xs[0], axis, -1)
    return ordered(tag(node_op(node), node.dtype, node.inputs[0].dtype), total(mix(add(row, places)), (-1,)))


# ---- products


def _names(left: Ids, right: Ids) -> Ids:
    """Distinct names of the contracted positions, made from the labels of both operands at each."""
    names = mix(add(left, right)).ravel()
    order = np.argsort(names, kind="stable")
    place = np.arange(len(names))
    leads = np.append(True, names[order][1:] != names[order][:-1])[: len(names)]
    ranks = np.zeros(len(names), np.uint64)
    ranks[order] = (place - np.maximum.accumulate(np.where(leads, place, 0))).astype(np.uint64)
    return mix(add(names, mix(ranks))).reshape(left.shape)


def _pair(tag: Tags, node: Node, v: dict[str, Any], a: Ids, b: Ids) -> Ids:
    kind = tag("product", node.inputs[0].dtype, node.dtype, v["precision"], v["preferred_element_type"])
    return ordered(kind, np.minimum(a, b), np.maximum(a, b))


def _dot(tag: Tags, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    (lc, rc), (lb, rb) = v["dimension_numbers"]
    x, y = xs
    lf, rf = free_axes(v["dimension_numbers"], (x.ndim, y.ndim))
    batch, inner = prod(x.shape[a] for a in lb), prod(x.shape[a] for a in lc)
    p = x.transpose((*lb, *lf, *lc)).reshape(batch, prod(x.shape[a] for a in lf), inner)
    q = y.transpose((*rb, *rf, *rc)).reshape(batch, prod(y.shape[a] for a in rf), inner)
    names = _names(total(mix(p), (0, 1)), total(mix(q), (0, 1)))
    a, b = (total(mix(add(z, names)), (2,)) for z in (p, q))
    return _pair(tag, node, v, a[:, :, None], b[:, None, :]).reshape(_ints(node))


def _conv(tag: Tags, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    lhs, rhs, out = cast(tuple[tuple[int, ...], ...], v["dimension_numbers"])
    x, w = xs[0].transpose(lhs), xs[1].transpose(rhs)
    groups, batches = v["feature_group_count"], v["batch_group_count"]
    shape = tuple([_ints(node)[a] for a in out])
    sizes, g, depth = shape[2:], groups * batches, w.shape[1]
    config = [(0, 0, 1), (0, 0, 1), *[(lo, hi, d) for (lo, hi), d in zip(v["padding"], v["lhs_dilation"], strict=True)]]
    image = padded(x, config, _OUTSIDE)
    n = image.shape[0] // batches
    image = image.reshape(batches, n, groups, depth, *image.shape[2:])
    image = np.moveaxis(image, 2, 1).reshape(g, n, depth, *image.shape[4:])  # one of the two group counts is 1
    kernel = w.reshape(g, w.shape[0] // g, depth, *w.shape[2:])
    offsets = list(_offsets(w.shape[2:], v["rhs_dilation"]))
    places = list(product(*map(range, w.shape[2:])))
    seen = [_at(image, o, v["window_strides"], sizes, 3) for o in offsets]
    over = (0, 1, *range(3, image.ndim))
    left = np.stack([total(mix(s), over) for s in seen])
    right = np.stack([total(mix(kernel[(..., *r)]), (0, 1)) for r in places])
    names = _names(left, right)  # (place, channel)
    rows = np.zeros((g, n, *sizes), np.uint64)
    columns = np.zeros(kernel.shape[:2], np.uint64)
    spread = (slice(None),) + (None,) * len(sizes)
    for s, r, name in zip(seen, places, names, strict=True):
        rows = add(rows, total(mix(add(s, name[spread])), (2,)))
        columns = add(columns, total(mix(add(kernel[(..., *r)], name)), (2,)))
    a = rows[:, :, None]
    b = columns.reshape(g, 1, -1, *(1,) * len(sizes))
    ids = np.moveaxis(_pair(tag, node, v, a, b), 0, 1).reshape(shape)
    return ids.transpose(np.argsort(out))


# ---- reads and writes at computed places


def _along(x: Ids, axes: Sequence[int]) -> Ids:
    """x with some axes reduced, in this order, to one label of the elements along them; they stay with size 1."""
    if not axes:
        return x
    places = mix(np.arange(prod(x.shape[a] for a in axes), dtype=np.uint64)).reshape([x.shape[a] for a in axes])
    spread = places.transpose(np.argsort(axes)).reshape([n if a in axes else 1 for a, n in enumerate(x.shape)])
    return np.asarray(mix(add(x, spread)).sum(axis=tuple(axes), keepdims=True, dtype=np.uint64))


def _moving(whole: Sequence[int], part: Sequence[int], starts: Sequence[Ids]) -> list[int]:
    """Axes along which the part is smaller than the whole, in an order that does not depend on the layout."""
    axes = [a for a, (n, m) in enumerate(zip(whole, part, strict=True)) if n != m]
    return sorted(axes, key=lambda a: int(starts[a]))


def _positions(shape: Sequence[int], axes: Sequence[int]) -> Ids:
    """Labels of the positions along some axes."""
    out = np.zeros([1] * len(shape), np.uint64)
    for order, axis in enumerate(axes):
        line = mix(np.arange(shape[axis], dtype=np.uint64) + np.uint64((order + 1) << 40))
        out = add(out, line.reshape([-1 if a == axis else 1 for a in range(len(shape))]))
    return out


def _dynamic_slice(tag: Tags, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    x, starts = xs[0], xs[1:]
    out = _ints(node)
    axes = _moving(x.shape, out, starts)
    if not axes:
        return x
    kind = tag("dynamic_slice", [(x.shape[a], out[a]) for a in axes], [node.inputs[1 + a].dtype for a in axes])
    held = _along(x, axes)
    return np.broadcast_to(ordered(kind, held, _positions(out, axes), *[starts[a] for a in axes]), out)


def _dynamic_update_slice(tag: Tags, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    x, update, starts = xs[0], xs[1], xs[2:]
    axes = _moving(x.shape, update.shape, starts)
    if not axes:
        return update
    kind = tag("dynamic_update_slice", [update.shape[a] for a in axes], [node.inputs[2 + a].dtype for a in axes])
    written = _along(update, axes)
    return ordered(kind, x, written, _positions(x.shape, axes), *[starts[a] for a in axes])


def _gather(tag: Tags, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    x, indices = xs
    out, sizes = _ints(node), v["slice_sizes"]
    mapped: list[int] = list(v["start_index_map"])
    held = _along(x, mapped)
    rows: list[int] = [d for d in range(len(out)) if d not in v["offset_dims"]]

    def line(axis: int) -> npt.NDArray[np.int64]:
        return np.arange(out[axis]).reshape([-1 if d == axis else 1 for d in range(len(out))])

    read: list[Any] = [0] * x.ndim
    places = np.zeros([1] * len(out), np.uint64)
    kept: list[int] = [
        a for a in range(x.ndim) if a not in v["collapsed_slice_dims"] and a not in v["operand_batching_dims"]
    ]
    offsets: list[int] = list(v["offset_dims"])
    for d, a in zip(offsets, kept, strict=True):
        if a in mapped:
            offset = line(d).astype(np.uint64) + np.uint64((mapped.index(a) + 1) << 40)
            places = add(places, mix(offset))
        else:
            read[a] = line(d)
    pairs: list[tuple[int, int]] = list(zip(v["operand_batching_dims"], v["start_indices_batching_dims"], strict=True))
    for a, s in pairs:
        read[a] = line(rows[s])
    spread = [out[d] if d in rows else 1 for d in range(len(out))]
    starts = [np.broadcast_to(np.asarray(indices[..., j]).reshape(spread), out) for j in range(len(mapped))]
    kind = tag("gather", v["mode"], [(x.shape[a], sizes[a]) for a in mapped], node.inputs[1].dtype, node.dtype)
    return np.broadcast_to(ordered(kind, held[tuple(read)], places, *starts), out)


def _segment_sum(tag: Tags, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    """A segment's sum: the multiset of the rows with their segments, at the segment's position."""
    rows, segments = xs
    lead, count = tuple(range(segments.ndim)), v["segments"]
    each = mix(
        ordered(
            tag("row", node.inputs[1].dtype), segments.reshape((*segments.shape, *[1] * (rows.ndim - len(lead)))), rows
        )
    )
    whole = [total(part, lead)[None] for part in (each, each >> np.uint64(32))]
    place = mix(np.arange(count, dtype=np.uint64)).reshape(-1, *[1] * (rows.ndim - len(lead)))
    ids = ordered(tag("segment_sum", node.dtype), place, *whole)
    return np.broadcast_to(ids, _ints(node))


LABEL: dict[str, Callable[[Tags, Node, list[Ids], dict[str, Any]], Ids]] = {
    **dict.fromkeys(REDUCE, _reduce), **dict.fromkeys(WINDOW, _window), **dict.fromkeys(CUMULATIVE, _prefix),
    **dict.fromkeys(ARG, _arg), **dict.fromkeys(PRODUCTS, _dot), **dict.fromkeys(CONVOLUTIONS, _conv),
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice, "gather": _gather,
    "segment_sum": _segment_sum,
}  # fmt: skip
