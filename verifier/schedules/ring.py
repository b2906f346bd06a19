"""Sums of products: expressions as `coefficient * sum over iterators of [guards] factors`, compared term by term.

The ring laws that the structural comparison does not have: products distribute over sums, terms cancel, an iterator
that nothing depends on is a factor.  They hold modulo 2^n, so for integers as they wrap; for floats over the reals.
A conversion between integers is transparent where nothing inside it wraps and its target holds the value: the byte
that is offset by 128, stored unsigned and widened again is itself plus 128.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product

from superopt.ir.expr import Expr, const, convert, op, subexpressions
from superopt.ir.index import Poly, Size, Symbol, of_atom, substitute
from superopt.ir.types import FLOATS
from verifier.schedules.intervals import box_of
from verifier.schedules.numbers import INTEGERS, Ranges, range_of_dtype

_MOST = 24


class TooManyError(Exception):
    """An expression has more terms than are compared."""


@dataclass(frozen=True, slots=True)
class SumTerm:
    """`coefficient` times the sum over iterators, where all guards hold, of the product of factors."""

    coefficient: Fraction
    iterators: tuple[Symbol, ...] = ()
    guards: tuple[Poly, ...] = ()
    factors: tuple[Expr, ...] = ()

    @property
    def symbols(self) -> frozenset[Symbol]:
        """Symbols of guards and factors."""
        return frozenset[Symbol]().union(*(g.symbols for g in self.guards), *(f.symbols for f in self.factors))

    def body(self, dtype: str) -> Expr:
        """The product of the factors; 1 of none."""
        found: Expr | None = None
        for f in self.factors:
            same = f if f.dtype == dtype else convert(f, f.dtype, dtype)
            found = same if found is None else op("mul", dtype, found, same)
        return const(1, dtype) if found is None else found


@dataclass
class Expansion:
    """Expressions of one dtype as terms."""

    dtype: str
    ranges: Ranges = field(default_factory=Ranges)
    _fresh: int = 0

    def terms(self, e: Expr) -> list[SumTerm]:
        """The terms of an expression.

        Raises:
            TooManyError: there are too many.
        """
        found = [self._counted(t) for t in self._terms(e)]
        if len(found) > _MOST:
            raise TooManyError
        return [t for t in found if t.coefficient]

    def _terms(self, e: Expr) -> list[SumTerm]:
        if e.kind == "const" and e.dtype != "bool":
            value = e.args[0]
            if value != value or value in (float("inf"), -float("inf")):
                return [SumTerm(Fraction(1), factors=(e,))]
            return [SumTerm(Fraction(value))]
        if e.kind == "op":
            args = e.operands
            match e.args[0]:
                case "add":
                    return [t for x in args for t in self._terms(x)]
                case "sub":
                    return self._terms(args[0]) + _negated(self._terms(args[1]))
                case "neg":
                    return _negated(self._terms(args[0]))
                case "mul":
                    return self._product(*args)
                case "div" if e.dtype in FLOATS and not _is_one(args[0]):
                    one = const(1, e.dtype)
                    return self._product(args[0], op("div", e.dtype, one, args[1]))
                case _:
                    pass
        if e.kind == "reduce" and e.args[0] == "sum":
            own = frozenset[Symbol](e.args[1])
            inner = [self._apart(t) if not own.isdisjoint(t.iterators) else t for t in self._terms(e.args[2])]
            return [replace(t, iterators=(*e.args[1], *t.iterators)) for t in inner]
        if e.kind == "where" and e.args[2].kind == "const" and e.args[2].args[0] == 0:
            own = frozenset[Symbol]().union(*(g.symbols for g in e.args[0].ordered))
            inner = [self._apart(t) if not own.isdisjoint(t.iterators) else t for t in self._terms(e.args[1])]
            return [replace(t, guards=(*e.args[0].ordered, *t.guards)) for t in inner]
        if e.kind == "convert" and self._transparent(e):
            return self._terms(e.args[1])
        return [SumTerm(Fraction(1), factors=(e,))]

    def _transparent(self, e: Expr) -> bool:
        if e.dtype not in INTEGERS or e.args[0] not in INTEGERS:
            return False
        inner = e.args[1]
        if inner.kind == "load":
            return False  # an atom either way: kept as the conversion that it is
        low, high = self.ranges.of(inner)
        least, most = range_of_dtype(e.dtype)
        return self.ranges.whole.get(inner, False) and least <= low and high <= most

    def _product(self, a: Expr, b: Expr) -> list[SumTerm]:
        left, right = self._terms(a), self._terms(b)
        if len(left) * len(right) > _MOST:
            raise TooManyError
        return [self._times(x, y) for x, y in product(left, right)]

    def _times(self, x: SumTerm, y: SumTerm) -> SumTerm:
        x, y = self._apart(x), self._apart(y)  # binders of two sums, or of one and a factor, may have one name
        return SumTerm(
            x.coefficient * y.coefficient,
            (*x.iterators, *y.iterators),
            (*x.guards, *y.guards),
            tuple(sorted((*x.factors, *y.factors), key=_key)),
        )

    def _apart(self, t: SumTerm) -> SumTerm:
        """The same term with iterators under names of their own."""
        if not t.iterators:
            return t
        self._fresh += 1
        new: dict[Symbol, Size] = {s: of_atom(Symbol(f"{self._fresh}'{s.name}", s.low, s.high)) for s in t.iterators}
        return SumTerm(
            t.coefficient,
            tuple([next(iter(p.symbols)) for p in new.values() if isinstance(p, Poly)]),
            tuple([p for p in (substitute(g, new) for g in t.guards) if isinstance(p, Poly)]),
            tuple([f.substitute(new) for f in t.factors]),
        )

    def _counted(self, t: SumTerm) -> SumTerm:
        """Iterators that nothing depends on are factors."""
        used = t.symbols
        k = t.coefficient
        for s in t.iterators:
            if s not in used:
                low, high = box_of(s)
                k *= high - low + 1
        return replace(t, coefficient=k, iterators=tuple([s for s in t.iterators if s in used]))


def _negated(found: Sequence[SumTerm]) -> list[SumTerm]:
    return [replace(t, coefficient=-t.coefficient) for t in found]


def _key(e: Expr) -> tuple[tuple[str, ...], str, str, int, int]:
    """An order of factors that two ways to write them agree on, as far as what they are made of tells them apart."""
    names = sorted({x.args[0] for x in subexpressions(e) if x.kind == "load"})
    return tuple(names), e.kind, e.args[0] if e.kind == "op" else "", e.height, e.uid


def may_expand(l: Expr, r: Expr) -> bool:
    """Is there something for ring laws to do?"""
    if l.dtype not in INTEGERS and l.dtype not in FLOATS:
        return False
    return any(_is_sum(x) for x in (l, r))


def _is_one(e: Expr) -> bool:
    return e.kind == "const" and e.args[0] == 1


def _is_sum(e: Expr) -> bool:
    return (e.kind == "op" and e.args[0] in ("add", "sub", "mul", "neg", "div")) or (
        e.kind == "reduce" and e.args[0] == "sum"
    )
