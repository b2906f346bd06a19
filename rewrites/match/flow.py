"""From physical to named axes: how labels flow through one op.

    flow(op, attributes, layout of the result) -> layouts of the operands, {label: mark}.

All that the matcher knows of an op's attributes is the facet `axes` of its entry (`superopt.ir.ops.axes`).  A mark is
an int (the op acts on the label as a set: contracted, reduced, concatenated, broadcast; the int is the size, -1 where
sizes differ) or a pair (attribute values, whether they differ from the neutral ones).  None means that the axes do not
nest (a general reshape) or that an attribute has no place in the rule language.

    kept           One label in result and operands. Along a window and a concatenation sizes differ.
    merged, split  Factored into common atoms. An axis then holds several labels, or none (size 1).
    lost           Fresh labels on all operands that share the axis, marked.
    new            Labels of the result, marked. An operand's axis of size 1 that grows holds no label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rewrites.match.labels import Axis, Labels, Layout
from superopt.ir.ops.axes import Act, Along, Flow
from superopt.ir.ops.table import lookup

Mark: TypeAlias = "int | tuple[tuple[int, ...], bool]"
FlowMarks: TypeAlias = dict[int, Mark]
Flowed: TypeAlias = tuple[list[Layout], FlowMarks]
IntShape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpSite:
    """One physical op: attributes, operand shapes, result shape in the op's own order."""

    values: dict[str, Any]
    shapes: Sequence[IntShape]
    shape: IntShape


def flow(op: str, site: OpSite, lay: Layout, s: Labels) -> Flowed | None:
    """Layouts of the operands from the layout of the result, and marks on labels."""
    rule = lookup(op).axes
    found = None if rule is None else rule.flow(site.values, site.shapes, site.shape)
    if found is None or not found.complete:
        return None
    held = _held(found, lay, s)
    if held is None:
        return None
    marks: FlowMarks = {}
    used = {atom for operand in found.operands for atoms in operand for atom in atoms}
    for atom, axis in held.items():
        if atom not in used:
            marks |= axis
    for operand, shape in zip(found.operands, site.shapes, strict=True):
        for atoms, n in zip(operand, shape, strict=False):  # a scalar that stands for its broadcast has no shape
            for atom in atoms:
                if atom not in held:
                    label, size = s.fresh(), found.sizes.get(atom, n)
                    held[atom] = ((label, size),)
                    marks[label] = size
    for atom, act in found.acts.items():
        acted = _acted(act, held[atom], s)
        if acted is None:
            return None
        held[atom], marked = acted
        marks |= marked
    return [_layout(found, k, shape, held) for k, shape in enumerate(site.shapes)], marks


def _held(found: Flow, lay: Layout, s: Labels) -> dict[int, Axis] | None:
    """Labels of each atom of the result; None where the axes do not nest."""
    held: dict[int, Axis] = {}
    position = 0
    for run in found.result:
        part = lay[position : position + run.axes]
        position += run.axes
        if run.axes == len(run.atoms) == 1:  # also of size 1: the label stays
            held[run.atoms[0]] = part[0]
            continue
        entries: list[tuple[int, int]] = []
        for axis in part:
            resolved = s.axis(axis)
            if resolved is None:
                return None
            entries += resolved
        parts = s.carve(entries, [found.sizes[atom] for atom in run.atoms])
        if parts is None:
            return None
        held |= zip(run.atoms, parts, strict=True)
    return held


def _acted(act: Act, axis: Axis, s: Labels) -> tuple[Axis, FlowMarks] | None:
    """Labels of an axis that an op acts along, with marks; None where it acts on part of a merged axis."""
    if act.kind in (Along.REVERSE, Along.STRETCH):  # a merged axis reversed is each of its labels reversed
        return axis if act.kind is Along.REVERSE else (), dict(axis)
    acts = act.kind is not Along.WINDOW or act.values != act.neutral
    if len(axis) != 1:
        if not acts or (act.kind in (Along.SCAN, Along.MIX) and not axis):
            return axis, {}
        if axis or act.kind is not Along.WINDOW:
            return None
        axis = ((s.fresh(), 1),)  # the result has size 1 here and its label was reshaped away
    ((label, n),) = axis
    mark = n if act.kind in (Along.SCAN, Along.MIX) else -1 if act.kind is Along.JOIN else (act.values, acts)
    return axis, {label: mark}


def _layout(found: Flow, k: int, shape: IntShape, held: dict[int, Axis]) -> Layout:
    out: list[Axis] = []
    for i, atoms in enumerate(found.operands[k]):
        axis = tuple([entry for atom in atoms for entry in held[atom]])
        if len(axis) == 1 and found.acts.keys() & atoms:  # along a window or a concatenation sizes differ
            axis = ((axis[0][0], shape[i]),)
        out.append(axis)
    return tuple(out)
