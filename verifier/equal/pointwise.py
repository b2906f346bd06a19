"""The pointwise tier: terms without reductions, decided by Z3 over uninterpreted inputs.

Inputs are uninterpreted functions of their index; choice, order, maxima and arithmetic are interpreted over a *theory*
of numbers: the reals here, the integers of a machine in `verifier.equal.integers`.  Other scalar functions are
uninterpreted. What this decides and the normal form does not: order reasoning (clamps, nested maxima and comparisons,
absolute values), premises about values, and remainders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

from superopt.ir.scalar import COMPARISONS, LOGICAL
from verifier.equal.conditions import Cond
from verifier.equal.solver import NO, YES, CannotLower, Context, z3
from verifier.equal.terms import Apply, Const, Infinity, Read, Reduce, Size, Term, Where, reductions

Premise: TypeAlias = "tuple[Cond, Term]"
"""A Boolean term that is true where the condition holds."""


class Theory(Protocol):
    """What numbers are."""

    side: list[Any]
    """Facts about the values made so far."""
    known: dict[str, Callable[..., Any]]
    """Interpreted functions of numbers."""

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
    ctx: Context, left: Term, right: Term, facts: tuple[Cond, ...], given: Sequence[Premise] = ()
) -> bool:
    """Are two terms without reductions equal over the reals for all inputs that meet the premises?

    Raises:
        CannotLower: a term is outside this tier.
    """
    return decide(ctx, Reals(ctx), left, right, facts, given)


def decide(
    ctx: Context, theory: Theory, left: Term, right: Term, facts: tuple[Cond, ...], given: Sequence[Premise] = ()
) -> bool:
    """Are two terms equal over a theory for all inputs that meet the premises?

    Raises:
        CannotLower: a term is outside this tier.
    """
    if any(map(reductions, (left, right, *(t for _, t in given)))):
        raise CannotLower("a reduction")
    lower = SolverLowering(ctx, theory)
    boolean = lower.is_truth(left) or lower.is_truth(right)
    sides = [lower.truth(t) if boolean else lower.number(t) for t in (left, right)]
    premises = [z3.Implies(ctx.cond(where), lower.truth(t)) for where, t in given]
    return ctx.differ(z3.And(sides[0] != sides[1], *premises, *theory.side), facts) == NO


def consistent(ctx: Context, theory: Theory, given: Sequence[Premise], facts: tuple[Cond, ...]) -> bool:
    """Do premises about values have a model?

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
    """The real numbers."""

    ctx: Context
    side: list[Any] = field(default_factory=list[Any])
    known: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Any])

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
        """Any real."""
        return value


@dataclass
class SolverLowering:
    """Terms in the solver's language, over one theory of numbers."""

    ctx: Context
    theory: Theory

    def is_truth(self, t: Term) -> bool:
        """Does a term denote a truth value?"""
        if isinstance(t, Read):
            return t.boolean
        if isinstance(t, Where):
            return self.is_truth(t.then) or self.is_truth(t.orelse)
        if isinstance(t, Apply):
            if t.fn == "select_n":
                return any(map(self.is_truth, t.args[1:]))
            return t.fn in COMPARISONS or t.fn in LOGICAL
        return False

    def truth(self, t: Term) -> Any:
        """A term as a truth value.

        Raises:
            CannotLower: it denotes a number.
        """
        if isinstance(t, Const) and t.value in (0, 1):
            return z3.BoolVal(t.value == 1, self.ctx.sort("bool").ctx)
        if isinstance(t, Where):
            return z3.If(self.ctx.cond(t.guard), self.truth(t.then), self.truth(t.orelse))
        if isinstance(t, Read) and t.boolean:
            return self._read(t, self.ctx.sort("bool"))
        if isinstance(t, Apply):
            if t.fn == "select_n":
                which, false, true = t.args
                return z3.If(self.truth(which), self.truth(true), self.truth(false))
            if t.fn in LOGICAL:
                return _LOGIC[t.fn](*map(self.truth, t.args))
            if t.fn in ("eq", "ne") and any(map(self.is_truth, t.args)):
                a, b = map(self.truth, t.args)
                return a == b if t.fn == "eq" else a != b
            if t.fn in COMPARISONS:
                return _COMPARE[t.fn](*map(self.number, t.args))
        raise CannotLower("a predicate that is no comparison")

    def number(self, t: Term) -> Any:
        """A term as a number.

        Raises:
            CannotLower: it denotes a truth value, or is outside this tier.
        """
        if isinstance(t, Read):
            if t.boolean:
                raise CannotLower("a predicate as a number")
            return self.theory.entry(self._read(t, self.theory.sort))
        if isinstance(t, Const):
            return self.theory.const(t.value)
        if isinstance(t, Size):
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
        args = [self.truth(a) if self.is_truth(a) else self.number(a) for a in t.args]
        if known is not None:
            return known(*args)
        return self.ctx.function(f"fn {t.fn}", [a.sort() for a in args], self.theory.sort)(*args)

    def _read(self, t: Read, sort: Any) -> Any:
        args = [self.ctx.poly(p) for p in t.index]
        return self.ctx.function(f"in {t.name}", [self.ctx.sort("int")] * len(args), sort)(*args)


def _neg(a: Any) -> Any:
    return -a


def _div(a: Any, b: Any) -> Any:
    return a / b


def _square(a: Any) -> Any:
    return a * a


def _max(a: Any, b: Any) -> Any:
    return z3.If(a >= b, a, b)


def _min(a: Any, b: Any) -> Any:
    return z3.If(a <= b, a, b)


def _clamp(low: Any, x: Any, high: Any) -> Any:
    return _min(_max(x, low), high)


def _abs(a: Any) -> Any:
    return z3.If(a >= 0, a, -a)


def _sign(a: Any) -> Any:
    return z3.If(a > 0, 1, z3.If(a < 0, -1, a - a))


def _add(a: Any, b: Any) -> Any:
    return a + b


def _sub(a: Any, b: Any) -> Any:
    return a - b


def _mul(a: Any, b: Any) -> Any:
    return a * b


def _lt(a: Any, b: Any) -> Any:
    return a < b


def _le(a: Any, b: Any) -> Any:
    return a <= b


def _gt(a: Any, b: Any) -> Any:
    return a > b


def _ge(a: Any, b: Any) -> Any:
    return a >= b


def _eq(a: Any, b: Any) -> Any:
    return a == b


def _ne(a: Any, b: Any) -> Any:
    return a != b


ORDER: dict[str, Callable[..., Any]] = {"max": _max, "min": _min, "clamp": _clamp}
"""Functions that mean the same in every total order."""
_FIELD: dict[str, Callable[..., Any]] = {
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "neg": _neg, "square": _square, "abs": _abs, "sign": _sign,
}  # fmt: skip
_COMPARE: dict[str, Callable[..., Any]] = {"lt": _lt, "le": _le, "gt": _gt, "ge": _ge, "eq": _eq, "ne": _ne}
_LOGIC: dict[str, Callable[..., Any]] = {"and": z3.And, "or": z3.Or, "xor": z3.Xor, "not": z3.Not}
