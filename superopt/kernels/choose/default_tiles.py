"""Register tiles without search: the decisions of a contraction whose estimated cycles are least.

The estimates know the number of multiply-adds, loads per step, tails, stores that scatter, copies that are not hoisted,
caches, and how evenly tasks fall on threads; they rank, they do not predict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Literal

from superopt.errors import InputError
from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import Guard, Size, Symbol, coefficient, row_major
from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels.choose.cycles import fork, from_beyond_l2, is_short
from superopt.kernels.emit.microkernel import LEAST_ACROSS
from superopt.kernels.llvm.cpu import Cpu, host
from superopt.kernels.loops.contract import Contraction, analyse, loads
from superopt.kernels.loops.stage import LoopProgram, extent
from superopt.kernels.schedule.intrinsics import Intrinsic, fitting
from superopt.kernels.schedule.packing import guarded, linear_forms
from superopt.kernels.schedule.tensorizing import ContractionDecisions

_TASK = 1500.0  # cycles that a task costs beside its work
_LATE = 0.3  # share of a task's work by which the last task ends later than the others
_SCATTER = 30.0  # cycles of a vector whose lanes are not next to each other in the output
_TRANSPOSE = 100.0  # cycles of a square of vectors transposed and stored
_COPY = 1.5  # cycles to copy an element
_LATENCY = 4  # steps of a tile with fewer accumulators take as long
_LEAST = 1 << 12  # multiply-adds below which a tile is not worth its code
_STREAMS = ((4, 4), (4, 3), (2, 4), (3, 4), (3, 3), (4, 2), (2, 3), (2, 2))
"""Vectors and panels that one row reads at once, those preferred first of which the registers hold the accumulators."""
_FEW_TILES = 4  # tiles that read a panel: below, the first one, which brings it into the cache, counts
_SLOW_ROWS = 6  # rows of a tile from which B is prefetched
_AHEAD = 3072  # bytes
_TILES = 8  # tiles of least work of which the grids are compared
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)  # parts of a sum
_LEAST_PART = 128  # steps of a part
_ROWS_OF_PARTS, _TASKS_PER_THREAD = 4, 4  # with more tasks of so many rows and one vector, sums are not cut
_MOST_ROWS = 14  # with two vectors they fill 31 of 32 registers (`Intrinsic.registers`)
_MOST_VECTORS = 12  # one row of 208 x 64, 208 x 768, 224 x 768: 0.80, 6.4, 6.7 us; with 13 or 14 vectors 0.78, 6.2, 7.2


@dataclass(frozen=True, slots=True)
class _Choice:
    """Tile decisions, with the estimated cycles until the last thread ends."""

    decisions: ContractionDecisions
    cycles: float


@dataclass(frozen=True, slots=True)
class _Setting:
    """A contraction of a program as one intrinsic computes it on a machine.

    Attributes:
        lane: name of the lane axis, as passed to `analyse`.
        merge: whether all axes of B are merged into one.
    """

    program: LoopProgram
    found: Contraction
    lane: str
    merge: bool
    kind: Intrinsic
    cpu: Cpu
    threads: int

    @property
    def lanes(self) -> int:
        """Number of lanes in a vector."""
        return self.kind.lanes(self.cpu)


def decide(program: LoopProgram, name: str, cpu: Cpu | None = None, threads: int = 1) -> ContractionDecisions | None:
    """Return tile decisions for a stage; None where it holds no contraction that benefits from a register tile."""
    cpu = cpu or host()
    stage = program.stage(name)
    if any(a.kind != "serial" for a in stage.axes) or not cpu.vector_bits:
        return None
    best: _Choice | None = None
    for lane in ["", *[a.symbol.name for a in stage.axes[:-1] if a.extent >= cpu.lanes("float32")]]:
        for merge in (False, True):
            contraction = analyse(program, stage, merge, lane)
            if contraction is None or (merge and contraction == analyse(program, stage, False, lane)):
                continue
            for choice in _choices(program, contraction, lane, merge, cpu, threads):
                if best is None or choice.cycles < best.cycles:
                    best = choice
    return None if best is None else best.decisions


def _choices(
    program: LoopProgram, found: Contraction, lane: str, merge: bool, cpu: Cpu, threads: int
) -> Iterator[_Choice]:
    """Yield the best tile for each intrinsic that fits."""
    kinds = fitting(found.a, found.b, cpu)
    work = prod(extent(s) for s in (*found.batch, *found.rows, *found.columns, *found.depth))
    for kind in kinds if work >= _LEAST else ():
        if kind.group == kinds[0].group and extent(found.lane) >= kind.lanes(cpu) / 2:
            yield from _packings(_Setting(program, found, lane, merge, kind, cpu, threads))


def _packings(s: _Setting) -> Iterator[_Choice]:
    """Yield the best tile for each way to read the operands."""
    contraction, kind, threads = s.found, s.kind, s.threads
    shapes = {b.name: b.shape for b in s.program.buffers}
    scopes = {b.name: b.scope for b in s.program.buffers}
    a, b = kind.operand(contraction.a, kind.a), kind.operand(contraction.b, kind.b)
    assert a is not None
    assert b is not None
    frozen_a, frozen_b = [all(scopes[e.args[0]] == "frozen" for e in loads(x)) for x in (a, b)]
    reading = _reading(contraction, a, kind, shapes)
    merged = s.merge and any(not _linear_index(x) for e in loads(a) for x in e.args[1])
    if reading is None or merged:  # pixels of several rows as one axis: 870 us in place of 670 (3 x 3, 28 x 28 x 128)
        return
    cost_a = 0.0 if not reading.copied or frozen_a else _COPY * _coordinates(contraction, a) + fork(s.cpu, threads)
    direct = b.kind == "load" and not isinstance(contraction.guard_b, Guard) and kind.group == 1
    direct = direct and not s.merge and _step(b, contraction.lane, shapes) == 1 and _linear(b, shapes)
    full = prod(extent(s) for s in (*contraction.depth, *contraction.columns, *contraction.batch))
    rows = prod(extent(s) for s in contraction.rows)
    if direct and not frozen_b:
        yield _tiled(s, reading, "none", cost_a)
    if frozen_b or rows >= 4 or direct:
        cost_b = 0.0 if frozen_b else (_COPY if direct or not s.merge else 2 * _COPY) * full + fork(s.cpu, threads)
        # a sum inside a panel gets no tile
        cost_b += sum(full * extent(it) / 4 for e in subexpressions(b) if e.kind == "reduce" for it in e.args[1])
        yield _tiled(s, reading, "panels", cost_a + cost_b)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The way A is read: the order of the depth, whether A is copied, and the order of its coordinates in the copy."""

    depth: tuple[str, ...]
    copied: bool
    order: tuple[str, ...] = ()


def _reading(found: Contraction, a: Expr, kind: Intrinsic, shapes: dict[str, tuple[int, ...]]) -> _Reading | None:
    """Choose a reading of A whose innermost iterator no row shares, so that two rows never read the same element."""
    copied = a.kind != "load" or isinstance(found.guard_a, Guard) or not _linear(a, shapes)
    places = [x for e in loads(a) for x in e.args[1]]
    try:
        forms = linear_forms(guarded(found.guard_a, a)) if copied else []
    except InputError:  # it is read through more than linear forms of iterators
        return None
    rows = frozenset((*found.rows, *found.batch))
    shared = {s for s in found.depth for x in places if not isinstance(x, int) and s in x.symbols and x.symbols & rows}
    load = next(iter(loads(a)))
    steps = {s: abs(_step(load, s, shapes)) for s in found.depth}
    order = sorted(found.depth, key=lambda s: (s not in shared, -steps[s]))
    own = [s for s in found.depth if s not in shared] or order
    inner = max(own, key=lambda s: (steps[s] == 1 and extent(s) >= kind.group, extent(s)))
    if kind.group > 1:
        copied = copied or steps[inner] != 1 or extent(inner) % kind.group != 0
    if copied or kind.group > 1:
        order = [*[s for s in order if s is not inner], inner]
    names = [s.name for s in order]
    if kind.group > 1:
        names[-1:] = [f"{inner.name}/{kind.group}", f"{inner.name}%{kind.group}"]
    moved = copied and (a.kind != "load" or steps[inner] != 1)
    return _Reading(tuple(names), copied, _innermost(forms, inner) if moved else ())


def _step(e: Expr, s: Symbol, shapes: dict[str, tuple[int, ...]]) -> int:
    """Return the stride of a load along an axis, in elements; 0 where it is not linear."""
    return coefficient(row_major(e.args[1], shapes[e.args[0]]), s) or 0


def _linear(e: Expr, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Whether the position of a load is a sum of multiples of iterators."""
    return _linear_index(row_major(e.args[1], shapes[e.args[0]]))


def _linear_index(x: Size) -> bool:
    return isinstance(x, int) or all(len(m) == 1 and isinstance(m[0], Symbol) for m, _ in x.terms if m)


def _innermost(forms: Sequence[Size], s: Symbol) -> tuple[str, ...]:
    """Return the order of A's coordinates with the coordinate of one iterator last."""
    last = [j for j, x in enumerate(forms) if not isinstance(x, int) and s in x.symbols]
    return tuple([str(j) for j in range(len(forms)) if j not in last] + [str(j) for j in last])


def _coordinates(found: Contraction, a: Expr) -> float:
    """Estimate the number of elements in A's copy, over all its axes, taps counted once."""
    rows = prod(extent(s) for s in (*found.batch, *found.rows) if s in a.symbols)
    return rows * max([extent(s) for s in found.depth], default=1)


def _tiled(s: _Setting, reading: _Reading, pack_b: Literal["none", "panels"], extra: float) -> _Choice:
    """Return the tile, the split of the sum and the task grid of least cost."""
    contraction, kind, axes = s.found, s.kind, s.found.rows[-2:]
    rest = prod(extent(a) for a in contraction.rows if a not in axes)
    best: _Choice | None = None
    whole = prod(extent(d) for d in contraction.depth) / kind.group
    least = _ranked(s, pack_b, whole)[0][0]
    s = replace(s, threads=1) if is_short(max(least, _read(s)), s.cpu) else s
    for split in _splits(s):
        steps = whole / split
        ranked = _ranked(s, pack_b, steps)
        # added up in a phase of its own
        combined = extra + (split * _outputs(contraction) / s.lanes + fork(s.cpu, s.threads) if split > 1 else 0.0)
        for cycles, sizes, vectors in ranked[: _TILES if s.threads > 1 else 1]:
            streams, prefetch = 1, 0
            if pack_b == "panels" and rest * prod(-(-extent(a) // n) for a, n in zip(axes, sizes, strict=True)) == 1:
                vectors, streams, prefetch = _streaming(s, prod(sizes), vectors)
            rows = tuple([(a.name, n) for a, n in zip(axes, sizes, strict=True) if n > 1])
            inner = extent(_innermost_of(contraction, reading.depth))
            unroll = inner if inner <= 8 and kind.group == 1 else 4 if prod(sizes) * vectors <= 16 else 2
            width = streams * vectors * s.lanes
            total, tasks = _grid(s, dict(rows), width, split, max(cycles * split, _read(s)))
            cost = combined + (total if s.threads > 1 else cycles * split)
            if best is not None and best.cycles <= cost:
                continue
            made = ContractionDecisions(
                intrinsic=kind.name, rows=rows, vectors=vectors, depth=reading.depth, unroll=unroll,
                pack_a="phase" if reading.copied else "none", pack_b=pack_b, order_a=reading.order,
                tasks=tuple([(name, n * streams if name == contraction.lane.name else n) for name, n in tasks]),
                merge_columns=s.merge, lane=s.lane, prefetch=prefetch, streams=streams, split=split,
            )  # fmt: skip
            best = _Choice(made, cost)
    assert best is not None
    return best


def _splits(s: _Setting) -> list[int]:
    """Return the numbers of parts into which the sum may be cut, so that few outputs still give work to all threads."""
    (first, *others) = s.found.depth
    rows = prod(extent(a) for a in s.found.rows)
    tasks = _outputs(s.found) // rows * -(-rows // _ROWS_OF_PARTS) // s.lanes
    if s.threads == 1 or others or s.kind.group > 1 or tasks > _TASKS_PER_THREAD * s.threads:
        return [1]
    return [n for n in _SPLITS if n == 1 or (extent(first) % n == 0 and extent(first) // n >= _LEAST_PART)]


def _read(s: _Setting) -> float:
    """Return the cycles to read B once from L3 or memory, where it lies between calls; 0 where it fits L2."""
    size = ITEMSIZE_BYTES[s.kind.b] * prod(extent(a) for a in (*s.found.batch, *s.found.columns, *s.found.depth))
    return from_beyond_l2(size, s.cpu)


def _outputs(found: Contraction) -> int:
    return prod(a.extent for a in found.stage.axes)


def _ranked(s: _Setting, pack_b: str, steps: float) -> list[tuple[float, tuple[int, ...], int]]:
    """Return tiles, best first: cycles on one thread, rows along the last two axes of rows, and vectors."""
    contraction, kind, cpu, lanes, axes = s.found, s.kind, s.cpu, s.lanes, s.found.rows[-2:]
    place = row_major(contraction.stage.index, s.program.buffer(contraction.stage.buffer).shape)
    scatter = coefficient(place, contraction.lane) != 1
    others = prod(
        extent(a) for a in (*contraction.batch, *contraction.rows, *contraction.columns[:-1]) if a not in axes
    )
    rest = prod(extent(a) for a in contraction.rows if a not in axes)
    size = ITEMSIZE_BYTES[kind.b] * kind.group
    ranked: list[tuple[float, tuple[int, ...], int]] = []
    for vectors in range(1, min(_MOST_VECTORS, -(-extent(contraction.lane) // lanes)) + 1):
        for sizes in product(*[range(1, min(extent(a), _MOST_ROWS) + 1) for a in axes]):
            if kind.registers(prod(sizes), vectors) > cpu.registers or prod(sizes) > 2 * _MOST_ROWS:
                continue
            store = 2.0 * prod(sizes) * vectors
            if scatter:
                across = len(axes) > 0 and coefficient(place, axes[-1]) == 1 and sizes[-1] >= LEAST_ACROSS
                store = vectors * (_TRANSPOSE * prod(sizes[:-1]) if across else _SCATTER * prod(sizes))
            cycles = others * _tiles(axes, sizes, extent(contraction.lane), vectors, lanes, steps, store)
            reuse = rest * prod(-(-extent(a) // n) for a, n in zip(axes, sizes, strict=True))
            if vectors * lanes * size * steps > (cpu.l2 if reuse > _FEW_TILES else cpu.l2 / 2) and reuse > 1:
                cycles *= 1.05
            cycles *= 1.02 if prod(sizes) > 8 else 1.0  # rows at strides of 4096 bytes fall on the same cache lines
            cycles *= 1.1 if pack_b == "none" and steps > 64 else 1.0
            cycles *= 1.01 if kind.registers(prod(sizes), vectors) > cpu.registers - 2 else 1.0
            ranked.append((cycles, sizes, vectors))
    return sorted(ranked, key=lambda t: t[0])


def _streaming(s: _Setting, rows: int, vectors: int) -> tuple[int, int, int]:
    """Vectors, streams and steps of prefetch of a tile that reads every panel once.

    One row is bound by memory: processors prefetch a few panels side by side better than one, and better than code
    does.  From some rows on a line is used for so long that prefetching of the processor loses track of the stream.
    """
    size = ITEMSIZE_BYTES[s.kind.b] * s.kind.group * s.lanes
    if rows == 1:
        count, rest = divmod(extent(s.found.lane), s.lanes)
        held = [(v, n) for v, n in _STREAMS if s.kind.registers(n, v) <= s.cpu.registers]
        fits = [(v, n) for v, n in held if not rest and count % (v * n) == 0]
        even = [(v, n) for v, n in fits if count // (v * n) % s.threads == 0]
        for v, n in even or fits:
            return v, n, 0
        return vectors, 1, 8
    return vectors, 1, _AHEAD // (vectors * size) if rows >= _SLOW_ROWS else 0


def _innermost_of(found: Contraction, depth: Sequence[str]) -> Symbol:
    """Return the iterator of the tile's innermost loop."""
    name = depth[-1].partition("%")[0].partition("/")[0]
    return next(s for s in found.depth if s.name == name)


def _tiles(
    axes: Sequence[Symbol], sizes: Sequence[int], columns: int, vectors: int, lanes: int, steps: float, store: float
) -> float:
    """Return the cycles of all tiles, tails included."""
    total = 0.0
    full = prod(sizes)
    counts = [_pieces(extent(s), n) for s, n in zip(axes, sizes, strict=True)]
    for rows in product(*counts):
        r, times = prod(n for n, _ in rows), prod(k for _, k in rows)
        for width, panels in _pieces(-(-columns // lanes), vectors):
            step = max(r * width, _LATENCY, r / 2 + width) + 0.01 * (r + width)
            total += times * panels * (steps * step + store * (r * width) / (full * vectors) + 20)
    return total


def _pieces(whole: int, part: int) -> list[tuple[int, int]]:
    """Return the sizes of the parts of an axis and how often each occurs."""
    pieces = [(part, whole // part)] if whole >= part else []
    return [*pieces, (whole % part, 1)] if whole % part else pieces


def _grid(
    s: _Setting, tile: dict[str, int], width: int, split: int, cycles: float
) -> tuple[float, tuple[tuple[str, int], ...]]:
    """Choose rows and panels per task for enough tasks that each fit the cache; return the cost and the grid."""
    contraction, kind, cpu, threads = s.found, s.kind, s.cpu, s.threads
    steps = prod(extent(d) for d in contraction.depth) / kind.group / split
    lane, batch = contraction.lane, split * prod(extent(a) for a in contraction.batch)
    first = contraction.rows[0] if contraction.rows else None
    step = tile.get(first.name, 1) if first is not None else 1
    row_tiles = -(-extent(first) // step) if first is not None else 1
    panels = -(-extent(lane) // width)
    other = contraction.columns[:-1]
    between = prod(extent(a) for a in other)
    rest = prod(extent(a) for a in contraction.rows[1:])
    size = ITEMSIZE_BYTES[kind.a] * kind.group
    best: tuple[float, int, int, bool] | None = None
    for apart in (False, True) if other else (False,):
        for a, b in product(_blocks(row_tiles), _blocks(panels)):
            tasks = batch * -(-row_tiles // a) * -(-panels // b) * (between if apart else 1)
            share = cycles / (batch * row_tiles * panels * (between if apart else 1)) * a * b
            rounds = -(-tasks // threads)
            block = a * step * rest * steps * size
            slow = 1.0 if block <= cpu.l2 / 2 or b == 1 else 1.05
            traffic = -(-row_tiles // a) * panels * width * steps * size * 0.02
            late = _LATE * share if threads > 1 else 0.0  # the last task to end, where cores are not equally fast
            total = rounds * (share * slow + _TASK) + late + traffic / threads
            if best is None or total < best[0]:
                best = total, a, b, apart
    assert best is not None
    total, a, b, apart = best
    chosen = [(first.name, a * step)] if first is not None and a < row_tiles else []
    chosen += [(lane.name, b)] if b < panels else []
    chosen += [(a.name, 1) for a in other] if apart else []
    if batch > 1 and threads == 1 and is_short(cycles, cpu):
        chosen += [(a.name, extent(a)) for a in contraction.batch]
    return total, tuple(chosen)


def _blocks(count: int) -> list[int]:
    """Return the block sizes that cut a number of tiles into 1, 2, 3 ... parts."""
    return sorted({-(-count // parts) for parts in range(1, min(count, 64) + 1)})
