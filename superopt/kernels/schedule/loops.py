"""Primitives on the loops of a stage: split, fuse, reorder, parallel, vectorize, unroll, pad, set_knob."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from superopt.ir.index import Poly, Size, Symbol, bounds, iterator, of_atom, row_major
from superopt.kernels.loops.program import checked
from superopt.kernels.loops.stage import AxisKind, Loop, LoopProgram, Stage
from superopt.kernels.schedule.edit import fresh, mapped, plain, position, require, terms, unshared, with_stage


def split(program: LoopProgram, stage: str, axis: str, factors: Sequence[int]) -> LoopProgram:
    """Split an axis into one of ceil(extent / product of factors) iterations and one for each factor, outermost first.

    before
        for o0<10
          out0[o0] = exp(x[o0])
    split out0 o0 [4]
        for o0_0<3, o0_1<4 if 9-4*o0_0-o0_1>=0
          out0[4*o0_0+o0_1] = exp(x[4*o0_0+o0_1])

    The guard is there only where the factors do not divide the extent.  The outermost new axis keeps `parallel`, the
    innermost `vector` and `unroll`; the others are serial.

    Raises:
        InputError: no such axis, a factor below 1, or a stage placed under the axis.
    """
    current = plain(program.stage(stage), "split")
    at = position(current, axis)
    unshared(program, current, at, "split")
    sizes = [int(f) for f in factors]
    require(bool(sizes) and all(f >= 1 for f in sizes), f"split {axis} needs factors of at least 1, got {sizes}")
    old = current.axes[at]
    sizes = [-(-old.extent // prod(sizes)), *sizes]
    others = [a.symbol.name for a in current.axes if a is not old]
    pairs = [iterator(fresh(others, f"{axis}_{j}"), n) for j, n in enumerate(sizes)]
    whole = row_major([i for _, i in pairs], sizes)
    kinds: list[AxisKind] = ["serial"] * len(sizes)
    kinds[0 if old.kind == "parallel" else -1] = old.kind
    axes = [Loop(it, kind) for (it, _), kind in zip(pairs, kinds, strict=True)]
    new = mapped(
        current, {old.symbol: whole}, [*current.axes[:at], *axes, *current.axes[at + 1 :]], old.extent - 1 - whole
    )
    return with_stage(program, new)


def fuse(program: LoopProgram, stage: str, axes: Sequence[str]) -> LoopProgram:
    """Make neighbouring axes of one kind one axis.

    before
        for o0<6, o1<5
          out0[o0,o1] = exp(x[o0,o1])
    fuse out0 [o0, o1]
        for o0_o1<30
          out0[o0_o1//5,o0_o1%5] = exp(x[o0_o1//5,o0_o1%5])

    Raises:
        InputError: the axes are fewer than two, not neighbours in this order, of several kinds, or shared. Also where
            the stage accumulates over some of them and not over others.
    """
    current = plain(program.stage(stage), "fuse")
    require(len(axes) >= 2, f"fuse needs two axes, got {list(axes)}")
    at = position(current, axes[0])
    group = current.axes[at : at + len(axes)]
    names = [a.symbol.name for a in group]
    require(names == list(axes), f"fuse {list(axes)}: at this place stage {stage} has the axes {names}")
    kinds = {a.kind for a in group}
    require(len(kinds) == 1, f"fuse {list(axes)}: they are of several kinds, {sorted(kinds)}")
    unshared(program, current, at, "fuse")
    if current.combine is not None:
        summed = {a.symbol.name for a in group if not _indexes(current, a.symbol)}
        require(
            len(summed) in (0, len(group)),
            f"fuse {list(axes)}: stage {stage} accumulates over {sorted(summed)} and not over the others",
        )
    others = [a.symbol.name for a in current.axes if a not in group]
    it, whole = iterator(fresh(others, "_".join(axes)), prod(a.extent for a in group))
    mapping: dict[Symbol, Size] = {}
    for a in reversed(group[1:]):
        mapping[a.symbol] = whole % max(1, a.extent)
        whole = whole // max(1, a.extent)
    mapping[group[0].symbol] = whole
    fused = Loop(it, group[0].kind)
    return with_stage(program, mapped(current, mapping, [*current.axes[:at], fused, *current.axes[at + len(axes) :]]))


def reorder(program: LoopProgram, stage: str, order: Sequence[str]) -> LoopProgram:
    """Permute axes: those named take the places that they hold together, in the order given.

    before
        for o0<6, o1<5
          out0[o0,o1] = exp(x[o0,o1])
    reorder out0 [o1, o0]
        for o1<5, o0<6
          out0[o0,o1] = exp(x[o0,o1])

    Raises:
        InputError: a repeated or unknown axis, a shared one, or kinds out of place (parallel outermost, vector
            innermost).
    """
    current = plain(program.stage(stage), "reorder")
    require(len(set(order)) == len(order), f"reorder {list(order)}: an axis is repeated")
    places = sorted(position(current, name) for name in order)
    axes = list(current.axes)
    for at, name in zip(places, order, strict=True):
        axes[at] = current.axis(name)
    changed = [j for j, (a, b) in enumerate(zip(axes, current.axes, strict=True)) if a is not b]
    if changed:
        unshared(program, current, changed[0], "reorder")
    return with_stage(program, replace(current, axes=tuple(axes)))


def parallel(program: LoopProgram, stage: str, axis: str) -> LoopProgram:
    """Run the iterations of an axis as tasks; all axes around it must be parallel.

    before
        for o0<6, o1<5
          out0[o0,o1] = exp(x[o0,o1])
    parallel out0 o0
        for o0<6 parallel, o1<5
          out0[o0,o1] = exp(x[o0,o1])

    Raises:
        InputError: no such axis, a serial axis around it, several iterations that write one element, or a stage
            placed inside another.
    """
    current = program.stage(stage)
    _writes_apart(current, axis, "parallel")
    return _marked(program, current, position(current, axis), "parallel")


def vectorize(program: LoopProgram, stage: str, axis: str) -> LoopProgram:
    """Run the iterations of the innermost axis as lanes of vectors.

    before
        for o0<6, o1<5
          out0[o0,o1] = exp(x[o0,o1])
    vectorize out0 o1
        for o0<6, o1<5 vector
          out0[o0,o1] = exp(x[o0,o1])

    Raises:
        InputError: no such axis, one that is not innermost, or several iterations that write one element.
    """
    current = program.stage(stage)
    _writes_apart(current, axis, "vectorize")
    return _marked(program, current, position(current, axis), "vector")


def unroll(program: LoopProgram, stage: str, axis: str) -> LoopProgram:
    """Unroll an axis: write its iterations out.

    before
        for o0<6, o1<2
          out0[o0,o1] = exp(x[o0,o1])
    unroll out0 o1
        for o0<6, o1<2 unroll
          out0[o0,o1] = exp(x[o0,o1])

    Raises:
        InputError: no such axis.
    """
    current = program.stage(stage)
    return _marked(program, current, position(current, axis), "unroll")


def _writes_apart(stage: Stage, axis: str, primitive: str) -> None:
    loop = stage.axis(axis)
    used = _indexes(stage, loop.symbol)
    shared = stage.at is not None and position(stage, axis) < stage.at[1]
    require(
        used or shared or loop.extent <= 1 or _once(stage, loop.symbol),
        f"{primitive} {axis}: all of its iterations write the same elements of {stage.buffer}",
    )


def _indexes(stage: Stage, axis: Symbol) -> bool:
    """Whether the element written depends on the axis."""
    return any(isinstance(x, Poly) and axis in x.symbols for x in stage.index)


def _once(stage: Stage, axis: Symbol) -> bool:
    """Whether the guard admits only the first iteration of an axis (the tail of a split of 1)."""
    return any(bounds(p + of_atom(axis))[1] <= 0 for p in terms(stage.guard))


def _marked(program: LoopProgram, stage: Stage, at: int, kind: AxisKind) -> LoopProgram:
    """Return the program with an axis of another kind, in every stage that shares it."""
    while stage.at is not None and at < stage.at[1]:
        stage = program.stage(stage.at[0])
    new: dict[str, Stage] = {}
    waiting = [stage]
    for s in waiting:
        axes = (*s.axes[:at], replace(s.axes[at], kind=kind), *s.axes[at + 1 :])
        new[s.buffer] = replace(s, axes=axes)
        waiting += [inner for inner in program.placed(s.buffer) if inner.at is not None and at < inner.at[1]]
    return with_stage(program, *new.values())


def pad(program: LoopProgram, stage: str, axis: str, multiple: int) -> LoopProgram:
    """Round the extent of an axis up to a multiple; the iterations beyond the old extent do nothing.

    before
        for o0<10
          out0[o0] = exp(x[o0])
    pad out0 o0 4
        for o0<12 if 9-o0>=0
          out0[o0] = exp(x[o0])

    Raises:
        InputError: no such axis, a multiple below 1, or a stage placed under the axis.
    """
    current = plain(program.stage(stage), "pad")
    at = position(current, axis)
    unshared(program, current, at, "pad")
    require(multiple >= 1, f"pad {axis} to a multiple of {multiple}")
    old = current.axes[at]
    wide = Loop(Symbol(axis, 0, -(-old.extent // multiple) * multiple - 1), old.kind)
    index = of_atom(wide.symbol)
    new = mapped(
        current, {old.symbol: index}, [*current.axes[:at], wide, *current.axes[at + 1 :]], old.extent - 1 - index
    )
    return with_stage(program, new)


def set_knob(program: LoopProgram, stage: str, knob: str, value: int | str | None) -> LoopProgram:
    """Set a decision that concerns only how the stage is written as code; None takes it back.

    before
        for o0<6
          out0[o0] = exp(x[o0])
    set_knob out0 accumulators 4
        for o0<6
          out0[o0] = exp(x[o0])   # accumulators=4

    Raises:
        InputError: no such stage, no such knob, or a value outside of its range (`superopt.kernels.loops.ranges`).
    """
    current = program.stage(stage)
    knobs = dict(current.knobs)
    knobs.pop(knob, None)
    if value is not None:
        knobs[knob] = value
    return checked(with_stage(program, replace(current, knobs=tuple(sorted(knobs.items())))))
