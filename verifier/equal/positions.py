"""Positions: scalars that are integer polynomials of sizes, indices and integer constants.

Such a scalar stays an index polynomial, so that a mask `iota(n) <= k` is an index condition and an index computed from
other indices can be read at.
"""

from __future__ import annotations

import math
from fractions import Fraction

from superopt.ir.scalar import numpy_dtype
from superopt.ir.types import FLOATS, INTEGERS
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.poly import Poly, const, entry, greatest, least
from verifier.equal.ranges import of_type
from verifier.equal.terms import ONE, ZERO, Apply, Const, Integer, Read, ScalarTerm, Where

LATTICE = frozenset({"max", "min"})
RING = frozenset({"add", "sub", "mul", "neg"})


def position(t: ScalarTerm, entries: bool = False) -> Poly | None:
    """The polynomial of a size, an index or an integer constant (with `entries`, of an entry of an input), or None."""
    if isinstance(t, Integer):
        return t.value
    if isinstance(t, Const) and t.value.denominator == 1:
        return const(int(t.value))
    if entries and isinstance(t, Read) and not t.boolean:
        return entry(t.name, t.index)
    return None


def plain_position(t: ScalarTerm, entries: bool) -> Poly | None:
    """The polynomial of a term that cannot overflow: a position, an entry, or an extremum of these; or None."""
    if entries and isinstance(t, Apply) and t.fn in LATTICE:
        a, b = (plain_position(x, entries) for x in t.args)
        if a is None or b is None:
            return None
        return greatest(a, b) if t.fn == "max" else least(a, b)
    return position(t, entries)


def integer(p: Poly) -> ScalarTerm:
    """A position as a scalar."""
    return Integer(p) if p.value is None else Const(Fraction(p.value))


def index_condition(t: ScalarTerm) -> Cond | None:
    """The index condition equal to a predicate, or None."""
    if t == ONE:
        return c.TRUE
    if t == ZERO:
        return c.FALSE
    if isinstance(t, Where) and t.then == ONE and t.orelse == ZERO:
        return t.guard
    return None


def indicator(g: Cond) -> Poly | None:
    """The polynomial that is 1 where a comparison holds, else 0; None for other conditions."""
    if g.poly is None:
        return None
    if g.kind == "ge":
        return greatest(0, least(1, g.poly + 1))
    distance = least(1, greatest(g.poly, -g.poly))
    return distance if g.kind == "ne" else 1 - distance


def of_positions(fn: str, xs: list[Poly]) -> Poly | None:
    """A function of integers as a polynomial, or None for functions that polynomials do not have."""
    match fn, xs:
        case "add", [a, b]:
            return a + b
        case "sub", [a, b]:
            return a - b
        case "mul", [a, b]:
            return a * b
        case "neg", [a]:
            return -a
        case "max", [a, b]:
            return greatest(a, b)
        case "min", [a, b]:
            return least(a, b)
        case _:
            return None


def constant_as(value: int, source: str, target: str) -> ScalarTerm | None:
    """An integer constant in another dtype; None where a conversion has no defined value."""
    if target in FLOATS:
        made = float(numpy_dtype(target).type(value))
        return Const(Fraction(made)) if math.isfinite(made) else None
    low, high = (int(x) for x in of_type(target))
    if low <= value <= high:
        return Const(Fraction(value))
    return Const(Fraction((value - low) % (high - low + 1) + low)) if source in INTEGERS else None
