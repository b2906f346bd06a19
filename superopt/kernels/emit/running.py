"""Running accumulators: a reduction over a prefix becomes one value carried by the loop over its end.

Where the iterator is the lane, a vector is scanned in log2(lanes) steps and the last lane is carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import Symbol
from superopt.ir.ops.record import accumulator, identity
from superopt.ir.prefix import direction, step_of
from superopt.kernels.emit import scalar as emit_scalar
from superopt.kernels.emit import transpose
from superopt.kernels.emit.types import HeldValue, is_float, register, splatted
from superopt.kernels.llvm.module import Value, vector
from superopt.kernels.math import ops as vecmath_ops

if TYPE_CHECKING:
    from superopt.kernels.emit.values import Emitter


def is_running(value: Expr, it: Symbol) -> bool:
    """Does the value hold a prefix that ends at this iterator?"""
    return any(e.kind == "reduce" and direction(e, it) for e in subexpressions(value))


class Running:
    """The prefixes of one loop: their accumulators, for all points at which they differ."""

    def __init__(self, em: Emitter, value: Expr, it: Symbol, lane: bool) -> None:
        self.em, self.it, self.lane = em, it, lane
        ready = [
            e for e in em.reductions(value)
            if direction(e, it) and all(s == it or s in em.bindings for s in e.symbols)
            and not (_ordered(em, e) and (lane or direction(e, it) < 0))
        ]  # fmt: skip
        self.sign = direction(ready[0], it) if ready else 0
        self.found = [e for e in ready if direction(e, it) == self.sign]
        self.slots = [(e, p) for e in self.found for p in em.representatives(e.symbols)]

    def __bool__(self) -> bool:
        return bool(self.found)

    def start(self) -> list[tuple[str, Value]]:
        """Types and first values of the accumulators."""
        return [
            (register(_sums(e), self._lanes(e)), splatted(identity(e.args[0], _sums(e)), _sums(e), self._lanes(e)))
            for e, _ in self.slots
        ]

    def _lanes(self, e: Expr) -> int:
        em = self.em
        return em.lanes if self.lane or (em.lane is not None and em.lane in e.symbols) else 0

    def advance(self, accumulators: Sequence[Value]) -> list[Value]:
        """The accumulators after this iteration; the prefixes become known at the current level."""
        em, made, point = self.em, list[Value](), self.em.point
        for (e, p), a in zip(self.slots, accumulators, strict=True):
            em.point = p
            lanes = self._lanes(e)
            held = em.value(step_of(e, self.it))
            x = em.widened(held, e.dtype) if lanes else held.text
            result, carried = self._scanned(e, str(a), x) if self.lane else (self._next(e, str(a), x, lanes),) * 2
            if _sums(e) != e.dtype and not em.licence.excess:
                result = vecmath_ops.rounded(em.f, result, e.dtype, lanes)
            em.levels[-1].memo[em.key(e)] = HeldValue(result, lanes > 0, em.top)
            made.append(carried)
        em.point = point
        em.fresh()
        return made

    def _next(self, e: Expr, a: str, x: str, lanes: int) -> str:
        return emit_scalar.combine(self.em.f, e.args[0], _sums(e), a, x, lanes)

    def _scanned(self, e: Expr, a: str, x: str) -> tuple[str, str]:
        """Prefixes within a vector and before it; the last of them in all lanes."""
        em, n, dtype = self.em, self.em.lanes, _sums(e)
        f, element = em.f, register(dtype)
        neutral = splatted(identity(e.args[0], dtype), dtype, n)
        if em.tail is not None:
            x = f.value(
                f"select {vector('i1', n)} {em.mask(False)}, {vector(element, n)} {x}, {vector(element, n)} {neutral}"
            )
        width = 1
        while width < n:
            order = [j - width if j >= width else n for j in range(n)]
            if self.sign < 0:
                order = [j + width if j + width < n else n for j in range(n)]
            x = self._next(e, x, transpose.shuffle(f, x, neutral, order, element, n), n)
            width *= 2
        x = self._next(e, a, x, n)
        last = transpose.shuffle(f, x, None, [n - 1 if self.sign > 0 else 0] * n, element, n)
        return x, last


def _sums(e: Expr) -> str:
    return accumulator(e.dtype) if e.args[0] in ("sum", "prod") else e.dtype


def _ordered(em: Emitter, e: Expr) -> bool:
    """Must the terms be added in their order?"""
    return is_float(e.dtype) and e.args[0] in ("sum", "prod") and not em.licence.reassociation
