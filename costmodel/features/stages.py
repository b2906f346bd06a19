"""Features of a scheduled program: one row of numbers per stage, computed after `apply(program, trace)`.

No feature knows a decision by name only: loops, accesses and registers are those of the scheduled program, as the
generator arranges them, so the rows hold for any trace.

    loops       loops of the stage in the order in which they run: tasks, serial ones, the reductions, then the values
                in registers at once (points, lanes).
    accesses    each distinct place that is read or written, with its stride in bytes along each loop.
    footprint   bytes in whole lines that an access touches in the inner loops. The outermost loops whose body fits a
                cache decide which bytes come from beyond it again and again.
    cold        frozen operands that come from beyond a cache although the program fits it, since calls go through more
                of them than it holds. They are those of the whole program that the kernel is a part of.
    estimate    cycles of arithmetic and loads, or of traffic where that is more, shared by the threads that the tasks
                allow. It is the prior whose logarithm a model corrects.

Counts are logarithms (base 2), the rest shares and flags.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from superopt.errors import InputError
from superopt.ir.expr import Expr, subexpressions, values_of
from superopt.ir.index import Form, Guard, Poly, Size, Symbol, coefficient, concrete, row_major, sides_of
from superopt.ir.prefix import direction
from superopt.ir.scalar import SCALARS
from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.emit.options import knobs_of
from superopt.kernels.emit.plan import plan
from superopt.kernels.llvm.cpu import Cpu, host
from superopt.kernels.loops.contract import find
from superopt.kernels.loops.stage import LoopProgram, Stage, Tile
from superopt.kernels.schedule.intrinsics import intrinsic
from superopt.machine.rates import NOMINAL

if TYPE_CHECKING:
    from jaxtyping import Float

VERSION = 2
NAMES = (
    # what it is
    "tile", "placed", "combined", "phases", "stages", "first", "log_rate", "width",
    # how much
    "log_seconds", "log_stores", "log_arithmetic", "log_traffic", "log_program_bytes",
    "simple", "quotients", "transcendentals", "converts", "choices", "indices", "loads", "distinct_loads",
    # loops
    "log_lane", "lane_waste", "lanes", "points", "vectors", "log_reduced", "log_innermost", "reductions",
    "lane_reduction", "log_serial", "guards", "sides", "masks", "lane_masks",
    # accesses
    "unit", "broadcast", "strided", "gathered", "store_apart", "store_gap", "alias", "log_run", "log_store_run",
    "transposed",
    # caches
    "program_l1", "program_l2", "program_l3", "body_l1", "body_l2", "past_l1", "past_l2", "past_l3",
    "short_l1", "short_l2", "short_l3", "weights_l2", "weights_l3", "cold_l2", "cold_l3",
    "frozen_share", "local_share", "scratch_share",
    # threads
    "threads", "log_tasks", "imbalance", "log_task_seconds",
    # register tiles
    "rows", "tile_vectors", "registers", "loads_per_step", "waste_rows", "waste_columns", "unroll", "group",
    "log_panel", "panel_l1", "panel_l2", "a_unit", "a_moved", "b_moved", "blocks", "prefetch", "streams",
    # how it is written
    "knob_rows", "cached", "kept", "accumulators", "window", "cut",
)  # fmt: skip
GROUPS: dict[str, tuple[str, str]] = {  # first and last name of each group
    "work": ("width", "distinct_loads"), "loops": ("log_lane", "lane_masks"), "accesses": ("unit", "transposed"),
    "caches": ("program_l1", "scratch_share"), "threads": ("threads", "log_task_seconds"),
    "tiles": ("rows", "streams"), "writing": ("knob_rows", "cut"),
}  # fmt: skip
_LINE = 64  # bytes of a cache line
_COUNTED: tuple[str, ...] = ("simple", "quotients", "transcendentals", "converts", "choices", "indices", "loads")
_BANDWIDTH = (NOMINAL.from_l2, NOMINAL.from_l3, NOMINAL.from_memory)
_COST = {"load": 0.7, "op": 0.6, "convert": 0.8, "where": 0.8, "index": 0.8}  # cycles of a vector, corrected by fits
_TRANSCENDENTAL, _QUOTIENT, _GATHER, _TRANSPOSE, _STORE, _SCATTER = 14.0, 8.0, 2.5, 5.0, 1.2, 3.0
"""Cycles of a vector, or of a lane gathered, transposed, stored or scattered: corrected by fits as well."""
_SHUFFLE, _NEAR = 1.5, 4  # cycles by stride of loads that are shuffled out of whole vectors, and the largest stride
_SHORT = 512  # bytes of a run that no prefetcher follows
_SCAN = 1.6  # cycles of an element of a prefix, whose lanes wait for each other
_REMAINDER = 700.0  # of a vector


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop: the iterator, its trips, the step of the iterator, and its kind."""

    symbol: Symbol
    trips: int
    step: int
    how: str


@dataclass(frozen=True, slots=True)
class _Access:
    """A place whose elements are read or written.

    Attributes:
        strides: bytes by iterator; missing iterators do not move it.
        count: number of element accesses, with reductions, without empty tails.
        gathered: whether the place is read from memory.
    """

    buffer: str
    strides: Mapping[Symbol, int]
    size: int
    count: float
    gathered: bool
    stored: bool = False


@dataclass(frozen=True, slots=True)
class _MemoryBytes:
    """Bytes of the caches, of the program (cached if all of it fits), and of frozen operands between calls."""

    caches: tuple[int, int, int]
    resident: float
    weights: float


@dataclass(frozen=True, slots=True)
class _Facts:
    """A stage as it runs.

    Attributes:
        loops: outermost first; reductions stand before the loops in registers.
        work: cycles of arithmetic and loads on one thread.
        counts: how often each part of the value is computed.
        more: features that only stages of its kind have.
    """

    loops: tuple[_Loop, ...]
    accesses: tuple[_Access, ...]
    work: float
    lanes: int
    lane: Symbol | None
    counts: Mapping[Expr, float]
    more: dict[str, float]


def stage_rows(
    scheduled: LoopProgram, threads: int = 1, cpu: Cpu | None = None, weights: float = 0.0
) -> Float[np.ndarray, "stages names"]:
    """Return the rows of the stages that a call runs, in their order; float32.

    Args:
        scheduled: the program with its frozen part, which runs once and has no rows.
        threads: number of threads that run a call.
        cpu: the target CPU; this machine at nominal rates when None.  Of its rates only that of multiply-adds is read,
            which says how memory compares with arithmetic; estimates are those of the nominal processor.
        weights: bytes of frozen operands that are read between two calls; those of the program itself when less.

    Raises:
        InputError: a stage has decisions that no code has.
    """
    cpu = cpu or host()
    _, program = hoisted(scheduled)
    caches = (cpu.l1 or 32768, cpu.l2 or 1 << 20, cpu.l3 or 32 << 20)
    total = float(sum(math.prod(b.shape) * ITEMSIZE_BYTES[b.dtype] for b in program.buffers if b.scope != "local"))
    weights = max(weights, sum(math.prod(b.shape) * ITEMSIZE_BYTES[b.dtype] for b in program.buffers
                               if b.scope == "frozen"))  # fmt: skip
    phases = program.phases()
    rows: list[list[float]] = []
    for number, stage in enumerate(program.stages):
        if 0 in [a.extent for a in stage.axes] or stage.guard is False:
            continue
        facts = _tiled(program, stage, cpu) if stage.tile is not None else _nest(program, stage, cpu)
        columns = _described(program, stage, facts, _MemoryBytes(caches, total, weights), threads)
        columns |= {
            "phases": math.log2(len(phases)), "stages": math.log2(len(program.stages)), "first": float(number == 0),
            "log_program_bytes": _log(total), "threads": math.log2(threads),
            **{f"program_l{k + 1}": _log(total / c) for k, c in enumerate(caches)},
            "log_rate": _log(NOMINAL.fma_s / cpu.rates.fma_s),
            "weights_l2": _log(weights / caches[1]), "weights_l3": _log(weights / caches[2]),
        }  # fmt: skip
        rows.append([columns.get(name, 0.0) for name in NAMES])
    return np.asarray(rows, np.float32).reshape(-1, len(NAMES))


def estimate_s(rows: Float[np.ndarray, "stages names"]) -> float:
    """Return the seconds of a call by the estimates of its stages."""
    return float(np.exp2(rows[:, NAMES.index("log_seconds")]).sum()) * 1e-9 + NOMINAL.call_s


def summed(rows: Float[np.ndarray, "stages names"]) -> Float[np.ndarray, " summed"]:
    """Return one row for a whole program: the mean of its stages weighted by estimate, and the log of the estimate."""
    share = np.exp2(rows[:, NAMES.index("log_seconds")].astype(np.float64))
    return np.append((rows * (share / share.sum())[:, None]).sum(0), math.log2(estimate_s(rows))).astype(np.float32)


def _log(x: float) -> float:
    return math.log2(max(x, 2**-10))


# ---- a stage as it runs


def _nest(program: LoopProgram, stage: Stage, cpu: Cpu) -> _Facts:
    """Return the loops, accesses and cycles of a stage that is emitted as a loop nest."""
    under = 0 if stage.at is None else stage.at[1]
    nest = plan(program, stage, cpu, under=under)
    sizes = {b.name: ITEMSIZE_BYTES[b.dtype] for b in program.buffers}
    outer = [_Loop(a.symbol, a.extent, 1, _outer(a.kind)) for a in stage.axes[:under] if a.extent > 1]
    inner: list[_Loop] = []
    points = 1
    for loop in nest.loops:
        if loop.how in ("task", "serial"):
            outer.append(_Loop(loop.it, loop.extent, 1, loop.how))
        elif loop.how == "points":
            at_once = min(loop.width, loop.extent)
            points *= at_once
            if loop.extent > at_once:
                outer.append(_Loop(loop.it, -(-loop.extent // at_once), at_once, "serial"))
            inner.append(_Loop(loop.it, at_once, 1, "points"))
        else:
            at_once = min(loop.width * nest.lanes, loop.extent)
            if loop.extent > at_once:
                outer.append(_Loop(loop.it, -(-loop.extent // at_once), at_once, "serial"))
            inner.append(_Loop(loop.it, at_once, 1, "lane"))
    parts = subexpressions(nest.value)
    axes = [*[a.symbol for a in stage.axes[:under]], *[x.it for x in nest.loops]]
    scans = {e: s for e in parts if e.kind == "reduce" for s in axes if direction(e, s)}
    along = {it: s for e, s in scans.items() for it in e.args[1]}  # a prefix goes along with an axis
    reduced = {it: None for e in parts if e.kind == "reduce" and e not in scans for it in e.args[1]}
    sums = [_Loop(it, _trips(it), 1, "reduce") for it in reduced]
    loops = (*outer, *sums, *inner)
    trips = _totals(loops)
    lane = nest.lane
    lanes = nest.lanes or max(1, cpu.vector_bits // 32)
    knobs = nest.knobs
    counts = _counts(nest.value, axes, trips, bool(knobs.cut))
    accesses = [_access(e.args[0], e.args[1][0], sizes[e.args[0]], counts[e]) for e in _loads(parts)]
    accesses = [replace(x, strides={along.get(s, s): n for s, n in x.strides.items()}) for x in accesses]
    accesses.append(_stored(stage.buffer, nest.at, sizes[stage.buffer], trips, loops))
    across = next((x.it for x in nest.loops if x.how == "points" and x.width == nest.lanes), None)
    across = across if knobs.transpose else None
    store = accesses[-1]
    apart = lane is not None and store.strides.get(lane, 0) > store.size
    work = _work(parts, counts, _Lane(lane, lanes, across), accesses)
    work += _SCAN * sum(counts[e] for e in scans)
    work += store.count * (_SCATTER if apart else _STORE / (lanes if lane else 1))
    more = {
        "points": _log(points), "vectors": _log(max((x.width for x in nest.loops if x.how == "lane"), default=1)),
        "transposed": float(across is not None),
        "knob_rows": math.sqrt(knobs.rows), "cached": float(("none", "scratch", "output").index(knobs.cache)),
        "kept": float(knobs.keep == "all"), "accumulators": _log(knobs.accumulators), "window": _log(knobs.window),
        "cut": float(knobs.cut), "lanes": _log(nest.lanes or 1),
    }  # fmt: skip
    tasks = [x.trips for x in outer if x.how == "task"]
    if tasks and stage.at is None:
        total = math.prod(tasks)
        rows = min(total, knobs.rows_per_task or max(1, -(-total // knobs.tasks)))
        more["tasks"] = float(-(-total // rows))
    return _Facts(loops, tuple(accesses), work, lanes if lane or sums else 1, lane, counts, more)


def _tiled(program: LoopProgram, stage: Stage, cpu: Cpu) -> _Facts:
    """Return the loops, accesses and cycles of a tensorized stage, with the features of its tile."""
    tile, contraction = stage.tile, find(stage)
    if tile is None or contraction is None:
        raise InputError(f"stage {stage.buffer} is not tensorized")
    kind = intrinsic(tile.intrinsic)
    buffers = {b.name: b for b in program.buffers}
    lanes, lane = kind.lanes(cpu), stage.axes[-1].symbol
    rows = math.prod(n for _, n in tile.rows)
    held = {name for name, _ in tile.rows} | {lane.name}
    outer = [_Loop(a.symbol, a.extent, 1, _outer(a.kind)) for a in stage.axes if a.symbol.name not in held]
    inner = [_Loop(a.symbol, a.extent, 1, "lane" if a.symbol is lane else "points") for a in stage.axes
             if a.symbol.name in held]  # fmt: skip
    block = int(stage.knob("block", 0))
    depth = list(contraction.depth)
    if block and block < _trips(depth[0]):
        first = depth.pop(0)
        sums = [_Loop(first, block, 1, "reduce")]
        outer.append(_Loop(first, -(-_trips(first) // block), block, "block"))
    else:
        sums, block = [], 0
    sums += [_Loop(it, _trips(it), 1, "reduce") for it in depth]
    loops = (*outer, *sums, *inner)
    trips = _totals(loops)
    parts = subexpressions(stage.value)
    counts = _counts(stage.value, [a.symbol for a in stage.axes], trips, True)
    accesses: list[_Access] = []
    for e in _loads(parts):
        b = buffers[e.args[0]]
        accesses.append(_access(b.name, row_major(e.args[1], b.shape), ITEMSIZE_BYTES[b.dtype],
                                counts[e]))  # fmt: skip
    out = buffers[stage.buffer]
    accesses.append(_stored(out.name, row_major(stage.index, out.shape), ITEMSIZE_BYTES[out.dtype], trips, loops))
    steps = math.prod(x.trips for x in sums) / kind.group
    passes = math.prod(x.trips for x in outer)
    a_step = max(rows * tile.vectors, 4.0, rows / 2 + tile.vectors) + 0.01 * (rows + tile.vectors)
    apart = 1.0 if accesses[-1].strides.get(lane) == accesses[-1].size else 15.0
    epilogue = [e for e in parts if not e.symbols.intersection(contraction.depth) and lane in e.symbols]
    there, waste, waste_columns = _existing(stage, tile, lane, lanes)
    final = there * passes / max(1, math.prod(x.trips for x in outer if x.how == "block"))
    per_element = sum(_cycles(e) for e in epilogue) + _STORE * apart
    work = there * passes * (steps * a_step + 20.0) + final * rows * tile.vectors * per_element
    store = accesses[-1]
    accesses[-1] = replace(store, count=there * store.count)
    a, b = _operands(accesses, lane)
    panel = tile.vectors * lanes * math.prod(x.trips for x in sums) * (b.size if b else 4)
    more = {
        "tile": 1.0, "rows": float(rows), "tile_vectors": float(tile.vectors), "lanes": _log(lanes),
        "registers": kind.registers(rows, tile.vectors) / cpu.registers,
        "loads_per_step": (rows + tile.vectors) / (rows * tile.vectors), "unroll": _log(tile.unroll),
        "waste_rows": waste, "waste_columns": waste_columns, "group": _log(kind.group),
        "log_panel": _log(panel), "panel_l1": _log(panel / (cpu.l1 or 32768)),
        "panel_l2": _log(panel / (cpu.l2 or 1 << 20)),
        "a_unit": float(a is not None and bool(sums) and a.strides.get(sums[-1].symbol, 0) <= a.size),
        "a_moved": _moved(a, buffers), "b_moved": _moved(b, buffers),
        "blocks": _log(_trips(contraction.depth[0]) / block) if block else 0.0,
        "prefetch": float(int(stage.knob("prefetch", 0))) / 8,
        "streams": float(sum(s.name.endswith("q") for s in (x.symbol for x in inner))),
    }  # fmt: skip
    return _Facts(loops, tuple(accesses), work, lanes, lane, counts, more)


def _outer(kind: str) -> str:
    return "task" if kind == "parallel" else "serial"


def _trips(s: Symbol) -> int:
    size = s.extent
    return size if isinstance(size, int) else 1


def _totals(loops: Iterable[_Loop]) -> dict[Symbol, int]:
    totals: dict[Symbol, int] = {}
    for loop in loops:
        totals[loop.symbol] = totals.get(loop.symbol, 1) * loop.trips
    return totals


def _shares(value: Expr, cut: bool) -> dict[Expr, float]:
    """Return the share of its points at which each part is computed: branches only where loops are cut at guards."""
    parts = subexpressions(value)
    if not cut or all(e.kind != "where" for e in parts):
        return dict.fromkeys(parts, 1.0)
    by_part = dict.fromkeys(parts, 0.0)
    by_part[value] = 1.0
    for e in reversed(parts):  # the users of a part come before it
        shares = [1.0] * len(e.operands)
        if e.kind == "where":
            held = _held(e.args[0])
            shares = [held, 1 - held]
        read = [v for index in e.indices for v in values_of(index)]
        for operand, share in (*zip(e.operands, shares, strict=True), *[(v, 1.0) for v in read]):
            by_part[operand] = min(1.0, by_part[operand] + by_part[e] * share)
    return by_part


def _held(guard: Guard) -> float:
    """Return the share of points at which a guard holds, its conditions as if independent.

    A condition of several symbols counts as one half.
    """
    share = 1.0
    for side in guard.ordered:
        symbols = list(side.symbols)
        n = _trips(symbols[0]) if len(symbols) == 1 else 0
        c = coefficient(side, symbols[0]) if n else None
        if n and c:
            first = side.constant
            holds = min(n, first // -c + 1) if c < 0 else n - max(0, -(first // c))
            share *= min(1.0, max(0.0, holds / n))
        else:
            share *= 0.5
    return share


def _counts(value: Expr, axes: Sequence[Symbol], trips: Mapping[Symbol, int], cut: bool) -> dict[Expr, float]:
    """Return how often each part is computed: once per turn of the axes down to the last that it depends on.

    Args:
        value: value of a stage.
        axes: axes in the order in which the stage has them, reductions left out.
        trips: trips of all iterators; those of prefixes, which go along with an axis, are missing.
        cut: whether loops are cut at guards.
    """
    around: dict[Symbol, float] = {}  # turns of an axis and of all outside of it
    total = 1.0
    for s in axes:
        total *= trips.get(s, 1)
        around[s] = total
    shares = _shares(value, cut)
    counts: dict[Expr, float] = {}
    for e, share in shares.items():
        turns = max([around[s] for s in e.symbols if s in around], default=1.0)
        counts[e] = share * turns * math.prod(trips.get(s, 1) for s in e.symbols if s not in around)
    return counts


def _loads(parts: Iterable[Expr]) -> list[Expr]:
    return [e for e in parts if e.kind == "load"]


def _existing(stage: Stage, tile: Tile, lane: Symbol, lanes: int) -> tuple[float, float, float]:
    """Return the share of a tile's iterations that exist, lanes by whole vectors, and the waste in rows and columns.

    Tiles beyond the end of an axis do not run, and its last one has code of its own.
    """
    there, rows, columns = 1.0, 1.0, 1.0
    sizes = dict(tile.rows) | {lane.name: tile.vectors * lanes}
    for side in stage.guard.ordered if isinstance(stage.guard, Guard) else ():
        total = math.prod(_trips(s) for s in side.symbols)
        size = next((sizes[s.name] for s in side.symbols if s.name in sizes), 1)
        exist = min(total, max(1, side.constant + 1))
        full = -(-exist // size) * size / exist
        if lane in side.symbols:
            columns *= full
            exist = min(total, -(-exist // lanes) * lanes)
        else:
            rows *= full
        there *= exist / total
    return there, min(4.0, rows - 1), min(4.0, columns - 1)


def _operands(accesses: Sequence[_Access], lane: Symbol) -> tuple[_Access | None, _Access | None]:
    """Return the access of most elements among those that stand still along the lane, and among those that move."""
    still = [x for x in accesses[:-1] if not x.strides.get(lane)]
    moving = [x for x in accesses[:-1] if x.strides.get(lane)]
    return tuple(max(some, key=lambda x: x.count, default=None) for some in (still, moving))  # pyright: ignore


def _moved(x: _Access | None, buffers: Mapping[str, object]) -> float:
    """Return 0 where an operand is not copied, 1 for a copy of a phase, 2 of a task, -1 packed ahead of time."""
    scopes = {"scratch": 1.0, "local": 2.0, "frozen": -1.0}
    return 0.0 if x is None else scopes.get(buffers[x.buffer].scope, 0.0)  # pyright: ignore[reportAttributeAccessIssue]


# ---- accesses


def _access(buffer: str, at: Size, size: int, count: float) -> _Access:
    strides: dict[Symbol, int] = {}
    gathered = False
    if isinstance(at, Poly):
        plain = True
        for mono, c in at.terms:
            if len(mono) == 1 and isinstance(mono[0], Symbol):
                strides[mono[0]] = strides.get(mono[0], 0) + c * size
            elif mono:
                plain = False
        if not plain:
            gathered = any(_reads(atom) for atom in at.atoms)
            if not gathered:
                strides = _differences(at, size)
    return _Access(buffer, {s: abs(n) for s, n in strides.items() if n}, size, count, gathered)


def _reads(atom: object) -> bool:
    if not isinstance(atom, Form):
        return False
    return atom.op == "value" or any(_reads(a) for x in atom.args if isinstance(x, Poly) for a in x.atoms)


def _differences(at: Poly, size: int) -> dict[Symbol, int]:
    """Return the strides of a place with divisions: that of a first step, else the mean over all."""
    values = dict.fromkeys([s.name for s in at.symbols], 0)
    base = concrete(at, values)
    differences: dict[Symbol, int] = {}
    for s in at.symbols:
        last = max(1, _trips(s) - 1)
        step = concrete(at, values | {s.name: 1}) - base
        if not step:
            step = -(-(concrete(at, values | {s.name: last}) - base) // last)
        differences[s] = step * size
    return differences


def _stored(buffer: str, at: Size, size: int, trips: Mapping[Symbol, int], loops: Sequence[_Loop]) -> _Access:
    access = _access(buffer, at, size, 0.0)
    count = float(math.prod(x.trips for x in loops if x.how not in ("reduce", "block")))
    return _Access(buffer, access.strides, size, count, access.gathered, stored=True)


def _footprint(x: _Access, loops: Sequence[_Loop]) -> float:
    """Return the bytes in whole lines that an access touches in these loops."""
    by_stride: dict[int, int] = {}
    for loop in loops:
        stride = x.strides.get(loop.symbol, 0) * loop.step
        if stride and loop.trips > 1:
            by_stride[stride] = by_stride.get(stride, 0) + loop.trips - 1
    run, apart, span = float(x.size), 1.0, float(x.size)
    for stride, steps in sorted(by_stride.items()):
        if stride <= max(run, _LINE):  # falls on or next to covered bytes
            run += stride * steps
        else:
            apart *= steps + 1
        span += stride * steps
    return min(apart * max(run, min(_LINE, run + _LINE / 2)), span + _LINE)


def _run(x: _Access, loops: Sequence[_Loop]) -> float:
    """Return the bytes that an access walks through without a gap, loop by loop from the inside."""
    run = float(x.size)
    for loop in reversed(loops):
        stride = x.strides.get(loop.symbol, 0) * loop.step
        if not stride or loop.trips == 1:
            continue
        if stride > max(run, _LINE):
            if loop.how in ("points", "lane"):
                continue
            break
        run += stride * (loop.trips - 1)
    return run


def _traffic(
    facts: _Facts, memory: _MemoryBytes, frozen: Container[str]
) -> tuple[list[float], list[float], Sequence[float], list[float]]:
    """Return, per cache, bytes from beyond it, those in short runs, the innermost body's bytes in it, and cold bytes.

    Data that all fits a cache stays there from call to call, except frozen operands where it does not hold all of
    these.
    """
    loops = facts.loops
    trips = _totals(loops)
    distinct: dict[tuple[object, ...], tuple[_Access, int]] = {}
    for x in facts.accesses:  # phases of a row read it along iterators of their own
        walk = tuple(sorted((n, trips.get(s, 1)) for s, n in x.strides.items()))
        key = (x.buffer, walk, x.stored)
        distinct[key] = (x, distinct[key][1] + 1) if key in distinct else (x, 1)
    accesses = list(distinct.values())
    levels = [[_footprint(x, loops[k:]) for x, _ in accesses] for k in range(len(loops) + 1)]
    sums = [sum(level) for level in levels]
    first = next((k for k, loop in enumerate(loops) if loop.how in ("reduce", "points", "lane")), len(loops))
    runs = [_run(x, loops) for x, _ in accesses]
    bytes_moved, short, cold = list[float](), list[float](), list[float]()
    once: dict[str, tuple[float, float]] = {}  # of frozen operands: bytes, and their runs
    for (x, _), bytes_, run in zip(accesses, levels[0], runs, strict=True):
        if x.buffer in frozen:
            once[x.buffer] = max(once.get(x.buffer, (0.0, 0.0)), (bytes_, 0.0 if x.gathered else run))
    for cache in memory.caches:
        streamed = list(once.values()) if memory.weights > cache else []
        cold.append(sum(bytes_ for bytes_, _ in streamed))
        if memory.resident <= cache:
            bytes_moved.append(cold[-1])
            short.append(sum(bytes_ for bytes_, run in streamed if run < _SHORT))
            continue
        k = next((k for k, total in enumerate(sums) if total <= cache), len(loops))
        total = apart = 0.0
        for (x, several), bytes_, run in zip(accesses, levels[k], runs, strict=True):
            times, moving = float(several if k > first else 1), False
            for loop in reversed(loops[:k]):
                if loop.how == "reduce" and loop.symbol not in x.strides:
                    continue  # of another phase
                moving = moving or loop.symbol in x.strides or x.gathered
                times *= loop.trips if moving else 1
            total += times * bytes_
            apart += times * bytes_ if run < _SHORT or x.gathered else 0.0
        bytes_moved.append(total)
        short.append(apart)
    registers = next((k for k, loop in enumerate(loops) if loop.how in ("points", "lane")), len(loops))
    body = sums[max(0, registers - 1)] if sums else 0.0
    return bytes_moved, short, [_log(body / c) for c in memory.caches], cold


# ---- work


def _cycles(e: Expr) -> float:
    if e.kind != "op":
        return _COST.get(e.kind, 0.0)
    if SCALARS[e.args[0]].transcendental:
        return _TRANSCENDENTAL
    if e.args[0] == "rem" and e.dtype.startswith(("float", "bfloat")):
        return _REMAINDER
    return _QUOTIENT if e.args[0] in ("div", "rem") else _COST["op"]


@dataclass(frozen=True, slots=True)
class _Lane:
    """The iterator along vectors, elements of one, and the iterator along which loads are transposed in registers."""

    it: Symbol | None
    lanes: int
    across: Symbol | None


def _work(parts: Sequence[Expr], counts: Mapping[Expr, float], lane: _Lane, accesses: Sequence[_Access]) -> float:
    """Estimate the cycles of arithmetic and loads on one thread."""
    total = 0.0
    loads = iter(accesses)
    for e in parts:
        cycles = _cycles(e)
        x = next(loads) if e.kind == "load" else None
        if not cycles:
            continue
        wide = lane.it in e.symbols or any(s.name.startswith("r") for s in e.symbols)  # reductions: along themselves
        if x is not None and lane.it in e.symbols and lane.it is not None and x.strides.get(lane.it, 0) > x.size:
            moved = lane.across is not None and x.strides.get(lane.across, 0) == x.size
            stride = x.strides[lane.it] // x.size
            near = _SHUFFLE * stride if stride <= _NEAR else _GATHER * lane.lanes
            cycles = _TRANSPOSE if moved else near
        total += cycles * counts[e] / (lane.lanes if wide else 1)
    return total


def _described(
    program: LoopProgram, stage: Stage, facts: _Facts, memory: _MemoryBytes, threads: int
) -> dict[str, float]:
    """Return the features of a stage by name, from facts on its loops and accesses."""
    loops, accesses = facts.loops, facts.accesses
    store = accesses[-1]
    trips = _totals(loops)
    scopes = {b.name: b.scope for b in program.buffers}
    past, short, body, cold = _traffic(facts, memory, {name for name, scope in scopes.items() if scope == "frozen"})
    moving = sum(b / rate for b, rate in zip(past, _BANDWIDTH, strict=True))
    cycles = max(facts.work, moving) + 0.3 * min(facts.work, moving)
    tasks = facts.more.get("tasks") or float(math.prod(x.trips for x in loops if x.how == "task"))
    shared = threads if tasks > 1 and stage.at is None else 1
    rounds = -(-tasks // shared)
    seconds = (
        cycles / NOMINAL.hertz * rounds / tasks
        + tasks / shared * NOMINAL.task_s
        + (NOMINAL.wake_s if shared > 1 else 0.0)
    )
    counts = dict.fromkeys(_COUNTED, 0.0)
    names = {"convert": "converts", "where": "choices", "index": "indices", "load": "loads"}
    for e, count in facts.counts.items():
        name = names.get(e.kind)
        if e.kind == "op":
            c = _cycles(e)
            name = "transcendentals" if c == _TRANSCENDENTAL else "quotients" if c >= _QUOTIENT else "simple"
        if name is not None:
            counts[name] += count
    stores = max(1.0, store.count)
    read = sum(x.count for x in accesses[:-1]) or 1.0
    lane = facts.lane
    reduced = [x for x in loops if x.how == "reduce"]
    last = lane if lane is not None else reduced[-1].symbol if reduced else None
    kinds = {"unit": 0.0, "broadcast": 0.0, "strided": 0.0, "gathered": 0.0}
    for x in accesses[:-1]:
        stride = x.strides.get(last, 0) if last is not None else 0
        kind = "gathered" if x.gathered else "broadcast" if not stride else "unit" if stride == x.size else "strided"
        kinds[kind] += x.count / read
    bytes_ = {x.buffer: _footprint(x, loops) for x in accesses[:-1]}
    whole = sum(bytes_.values()) or 1.0
    close = [x for x in loops if x.how in ("points", "reduce")]
    gap = store.strides.get(lane, 0) / store.size if lane is not None else 0.0
    width = math.prod(x.trips for x in loops if x.symbol is lane and x.how == "lane") if lane is not None else 1
    extent = trips.get(lane, 1) if lane is not None else 1
    knobs = knobs_of(stage)
    choices = [e for e in facts.counts if e.kind == "where"]
    masks = choices if not knobs.cut else []
    return {
        "placed": float(stage.at is not None), "combined": float(stage.combine is not None),
        "width": math.log2(store.size), "log_seconds": _log(seconds * 1e9), "log_stores": _log(stores),
        "log_arithmetic": _log(facts.work), "log_traffic": _log(moving),
        **{name: math.log2(1 + n / stores) for name, n in counts.items()},
        "distinct_loads": math.log2(1 + len(accesses)),
        "log_lane": _log(extent), "lane_waste": min(4.0, -(-extent // facts.lanes) * facts.lanes / extent - 1),
        "log_reduced": _log(math.prod(x.trips for x in reduced)),
        "log_innermost": _log(reduced[-1].trips if reduced else width), "reductions": float(len(reduced)),
        "lane_reduction": float(lane is None and bool(reduced)),
        "log_serial": _log(math.prod(x.trips for x in loops if x.how == "serial")),
        "guards": float(len(sides_of(stage.guard))),
        "sides": math.log2(1 + sum(len(e.args[0].ordered) for e in choices)),
        "masks": math.log2(1 + len(masks)), "lane_masks": math.log2(1 + sum(lane in e.args[0].symbols for e in masks)),
        **kinds, "store_apart": float(gap > 1), "store_gap": _log(max(gap, 1.0)),
        "alias": float(any(s.strides.get(x.symbol, 0) * x.step % 4096 == 0 < s.strides.get(x.symbol, 0)
                           for s in accesses for x in close if x.trips > 1)),
        "log_run": min((_log(_run(x, loops)) for x in accesses[:-1] if x.strides), default=0.0),
        "log_store_run": _log(_run(store, loops)), "body_l1": body[0], "body_l2": body[1],
        **{f"past_l{k + 1}": math.log2(1 + b / (cycles + 1)) for k, b in enumerate(past)},
        **{f"short_l{k + 1}": math.log2(1 + b / (cycles + 1)) for k, b in enumerate(short)},
        **{f"cold_l{k + 1}": math.log2(1 + cold[k] / (cycles + 1)) for k in (1, 2)},
        **{f"{scope}_share": sum(n for b, n in bytes_.items() if scopes[b] == scope) / whole
           for scope in ("frozen", "local", "scratch")},
        "log_tasks": _log(tasks), "imbalance": rounds * shared / tasks - 1,
        "log_task_seconds": _log(seconds / tasks * 1e9),
        **{k: v for k, v in facts.more.items() if k != "tasks"},
    }  # fmt: skip
