"""Emits reductions as loops.

A reduction that differs between lanes keeps one vector accumulator per point, all points in one loop over its iterators
(several lane vectors per pass over memory).  One that is the same in all lanes runs along the lanes itself, over the
iterator with unit stride in most loads.  It has several accumulators and is folded across the lanes at the end.

A guard whose other branch is the identity bounds the loop instead of choosing in it.  Iterators are cut where guards
become known, so the pieces of a concatenation are loops of their own.  Short windows are unrolled (`_most_written`).

A reduction over a prefix is no loop but one value, carried by the loop over its end (`Running`).  Where that iterator
is the lane, a vector is scanned in log2(lanes) steps and the last lane is carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from superopt.ir.expr import Expr, subexpressions, where
from superopt.ir.index import Guard, Poly, Size, Symbol, all_of, coefficient, of_atom
from superopt.ir.ops.record import accumulator, identity
from superopt.ir.prefix import direction, step_of
from superopt.ir.scalar import SCALARS
from superopt.kernels.emit import index as emit_index
from superopt.kernels.emit import memory as emit_memory
from superopt.kernels.emit import registers
from superopt.kernels.emit.registers import HeldValue, is_float, lanes_along, register, splatted
from superopt.kernels.llvm.module import Value
from superopt.kernels.llvm.types import vector
from superopt.kernels.loops import simplify
from superopt.kernels.loops.stage import extent
from superopt.kernels.math import ops as vecmath_ops

if TYPE_CHECKING:
    from superopt.kernels.emit.values import Emitter

_NARROW_WINDOW = 8  # see `_most_written`
Bounds = list[tuple[int, Size]]  # (sign, rest): sign * it + rest >= 0


def reduction(em: Emitter, e: Expr) -> None:
    """Write a reduction for all points at which it differs, and memoize its values at the current level."""
    wide = em.lane is not None and em.lane in e.symbols
    if em.guards and not em.inside(e) and not wide:
        _guarded(em, e)
        return
    _Reduction(em, e, wide).write()


def _guarded(em: Emitter, e: Expr) -> None:
    """Write a lane-uniform reduction whose loads are only valid under guards: a branch around it."""
    f, key = em.f, em.key(e)
    condition = _any_guard(em)
    neutral = _neutral(e)

    def then() -> list[Value]:
        keep, em.guards = em.guards, ()
        em.push()
        try:
            return [em.value(e).text]
        finally:
            em.pop()
            em.guards = keep

    (text,) = f.if_(condition, then, lambda: [neutral], [register(e.dtype)])
    em.levels[-1].memo[key] = HeldValue(str(text), False, em.top)
    em.fresh()


def _any_guard(em: Emitter) -> str:
    """Return whether the guards hold in some lane, as an i1 value."""
    f = em.f
    held = [em.condition(j) for j in range(len(em.guards))]
    lanes = em.lanes if any(x.wide for x in held) else 0
    type_ = vector("i1", lanes)
    total = ""
    for x, (_, holds) in zip(held, em.guards, strict=True):
        text = em.broadcast_flag(x) if lanes else x.text
        if not holds:
            text = f.value(f"xor {type_} {text}, {'splat (i1 true)' if lanes else 'true'}")
        total = f.value(f"and {type_} {total}, {text}") if total else text
    return f.reduce("or", type_, total) if lanes else total


def _neutral(e: Expr) -> str:
    return splatted(identity(e.args[0], e.dtype), e.dtype, 0)


def _most_written(em: Emitter, body: Expr) -> int:
    """Return the largest window that is unrolled: small where a loop costs nothing, or registers do not hold more.

    49 steps of a sigmoid for eight vectors, unrolled, took four seconds to compile.  Seven depthwise convolutions on 16
    registers took 0.99 times as long in a loop, and the kernels of EfficientNet-B0 half as long to compile.
    """
    if any(e.kind == "op" and SCALARS[e.args[0]].transcendental for e in subexpressions(body)):
        return em.knobs.accumulators
    return em.knobs.window if em.cpu.registers >= 32 else min(em.knobs.window, _NARROW_WINDOW)


class _Reduction:
    """One reduction being written."""

    def __init__(self, em: Emitter, e: Expr, wide: bool) -> None:
        self.em, self.e, self.wide = em, e, wide
        self.monoid, iterators, self.body = e.args
        self.iterators: tuple[Symbol, ...] = iterators
        self.sums = _sums(e)
        self.points = em.representatives(e.symbols)
        self.along: Symbol | None = None if wide else self._lane()
        self.kept = em.side.get(e, [])
        self.order = [it for it in iterators if it != self.along] + ([self.along] if self.along else [])
        steps = prod(extent(it) for it in iterators)
        self.small = self.along is None and steps <= _most_written(em, self.body)

    def _lane(self) -> Symbol | None:
        """Return the iterator along which lanes run: the one with unit stride in most loads.

        None without lanes, or if the licence forbids reordering.
        """
        if not self.em.knobs.lane:
            return None
        if _ordered(self.em, self.e):
            return None
        loads = [x for x in subexpressions(self.body) if x.kind == "load"]
        best, most = None, (-1, -1)
        for j, it in enumerate(self.iterators):
            if extent(it) < 2:
                continue
            steps = [coefficient(x.args[1][0], it) for x in loads]
            score = sum(2 if k in (1, -1) else -1 if k is None or k else 0 for k in steps), j
            if score > most or best is None:
                best, most = it, score
        return best

    # ---- the whole

    def write(self) -> None:
        em = self.em
        keep = em.lane, em.lanes, em.tail
        if not self.wide:
            em.lane, em.tail = self.along, None
            em.lanes = lanes_along(subexpressions(self.body), self.along, em.cpu) if self.along else 0
        em.prepare(self.body)
        self.copies = self._copies()
        neutral = splatted(identity(self.monoid, self.sums), self.sums, em.lanes)
        accumulators = self._loops(0, [neutral] * (len(self.points) * self.copies), self.body)
        found = [self._folded(accumulators[j * self.copies : (j + 1) * self.copies]) for j in range(len(self.points))]
        em.lane, em.lanes, em.tail = keep
        for it in self.iterators:
            em.release(it)
        point = em.point
        for p, text in zip(self.points, found, strict=True):
            em.point = p
            em.levels[-1].memo[em.key(self.e)] = HeldValue(text, self.wide, em.top)
        em.point = point
        em.fresh()

    def _copies(self) -> int:
        """Return the number of accumulators per point that hides the latency of combining."""
        if self.small or _ordered(self.em, self.e):
            return 1
        inner = extent(self.order[-1]) // (self.em.lanes if self.along else 1)
        most = max(1, self.em.knobs.accumulators // len(self.points))
        return max(1, min(most, inner))

    def _folded(self, copies: Sequence[Value]) -> str:
        em, lanes = self.em, self.em.lanes
        left = [str(c) for c in copies]
        while len(left) > 1:
            pairs = [left[k : k + 2] for k in range(0, len(left), 2)]
            left = [self._combined(*p) if len(p) == 2 else p[0] for p in pairs]
        text = left[0]
        if self.along is not None:
            text, lanes = registers.across(em.f, self.monoid, self.sums, text, lanes), 0
        if self.sums != self.e.dtype and not em.licence.excess:
            text = vecmath_ops.rounded(em.f, text, self.e.dtype, lanes)
        return text

    def _combined(self, a: str, b: str) -> str:
        return registers.combine(self.em.f, self.monoid, self.sums, a, b, self.em.lanes)

    # ---- loops

    def _loops(self, j: int, accumulators: Sequence[Value], body: Expr) -> list[Value]:
        """Write the loops from iterator j on."""
        em, it = self.em, self.order[j]
        n = extent(it)
        sides = simplify.guards_in([body]) if em.knobs.cut else []
        for low, high in simplify.cuts(it, 0, n, sides, em.ranges):
            em.narrow(it, low, high)
            accumulators = self._piece(j, accumulators, simplify.decide(body, em.ranges), low, high)
        em.release(it)
        return list(accumulators)

    def _piece(self, j: int, accumulators: Sequence[Value], body: Expr, low: int, high: int) -> list[Value]:
        it = self.order[j]
        if self._nothing(body):
            return list(accumulators)
        if self.small:
            for v in range(low, high):
                accumulators = (self._inside if self.kept else self._written)(j, v, accumulators, body)
            return list(accumulators)
        body, limits = self._limits(it, body)
        first, last = self._range(limits, low, high)
        if it is self.along:
            return self._lanes_loop(accumulators, body, first, last)
        if j < len(self.order) - 1 or isinstance(first, str) or isinstance(last, str):
            return self.em.f.for_(first, last, 1, lambda v, a: self._inside(j, v, a, body), self._carried(accumulators))
        whole = first + max(0, last - first) // self.copies * self.copies
        accumulators = self.em.f.for_(
            first, whole, self.copies, lambda v, a: self._copied(j, v, a, body), self._carried(accumulators)
        )
        for v in range(whole, last):
            accumulators = self._inside(j, v, accumulators, body)
        return list(accumulators)

    def _nothing(self, body: Expr) -> bool:
        return body.kind == "const" and body.args[0] == identity(self.monoid, self.e.dtype)

    def _carried(self, accumulators: Sequence[Value]) -> list[tuple[str, Value]]:
        type_ = register(self.sums, self.em.lanes)
        return [(type_, a) for a in accumulators]

    def _inside(self, j: int, v: Value, accumulators: Sequence[Value], body: Expr) -> list[Value]:
        """Write one iteration, into the first accumulator of each point."""
        em, it = self.em, self.order[j]
        em.push()
        em.bind(it, v)
        if j < len(self.order) - 1:
            em.prepare(body)
            made = self._loops(j + 1, accumulators, body)
        else:
            made = self._step(accumulators, body, 0)
        em.pop()
        return made

    def _written(self, j: int, v: int, accumulators: Sequence[Value], body: Expr) -> list[Value]:
        """Write one unrolled step of a window, at the level around it, so that steps and points share loads."""
        em = self.em
        body = simplify.decide(body.substitute({self.order[j]: v}), em.ranges)
        if self._nothing(body):
            return list(accumulators)
        made = self._loops(j + 1, accumulators, body) if j < len(self.order) - 1 else self._step(accumulators, body, 0)
        em.fresh()
        return made

    def _copied(self, j: int, v: Value, accumulators: Sequence[Value], body: Expr) -> list[Value]:
        """Write one iteration of the innermost loop for each copy of the accumulators."""
        em, it = self.em, self.order[j]
        made = list(accumulators)
        for c in range(self.copies):
            em.push()
            em.bind(it, em.f.add(v, c))
            made = self._step(made, body, c)
            em.pop()
        return made

    def _step(self, accumulators: Sequence[Value], body: Expr, copy: int) -> list[Value]:
        em, made, point = self.em, list(accumulators), self.em.point
        for k, p in enumerate(self.points):
            em.point = p
            at = k * self.copies + copy
            made[at] = self._accumulated(str(made[at]), body)
            for value, buffer, index in self.kept:
                emit_memory.store(em, buffer, value.dtype, index, em.value(value), em.mask(False))
        em.point = point
        return made

    def _accumulated(self, a: str, body: Expr) -> str:
        em, lanes = self.em, self.em.lanes
        contract = em.licence.contraction and self.monoid == "sum" and is_float(self.sums)
        if contract and body.kind == "op" and body.args[0] == "mul" and (em.tail is None or self.wide):
            left, right = [self._held(x) for x in body.args[2:]]
            return em.f.fma(left, right, a, register(self.sums, lanes))
        x = self._held(body)
        if em.tail is not None and not self.wide:
            neutral = splatted(identity(self.monoid, self.sums), self.sums, lanes)
            mask, type_ = em.mask(False), register(self.sums, lanes)
            x = em.f.value(f"select {vector('i1', lanes)} {mask}, {type_} {x}, {type_} {neutral}")
        return self._combined(a, x)

    def _held(self, e: Expr) -> str:
        held = self.em.value(e)
        return self.em.widened(held, e.dtype) if self.em.lanes else held.text

    def _lanes_loop(self, accumulators: Sequence[Value], body: Expr, first: Value, last: Value) -> list[Value]:
        """Write the loop along the lanes: several vectors at a time, then single ones, then a partial one."""
        em, f, n, made = self.em, self.em.f, self.em.lanes, list(accumulators)
        assert self.along is not None

        def steps(v: Value, a: Sequence[Value], count: int) -> list[Value]:
            for c in range(count):
                em.push()
                em.bind(self.along, f.add(v, c * n))  # pyright: ignore[reportArgumentType] (checked above)
                a = self._step(a, body, c)
                em.pop()
            return list(a)

        def part(v: Value, active: int | str, a: Sequence[Value]) -> list[Value]:
            em.tail = active
            try:
                return steps(v, a, 1)
            finally:
                em.tail = None

        if isinstance(first, int) and isinstance(last, int):
            last = max(first, last)
            step = n * self.copies
            whole = first + (last - first) // step * step
            made = f.for_(first, whole, step, lambda v, a: steps(v, a, self.copies), self._carried(made))
            for v in range(whole, last - n + 1, n):
                made = steps(v, made, 1)
            at = last - (last - first) % n
            return part(at, last - at, made) if at < last else made
        count = f.maximum(f.sub(last, first), 0)
        whole = f.add(first, f.mul(f.div(count, n), n))
        made = f.for_(first, whole, n, lambda v, a: steps(v, a, 1), self._carried(made))
        return f.for_(whole, last, n, lambda v, a: part(v, str(f.sub(last, v)), a), self._carried(made))

    # ---- guards as bounds

    def _limits(self, it: Symbol, body: Expr) -> tuple[Expr, Bounds]:
        """Return the body without the guards that bound this loop, and the bounds."""
        if body.kind != "where" or not self._nothing(body.args[2]):
            return body, []
        guard: Guard = body.args[0]
        limits: Bounds = []
        kept: list[Poly] = []
        for p in guard.ordered:
            k = coefficient(p, it)
            rest = p - of_atom(it) * (k or 0)
            if k in (1, -1) and self._known(rest):
                limits.append((k, rest))
            else:
                kept.append(p)
        if not limits:
            return body, []
        left = all_of(*[Guard((p,)) for p in kept])
        return where(left, lambda: body.args[1], lambda: body.args[2]), limits

    def _known(self, x: Size) -> bool:
        """Whether all iterators of the index are bound, none of them the lane, none spread over points."""
        if not isinstance(x, Poly):
            return True
        if simplify.forms_in(x):
            return False
        em = self.em
        return all(s in em.bindings and s != em.lane and s not in em.spread for s in x.symbols)

    def _range(self, limits: Bounds, low: int, high: int) -> tuple[Value, Value]:
        em, f = self.em, self.em.f
        first: Value = low
        last: Value = high
        for sign, rest in limits:
            value = emit_index.index(em, rest)
            if sign > 0:
                first = f.maximum(first, f.sub(0, value))
            else:
                last = f.minimum(last, f.add(value, 1))
        return first, last


# ---- prefixes


class Running:
    """The prefix reductions carried by one loop: their accumulators, for all points at which they differ."""

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
        """Return types and first values of the accumulators."""
        return [
            (register(_sums(e), self._lanes(e)), splatted(identity(e.args[0], _sums(e)), _sums(e), self._lanes(e)))
            for e, _ in self.slots
        ]

    def _lanes(self, e: Expr) -> int:
        em = self.em
        return em.lanes if self.lane or (em.lane is not None and em.lane in e.symbols) else 0

    def advance(self, accumulators: Sequence[Value]) -> list[Value]:
        """Return the accumulators after this iteration; the prefixes become known at the current level."""
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
        return registers.combine(self.em.f, e.args[0], _sums(e), a, x, lanes)

    def _scanned(self, e: Expr, a: str, x: str) -> tuple[str, str]:
        """Return the prefixes of a vector's elements after those before it, and the last prefix in all lanes."""
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
            x = self._next(e, x, registers.shuffle(f, x, neutral, order, element, n), n)
            width *= 2
        x = self._next(e, a, x, n)
        last = registers.shuffle(f, x, None, [n - 1 if self.sign > 0 else 0] * n, element, n)
        return x, last


def _sums(e: Expr) -> str:
    """Return the dtype in which a reduction accumulates."""
    return accumulator(e.dtype) if e.args[0] in ("sum", "prod") else e.dtype


def _ordered(em: Emitter, e: Expr) -> bool:
    """Whether the terms must be added in their order."""
    return is_float(e.dtype) and e.args[0] in ("sum", "prod") and not em.licence.reassociation
