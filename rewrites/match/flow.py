"""From physical to named axes: how labels flow through one op.

    flow(op, attributes, layout of the result) -> layouts of the operands, {label: mark}.

Everything that the matcher assumes about `dimension_numbers`, `padding_config` and the like stands in this file.  A
mark is an int (the op acts on the label as a set: contracted, reduced, concatenated, broadcast; the int is the size,
-1 where sizes differ) or a pair (attribute values, whether they differ from the neutral ones).  None means that
the axes do not nest (a general reshape) or that an attribute has no place in the rule language.

    elementwise          unchanged (a scalar operand keeps the full layout: it stands for its broadcast)
    regroup, reshape     factored into common atoms: an axis then holds several labels, or none (size 1).
    broadcast_in_dim     new labels marked; a size-1 operand axis that grows holds no label
    product              contracted axes get fresh labels on both operands.
    convolution          a spatial label for image, kernel and result; a fresh feature label; groups: (g c), (g o)
    concatenate, slice, pad, rev, windows, scans    labels unchanged, sizes change
    reduce, gather       fresh labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rewrites.language.term import REDUCERS
from rewrites.match.labels import Axis, Labels, Layout
from superopt.ir.ops.table import CONVOLUTIONS, ELEMENTWISE, PREFIXES, PRODUCTS, WINDOWS

Mark: TypeAlias = "int | tuple[tuple[int, ...], bool]"
Marks: TypeAlias = dict[int, Mark]
Flowed: TypeAlias = tuple[list[Layout], Marks]
IntShape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpSite:
    """One physical op: attributes, operand shapes, result shape in the op's own order."""

    values: dict[str, Any]
    shapes: Sequence[IntShape]
    shape: IntShape


def flow(op: str, site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    """Layouts of the operands from the layout of the result, and marks on labels."""
    rule = _FLOW.get(op)
    return None if rule is None else rule(site, lay, s)


def _elementwise(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    return [lay] * len(site.shapes), {}


def _regroup(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    out: list[Axis] = [()] * len(site.shapes[0])
    position = 0
    groups: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = site.values["groups"]
    for ins, sizes in groups:
        if len(ins) == len(sizes) == 1:  # also of size 1: the label stays
            out[ins[0]] = lay[position]
            position += 1
            continue
        atoms: list[tuple[int, int]] = []
        for axis in lay[position : position + len(sizes)]:
            resolved = s.axis(axis)
            if resolved is None:
                return None
            atoms += resolved
        position += len(sizes)
        parts = s.carve(atoms, [site.shapes[0][a] for a in ins])
        if parts is None:
            return None
        for a, part in zip(ins, parts, strict=True):
            out[a] = part
    return [tuple(out)], {}


def _reshape(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    atoms: list[tuple[int, int]] = []
    for axis in lay:
        resolved = s.axis(axis)
        if resolved is None:
            return None
        atoms += resolved
    parts = s.carve(atoms, site.shapes[0])
    return None if parts is None else ([tuple(parts)], {})


def _broadcast(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    dims: tuple[int, ...] = site.values["broadcast_dimensions"]
    (shape,) = site.shapes
    out = tuple([lay[d] if shape[j] == site.shape[d] else () for j, d in enumerate(dims)])
    kept = {label for axis in out for label, _ in axis}
    return [out], {label: n for axis in lay for label, n in axis if label not in kept}


def _reduce(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    rest = iter(lay)
    marks: Marks = {}
    out: list[Axis] = []
    for i, n in enumerate(site.shapes[0]):
        if i in site.values["axes"]:
            label = s.fresh()
            marks[label] = n
            out.append(((label, n),))
        else:
            out.append(next(rest))
    return [tuple(out)], marks


def _dot(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    numbers: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = site.values["dimension_numbers"]
    (lc, rc), (lb, rb) = numbers
    left_shape, right_shape = site.shapes
    left: list[Axis | None] = [None] * len(left_shape)
    right: list[Axis | None] = [None] * len(right_shape)
    rest = iter(lay)
    marks: Marks = {}
    for i, j in zip(lb, rb, strict=True):
        left[i] = right[j] = next(rest)
    for i, j in zip(lc, rc, strict=True):
        label = s.fresh()
        marks[label] = left_shape[i]
        left[i] = right[j] = ((label, left_shape[i]),)
    out: list[Layout] = []
    for operand in (left, right):
        out.append(tuple([next(rest) if axis is None else axis for axis in operand]))
    return out, marks


def _conv(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    v = site.values
    if v["batch_group_count"] != 1:
        return None
    specs: tuple[tuple[int, ...], ...] = v["dimension_numbers"]
    x_spec, w_spec, o_spec = specs
    x_shape, w_shape = site.shapes
    groups: int = v["feature_group_count"]
    left: list[Axis] = [()] * len(x_shape)
    right: list[Axis] = [()] * len(w_shape)
    left[x_spec[0]] = lay[o_spec[0]]
    features = s.axis(lay[o_spec[1]])
    if features is None:
        return None
    group: Axis = ()
    if groups > 1:
        parts = s.carve(features, [groups, site.shape[o_spec[1]] // groups])
        if parts is None:
            return None
        group, features = parts
    label = s.fresh()
    marks: Marks = {label: w_shape[w_spec[1]]}
    inner: Axis = ((label, w_shape[w_spec[1]]),)
    left[x_spec[1]] = group + inner
    right[w_spec[0]] = group + features
    right[w_spec[1]] = inner
    for j in range(len(lay) - 2):
        axis = lay[o_spec[2 + j]]
        if len(axis) > 1:
            return None
        spatial = axis[0][0] if axis else s.fresh()  # an axis of size 1 whose label was reshaped away
        left[x_spec[2 + j]] = ((spatial, x_shape[x_spec[2 + j]]),)
        right[w_spec[2 + j]] = ((spatial, w_shape[w_spec[2 + j]]),)
        values = (v["window_strides"][j], *v["padding"][j], v["lhs_dilation"][j], v["rhs_dilation"][j])
        marks[spatial] = (values, True)
    return [tuple(left), tuple(right)], marks


def _concatenate(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    d: int = site.values["dimension"]
    if len(lay[d]) != 1:
        return None
    label = lay[d][0][0]
    return [(*lay[:d], ((label, shape[d]),), *lay[d + 1 :]) for shape in site.shapes], {label: -1}


def _per_axis(
    site: OpSite, lay: Layout, s: Labels, values: Sequence[tuple[int, ...]], neutral: Callable[[int], tuple[int, ...]]
) -> Flowed | None:
    """Labels through an op with attributes per axis: labels stay, sizes change; merged axes need neutral attributes."""
    out: list[Axis] = []
    marks: Marks = {}
    shape = site.shapes[0]
    for i, axis in enumerate(lay):
        acts = values[i] != neutral(i)
        if acts and not axis:  # the result has size 1 here and its label was reshaped away
            axis = ((s.fresh(), 1),)
        if len(axis) == 1:
            marks[axis[0][0]] = (values[i], acts)
            out.append(((axis[0][0], shape[i]),))
        elif acts:
            return None
        else:
            out.append(axis)
    empty: list[Layout] = [()] * (len(site.shapes) - 1)
    return [tuple(out), *empty], marks


def _slice(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    v, shape = site.values, site.shapes[0]
    values = list(zip(v["start_indices"], v["limit_indices"], v["strides"], strict=True))
    return _per_axis(site, lay, s, values, lambda i: (0, shape[i], 1))


def _pad(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    return _per_axis(site, lay, s, site.values["padding_config"], lambda i: (0, 0, 0))


def _window(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    v = site.values
    if any(d != 1 for name in ("base_dilation", "window_dilation") for d in v[name] or ()):
        return None
    values = [
        (size, step, lo, hi)
        for size, step, (lo, hi) in zip(v["window_dimensions"], v["window_strides"], v["padding"], strict=True)
    ]
    return _per_axis(site, lay, s, values, lambda i: (1, 1, 0, 0))


def _rev(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    marks: Marks = {}
    dims: tuple[int, ...] = site.values["dimensions"]
    for d in dims:
        for label, n in lay[d]:  # a merged axis reversed is each of its labels reversed
            marks[label] = n
    return [lay], marks


def _scan(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    along: int = site.values["axis"]
    axis = lay[along]
    if len(axis) > 1:
        return None
    return [lay], dict(axis)


def _gather(site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    """Labels through a gather of table rows along one axis by clipped indices; None for any other gather."""
    v = site.values
    table, indices = site.shapes
    if v["mode"] == "fill" or v["operand_batching_dims"] or v["start_index_map"] != v["collapsed_slice_dims"]:
        return None
    if len(v["start_index_map"]) != 1 or indices[-1] != 1:
        return None
    (along,) = v["start_index_map"]
    if any(k != (1 if i == along else n) for i, (k, n) in enumerate(zip(v["slice_sizes"], table, strict=True))):
        return None
    label = s.fresh()
    offset_dims: tuple[int, ...] = v["offset_dims"]
    offsets = iter([lay[d] for d in offset_dims])
    rows: Layout = tuple([((label, n),) if i == along else next(offsets) for i, n in enumerate(table)])
    batch = [axis for d, axis in enumerate(lay) if d not in offset_dims]
    return [rows, (*batch, ())], {label: table[along]}


_Rule: TypeAlias = Callable[[OpSite, Layout, Labels], "Flowed | None"]
_FLOW: dict[str, _Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **{f"reduce_{kind}": _reduce for kind in REDUCERS},
    **dict.fromkeys(WINDOWS, _window),
    **dict.fromkeys(PREFIXES, _scan),
    "regroup": _regroup,
    "reshape": _reshape,
    "broadcast_in_dim": _broadcast,
    **dict.fromkeys(PRODUCTS, _dot),
    **dict.fromkeys(CONVOLUTIONS, _conv),
    "concatenate": _concatenate,
    "slice": _slice,
    "pad": _pad,
    "rev": _rev,
    "gather": _gather,
}
