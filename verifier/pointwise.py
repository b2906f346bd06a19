"""The pointwise tier: terms without reductions, decided by Z3 over uninterpreted inputs.

Inputs are uninterpreted functions of their index; choice, order, maxima and the field operations are interpreted over
the reals, other scalar functions are uninterpreted.  What this decides and the normal form does not: order reasoning
(clamps, nested maxima and comparisons, absolute values).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verifier.conditions import Cond
from verifier.solver import NO, CannotLower, Context, z3
from verifier.terms import Apply, Const, Infinity, Read, Reduce, Size, Term, Where, reductions


def equal_pointwise(ctx: Context, left: Term, right: Term, facts: tuple[Cond, ...]) -> bool:
    """Are two terms without reductions equal for all inputs?

    Raises:
        CannotLower: a term is outside this tier.
    """
    if reductions(left) or reductions(right):
        raise CannotLower("a reduction")
    lower = _Lower(ctx)
    return ctx.differ(lower.term(left) != lower.term(right), facts) == NO


class _Lower:
    def __init__(self, ctx: Context) -> None:
        self.ctx, self.real, self.bool = ctx, ctx.sort("real"), ctx.sort("bool")

    def term(self, t: Term) -> Any:
        if isinstance(t, Read):
            integer = self.ctx.sort("int")
            args = [self.ctx.poly(p) for p in t.index]
            made = self.ctx.function(f"in {t.name}", [integer] * len(args), self.bool if t.boolean else self.real)
            return made(*args)
        if isinstance(t, Const):
            return self.ctx.real(str(t.value))
        if isinstance(t, Size):
            return z3.ToReal(self.ctx.poly(t.value))
        if isinstance(t, Where):
            return z3.If(self.ctx.cond(t.guard), self.term(t.then), self.term(t.orelse))
        if isinstance(t, Infinity | Reduce):
            raise CannotLower(type(t).__name__.lower())
        return self.apply(t)

    def apply(self, t: Apply) -> Any:
        args = [self.term(a) for a in t.args]
        known = _KNOWN.get(t.fn)
        if t.fn == "select_n":
            which, false, true = args
            if not z3.is_bool(which):
                raise CannotLower("a predicate that is no comparison")
            return z3.If(which, true, false)
        if known is not None:
            logical = t.fn in _LOGICAL
            if any(z3.is_bool(a) != logical for a in args):
                raise CannotLower(f"{t.fn} on {'numbers' if logical else 'predicates'}")
            return known(*args)
        sorts = [a.sort() for a in args]
        return self.ctx.function(f"fn {t.fn}", sorts, self.real)(*args)


def _add(a: Any, b: Any) -> Any:
    return a + b


def _sub(a: Any, b: Any) -> Any:
    return a - b


def _mul(a: Any, b: Any) -> Any:
    return a * b


def _square(a: Any) -> Any:
    return a * a


def _neg(a: Any) -> Any:
    return -a


def _max(a: Any, b: Any) -> Any:
    return z3.If(a >= b, a, b)


def _min(a: Any, b: Any) -> Any:
    return z3.If(a <= b, a, b)


def _clamp(low: Any, x: Any, high: Any) -> Any:
    return _min(_max(x, low), high)


def _abs(a: Any) -> Any:
    return z3.If(a >= 0, a, -a)


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


_LOGICAL = frozenset({"and", "or", "xor", "not"})
_KNOWN: dict[str, Callable[..., Any]] = {
    "add": _add, "sub": _sub, "mul": _mul, "neg": _neg, "square": _square, "max": _max, "min": _min,
    "clamp": _clamp, "abs": _abs, "lt": _lt, "le": _le, "gt": _gt, "ge": _ge, "eq": _eq, "ne": _ne,
    "and": z3.And, "or": z3.Or, "xor": z3.Xor, "not": z3.Not,
}  # fmt: skip
