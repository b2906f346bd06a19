"""Scalars of statements: constants, scalar functions and integers that are positions.

An integer scalar that is a size or an index stays an index polynomial: a mask `iota(n) <= k` is an index condition, and
an index computed from other indices can be read at.  Arithmetic on entries of integer inputs wraps; where its result is
used as an index it is taken not to, and `assumptions` says so.  Functions of integers that the reals do not have are
named `$div[int32]`: nothing but congruence is known of them, except where the terms are for the tier that knows
machine integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from superopt.ir.types import FLOATS, SIGNED, UNSIGNED
from verifier import conditions as c
from verifier.conditions import Cond
from verifier.poly import Poly, const, divide, entry, greatest, least, var
from verifier.solver import Context
from verifier.symbols import Int, Sym, unwrap
from verifier.terms import FALSE, ONE, TRUE, ZERO, Apply, Const, Infinity, Read, Size, Term, Where

INTEGERS = (*SIGNED, *UNSIGNED)
WIDE = ("int32", "int64", "uint32", "uint64")
"""Integers that hold every size and position."""
RING = frozenset({"add", "sub", "mul", "neg"})
LATTICE = frozenset({"max", "min"})
COMPARE = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
LARGEST_DENOMINATOR = 1000
LARGEST_CONSTANT = 2**30
POSITIONS = "positions and their sums are in the range of the type"
PRODUCTS = "products of positions are in the range of the type"
NO_OVERFLOW = "arithmetic on indices does not overflow"
FRACTIONS = "a float constant is the simplest fraction that rounds to it"
FINITE_TEST = "values that are tested for being finite numbers are"


@dataclass
class Scalars:
    """Constants and scalar functions as terms.

    Attributes:
        ctx: premises, ranges of index variables, the solver.
        machine: name integer functions plainly, for the tier that knows machine integers.
        assumptions: what was taken for granted on the way.
        arithmetic: terms of integer arithmetic on values that are no positions, which wraps, by identity.
    """

    ctx: Context
    machine: bool = False
    assumptions: dict[str, None] = field(default_factory=dict[str, None])
    arithmetic: dict[int, Term] = field(default_factory=dict[int, Term])

    def known(self, fact: Cond) -> bool:
        """Does a condition follow from the premises and the ranges of its variables?"""
        if fact in (c.TRUE, c.FALSE):
            return fact == c.TRUE
        return self.ctx.holds(fact, ranges(self.ctx, fact.vars))

    # ---- leaves
    def read(self, name: str, index: Sequence[Int], dtype: str) -> Term:
        """The entry of an input."""
        return Read(name, tuple([unwrap(i) for i in index]), dtype == "bool")

    def entries(self, array: np.ndarray, index: Sequence[Int]) -> Term:
        """The entry of a small constant array."""
        dtype = str(array.dtype)
        where = [unwrap(i) for i in index]

        def at(part: Any, axis: int) -> Term:
            if axis == len(where):
                return self.const(part.item(), dtype)
            value, last = where[axis].value, part.shape[0] - 1
            if value is not None:
                return at(part[min(max(value, 0), last)], axis + 1)
            term = at(part[last], axis + 1)
            for j in range(last - 1, -1, -1):
                term = Where(c.eq(where[axis], j), at(part[j], axis + 1), term)
            return term

        return at(array, 0)

    def const(self, value: bool | int | float, dtype: str) -> Term:
        """A constant; a float stands for the simplest fraction that rounds to it."""
        if isinstance(value, float):
            if math.isnan(value):
                return Apply("nan", ())
            if math.isinf(value):
                return Infinity(1 if value > 0 else -1)
            if not value and math.copysign(1.0, value) < 0:
                return Apply("neg", (ZERO,))
            exact = Fraction(value)
            simple = exact.limit_denominator(LARGEST_DENOMINATOR)
            if simple != exact and dtype == "float32" and float(np.float32(float(simple))) == value:
                self.assumptions[FRACTIONS] = None
                return Const(simple)
            return Const(exact)
        if dtype == "bool":
            return TRUE if value else FALSE
        return Const(Fraction(int(value)))

    # ---- scalar functions
    def op(self, fn: str, dtype: str, *args: Term) -> Term:
        """A scalar function on operands of a dtype."""
        if fn == "select_n":
            return self._select(args)
        if fn in COMPARE and (found := self._compare(fn, dtype, args)) is not None:
            return found
        if fn in ("eq", "ne") and args[0] == args[1] and not _without_value(args[0]):  # is it a number?
            self.assumptions[FINITE_TEST] = None
            return TRUE if fn == "eq" else FALSE
        if dtype == "bool":
            return self._logical(fn, args)
        if fn == "is_finite" and not _without_value(args[0]):
            self.assumptions[FINITE_TEST] = None
            return TRUE
        if dtype in INTEGERS:
            return self._integers(fn, dtype, args)
        if fn in RING and any(isinstance(a, Size) for a in args):  # sizes as floats: numbers that are known exactly
            known = [p for a in args if (p := position(a)) is not None]
            if len(known) == len(args) and (found := self._of_positions(fn, known)) is not None:
                return found
        return Apply(fn, args)

    def _integers(self, fn: str, dtype: str, args: Sequence[Term]) -> Term:
        positions = [position(a) for a in args]
        signed = dtype in WIDE and (dtype in SIGNED or fn in ("add", "mul", "max", "min", "div", "rem"))
        if signed and None not in positions:
            found = self._of_positions(fn, [p for p in positions if p is not None])
            if found is not None:
                return found
        if any(isinstance(a, Where) for a in args) and fn not in COMPARE:
            return self._cases(fn, dtype, args)
        plain = self.machine or fn in RING | LATTICE | COMPARE
        made = Apply(fn if plain else f"${fn}[{dtype}]", tuple(args))
        return made if fn in LATTICE | COMPARE else self.wrapping(made)

    def wrapping(self, made: Term) -> Term:
        """A term of integer arithmetic."""
        self.arithmetic[id(made)] = made
        return made

    def _cases(self, fn: str, dtype: str, args: Sequence[Term]) -> Term:
        """A function of a choice by an index condition is a choice of functions."""
        at = next(i for i, a in enumerate(args) if isinstance(a, Where))
        choice = args[at]
        assert isinstance(choice, Where)

        def of(part: Term) -> Term:
            return self.op(fn, dtype, *args[:at], part, *args[at + 1 :])

        return Where(choice.guard, of(choice.then), of(choice.orelse))

    def _compare(self, fn: str, dtype: str, args: Sequence[Term]) -> Term | None:
        """A comparison of positions (sizes, indices, entries of integer inputs) as an index condition."""
        sides = [_plain_position(a, dtype in INTEGERS) for a in args]
        if None in sides or all(isinstance(a, Read) for a in args):
            return None
        a, b = sides
        assert a is not None
        assert b is not None
        made = {
            "lt": c.lt(a, b), "gt": c.lt(b, a), "ge": c.ge(a, b), "le": c.ge(b, a), "eq": c.eq(a, b), "ne": c.ne(a, b),
        }[fn]  # fmt: skip
        return self._truth(made)

    def _truth(self, g: Cond) -> Term:
        if self.known(g):
            return TRUE
        return FALSE if self.known(c.negate(g)) else Where(g, TRUE, FALSE)

    def _select(self, args: Sequence[Term]) -> Term:
        which, cases = args[0], args[1:]
        chosen = position(which)
        if chosen is not None and chosen.value is not None:
            return cases[min(max(chosen.value, 0), len(cases) - 1)]
        if len(cases) > 2:  # an integer chooses
            term = cases[0]
            for j, case in enumerate(cases[1:], 1):
                term = self._select((self.op("ge", "int32", which, Const(Fraction(j))), term, case))
            return term
        guard = index_condition(which)
        if guard is not None:
            return Where(guard, cases[1], cases[0])
        return Apply("select_n", tuple(args))

    def _logical(self, fn: str, args: Sequence[Term]) -> Term:
        guards = [index_condition(a) for a in args]
        fn = {"max": "or", "min": "and", "ne": "xor", "mul": "and", "add": "or"}.get(fn, fn)
        if fn == "eq":
            return self._logical("not", [self._logical("xor", args)])
        if None not in guards:
            gs = [g for g in guards if g is not None]
            match fn:
                case "not":
                    return self._truth(c.negate(gs[0]))
                case "and":
                    return self._truth(c.conj(gs))
                case "or":
                    return self._truth(c.disj(gs))
                case "xor":
                    both, neither = c.conj(gs), c.conj([c.negate(g) for g in gs])
                    return self._truth(c.negate(c.disj([both, neither])))
                case _:
                    pass
        return Apply(fn if fn in ("and", "or", "xor", "not") else f"?{fn}[bool]", tuple(args))

    def _of_positions(self, fn: str, xs: list[Poly]) -> Term | None:
        """Arithmetic of sizes and indices, as integers that do not overflow."""
        match fn, xs:
            case "add", [a, b]:
                p = a + b
            case "sub", [a, b]:
                p = a - b
            case "mul", [a, b]:
                p = a * b
            case "neg", [a]:
                p = -a
            case "max", [a, b]:
                p = greatest(a, b)
            case "min", [a, b]:
                p = least(a, b)
            case (("div" | "rem"), [a, b]):
                if not (self.known(c.ge(a, 0)) and self.known(c.ge(b, 1))):
                    return None
                p = divide(a, b)[0 if fn == "div" else 1]
            case "sign", [a]:
                if self.known(c.ge(a, 1)):
                    return ONE
                p = least(1, greatest(-1, a))
            case "abs", [a]:
                p = greatest(a, -a)
            case _:
                return None
        if p.value is None and fn in RING:
            self.assumptions[POSITIONS if fn != "mul" or any(x.value is not None for x in xs) else PRODUCTS] = None
        return integer(p) if abs(p.value or 0) <= LARGEST_CONSTANT else None

    def convert(self, value: Term, source: str, target: str) -> Term:
        """The value in another dtype: rounding to fewer bits is a function of its own, widening is none."""
        if source == target:
            return value
        if target == "bool":
            return self.op("ne", source, value, ZERO)
        if source == "bool":
            guard = index_condition(value)
            return Where(guard, ONE, ZERO) if guard is not None else Apply("select_n", (value, ZERO, ONE))
        known = position(value)
        if known is not None and target in (*FLOATS, *WIDE) and (target not in UNSIGNED or self.known(c.ge(known, 0))):
            if known.value is None:
                self.assumptions[POSITIONS] = None
            return value
        if source in FLOATS and target in FLOATS:
            if all(a >= b for a, b in zip(_bits(target), _bits(source), strict=True)):
                return value
            return Apply(f"narrow[{target}]", (value,))
        if isinstance(value, Where):
            parts = [self.convert(x, source, target) for x in (value.then, value.orelse)]
            return Where(value.guard, parts[0], parts[1])
        return Apply(f"convert[{source},{target}]", (value,))

    # ---- indices
    def to_index(self, value: Term) -> Int:
        """An integer scalar as an index.

        Raises:
            NotImplementedError: it is computed in a way that indices do not have.
        """
        return Sym(self._index(value))

    def _index(self, t: Term) -> Poly:
        known = position(t, entries=True)
        if known is not None:
            return known
        if isinstance(t, Where) and (one := _indicator(t.guard)) is not None:
            then, orelse = self._index(t.then), self._index(t.orelse)
            return orelse + (then - orelse) * one
        if isinstance(t, Apply) and t.fn.partition("[")[0] in (*RING, *LATTICE, "convert"):
            self.assumptions[NO_OVERFLOW] = None
            parts = [self._index(a) for a in t.args]
            if t.fn.startswith("convert["):
                source, _, target = t.fn[8:-1].partition(",")
                if source in INTEGERS and target in INTEGERS:
                    return parts[0]
            else:
                made = self._of_positions(t.fn, parts)
                known = None if made is None else position(made)
                if known is not None:
                    return known
        raise NotImplementedError("an index that is computed by " + (t.fn if isinstance(t, Apply) else "a reduction"))

    def from_index(self, index: Int, dtype: str) -> Term:
        """An index as a scalar."""
        found = integer(unwrap(index))
        if dtype in (*WIDE, "float32", "float64"):
            return found
        return Apply(f"convert[int64,{dtype}]", (found,))  # few bits: positions wrap or are rounded


def _without_value(t: Term) -> bool:
    """Is a term a constant that is no finite number?"""
    return isinstance(t, Infinity) or (isinstance(t, Apply) and t.fn == "nan")


def ranges(ctx: Context, names: Iterable[str]) -> tuple[Cond, ...]:
    """Ranges of index variables."""
    out: list[Cond] = []
    for name in sorted(names):
        n = ctx.range_of(name)
        if n is not None:
            out += [c.ge(var(name), 0), c.lt(var(name), n)]
    return tuple(out)


def position(t: Term, entries: bool = False) -> Poly | None:
    """The integer that a term is, if it is a size, an index, an integer constant (or an entry of an input)."""
    if isinstance(t, Size):
        return t.value
    if isinstance(t, Const) and t.value.denominator == 1:
        return const(int(t.value))
    if entries and isinstance(t, Read) and not t.boolean:
        return entry(t.name, t.index)
    return None


def _plain_position(t: Term, entries: bool) -> Poly | None:
    """The integer that a term is where nothing can overflow: positions, entries, their maxima and minima."""
    if entries and isinstance(t, Apply) and t.fn in LATTICE:
        a, b = (_plain_position(x, entries) for x in t.args)
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


def _indicator(g: Cond) -> Poly | None:
    """1 where the condition holds, else 0."""
    if g.poly is None:
        return None
    if g.kind == "ge":
        return greatest(0, least(1, g.poly + 1))
    distance = least(1, greatest(g.poly, -g.poly))
    return distance if g.kind == "ne" else 1 - distance


def _bits(dtype: str) -> tuple[int, int]:
    """Exponent and mantissa bits."""
    return {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}[dtype]
