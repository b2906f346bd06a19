"""Schedules that fuse chained contractions (attention) into one kernel: the second sums over mapped rows of the first.

    out[q,d] = sum_j f(s[q,:])[j] v[j,d],   s[q,j] = sum_c a[q,c] b[j,c]        attention, where f is a softmax

A task takes a block of rows q and keeps their intermediate values in local memory.  The first contraction is a
register tile with lanes along q, so reductions and maps of a row act on vectors of rows and need no work across lanes.
The second contraction is a register tile over the mapped rows.  The first result never lies in memory as a whole.  The
schedule is derived from the shape of the expressions, whatever stands between the two contractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from superopt.errors import InputError
from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import Symbol, coefficient, row_major
from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels.choose.decisions import Parted, SchedulePoint, StageDecisions, decided
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.loops.contract import analyse, find, outermost
from superopt.kernels.loops.program import loads
from superopt.kernels.loops.ranges import require_within
from superopt.kernels.loops.simplify import divisor
from superopt.kernels.loops.stage import LoopProgram, Stage, extent
from superopt.kernels.schedule.edit import parts, reductions
from superopt.kernels.schedule.trace import Steps, apply

_INTRINSICS = {"float32": "fma_f32", "float64": "fma_f64"}
_LEAST_ROWS = 8  # float32 lanes of a vector: lanes run along the queries
_MOST_PARTS = 12  # stages that a chain is taken apart into


def chain(program: LoopProgram, name: str, cpu: Cpu, threads: int = 1) -> Parted | None:
    """Take a chain apart, with the decisions of its schedule; None where the stage is no chain that fits the cache.

    Args:
        program: the loop program, as `from_graph` returns it.
        name: the stage of the second contraction.
        cpu: the target CPU.
        threads: number of threads a call may use.
    """
    parts = _taken_apart(program, name, cpu)
    start = None if parts is None else _start(parts.sizes, cpu, threads)
    if parts is None or start is None:
        return None
    decisions = decided(_options(parts.sizes, cpu, threads), start)
    return Parted(parts.program, parts.steps, StageDecisions(name, decisions, _ChainTiling(parts).steps))


def is_chain(stage: Stage) -> bool:
    """Whether the stage's value sums a product that depends on another sum of products over the same iterator."""
    return _total(stage) is not None


@dataclass(frozen=True, slots=True)
class ChainParts:
    """A chain taken apart into contractions, reductions and maps, not placed or tiled yet.

    Attributes:
        program: the loop program with a stage for each part.
        steps: the schedule steps that lead to it.
        name: the stage of the second contraction.
        first: the stage of the first contraction.
        local: stages that a task computes into local memory.
        query: the axis that tasks take blocks of.
        others: axes of the first operand that are no batch axes (heads that share keys): one element a task.
        column: the axis that only the second contraction has.
        sizes: the sizes that decisions depend on.
        dtype: dtype of the sums.
    """

    program: LoopProgram
    steps: Steps
    name: str
    first: str
    local: tuple[str, ...]
    query: str
    others: tuple[str, ...]
    column: str
    sizes: ChainSizes
    dtype: str


def _taken_apart(program: LoopProgram, name: str, cpu: Cpu) -> ChainParts | None:
    """Take a chain apart into its stages; None where the stage is no chain."""
    stage = program.stage(name)
    if (
        not cpu.vector_bits
        or not is_chain(stage)
        or stage.at is not None
        or any(a.kind != "serial" for a in stage.axes)
    ):
        return None
    try:
        return _Chain(program, name, cpu).parted()
    except InputError:
        return None


@dataclass(frozen=True, slots=True)
class _ChainTiling:
    """The steps of a chain's points: made once for each number of rows of a task, on which all but the tiles depend.

    Attributes:
        made: the steps of one point, by its rows of a task.
    """

    parts: ChainParts
    made: dict[int, Steps] = field(default_factory=dict[int, Steps])

    def steps(self, point: SchedulePoint) -> Steps:
        """Return the steps of a point.

        Raises:
            InputError: a step does not fit.
        """
        parts, (block, _) = self.parts, point["queries"]
        if block not in self.made:
            self.made[block] = _scheduled(parts, point)
        return [self._retiled(step, point) if step[0] == "tensorize" else list(step) for step in self.made[block]]

    def _retiled(self, step: Sequence[Any], point: SchedulePoint) -> list[Any]:
        _, stage, tile = step
        if stage == self.parts.name:
            return ["tensorize", stage, _second_tile(self.parts, point)]
        return ["tensorize", stage, _first_tile(self.parts, point, dict(tile)["rows"][0][0])]


def _scheduled(parts: ChainParts, point: SchedulePoint) -> Steps:
    """Return the steps of a point after those that take the chain apart; they are taken as they are made.

    Raises:
        InputError: a step does not fit.
    """
    made = _Steps(parts.program, [])
    inner = analyse(parts.program, parts.program.stage(parts.name))
    names = [] if inner is None else [s.name for s in (*inner.rows, *inner.columns)]
    if any(n not in names for n in (parts.query, *parts.others, parts.column)):
        raise InputError(f"stage {parts.name} is no contraction of rows that lie in memory")
    made.do("tensorize", parts.name, _second_tile(parts, point))
    count = sum(a.kind == "parallel" for a in made.program.stage(parts.name).axes)
    for name in reversed([s.buffer for s in made.program.stages if s.buffer in parts.local]):
        made.do("compute_at", name, parts.name, count)
    with suppress(InputError):  # there is no mask, or it excludes nothing
        made.do("skip", parts.first, len(made.program.buffer(parts.first).shape) - 2)
    stage = made.program.stage(parts.first)
    own = stage.axes[stage.at[1] :] if stage.at is not None else ()
    if len(own) != 2:
        raise InputError(f"stage {parts.first} has other axes than its rows and columns")
    made.do("tensorize", parts.first, _first_tile(parts, point, own[0].symbol.name))
    require_within(parts.program, made.program)
    return made.steps


def _second_tile(parts: ChainParts, point: SchedulePoint) -> Steps:
    """Return the tile of the second contraction, with the most rows up to the given ones that divide a task's."""
    (block, _), (vectors, rows) = point["queries"], point["columns"]
    across = parts.sizes.across
    axis, rows = (parts.column, rows) if across else (parts.query, _dividing(min(rows, block), block))
    return [
        ["rows", [[axis, rows]]],
        ["vectors", block // parts.sizes.lanes if across else vectors],
        ["tasks", [[parts.query, 1 if across else block], *[[n, 1] for n in parts.others]]],
        ["block", point["keys"]],
        *_common(parts, point),
    ]


def _first_tile(parts: ChainParts, point: SchedulePoint, row: str) -> Steps:
    """Return the tile of the first contraction over an axis of rows."""
    block, rows = point["queries"]
    return [["rows", [[row, rows]]], ["vectors", block // parts.sizes.lanes], *_common(parts, point)]


def _common(parts: ChainParts, point: SchedulePoint) -> Steps:
    return [["intrinsic", _INTRINSICS[parts.dtype]], ["unroll", point["unroll"]], ["pack_b", "none"]]


def _total(stage: Stage) -> Expr | None:
    """Return the chain's outer sum of products, around which other reductions over its rows may stand."""
    sums = [e for e in outermost(stage.value) if e.args[0] == "sum" and e.args[2].kind == "op"]
    sums = [e for e in sums if e.args[2].args[0] == "mul" and e.height > 1 and _inner(e) is not None]
    most = max((len(e.symbols) for e in sums), default=0)
    widest = [e for e in sums if len(e.symbols) == most]
    return widest[0] if len(widest) == 1 else None


def _inner(total: Expr) -> Expr | None:
    """Return the contraction inside of a sum: a sum over products that depends on the outer sum's iterator."""
    for e in subexpressions(total.args[2]):
        if e.kind == "reduce" and e.args[0] == "sum" and e.height == 1 and e.args[2].kind == "op":
            _, its, body = e.args
            both = body.args[0] == "mul" and all(x.symbols & set(its) for x in body.operands)
            if both and sum(not x.symbols.isdisjoint(total.args[1]) for x in body.operands) == 1:
                return e
    return None


class _Steps:
    """A program and the steps taken so far."""

    def __init__(self, program: LoopProgram, steps: Steps) -> None:
        self.program, self.steps = program, steps

    def do(self, *step: Any) -> None:
        """Take a step."""
        self.program = apply(self.program, [list(step)])
        self.steps.append(list(step))


class _Chain(_Steps):
    """The state of a chain while it is taken apart.

    Attributes:
        local: stages that a task computes into local memory.
        apart: operands that are computed as a whole before the tasks run.
    """

    def __init__(self, program: LoopProgram, name: str, cpu: Cpu) -> None:
        super().__init__(program, [])
        self.name, self.cpu = name, cpu
        self.taken = {b.name for b in program.buffers}
        self.local: list[str] = []

    def parted(self) -> ChainParts | None:
        """Put all parts in stages of their own, with rows last in every buffer of a task.

        Raises:
            InputError: a step does not fit.
        """
        with suppress(InputError):  # nothing is computed in 16-bit floats
            self.do("widen", self.name)
        with suppress(InputError):  # there are no masks
            self.do("choose", self.name)
        self._split()
        first = self._apart()
        stage = self.program.stage(self.name)
        axes = [a.symbol for a in stage.axes if a.extent > 1]
        contraction = find(replace(stage, axes=tuple([a for a in stage.axes if a.extent > 1])))
        if (
            contraction is None
            or len(contraction.depth) != 1
            or contraction.a.kind != "load"
            or contraction.b.kind != "load"
        ):
            return None
        made, other = (
            (contraction.a, contraction.b) if contraction.a.args[0] in self.local else (contraction.b, contraction.a)
        )
        queries = [s for s in axes if s in made.symbols and s not in other.symbols]
        columns = [s for s in axes if s in other.symbols and s not in made.symbols]
        across = axes[-1] in queries
        if made.args[0] not in self.local or not queries or len(columns) != 1 or contraction.a.dtype not in _INTRINSICS:
            return None
        query = axes[-1] if across else max(reversed(queries), key=extent)
        if extent(query) < _LEAST_ROWS or self._frozen(other, first):
            return None
        outer = [a.symbol for a in stage.axes if a.symbol in (*queries, *contraction.batch)]
        self._rows_last(outer, query)
        self._operands(first)
        lanes = self.cpu.lanes(contraction.a.dtype)
        batch = prod([extent(s) for s in outer if s is not query])
        held = [self.program.buffer(n) for n in self.local]
        a_row = sum(ITEMSIZE_BYTES[b.dtype] * prod(b.shape) for b in held) // (batch * extent(query))
        keys = extent(contraction.depth[0]) if self.program.buffer(self.name).dtype == contraction.a.dtype else 0
        sizes = ChainSizes(lanes, extent(query), batch, extent(columns[0]), keys, a_row, across)
        others = tuple([s.name for s in queries if s is not query])
        return ChainParts(
            self.program, self.steps, self.name, first, local=tuple(self.local), query=query.name, others=others,
            column=columns[0].name, sizes=sizes, dtype=contraction.a.dtype,
        )  # fmt: skip

    def _frozen(self, other: Expr, first: str) -> bool:
        """Whether an operand comes from frozen buffers; it is then better packed ahead of time."""
        scopes = {b.name: b.scope for b in self.program.buffers}
        sources = [other, self.program.stage(first).value]
        if other.args[0] not in scopes or scopes[other.args[0]] == "scratch":
            sources.append(self.program.stage(other.args[0]).value)
        return any(scopes[e.args[0]] == "frozen" for x in sources for e in _factors(x))

    def _stage(self) -> Stage:
        return self.program.stage(self.name)

    def _whole(self) -> Expr:
        """Return the second sum in its current form."""
        sums = [e for e in outermost(self._stage().value) if e.args[0] == "sum"]
        return max(sums, key=lambda e: len(e.symbols))

    def _name(self, stem: str) -> str:
        while stem in self.taken:
            stem += "_"
        self.taken.add(stem)
        return stem

    def _split(self) -> None:
        """Split axes that the sum reads through a division (heads that are merged again) into axes of their own."""
        for axis in self._stage().axes:
            indices = [i for e in subexpressions(self._stage().value) for i in e.indices]
            inner = [h[1] for x in indices if (h := divisor(x, frozenset([axis.symbol]))) is not None]
            if inner:
                self.do("split", self.name, axis.symbol.name, [min(inner)])

    # ---- stages

    def _apart(self) -> str:
        """Put every contraction and reduction in a stage of its own; return the name of the first contraction."""
        total = _total(self._stage())
        inner = None if total is None else _inner(total)
        if total is None or inner is None:
            raise InputError(f"stage {self.name} is no chain")
        first = self._share(_around(total, inner))
        while (step := self._next()) is not None:
            if len(self.local) > _MOST_PARTS:
                raise InputError(f"stage {self.name} is a chain of too many parts")
            self._share(step)
        with suppress(InputError):  # no factor stands for all terms of the sum
            self.do("factor_out", self.name, reductions(self._stage()).index(self._whole()))
        long = [a.symbol for a in self._stage().axes if a.extent > 1]
        if not long:
            raise InputError(f"stage {self.name} has one element")
        lane = long[-1]
        for x in dict.fromkeys(self._whole().args[2].operands):  # both factors of a square at once
            if x.symbols.isdisjoint(self._whole().args[1]):
                continue
            if x.kind == "load" and (lane not in x.symbols or x.args[0] in self.local or self._beside(x, lane)):
                continue
            if any(e.args[0] in self.local for e in _factors(x)):
                self._share(x)
            else:
                name = self._name(f"{self.name}_v")
                self.do("materialize", self.name, parts(self._stage()).index(x), name)
                self._along(self.name, name, lane)
        return first

    def _beside(self, e: Expr, lane: Symbol) -> bool:
        """Whether elements along the lane are adjacent in memory."""
        return coefficient(row_major(e.args[1], self.program.buffer(e.args[0]).shape), lane) == 1

    def _next(self) -> Expr | None:
        """Return the next part to take out: the innermost reduction, or first its body where it is needed again."""
        total = self._whole()
        inner = [e for e in reductions(self._stage()) if e.height == 1 and e is not total]
        if not inner:
            return None
        target = inner[-1]
        body = target.args[2]
        return body if body.kind != "load" and self._again(body, target) else target

    def _again(self, body: Expr, target: Expr) -> bool:
        """Whether the body of a reduction occurs elsewhere in the stage too, under the same iterator or another."""
        others = [subexpressions(e) for e in reductions(self._stage()) if e is not target]
        if any(body in inside and target not in inside for inside in others):
            return True
        place = parts(self._stage()).index(body)
        name = "again"
        while name in self.taken:
            name += "_"
        after = apply(self.program, [["share", self.name, place, name]])
        return sum(e.args[0] == name for e in loads(after.stage(self.name))) > 1

    def _share(self, e: Expr) -> str:
        name = self._name(f"{self.name}_{len(self.local)}")
        self.do("share", self.name, parts(self._stage()).index(e), name)
        self.local.append(name)
        return name

    # ---- layouts

    def _rows_last(self, outer: list[Symbol], query: Symbol) -> None:
        """Make rows the last, contiguous axis of every buffer of the task, whose first axes are the stage's."""
        at = outer.index(query)
        for name in self.local:
            shape = self.program.buffer(name).shape
            if at >= len(shape) or shape[at] != extent(query):
                raise InputError(f"{name} does not have the rows of {self.name} as an axis")
            self._last(name, at)

    def _last(self, name: str, at: int) -> None:
        rank = len(self.program.buffer(name).shape)
        if at != rank - 1:
            order = [*[d for d in range(rank) if d != at], at]
            self.do("transform_layout", name, [["permute", order]], "new")

    def _along(self, reader: str, name: str, lane: Symbol) -> None:
        """Make the axis of a buffer that a reader's lane indexes its last, contiguous one."""
        index = next(e for e in loads(self.program.stage(reader)) if e.args[0] == name).args[1]
        at = [d for d, i in enumerate(index) if not isinstance(i, int) and lane in i.symbols]
        if at:
            self._last(name, at[0])

    def _operands(self, first: str) -> None:
        """Copy the factor along the rows into the task, transposed; leave the other factor in memory."""
        lane = self.program.stage(first).axes[-1].symbol
        (total,) = outermost(self.program.stage(first).value)
        for x in total.args[2].operands:
            stage = self.program.stage(first)
            if lane in x.symbols:
                name = self._name(f"{first}_b")
                self.do("materialize", first, parts(stage).index(x), name)
                self._along(first, name, lane)
                self.local.insert(0, name)
            elif x.kind != "load":
                self.do("materialize", first, parts(stage).index(x), self._name(f"{first}_a"))


def _factors(e: Expr) -> list[Expr]:
    """Return the loads of a factor, or of the factors of the sum in a value."""
    sums = list(outermost(e))
    return [x for y in (sums or [e]) for x in subexpressions(y) if x.kind == "load"]


def _around(total: Expr, inner: Expr) -> Expr:
    """Return the largest expression around the inner contraction with the same iterators and no other reduction."""
    best, size = inner, 0
    for e in subexpressions(total.args[2]):
        if e.height == 1 and e.kind != "reduce" and e.symbols == inner.symbols and e.dtype == inner.dtype:
            inside = subexpressions(e)
            if inner in inside and [x for x in inside if x.kind == "reduce"] == [inner] and len(inside) > size:
                best, size = e, len(inside)
    return best


_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)  # of a tile that a search tries, where the registers hold them
_LOCAL = 0.75  # share of a cache that the buffers of a task may take


@dataclass(frozen=True, slots=True)
class ChainSizes:
    """Sizes of a chain on which its schedule decisions depend.

    Attributes:
        lanes: lanes of a vector.
        rows: rows of the chain, in all tasks of one batch element.
        batch: number of batch elements; a task never spans two.
        columns: columns of the second contraction.
        keys: steps of the second contraction's sum; 0 where partial sums cannot wait in the result.
        bytes_a_row: bytes a row takes in all buffers of a task.
        across: whether the lanes of the second tile run along the rows.
    """

    lanes: int
    rows: int
    batch: int
    columns: int
    keys: int
    bytes_a_row: int
    across: bool


def _start(sizes: ChainSizes, cpu: Cpu, threads: int) -> SchedulePoint | None:
    """Return the point with the largest block of rows whose buffers fit the cache and that leaves enough tasks.

    The result is None where no block fits.  The smallest block may take a thread's share of the last-level cache.  Long
    rows are read there three times for thousands of multiply-adds an element, which costs less than a second pass over
    the keys would.
    """
    best: SchedulePoint | None = None
    for count in (4, 2, 1):
        block = count * sizes.lanes
        tasks = sizes.batch * -(-sizes.rows // block)
        if not _fits(sizes, block, cpu, threads) or (count > 1 and block >= 2 * sizes.rows):
            continue
        if best is None or _short(tasks, threads):
            best = _point(sizes, cpu, block)
        if not _short(tasks, threads):
            break
    return best


def _point(sizes: ChainSizes, cpu: Cpu, block: int) -> SchedulePoint:
    """Return the point with this block of rows and the largest tiles that the registers hold."""
    along = block // sizes.lanes
    vectors = 1 if sizes.across else min(4, -(-sizes.columns // sizes.lanes))
    whole = sizes.columns if sizes.across else block
    second = _dividing(_most(cpu, along if sizes.across else vectors, whole), whole)
    return {"queries": (block, _most(cpu, along, block)), "columns": (vectors, second), "keys": 0, "unroll": 4}


def _options(sizes: ChainSizes, cpu: Cpu, threads: int) -> dict[str, tuple[Any, ...]]:
    """Return the options of all decisions.

    queries: rows of a task, whole vectors, and rows of the first register tile. columns: vectors and rows of the
    second one. keys: steps of the second sum after which its tile goes on to other rows and comes back; 0: all at
    once. unroll: unroll factor of the sums.
    """
    blocks = [n * sizes.lanes for n in (1, 2, 3, 4, 6, 8)]
    blocks = [b for b in blocks if _fits(sizes, b, cpu, threads) and (b == sizes.lanes or b < 2 * sizes.rows)]
    wide = min(4, -(-sizes.columns // sizes.lanes))
    return {
        "queries": tuple([(b, n) for b in blocks for n in _ROWS if _held(cpu, n, b // sizes.lanes)]),
        "columns": tuple([
            (v, n) for v in range(1, 2 if sizes.across else wide + 1) for n in _ROWS if _held(cpu, n, v)
        ]),
        "keys": (0, *[n for n in (64, 128, 256, 512) if n < sizes.keys and not sizes.across]),
        "unroll": (1, 2, 4, 8),
    }  # fmt: skip


def _held(cpu: Cpu, rows: int, vectors: int) -> bool:
    """Whether the registers hold a tile of this many rows and vectors."""
    return rows * vectors + vectors + 1 <= cpu.registers


def _most(cpu: Cpu, vectors: int, extent: int) -> int:
    """Return the most rows of a tile that the registers hold."""
    return max(1, min((cpu.registers - 2 - vectors) // vectors, 12, extent))


def _dividing(rows: int, extent: int) -> int:
    return max(n for n in range(1, rows + 1) if extent % n == 0)


def _fits(sizes: ChainSizes, block: int, cpu: Cpu, threads: int) -> bool:
    cache = cpu.l2 if block > sizes.lanes else max(cpu.l2, cpu.l3 // max(1, threads))
    return sizes.bytes_a_row * block <= _LOCAL * cache


def _short(tasks: int, threads: int) -> bool:
    """Whether there are too few tasks to keep all threads busy to the end."""
    return threads > 1 and tasks < 4 * threads
