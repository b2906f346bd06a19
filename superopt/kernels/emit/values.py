"""Emits the values of expressions, each once, at the outermost loop level where it is known; each level has a memo.

Every value is written at the loop level of its deepest part.  That one rule gives strength reduction of addresses,
hoisting of loads and broadcasts, and loop-invariant code motion.  A level keeps a list of lines right after its
iterator is bound; a value that later turns out to belong to an outer level is written there.

Several points can be computed at once (vectors along the lane, rows of a tile).  An iterator is then bound to one base
with an offset per point.  A value is kept per offsets of the iterators that it depends on, so that points share
common values.

A value under a guard may load from outside its buffer where the guard fails.  Such loads are masked (vectors) or
clamped (scalars); everything else ignores guards until the choice itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from superopt.errors import UnsupportedKernel
from superopt.ir.expr import Expr, subexpressions, values_of
from superopt.ir.index import Guard, Size, Symbol, bounds
from superopt.kernels.emit import index as emit_index
from superopt.kernels.emit import memory as emit_memory
from superopt.kernels.emit import registers
from superopt.kernels.emit.options import Knobs, Licence
from superopt.kernels.emit.reduce import reduction
from superopt.kernels.emit.registers import HeldValue, constant, register
from superopt.kernels.llvm.module import Function, Lines, Value
from superopt.kernels.llvm.types import vector
from superopt.kernels.loops import simplify
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.math import ops as vecmath_ops

Guards = tuple[tuple[Guard, bool], ...]


@dataclass(slots=True)
class Level:
    """One level of loops: the values known there, and the list of lines to which more can be added."""

    lines: Lines
    memo: dict[object, HeldValue] = field(default_factory=dict[object, HeldValue])


@dataclass(frozen=True, slots=True)
class IteratorBinding:
    """The binding of an iterator: its value is `base` plus the offset of the point."""

    base: Value
    level: int


class Emitter:
    """The state of one function under construction: loop levels with memos, bound iterators, points and guards."""

    def __init__(
        self,
        function: Function,
        pointers: Mapping[str, str],
        buffers: Mapping[str, Buffer],
        licence: Licence,
        knobs: Knobs,
    ) -> None:
        self.f, self.licence, self.knobs = function, licence, knobs
        self.cpu = function.module.cpu
        self.pointers, self.buffers = dict(pointers), dict(buffers)
        self.bindings: dict[Symbol, IteratorBinding] = {}
        self.ranges: dict[Symbol, tuple[int, int]] = {}
        self.lane: Symbol | None = None
        self.lanes = 0
        self.tail: int | str | None = None  # active lanes, where not all are
        self.guards: Guards = ()  # guards around the current value
        self.spread: dict[Symbol, tuple[int, ...]] = {}  # offsets of the points
        self.points = 1
        self.point = 0
        self.side: dict[Expr, list[tuple[Expr, str, Size]]] = {}  # reduction -> values of its body kept in buffers
        self.floor: dict[str, int] = {}  # buffers that are filled inside loops: the level at which
        self.pending: frozenset[str] = frozenset()  # buffers that loops further in will fill
        self.levels: list[Level] = []
        self._inside: dict[Expr, bool] = {}
        self._depths: dict[frozenset[Symbol], int] = {}  # until an iterator is bound or forgotten
        self._offsets: dict[frozenset[Symbol], list[tuple[int, ...]]] = {}  # per point, until the points change
        self._reductions: dict[Expr, list[tuple[Expr, bool]]] = {}
        self.push()

    # ---- levels

    def push(self) -> None:
        """Enter a loop or block."""
        self.levels.append(Level([]))
        self.fresh()

    def pop(self) -> None:
        """Leave the innermost level; values known only there are forgotten."""
        self.levels.pop()

    def fresh(self) -> None:
        """Write the values of this level from here on: after a loop or a store that they may depend on."""
        lines: Lines = []
        self.levels[-1].lines = lines
        self.f.lines.append(lines)

    @property
    def top(self) -> int:
        """Number of the innermost level."""
        return len(self.levels) - 1

    def at_level(self, level: int, key: object, write: Callable[[], HeldValue]) -> HeldValue:
        """Return the value under this key at a level; write it there unless it is known."""
        known = self.levels[level].memo.get(key)
        if known is not None:
            return known
        keep, self.f.lines = self.f.lines, self.levels[level].lines
        try:
            made = write()
        finally:
            self.f.lines = keep
        made = made._replace(level=level)
        self.levels[level].memo[key] = made
        return made

    def bind(self, it: Symbol, base: Value, low: int | None = None, high: int | None = None) -> None:
        """Give an iterator its value at this level, within `low <= it < high` when given."""
        self.bindings[it] = IteratorBinding(base, self.top)
        self._depths.clear()
        if low is not None and high is not None:
            self.narrow(it, low, high)
        self.fresh()

    def narrow(self, it: Symbol, low: int, high: int) -> None:
        """Record that `low <= it < high`."""
        self.ranges[it] = (low, high - 1)
        self._inside.clear()

    def release(self, it: Symbol) -> None:
        """Forget an iterator."""
        self.bindings.pop(it, None)
        self._depths.clear()
        if self.spread.pop(it, None) is not None:
            self._offsets.clear()
        if self.ranges.pop(it, None) is not None:
            self._inside.clear()

    def depth(self, symbols: frozenset[Symbol]) -> int:
        """Return the level of the deepest of these iterators."""
        known = self._depths.get(symbols)
        if known is None:
            known = self._depths[symbols] = max([self.bindings[s].level for s in symbols], default=0)
        return known

    # ---- points

    @contextmanager
    def spread_over(self, it: Symbol, offsets: Sequence[int]) -> Iterator[None]:
        """Replicate every point once for each offset of an iterator, inside the context."""
        before, points, point = dict(self.spread), self.points, self.point
        n = len(offsets)
        self.spread = {s: tuple([o for o in known for _ in range(n)]) for s, known in before.items()}
        self.spread[it] = tuple(offsets) * points
        self.points, self.point = points * n, point * n
        self._offsets.clear()
        try:
            yield
        finally:
            self.spread, self.points, self.point = before, points, point
            self._offsets.clear()

    def number_points(self, it: Symbol) -> None:
        """Bind an iterator to the number of the point."""
        self.bindings[it] = IteratorBinding(0, 0)
        self.spread = {**self.spread, it: tuple(range(self.points))}
        self._depths.clear()
        self._offsets.clear()

    def offset(self, it: Symbol) -> int:
        """Return the offset of an iterator at the current point."""
        known = self.spread.get(it)
        return known[self.point] if known else 0

    def offsets(self, symbols: frozenset[Symbol]) -> tuple[int, ...]:
        """Return the offsets of these iterators at the current point; they distinguish values at different points."""
        return self._offsets_of(symbols)[self.point]

    def _offsets_of(self, symbols: frozenset[Symbol]) -> list[tuple[int, ...]]:
        known = self._offsets.get(symbols)
        if known is None:
            own = [o for s, o in self.spread.items() if s in symbols]
            known = self._offsets[symbols] = [*zip(*own, strict=True)] if own else [()] * self.points
        return known

    def representatives(self, symbols: frozenset[Symbol]) -> list[int]:
        """Return one point for each combination of offsets of these iterators."""
        found: dict[tuple[int, ...], int] = {}
        for p, offsets in enumerate(self._offsets_of(symbols)):
            found.setdefault(offsets, p)
        return list(found.values())

    # ---- facts about expressions

    def inside(self, e: Expr) -> bool:
        """Whether all loads of the expression are within their buffers, whatever guards it stands under."""
        known = self._inside.get(e)
        if known is None:
            for x in subexpressions(e):
                if x not in self._inside:
                    within = x.kind != "load" or self._within(x)
                    self._inside[x] = within and all(self._inside[y] for y in x.inner)
            known = self._inside[e]
        return known

    def _within(self, e: Expr) -> bool:
        low, high = bounds(e.args[1][0], self.ranges)
        return low >= 0 and high < self.size(e.args[0])

    def size(self, buffer: str) -> int:
        """Return the number of elements of a buffer."""
        total = 1
        for n in self.buffers[buffer].shape:
            total *= n
        return total

    def key(self, e: Expr) -> tuple[object, ...]:
        """Return the memo key of an expression's value at the current point, under guards."""
        guards = self.guards if self.guards and not self.inside(e) else ()
        if not self.spread:
            return (e, (), guards)
        symbols = e.symbols.union(*[g.symbols for g, _ in guards])
        return (e, self.offsets(symbols), guards)

    def context(self, symbols: frozenset[Symbol], scalars: Iterable[Expr]) -> tuple[object, ...]:
        """Return the memo key of indices over these iterators and scalars: the point's offsets, and guards."""
        if self.guards and not all(self.inside(v) for v in scalars):
            return (self.offsets(symbols.union(*[g.symbols for g, _ in self.guards])), self.guards)
        return self.offsets(symbols)

    def reductions(self, e: Expr) -> list[Expr]:
        """Return the reductions of an expression that may be evaluated whatever its guards are, inner ones first."""
        known = self._reductions.get(e)
        if known is None:
            known = self._reductions[e] = simplify.reductions(e)
        return [x for x, guarded in known if not guarded or self.inside(x)]

    # ---- values

    def found(self, e: Expr) -> HeldValue | None:
        """Return the value if it was written before, else None."""
        if e.kind == "const":
            return HeldValue(constant(e.args[0], e.dtype), False, 0)
        key = self.key(e)
        for level in range(self.top, self.depth(e.symbols) - 1, -1):
            known = self.levels[level].memo.get(key)
            if known is not None:
                return known
        return None

    def value(self, root: Expr) -> HeldValue:
        """Write an expression at the current point, unless it is known, and return its value."""
        done: dict[Expr, HeldValue] = {}
        stack, opened = [root], set[Expr]()
        while stack:
            e = stack[-1]
            held = None if e in opened else done.get(e) or self.found(e)
            if held is None:
                waiting = [x for x in self._parts(e) if x not in done]
                if waiting and e not in opened:
                    opened.add(e)
                    stack += waiting
                    continue
                self._compute(e)
                opened.discard(e)
                held = self.known(e)
            done[e] = held
            stack.pop()
        return done[root]

    def _parts(self, e: Expr) -> Sequence[Expr]:
        """Return the parts to compute before the expression, except guarded parts that may not be evaluated."""
        if e.kind == "reduce":
            return ()
        if e.kind == "where":
            return [v for x in e.indices for v in values_of(x)] + [x for x in e.operands if self.inside(x)]
        return e.inner

    def _compute(self, e: Expr) -> None:
        if e.kind == "reduce":
            reduction(self, e)
            return
        if e.kind == "where":
            self._choose(e)
            return
        inner = [self.known(x) for x in e.inner]
        operands = inner[: len(e.operands)]
        level = max([self.depth(e.symbols) if e.indices else 0, *[x.level for x in inner]])
        if e.kind == "load":
            level = max(level, self.floor.get(e.args[0], 0))
            if self.guards and not self.inside(e):
                level = self.top  # a mask belongs to the point at which its guard is met
                for j in range(len(self.guards)):
                    self.condition(j)
        if e.kind != "load":
            self.at_level(level, self.key(e), lambda: self._write(e, operands))
        elif not emit_memory.together(self, e):
            place = emit_memory.place(self, e) or self.key(e)
            self.levels[level].memo[self.key(e)] = self.at_level(level, place, lambda: self._write(e, operands))

    def known(self, e: Expr) -> HeldValue:
        """Return a value that was computed before."""
        held = self.found(e)
        assert held is not None, e
        return held

    def _write(self, e: Expr, operands: list[HeldValue]) -> HeldValue:
        match e.kind:
            case "load":
                return emit_memory.load(self, e)
            case "index":
                return emit_index.as_scalar(self, e.args[0], e.dtype)
            case "convert":
                lanes = self.lanes if operands[0].wide else 0
                text = vecmath_ops.convert(self.f, operands[0].text, e.args[0], e.dtype, lanes)
                return HeldValue(text, operands[0].wide, 0)
            case _:
                return self._apply(e, operands)

    def _apply(self, e: Expr, operands: list[HeldValue]) -> HeldValue:
        wide = any(x.wide for x in operands)
        lanes = self.lanes if wide else 0
        texts = [self.widened(x, arg.dtype) if wide else x.text for x, arg in zip(operands, e.args[2:], strict=True)]
        fused = self._contracted(e, texts, wide)
        if fused is not None:
            return HeldValue(fused, wide, 0)
        which = e.args[2].dtype
        return HeldValue(registers.apply(self.f, e.args[0], e.args[1], texts, lanes, self.licence, which), wide, 0)

    def _contracted(self, e: Expr, texts: list[str], wide: bool) -> str | None:
        """Write `a * b + c` or `a * b - c` as one instruction, where the licence allows it."""
        fn, dtype = e.args[:2]
        if fn not in ("add", "sub") or dtype not in ("float32", "float64") or not self.licence.contraction:
            return None
        for p in (0, 1):
            product = e.args[2 + p]
            if product.kind != "op" or product.args[0] != "mul" or product.kind == "const":
                continue
            a, b = [self.known(x) for x in product.operands]
            type_ = register(dtype, self.lanes if wide else 0)
            left, right = [self.widened(x, dtype) if wide else x.text for x in (a, b)]
            other = texts[1 - p]
            if fn == "sub" and p == 0:
                other = self.f.value(f"fneg {type_} {other}")
            elif fn == "sub":
                left = self.f.value(f"fneg {type_} {left}")
            return self.f.fma(left, right, other, type_)
        return None

    def _choose(self, e: Expr) -> None:
        guard, then, orelse = e.args
        condition = emit_index.condition(self, guard)
        a = self._under(guard, True, then)
        b = self._under(guard, False, orelse)
        wide = condition.wide or a.wide or b.wide
        level = max(condition.level, a.level, b.level)

        def write() -> HeldValue:
            lanes = self.lanes if wide else 0
            which = self.broadcast_flag(condition) if wide else condition.text
            x, y = [self.widened(v, e.dtype) if wide else v.text for v in (a, b)]
            type_ = register(e.dtype, lanes)
            return HeldValue(self.f.value(f"select {vector('i1', lanes)} {which}, {type_} {x}, {type_} {y}"), wide, 0)

        self.at_level(level, self.key(e), write)

    def _under(self, guard: Guard, holds: bool, e: Expr) -> HeldValue:
        if self.inside(e):
            return self.value(e)
        keep, self.guards = self.guards, (*self.guards, (guard, holds))
        try:
            return self.value(e)
        finally:
            self.guards = keep

    # ---- lanes

    def widened(self, x: HeldValue, dtype: str) -> str:
        """Return the value broadcast to all lanes."""
        if x.wide:
            return x.text
        return self.broadcast(x, register(dtype))

    def broadcast(self, x: HeldValue, type_: str) -> str:
        """Broadcast a scalar to all lanes, at the scalar's level."""
        if not x.text.startswith("%"):
            return self.f.broadcast(x.text, type_, self.lanes)
        key = ("lanes", x.text, self.lanes)
        made = self.at_level(x.level, key, lambda: HeldValue(self.f.broadcast(x.text, type_, self.lanes), True, 0))
        return made.text

    def broadcast_flag(self, x: HeldValue) -> str:
        """Broadcast a condition to all lanes."""
        return x.text if x.wide else self.broadcast(x, "i1")

    def vector(self, e: Expr) -> str:
        """Write an expression and return its value in all lanes."""
        return self.widened(self.value(e), e.dtype)

    def mask(self, guarded: bool) -> str | None:
        """Return the mask of accessible lanes: those of the tail and, on request, under the current guards."""
        found: str | None = None
        type_ = vector("i1", self.lanes)
        if self.tail is not None:
            found = emit_index.first_lanes(self, self.tail)
        for j, (_, holds) in enumerate(self.guards if guarded else ()):
            flag = self.broadcast_flag(self.condition(j))
            if not holds:
                flag = self.f.value(f"xor {type_} {flag}, splat (i1 true)")
            found = flag if found is None else self.f.value(f"and {type_} {found}, {flag}")
        return found

    def condition(self, j: int) -> HeldValue:
        """Return the truth of guard number j of the current value; its loads stand under the guards before it."""
        keep, self.guards = self.guards, self.guards[:j]
        try:
            return emit_index.condition(self, keep[j][0])
        finally:
            self.guards = keep

    # ---- reductions that can be written now

    def prepare(self, e: Expr) -> None:
        """Write every reduction of an expression whose iterators are all bound, inner ones first."""
        if not e.height:
            return
        guarded = frozenset[Symbol]().union(*[g.symbols for g, _ in self.guards])
        for x in self.reductions(e):
            ready = all(s in self.bindings for s in x.symbols) and not self.awaits(x)
            if ready and (all(s in self.bindings for s in guarded) or self.inside(x)):
                for p in self.representatives(x.symbols):
                    keep, self.point = self.point, p
                    if self.found(x) is None:
                        self.value(x)
                    self.point = keep

    def awaits(self, e: Expr) -> bool:
        """Whether the expression reads a buffer that is not filled yet."""
        return bool(self.pending) and any(x.kind == "load" and x.args[0] in self.pending for x in subexpressions(e))

    def refuse(self, reason: str) -> UnsupportedKernel:
        """Return the error that says why this kernel is not generated."""
        return UnsupportedKernel(f"{self.f.name}: {reason}")
