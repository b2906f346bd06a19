"""Scalars that are integers: which terms are positions; functions of positions, constants in other types."""

from __future__ import annotations

import math
from fractions import Fraction

from superopt.ir.scalar import numpy_dtype
from superopt.ir.types import FLOATS, SIGNED, UNSIGNED
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.poly import Poly, const, entry, greatest, least
from verifier.equal.terms import ONE, ZERO, Apply, Const, Read, Size, Term, Where
from verifier.statements.ranges import of_type

INTEGERS = (*SIGNED, *UNSIGNED)
LATTICE = frozenset({"max", "min"})


def position(t: Term, entries: bool = False) -> Poly | None:
    """The integer that a term is, if it is a size, an index, an integer constant (or an entry of an input)."""
    if isinstance(t, Size):
        return t.value
    if isinstance(t, Const) and t.value.denominator == 1:
        return const(int(t.value))
    if entries and isinstance(t, Read) and not t.boolean:
        return entry(t.name, t.index)
    return None


def plain_position(t: Term, entries: bool) -> Poly | None:
    """The integer that a term is where nothing can overflow: positions, entries, their maxima and minima."""
    if entries and isinstance(t, Apply) and t.fn in LATTICE:
        a, b = (plain_position(x, entries) for x in t.args)
        if a is None or b is None:
            return None
        return greatest(a, b) if t.fn == "max" else least(a, b)
    return position(t, entries)


def integer(p: Poly) -> Term:
    """A position as a scalar."""
    return Size(p) if p.value is None else Const(Fraction(p.value))


def index_condition(t: Term) -> Cond | None:
    """The index condition that a predicate is."""
    if t == ONE:
        return c.TRUE
    if t == ZERO:
        return c.FALSE
    if isinstance(t, Where) and t.then == ONE and t.orelse == ZERO:
        return t.guard
    return None


def indicator(g: Cond) -> Poly | None:
    """1 where the condition holds, else 0."""
    if g.poly is None:
        return None
    if g.kind == "ge":
        return greatest(0, least(1, g.poly + 1))
    distance = least(1, greatest(g.poly, -g.poly))
    return distance if g.kind == "ne" else 1 - distance


def bits(dtype: str) -> tuple[int, int]:
    """Exponent and mantissa bits."""
    return {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}[dtype]


def of_positions(fn: str, xs: list[Poly]) -> Poly | None:
    """A function of integers that polynomials have."""
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


def constant_as(value: int, source: str, target: str) -> Term | None:
    """An integer constant in another dtype; None where a conversion has no defined value."""
    if target in FLOATS:
        made = float(numpy_dtype(target).type(value))
        return Const(Fraction(made)) if math.isfinite(made) else None
    low, high = (int(x) for x in of_type(target))
    if low <= value <= high:
        return Const(Fraction(value))
    return Const(Fraction((value - low) % (high - low + 1) + low)) if source in INTEGERS else None
