"""Facts about one place in the loops: known iterators and their ranges, the lane, points, guards.

A scope never changes; each of its methods that enters something returns another.  Caches are shared between scopes that
agree in all on which they depend.

Several points can be computed at once (vectors along the lane, rows of a tile).  An iterator then has a base and an
offset per point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import Guard, Size, Symbol, bounds, substitute
from superopt.kernels.emit.options import Knobs, Licence
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.loops import simplify
from superopt.kernels.loops.stage import Buffer

Guards = tuple[tuple[Guard, bool], ...]
RowValue = tuple[Expr, str, Size]  # (a value, the buffer that keeps it, its linear index there)


@dataclass(frozen=True, slots=True, eq=False)
class LoopScope:
    """Known facts at one place of a kernel.

    Attributes:
        bound: iterators that have a value here, with the value where it is a number.
        ranges: least and greatest value of iterators, where narrower than their own.
        lane: the iterator along the vectors; None between scalars.
        lanes: lanes of a vector.
        tail: active lanes, where not all are.
        guards: guards around the current value, and whether each holds.
        spread: offsets of the points, by iterator.
        points: number of points.
        point: the current point.
        rows: values of a reduction's steps that are kept for a later phase of the row.
        pending: buffers that loops further in will fill.
    """

    cpu: Cpu
    licence: Licence
    knobs: Knobs
    buffers: Mapping[str, Buffer]
    bound: Mapping[Symbol, int | None] = field(default_factory=dict[Symbol, int | None])
    ranges: Mapping[Symbol, tuple[int, int]] = field(default_factory=dict[Symbol, tuple[int, int]])
    lane: Symbol | None = None
    lanes: int = 0
    tail: int | str | None = None
    guards: Guards = ()
    spread: Mapping[Symbol, tuple[int, ...]] = field(default_factory=dict[Symbol, tuple[int, ...]])
    points: int = 1
    point: int = 0
    rows: Mapping[Expr, tuple[RowValue, ...]] = field(default_factory=dict[Expr, tuple[RowValue, ...]])
    pending: frozenset[str] = frozenset()
    _inside: dict[Expr, bool] = field(default_factory=dict[Expr, bool])  # of these ranges
    _offsets: dict[frozenset[Symbol], list[tuple[int, ...]]] = field(
        default_factory=dict[frozenset[Symbol], list[tuple[int, ...]]]
    )  # of these points
    _reductions: dict[Expr, list[tuple[Expr, bool]]] = field(default_factory=dict[Expr, list[tuple[Expr, bool]]])

    # ---- scopes inside

    def entered(self, it: Symbol, value: int | None = None) -> LoopScope:
        """Return the scope in which an iterator has a value, maybe a number."""
        return replace(self, bound={**self.bound, it: value})

    def narrowed(self, it: Symbol, low: int, high: int) -> LoopScope:
        """Return the scope in which `low <= it < high`."""
        return replace(self, ranges={**self.ranges, it: (low, high - 1)}, _inside={})

    def along(self, lane: Symbol | None, lanes: int, tail: int | str | None = None) -> LoopScope:
        """Return the scope with vectors along an iterator, so many of their lanes active."""
        return replace(self, lane=lane, lanes=lanes, tail=tail)

    def under(self, *guards: tuple[Guard, bool]) -> LoopScope:
        """Return the scope with exactly these guards around the value."""
        return self if guards == self.guards else replace(self, guards=guards)

    def at(self, point: int) -> LoopScope:
        """Return the scope of another point."""
        return self if point == self.point else replace(self, point=point)

    def alone(self) -> LoopScope:
        """Return the scope of the current point alone."""
        spread = {s: (known[self.point],) for s, known in self.spread.items()}
        return replace(self, spread=spread, points=1, point=0, _offsets={})

    def spread_over(self, it: Symbol, offsets: Sequence[int]) -> LoopScope:
        """Return the scope in which every point is there once for each offset of an iterator."""
        n = len(offsets)
        spread = {s: tuple([o for o in known for _ in range(n)]) for s, known in self.spread.items()}
        spread[it] = tuple(offsets) * self.points
        return replace(self, spread=spread, points=self.points * n, point=self.point * n, _offsets={})

    def numbered(self, it: Symbol) -> LoopScope:
        """Return the scope in which an iterator is the number of the point."""
        spread = {**self.spread, it: tuple(range(self.points))}
        return replace(self, bound={**self.bound, it: 0}, spread=spread, _offsets={})

    def holding(self, buffer: Buffer) -> LoopScope:
        """Return the scope with one more buffer."""
        return replace(self, buffers={**self.buffers, buffer.name: buffer})

    def keeping(self, reduction: Expr, value: RowValue) -> LoopScope:
        """Return the scope in which a reduction keeps one more value of its steps."""
        return replace(self, rows={**self.rows, reduction: (*self.rows.get(reduction, ()), value)})

    def awaiting(self, pending: frozenset[str]) -> LoopScope:
        """Return the scope in which exactly these buffers are not filled yet."""
        return self if pending == self.pending else replace(self, pending=pending)

    # ---- points

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
            here = [o for s, o in self.spread.items() if s in symbols]
            known = self._offsets[symbols] = [*zip(*here, strict=True)] if here else [()] * self.points
        return known

    def representatives(self, e: Expr) -> list[int]:
        """Return one point for each value of an expression among the points: of its iterators, and of its guards'."""
        first: dict[tuple[int, ...], int] = {}
        for p, offsets in enumerate(self._offsets_of(self._symbols_under_guards(e))):
            first.setdefault(offsets, p)
        return list(first.values())

    # ---- facts about indices and expressions

    def number(self, x: Size) -> int | None:
        """Return the value of an index whose iterators all have numbers for values; None for any other."""
        if isinstance(x, int):
            return x
        values: dict[Symbol, Size] = {s: v for s in x.symbols if (v := self.bound.get(s)) is not None}
        made = substitute(x, values) if len(values) == len(x.symbols) else x
        return made if isinstance(made, int) else None

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
        return prod(self.buffers[buffer].shape)

    def key(self, e: Expr, point: int | None = None) -> tuple[object, ...]:
        """Return what identifies the value of an expression at a point (the current one), under guards."""
        guards = self._guards_of(e)
        if not self.spread:
            return (e, (), guards)
        symbols = self._symbols_under_guards(e)
        return (e, self._offsets_of(symbols)[self.point if point is None else point], guards)

    def _symbols_under_guards(self, e: Expr) -> frozenset[Symbol]:
        """Return the iterators of an expression, and those of the guards outside of which it may not be evaluated."""
        return e.symbols.union(*[g.symbols for g, _ in self._guards_of(e)])

    def _guards_of(self, e: Expr) -> Guards:
        """Return the guards outside of which an expression may not be evaluated."""
        return self.guards if self.guards and not self.inside(e) else ()

    def context(self, symbols: frozenset[Symbol], scalars: Iterable[Expr]) -> tuple[object, ...]:
        """Return what identifies indices over these iterators and scalars: the point's offsets, and guards."""
        if self.guards and not all(self.inside(v) for v in scalars):
            return (self.offsets(symbols.union(*[g.symbols for g, _ in self.guards])), self.guards)
        return self.offsets(symbols)

    def reductions(self, e: Expr) -> list[Expr]:
        """Return the reductions of an expression that may be evaluated whatever its guards are, inner ones first."""
        known = self._reductions.get(e)
        if known is None:
            known = self._reductions[e] = simplify.reductions(e)
        return [x for x, guarded in known if not guarded or self.inside(x)]

    def awaits(self, e: Expr) -> bool:
        """Whether the expression reads a buffer that is not filled yet."""
        return bool(self.pending) and any(x.kind == "load" and x.args[0] in self.pending for x in subexpressions(e))
