"""Integers of a machine: the pointwise tier once more, with wrap-around, truncating division and signed remainders.

A rule about integers holds for a width when it holds of numbers in the range of the type, every sum, difference,
product, negation and absolute value taken modulo 2^width into that range.  It is asked for signed and unsigned integers
of 8, 16, 32 and 64 bits; a term in which nothing can wrap is asked once, over all integers.  Where only the latter
holds, the certificate says that no operation overflows.

Division rounds towards zero and gives -1 for the divisor 0, the remainder has the sign of the dividend and is the
dividend for the divisor 0: the denotations of `superopt.ir.scalar`.  Sizes and positions are assumed to be in range.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from superopt.ir.scalar import COMPARISONS
from verifier.equal.conditions import Cond
from verifier.equal.pointwise import ORDER, Premise, decide
from verifier.equal.solver import CannotLower, Context, z3
from verifier.equal.terms import Term, functions

WIDTHS = (8, 16, 32, 64)
WRAPPING = frozenset({"add", "sub", "mul", "neg", "square", "abs", "div"})
_INTEGRAL = WRAPPING | COMPARISONS | {"max", "min", "clamp", "rem", "sign", "select_n", "and", "or", "xor", "not"}
ALWAYS, IN_RANGE = "always", "in range"


def integral(*terms: Term) -> bool:
    """Do all functions have a meaning here (meta-variables stand for any function)?"""
    return all(f in _INTEGRAL or f.startswith("$") for t in terms for f in functions(t))


def equal_integers(
    ctx: Context, left: Term, right: Term, facts: tuple[Cond, ...], given: Sequence[Premise] = ()
) -> str:
    """`always` (at every width), `in range` (where nothing overflows), or empty: not proved.

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
    ctx: Context, machine: MachineIntegers, left: Term, right: Term, facts: tuple[Cond, ...], given: Sequence[Premise]
) -> bool | None:
    """None where a constant is no value of the type, so that there is no such program."""
    try:
        return decide(ctx, machine, left, right, facts, given)
    except NoValue:
        return None


class NoValue(CannotLower):
    """A constant that the type does not have."""


@dataclass
class MachineIntegers:
    """Integers of one width, or all integers where the width is 0."""

    ctx: Context
    width: int = 0
    signed: bool = True
    side: list[Any] = field(default_factory=list[Any])
    known: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Any])
    _quotients: list[tuple[Any, Any, Any, Any]] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        self.known = {
            **ORDER, "add": self._add, "sub": self._sub, "mul": self._mul, "neg": self._neg, "square": self._square,
            "abs": self._abs, "sign": self._sign, "rem": self._rem, "div": self._div,
        }  # fmt: skip

    @property
    def sort(self) -> Any:
        """The integers of the solver."""
        return self.ctx.sort("int")

    def const(self, value: Fraction) -> Any:
        """An integer constant of the type.

        Raises:
            CannotLower: it is no integer.
            NoValue: the type has no such value.
        """
        if value.denominator != 1:
            raise CannotLower(f"{value} is no integer")
        if self.width and not self._low() <= value <= self._low() + 2**self.width - 1:
            raise NoValue(f"{value} is no value of the type")
        return z3.IntVal(int(value), self.ctx.sort("int").ctx)

    def position(self, value: Any) -> Any:
        """A size or an index: in the range of the type."""
        return self.entry(value)

    def entry(self, value: Any) -> Any:
        """A value of the type."""
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

    def _square(self, a: Any) -> Any:
        return self._wrap(a * a)

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
        """Quotient and remainder by their defining facts, and by what follows for two quotients of one divisor."""
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
