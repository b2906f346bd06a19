"""Conditions over index polynomials, in negation normal form, and integers whose comparisons are such conditions.

A condition is true, false, `p >= 0`, `p == 0`, `p != 0`, or a conjunction or disjunction of conditions.  Comparisons
are divided by the greatest common divisor of their coefficients (and the constant rounded), so that `2i < 2n` and
`i <= n - 1` are one value.  Negation is pushed to the comparisons, so there is no `not` node.

`Sym` wraps a polynomial for code that is generic over the number type: its arithmetic gives symbols, its comparisons
give conditions (so `a == b` is a condition, never a bool: a symbol is no dictionary key).
`rewrites.language.shapes` and `sem` run on ints or on symbols alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import TypeAlias

from rewrites.language.named import Arithmetic
from verifier.equal.poly import Poly, PolyLike, divide, greatest, least, poly

CondOrBool: TypeAlias = "Cond | bool"


@dataclass(frozen=True, slots=True)
class Cond:
    """One condition: `kind` is true, false, ge, eq, ne, and, or."""

    kind: str
    poly: Poly | None = None
    args: tuple[Cond, ...] = ()
    vars: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self} is not known; collect it as a condition instead")

    def __str__(self) -> str:
        if self.kind in ("and", "or"):
            return "(" + f" {self.kind} ".join(map(str, self.args)) + ")"
        if self.poly is None:
            return self.kind
        return f"{self.poly} {({'ge': '>=', 'eq': '==', 'ne': '!='})[self.kind]} 0"

    def subst(self, sub: Mapping[str, Poly]) -> Cond:
        """Replace variables by polynomials."""
        if not any(v in sub for v in self.vars):
            return self
        if self.poly is not None:
            return _compare(self.kind, self.poly.subst(sub))
        parts = [a.subst(sub) for a in self.args]
        return conj(parts) if self.kind == "and" else disj(parts)


TRUE = Cond("true")
FALSE = Cond("false")


def _compare(kind: str, p: Poly) -> Cond:
    v = p.value
    if v is not None:
        return TRUE if {"ge": v >= 0, "eq": v == 0, "ne": v != 0}[kind] else FALSE
    const = dict(p.terms).get((), 0)
    g = gcd(*[c for m, c in p.terms if m])
    if kind != "ge" and next(c for m, c in p.terms if m) < 0:
        p, const = p.scale(-1), -const
    if g > 1:
        if kind != "ge" and const % g:
            return FALSE if kind == "eq" else TRUE
        p = Poly([(m, c // g) for m, c in p.terms if m] + [((), const // g)])
    return Cond(kind, p, (), p.vars)


def ge(a: PolyLike, b: PolyLike) -> Cond:
    """a >= b."""
    return _compare("ge", poly(a) - b)


def lt(a: PolyLike, b: PolyLike) -> Cond:
    """a < b."""
    return _compare("ge", poly(b) - poly(a) - 1)


def eq(a: PolyLike, b: PolyLike) -> Cond:
    """a == b."""
    return _compare("eq", poly(a) - b)


def ne(a: PolyLike, b: PolyLike) -> Cond:
    """a != b."""
    return _compare("ne", poly(a) - b)


def within(x: PolyLike, n: PolyLike) -> tuple[Cond, Cond]:
    """0 <= x < n."""
    return ge(x, 0), lt(x, n)


def truth(c: CondOrBool) -> Cond:
    """A Python bool or a condition as a condition."""
    return c if isinstance(c, Cond) else TRUE if c else FALSE


def conj(parts: Iterable[CondOrBool]) -> Cond:
    """The conjunction of all parts."""
    return _join("and", parts)


def disj(parts: Iterable[CondOrBool]) -> Cond:
    """The disjunction of all parts."""
    return _join("or", parts)


def _join(kind: str, parts: Iterable[CondOrBool]) -> Cond:
    neutral, absorbing = (TRUE, FALSE) if kind == "and" else (FALSE, TRUE)
    out: dict[Cond, None] = {}
    for part in parts:
        c = truth(part)
        for x in c.args if c.kind == kind else (c,):
            if x == absorbing:
                return absorbing
            if x != neutral:
                out[x] = None
    if not out:
        return neutral
    if len(out) == 1:
        return next(iter(out))
    args = tuple(out)
    return Cond(kind, None, args, frozenset[str]().union(*(a.vars for a in args)))


def negate(c: Cond) -> Cond:
    """The negation, in negation normal form."""
    if c.poly is not None:
        if c.kind == "ge":
            return _compare("ge", -c.poly - 1)
        return Cond("ne" if c.kind == "eq" else "eq", c.poly, (), c.vars)
    if c.kind in ("and", "or"):
        parts = [negate(a) for a in c.args]
        return disj(parts) if c.kind == "and" else conj(parts)
    return FALSE if c == TRUE else TRUE


def clauses(c: Cond) -> tuple[Cond, ...]:
    """The conjuncts of a condition."""
    return c.args if c.kind == "and" else () if c == TRUE else (c,)


Int: TypeAlias = "int | Sym"


class Sym:
    """A symbolic integer."""

    __slots__ = ("p",)
    __hash__ = None  # type: ignore[assignment]  # equality is a condition

    def __init__(self, p: Poly) -> None:
        self.p = p

    def __repr__(self) -> str:
        return str(self.p)

    @property
    def key(self) -> Poly:
        """The polynomial, which can be a dictionary key."""
        return self.p

    def __add__(self, o: Int) -> Sym:
        return Sym(self.p + unwrap(o))

    __radd__ = __add__

    def __sub__(self, o: Int) -> Sym:
        return Sym(self.p - unwrap(o))

    def __rsub__(self, o: Int) -> Sym:
        return Sym(unwrap(o) - self.p)

    def __neg__(self) -> Sym:
        return Sym(-self.p)

    def __mul__(self, o: Int) -> Sym:
        return Sym(self.p * unwrap(o))

    __rmul__ = __mul__

    def __floordiv__(self, o: Int) -> Sym:
        return Sym(divide(self.p, unwrap(o))[0])

    def __rfloordiv__(self, o: Int) -> Sym:
        return Sym(divide(unwrap(o), self.p)[0])

    def __mod__(self, o: Int) -> Sym:
        return Sym(divide(self.p, unwrap(o))[1])

    def __rmod__(self, o: Int) -> Sym:
        return Sym(divide(unwrap(o), self.p)[1])

    def __ge__(self, o: Int) -> Cond:
        return ge(self.p, unwrap(o))

    def __gt__(self, o: Int) -> Cond:
        return lt(unwrap(o), self.p)

    def __le__(self, o: Int) -> Cond:
        return ge(unwrap(o), self.p)

    def __lt__(self, o: Int) -> Cond:
        return lt(self.p, unwrap(o))

    def __eq__(self, o: object) -> Cond:  # type: ignore[override]  # a condition, as the module says
        return eq(self.p, unwrap(o)) if isinstance(o, int | Sym) else FALSE

    def __ne__(self, o: object) -> Cond:  # type: ignore[override]
        return negate(self == o)


def unwrap(i: Int) -> Poly:
    """An int or symbol as a polynomial."""
    return i.p if isinstance(i, Sym) else poly(i)


def lowered(i: Int) -> Int:
    """The int of a constant symbol; other symbols as they are."""
    v = unwrap(i).value
    return i if v is None else v


def arithmetic(divisor: Callable[[Cond], None]) -> Arithmetic:
    """The integer operations of `rewrites.language.named` on symbols; `divisor` gets the condition `divisor >= 1`."""

    def floordiv(a: Int, b: Int) -> Int:
        divisor(ge(unwrap(b), 1))
        return Sym(divide(unwrap(a), unwrap(b))[0])

    def mod(a: Int, b: Int) -> Int:
        divisor(ge(unwrap(b), 1))
        return Sym(divide(unwrap(a), unwrap(b))[1])

    def largest(a: Int, b: Int) -> Int:
        return Sym(greatest(unwrap(a), unwrap(b)))

    def smallest(a: Int, b: Int) -> Int:
        return Sym(least(unwrap(a), unwrap(b)))

    return Arithmetic(floordiv, mod, largest, smallest, lowered)
