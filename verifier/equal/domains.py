"""Syntactic checks that a term is defined wherever its inputs are, by the signs of its parts.

Undefined values are a quotient by a possible zero, a root of a possibly negative value, or NaN.  Where one reaches the
result, the result is NaN, and a proof may assume that this does not happen.  A comparison, a test for NaN and a
conversion to integers turn it into an ordinary value, so below them nothing may be assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from superopt.ir.ops.table import PARTIAL
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.terms import Apply, Const, Integer, Reduce, ScalarTerm, Where, alike, parts_of

_POSITIVE = frozenset({"exp", "exp2", "logistic", "cosh"})
_SUMS = frozenset({"sum", "prod", "max", "min"})


@dataclass
class Domains:
    """Checks of where values are defined, with a cache; `known` decides conditions on indices."""

    known: Callable[[Cond], bool]
    _signs: dict[int, tuple[ScalarTerm, int]] = field(default_factory=dict[int, tuple[ScalarTerm, int]])
    _whole: dict[int, tuple[ScalarTerm, bool]] = field(default_factory=dict[int, tuple[ScalarTerm, bool]])

    def whole(self, *terms: ScalarTerm) -> bool:
        """Whether terms are defined wherever their inputs are."""
        for t in terms:
            if id(t) not in self._whole:
                self._whole[id(t)] = t, not self.may_fail(t) and self.whole(*parts_of(t))
            if not self._whole[id(t)][1]:
                return False
        return True

    def may_fail(self, t: ScalarTerm) -> bool:
        """Whether a function may be undefined although its arguments are defined."""
        if not isinstance(t, Apply):
            return False
        name, args = t.fn.partition("[")[0], t.args
        if name not in PARTIAL:
            return name == "nan"
        match name:
            case "div" | "rem":
                return self.sign(args[1]) < 2 and self.sign(_negated(args[1])) < 2
            case "sqrt" | "log1p":
                return self.sign(args[0]) < 1
            case "log" | "rsqrt":
                return self.sign(args[0]) < 2
            case "pow":
                positive = isinstance(args[1], Const) and args[1].value > 0
                whole = positive and isinstance(args[1], Const) and args[1].value.denominator == 1
                return not whole and self.sign(args[0]) < (1 if positive else 2)
            case _:
                return True

    def sign(self, t: ScalarTerm) -> int:
        """The sign that is evident from a term: 2 for positive, 1 for not negative, else 0."""
        if id(t) not in self._signs:
            self._signs[id(t)] = t, self._sign(t)
        return self._signs[id(t)][1]

    def _sign(self, t: ScalarTerm) -> int:
        match t:
            case Const():
                return 2 if t.value > 0 else int(t.value == 0)
            case Integer():
                return 2 if self.known(c.ge(t.value, 1)) else int(self.known(c.ge(t.value, 0)))
            case Where():
                return min(self.sign(t.then), self.sign(t.orelse))
            case Reduce() if t.kind.partition("[")[0] in _SUMS:
                inside = self.sign(t.body)
                filled = t.kind.startswith("prod") or self.known(c.ge(t.size, 1))
                return inside if filled else min(inside, 1) if t.kind.startswith("sum") else 0
            case Apply():
                return self._of_function(t.fn.partition("[")[0], t.args)
            case _:
                return 0

    def _of_function(self, name: str, args: tuple[ScalarTerm, ...]) -> int:
        """Return the sign of a function's result: 2 for positive, 1 for not negative, else 0."""
        if name in _POSITIVE:
            return 2
        if name == "mul" and alike(*args):
            return max(1, self.sign(args[0]))
        signs = [self.sign(a) for a in args] if name in ("add", "mul", "div", "max", "min", "sqrt", "select_n") else []
        match name:
            case "add":
                return max(signs) if min(signs) else 0
            case "mul" | "min":
                return min(signs)
            case "div":
                return min(signs) if signs[1] == 2 else 0
            case "max":
                return max(signs)
            case "sqrt":
                return signs[0]
            case "abs":
                return max(1, self.sign(args[0]))
            case "select_n":
                return min(signs[1:])
            case "rsqrt":
                return 2 if self.sign(args[0]) == 2 else 0
            case _:
                return 0


def _negated(t: ScalarTerm) -> ScalarTerm:
    """The negation of a constant or of a negation; for any other term -1, whose sign says nothing."""
    if isinstance(t, Const):
        return Const(-t.value)
    return t.args[0] if isinstance(t, Apply) and t.fn == "neg" else Const(Fraction(-1))
