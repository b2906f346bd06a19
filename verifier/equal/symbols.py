"""Symbolic integers with the comparisons of Python's ints, for code that is generic over the number type.

`Sym` wraps a polynomial; its arithmetic gives symbols, its comparisons give conditions (so `a == b` is a condition,
never a bool: a symbol is no dictionary key).  `rewrites.language.named.shape` and `sem` run on ints or on symbols
alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from rewrites.language.named import Arithmetic
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.poly import Poly, divide, greatest, least, poly

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
        return c.ge(self.p, unwrap(o))

    def __gt__(self, o: Int) -> Cond:
        return c.lt(unwrap(o), self.p)

    def __le__(self, o: Int) -> Cond:
        return c.ge(unwrap(o), self.p)

    def __lt__(self, o: Int) -> Cond:
        return c.lt(self.p, unwrap(o))

    def __eq__(self, o: object) -> Cond:  # type: ignore[override]  # a condition, as the module says
        return c.eq(self.p, unwrap(o)) if isinstance(o, int | Sym) else c.FALSE

    def __ne__(self, o: object) -> Cond:  # type: ignore[override]
        return c.negate(self == o)


def unwrap(i: Int) -> Poly:
    """An int or symbol as a polynomial."""
    return i.p if isinstance(i, Sym) else poly(i)


def lowered(i: Int) -> Int:
    """A constant symbol as the int that it is."""
    v = unwrap(i).value
    return i if v is None else v


def arithmetic(divisor: Callable[[Cond], None]) -> Arithmetic:
    """The integer operations of `rewrites.language.named` on symbols; divisors must be positive, which is reported."""

    def floordiv(a: Int, b: Int) -> Int:
        divisor(c.ge(unwrap(b), 1))
        return Sym(divide(unwrap(a), unwrap(b))[0])

    def mod(a: Int, b: Int) -> Int:
        divisor(c.ge(unwrap(b), 1))
        return Sym(divide(unwrap(a), unwrap(b))[1])

    def largest(a: Int, b: Int) -> Int:
        return Sym(greatest(unwrap(a), unwrap(b)))

    def smallest(a: Int, b: Int) -> Int:
        return Sym(least(unwrap(a), unwrap(b)))

    return Arithmetic(floordiv, mod, largest, smallest, lowered)
