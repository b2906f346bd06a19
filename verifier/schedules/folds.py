"""Guarded sums: folds of `[guards] body` over iterators, sums of products of them, and guesses at how two correspond.

A fold over a fold is one fold; a choice whose other branch is neutral is a guard; a factor that is 0 unless a guard
holds makes it a guard of the product.  Correspondences guessed here (from the indices at which two bodies read the same
buffers, or from extents) are proved by the caller.

Ring laws: products distribute over sums, terms cancel, an iterator that nothing depends on is a factor.  They hold
modulo 2^n, so for integers that wrap, and for floats over the reals.  A conversion between integers is transparent
where nothing inside it wraps and its target holds the value.  For example, a byte that is offset by 128, stored
unsigned and widened again is itself plus 128.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from math import prod

from superopt.ir.algebra import COMBINE
from superopt.ir.expr import Expr, const, convert, op, reduce, subexpressions
from superopt.ir.index import Poly, Size, Symbol, of_atom, substitute
from superopt.ir.ops.record import accumulator, identity
from superopt.ir.scalar import COMMUTATIVE
from superopt.ir.types import FLOATS, INTEGERS, range_of
from verifier.schedules.intervals import ExprRanges, box_of

_WRITTEN_OUT = 64  # iterations of a fold that are compared one by one with the operands of a sum
Equations = list[tuple[Size, Size]]


@dataclass(frozen=True, slots=True)
class Part:
    """`coefficient` times the fold over iterators, where all guards hold, of a product of factors.

    `strict`: guards came out of a product by 0 * x = 0.
    """

    iterators: tuple[Symbol, ...] = ()
    guards: tuple[Poly, ...] = ()
    factors: tuple[Expr, ...] = ()
    strict: bool = False
    coefficient: Fraction = Fraction(1)

    @property
    def body(self) -> Expr:
        """The factor of a part with exactly one."""
        (body,) = self.factors
        return body

    @property
    def symbols(self) -> frozenset[Symbol]:
        """Symbols of guards and factors."""
        return frozenset[Symbol]().union(*(g.symbols for g in self.guards), *(f.symbols for f in self.factors))

    def named(self, new: Mapping[Symbol, Symbol]) -> Part:
        """The same fold with some iterators under other names."""
        if not new:
            return self
        mapping: dict[Symbol, Size] = {s: of_atom(t) for s, t in new.items()}
        guards = tuple([p for p in (substitute(g, mapping) for g in self.guards) if isinstance(p, Poly)])
        factors = tuple([f.substitute(mapping) for f in self.factors])
        return replace(self, iterators=tuple([new.get(s, s) for s in self.iterators]), guards=guards, factors=factors)

    def apart(self, taken: frozenset[Symbol]) -> Part:
        """The same fold, with iterators renamed to avoid the names taken."""
        return self.named(unlike(self.iterators, taken))

    def multiplied(self, dtype: str) -> Part:
        """The same fold with the product of its factors as its one factor; the product of none is 1."""
        joined: Expr | None = None
        for f in self.factors:
            same = f if f.dtype == dtype else convert(f, f.dtype, dtype)
            joined = same if joined is None else op("mul", dtype, joined, same)
        return replace(self, factors=(const(1, dtype) if joined is None else joined,))


def is_zero(e: Expr) -> bool:
    """Whether an expression is the constant 0."""
    return e.kind == "const" and e.args[0] == 0


def row_major(left: Sequence[Symbol], right: Sequence[Symbol]) -> dict[Symbol, Size] | None:
    """Map each iterator to a number whose digits are the next iterators of the other side, as a split makes it."""
    strides: dict[Symbol, Size] = {}
    rest = list(right)
    for s in left:
        total: Size = 0
        reach = 1
        while rest and (reach < extent(s) or not strides):
            digit = rest.pop(0)
            total = total * extent(digit) + of_atom(digit)
            reach *= extent(digit)
            if reach >= extent(s):
                break
        if reach < extent(s):
            return None
        strides[s] = total
    return None if rest else strides


# ---- normal form of folds


def parts(e: Expr, monoid: str, split: bool) -> list[Part]:
    """An expression as a fold of guarded bodies.

    Args:
        e: the expression.
        monoid: of the fold.
        split: whether to split at the monoid's binary function, so that `a + b` is two parts of a sum.
    """
    neutral = identity(monoid, e.dtype)
    if e.kind == "reduce" and e.args[0] == monoid:
        own = frozenset[Symbol](e.args[1])
        pieces = [p.apart(own) for p in parts(e.args[2], monoid, split)]
        return [replace(p, iterators=(*e.args[1], *p.iterators)) for p in pieces]
    if e.kind == "where":
        guard, then, orelse = e.args
        if _is_const(orelse, neutral):
            return [_under(p, guard.ordered) for p in parts(then, monoid, split)]
        if len(guard.terms) == 1:
            (g,) = guard.terms
            negated = -1 - g
            assert isinstance(negated, Poly)
            kept = [] if _is_const(then, neutral) else [(g, p) for p in parts(then, monoid, split)]
            kept += [(negated, p) for p in parts(orelse, monoid, split)]
            return [_under(p, [g]) for g, p in kept]
    if split and e.kind == "op" and e.args[0] == COMBINE[monoid] and e.args[1] == e.dtype:
        return [p for x in e.operands for p in parts(x, monoid, split)]
    if monoid == "sum":
        guards, core = _stripped(e)
        if core is not e:
            return [replace(_under(p, guards), strict=True) for p in parts(core, monoid, split)]
    return [Part(factors=(e,))]


def widened(e: Expr) -> Expr:
    """A sum or product of 16-bit floats written as its denotation: accumulated in float32, and rounded once."""
    if e.kind != "reduce" or e.args[0] not in ("sum", "prod") or accumulator(e.dtype) == e.dtype:
        return e
    wide = accumulator(e.dtype)
    return convert(reduce(e.args[0], e.args[1], convert(e.args[2], e.dtype, wide)), wide, e.dtype)


def _under(p: Part, guards: Sequence[Poly]) -> Part:
    p = p.apart(frozenset[Symbol]().union(*(g.symbols for g in guards)))
    return replace(p, guards=(*guards, *p.guards))


def unlike(symbols: Sequence[Symbol], taken: frozenset[Symbol]) -> dict[Symbol, Symbol]:
    """New names for the iterators whose names are taken."""
    names = {s.name for s in (*taken, *symbols)}
    used = {t.name for t in taken}
    renamed: dict[Symbol, Symbol] = {}
    for s in symbols:
        if s.name in used:
            name = s.name
            while name in names:
                name += "'"
            names.add(name)
            renamed[s] = Symbol(name, s.low, s.high)
    return renamed


def _stripped(e: Expr) -> tuple[tuple[Poly, ...], Expr]:
    """Guards outside of which a product is 0, and the product without them."""
    if e.kind == "where" and is_zero(e.args[2]):
        guards, core = _stripped(e.args[1])
        return (*e.args[0].ordered, *guards), core
    if e.kind == "op" and e.args[0] == "mul":
        stripped = [_stripped(x) for x in e.operands]
        if any(core is not x for (_, core), x in zip(stripped, e.operands, strict=True)):
            return tuple(g for gs, _ in stripped for g in gs), op("mul", e.args[1], *(core for _, core in stripped))
    if e.kind == "convert":
        guards, core = _stripped(e.args[1])
        if core is not e.args[1]:
            return guards, convert(core, e.args[0], e.dtype)
    return (), e


def _is_const(e: Expr, value: float) -> bool:
    return e.kind == "const" and e.args[0] == value


def written_out(found: list[Part], count: int) -> list[Part]:
    """Short folds unrolled into their terms, where that may give the other side's number of parts."""
    if len(found) >= count or any(p.guards for p in found):
        return found
    if sum(prod(extent(s) for s in p.iterators) for p in found) > _WRITTEN_OUT:
        return found
    out: list[Part] = []
    for p in found:
        for point in product(*(range(extent(s)) for s in p.iterators)):
            out.append(Part(factors=(p.body.substitute(dict(zip(p.iterators, point, strict=True))),)))
    return out


def extent(s: Symbol) -> int:
    """Number of values of an iterator."""
    low, high = box_of(s)
    return high - low + 1


# ---- correspondence of the loads of two bodies


def unified(l: Expr, r: Expr) -> Iterator[Equations]:
    """Equations between indices under which two bodies may be the same: guesses, which the caller checks."""
    for swap in (False, True):
        equations: Equations = []
        if _unify(l, r, equations, swap, set()):
            yield equations
    yield []


def _unify(l: Expr, r: Expr, found: Equations, swap: bool, seen: set[tuple[Expr, Expr]]) -> bool:
    """Whether two expressions have one form; the equations of indices that make them equal are added to `found`."""
    if (l, r) in seen:
        return True
    seen.add((l, r))
    if l.kind == "where" and r.kind != "where":
        return _unify(l.args[1], r, found, swap, seen)
    if r.kind == "where" and l.kind != "where":
        return _unify(l, r.args[1], found, swap, seen)
    if l.kind != r.kind or l.dtype != r.dtype:
        return False
    match l.kind:
        case "load":
            if l.args[0] != r.args[0]:
                return False
            found += zip(l.args[1], r.args[1], strict=True)
            return True
        case "index":
            found.append((l.args[0], r.args[0]))
            return True
        case "op":
            a, b = list(l.operands), list(r.operands)
            if l.args[0] != r.args[0] or len(a) != len(b):
                return False
            if l.args[0] in COMMUTATIVE and len(a) == 2 and _swapped(a, b, swap):
                b.reverse()
            return all(_unify(x, y, found, swap, seen) for x, y in zip(a, b, strict=True))
        case "reduce":
            return l.args[0] == r.args[0] and _unify(l.args[2], r.args[2], found, swap, seen)
        case "const":
            return l is r
        case _:
            return all(_unify(x, y, found, swap, seen) for x, y in zip(l.operands, r.operands, strict=True))


def _swapped(a: list[Expr], b: list[Expr], swap: bool) -> bool:
    """Whether two operands should change places: only then do they read the same buffers, or `swap` asks for it."""
    left, right = [_buffers(x) for x in a], [_buffers(x) for x in b]
    if left == right:
        return swap and left[0] == left[1]
    return left == right[::-1]


def _buffers(e: Expr) -> frozenset[str]:
    return frozenset(x.args[0] for x in subexpressions(e) if x.kind == "load")


_MOST = 24


class TooManyError(Exception):
    """Raised when an expression has more terms than are compared."""


@dataclass
class Expansion:
    """Expansion of expressions of one dtype into sums of terms by ring laws."""

    dtype: str
    ranges: ExprRanges = field(default_factory=ExprRanges)
    _fresh: int = 0

    def terms(self, e: Expr) -> list[Part]:
        """The terms of an expression.

        Raises:
            TooManyError: there are more than 24.
        """
        counted = [self._counted(t) for t in self._terms(e)]
        if len(counted) > _MOST:
            raise TooManyError
        return [t for t in counted if t.coefficient]

    def _terms(self, e: Expr) -> list[Part]:
        """Return the terms of a sum into which an expression multiplies out."""
        if e.kind == "const" and e.dtype != "bool":
            value = e.args[0]
            if value != value or value in (float("inf"), -float("inf")):
                return [Part(factors=(e,))]
            return [Part(coefficient=Fraction(value))]
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
        return [Part(factors=(e,))]

    def _transparent(self, e: Expr) -> bool:
        if e.dtype not in INTEGERS or e.args[0] not in INTEGERS:
            return False
        inner = e.args[1]
        if inner.kind == "load":
            return False  # a load is an atom either way, so the conversion stays
        low, high = self.ranges.of(inner)
        least, most = range_of(e.dtype)
        return self.ranges.whole.get(inner, False) and least <= low and high <= most

    def _product(self, a: Expr, b: Expr) -> list[Part]:
        left, right = self._terms(a), self._terms(b)
        if len(left) * len(right) > _MOST:
            raise TooManyError
        return [self._times(x, y) for x, y in product(left, right)]

    def _times(self, x: Part, y: Part) -> Part:
        x, y = self._apart(x), self._apart(y)  # binders of two sums, or of one and a factor, may have one name
        return Part(
            (*x.iterators, *y.iterators),
            (*x.guards, *y.guards),
            tuple(sorted((*x.factors, *y.factors), key=_key)),
            coefficient=x.coefficient * y.coefficient,
        )

    def _apart(self, t: Part) -> Part:
        """The same term with fresh names for its iterators."""
        if not t.iterators:
            return t
        self._fresh += 1
        return t.named({s: Symbol(f"{self._fresh}'{s.name}", s.low, s.high) for s in t.iterators})

    def _counted(self, t: Part) -> Part:
        """The same term, with each iterator that nothing depends on replaced by its extent as a factor."""
        used = t.symbols
        k = t.coefficient
        for s in t.iterators:
            if s not in used:
                low, high = box_of(s)
                k *= high - low + 1
        return replace(t, coefficient=k, iterators=tuple([s for s in t.iterators if s in used]))


def _negated(found: Sequence[Part]) -> list[Part]:
    return [replace(t, coefficient=-t.coefficient) for t in found]


def _key(e: Expr) -> tuple[tuple[str, ...], str, str, int, str]:
    """Sort key that orders the factors of a product canonically, as far as their buffers, ops and text differ."""
    names = sorted({x.args[0] for x in subexpressions(e) if x.kind == "load"})
    return tuple(names), e.kind, e.args[0] if e.kind == "op" else "", e.height, e.key


def may_expand(l: Expr, r: Expr) -> bool:
    """Whether ring laws apply: the dtype is a number and one side is a sum, product, quotient or negation."""
    if l.dtype not in INTEGERS and l.dtype not in FLOATS:
        return False
    return any(_is_sum(x) for x in (l, r))


def _is_one(e: Expr) -> bool:
    return e.kind == "const" and e.args[0] == 1


def _is_sum(e: Expr) -> bool:
    return (e.kind == "op" and e.args[0] in ("add", "sub", "mul", "neg", "div")) or (
        e.kind == "reduce" and e.args[0] == "sum"
    )
