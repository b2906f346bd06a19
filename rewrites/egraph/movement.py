"""Normal forms of slices, concatenations, pads and reversals.

Slices sink: to the source of a slice, into the one piece of a concatenation that they touch, below a broadcast.
Concatenations are flat, and adjacent slices of one tensor are one slice.  Without this, rules that split and join
tensors feed each other for ever through frozen weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rewrites.egraph import shape as normal_shape
from superopt.errors import ShapeError

if TYPE_CHECKING:
    from rewrites.egraph.enode import Ref
    from rewrites.egraph.graph import EGraph

Box = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # starts, limits, strides


def slice_(eg: EGraph, x: Ref, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Ref:
    """A strided slice of every axis.

    Raises:
        ShapeError: the bounds do not fit.
    """
    x = eg.find(x)
    shape = eg.shape(x)
    bounds = list(zip(starts, limits, strides, strict=True))
    if len(bounds) != len(shape) or any(
        not 0 <= b <= e <= n or t < 1 for (b, e, t), n in zip(bounds, shape, strict=False)
    ):
        raise ShapeError(f"slice of {eg.type(x)} from {starts} to {limits} by {strides}: out of bounds")
    box = _tight(starts, limits, strides)
    seen: set[tuple[Ref, Box]] = set()
    while not _is_full(box, eg.shape(x)):
        if (x, box) in seen or any(b == e for b, e in zip(box[0], box[1], strict=True)):
            return _insert(eg, x, box)  # a cycle of views, or an empty slice
        seen.add((x, box))
        below = _through_slice(eg, x, box) or _through_piece(eg, x, box)
        if below is None:
            break
        x, box = below
    if _is_full(box, eg.shape(x)):
        return x
    outside = _drop_pieces(eg, x, box)
    if outside is None:
        outside = _through_broadcast(eg, x, box)
    return _insert(eg, x, box) if outside is None else outside


def concatenate(eg: EGraph, children: Sequence[Ref], axis: int) -> Ref:
    """Join along one axis."""
    flat: list[Ref] = []
    for child in children:
        ref = eg.find(child)
        for node, q in eg.views(ref, "concatenate"):
            if q[axis] == eg.values_of(node)["dimension"]:
                flat += [eg.find(eg.transpose(part, q)) for part in node[1:]]
                break
        else:
            flat.append(ref)
    joined: list[Ref] = flat[:1]
    for ref in flat[1:]:
        both = _adjacent(eg, joined[-1], ref, axis)
        if both is None:
            joined.append(ref)
        else:
            joined[-1] = both
    if len(joined) == 1:
        return joined[0]
    return eg.insert("concatenate", (("dimension", axis),), joined)


def pad(eg: EGraph, x: Ref, value: Ref, config: tuple[tuple[int, int, int], ...]) -> Ref:
    """Pad every axis at both ends and between elements."""
    if not any(any(c) for c in config) and len(config) == len(eg.shape(x)):
        return eg.find(x)
    return eg.insert("pad", (("padding_config", config),), (x, value))


def rev(eg: EGraph, x: Ref, dimensions: Sequence[int]) -> Ref:
    """Reverse some axes."""
    x = eg.find(x)
    for node, q in eg.views(x, "rev"):
        inner = {q.index(d) for d in eg.values_of(node)["dimensions"]}
        x, dimensions = eg.find(eg.transpose(node[1], q)), sorted(inner.symmetric_difference(dimensions))
        break
    if not dimensions:
        return x
    return eg.insert("rev", (("dimensions", tuple(sorted(dimensions))),), (x,))


# ---- slices


def _tight(starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Box:
    """The same slice with its limits just behind the last element; stride 1 where there is one element."""
    counts = [-(-(e - b) // t) for b, e, t in zip(starts, limits, strides, strict=True)]
    steps = tuple([t if n > 1 else 1 for n, t in zip(counts, strides, strict=True)])
    ends = tuple([b + (n - 1) * t + 1 if n else b for b, n, t in zip(starts, counts, steps, strict=True)])
    return tuple(starts), ends, steps


def _is_full(box: Box, shape: Sequence[int]) -> bool:
    return box[1] == tuple(shape) and not any(box[0]) and all(t == 1 for t in box[2])


def _insert(eg: EGraph, x: Ref, box: Box) -> Ref:
    attrs = (("limit_indices", box[1]), ("start_indices", box[0]), ("strides", box[2]))
    return eg.insert("slice", attrs, (x,))


def slice_views(eg: EGraph, ref: Ref) -> list[tuple[Ref, Box]]:
    """The slices that ref is: source and box, both in ref's axes."""
    found: list[tuple[Ref, Box]] = []
    for node, q in eg.views(ref, "slice"):
        v = eg.values_of(node)
        starts, limits, strides = [
            tuple([v[name][a] for a in q]) for name in ("start_indices", "limit_indices", "strides")
        ]
        found.append((eg.find(eg.transpose(node[1], q)), (starts, limits, strides)))
    return found


def _through_slice(eg: EGraph, x: Ref, box: Box) -> tuple[Ref, Box] | None:
    """slice(slice x) = slice x."""
    for source, (starts, _, strides) in slice_views(eg, x):
        first = [s + t * b for s, t, b in zip(starts, strides, box[0], strict=True)]
        last = [s + t * (e - 1) + 1 for s, t, e in zip(starts, strides, box[1], strict=True)]
        return source, _tight(first, last, [t * u for t, u in zip(strides, box[2], strict=True)])
    return None


def _pieces(eg: EGraph, x: Ref, box: Box) -> tuple[int, list[tuple[Ref, int, int]]] | None:
    """Axis of a concatenation that x is, and the touched pieces with their bounds, if the slice misses some piece."""
    for node, q in eg.views(x, "concatenate"):
        axis = q.index(eg.values_of(node)["dimension"])
        offset = 0
        touched: list[tuple[Ref, int, int]] = []
        for part in node[1:]:
            piece = eg.find(eg.transpose(part, q))
            size = eg.shape(piece)[axis]
            if box[0][axis] < offset + size and box[1][axis] > offset:
                touched.append((piece, offset, offset + size))
            offset += size
        if len(touched) < len(node) - 1:
            return axis, touched
    return None


def _through_piece(eg: EGraph, x: Ref, box: Box) -> tuple[Ref, Box] | None:
    """slice(concat(.., x, ..)) = slice x when it touches no other piece."""
    found = _pieces(eg, x, box)
    if found is None or len(found[1]) != 1:
        return None
    axis, ((piece, offset, _),) = found
    starts, limits = list(box[0]), list(box[1])
    starts[axis] -= offset
    limits[axis] -= offset
    return piece, (tuple(starts), tuple(limits), box[2])


def _drop_pieces(eg: EGraph, x: Ref, box: Box) -> Ref | None:
    """A dense slice of several but not all pieces is the concatenation of their slices."""
    found = _pieces(eg, x, box)
    if found is None or box[2][found[0]] != 1:
        return None
    axis, touched = found
    parts: list[Ref] = []
    for piece, offset, end in touched:
        starts, limits = list(box[0]), list(box[1])
        starts[axis] = max(starts[axis], offset) - offset
        limits[axis] = min(limits[axis], end) - offset
        inner = (tuple(starts), tuple(limits), box[2])
        parts.append(slice_(eg, piece, *inner))
    return concatenate(eg, parts, axis)


def _through_broadcast(eg: EGraph, x: Ref, box: Box) -> Ref | None:
    """slice(bcast x) = bcast(slice x)."""
    for source, at in normal_shape.broadcast_views(eg, x):
        starts, limits, strides = [[part[a] for a in at] for part in box]
        sizes = [-(-(e - b) // t) for b, e, t in zip(*box, strict=True)]
        return normal_shape.broadcast(eg, slice_(eg, source, starts, limits, strides), sizes, at)
    return None


def _adjacent(eg: EGraph, a: Ref, b: Ref, axis: int) -> Ref | None:
    """The one slice that two slices of one tensor form, when b goes on where a ends."""
    for source, (starts, limits, strides) in slice_views(eg, a):
        for other, (starts_b, limits_b, strides_b) in slice_views(eg, b):
            if source != other or strides[axis] != 1 or strides_b[axis] != 1 or limits[axis] != starts_b[axis]:
                continue
            rest = [i for i in range(len(starts)) if i != axis]
            if any(starts[i] != starts_b[i] or limits[i] != limits_b[i] or strides[i] != strides_b[i] for i in rest):
                continue
            ends = tuple([limits_b[i] if i == axis else e for i, e in enumerate(limits)])
            box = (starts, ends, strides)
            return source if _is_full(box, eg.shape(source)) else _insert(eg, source, box)
    return None
