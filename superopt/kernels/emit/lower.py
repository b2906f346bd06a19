"""Lowers reductions to loops with accumulators: a pure function of a reduction and of the place at which it stands.

    sum_{r0<1000} x[r0]  ->  for r0 in 0..992 step 32: a0 += x[r0]; a1 += x[r0+16]
                             for r0 in 992..1000: a0 += x[r0]

Here with two accumulators of 16 lanes each.  A reduction that differs between lanes keeps one vector accumulator per
point, all points in one loop over its iterators (several lane vectors per pass over memory).  One that is the same in
all lanes runs along the lanes itself, over the iterator with unit stride in most loads.  It has several accumulators
and is folded across the lanes at the end.

A guard whose other branch is the identity bounds the loop instead of choosing in it.  Iterators are cut where guards
become known, so the pieces of a concatenation are loops of their own.  Short windows are unrolled (`_most_written`).

A reduction over a prefix is no loop but one value, carried by the loop over its end (`prefixes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from superopt.ir.expr import Expr, subexpressions, where
from superopt.ir.index import Guard, Poly, Size, Symbol, all_of, coefficient, of_atom
from superopt.ir.ops.record import accumulator, identity
from superopt.ir.prefix import direction
from superopt.ir.scalar import SCALARS
from superopt.kernels.emit.registers import is_float, lanes_along
from superopt.kernels.emit.scope import LoopScope
from superopt.kernels.loops import simplify
from superopt.kernels.loops.stage import extent

_NARROW_WINDOW = 8  # see `_most_written`
IteratorBounds = tuple[tuple[int, Size], ...]  # (sign, rest): sign * it + rest >= 0


@dataclass(frozen=True, slots=True)
class AccumulatorStep:
    """One term, combined into an accumulator of every point.

    Attributes:
        value: the term.
        copy: number of the accumulator.
    """

    value: Expr
    copy: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """The place for reductions inside this expression whose iterators are all known here."""

    value: Expr


@dataclass(frozen=True, slots=True)
class AccumulatorLoop:
    """A loop over one iterator of a reduction; a single iteration where `step` reaches the end.

    Attributes:
        it: the iterator.
        first: its first value.
        last: its end (excluded).
        piece: the range of the iterator in which guards were decided.
        turns: code of one iteration, in equal parts; the iterator grows by `step / len(turns)` from part to part.
        step: growth of the iterator.
        limits: conditions that narrow the range.
        tail: active lanes, where not all are.
        rest: whether a last iteration of fewer lanes follows.
    """

    it: Symbol
    first: int
    last: int
    piece: tuple[int, int]
    turns: tuple[tuple[LoopCode, ...], ...]
    step: int = 1
    limits: IteratorBounds = ()
    tail: int | None = None
    rest: bool = False


LoopCode = AccumulatorStep | Ready | AccumulatorLoop


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction as loops with accumulators.

    Attributes:
        reduction: the reduction.
        dtype: dtype of the accumulators.
        wide: whether its value differs between lanes.
        points: one point for each different value.
        copies: accumulators of each point.
        scope: facts inside, with the lane along which the loops run.
        code: the loops.
    """

    reduction: Expr
    dtype: str
    wide: bool
    points: tuple[int, ...]
    copies: int
    scope: LoopScope
    code: tuple[LoopCode, ...]


def lower(e: Expr, scope: LoopScope) -> Fold:
    """Return a reduction as loops, for all points at which it differs."""
    return _LoopLowering(e, scope).fold()


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix at one point, as an accumulator that a loop carries.

    Attributes:
        reduction: the prefix.
        point: the point.
        dtype: dtype of the accumulator.
        lanes: its lanes; 0 for a scalar.
    """

    reduction: Expr
    point: int
    dtype: str
    lanes: int


@dataclass(frozen=True, slots=True)
class CarriedPrefixes:
    """The prefixes that one loop carries, for all points at which they differ.

    Attributes:
        it: the iterator of the loop.
        along: whether it is the lane.
        sign: 1 where the loop goes up, -1 where it goes down.
    """

    it: Symbol
    along: bool
    sign: int
    prefixes: tuple[Prefix, ...]


def prefixes(value: Expr, it: Symbol, scope: LoopScope, lanes: int = 0) -> CarriedPrefixes | None:
    """Return the prefixes of a value over an iterator that its loop carries; None where there is none.

    Args:
        value: the value.
        it: the iterator.
        scope: facts around the loop.
        lanes: lanes of the vectors along the iterator, where it is the lane.
    """
    known = {it, *scope.bound}
    guarded = frozenset[Symbol]().union(*[guard.symbols for guard, _ in scope.guards])
    ready = [
        e for e in scope.reductions(value)
        if direction(e, it) and known.issuperset(e.symbols) and (known.issuperset(guarded) or scope.inside(e))
        and not (ordered(e, scope) and (lanes or direction(e, it) < 0))
    ]  # fmt: skip
    if not ready:
        return None
    sign = direction(ready[0], it)
    carried: list[Prefix] = []
    for e in ready:
        if direction(e, it) == sign:
            wide = lanes or (scope.lanes if scope.lane is not None and scope.lane in e.symbols else 0)
            carried += [Prefix(e, p, sums(e), wide) for p in scope.representatives(e)]
    return CarriedPrefixes(it, lanes > 0, sign, tuple(carried))


def sums(e: Expr) -> str:
    """Return the dtype in which a reduction accumulates."""
    return accumulator(e.dtype) if e.args[0] in ("sum", "prod") else e.dtype


def ordered(e: Expr, scope: LoopScope) -> bool:
    """Whether the terms must be added in their order."""
    return is_float(e.dtype) and e.args[0] in ("sum", "prod") and not scope.licence.reassociation


def _most_written(scope: LoopScope, body: Expr) -> int:
    """Return the largest window that is unrolled: small where a loop costs nothing, or registers do not hold more.

    49 steps of a sigmoid for eight vectors, unrolled, took four seconds to compile.  Seven depthwise convolutions on 16
    registers took 0.99 times as long in a loop, and the kernels of EfficientNet-B0 half as long to compile.
    """
    if any(e.kind == "op" and SCALARS[e.args[0]].transcendental for e in subexpressions(body)):
        return scope.knobs.accumulators
    return scope.knobs.window if scope.cpu.registers >= 32 else min(scope.knobs.window, _NARROW_WINDOW)


class _LoopLowering:
    """The decisions about one reduction."""

    def __init__(self, e: Expr, scope: LoopScope) -> None:
        self.e = e
        self.monoid, iterators, self.body = e.args
        self.wide = scope.lane is not None and scope.lane in e.symbols
        self.points = scope.representatives(e)
        self.along = None if self.wide else self._lane(scope, iterators)
        self.order: list[Symbol] = [it for it in iterators if it != self.along] + ([self.along] if self.along else [])
        self.small = self.along is None and prod(extent(it) for it in iterators) <= _most_written(scope, self.body)
        if not self.wide:
            lanes = lanes_along(subexpressions(self.body), self.along, scope.cpu) if self.along else 0
            scope = scope.along(self.along, lanes)
        self.scope = scope
        self.copies = self._copies()

    def _lane(self, scope: LoopScope, iterators: tuple[Symbol, ...]) -> Symbol | None:
        """Return the iterator along which lanes run: the one with unit stride in most loads.

        None without lanes, or if the licence forbids reordering.
        """
        if not scope.knobs.lane or ordered(self.e, scope):
            return None
        loads = [x for x in subexpressions(self.body) if x.kind == "load"]
        best, most = None, (-1, -1)
        for j, it in enumerate(iterators):
            if extent(it) < 2:
                continue
            steps = [coefficient(x.args[1][0], it) for x in loads]
            score = sum(2 if k in (1, -1) else -1 if k is None or k else 0 for k in steps), j
            if score > most or best is None:
                best, most = it, score
        return best

    def _copies(self) -> int:
        """Return the number of accumulators per point that hides the latency of combining."""
        if self.small or ordered(self.e, self.scope):
            return 1
        inner = extent(self.order[-1]) // (self.scope.lanes if self.along else 1)
        most = max(1, self.scope.knobs.accumulators // len(self.points))
        return max(1, min(most, inner))

    def fold(self) -> Fold:
        code = (Ready(self.body), *self._loops(0, self.body, self.scope))
        return Fold(self.e, sums(self.e), self.wide, tuple(self.points), self.copies, self.scope, code)

    # ---- loops

    def _loops(self, j: int, body: Expr, scope: LoopScope) -> list[LoopCode]:
        """Return the loops from iterator j on."""
        it, made = self.order[j], list[LoopCode]()
        sides = simplify.guards_in([body]) if scope.knobs.cut else []
        for low, high in simplify.cuts(it, 0, extent(it), sides, scope.ranges):
            inner = scope.narrowed(it, low, high)
            made += self._piece(j, simplify.decide(body, inner.ranges), inner, (low, high))
        return made

    def _piece(self, j: int, body: Expr, scope: LoopScope, piece: tuple[int, int]) -> list[LoopCode]:
        it, (low, high) = self.order[j], piece
        if self._nothing(body):
            return []
        if self.small:
            return [c for v in range(low, high) for c in self._written(j, v, body, scope, piece)]
        body, limits = self._limits(it, body, scope)
        low, high, limits = _narrowed(low, high, limits, scope)
        if it is self.along:
            return self._lanes(it, body, (low, high), limits, piece)
        if j < len(self.order) - 1 or limits:
            single = low if high - low == 1 and not limits else None
            inner = self._inside(j, body, scope.entered(it, value=single))
            return [AccumulatorLoop(it, low, high, piece, (inner,), limits=limits)]
        whole = low + max(0, high - low) // self.copies * self.copies
        turns = tuple([(AccumulatorStep(body, c),) for c in range(self.copies)])
        made: list[LoopCode] = [AccumulatorLoop(it, low, whole, piece, turns, self.copies)]
        return made + [AccumulatorLoop(it, v, v + 1, piece, ((AccumulatorStep(body),),)) for v in range(whole, high)]

    def _inside(self, j: int, body: Expr, scope: LoopScope) -> tuple[LoopCode, ...]:
        """Return the code of one iteration, into the first accumulator of each point."""
        if j == len(self.order) - 1:
            return (AccumulatorStep(body),)
        return Ready(body), *self._loops(j + 1, body, scope)

    def _written(self, j: int, v: int, body: Expr, scope: LoopScope, piece: tuple[int, int]) -> list[LoopCode]:
        """Return one unrolled step of a window, at the level around it, so that steps and points share loads."""
        it = self.order[j]
        if self.e in scope.rows:
            return [AccumulatorLoop(it, v, v + 1, piece, (self._inside(j, body, scope.entered(it, value=v)),))]
        body = simplify.decide(body.substitute({it: v}), scope.ranges)
        if self._nothing(body):
            return []
        return self._loops(j + 1, body, scope) if j < len(self.order) - 1 else [AccumulatorStep(body)]

    def _lanes(
        self, it: Symbol, body: Expr, ends: tuple[int, int], limits: IteratorBounds, piece: tuple[int, int]
    ) -> list[LoopCode]:
        """Return the loop along the lanes: several vectors at a time, then single ones, then a partial one."""
        n, (first, last) = self.scope.lanes, ends
        one: tuple[tuple[LoopCode, ...], ...] = ((AccumulatorStep(body),),)
        if limits:
            return [AccumulatorLoop(it, first, last, piece, one, n, limits, rest=True)]
        last = max(first, last)
        step = n * self.copies
        whole = first + (last - first) // step * step
        turns = tuple([(AccumulatorStep(body, c),) for c in range(self.copies)])
        made: list[LoopCode] = [AccumulatorLoop(it, first, whole, piece, turns, step)]
        made += [AccumulatorLoop(it, v, v + n, piece, one, n) for v in range(whole, last - n + 1, n)]
        at = last - (last - first) % n
        return [*made, AccumulatorLoop(it, at, last, piece, one, n, tail=last - at)] if at < last else made

    # ---- guards as bounds

    def _nothing(self, body: Expr) -> bool:
        return body.kind == "const" and body.args[0] == identity(self.monoid, self.e.dtype)

    def _limits(self, it: Symbol, body: Expr, scope: LoopScope) -> tuple[Expr, IteratorBounds]:
        """Return the body without the guards that bound this loop, and the bounds."""
        if body.kind != "where" or not self._nothing(body.args[2]):
            return body, ()
        guard: Guard = body.args[0]
        limits: list[tuple[int, Size]] = []
        left: list[Poly] = []
        for p in guard.ordered:
            k = coefficient(p, it)
            rest = p - of_atom(it) * (k or 0)
            if k in (1, -1) and _known(rest, scope):
                limits.append((k, rest))
            else:
                left.append(p)
        if not limits:
            return body, ()
        remaining = all_of(*[Guard((p,)) for p in left])
        return where(remaining, lambda: body.args[1], lambda: body.args[2]), tuple(limits)


def _known(x: Size, scope: LoopScope) -> bool:
    """Whether all iterators of the index are known, none of them the lane, none spread over points."""
    if not isinstance(x, Poly):
        return True
    if simplify.forms_in(x):
        return False
    return all(s in scope.bound and s != scope.lane and s not in scope.spread for s in x.symbols)


def _narrowed(low: int, high: int, limits: IteratorBounds, scope: LoopScope) -> tuple[int, int, IteratorBounds]:
    """Return a range narrowed by the limits that are numbers here, and the other limits."""
    left: list[tuple[int, Size]] = []
    for sign, rest in limits:
        value = scope.number(rest)
        if value is None:
            left.append((sign, rest))
        elif sign > 0:
            low = max(low, -value)
        else:
            high = min(high, value + 1)
    return low, high, tuple(left)
