"""Emits a planned stage: its loops from outer to inner, pieces of iterators, phases of rows, stores.

Before each loop the reductions that can be written are written (the phases of a row).  The iterator is then cut into
pieces in which guards are known, and each piece is a loop.  Guards that remain at the innermost level mask loads and
stores.  Stages placed under this one are written where their axes are bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from superopt.ir.expr import Expr, const, subexpressions
from superopt.ir.index import Guard, Size, Symbol, Truth, sides_of, symbols_of
from superopt.ir.ops.record import identity
from superopt.kernels.emit import index as emit_index
from superopt.kernels.emit import memory as emit_memory
from superopt.kernels.emit import registers, rowcache
from superopt.kernels.emit.plan import Loop, Nest, plan
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


class Writer:
    """Writes one planned stage into the function of an emitter."""

    def __init__(self, em: Emitter, nest: Nest, program: LoopProgram, placed: Sequence[Placed] = ()) -> None:
        self.em, self.nest, self.program = em, nest, program
        self.placed = [(self._position(p), p) for p in placed]
        self.pieces = 1  # product of the pieces of the loops around
        self.in_output = False  # is the row of the output a buffer of the row?
        self.started = nest.stage.combine is None
        self.store = self._store if nest.stage.combine is None else self._accumulate

    def write(self, j: int, value: Expr, guard: Truth) -> None:
        """Write the loops from number j on."""
        em, nest = self.em, self.nest
        value, guard = simplify.decide(value, em.ranges), simplify.known(guard, em.ranges)
        if guard is False:
            return
        keep, em.guards = em.guards, ((guard, True),) if isinstance(guard, Guard) else ()
        side, em.side = em.side, dict(em.side)
        started, pending = self.started, em.pending
        try:
            for position, p in self.placed:
                if position == j:
                    self._place(p)
                    em.pending -= {p.stage.buffer}
            em.pending |= {p.stage.buffer for position, p in self.placed if position > j}
            if j == len(nest.loops):
                self._points(value, guard)
                return
            loop = nest.loops[j]
            if loop.how == "lane" and j == len(nest.loops) - 1:
                value = self._row(value, loop)
            em.prepare(value)
            if not self.started and loop.it not in symbols_of(nest.at):
                self._start(j, guard)
            self._loop(j, loop, value, guard)
        finally:
            em.guards, em.side, self.started, em.pending = keep, side, started, pending

    def _position(self, p: Placed) -> int:
        """Return the number of loops around a placed stage."""
        under = {a.symbol for a in self.nest.stage.axes[: p.under]}
        inside = [j + 1 for j, loop in enumerate(self.nest.loops) if loop.it in under]
        return max([len(self.nest.tasks), *inside])

    def _place(self, p: Placed) -> None:
        """Write a stage placed here, over its own loops."""
        em = self.em
        if p.tile is not None:
            p.tile(em)
        else:
            nest = plan(self.program, p.stage, em.cpu, em.licence, p.under)
            knobs, em.knobs = em.knobs, nest.knobs
            Writer(em, nest, self.program, p.inner).write(0, nest.value, nest.guard)
            em.knobs = knobs
        em.floor[p.stage.buffer] = em.top
        em.fresh()

    def _row(self, value: Expr, loop: Loop) -> Expr:
        """Return the last phase of a row, with values worth caching read from buffers that the phases before fill."""
        em = self.em
        if em.licence.reciprocal:
            value = simplify.reciprocals(
                value, loop.it, frozenset(r for r in subexpressions(value) if r.kind == "reduce")
            )
        row = rowcache.CachedRow(loop.it, self.nest.stage.buffer, self.nest.at)
        value, producers, self.in_output = rowcache.kept(em, value, row)
        for r in producers:
            em.prepare(r.args[2])
            for _, name, _ in em.side[r]:
                em.floor[name] = em.top
            em.value(r)
            em.fresh()
        return value

    # ---- loops

    def _cuts(self, loop: Loop, value: Expr, guard: Truth, low: int, high: int) -> list[tuple[int, int]]:
        sides = sides_of(guard)
        if self.em.knobs.cut:
            sides += simplify.guards_in([value])
        found = simplify.cuts(loop.it, low, high, sides, self.em.ranges)
        reduces = any(e.kind == "reduce" for e in subexpressions(value))
        if self.pieces * len(found) > (MOST_COPIES if reduces else simplify.MOST_PARTS):
            return [(low, high)]
        return found

    def _loop(self, j: int, loop: Loop, value: Expr, guard: Truth) -> None:
        em = self.em
        pieces = self._cuts(loop, value, guard, 0, loop.extent)
        steady = loop.how in ("serial", "lane") and not em.awaits(value)  # no prefix over a buffer that is filled anew
        running = Running(em, value, loop.it, loop.how == "lane") if steady else None
        keep = self.pieces
        self.pieces *= len(pieces)
        if running:
            self._running(j, loop, value, guard, pieces, running)
        else:
            for low, high in pieces:
                em.narrow(loop.it, low, high)
                if loop.how == "lane":
                    self._lanes(j, loop, value, guard, low, high)
                else:
                    step = loop.width if loop.how == "points" else 1
                    self._steps(j, loop, value, guard, low, high, step)
        self.pieces = keep
        em.release(loop.it)
        em.fresh()

    def _steps(self, j: int, loop: Loop, value: Expr, guard: Truth, low: int, high: int, step: int) -> None:
        """Write serial iterations, or blocks of points and a last block of fewer."""
        em = self.em
        whole = low + (high - low) // step * step

        def body(v: Value, count: int) -> None:
            em.push()
            em.bind(loop.it, v, low, high)
            if loop.how == "points":
                with em.spread_over(loop.it, range(count)):
                    self.write(j + 1, value, guard)
            else:
                self.write(j + 1, value, guard)
            em.pop()

        em.f.for_(low, whole, step, lambda v, _: body(v, step))
        if whole < high:
            body(whole, high - whole)

    def _lanes(self, j: int, loop: Loop, value: Expr, guard: Truth, low: int, high: int) -> None:
        """Write the lane loop: several vectors at a time, then single ones, then a partial one."""
        em, f, n = self.em, self.em.f, self.nest.lanes
        step = n * loop.width
        whole = low + (high - low) // step * step

        def body(v: Value, vectors: int, tail: int | None) -> None:
            em.push()
            em.bind(loop.it, v, low, high)
            self._enter(loop.it, tail)
            with em.spread_over(loop.it, [n * k for k in range(vectors)]):
                self.write(j + 1, value, guard)
            self._leave()
            em.pop()

        f.for_(low, whole, step, lambda v, _: body(v, loop.width, None))
        for v in range(whole, high - n + 1, n):
            body(v, 1, None)
        left = (high - low) % n
        if left and high - low >= n and self._repeatable(guard):
            body(high - n, 1, None)  # the same values are stored twice
        elif left:
            body(high - left, 1, left)

    def _repeatable(self, guard: Truth) -> bool:
        return not self.in_output and self.nest.stage.combine is None

    def _enter(self, lane: Symbol, tail: int | None) -> None:
        em = self.em
        em.lane, em.lanes, em.tail = lane, self.nest.lanes, tail

    def _leave(self) -> None:
        em = self.em
        em.lane, em.lanes, em.tail = None, 0, None

    def _running(
        self, j: int, loop: Loop, value: Expr, guard: Truth, pieces: Sequence[tuple[int, int]], running: Running
    ) -> None:
        """Write a serial loop that carries the accumulators of its prefixes."""
        em, f, lane = self.em, self.em.f, loop.how == "lane"
        n = self.nest.lanes if lane else 1
        if lane:
            self._enter(loop.it, None)
        carried = running.start()
        types = [t for t, _ in carried]

        def body(v: Value, a: Sequence[Value], low: int, high: int, tail: int | None) -> list[Value]:
            em.push()
            em.bind(loop.it, v, low, high)
            if lane:
                em.tail = tail
            made = running.advance(a)
            self.write(j + 1, value, guard)
            if lane:
                em.tail = None
            em.pop()
            return made

        for low, high in pieces if running.sign > 0 else list(reversed(pieces)):
            em.narrow(loop.it, low, high)
            whole, left = low + (high - low) // n * n, (high - low) % n
            if running.sign < 0 and left:
                carried = list(zip(types, body(whole, [a for _, a in carried], low, high, left), strict=True))

            def forward(v: Value, a: Sequence[Value], low: int = low, high: int = high) -> list[Value]:
                return body(v, a, low, high, None)

            def backward(
                v: Value, a: Sequence[Value], low: int = low, high: int = high, whole: int = whole
            ) -> list[Value]:
                return body(f.sub(low + whole - n, v), a, low, high, None)

            made = f.for_(low, whole, n, forward if running.sign > 0 else backward, carried)
            carried = list(zip(types, made, strict=True))
            if running.sign > 0 and left:
                carried = list(zip(types, body(whole, [a for _, a in carried], low, high, left), strict=True))
        if lane:
            self._leave()

    # ---- the innermost level

    def _points(self, value: Expr, guard: Truth) -> None:
        em = self.em
        em.prepare(value)
        for p in range(em.points):
            em.point = p
            if isinstance(guard, Guard):
                self._guarded(value, guard)
            else:
                self.store(value, em.mask(False))
        em.point = 0

    def _guarded(self, value: Expr, guard: Guard) -> None:
        """Write iterations that may not exist: a branch for conditions that all lanes share, a mask for the rest."""
        em = self.em
        condition = emit_index.condition(em, guard)
        if condition.wide:
            self.store(value, em.mask(True))
            return

        def then() -> None:
            em.push()
            self.store(value, em.mask(False))
            em.pop()

        em.f.if_(condition.text, then)
        em.fresh()

    def _store(self, value: Expr, mask: str | None) -> None:
        em, nest = self.em, self.nest
        emit_memory.store(em, nest.stage.buffer, value.dtype, nest.at, em.value(value), mask)

    # ---- stages that combine

    def _start(self, j: int, guard: Truth) -> None:
        """Set every element that the loops below accumulate into to the identity."""
        em, nest = self.em, self.nest
        monoid, dtype = str(nest.stage.combine), em.buffers[nest.stage.buffer].dtype
        loops = nest.loops[:j] + tuple([loop for loop in nest.loops[j:] if loop.it in symbols_of(nest.at)])
        sides = sides_of(guard)
        known = {loop.it for loop in loops}
        kept = [p for p in sides if p.symbols <= known]
        inner = Writer(em, replace(nest, loops=loops), self.program)
        inner.store, inner.started = inner._store, True
        inner.write(j, const(identity(monoid, dtype), dtype), Guard(kept) if kept else True)
        em.fresh()
        self.started = True

    def _accumulate(self, value: Expr, mask: str | None) -> None:
        em, nest, f = self.em, self.nest, self.em.f
        monoid, buffer = str(nest.stage.combine), em.buffers[nest.stage.buffer]
        held = em.value(value)
        wide = em.lane is not None and emit_index.varies(em, nest.at)
        lanes = em.lanes if wide else 0
        if held.wide and not wide:
            raise em.refuse("an accumulation whose lanes fall on one element")
        before = self._before(nest.at, buffer.dtype, lanes, mask)
        x = em.widened(held, buffer.dtype) if wide else held.text
        made = registers.combine(f, monoid, buffer.dtype, before, x, lanes)
        emit_memory.store(em, buffer.name, buffer.dtype, nest.at, HeldValue(made, wide, em.top), mask)

    def _before(self, at: Size, dtype: str, lanes: int, mask: str | None) -> str:
        em, f = self.em, self.em.f
        address = emit_index.pointer(em, self.nest.stage.buffer, at, stored(dtype))
        if not lanes:
            return loaded(f, f.load(stored(dtype), address, size_of(dtype)), dtype, 0)
        if emit_index.affine(em, at) != 1:
            return loaded(f, emit_memory.gathered(em, self.nest.stage.buffer, at, dtype, mask), dtype, lanes)
        type_ = stored(dtype, lanes)
        raw = f.load(type_, address, size_of(dtype)) if mask is None else f.masked_load(type_, address, mask)
        return loaded(f, raw, dtype, lanes)
