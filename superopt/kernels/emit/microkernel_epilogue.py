"""The epilogue of a register tile: the rest of the stage's value, with the sums as known vectors.

The sum is replaced by a load of a buffer that does not exist, whose value the emitter is told for each vector of the
tile; everything else (bias, scale, activation, residual, conversion) is what the emitter writes for any stage.  What
depends on the lane alone is written once for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.ir.expr import Expr, load
from superopt.ir.index import Symbol, of_atom, row_major
from superopt.kernels.emit.licence import Licence
from superopt.kernels.emit.memory import store
from superopt.kernels.emit.types import HeldValue
from superopt.kernels.emit.values import Emitter, Knobs
from superopt.kernels.llvm.module import Function, Value
from superopt.kernels.loops.contract import exchange
from superopt.kernels.loops.simplify import flatten, reciprocals
from superopt.kernels.loops.stage import Buffer, LoopProgram, Stage

SUM = "sum of the tile"


@dataclass(frozen=True, slots=True)
class Point:
    """One vector of results: where it is, and how much of it exists.

    Attributes:
        env: values of the axes of the stage; that of the axis along the vector is the first element's.
        total: the sum, a vector.
        lanes: lanes of the vector.
        valid: lanes that exist.
    """

    env: dict[Symbol, Value]
    total: str
    lanes: int
    valid: int


def epilogue(
    f: Function,
    program: LoopProgram,
    stage: Stage,
    lane: Symbol,
    total: Expr,
    points: Sequence[Point],
    pointers: dict[str, str],
    licence: Licence,
) -> None:
    """Store the stage's value for every vector of a tile.

    Args:
        f: the function, at the end of the sums.
        program: gives the buffers.
        stage: whose value it is.
        lane: the axis along the vectors.
        total: the sum in the value.
        points: the vectors; all of one width, on the same outer axes.
        pointers: addresses of buffers that are no arguments of the program.
        licence: which inexact steps may be taken.
    """
    leaf = load(SUM, (of_atom(lane),), total.dtype)
    buffers = {b.name: b for b in program.buffers} | {SUM: Buffer(SUM, (1 << 30,), total.dtype, "local")}
    value = flatten(exchange(stage.value, total, leaf), buffers)
    if licence.reciprocal:
        value = reciprocals(value, lane)
    place = row_major(stage.index, buffers[stage.buffer].shape)
    addresses = dict(pointers)
    for number, buffer in enumerate(program.pointers):
        if buffer.name not in addresses:
            addresses[buffer.name] = f.load("ptr", f.element("%bufs", number, "ptr"), 8)
    em = Emitter(f, addresses, buffers, licence, Knobs())
    em.lane, em.lanes = lane, points[0].lanes
    inner = [s for s in points[0].env if isinstance(points[0].env[s], int)]
    for s, v in points[0].env.items():
        if s not in inner:
            em.bind(s, v)
    rows = [s for s in inner if s != lane]
    for first in sorted({int(p.env[lane]) for p in points}):
        group = [p for p in points if p.env[lane] == first]
        em.push()
        em.bind(lane, first)
        em.tail = group[0].valid if group[0].valid < em.lanes else None
        for point in group:
            _one(em, point, rows, leaf, value)
            store(em, stage.buffer, buffers[stage.buffer].dtype, place, em.value(value), em.mask(False))
            _close(em, rows)
        em.pop()
    em.pop()


def _one(em: Emitter, point: Point, rows: Sequence[Symbol], leaf: Expr, value: Expr) -> None:
    em.push()
    for s in rows:
        em.bind(s, point.env[s])
    em.levels[-1].memo[em.key(leaf)] = HeldValue(point.total, True, em.top)
    em.prepare(value)


def _close(em: Emitter, rows: Sequence[Symbol]) -> None:
    for s in rows:
        em.release(s)
    em.pop()
