"""Schedules for GPUs: a few traces for each stage, the first of which is the default.

The kind of a stage is derived from its expression alone (`contract.find`, its reductions, the strides of its loads):

    product     blocks of rows by columns, a step along the sum; neighbouring axes of rows fused where short.
    attention   a product whose sum is taken over exp(s - max s): all columns in a block, keys in steps.
    rows        an axis that is reduced and then mapped again lies in a block, beside some rows.
    reduction   blocks of the axes that are left, the reduction in steps.
    pointwise   all axes as one, in blocks; as rows and columns where loads run along another axis.

A product or reduction of too few blocks to fill a GPU is also cut into parts along its sum (`rfactor`), in a kernel of
their own.

Decisions are primitives of `superopt.kernels.schedule` and the knobs of `Decisions`, so a trace is replayed and proved
like any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import Poly, Symbol, of_atom, substitute
from superopt.ir.scalar import DTYPE
from superopt.kernels.loops import contract
from superopt.kernels.loops.stage import LoopProgram, Stage
from superopt.kernels.schedule.edit import reductions
from superopt.kernels.schedule.trace import Step, Trace, apply, trace

SHARED_BYTES = 200_000  # operands of all steps in flight
ROW = 1 << 13  # longest row that a block holds at once
THREAD = 32 * 64  # elements that the 32 threads of a warp hold at most
CORES = 132  # programs that run at a time; fewer leave a GPU idle
BUSY = 2 * CORES // 3  # programs from which on larger blocks are better than more of them
WORTH = 1 << 20  # iterations that pay for a second kernel

PallasKnobs = Mapping[str, int | str]


def default(program: LoopProgram) -> Trace:
    """Return a schedule of all stages, without search."""
    return tuple(step for stage in program.stages for step in candidates(program, stage.buffer)[0])


def scheduled(program: LoopProgram) -> LoopProgram:
    """Return the program under its default schedule."""
    return apply(program, default(program))


def candidates(program: LoopProgram, name: str, precision: str = "ieee") -> list[Trace]:
    """Return schedules of a stage that has none, the best guess first.

    Args:
        program: gives shapes.
        name: name of the stage.
        precision: precision of products of float32: `ieee`, `tf32x3` or `tf32`.
    """
    stage = program.stage(name)
    whole = _whole(program, stage, precision)
    split = list(_split(program, stage, precision))
    few = split and 2 * _programs(program, name, whole[0]) <= CORES
    return [*split, *whole] if few else [*whole, *split]


def _whole(program: LoopProgram, stage: Stage, precision: str) -> list[Trace]:
    """Return schedules that leave reductions whole."""
    contraction = contract.find(_without_single(stage))
    if contraction is not None and contraction.rows:
        return list(_products(program, stage, contraction, precision))
    inner = _row_axis(stage)
    if inner is not None:
        return list(_rows(stage, inner))
    if any(e.kind == "reduce" for e in subexpressions(stage.value)):
        return list(_reductions(stage))
    return list(_pointwise(program, stage))


def _programs(program: LoopProgram, name: str, steps: Trace) -> int:
    """Return the number of programs in the grid of a stage under a schedule."""
    return prod(a.extent for a in apply(program, steps).stage(name).axes if a.kind == "parallel")


def _split(program: LoopProgram, stage: Stage, precision: str) -> Iterator[Trace]:
    """Yield schedules of two kernels, parts of the outermost reduction and their combination, where blocks are few."""
    outermost = reductions(stage)[:1]
    if not outermost or _row_axis(stage) is not None or outermost[0].height > 1:
        return
    its = outermost[0].args[1]
    if prod(a.extent for a in stage.axes) * prod(map(contract.extent, its)) < WORTH:
        return
    at = max(range(len(its)), key=lambda j: contract.extent(its[j]))
    extent = contract.extent(its[at])
    blocks = _programs(program, stage.buffer, _whole(program, stage, precision)[0])
    least = 16 if contract.find(_without_single(stage)) is None else 128  # iterations of a part
    seen: set[int] = set()
    for goal in (2, 1, 4):
        parts = min(_power(-(-goal * CORES // blocks)) // 2, _power(extent // least + 1) // 2)
        if parts < 2 or parts in seen:
            continue
        seen.add(parts)
        part = f"{stage.buffer}_part"
        head: Trace = (
            ("split_reduction", stage.buffer, 0, at, (-(-extent // parts),)),
            ("rfactor", stage.buffer, 0, (at,), part),
        )
        cut = apply(program, head)
        rest = _whole(cut, cut.stage(stage.buffer), precision)[0]
        for steps in _whole(cut, cut.stage(part), precision)[:3]:
            yield (*head, *steps, *rest)


def kind(program: LoopProgram, name: str) -> str:
    """Return the kind of a stage: product, attention, rows, reduction or pointwise."""
    stage = program.stage(name)
    contraction = contract.find(_without_single(stage))
    if contraction is not None and contraction.rows:
        return "attention" if _exponentials(contraction) else "product"
    if _row_axis(stage) is not None:
        return "rows"
    return "reduction" if any(e.kind == "reduce" for e in subexpressions(stage.value)) else "pointwise"


def _without_single(stage: Stage) -> Stage:
    return replace(stage, axes=tuple(a for a in stage.axes if a.extent != 1))


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


# ---- steps


def _tiled(
    stage: Stage, blocks: Mapping[str, int], knobs: PallasKnobs, serial: Iterable[str] = (), group: int = 1
) -> Trace:
    """Return steps that put blocks of these axes into a program of the grid, which all other axes span.

    Args:
        stage: a stage that is not scheduled.
        blocks: extent of the block along each axis, outermost first.
        knobs: decisions beside the axes.
        serial: axes whose blocks one program takes one after the other.
        group: programs that go down the first axis of the block before the next column of blocks.
    """
    name = stage.buffer
    steps: list[Step] = []
    outer: dict[str, str] = {}
    inner: list[str] = []
    leading = ""
    for axis, size in blocks.items():
        n = stage.axis(axis).extent
        if size >= n:
            inner.append(axis)
        elif group > 1 and not inner and -(-n // size) > group and len(blocks) > 1:
            steps.append(("split", name, axis, (group, size)))
            leading, outer[axis] = f"{axis}_0", f"{axis}_1"
            inner.append(f"{axis}_2")
        else:
            steps.append(("split", name, axis, (size,)))
            outer[axis] = f"{axis}_0"
            inner.append(f"{axis}_1")
    loops = [outer.pop(axis) for axis in serial if axis in outer]
    rest = [a.symbol.name for a in stage.axes if a.symbol.name not in blocks]
    grid = [*rest, *([leading] if leading else []), *(reversed(outer.values()) if leading else outer.values())]
    order = [*grid, *loops, *inner]
    if len(order) > 1:
        steps.append(("reorder", name, tuple(order)))
    steps += [("parallel", name, axis) for axis in grid]
    steps += [("unroll", name, axis) for axis in inner[:-1]]
    steps += [("vectorize", name, axis) for axis in inner[-1:]]
    steps += [("set_knob", name, knob, value) for knob, value in knobs.items()]
    return trace(steps)


def _ordered(stage: Stage, blocks: Mapping[str, int]) -> dict[str, int]:
    """Return extents by axis in the order of the stage's axes."""
    return {a.symbol.name: blocks[a.symbol.name] for a in stage.axes if a.symbol.name in blocks}


def _merged(program: LoopProgram, stage: Stage, groups: Iterable[Sequence[str]]) -> tuple[list[Step], Stage]:
    """Return steps that fuse groups of neighbouring axes, and the stage afterwards."""
    steps: list[Step] = [("fuse", stage.buffer, tuple(axes)) for axes in groups if len(axes) > 1]
    return steps, apply(program, steps).stage(stage.buffer)


# ---- products and attention

# rows, columns, step, warps, stages
_LARGE = ((128, 128, 64, 8, 3), (128, 256, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 32, 8, 4), (64, 256, 64, 8, 3))
_MEDIUM = ((128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (64, 64, 128, 4, 3))
_THIN = ((16, 64, 128, 4, 4),)
_SMALL = ((64, 32, 64, 4, 4), (32, 64, 64, 4, 4), (32, 32, 128, 4, 3), (16, 64, 128, 4, 4), (16, 128, 64, 4, 4),
          (16, 16, 64, 1, 3))  # fmt: skip


def _products(program: LoopProgram, stage: Stage, found: contract.Contraction, precision: str) -> Iterator[Trace]:
    """Yield schedules of a product, by tile and number of warps."""
    if _exponentials(found):
        yield from _attention(stage, found, precision)
        return
    groups = [_neighbours(stage, side) for side in (found.rows, found.columns)]
    steps, merged = _merged(program, stage, groups)
    row, column = ("_".join(g) for g in groups)
    m, n = merged.axis(row).extent, merged.axis(column).extent
    batch = prod(a.extent for a in merged.axes if a.symbol.name not in (row, column))
    bytes_each = max(DTYPE[e.dtype].itemsize for e in subexpressions(found.total) if e.kind == "load")
    depth = max(contract.extent(s) for s in found.depth)
    seen: set[tuple[int, ...]] = set()
    tiles: list[tuple[tuple[int, ...], Trace]] = []
    for bm, bn, bk, warps, stages in (*(_THIN if m <= 16 else ()), *_LARGE, *_MEDIUM, *_SMALL):
        k = min(bk * 2 // bytes_each, max(16, _power(depth)))
        tile = (min(bm, max(16, _power(m))), min(bn, max(16, _power(n))), k, warps, stages)
        if tile in seen or stages * k * (tile[0] + tile[1]) * bytes_each > SHARED_BYTES:
            continue
        if tile[0] * tile[1] < 32 * warps * 4:
            continue
        seen.add(tile)
        knobs: dict[str, int | str] = {"depth": k, "warps": warps, "stages": stages}
        if bytes_each >= 4 and precision != "ieee":
            knobs["precision"] = precision
        tiles.append((tile, (*steps, *_tiled(merged, {row: tile[0], column: tile[1]}, knobs, group=8))))
    enough = 1 if m <= 16 else BUSY  # few rows: bound by the memory of columns, whose long steps decide
    full = [t for t in tiles if batch * -(-m // t[0][0]) * -(-n // t[0][1]) >= enough]
    rest = [t for t in tiles if t not in full]
    yield from (steps for _, steps in (*full, *sorted(rest, key=lambda t: t[0][0] * t[0][1])))


def _neighbours(stage: Stage, side: Sequence[Symbol]) -> list[str]:
    """Return the last axis of a side, with those before it where it is short and they are its neighbours."""
    names = [a.symbol.name for a in stage.axes]
    group = [side[-1].name]
    extent = contract.extent(side[-1])
    for s in reversed(side[:-1]):
        if extent % 128 == 0 or names.index(s.name) != names.index(group[0]) - 1:
            break
        group.insert(0, s.name)
        extent *= contract.extent(s)
    return group


def _exponentials(found: contract.Contraction) -> list[Expr]:
    """Return the factors exp(s - max s) over which the sum goes."""
    own = frozenset(found.depth)
    inner = [e for e in subexpressions(found.total) if e.kind == "op" and e.args[0] == "exp" and e.symbols & own]
    return [e for e in inner if any(p.kind == "reduce" and p.args[0] == "max" and not p.symbols & own
                                    for p in subexpressions(e))]  # fmt: skip


def _attention(stage: Stage, found: contract.Contraction, precision: str) -> Iterator[Trace]:
    scored = frozenset[Symbol]().union(*(e.symbols for e in _exponentials(found)))
    sides = found.rows, found.columns
    queries, values = sides if scored & {*found.rows} else sides[::-1]  # the order of the result decides
    row, column = queries[-1].name, values[-1].name
    m, n = stage.axis(row).extent, stage.axis(column).extent
    half = all(DTYPE[e.dtype].itemsize == 2 for e in subexpressions(found.total) if e.kind == "load")
    first = (128, 128, 8, 2) if n > 64 else (64, 128, 4, 2)
    tiles = (first, (128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3), (128, 128, 8, 2), (64, 32, 4, 3),
             (128, 32, 4, 3), (64, 128, 4, 2), (32, 64, 4, 3), (32, 32, 4, 3))  # fmt: skip
    seen: set[tuple[int, ...]] = set()
    for rows, keys, warps, stages in tiles:
        tile = (min(rows, max(16, _power(m))), keys if half else min(keys, 64), warps, stages)
        if tile in seen:
            continue
        seen.add(tile)
        knobs: dict[str, int | str] = {"depth": tile[1], "warps": warps, "stages": stages}
        if not half and precision != "ieee":
            knobs["precision"] = precision
        yield _tiled(stage, _ordered(stage, {row: tile[0], column: n}), knobs)


# ---- rows, reductions, pointwise


def _row_axis(stage: Stage) -> str | None:
    """Return the innermost axis in whose place a reduction takes every value; None if there is none."""
    reductions = [e for e in subexpressions(stage.value) if e.kind == "reduce"]
    extents = {contract.extent(it) for e in reductions for it in e.args[1]}
    for axis in reversed(stage.axes):
        again = [e for e in reductions if axis.symbol not in e.symbols]
        if axis.extent > 1 and axis.extent in extents and axis.symbol in stage.value.symbols and again:
            return axis.symbol.name
    return None


_ROWS = ((1, 4), (1, 8), (2, 4), (4, 4), (4, 8), (8, 4), (16, 4), (1, 2), (1, 1), (1, 16))  # rows, warps


def _rows(stage: Stage, inner: str) -> Iterator[Trace]:
    """Yield schedules of a stage that sums rows: of whole rows, or of chunks of long ones."""
    n = stage.axis(inner).extent
    others = [a for a in stage.axes if a.symbol.name != inner and a.extent > 1]
    beside = others[-1].symbol.name if others else ""
    width = _power(n)
    if width > ROW:
        for chunk, warps in ((4096, 8), (8192, 16), (2048, 4), (4096, 16)):
            knobs = {"warps": warps, "stages": 2, "limit": chunk, "depth": chunk}
            yield _tiled(stage, {inner: chunk}, knobs, serial=[inner])
        for warps in (16, 32):
            if width <= warps * THREAD:
                yield _tiled(stage, {inner: n}, {"warps": warps, "stages": 1, "limit": width})
        return
    knobs = {"stages": 1, "limit": max(width, ROW)}
    first = (1, _power(max(1, min(16, width // 256))))  # 8 elements a thread
    seen: set[tuple[int, int]] = set()
    for rows, warps in (first, *_ROWS):
        rows = min(rows, _power(stage.axis(beside).extent)) if beside else 1
        fits = 32 * warps <= rows * width <= warps * THREAD
        if (rows, warps) in seen or not (fits or (rows, warps) == first):
            continue
        seen.add((rows, warps))
        blocks = {beside: rows, inner: n} if rows > 1 else {inner: n}
        yield _tiled(stage, _ordered(stage, blocks), {"warps": warps, **knobs})


def _reductions(stage: Stage) -> Iterator[Trace]:
    axes = [a for a in stage.axes if a.extent > 1]
    if not axes:
        yield _tiled(stage, {}, {"warps": 8, "limit": ROW})
        return
    last = axes[-1].symbol.name
    along = _contiguous(stage.value, axes[-1].symbol)
    sizes = (
        ((64, 4), (32, 4), (128, 4), (128, 8), (32, 8)) if along else ((1, 4), (4, 4), (16, 4), (1, 8), (8, 8), (1, 1))
    )
    seen: set[tuple[int, int]] = set()
    for size, warps in sizes:
        tile = (min(size, _power(axes[-1].extent)), warps)
        if tile not in seen:
            seen.add(tile)
            blocks = {last: tile[0]} if tile[0] > 1 else {}
            yield _tiled(stage, blocks, {"warps": warps, "stages": 3, "limit": ROW})


def _pointwise(program: LoopProgram, stage: Stage) -> Iterator[Trace]:
    """Yield schedules of a stage that sums nothing, blocks of whole rows or of all axes fused."""
    axes = [a.symbol.name for a in stage.axes if a.extent > 1]
    if not axes:
        yield _tiled(stage, {}, {"warps": 1})
        return
    across = _crossed(program, stage)
    if across is not None:
        for a, b, warps in ((32, 64, 4), (64, 64, 8), (32, 32, 4), (16, 128, 4), (128, 16, 4), (64, 32, 4)):
            yield _tiled(stage, {across: a, axes[-1]: b}, {"warps": warps})
        return
    last = stage.axis(axes[-1]).extent
    names = [a.symbol.name for a in stage.axes]
    steps, merged = _merged(program, stage, [names])
    whole = "_".join(names)
    total = merged.axis(whole).extent
    flat = [(2048, 4), (1024, 4), (2048, 8), (512, 4), (4096, 8), (256, 4)]
    options: list[Trace] = []
    for size, warps in dict.fromkeys((min(size, _power(total)), warps) for size, warps in flat):
        options.append((*steps, *_tiled(merged, {whole: size}, {"warps": warps})))
    lined: list[Trace] = []
    if len(axes) > 1 and last >= 64:
        for rows, size, warps in ((1, 1024, 4), (4, 512, 8), (4, 256, 4), (8, 128, 4)):
            width = min(size, _power(last))
            blocks = {axes[-2]: rows, axes[-1]: width} if rows > 1 else {axes[-1]: width}
            lined.append(_tiled(stage, blocks, {"warps": warps}))
    flat_first = all(_same_order(e, stage) for e in subexpressions(stage.value) if e.kind == "load")
    first, second = (options, lined) if flat_first or not lined else (lined, options)
    yield from itertools.chain(first, second)


def _same_order(e: Expr, stage: Stage) -> bool:
    """Whether a load takes the elements of a buffer in the order of the axes."""
    return e.args[1] == stage.index


def _contiguous(root: Expr, symbol: Symbol) -> bool:
    """Whether some load runs along an iterator with stride 1."""
    return any(
        e.kind == "load" and e.args[1] and _step(e.args[1][-1], symbol) == 1 for e in subexpressions(root)
    )  # fmt: skip


def _step(x: int | Poly, symbol: Symbol) -> int | None:
    """Return by how much an index grows with an iterator; None where that is not constant."""
    grown = substitute(x, {symbol: of_atom(symbol) + 1}) - x if isinstance(x, Poly) else 0
    return grown if isinstance(grown, int) else None


def _crossed(program: LoopProgram, stage: Stage) -> str | None:
    """Return an axis other than the innermost along which a load runs that spans the innermost one too; else None."""
    last = next(a for a in reversed(stage.axes) if a.extent > 1)
    for e in subexpressions(stage.value):
        if e.kind == "load" and last.symbol in e.symbols and e.args[1]:
            inner = [a for a in stage.axes if a.extent > 1 and _step(e.args[1][-1], a.symbol) == 1]
            if inner and last not in inner:
                return inner[-1].symbol.name
    return None
