"""The pointwise tier: terms without reductions, decided by Z3 over uninterpreted inputs.

Inputs are uninterpreted functions of their index; choice, order, maxima and arithmetic are interpreted over a *theory*
of numbers.  Other scalar functions are uninterpreted.  Beyond the normal form, this tier decides order reasoning
(clamps, nested maxima and comparisons, absolute values), premises about values, and remainders.

There are two theories: the reals, and machine integers with wrap-around, truncating division and signed remainders.  A
rule about integers holds for a width when it holds for numbers in the range of the type, every sum, difference,
product, negation and absolute value taken modulo 2^width into that range.  It is checked for signed and unsigned
integers of 8, 16, 32 and 64 bits; a term in which nothing can wrap is checked once, over all integers.  Where only the
latter holds, the certificate assumes that no operation overflows.  Division and remainder have the denotations of
`superopt.ir.scalar`.  Division rounds towards zero and gives -1 for the divisor 0; the remainder has the sign of the
dividend and is the dividend for the divisor 0.  Sizes and positions are assumed to be in range.

The operands of a comparison of reals were rounded when they were computed, so arithmetic in them is uninterpreted:
floats, too, are totally ordered, and equal arguments have equal results.  Outside of comparisons a sum is a sum of
reals.  Where that does not suffice, all sums are uninterpreted (`rounded`).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

from superopt.ir.scalar import COMMUTATIVE, COMPARISONS, LOGICAL
from verifier.equal.conditions import Cond
from verifier.equal.solver import NO, YES, CannotLower, Context, z3
from verifier.equal.terms import (
    Apply,
    Const,
    Infinity,
    Integer,
    Read,
    Reduce,
    ScalarTerm,
    Where,
    functions,
    reductions,
    walk_terms,
)

Premise: TypeAlias = "tuple[Cond, ScalarTerm]"
"""A condition, and a Boolean term that is true where it holds."""


class Theory(Protocol):
    """Interface of a theory of numbers: their sort, constants, and interpreted functions."""

    side: list[Any]
    """Facts about the values made so far."""
    known: dict[str, Callable[..., Any]]
    """Interpreted functions of numbers."""
    unrounded: frozenset[str] | None
    """Functions that do not round; None where no function rounds."""

    @property
    def sort(self) -> Any:
        """The solver's sort of numbers."""
        ...

    def const(self, value: Fraction) -> Any:
        """A constant."""
        ...

    def position(self, value: Any) -> Any:
        """A size or an index, given as an integer of the solver."""
        ...

    def entry(self, value: Any) -> Any:
        """An entry of an input."""
        ...


def equal_pointwise(
    ctx: Context,
    left: ScalarTerm,
    right: ScalarTerm,
    facts: tuple[Cond, ...],
    given: Sequence[Premise] = (),
    *,
    loose: bool = False,
) -> bool:
    """Whether two terms without reductions are proved equal over the reals for all inputs that meet the premises.

    With `loose`, comparisons read exact real numbers; the result is then no proof.

    Raises:
        CannotLower: a term is outside this tier.
    """
    theory = Reals(ctx, unrounded=None if loose else frozenset(_UNROUNDED))
    if decide(ctx, theory, left, right, facts, given):
        return True
    if loose or not any(compares_rounded(t) for t in (left, right)):
        return False
    return decide(ctx, Reals(ctx, unrounded=theory.unrounded), left, right, facts, given, rounded=True)


def compares_rounded(t: ScalarTerm) -> bool:
    """Whether a term has a comparison, or a sign, of a value that was rounded when it was computed."""
    asks = (x for x in walk_terms(t) if isinstance(x, Apply) and (x.fn in COMPARISONS or x.fn == "sign"))
    return any(not functions(x) <= {*_UNROUNDED, *COMPARISONS, *LOGICAL} for x in asks)


def decide(
    ctx: Context,
    theory: Theory,
    left: ScalarTerm,
    right: ScalarTerm,
    facts: tuple[Cond, ...],
    given: Sequence[Premise] = (),
    *,
    rounded: bool = False,
) -> bool:
    """Whether two terms are proved equal over a theory for all inputs that meet the premises.

    Raises:
        CannotLower: a term is outside this tier.
    """
    if any(map(reductions, (left, right, *(t for _, t in given)))):
        raise CannotLower("a reduction")
    lower = SolverLowering(ctx, theory, rounded)
    boolean = lower.is_truth(left) or lower.is_truth(right)
    sides = [lower.truth(t) if boolean else lower.number(t) for t in (left, right)]
    premises = [z3.Implies(ctx.cond(where), lower.truth(t)) for where, t in given]
    return ctx.differ(z3.And(sides[0] != sides[1], *premises, *theory.side), facts) == NO


def consistent(ctx: Context, theory: Theory, given: Sequence[Premise], facts: tuple[Cond, ...]) -> bool:
    """Whether premises about values are proved to have a model.

    Raises:
        CannotLower: a premise is outside this tier.
    """
    if any(reductions(t) for _, t in given):
        raise CannotLower("a reduction")
    lower = SolverLowering(ctx, theory)
    premises = [z3.Implies(ctx.cond(where), lower.truth(t)) for where, t in given]
    return ctx.differ(z3.And(*premises, *theory.side), facts) == YES


@dataclass
class Reals:
    """The theory of real numbers."""

    ctx: Context
    side: list[Any] = field(default_factory=list[Any])
    known: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Any])
    unrounded: frozenset[str] | None = None

    def __post_init__(self) -> None:
        self.known = {**ORDER, **_FIELD}

    @property
    def sort(self) -> Any:
        """The reals of the solver."""
        return self.ctx.sort("real")

    def const(self, value: Fraction) -> Any:
        """A rational constant."""
        return self.ctx.real(str(value))

    def position(self, value: Any) -> Any:
        """An integer as a real."""
        return z3.ToReal(value)

    def entry(self, value: Any) -> Any:
        """An entry of an input, which may be any real."""
        return value


@dataclass
class Truths:
    """Lowering of predicates to the solver; subclasses lower comparisons of numbers."""

    ctx: Context

    def truth(self, t: ScalarTerm) -> Any:
        """A term as a truth value.

        Raises:
            CannotLower: it denotes a number.
        """
        if isinstance(t, Const) and t.value in (0, 1):
            return z3.BoolVal(t.value == 1, self.ctx.sort("bool").ctx)
        if isinstance(t, Where):
            return z3.If(self.ctx.cond(t.guard), self.truth(t.then), self.truth(t.orelse))
        if isinstance(t, Read) and t.boolean:
            return self.read(t, self.ctx.sort("bool"))
        if isinstance(t, Apply):
            if t.fn == "select_n":
                which, false, true = t.args
                return z3.If(self.truth(which), self.truth(true), self.truth(false))
            if t.fn in LOGICAL:
                return getattr(z3, _LOGIC[t.fn])(*map(self.truth, t.args))
            return self.comparison(t)
        raise CannotLower(NO_COMPARISON)

    def comparison(self, t: Apply) -> Any:
        """A comparison as a truth value.

        Raises:
            CannotLower: the term is no comparison.
        """
        raise NotImplementedError

    def read(self, t: Read, sort: Any) -> Any:
        """The entry of an input."""
        args = [self.ctx.poly(p) for p in t.index]
        return self.ctx.function(f"in {t.name}", [self.ctx.sort("int")] * len(args), sort)(*args)


NO_COMPARISON = "a predicate that is no comparison"


@dataclass
class SolverLowering(Truths):
    """Lowering of terms to the solver, over one theory of numbers; with `rounded`, arithmetic that rounds is opaque."""

    theory: Theory
    rounded: bool = False

    def is_truth(self, t: ScalarTerm) -> bool:
        """Whether a term denotes a truth value."""
        if isinstance(t, Read):
            return t.boolean
        if isinstance(t, Where):
            return self.is_truth(t.then) or self.is_truth(t.orelse)
        if isinstance(t, Apply):
            if t.fn == "select_n":
                return any(map(self.is_truth, t.args[1:]))
            return t.fn in COMPARISONS or t.fn in LOGICAL
        return False

    def comparison(self, t: Apply) -> Any:
        """A comparison of truth values or of numbers."""
        if t.fn in ("eq", "ne") and any(map(self.is_truth, t.args)):
            a, b = map(self.truth, t.args)
            return a == b if t.fn == "eq" else a != b
        if t.fn in COMPARISONS:
            return _COMPARE[t.fn](*map(self._reader().number, t.args))
        raise CannotLower(NO_COMPARISON)

    def _reader(self) -> SolverLowering:
        """The lowering for operands of comparisons, in which arithmetic that rounds is opaque."""
        return self if self.rounded else replace(self, rounded=True)

    def number(self, t: ScalarTerm) -> Any:
        """A term as a number.

        Raises:
            CannotLower: it denotes a truth value, or is outside this tier.
        """
        if isinstance(t, Read):
            if t.boolean:
                raise CannotLower("a predicate as a number")
            return self.theory.entry(self.read(t, self.theory.sort))
        if isinstance(t, Const):
            return self.theory.const(t.value)
        if isinstance(t, Integer):
            return self.theory.position(self.ctx.poly(t.value))
        if isinstance(t, Where):
            return z3.If(self.ctx.cond(t.guard), self.number(t.then), self.number(t.orelse))
        if isinstance(t, Infinity | Reduce):
            raise CannotLower(type(t).__name__.lower())
        if t.fn == "select_n":
            which, false, true = t.args
            return z3.If(self.truth(which), self.number(true), self.number(false))
        if t.fn in COMPARISONS or t.fn in LOGICAL:
            raise CannotLower(f"{t.fn} as a number")
        known = self.theory.known.get(t.fn)
        reader = self._reader() if t.fn == "sign" else self
        args = [self.truth(a) if self.is_truth(a) else reader.number(a) for a in t.args]
        if known is not None and self.rounded and t.fn not in (self.theory.unrounded or self.theory.known):
            return self._rounded(t.fn, args)
        if known is not None:
            return known(*args)
        return self.ctx.function(f"fn {t.fn}", [a.sort() for a in args], self.theory.sort)(*args)

    def _rounded(self, fn: str, args: list[Any]) -> Any:
        """An uninterpreted function; operands of a commutative one are sorted."""
        if fn == "sub":
            fn, args = "add", [args[0], -args[1]]
        if fn in COMMUTATIVE:
            args.sort(key=_order_of)
        return self.ctx.function(f"rounded {fn}", [a.sort() for a in args], self.theory.sort)(*args)


def _order_of(value: Any) -> int:
    return value.get_id()


def _quotient(a: Any, b: Any) -> Any:
    return a / b


def _max(a: Any, b: Any) -> Any:
    return z3.If(a >= b, a, b)


def _min(a: Any, b: Any) -> Any:
    return z3.If(a <= b, a, b)


def _abs(a: Any) -> Any:
    return z3.If(a >= 0, a, -a)


def _sign(a: Any) -> Any:
    return z3.If(a > 0, 1, z3.If(a < 0, -1, a - a))


ORDER: dict[str, Callable[..., Any]] = {"max": _max, "min": _min}
"""Functions with the same meaning in every total order."""
_FIELD: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": _quotient, "neg": operator.neg,
    "abs": _abs, "sign": _sign,
}  # fmt: skip
_UNROUNDED = ORDER.keys() | {"neg", "abs", "sign", "select_n"}
_COMPARE: dict[str, Callable[..., Any]] = {name: getattr(operator, name) for name in COMPARISONS}
_LOGIC = {name: name.capitalize() for name in LOGICAL}  # their names in the solver


# ---- integers of a machine

WIDTHS = (8, 16, 32, 64)
WRAPPING = frozenset({"add", "sub", "mul", "neg", "abs", "div"})
_INTEGRAL = WRAPPING | COMPARISONS | LOGICAL | ORDER.keys() | {"rem", "sign", "select_n"}
ALWAYS, IN_RANGE = "always", "in range"


def integral(*terms: ScalarTerm) -> bool:
    """Whether all functions are interpreted on integers, or are meta-variables, which stand for any function."""
    return all(f in _INTEGRAL or f.startswith("$") for t in terms for f in functions(t))


def equal_integers(
    ctx: Context, left: ScalarTerm, right: ScalarTerm, facts: tuple[Cond, ...], given: Sequence[Premise] = ()
) -> str:
    """Where two terms are proved equal: `always` (at every width), `in range` (without overflow), or empty for nowhere.

    Raises:
        CannotLower: a term is outside this tier.
    """
    if not integral(left, right):
        raise CannotLower("a function without a meaning on integers")
    used = functions(left) | functions(right)
    if not decide(ctx, MachineIntegers(ctx), left, right, facts, given):
        return ""
    if not used & WRAPPING:
        return ALWAYS
    types = itertools.product(WIDTHS, (True, False))
    some = False
    for kind in types:
        answer = _at_width(ctx, MachineIntegers(ctx, *kind), left, right, facts, given)
        if answer is False:
            return IN_RANGE
        some |= answer is True
    return ALWAYS if some else IN_RANGE


def _at_width(
    ctx: Context,
    machine: MachineIntegers,
    left: ScalarTerm,
    right: ScalarTerm,
    facts: tuple[Cond, ...],
    given: Sequence[Premise],
) -> bool | None:
    """Whether two terms are proved equal at one width; None where a constant is no value of the type."""
    try:
        return decide(ctx, machine, left, right, facts, given)
    except NoValue:
        return None


class NoValue(CannotLower):
    """Raised for a constant that is no value of the type."""


@dataclass
class MachineIntegers:
    """The theory of integers of one width, or of all integers where the width is 0."""

    ctx: Context
    width: int = 0
    signed: bool = True
    side: list[Any] = field(default_factory=list[Any])
    known: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Any])
    unrounded: frozenset[str] | None = None
    _quotients: list[tuple[Any, Any, Any, Any]] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        self.known = {
            **ORDER, "add": self._add, "sub": self._sub, "mul": self._mul, "neg": self._neg,
            "abs": self._abs, "sign": self._sign, "rem": self._rem, "div": self._div,
        }  # fmt: skip

    @property
    def sort(self) -> Any:
        """The integers of the solver."""
        return self.ctx.sort("int")

    def const(self, value: Fraction) -> Any:
        """An integer constant of the type.

        Raises:
            CannotLower: the constant is no integer.
            NoValue: the type has no such value.
        """
        if value.denominator != 1:
            raise CannotLower(f"{value} is no integer")
        if self.width and not self._low() <= value <= self._low() + 2**self.width - 1:
            raise NoValue(f"{value} is no value of the type")
        return z3.IntVal(int(value), self.ctx.sort("int").ctx)

    def position(self, value: Any) -> Any:
        """A size or an index, assumed to be in the range of the type."""
        return self.entry(value)

    def entry(self, value: Any) -> Any:
        """An entry of an input, constrained to the range of the type."""
        if self.width:
            self.side += [value >= self._low(), value < self._low() + 2**self.width]
        return value

    def _low(self) -> int:
        return -(2 ** (self.width - 1)) if self.signed else 0

    def _wrap(self, value: Any) -> Any:
        if not self.width:
            return value
        return (value - self._low()) % 2**self.width + self._low()

    def _add(self, a: Any, b: Any) -> Any:
        return self._wrap(a + b)

    def _sub(self, a: Any, b: Any) -> Any:
        return self._wrap(a - b)

    def _mul(self, a: Any, b: Any) -> Any:
        return self._wrap(a * b)

    def _neg(self, a: Any) -> Any:
        return self._wrap(-a)

    def _abs(self, a: Any) -> Any:
        return self._wrap(z3.If(a >= 0, a, -a))

    def _sign(self, a: Any) -> Any:
        zero = a - a
        return z3.If(a > 0, zero + 1, z3.If(a < 0, zero - 1, zero))

    def _rem(self, a: Any, b: Any) -> Any:
        return self._divided(a, b)[1]

    def _div(self, a: Any, b: Any) -> Any:
        return self._wrap(self._divided(a, b)[0])

    def _divided(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Quotient and remainder, constrained by their defining facts and by lemmas on two quotients of one divisor."""
        q, r = (self.ctx.function(name, [self.sort] * 2, self.sort)(a, b) for name in ("int quotient", "int remainder"))
        if any(a.eq(x) and b.eq(y) for x, y, _, _ in self._quotients):
            return q, r
        size = z3.If(b >= 0, b, -b)
        self.side += [
            z3.Implies(b == 0, z3.And(q == -1, r == a)),
            z3.Implies(b != 0, z3.And(a == q * b + r, r < size, r > -size)),
            z3.Implies(z3.And(b != 0, a >= 0), r >= 0),
            z3.Implies(z3.And(b != 0, a <= 0), r <= 0),
            z3.Implies(z3.And(a < size, a > -size), z3.And(q == 0, r == a)),
        ]
        for x, y, p, s in self._quotients:  # r - s = (a - x) - (q - p) * b, and |k * b| >= |b| unless k is 0
            if y.eq(b):
                for k in (-1, 0, 1):
                    gap = q - p + k
                    far = z3.If(b >= 0, gap * b, -(gap * b))
                    self.side += [z3.Implies(gap >= 1, far >= size), z3.Implies(gap <= -1, far <= -size)]
            del x, s
        self._quotients.append((a, b, q, r))
        return q, r
