"""Loop planning of one stage: the order of its loops, tasks, the lane, and values computed at several points.

A stage whose axes have kinds is written as its schedule says: leading parallel axes are tasks, the vector axis is the
lane, unrolled axes are points computed at once.  A stage without kinds is arranged here, from its access pattern alone.
Divided axes are split, and axes that every access walks as one are fused.  The lane is the axis with unit stride in the
output.  Axes that a reduction does not depend on come after those that it does, so that it is not repeated.  A load
contiguous along another axis than the lane makes that axis a block of points (a register transpose).

Rows with phases go several at a time, since short phases are mostly latency.  Positions whose windows overlap go
several at a time, since they share loads.  A lone axis is split so that its outer part can be tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from superopt.ir.expr import Expr, over_values, subexpressions
from superopt.ir.index import (
    Guard,
    Poly,
    Size,
    Symbol,
    Truth,
    all_of,
    coefficient,
    nonnegative,
    row_major,
    sides_of,
    substitute,
    substitute_guard,
    symbols_of,
)
from superopt.ir.prefix import direction
from superopt.kernels.emit.options import DEFAULT, Knobs, Licence, knobs_of
from superopt.kernels.emit.registers import lanes_along
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.loops import simplify
from superopt.kernels.loops.simplify import index_of
from superopt.kernels.loops.stage import Buffer, LoopProgram, Stage, extent

MOST_POINTS = 64
LONG = 16  # steps of a reduction that is worth lanes of its own
LITTLE = 1 << 14  # scalar steps of a stage that is not worth more tasks
# so many rows at a time of at most so many vectors, a third of the first-level cache in all, where there are that many
ROWS = ((4, 48, 16), (2, 85, 8))  # rows: phases of one row are mostly latency, which those of others hide
NEIGHBOURS = 4


@dataclass(frozen=True, slots=True)
class PlannedLoop:
    """One loop: task, serial, points (so many values of the iterator at once) or lane (so many vectors at once)."""

    it: Symbol
    how: str
    width: int = 1

    @property
    def extent(self) -> int:
        """Number of values of the iterator."""
        return extent(self.it)


@dataclass(frozen=True, slots=True)
class Nest:
    """A stage ready to be written: loops, the linear index that is stored to, value and guard over the loops.

    Attributes:
        lanes: lanes of a vector; 0 when there is no lane.
        knobs: the stage's knobs, with defaults.
    """

    stage: Stage
    loops: tuple[PlannedLoop, ...]
    at: Size
    value: Expr
    guard: Truth
    lanes: int
    knobs: Knobs

    @property
    def lane(self) -> Symbol | None:
        """The iterator along the vectors."""
        return next((loop.it for loop in self.loops if loop.how == "lane"), None)

    @property
    def tasks(self) -> tuple[PlannedLoop, ...]:
        """The leading loops that become tasks."""
        return tuple([loop for loop in self.loops if loop.how == "task"])


@dataclass(slots=True)
class _Arrangement:
    """Axes of a stage in their order, and the index, value and guard over them."""

    axes: list[Symbol]
    at: Size
    value: Expr
    guard: Truth

    def indices(self) -> list[Size]:
        """Return every index over the axes."""
        sides = sides_of(self.guard)
        return [self.at, *sides, *simplify.indices_in([self.value])]

    def replaced(self, it: Symbol, by: Sequence[Symbol], value: Size) -> None:
        """Replace an iterator by others from which its value is computed."""
        mapping = {it: value}
        self.value, self.at = self.value.substitute(mapping), substitute(self.at, mapping)
        self.guard = substitute_guard(self.guard, mapping)
        j = self.axes.index(it)
        self.axes[j : j + 1] = [s for s in by if s.high != 0]


def plan(program: LoopProgram, stage: Stage, cpu: Cpu, licence: Licence = DEFAULT, under: int = 0) -> Nest:
    """Plan the loops of a stage, without the first `under` axes (those of the stage in which it is placed)."""
    buffers = {b.name: b for b in program.buffers}
    knobs = knobs_of(stage)
    value = simplify.flatten(stage.value, buffers)
    at = row_major(stage.index, buffers[stage.buffer].shape)
    at, guard = _flat_indices(at, stage.guard, buffers)
    single: dict[Symbol, Size] = {a.symbol: 0 for a in stage.axes if a.extent == 1}
    value, at = value.substitute(single), substitute(at, single)
    guard = substitute_guard(guard, single)
    axes = [a for a in stage.axes[under:] if a.extent != 1]
    value = simplify.fuse_reductions(simplify.split_reductions(value))
    if licence.reciprocal:
        value = simplify.reciprocals(value, None)
    free = all(a.kind == "serial" for a in stage.axes) and stage.at is None and stage.combine is None
    placed = [s.at[1] for s in program.placed(stage.buffer) if s.at is not None]
    arranged = _Arrangement([a.symbol for a in axes], at, value, guard)
    if free and not placed:
        loops, lanes = _arranged(arranged, cpu, knobs)
    else:
        kinds: dict[Symbol, str] = {a.symbol: a.kind for a in axes}
        for a in stage.axes[: max(placed, default=0)]:
            if kinds.get(a.symbol) in ("unroll", "vector"):  # a local buffer belongs to one iteration
                kinds[a.symbol] = "serial"
        held = frozenset([a.symbol for a in stage.axes[: max(placed, default=0)]])
        loops, lanes = _scheduled(arranged, kinds, cpu, knobs, stage, held)
    return Nest(stage, loops, arranged.at, arranged.value, arranged.guard, lanes, knobs)


def _flat_indices(at: Size, guard: Truth, buffers: Mapping[str, Buffer]) -> tuple[Size, Truth]:
    """Return the index and the guard with linear indices in the loads inside them."""

    def flat(x: Size) -> Size:
        scalars = [v for form in simplify.forms_in(x) if form.op == "value" for v in form.args]
        return over_values(x, {v: simplify.flatten(v, buffers) for v in scalars}) if scalars else x

    if isinstance(guard, Guard):
        guard = all_of(*[nonnegative(flat(p)) for p in guard.ordered])
    return flat(at), guard


# ---- as scheduled


def _scheduled(
    a: _Arrangement, kinds: Mapping[Symbol, str], cpu: Cpu, knobs: Knobs, stage: Stage, held: frozenset[Symbol]
) -> tuple[tuple[PlannedLoop, ...], int]:
    lane = next((s for s in a.axes if kinds[s] == "vector"), None)
    if lane is None and knobs.lane:
        lane = _lane(a, [s for s in a.axes if kinds[s] == "serial" and s not in held])
    if lane is not None and stage.combine is not None and lane not in symbols_of(a.at):
        lane = None
    lanes = _lanes(a, lane, cpu)
    loops: list[PlannedLoop] = []
    leading, points = stage.at is None, 1
    for s in a.axes:
        leading = leading and kinds[s] == "parallel"
        if leading:
            loops.append(PlannedLoop(s, "task"))
        elif s == lane:
            loops.append(PlannedLoop(s, "lane", max(1, min(knobs.vectors, MOST_POINTS // points))))
        elif kinds[s] == "unroll" and points * extent(s) <= MOST_POINTS:
            points *= extent(s)
            loops.append(PlannedLoop(s, "points", extent(s)))
        else:
            loops.append(PlannedLoop(s, "serial"))
    return tuple(loops), lanes


# ---- arranged here


def _arranged(a: _Arrangement, cpu: Cpu, knobs: Knobs) -> tuple[tuple[PlannedLoop, ...], int]:
    """Return the loops of a stage in their order, with the number of lanes; 0 lanes where it is not vectorized."""
    _split(a)
    _fuse(a)
    lane = _lane(a, a.axes) if knobs.lane else None
    if lane is None or _along_reductions(a, lane):
        _order(a)
        return tuple([PlannedLoop(s, "task" if s in _tasks(a, a.axes, knobs) else "serial") for s in a.axes]), 0
    lanes = _lanes(a, lane, cpu)
    across = _across(a, lane) if knobs.transpose and lanes >= 4 else None
    a.axes.remove(lane)
    if across is not None and extent(across) >= lanes:
        a.axes.remove(across)
        a.axes.append(across)
    else:
        across = None
    a.axes.append(lane)
    _order(a)
    vectors = 1 if across else max(1, min(knobs.vectors, extent(lane) // lanes))
    first = across or lane
    rows = prod([extent(s) for s in a.axes[: a.axes.index(first)]])
    work = _steps(a) * prod([extent(s) for s in a.axes])
    if rows < min(knobs.tasks, 4) and work >= LITTLE:
        pieces = knobs.tasks // max(rows, 1)
        if across is not None and _chosen_along(a, across) and not _chosen_along(a, lane):
            _block(a, lane, _even(extent(lane), lanes, pieces), pieces)
        else:
            _block(a, first, lanes * vectors, pieces)
    lane, first = _inner(a, lane), _inner(a, first)
    together = None if across else _rows_together(a, lane, lanes, knobs)
    if not across and not together:
        together = _neighbours(a, lane, knobs)
        vectors = min(vectors, 2 if cpu.registers >= 32 else 1) if together else vectors
    first = together or first
    tasks = _tasks(a, a.axes[: a.axes.index(first)], knobs)
    loops: list[PlannedLoop] = []
    for s in a.axes:
        if s in tasks:
            loops.append(PlannedLoop(s, "task"))
        elif s == lane:
            loops.append(PlannedLoop(s, "lane", vectors))
        elif s == first:
            loops.append(PlannedLoop(s, "points", extent(s) if together else lanes))
        else:
            loops.append(PlannedLoop(s, "serial"))
    return tuple(loops), lanes


def _tasks(a: _Arrangement, axes: Sequence[Symbol], knobs: Knobs) -> list[Symbol]:
    """Return the leading axes that together give the target number of tasks; none over which a prefix runs."""
    tasks: list[Symbol] = []
    for s in axes:
        if prod([extent(t) for t in tasks]) >= knobs.tasks or _is_running(a.value, s):
            break
        tasks.append(s)
    return tasks


def _along_reductions(a: _Arrangement, lane: Symbol) -> bool:
    """Whether all reductions read along their own iterators and none along this axis, so that lanes belong to them."""
    heads = _heads(a.value)
    loads = [e for r in heads for e in subexpressions(r) if e.kind == "load" and lane in e.symbols]
    if not loads or any(lane not in r.symbols for r in heads):
        return False
    return all(_reads_along(r, lane) for r in heads)


def _reads_along(r: Expr, lane: Symbol) -> bool:
    """Whether a reduction is long, with loads that are contiguous along its iterators but not along the lane."""
    along = False
    for e in subexpressions(r.args[2]):
        if e.kind == "reduce" and lane in e.symbols and not _reads_along(e, lane):
            return False
        if e.kind != "load" or lane not in e.symbols:
            continue
        if coefficient(e.args[1][0], lane) in (1, -1):
            return False
        along = along or any(coefficient(e.args[1][0], it) in (1, -1) for it in r.args[1])
    return along and prod(extent(it) for it in r.args[1]) >= LONG


def _inner(a: _Arrangement, s: Symbol) -> Symbol:
    """Return the axis, or its inner part if it was cut into blocks."""
    return s if s in a.axes else next(x for x in a.axes if x.name == f"{s.name}l")


def _split(a: _Arrangement) -> None:
    """Split axes that some index divides, so that no index divides them any more."""
    for _ in range(simplify.MOST_SPLITS):
        hit = next((h for x in a.indices() if (h := simplify.divisor(x, frozenset(a.axes)))), None)
        if hit is None:
            return
        high, low, value = simplify.split(*hit)
        a.replaced(hit[0], (high, low), value)


def _fuse(a: _Arrangement) -> None:
    """Fuse neighbouring axes that every index walks as one."""
    j = len(a.axes) - 2
    while j >= 0:
        outer, inner = a.axes[j], a.axes[j + 1]
        sides = sides_of(a.guard)
        fused, values = simplify.fused_with(outer, inner, [a.value], [a.at, *sides])
        if fused is not None:
            n = extent(inner)
            mapping = {outer: index_of(fused) // n, inner: index_of(fused) % n}
            a.at, (a.value,) = substitute(a.at, mapping), values
            a.guard = substitute_guard(a.guard, mapping)
            a.axes[j : j + 2] = [fused]
            j = min(j, len(a.axes) - 1)
        j -= 1


def _lane(a: _Arrangement, axes: Sequence[Symbol]) -> Symbol | None:
    """Choose the axis along the vectors: contiguous where it is written, else where most is read, else the last."""
    if not axes:
        return None
    for s in reversed(axes):
        if coefficient(a.at, s) == 1 and extent(s) > 1:
            return s
    loads = [e for e in subexpressions(a.value) if e.kind == "load"]
    return max(axes, key=lambda s: (sum(coefficient(e.args[1][0], s) == 1 for e in loads), axes.index(s)))


def _lanes(a: _Arrangement, lane: Symbol | None, cpu: Cpu) -> int:
    """Return the lanes of a vector along an axis, by the dtypes that vary along it; 0 without an axis."""
    if lane is None:
        return 0
    return lanes_along([e for e in subexpressions(a.value) if lane in e.symbols], lane, cpu)


def _across(a: _Arrangement, lane: Symbol) -> Symbol | None:
    """Return an axis along which loads are contiguous that are strided along the lane; None if there is none."""
    for e in subexpressions(a.value):
        if e.kind == "load" and coefficient(e.args[1][0], lane) not in (0, 1, -1, None):
            for s in a.axes:
                if s != lane and coefficient(e.args[1][0], s) == 1:
                    return s
    return None


def _order(a: _Arrangement) -> None:
    """Move axes on which few reductions depend, and prefixes, after the others."""
    heads = _heads(a.value)
    missing = {s: sum(s not in r.symbols for r in heads) for s in a.axes}
    running = {s: _is_running(a.value, s) for s in a.axes}
    a.axes.sort(key=lambda s: (running[s], missing[s]))


def _steps(a: _Arrangement) -> int:
    """Estimate the steps of the reductions at one element."""
    return max([prod(extent(it) for it in e.args[1]) for e in subexpressions(a.value) if e.kind == "reduce"], default=1)


# ---- blocks of axes that are written together


def _heads(value: Expr) -> list[Expr]:
    """Return the reductions over the axes that are not inside others."""
    heads: list[Expr] = []
    stack, seen = [value], set[Expr]()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if e.kind == "reduce":
            heads.append(e)
        else:
            stack += e.operands
    return [r for r in heads if r.symbols]


def _rows_together(a: _Arrangement, lane: Symbol, lanes: int, knobs: Knobs) -> Symbol | None:
    """Split the axis before the lane so that rows with phases are written several at a time; return the inner part."""
    phases = [r for r in _heads(a.value) if lane not in r.symbols]
    j = a.axes.index(lane) - 1
    if j < 0 or lane != a.axes[-1] or not phases or any(a.axes[j] not in r.symbols for r in phases):
        return None
    row = a.axes[j]
    fitting = (n for n, most, least in ROWS if extent(lane) <= most * lanes and extent(row) >= least)
    rows = knobs.rows or next(fitting, 1)
    if rows < 2 or extent(row) < 4 * rows or _is_running(a.value, row):
        return None
    _block(a, row, rows, extent(row), j)
    return a.axes[j + 1]


def _neighbours(a: _Arrangement, lane: Symbol, knobs: Knobs) -> Symbol | None:
    """Split the axis before the lane so that positions with overlapping windows share loads; return the inner part."""
    j = a.axes.index(lane) - 1
    if j < 0 or lane != a.axes[-1]:
        return None
    if not _shifted(a.value, a.axes[j]) and not any(_overlaps(r, a.axes[j], knobs) for r in _heads(a.value)):
        return None
    s, count = a.axes[j], knobs.rows or NEIGHBOURS
    if count < 2 or extent(s) < 2 * count or _is_running(a.value, s):
        return None
    _block(a, s, count, extent(s), j)
    return a.axes[j + 1]


def _shifted(value: Expr, s: Symbol) -> bool:
    """Whether there are loads that differ by a few steps of an axis."""
    places: dict[tuple[str, Size], set[int]] = {}
    for e in subexpressions(value):
        at = e.args[1][0] if e.kind == "load" else 0
        step = coefficient(at, s)
        if isinstance(at, Poly) and step:
            offsets = places.setdefault((e.args[0], at - at.constant), set())
            apart = [abs(c - at.constant) for c in offsets]
            if any(d and d % step == 0 and d < NEIGHBOURS * abs(step) for d in apart):
                return True
            offsets.add(at.constant)
    return False


def _overlaps(r: Expr, s: Symbol, knobs: Knobs) -> bool:
    """Whether an unrolled window reads the same elements for neighbouring values of an axis."""
    if prod(extent(it) for it in r.args[1]) > knobs.window:
        return False
    for e in subexpressions(r.args[2]):
        step = coefficient(e.args[1][0], s) if e.kind == "load" else None
        for it in r.args[1] if step else ():
            tap = coefficient(e.args[1][0], it)
            if step and tap and step % tap == 0 and abs(tap) * (extent(it) - 1) >= abs(step):
                return True
    return False


def _block(a: _Arrangement, s: Symbol, least: int, pieces: int, position: int = 0) -> None:
    """Cut an axis into blocks, the last maybe shorter, and move the outer part to a position where it can be tasks."""
    n = extent(s)
    size = -(-max(least, -(-n // max(pieces, 1))) // least) * least
    if size >= n or _is_running(a.value, s):
        return
    high, low = Symbol(f"{s.name}h", 0, -(-n // size) - 1), Symbol(f"{s.name}l", 0, size - 1)
    value = index_of(high) * size + index_of(low)
    a.replaced(s, (high, low), value)
    if n % size:
        a.guard = all_of(a.guard, nonnegative(n - 1 - value))
    a.axes.remove(high)
    a.axes.insert(position, high)


def _chosen_along(a: _Arrangement, s: Symbol) -> bool:
    """Whether guards choose between values along an axis; its blocks would straddle them and all need guards."""
    return any(s in side.symbols for side in simplify.guards_in([a.value]))


def _even(n: int, lanes: int, pieces: int) -> int:
    """Return the size of equal blocks of an axis, of which the last vector is stored twice where it does not fit.

    There are at most so many blocks, each at least a vector long; those with the least such work win, then the most of
    them.
    """
    sizes = [n // p for p in range(2, pieces + 1) if n % p == 0 and n // p >= lanes]
    return min(sizes, key=lambda size: (-(-size // lanes) * lanes / size, size), default=n)


def _is_running(value: Expr, it: Symbol) -> bool:
    """Whether the value holds a prefix that ends at this iterator."""
    return any(e.kind == "reduce" and direction(e, it) for e in subexpressions(value))
