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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from superopt.errors import UnsupportedKernel
from superopt.ir.expr import Expr, values_of
from superopt.ir.index import Guard, Symbol
from superopt.kernels.emit import index as emit_index
from superopt.kernels.emit import memory as emit_memory
from superopt.kernels.emit import registers
from superopt.kernels.emit.options import Knobs, Licence
from superopt.kernels.emit.reduce import reduction
from superopt.kernels.emit.registers import HeldValue, constant, register
from superopt.kernels.emit.scope import LoopScope
from superopt.kernels.llvm.module import Function, Lines, Value
from superopt.kernels.llvm.types import vector
from superopt.kernels.loops.stage import Buffer, LoopProgram
from superopt.kernels.math import ops as vecmath_ops


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


@dataclass(frozen=True, slots=True, eq=False)
class Emitter:
    """One place of a function under construction: facts (`scope`), levels of loops around it, values of iterators.

    Code is added to the function; an emitter itself never changes, and each step inwards gives another one.

    Attributes:
        pointers: addresses of buffers.
        bindings: values of iterators.
        floor: buffers that are filled inside loops, with the level at which.
    """

    f: Function
    scope: LoopScope
    pointers: Mapping[str, str]
    levels: tuple[Level, ...]
    bindings: Mapping[Symbol, IteratorBinding] = field(default_factory=dict[Symbol, IteratorBinding])
    floor: dict[str, int] = field(default_factory=dict[str, int])
    _depths: dict[frozenset[Symbol], int] = field(default_factory=dict[frozenset[Symbol], int])  # of these bindings

    # ---- places further in

    def deeper(self) -> Emitter:
        """Return the place inside a loop or block."""
        made = replace(self, levels=(*self.levels, Level([])))
        made.fresh()
        return made

    def bind(self, it: Symbol, base: Value, low: int | None = None, high: int | None = None) -> Emitter:
        """Return the place at which an iterator has a value, within `low <= it < high` when given."""
        bindings = {**self.bindings, it: IteratorBinding(base, self.top)}
        scope = self.scope if low is None or high is None else self.scope.narrowed(it, low, high)
        scope = scope.entered(it, base if isinstance(base, int) else None)
        made = replace(self, scope=scope, bindings=bindings, _depths={})
        made.fresh()
        return made

    def numbered(self, it: Symbol) -> Emitter:
        """Return the place at which an iterator is the number of the point."""
        bindings = {**self.bindings, it: IteratorBinding(0, 0)}
        return replace(self, scope=self.scope.numbered(it), bindings=bindings, _depths={})

    def holding(self, buffer: Buffer, address: str) -> Emitter:
        """Return the place with one more buffer."""
        return replace(self, scope=self.scope.holding(buffer), pointers={**self.pointers, buffer.name: address})

    def within(self, scope: LoopScope) -> Emitter:
        """Return this place with other facts."""
        return self if scope is self.scope else replace(self, scope=scope)

    def at(self, point: int) -> Emitter:
        """Return this place at another point."""
        return self.within(self.scope.at(point))

    # ---- levels

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
        if known is None:
            with self.f.writing(self.levels[level].lines):
                known = write()._replace(level=level)
            self.levels[level].memo[key] = known
        return known

    def depth(self, symbols: frozenset[Symbol]) -> int:
        """Return the level of the deepest of these iterators."""
        known = self._depths.get(symbols)
        if known is None:
            known = self._depths[symbols] = max([self.bindings[s].level for s in symbols], default=0)
        return known

    # ---- values

    def found(self, e: Expr) -> HeldValue | None:
        """Return the value if it was written before, else None."""
        if e.kind == "const":
            return HeldValue(constant(e.args[0], e.dtype), False, 0)
        key = self.scope.key(e)
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
            return [v for x in e.indices for v in values_of(x)] + [x for x in e.operands if self.scope.inside(x)]
        return e.inner

    def _compute(self, e: Expr) -> None:
        """Write an expression's code at the outermost level at which its operands are known."""
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
            if self.scope.guards and not self.scope.inside(e):
                level = self.top  # a mask belongs to the point at which its guard is met
                for j in range(len(self.scope.guards)):
                    self.condition(j)
        if e.kind != "load":
            self.at_level(level, self.scope.key(e), lambda: self._write(e, operands))
        elif not emit_memory.together(self, e):
            place = emit_memory.place(self, e) or self.scope.key(e)
            self.levels[level].memo[self.scope.key(e)] = self.at_level(level, place, lambda: self._write(e, operands))

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
                lanes = self.scope.lanes if operands[0].wide else 0
                text = vecmath_ops.convert(self.f, operands[0].text, e.args[0], e.dtype, lanes)
                return HeldValue(text, operands[0].wide, 0)
            case _:
                return self._apply(e, operands)

    def _apply(self, e: Expr, operands: list[HeldValue]) -> HeldValue:
        wide = any(x.wide for x in operands)
        lanes = self.scope.lanes if wide else 0
        texts = [self.widened(x, arg.dtype) if wide else x.text for x, arg in zip(operands, e.args[2:], strict=True)]
        fused = self._contracted(e, texts, wide)
        if fused is not None:
            return HeldValue(fused, wide, 0)
        which = e.args[2].dtype
        return HeldValue(
            registers.apply(self.f, e.args[0], e.args[1], texts, lanes, self.scope.licence, which), wide, 0
        )

    def _contracted(self, e: Expr, texts: list[str], wide: bool) -> str | None:
        """Write `a * b + c` or `a * b - c` as one instruction, where the licence allows it."""
        fn, dtype = e.args[:2]
        if fn not in ("add", "sub") or dtype not in ("float32", "float64") or not self.scope.licence.contraction:
            return None
        for p in (0, 1):
            product = e.args[2 + p]
            if product.kind != "op" or product.args[0] != "mul" or product.kind == "const":
                continue
            a, b = [self.known(x) for x in product.operands]
            type_ = register(dtype, self.scope.lanes if wide else 0)
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
            lanes = self.scope.lanes if wide else 0
            which = self.broadcast_flag(condition) if wide else condition.text
            x, y = [self.widened(v, e.dtype) if wide else v.text for v in (a, b)]
            type_ = register(e.dtype, lanes)
            return HeldValue(self.f.value(f"select {vector('i1', lanes)} {which}, {type_} {x}, {type_} {y}"), wide, 0)

        self.at_level(level, self.scope.key(e), write)

    def _under(self, guard: Guard, holds: bool, e: Expr) -> HeldValue:
        if self.scope.inside(e):
            return self.value(e)
        return self.within(self.scope.under(*self.scope.guards, (guard, holds))).value(e)

    # ---- lanes

    def widened(self, x: HeldValue, dtype: str) -> str:
        """Return the value broadcast to all lanes."""
        if x.wide:
            return x.text
        return self.broadcast(x, register(dtype))

    def broadcast(self, x: HeldValue, type_: str) -> str:
        """Broadcast a scalar to all lanes, at the scalar's level."""
        if not x.text.startswith("%"):
            return self.f.broadcast(x.text, type_, self.scope.lanes)
        key = ("lanes", x.text, self.scope.lanes)
        made = self.at_level(
            x.level, key, lambda: HeldValue(self.f.broadcast(x.text, type_, self.scope.lanes), True, 0)
        )
        return made.text

    def broadcast_flag(self, x: HeldValue) -> str:
        """Broadcast a condition to all lanes."""
        return x.text if x.wide else self.broadcast(x, "i1")

    def vector(self, e: Expr) -> str:
        """Write an expression and return its value in all lanes."""
        return self.widened(self.value(e), e.dtype)

    def mask(self, guarded: bool) -> str | None:
        """Return the mask of accessible lanes: those of the tail and, on request, under the current guards."""
        mask: str | None = None
        type_ = vector("i1", self.scope.lanes)
        if self.scope.tail is not None:
            mask = emit_index.first_lanes(self, self.scope.tail)
        for j, (_, holds) in enumerate(self.scope.guards if guarded else ()):
            flag = self.broadcast_flag(self.condition(j))
            if not holds:
                flag = self.f.value(f"xor {type_} {flag}, splat (i1 true)")
            mask = flag if mask is None else self.f.value(f"and {type_} {mask}, {flag}")
        return mask

    def condition(self, j: int) -> HeldValue:
        """Return the truth of guard number j of the current value; its loads stand under the guards before it."""
        guards = self.scope.guards
        return emit_index.condition(self.within(self.scope.under(*guards[:j])), guards[j][0])

    # ---- reductions that can be written now

    def prepare(self, e: Expr) -> None:
        """Write every reduction of an expression whose iterators are all bound, inner ones first."""
        if not e.height:
            return
        guarded = frozenset[Symbol]().union(*[g.symbols for g, _ in self.scope.guards])
        for x in self.scope.reductions(e):
            ready = all(s in self.bindings for s in x.symbols) and not self.scope.awaits(x)
            if ready and (all(s in self.bindings for s in guarded) or self.scope.inside(x)):
                for p in self.scope.representatives(x):
                    here = self.at(p)
                    if here.found(x) is None:
                        here.value(x)

    def refuse(self, reason: str) -> UnsupportedKernel:
        """Return the error that says why this kernel is not generated."""
        return UnsupportedKernel(f"{self.f.name}: {reason}")


def entered(f: Function, program: LoopProgram, pointers: Mapping[str, str], licence: Licence, knobs: Knobs) -> Emitter:
    """Return the place at the beginning of a function, with the buffers of a program."""
    scope = LoopScope(f.module.cpu, licence, knobs, {b.name: b for b in program.buffers})
    made = Emitter(f, scope, dict(pointers), (Level([]),))
    made.fresh()
    return made
