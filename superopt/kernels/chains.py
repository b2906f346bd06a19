"""Schedules of chained contractions: a sum over what rows of another contraction are mapped to, in one kernel.

    out[q,d] = sum_j f(s[q,:])[j] v[j,d],   s[q,j] = sum_c a[q,c] b[j,c]        attention, where f is a softmax

A task takes a block of rows q and keeps what it makes of them in local memory: the first contraction as a register tile
with lanes along q, so that the reductions and maps of a row are over vectors of rows and need no work across lanes,
then the second one as a register tile over what was made.  The first result never lies in memory as a whole.  The
schedule is found from the shape of the expressions, whatever stands between the two contractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from superopt.errors import InputError
from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import Symbol
from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels.contract import Contraction, analyse, extent, find, outermost
from superopt.kernels.cpu import Cpu
from superopt.kernels.program import loads
from superopt.kernels.schedule.edit import parts, reductions
from superopt.kernels.schedule.trace import apply
from superopt.kernels.simplify import divisor
from superopt.kernels.stage import LoopProgram, Stage

_LOCAL = 0.75  # of a cache that the buffers of a task may take
_LEAST_ROWS = 8
_MOST_PARTS = 12  # stages that a chain is taken apart into
Steps = list[list[Any]]


@dataclass(frozen=True, slots=True)
class ChainDecisions:
    """How a chain runs.

    Attributes:
        block: rows of a task, whole vectors.
        first: rows of the tile of the first contraction.
        second: rows of the tile of the second one.
        vectors: vectors along the columns of the second tile.
    """

    block: int
    first: int
    second: int
    vectors: int


def chain(
    program: LoopProgram, name: str, cpu: Cpu, threads: int = 1, decisions: ChainDecisions | None = None
) -> tuple[LoopProgram, Steps] | None:
    """The program with the schedule of a chain, and its steps; None where the stage is no chain that fits the cache.

    Args:
        program: as `from_graph` makes it.
        name: a stage of it.
        cpu: what it runs on.
        threads: that a call may use.
        decisions: how it runs; chosen by sizes when None.
    """
    stage = program.stage(name)
    if (
        not cpu.vector_bits
        or not is_chain(stage)
        or stage.at is not None
        or any(a.kind != "serial" for a in stage.axes)
    ):
        return None
    try:
        return _Chain(program, name, cpu, threads, decisions).built()
    except InputError:
        return None


def is_chain(stage: Stage) -> bool:
    """Is the value a sum whose product depends on another sum of products over the same iterator?"""
    sums = list(outermost(stage.value))
    return len(sums) == 1 and sums[0].args[0] == "sum" and sums[0].height > 1 and _inner(sums[0]) is not None


def choices(program: LoopProgram, name: str, cpu: Cpu) -> Iterator[ChainDecisions]:
    """Decisions worth trying for a chain."""
    lanes = cpu.lanes("float32")
    width = extent(program.stage(name).axes[-1].symbol)
    for block in (4 * lanes, 2 * lanes, 3 * lanes, lanes):
        for vectors in {min(v, -(-width // lanes)) for v in (2, 4)}:
            yield ChainDecisions(
                block, _most(cpu, block // lanes, block), _dividing(_most(cpu, vectors, block), block), vectors
            )


def _inner(total: Expr) -> Expr | None:
    """The contraction inside of a sum: over products, for each value of the sum's iterator."""
    for e in subexpressions(total.args[2]):
        if e.kind == "reduce" and e.args[0] == "sum" and e.height == 1 and e.symbols & set(total.args[1]):
            body = e.args[2]
            if body.kind == "op" and body.args[0] == "mul" and all(x.symbols & set(e.args[1]) for x in body.operands):
                return e
    return None


def _most(cpu: Cpu, vectors: int, block: int) -> int:
    """Rows of a tile that registers hold."""
    return max(1, min((cpu.registers - 2 - vectors) // vectors, 12, block))


def _dividing(rows: int, block: int) -> int:
    return max(n for n in range(1, rows + 1) if block % n == 0)


class _Chain:
    """A schedule being made.

    Attributes:
        steps: taken so far.
        local: stages that a task computes.
    """

    def __init__(
        self, program: LoopProgram, name: str, cpu: Cpu, threads: int, decisions: ChainDecisions | None
    ) -> None:
        self.program, self.name, self.cpu, self.threads, self.decisions = program, name, cpu, threads, decisions
        self.steps: Steps = []
        self.taken = {b.name for b in program.buffers}
        self.local: list[str] = []

    def built(self) -> tuple[LoopProgram, Steps] | None:
        """The program and the steps that lead to it.

        Raises:
            InputError: a step does not fit.
        """
        self._guards()
        self._split()
        first = self._apart()
        found = self._found()
        if found is None or len(found.rows) != 1 or len(found.depth) != 1 or len(found.columns) != 1:
            return None
        if extent(found.rows[0]) < _LEAST_ROWS or found.a.dtype != "float32":
            return None
        scopes = {b.name: b.scope for b in self.program.buffers}
        if any(scopes[e.args[0]] == "frozen" for x in (found.b, self.program.stage(first).value) for e in _factors(x)):
            return None  # what does not change is better packed ahead of time
        rows = found.rows[0]
        self._rows_last(rows)
        self._operands(first)
        chosen = self.decisions or self._chosen(rows, extent(found.columns[0]))
        if chosen is None:
            return None
        self._tile(chosen)
        self._place()
        with suppress(InputError):  # there is no mask, or it excludes nothing
            self._do("skip", first, len(self.program.buffer(first).shape) - 2)
        lanes = self.cpu.lanes("float32")
        stage = self.program.stage(first)
        own = stage.axes[stage.at[1] :] if stage.at is not None else ()
        if len(own) != 2:
            return None
        tile = [["rows", [[own[0].symbol.name, chosen.first]]], ["vectors", chosen.block // lanes], ["pack_b", "none"]]
        self._do("tensorize", first, tile)
        return self.program, self.steps

    def _stage(self) -> Stage:
        return self.program.stage(self.name)

    def _found(self) -> Contraction | None:
        stage = self._stage()
        return find(replace(stage, axes=tuple([a for a in stage.axes if a.extent > 1])))

    def _do(self, *step: Any) -> None:
        self.program = apply(self.program, [list(step)])
        self.steps.append(list(step))

    def _name(self, stem: str) -> str:
        while stem in self.taken:
            stem += "_"
        self.taken.add(stem)
        return stem

    def _guards(self) -> None:
        with suppress(InputError):  # there are none
            self._do("choose", self.name)

    def _split(self) -> None:
        """Axes that the sum sees through a division (heads that are merged again) as axes of their own."""
        for axis in self._stage().axes:
            (total,) = outermost(self._stage().value)
            found = [i for e in subexpressions(total) for i in e.indices]
            inner = [h[1] for x in found if (h := divisor(x, frozenset([axis.symbol]))) is not None]
            if inner:
                self._do("split", self.name, axis.symbol.name, [min(inner)])

    # ---- stages

    def _apart(self) -> str:
        """Every contraction and reduction in a stage of its own; gives the name of the first contraction."""
        (total,) = outermost(self._stage().value)
        inner = _inner(total)
        assert inner is not None
        first = self._share(_whole(total, inner))
        while (step := self._next()) is not None:
            if len(self.local) > _MOST_PARTS:
                raise InputError(f"stage {self.name} is a chain of too many parts")
            self._share(step)
        with suppress(InputError):  # no factor stands for all terms of the sum
            self._do("factor_out", self.name, 0)
        (total,) = outermost(self._stage().value)
        its = frozenset(total.args[1])
        for x in list(total.args[2].operands):
            if x.kind != "load" and x.symbols & its:
                self._share(x)
        return first

    def _next(self) -> Expr | None:
        """What is taken out next: the innermost reduction, or first its body where that is needed again."""
        inner = [e for e in reductions(self._stage()) if e.height == 1]
        (total,) = outermost(self._stage().value)
        inner = [e for e in inner if e is not total]
        if not inner:
            return None
        target = min(inner, key=lambda e: e.uid)
        body = target.args[2]
        return body if body.kind != "load" and self._again(body) else target

    def _again(self, body: Expr) -> bool:
        """Does the same value stand in the stage under another iterator too?"""
        place = parts(self._stage()).index(body)
        after = apply(self.program, [["share", self.name, place, self._free("again")]])
        return sum(e.args[0] not in self.taken for e in loads(after.stage(self.name))) > 1

    def _free(self, stem: str) -> str:
        while stem in self.taken:
            stem += "_"
        return stem

    def _share(self, e: Expr) -> str:
        name = self._name(f"{self.name}_{len(self.local)}")
        self._do("share", self.name, parts(self._stage()).index(e), name)
        self.local.append(name)
        return name

    # ---- layouts

    def _rows_last(self, rows: Symbol) -> None:
        """Rows next to each other in every buffer of the task, whose axes begin with those of the stage."""
        axes = [a.symbol for a in self._stage().axes if a.symbol in self._outer()]
        at = axes.index(rows)
        for name in self.local:
            shape = self.program.buffer(name).shape
            if at >= len(shape) or shape[at] != extent(rows):
                raise InputError(f"{name} does not have the rows of {self.name} as an axis")
            self._last(name, at)

    def _outer(self) -> set[Symbol]:
        found = self._found()
        assert found is not None
        return {*found.batch, *found.rows}

    def _last(self, name: str, at: int) -> None:
        rank = len(self.program.buffer(name).shape)
        if at != rank - 1:
            order = [*[d for d in range(rank) if d != at], at]
            self._do("transform_layout", name, [["permute", order]], "new")

    def _operands(self, first: str) -> None:
        """The factor along the rows as a copy in the task, transposed; the other one in memory."""
        stage = self.program.stage(first)
        lane = stage.axes[-1].symbol
        (total,) = outermost(stage.value)
        for x in total.args[2].operands:
            stage = self.program.stage(first)
            (total,) = outermost(stage.value)
            if lane in x.symbols:
                name = self._name(f"{first}_b")
                self._do("materialize", first, parts(stage).index(x), name)
                index = next(e for e in loads(self.program.stage(first)) if e.args[0] == name).args[1]
                at = next(d for d, i in enumerate(index) if not isinstance(i, int) and lane in i.symbols)
                self._last(name, at)
                self.local.insert(0, name)
            elif x.kind != "load":
                self._do("materialize", first, parts(stage).index(x), self._name(f"{first}_a"))

    # ---- tiles

    def _chosen(self, rows: Symbol, columns: int) -> ChainDecisions | None:
        """The largest block of rows whose buffers fit the cache and that leaves enough tasks.

        The smallest one may take a thread's share of the last level: long rows are read there three times for
        thousands of multiply-adds an element, which costs less than a second pass over the keys would.
        """
        lanes = self.cpu.lanes("float32")
        total = extent(rows)
        vectors = min(4, -(-columns // lanes))
        batch = prod(n for n in self.program.buffer(self.name).shape[:-1]) // total
        best: ChainDecisions | None = None
        for count in (4, 2, 1):
            block = count * lanes
            made = ChainDecisions(
                block, _most(self.cpu, count, block), _dividing(_most(self.cpu, vectors, block), block), vectors
            )
            tasks = batch * -(-total // block)
            cache = self.cpu.l2 if count > 1 else max(self.cpu.l2, self.cpu.l3 // max(1, self.threads))
            if self._bytes(block, total) > _LOCAL * cache or (count > 1 and block >= 2 * total):
                continue
            if best is None or _short(tasks, self.threads):
                best = made
            if not _short(tasks, self.threads):
                break
        return best

    def _bytes(self, block: int, total: int) -> int:
        """Of the buffers of one task."""
        found = 0
        for name in self.local:
            buffer = self.program.buffer(name)
            batch = self._batch()
            found += ITEMSIZE_BYTES[buffer.dtype] * prod(buffer.shape) // (batch * total) * block
        return found

    def _batch(self) -> int:
        found = self._found()
        assert found is not None
        return prod(extent(s) for s in found.batch)

    def _tile(self, chosen: ChainDecisions) -> None:
        found = analyse(self.program, self._stage())
        if found is None or len(found.rows) != 1 or found.b.kind != "load":
            raise InputError(f"stage {self.name} is no contraction of rows that lie in memory")
        q = found.rows[0].name
        decisions: Sequence[Any] = [
            ["rows", [[q, chosen.second]]],
            ["vectors", chosen.vectors],
            ["pack_b", "none"],
            ["tasks", [[q, chosen.block]]],
        ]  # fmt: skip
        self._do("tensorize", self.name, decisions)

    def _place(self) -> None:
        """What a task needs, computed in it."""
        count = sum(a.kind == "parallel" for a in self._stage().axes)
        order = [s.buffer for s in self.program.stages if s.buffer in self.local]
        for name in reversed(order):
            self._do("compute_at", name, self.name, count)


def _short(tasks: int, threads: int) -> bool:
    """Are tasks too few to keep all threads busy to the end?"""
    return threads > 1 and tasks < 4 * threads


def _factors(e: Expr) -> list[Expr]:
    """The loads of a factor, or of the factors of the sum in a value."""
    sums = list(outermost(e))
    return [x for y in (sums or [e]) for x in subexpressions(y) if x.kind == "load"]


def _whole(total: Expr, inner: Expr) -> Expr:
    """The largest part around the inner contraction that depends on the same iterators and on no other reduction."""
    best, size = inner, 0
    for e in subexpressions(total.args[2]):
        if e.height == 1 and e.kind != "reduce" and e.symbols == inner.symbols and e.dtype == inner.dtype:
            inside = subexpressions(e)
            if inner in inside and [x for x in inside if x.kind == "reduce"] == [inner] and len(inside) > size:
                best, size = e, len(inside)
    return best
