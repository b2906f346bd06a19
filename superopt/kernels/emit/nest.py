"""Emits a planned stage: its loops from outer to inner, pieces of iterators, phases of rows, stores.

Before each loop the reductions that can be written are written (the phases of a row).  The iterator is then cut into
pieces in which guards are known, and each piece is a loop.  Guards that remain at the innermost level mask loads and
stores.  Stages placed under this one are written where their axes are bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from superopt.ir.expr import Expr, const, subexpressions
from superopt.ir.index import Guard, Truth, sides_of, symbols_of
from superopt.ir.ops.record import identity
from superopt.kernels.emit import index as emit_index
from superopt.kernels.emit import memory as emit_memory
from superopt.kernels.emit import registers, rowcache
from superopt.kernels.emit.lower import CarriedPrefixes, prefixes
from superopt.kernels.emit.plan import Nest, PlannedLoop, plan
from superopt.kernels.emit.reduce import Running
from superopt.kernels.emit.registers import HeldValue, loaded, size_of, stored
from superopt.kernels.emit.values import Emitter
from superopt.kernels.llvm.module import Value
from superopt.kernels.loops import simplify
from superopt.kernels.loops.stage import LoopProgram, Stage

MOST_COPIES = 48  # pieces of one nest; of one that reduces nothing as many as a concatenation may have parts


@dataclass(frozen=True, slots=True)
class Placed:
    """A stage placed under the first `under` axes of another.

    Attributes:
        stage: the stage; its own loops are the remaining axes.
        under: number of axes it shares.
        inner: the stages placed in it.
        tile: function that writes it where it is tensorized.
    """

    stage: Stage
    under: int
    inner: tuple[Placed, ...]
    tile: Callable[[Emitter], None] | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """The part of a stage that is still to be written, inside the loops around.

    Attributes:
        value: its value, decided as far as ranges are known.
        guard: condition under which iterations exist.
        pieces: product of the pieces of the loops around.
        started: whether the elements that the loops accumulate into hold the identity.
    """

    value: Expr
    guard: Truth
    pieces: int = 1
    started: bool = True


class Writer:
    """Writes one planned stage."""

    def __init__(self, nest: Nest, program: LoopProgram, placed: Sequence[Placed] = (), starts: bool = False) -> None:
        self.nest, self.program = nest, program
        self.placed = [(self._position(p), p) for p in placed]
        self.store = self._store if nest.stage.combine is None or starts else self._accumulate
        self.rest = Rest(nest.value, nest.guard, started=nest.stage.combine is None or starts)

    def write(self, em: Emitter, j: int = 0, rest: Rest | None = None) -> None:
        """Write the loops from number j on."""
        nest, rest = self.nest, rest or self.rest
        value, guard = simplify.decide(rest.value, em.scope.ranges), simplify.known(rest.guard, em.scope.ranges)
        if guard is False:
            return
        em = em.within(em.scope.under(*([(guard, True)] if isinstance(guard, Guard) else [])))
        waiting = em.scope.pending
        for position, p in self.placed:
            if position == j:
                self._place(em, p)
                waiting -= {p.stage.buffer}
                em = em.within(em.scope.awaiting(waiting))
        waiting |= {p.stage.buffer for position, p in self.placed if position > j}
        em = em.within(em.scope.awaiting(waiting))
        rest = replace(rest, value=value, guard=guard)
        if j == len(nest.loops):
            self._points(em, rest)
            return
        loop, in_output = nest.loops[j], False
        if loop.how == "lane" and j == len(nest.loops) - 1:
            em, rest, in_output = self._row(em, rest, loop)
        em.prepare(rest.value)
        if not rest.started and loop.it not in symbols_of(nest.at):
            self._start(em, j, guard)
            rest = replace(rest, started=True)
        self._loop(em, j, rest, repeatable=not in_output and nest.stage.combine is None)

    def _position(self, p: Placed) -> int:
        """Return the number of loops around a placed stage."""
        under = {a.symbol for a in self.nest.stage.axes[: p.under]}
        inside = [j + 1 for j, loop in enumerate(self.nest.loops) if loop.it in under]
        return max([len(self.nest.tasks), *inside])

    def _place(self, em: Emitter, p: Placed) -> None:
        """Write a stage placed here, over its own loops."""
        if p.tile is not None:
            p.tile(em)
        else:
            nest = plan(self.program, p.stage, em.scope.cpu, em.scope.licence, p.under)
            inner = em.within(replace(em.scope, knobs=nest.knobs))
            Writer(nest, self.program, p.inner).write(inner)
        em.floor[p.stage.buffer] = em.top
        em.fresh()

    def _row(self, em: Emitter, rest: Rest, loop: PlannedLoop) -> tuple[Emitter, Rest, bool]:
        """Write the values of a row that are worth keeping into buffers, from which its last phase reads them.

        Returns:
            The place with these buffers, the last phase, and whether the row of the output is one of them.
        """
        value = rest.value
        if em.scope.licence.reciprocal:
            sums = frozenset([r for r in subexpressions(value) if r.kind == "reduce"])
            value = simplify.reciprocals(value, loop.it, sums)
        row = rowcache.CachedRow(loop.it, self.nest.stage.buffer, self.nest.at)
        em, value, producers, in_output = rowcache.kept(em, value, row)
        for r in producers:
            em.prepare(r.args[2])
            for _, name, _ in em.scope.rows[r]:
                em.floor[name] = em.top
            em.value(r)
            em.fresh()
        return em, replace(rest, value=value), in_output

    # ---- loops

    def cuts(self, em: Emitter, loop: PlannedLoop, rest: Rest) -> list[tuple[int, int]]:
        """Return the pieces of a loop in which guards are known."""
        sides = sides_of(rest.guard)
        if em.scope.knobs.cut:
            sides += simplify.guards_in([rest.value])
        borders = simplify.cuts(loop.it, 0, loop.extent, sides, em.scope.ranges)
        reduces = any(e.kind == "reduce" for e in subexpressions(rest.value))
        if rest.pieces * len(borders) > (MOST_COPIES if reduces else simplify.MOST_PARTS):
            return [(0, loop.extent)]
        return borders

    def _loop(self, em: Emitter, j: int, rest: Rest, repeatable: bool) -> None:
        loop = self.nest.loops[j]
        pieces = self.cuts(em, loop, rest)
        steady = loop.how in ("serial", "lane") and not em.scope.awaits(rest.value)  # a prefix over a filled buffer
        lanes = self.nest.lanes if loop.how == "lane" else 0
        carried = prefixes(rest.value, loop.it, em.scope, lanes) if steady else None
        rest = replace(rest, pieces=rest.pieces * len(pieces))
        if carried is not None:
            self._running(em, j, rest, pieces, carried)
        else:
            for low, high in pieces:
                if loop.how == "lane":
                    self._lanes(em, j, rest, (low, high), repeatable)
                else:
                    self._steps(em, j, rest, low, high)
        em.fresh()

    def _steps(self, em: Emitter, j: int, rest: Rest, low: int, high: int) -> None:
        """Write serial iterations, or blocks of points and a last block of fewer."""
        loop = self.nest.loops[j]
        step = loop.width if loop.how == "points" else 1
        whole = low + (high - low) // step * step

        def body(v: Value, count: int) -> None:
            inner = em.deeper().bind(loop.it, v, low, high)
            if loop.how == "points":
                inner = inner.within(inner.scope.spread_over(loop.it, range(count)))
            self.write(inner, j + 1, rest)

        em.f.for_(low, whole, step, lambda v, _: body(v, step))
        if whole < high:
            body(whole, high - whole)

    def _lanes(self, em: Emitter, j: int, rest: Rest, ends: tuple[int, int], repeatable: bool) -> None:
        """Write the lane loop: several vectors at a time, then single ones, then a partial one."""
        loop, n, (low, high) = self.nest.loops[j], self.nest.lanes, ends
        step = n * loop.width
        whole = low + (high - low) // step * step

        def body(v: Value, vectors: int, tail: int | None) -> None:
            inner = em.deeper().bind(loop.it, v, low, high)
            scope = inner.scope.along(loop.it, n, tail).spread_over(loop.it, [n * k for k in range(vectors)])
            self.write(inner.within(scope), j + 1, rest)

        em.f.for_(low, whole, step, lambda v, _: body(v, loop.width, None))
        for v in range(whole, high - n + 1, n):
            body(v, 1, None)
        left = (high - low) % n
        if left and high - low >= n and repeatable:
            body(high - n, 1, None)  # the same values are stored twice
        elif left:
            body(high - left, 1, left)

    def _running(
        self, em: Emitter, j: int, rest: Rest, pieces: Sequence[tuple[int, int]], scans: CarriedPrefixes
    ) -> None:
        """Write a serial loop that carries the accumulators of its prefixes."""
        loop, f, lane, sign = self.nest.loops[j], em.f, scans.along, scans.sign
        n = self.nest.lanes if lane else 1
        running = Running(scans)
        carried = running.start()
        types = [t for t, _ in carried]

        def body(v: Value, a: Sequence[Value], low: int, high: int, tail: int | None) -> list[Value]:
            inner = em.deeper().bind(loop.it, v, low, high)
            if lane:
                inner = inner.within(inner.scope.along(loop.it, n, tail))
            made = running.advance(inner, a)
            self.write(inner, j + 1, rest)
            return made

        for low, high in pieces if sign > 0 else list(reversed(pieces)):
            whole, left = low + (high - low) // n * n, (high - low) % n
            if sign < 0 and left:
                carried = list(zip(types, body(whole, [a for _, a in carried], low, high, left), strict=True))

            def forward(v: Value, a: Sequence[Value], low: int = low, high: int = high) -> list[Value]:
                return body(v, a, low, high, None)

            def backward(
                v: Value, a: Sequence[Value], low: int = low, high: int = high, whole: int = whole
            ) -> list[Value]:
                return body(f.sub(low + whole - n, v), a, low, high, None)

            made = f.for_(low, whole, n, forward if sign > 0 else backward, carried)
            carried = list(zip(types, made, strict=True))
            if sign > 0 and left:
                carried = list(zip(types, body(whole, [a for _, a in carried], low, high, left), strict=True))

    # ---- the innermost level

    def _points(self, em: Emitter, rest: Rest) -> None:
        em.prepare(rest.value)
        for p in range(em.scope.points):
            here = em.at(p)
            if isinstance(rest.guard, Guard):
                self._guarded(here, rest.value, rest.guard)
            else:
                self.store(here, rest.value, here.mask(False))

    def _guarded(self, em: Emitter, value: Expr, guard: Guard) -> None:
        """Write iterations that may not exist: a branch for conditions that all lanes share, a mask for the rest."""
        condition = emit_index.condition(em, guard)
        if condition.wide:
            self.store(em, value, em.mask(True))
            return

        def then() -> None:
            inner = em.deeper()
            self.store(inner, value, inner.mask(False))

        em.f.if_(condition.text, then)
        em.fresh()

    def _store(self, em: Emitter, value: Expr, mask: str | None) -> None:
        nest = self.nest
        emit_memory.store(em, nest.stage.buffer, value.dtype, nest.at, em.value(value), mask)

    # ---- stages that combine

    def _start(self, em: Emitter, j: int, guard: Truth) -> None:
        """Set every element that the loops below accumulate into to the identity."""
        nest = self.nest
        monoid, dtype = str(nest.stage.combine), em.scope.buffers[nest.stage.buffer].dtype
        loops = nest.loops[:j] + tuple([loop for loop in nest.loops[j:] if loop.it in symbols_of(nest.at)])
        known = {loop.it for loop in loops}
        kept = [p for p in sides_of(guard) if p.symbols <= known]
        zero = Rest(const(identity(monoid, dtype), dtype), Guard(kept) if kept else True)
        Writer(replace(nest, loops=loops), self.program, starts=True).write(em, j, zero)
        em.fresh()

    def _accumulate(self, em: Emitter, value: Expr, mask: str | None) -> None:
        nest, f = self.nest, em.f
        monoid, buffer = str(nest.stage.combine), em.scope.buffers[nest.stage.buffer]
        held = em.value(value)
        wide = em.scope.lane is not None and emit_index.varies(em, nest.at)
        lanes = em.scope.lanes if wide else 0
        if held.wide and not wide:
            raise em.refuse("an accumulation whose lanes fall on one element")
        before = self._before(em, buffer.dtype, lanes, mask)
        x = em.widened(held, buffer.dtype) if wide else held.text
        made = registers.combine(f, monoid, buffer.dtype, before, x, lanes)
        emit_memory.store(em, buffer.name, buffer.dtype, nest.at, HeldValue(made, wide, em.top), mask)

    def _before(self, em: Emitter, dtype: str, lanes: int, mask: str | None) -> str:
        f, at = em.f, self.nest.at
        address = emit_index.pointer(em, self.nest.stage.buffer, at, stored(dtype))
        if not lanes:
            return loaded(f, f.load(stored(dtype), address, size_of(dtype)), dtype, 0)
        if emit_index.affine(em, at) != 1:
            return loaded(f, emit_memory.gathered(em, self.nest.stage.buffer, at, dtype, mask), dtype, lanes)
        type_ = stored(dtype, lanes)
        raw = f.load(type_, address, size_of(dtype)) if mask is None else f.masked_load(type_, address, mask)
        return loaded(f, raw, dtype, lanes)
