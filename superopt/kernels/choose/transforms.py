"""Schedules of a product between two transforms (Winograd): a block of tiles goes through all three in one task.

    v[p,t,c] = sum of elements of tile t of the image       input transform
    m[p,t,o] = sum_c v[p,t,c] u[p,c,o]                      a product for each plane p, a register tile
    y[2*t+i,o] = f(sum of m[p,t,o] over planes)             output transform, epilogue.

A task takes some rows of tiles, and some of the output's channels where rows alone are too few tasks.  `v` and `m` are
local to it.  Planes and tiles are derived from the expressions: planes are the axes that both factors of the product
share, tiles are the quotients through which the output reads the product.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from superopt.errors import InputError
from superopt.ir.expr import Expr
from superopt.ir.index import Size, Symbol, of_atom
from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels.choose.decisions import Parted, SchedulePoint, StageDecisions, decided
from superopt.kernels.emit.plan import MOST_POINTS
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.loops.contract import analyse_placed, outermost
from superopt.kernels.loops.program import loads, reads
from superopt.kernels.loops.simplify import forms_in
from superopt.kernels.loops.stage import Loop, LoopProgram, Stage, extent
from superopt.kernels.schedule.trace import Steps, apply

_INTRINSICS = {"float32": "fma_f32", "float64": "fma_f64"}
_LOCAL = 0.75  # share of the L2 cache that the planes of a task may take, as in chains
_SEEN = 0.5  # share of the reads from L3 that does not hide behind the sums
_MOVE = 4.0  # cycles to transform a vector of a plane: the 50,000 of 56 x 56 x 64 take 50 us


@dataclass(frozen=True, slots=True)
class TransformSizes:
    """Sizes of a product between two transforms on which its schedule decisions depend.

    Attributes:
        lanes: lanes of a vector.
        item: bytes of an element.
        rows: rows of tiles of one image.
        across: tiles in a row.
        images: number of images; a task never spans two.
        planes: number of products.
        depth: steps of each product's sum.
        columns: columns of each product.
    """

    lanes: int
    item: int
    rows: int
    across: int
    images: int
    planes: int
    depth: int
    columns: int


@dataclass(frozen=True, slots=True)
class TransformParts:
    """A product between two transforms, the output's axes split into tiles and positions inside a tile.

    Attributes:
        program: the loop program with these axes.
        steps: the schedule steps that lead to it.
        stages: input transform, product, output.
        outer: axes of the output that are neither part of a tile nor the lane.
        tiles: axes of the output that count tiles, the rows of them first.
        inner: axes of the output inside of a tile.
        lane: axis of the output along vectors.
        planes: dimensions of the input transform that are planes.
        channel: dimension of the input transform that the product sums over.
        sizes: the sizes that decisions depend on.
        intrinsic: the tensor intrinsic of the product.
    """

    program: LoopProgram
    steps: Steps
    stages: tuple[str, str, str]
    outer: tuple[str, ...]
    tiles: tuple[str, ...]
    inner: tuple[str, ...]
    lane: str
    planes: tuple[int, ...]
    channel: int
    sizes: TransformSizes
    intrinsic: str


def transformed(program: LoopProgram, cpu: Cpu, threads: int = 1) -> Parted | None:
    """Take a product between two transforms apart, with the decisions of its schedule; None for any other program.

    The default ones have the least estimated cycles.

        block      rows of tiles of a task; they divide those of an image.
        columns    columns of the product in a task; they divide all columns.
        tile       vectors of columns, and tiles, in registers.
        unroll     unroll factor of the sum.

    Args:
        program: the loop program, as `from_graph` returns it.
        cpu: the target CPU.
        threads: number of threads a call may use.
    """
    try:
        parts = _taken_apart(program, cpu)
    except InputError:
        return None
    if parts is None:
        return None
    sizes = parts.sizes
    start = min(_estimated(sizes, cpu), key=lambda point: _cycles(sizes, point, cpu, threads))
    options: dict[str, Sequence[Any]] = {
        "block": _blocks(sizes),
        "columns": [n for n in range(sizes.lanes, sizes.columns + 1, sizes.lanes) if sizes.columns % n == 0],
        "tile": _tiles(sizes, cpu),
        "unroll": (1, 2, 4, 8),
    }
    steps = functools.partial(_scheduled, parts)
    return Parted(parts.program, parts.steps, StageDecisions(parts.stages[-1], decided(options, start), steps))


def _taken_apart(program: LoopProgram, cpu: Cpu) -> TransformParts | None:
    """Take a product between two transforms apart; None where the program is none.

    Raises:
        InputError: an axis cannot be split.
    """
    if len(program.stages) != 3 or not cpu.vector_bits:
        return None
    before, product, out = program.stages
    plain = all(s.at is None and s.guard is True and a.kind == "serial" for s in program.stages for a in s.axes)
    names = (before.buffer, product.buffer, out.buffer)
    if not plain or before.buffer not in reads(product) or product.buffer not in reads(out) or not out.axes:
        return None
    factors = _factors(product, before.buffer)
    if before.buffer in reads(out) or factors is None or product.value.dtype not in _INTRINSICS:
        return None
    mine, other, depth = factors
    planes = tuple([d for d, x in enumerate(mine.args[1]) if _single(x) and _symbols(x) <= other.symbols - depth])
    channel = [d for d, x in enumerate(mine.args[1]) if _symbols(x) & depth]
    shape = program.buffer(before.buffer).shape
    by = {a.symbol: n for a in out.axes if (n := _divisor(out, product.buffer, a.symbol))}
    lane = out.axes[-1].symbol
    count = prod([shape[d] for d in planes])
    if len(channel) != 1 or not by or lane in by or not 1 < count <= MOST_POINTS:
        return None
    steps: Steps = [["split", out.buffer, s.name, [n]] for s, n in by.items()]
    after = apply(program, steps)
    axes = after.stage(out.buffer).axes
    pairs = [_pair(out.axes, axes, s) for s in by]
    tiles, inner = [outer for outer, _ in pairs], [low for _, low in pairs]
    outer = [a for a in axes if a not in (*tiles, *inner) and a.symbol != lane]
    if prod([a.extent for a in tiles]) == 1:
        return None
    dtype = product.value.dtype
    sizes = TransformSizes(
        cpu.lanes(dtype), ITEMSIZE_BYTES[dtype], rows=tiles[0].extent, across=prod([a.extent for a in tiles[1:]]),
        images=prod([a.extent for a in outer]), planes=count, depth=shape[channel[0]], columns=extent(lane),
    )  # fmt: skip
    return TransformParts(
        after, steps, names, outer=_names(outer), tiles=_names(tiles), inner=_names(inner), lane=lane.name,
        planes=planes, channel=channel[0], sizes=sizes, intrinsic=_INTRINSICS[dtype],
    )  # fmt: skip


def _scheduled(found: TransformParts, point: SchedulePoint) -> Steps:
    """Return the steps of a point after those that split the output's axes.

    Raises:
        InputError: a step does not fit.
    """
    vectors, rows = point["tile"]
    before, product, out = found.stages
    first, *others = found.tiles
    steps: Steps = [["split", out, first, [point["block"]]]]
    lane = found.lane
    if point["columns"] < found.sizes.columns:
        steps.append(["split", out, lane, [point["columns"]]])
    axes = _names(apply(found.program, steps).stage(out).axes)
    blocks = [n for n in axes if n in (f"{first}_0", f"{lane}_0")]
    lane = lane if lane in axes else f"{lane}_1"
    tasks = [*found.outer, *blocks]
    steps.append(["reorder", out, [*tasks, f"{first}_1", *others, *found.inner, lane]])
    steps += [["parallel", out, n] for n in tasks]
    steps += [["compute_at", product, out, len(tasks)], ["compute_at", before, out, len(tasks)]]
    program = apply(found.program, steps)
    shape = program.buffer(before).shape
    own = [d for d in range(len(shape)) if shape[d] > 1 and d not in (*found.planes, found.channel)]
    planes = [f"{before}_{d}" for d in found.planes if shape[d] > 1]
    last = f"{before}_{found.channel}"
    steps.append(["reorder", before, [*tasks, *[f"{before}_{d}" for d in own], *planes, last]])
    steps += [*[["unroll", before, n] for n in planes], ["vectorize", before, last]]
    contraction = analyse_placed(program, program.stage(product))
    if contraction is None or not contraction.rows:
        raise InputError(f"stage {product} holds no contraction that a register tile fits")
    tile = [
        ["intrinsic", found.intrinsic], ["rows", [[contraction.rows[-1].name, rows]]], ["vectors", vectors],
        ["unroll", point["unroll"]], ["pack_b", "none"],
    ]  # fmt: skip
    steps.append(["tensorize", product, tile])
    steps += [*[["unroll", out, n] for n in found.inner], ["vectorize", out, lane]]
    return steps


def _estimated(sizes: TransformSizes, cpu: Cpu) -> list[SchedulePoint]:
    """Return the points among which the default is chosen: even blocks and columns, tiles that registers hold."""
    points: list[SchedulePoint] = []
    for vectors in range(1, min(4, -(-sizes.columns // sizes.lanes)) + 1):
        width = vectors * sizes.lanes
        parts = [n for n in range(width, sizes.columns, width) if sizes.columns % n == 0]
        most = max(1, (cpu.registers - 2 - vectors) // vectors)
        for block in _blocks(sizes):
            pieces = -(-block * sizes.across // most)
            rows = {min(most, block * sizes.across), -(-block * sizes.across // pieces)}  # as many as fit, or even ones
            points += [
                {"block": block, "columns": n, "tile": (vectors, r), "unroll": 4}
                for n in (*parts, sizes.columns)
                for r in sorted(rows)
            ]
    return points


def _blocks(sizes: TransformSizes) -> list[int]:
    """Return the allowed rows of tiles of a task: divisors of an image's rows, with more than one tile in a task."""
    return [n for n in range(1, sizes.rows + 1) if sizes.rows % n == 0 and n * sizes.across > 1]


def _tiles(sizes: TransformSizes, cpu: Cpu) -> list[tuple[int, int]]:
    """Return vectors and rows of the tiles that registers hold, with at least four rows where so many fit."""
    shapes: list[tuple[int, int]] = []
    for vectors in range(1, min(4, -(-sizes.columns // sizes.lanes)) + 1):
        most = max(1, min((cpu.registers - 2 - vectors) // vectors, sizes.rows * sizes.across))
        shapes += [(vectors, rows) for rows in range(min(4, most), most + 1)]
    return shapes


def _cycles(s: TransformSizes, point: SchedulePoint, cpu: Cpu, threads: int) -> float:
    """Estimate the cycles until the last thread ends."""
    block, columns, (vectors, rows) = point["block"], point["columns"], point["tile"]
    tiles = block * s.across
    tasks = s.images * (s.rows // block) * (s.columns // columns)
    whole, rest = divmod(tiles, rows)
    panels = -(-columns // (s.lanes * vectors))
    # a step loads its vectors and as many scalars as it has rows, two a cycle, and makes two sums a cycle
    step = [max(n * vectors, n + vectors, 8) / 2 for n in (rows, rest)]
    product = s.planes * panels * s.depth * (whole * step[0] + (step[1] if rest else 0.0))
    weights = s.planes * s.depth * columns * s.item
    local = s.planes * tiles * (s.depth + columns) * s.item
    moved = _MOVE * s.planes * tiles * (s.depth + columns) / s.lanes
    beyond = weights if weights + local > cpu.l2 else 0  # read again by every task
    beyond += 2 * local if local > _LOCAL * cpu.l2 else 0
    return -(-tasks // threads) * (product + moved + _SEEN * beyond / cpu.rates.from_l3)


def _factors(product: Stage, before: str) -> tuple[Expr, Expr, frozenset[Symbol]] | None:
    """Return a product's transformed factor, its other factor, and the summed iterators; None for anything else."""
    sums = list(outermost(product.value))
    if len(sums) != 1 or product.value is not sums[0] or sums[0].args[0] != "sum":
        return None
    _, its, body = sums[0].args
    if body.kind != "op" or body.args[0] != "mul" or any(x.kind != "load" for x in body.operands):
        return None
    mine = [x for x in body.operands if x.args[0] == before]
    other = [x for x in body.operands if x.args[0] != before]
    return (mine[0], other[0], frozenset(its)) if len(mine) == len(other) == 1 else None


def _divisor(stage: Stage, buffer: str, axis: Symbol) -> int:
    """Return the number by which a stage divides an axis where it reads a buffer; 0 where it does not."""
    indices = [x for e in loads(stage) if e.args[0] == buffer for x in e.args[1]]
    forms = [form for x in indices for form in forms_in(x) if form.op == "//" and form.args[0] == of_atom(axis)]
    return min([by for form in forms if isinstance(by := form.args[1], int)], default=0)


def _pair(before: tuple[Loop, ...], after: tuple[Loop, ...], axis: Symbol) -> tuple[Loop, Loop]:
    """Return the two axes that replaced one that was split."""
    known = {a.symbol for a in before}
    outer, inner = [a for a in after if a.symbol not in known and a.symbol.name.startswith(f"{axis.name}_")]
    return outer, inner


def _names(axes: list[Loop] | tuple[Loop, ...]) -> tuple[str, ...]:
    return tuple([a.symbol.name for a in axes])


def _symbols(x: Size) -> frozenset[Symbol]:
    return frozenset() if isinstance(x, int) else frozenset(x.symbols)


def _single(x: Size) -> bool:
    """Whether an index is a single iterator."""
    return not isinstance(x, int) and x.is_atom and len(x.symbols) == 1
