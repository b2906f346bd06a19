"""The primitive transform_layout: changes the memory layout of a scratch or local buffer.

A layout is a list of steps on axes: `["split", axis, factor]` (the outer part first, padded up where the factor does
not divide), `["fuse", axis]` (with its right neighbour), `["permute", [axes]]`, `["pad", axis, size]`.  Each step is an
injective map of indices with an inverse.  Applying the steps to the shape and to every index of every stage that writes
or reads the buffer changes no value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from superopt.errors import InputError
from superopt.ir.expr import Expr, const, load, where
from superopt.ir.index import Size, all_of, nonnegative, substitute_guard
from superopt.kernels.loops.program import reads
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage
from superopt.kernels.schedule.bijection import element_of, inverse, total
from superopt.kernels.schedule.edit import plain, require, rewritten, terms, with_buffers

Coordinates = list[Size]
LayoutSteps = Sequence[Sequence[Any]]


def transform_layout(program: LoopProgram, buffer: str, steps: LayoutSteps, loops: str = "keep") -> LoopProgram:
    """Change the layout of a scratch or local buffer.

    before
        for c0<6, c1<5
          packed[c0,c1] = w[c0,c1]
        for o0<6, o1<5
          out0[o0,o1] = exp(packed[o0,o1])
    transform_layout packed [["split", 1, 4], ["permute", [1, 0, 2]]] fill
        for c0<2, c1<6, c2<4
          packed[c0,c1,c2] = [4-4*c0-c2>=0] ? w[c1,4*c0+c2] : 0
        for o0<6, o1<5
          out0[o0,o1] = exp(packed[o1//4,o0,o1%4])

    Args:
        program: a well-formed program.
        buffer: scratch or local.
        steps: the layout.
        loops: loops of the stage that writes. keep: unchanged; new: over the new axes, padding left unwritten; fill:
            over
            the new axes, padding set to 0.

    Raises:
        InputError: the buffer belongs to the caller, a step does not fit, or (with loops new or fill) the stage is
            placed, accumulates or does not write every element.
    """
    old = program.buffer(buffer)
    require(
        old.scope in ("scratch", "local"), f"transform_layout {buffer}: the layout of an {old.scope} is the caller's"
    )
    require(loops in ("keep", "new", "fill"), f"transform_layout {buffer}: loops are keep, new or fill, not {loops!r}")
    shape, forward, _ = maps(old.shape, steps)
    writer = plain(program.stage(buffer), "transform_layout")

    def change(e: Expr) -> Expr | None:
        if e.kind != "load" or e.args[0] != buffer:
            return None
        return load(buffer, forward(list(e.args[1])), e.dtype)

    new = Buffer(buffer, tuple(shape), old.dtype, old.scope)
    if loops == "keep":
        written = replace(writer, index=tuple(forward(list(writer.index))))
    else:
        written = _over(program, writer, old, new, steps, loops)
    stages = [written if s is writer else rewritten(s, change) if buffer in reads(s) else s for s in program.stages]
    return with_buffers(program, stages, [new])


def _over(program: LoopProgram, writer: Stage, old: Buffer, new: Buffer, steps: LayoutSteps, loops: str) -> Stage:
    """Return the writer with a loop for each axis of the new layout."""
    require(
        writer.at is None and not program.placed(writer.buffer),
        f"transform_layout {old.name} with loops {loops}: the stage is placed in another or holds one",
    )
    total(writer, old, f"transform_layout with loops {loops}")
    _, _, backward = maps(old.shape, steps)
    its, element = element_of(new.shape, [])
    place = backward(list(element))
    axes = inverse(writer, place, old.shape)
    exists = [nonnegative(y) for x, n in zip(place, old.shape, strict=True) for y in (x, n - 1 - x)]
    guard = all_of(*exists, *[nonnegative(y) for y in terms(substitute_guard(writer.guard, axes))])
    value = writer.value.substitute(axes)
    if loops == "fill":
        zero = const(False if old.dtype == "bool" else 0, old.dtype)
        value, guard = where(guard, lambda: value, lambda: zero), True
    return replace(writer, axes=tuple(map(Loop, its)), index=tuple(element), value=value, guard=guard)


def maps(
    shape: Sequence[int], steps: LayoutSteps
) -> tuple[list[int], Callable[[Coordinates], Coordinates], Callable[[Coordinates], Coordinates]]:
    """Return the new shape, the map from old to new indices, and its inverse (beyond the old shape on padding).

    Raises:
        InputError: a step that does not fit.
    """
    now = list(shape)
    there: list[Callable[[Coordinates], Coordinates]] = []
    back: list[Callable[[Coordinates], Coordinates]] = []
    for step in steps:
        now, forward, backward = _step(now, step)
        there.append(forward)
        back.insert(0, backward)
    return now, _chain(there), _chain(back)


def _chain(functions: Sequence[Callable[[Coordinates], Coordinates]]) -> Callable[[Coordinates], Coordinates]:
    def run(index: Coordinates) -> Coordinates:
        for f in functions:
            index = f(index)
        return index

    return run


def _step(
    shape: list[int], step: Sequence[Any]
) -> tuple[list[int], Callable[[Coordinates], Coordinates], Callable[[Coordinates], Coordinates]]:
    """Return the shape after a step of a layout, and the maps of coordinates there and back."""
    rank = len(shape)
    match list(step):
        case ["split", int(d), int(f)] if 0 <= d < rank and f >= 1:
            outer = -(-shape[d] // f)
            return (
                [*shape[:d], outer, f, *shape[d + 1 :]],
                lambda i: [*i[:d], i[d] // f, i[d] % f, *i[d + 1 :]],
                lambda i: [*i[:d], i[d] * f + i[d + 1], *i[d + 2 :]],
            )
        case ["fuse", int(d)] if 0 <= d < rank - 1:
            n = max(1, shape[d + 1])
            return (
                [*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]],
                lambda i: [*i[:d], i[d] * n + i[d + 1], *i[d + 2 :]],
                lambda i: [*i[:d], i[d] // n, i[d] % n, *i[d + 1 :]],
            )
        case ["permute", [*order]] if sorted(order, key=str) == sorted(range(rank), key=str):
            places = [order.index(d) for d in range(rank)]
            return [shape[d] for d in order], lambda i: [i[d] for d in order], lambda i: [i[d] for d in places]
        case ["pad", int(d), int(n)] if 0 <= d < rank and n >= shape[d]:
            return [*shape[:d], n, *shape[d + 1 :]], list, list
        case _:
            raise InputError(
                f"the layout step {list(step)} does not fit the shape {shape}",
                hint='steps: ["split", axis, factor], ["fuse", axis], ["permute", [axes]], ["pad", axis, size]',
            )
