"""Writes the loops to which reductions are lowered, and the accumulators of the prefixes that a loop carries.

Where a prefix runs along the lane, a vector is scanned in log2(lanes) steps and the last lane is carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt.ir.expr import Expr
from superopt.ir.ops.record import identity
from superopt.ir.prefix import step_of
from superopt.kernels.emit import index as emit_index
from superopt.kernels.emit import memory as emit_memory
from superopt.kernels.emit import registers
from superopt.kernels.emit.lower import (
    AccumulatorLoop,
    AccumulatorStep,
    CarriedPrefixes,
    Fold,
    LoopCode,
    Prefix,
    Ready,
    lower,
)
from superopt.kernels.emit.registers import HeldValue, is_float, register, splatted
from superopt.kernels.llvm.module import Value
from superopt.kernels.llvm.types import vector
from superopt.kernels.math import ops as vecmath_ops

if TYPE_CHECKING:
    from superopt.kernels.emit.values import Emitter


def reduction(em: Emitter, e: Expr) -> None:
    """Write a reduction for all points at which it differs, and memoize its values at the current level."""
    scope = em.scope
    wide = scope.lane is not None and scope.lane in e.symbols
    if scope.guards and not scope.inside(e) and not wide:
        _guarded(em, e)
        return
    _Folding(lower(e, scope)).write(em)


def _guarded(em: Emitter, e: Expr) -> None:
    """Write a lane-uniform reduction whose loads are only valid under guards: a branch around it."""
    condition = _any_guard(em)
    neutral = splatted(identity(e.args[0], e.dtype), e.dtype, 0)

    def then() -> list[Value]:
        return [em.within(em.scope.under().alone()).deeper().value(e).text]  # other points may be outside

    (text,) = em.f.if_(condition, then, lambda: [neutral], [register(e.dtype)])
    em.levels[-1].memo[em.scope.key(e)] = HeldValue(str(text), False, em.top)
    em.fresh()


def _any_guard(em: Emitter) -> str:
    """Return whether the guards hold in some lane, as an i1 value."""
    f, guards = em.f, em.scope.guards
    held = [em.condition(j) for j in range(len(guards))]
    lanes = em.scope.lanes if any(x.wide for x in held) else 0
    type_ = vector("i1", lanes)
    total = ""
    for x, (_, holds) in zip(held, guards, strict=True):
        text = em.broadcast_flag(x) if lanes else x.text
        if not holds:
            text = f.value(f"xor {type_} {text}, {'splat (i1 true)' if lanes else 'true'}")
        total = f.value(f"and {type_} {total}, {text}") if total else text
    return f.reduce("or", type_, total) if lanes else total


class _Folding:
    """Writes one reduction: its accumulators, the loops over them, and their fold to a value."""

    def __init__(self, fold: Fold) -> None:
        self.fold, self.monoid = fold, str(fold.reduction.args[0])
        self.rows = fold.scope.rows.get(fold.reduction, ())

    def write(self, em: Emitter) -> None:
        """Write the loops, and memoize the values at the current level."""
        fold, inner = self.fold, em.within(self.fold.scope)
        neutral = splatted(identity(self.monoid, fold.dtype), fold.dtype, fold.scope.lanes)
        accumulators = self._all(inner, fold.code, [neutral] * (len(fold.points) * fold.copies))
        parts = [accumulators[j * fold.copies : (j + 1) * fold.copies] for j in range(len(fold.points))]
        for p, text in zip(fold.points, [self._folded(inner, x) for x in parts], strict=True):
            em.levels[-1].memo[em.scope.key(fold.reduction, p)] = HeldValue(text, fold.wide, em.top)
        em.fresh()

    def _folded(self, em: Emitter, copies: Sequence[Value]) -> str:
        fold, lanes = self.fold, em.scope.lanes
        left = [str(c) for c in copies]
        while len(left) > 1:
            pairs = [left[k : k + 2] for k in range(0, len(left), 2)]
            left = [self._combined(em, *p) if len(p) == 2 else p[0] for p in pairs]
        text = left[0]
        if not fold.wide and fold.scope.lane is not None:
            text, lanes = registers.across(em.f, self.monoid, fold.dtype, text, lanes), 0
        if fold.dtype != fold.reduction.dtype and not em.scope.licence.excess:
            text = vecmath_ops.rounded(em.f, text, fold.reduction.dtype, lanes)
        return text

    def _combined(self, em: Emitter, a: str, b: str) -> str:
        return registers.combine(em.f, self.monoid, self.fold.dtype, a, b, em.scope.lanes)

    # ---- loops

    def _all(self, em: Emitter, code: Sequence[LoopCode], accumulators: Sequence[Value]) -> list[Value]:
        made = list(accumulators)
        for c in code:
            match c:
                case Ready():
                    em.prepare(c.value)
                case AccumulatorStep():
                    made = self._step(em, c, made)
                case AccumulatorLoop():
                    made = self._loop(em, c, made)
        return made

    def _loop(self, em: Emitter, loop: AccumulatorLoop, accumulators: Sequence[Value]) -> list[Value]:
        """Write a loop over an iterator of the sum; return its accumulators."""
        f, n = em.f, loop.step
        type_ = register(self.fold.dtype, em.scope.lanes)
        width = n // len(loop.turns)

        def body(v: Value, a: Sequence[Value], tail: int | str | None) -> list[Value]:
            made = list(a)
            for c, turn in enumerate(loop.turns):
                scope = em.scope.narrowed(loop.it, *loop.piece)
                scope = scope if tail is None else scope.along(scope.lane, scope.lanes, tail)
                inner = em.within(scope).deeper()
                made = self._all(inner.bind(loop.it, f.add(v, c * width)), turn, made)
            return made

        def whole(v: Value, a: Sequence[Value]) -> list[Value]:
            return body(v, a, loop.tail)

        first, last = self._ends(em, loop)
        if not loop.rest:
            return f.for_(first, last, n, whole, [(type_, a) for a in accumulators])
        count = f.maximum(f.sub(last, first), 0)
        middle = f.add(first, f.mul(f.div(count, n), n))
        made = f.for_(first, middle, n, whole, [(type_, a) for a in accumulators])
        return f.for_(middle, last, n, lambda v, a: body(v, a, str(f.sub(last, v))), [(type_, a) for a in made])

    def _ends(self, em: Emitter, loop: AccumulatorLoop) -> tuple[Value, Value]:
        f = em.f
        first: Value = loop.first
        last: Value = loop.last
        for sign, rest in loop.limits:
            value = emit_index.index(em, rest)
            if sign > 0:
                first = f.maximum(first, f.sub(0, value))
            else:
                last = f.minimum(last, f.add(value, 1))
        return first, last

    # ---- steps

    def _step(self, em: Emitter, step: AccumulatorStep, accumulators: Sequence[Value]) -> list[Value]:
        made = list(accumulators)
        for k, p in enumerate(self.fold.points):
            here = em.at(p)
            number = k * self.fold.copies + step.copy
            made[number] = self._accumulated(here, str(made[number]), step.value)
            for value, buffer, index in self.rows:
                emit_memory.store(here, buffer, value.dtype, index, here.value(value), here.mask(False))
        em.fresh()
        return made

    def _accumulated(self, em: Emitter, a: str, term: Expr) -> str:
        dtype, lanes, tail = self.fold.dtype, em.scope.lanes, None if self.fold.wide else em.scope.tail
        type_ = register(dtype, lanes)
        contract = em.scope.licence.contraction and self.monoid == "sum" and is_float(dtype)
        if contract and term.kind == "op" and term.args[0] == "mul" and tail is None:
            left, right = [self._held(em, x) for x in term.args[2:]]
            return em.f.fma(left, right, a, type_)
        x = self._held(em, term)
        if tail is not None:
            neutral = splatted(identity(self.monoid, dtype), dtype, lanes)
            x = em.f.value(f"select {vector('i1', lanes)} {em.mask(False)}, {type_} {x}, {type_} {neutral}")
        return self._combined(em, a, x)

    def _held(self, em: Emitter, e: Expr) -> str:
        held = em.value(e)
        return em.widened(held, e.dtype) if em.scope.lanes else held.text


# ---- prefixes


class Running:
    """Writes the prefixes that one loop carries."""

    def __init__(self, carried: CarriedPrefixes) -> None:
        self.carried = carried

    def start(self) -> list[tuple[str, Value]]:
        """Return types and first values of the accumulators."""
        return [
            (register(x.dtype, x.lanes), splatted(identity(x.reduction.args[0], x.dtype), x.dtype, x.lanes))
            for x in self.carried.prefixes
        ]

    def advance(self, em: Emitter, accumulators: Sequence[Value]) -> list[Value]:
        """Return the accumulators after this iteration; the prefixes become known at the current level."""
        made: list[Value] = []
        for prefix, a in zip(self.carried.prefixes, accumulators, strict=True):
            e, here, lanes = prefix.reduction, em.at(prefix.point), prefix.lanes
            held = here.value(step_of(e, self.carried.it))
            x = here.widened(held, e.dtype) if lanes else held.text
            if self.carried.along:
                result, carried = self._scanned(here, prefix, str(a), x)
            else:
                result = carried = self._next(here, prefix, str(a), x)
            if prefix.dtype != e.dtype and not em.scope.licence.excess:
                result = vecmath_ops.rounded(em.f, result, e.dtype, lanes)
            here.levels[-1].memo[here.scope.key(e)] = HeldValue(result, lanes > 0, em.top)
            made.append(carried)
        em.fresh()
        return made

    def _next(self, em: Emitter, prefix: Prefix, a: str, x: str) -> str:
        return registers.combine(em.f, prefix.reduction.args[0], prefix.dtype, a, x, prefix.lanes)

    def _scanned(self, em: Emitter, prefix: Prefix, a: str, x: str) -> tuple[str, str]:
        """Return the prefixes of a vector's elements after those before it, and the last prefix in all lanes."""
        f, n, dtype, sign = em.f, em.scope.lanes, prefix.dtype, self.carried.sign
        element = register(dtype)
        neutral = splatted(identity(prefix.reduction.args[0], dtype), dtype, n)
        if em.scope.tail is not None:
            x = f.value(
                f"select {vector('i1', n)} {em.mask(False)}, {vector(element, n)} {x}, {vector(element, n)} {neutral}"
            )
        width = 1
        while width < n:
            order = [j - width if j >= width else n for j in range(n)]
            if sign < 0:
                order = [j + width if j + width < n else n for j in range(n)]
            x = self._next(em, prefix, x, registers.shuffle(f, x, neutral, order, element, n))
            width *= 2
        x = self._next(em, prefix, a, x)
        last = registers.shuffle(f, x, None, [n - 1 if sign > 0 else 0] * n, element, n)
        return x, last
