"""Infinities among terms: choices with an infinite branch, functions of infinities and finite numbers."""

from __future__ import annotations

from collections.abc import Sequence

from verifier.equal.terms import Apply, Const, Infinity, ScalarTerm, Where

NAN = Apply("nan", ())


def without_value(t: ScalarTerm) -> bool:
    """Whether a term is an infinity or NaN."""
    return isinstance(t, Infinity) or t == NAN


def cases_of(t: ScalarTerm) -> tuple[ScalarTerm, ...] | None:
    """The predicate and both cases of a `select_n` of two cases; None for other terms."""
    return t.args if isinstance(t, Apply) and t.fn == "select_n" and len(t.args) == 3 else None


def chooses_infinity(t: ScalarTerm) -> bool:
    """Whether a term is a choice with an infinite branch."""
    parts = (t.then, t.orelse) if isinstance(t, Where) else (cases_of(t) or ())[1:]
    return any(isinstance(x, Infinity) or chooses_infinity(x) for x in parts)


def of_infinities(fn: str, args: Sequence[ScalarTerm]) -> ScalarTerm | None:
    """The value of a function of infinities and finite numbers; None where it is not known, or NaN."""
    infinite = [a for a in args if isinstance(a, Infinity)]
    first = infinite[0]
    match fn, args:
        case "neg", _:
            return Infinity(-first.sign)
        case "add", _:
            return first if len(set(infinite)) == 1 else None
        case "sub", [a, b]:
            signs = {a.sign} if isinstance(a, Infinity) else set[int]()
            signs |= {-b.sign} if isinstance(b, Infinity) else set[int]()
            return Infinity(signs.pop()) if len(signs) == 1 else None
        case "mul", [a, b]:
            other = b if isinstance(a, Infinity) else a
            if not isinstance(other, Const) or other.value == 0:
                return None
            return Infinity(first.sign if other.value > 0 else -first.sign)
        case (("max" | "min"), [a, b]):
            other = b if isinstance(a, Infinity) else a
            return first if (fn == "max") == (first.sign > 0) else other
        case _:
            return None
