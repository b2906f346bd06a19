"""Laws of single functions on top of the normal form: signs, definitions, logarithms of products, shifts of maxima.

    real    f(-x) = -f(x) and g(-x) = g(x) for odd f and even g; |p| = p for sums of positive terms
            max_k (a_k + s) = s + max_k a_k over a non-empty set; sum_k s = n * s for s without k
            log(a^n) = n * log a for odd n; square roots of rational squares
    range   erfc x = 1 - erf x    expm1 x = exp x - 1    log1p x = log(1 + x)
            tanh x = 1 - 2 / (exp 2x + 1)    sinh, cosh by exponentials
            log(exp a * p) = a + log p       1 / (exp(-a) + p) = exp a / (1 + exp a * p)

and equality of fractions: p / v = q / w where p * w = q * v, for divisors that are not zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from verifier.equal import conditions as c
from verifier.equal.denominators import index_ranges, positive_atom
from verifier.equal.monomial import (
    NF,
    ONE,
    Atom,
    Monomial,
    Trail,
    combine,
    factors,
    is_simple,
    merge_sizes,
    scale,
    times,
)
from verifier.equal.normal import EXACT, RANGE
from verifier.equal.poly import Poly
from verifier.equal.powers import Powers
from verifier.equal.terms import Apply, Const, Reduce, Term

ODD = frozenset({"sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "erf_inv", "sign", "cbrt"})
EVEN = frozenset({"abs", "cos", "cosh"})
CLEARED = 6
SPLIT = 4
"""Sums under an exponential up to which each is a factor."""
Factor: TypeAlias = "tuple[str, tuple[Poly, ...]]"


@dataclass
class Elementary(Powers):
    """Normal forms with the laws of single functions."""

    def _reduce(self, t: Reduce) -> NF:
        out = super()._reduce(t)
        return [self._counted(m, t) for m in out] if t.kind == "sum" else out

    def _counted(self, m: Monomial, t: Reduce) -> Monomial:
        """A summand that does not depend on the bound variable, times the number of its values."""
        domain = (c.ge(_var(t.var), 0), c.lt(_var(t.var), t.size))
        rest = tuple(g for g in m.guards if g not in domain)
        used = any(t.var in x.vars for a in m.atoms for x in a.args) or any(t.var in g.vars for g in rest)
        if t.var not in m.binders or used or any(t.var in p.vars for p, _ in m.sizes):
            return m
        if set(t.size.vars) & set(m.binders) or not self.ctx.holds(c.ge(t.size, 0)):
            return m
        coef, sizes = factors(t.size)
        self.ctx.counted |= t.size.vars
        binders = tuple(b for b in m.binders if b != t.var)
        return replace(m, coef=m.coef * coef, sizes=merge_sizes(m.sizes + sizes), guards=rest, binders=binders)

    def _apply(self, t: Apply) -> NF:
        if self.laws == EXACT:
            return super()._apply(t)
        if t.fn == "add":
            return combine(super()._apply(t))
        if self.laws == RANGE and t.fn in _DEFINED:
            return self.nf(_DEFINED[t.fn](t.args[0]))
        return super()._apply(t)

    def _truth(self, t: Term) -> NF:
        if isinstance(t, Apply) and t.fn == "is_finite" and self.laws != EXACT:
            return [ONE]  # values are finite: an assumption of these laws
        return super()._truth(t)

    def _function(self, fn: str, ps: list[NF]) -> NF:
        if self.laws == EXACT:
            return super()._function(fn, ps)
        if fn == "sqrt" and (root := _root(ps[0])) is not None:
            return root
        if fn == "log" and (power := self._log_of_power(ps[0])) is not None:
            return power
        sign = 1
        if fn in ODD | EVEN:
            (p,) = ps = [combine(ps[0])]
            if fn == "abs" and p and all(map(self._not_negative, p)):
                return p
            if p and min(p, key=_order).coef < 0:
                sign, ps = (-1 if fn in ODD else 1), [scale(p, -1)]
        return scale(super()._function(fn, ps), sign)

    def _not_negative(self, m: Monomial) -> bool:
        """Is a summand not negative, whatever its atoms and sizes are?"""
        sizes = all(e % 2 == 0 or self.ctx.holds(c.ge(q, 0), index_ranges(self.ctx, m)) for q, e in m.sizes)
        return m.coef > 0 and all(positive_atom(a) or a.exp % 2 == 0 for a in m.atoms) and sizes

    def _log_of_power(self, p: NF) -> NF | None:
        """log(a^e) = e log a for odd e: a is positive where the left side is defined."""
        if len(p) != 1 or not is_simple(p) or p[0].coef != 1 or p[0].sizes or len(p[0].atoms) != 1:
            return None
        (a,) = p[0].atoms
        if a.exp % 2 == 0 or a.exp == 1 or a.label.startswith(("exp(", "exp#")):
            return None
        base = replace(a, exp=1)
        inside = self.labels.unfold("value", base) or [Monomial(atoms=(base,))]
        return scale(self._function("log", [inside]), a.exp)

    def positive(self, partial: Sequence[tuple[Atom, Trail]]) -> list[tuple[Atom, Trail]]:
        """Values that are positive wherever these partial functions are defined: arguments of logarithms."""
        inside = [(self.labels.unfold("log", a), trail) for a, trail in partial if a.label.startswith("log")]
        return [
            (replace(p[0].atoms[0], exp=1), trail) for p, trail in inside if p and len(p) == 1 and len(p[0].atoms) == 1
        ]

    # ---- exponentials as factors
    def _exponentials(self, p: NF) -> dict[Factor, int]:
        """Exponentials free of binders, with the least power that every summand has (0 where one lacks it)."""
        found: dict[Factor, list[int]] = {}
        for m in p:
            for a in m.atoms:
                if a.label.startswith("exp") and not any(x.vars & set(m.binders) for x in a.args):
                    found.setdefault((a.label, a.args), []).append(a.exp)
        least = {k: min(es) if len(es) == len(p) else min(0, *es) for k, es in found.items()}
        return {k: e for k, e in least.items() if e}

    def _exponential(self, p: NF) -> NF:
        """exp(a + b) = exp a * exp b; of many sums over binders only all of them together are one factor."""
        many = [m for m in p if m.binders or m.guards]
        if len(many) <= SPLIT:
            return super()._exponential(p)
        rest = super()._exponential([m for m in p if not (m.binders or m.guards)])
        return times(self.ctx, rest, [Monomial(atoms=(self.labels.atom("exp", [many]),))])

    def _divided(self, p: NF, by: dict[Factor, int]) -> NF:
        inverse = [Monomial(atoms=tuple(Atom(label, args, -e) for (label, args), e in by.items()))]
        return combine(times(self.ctx, p, inverse))

    def _logarithm(self, p: NF) -> NF | None:
        known = super()._logarithm(p)
        if known is not None or not p:
            return known
        outside = self._exponentials(p)
        inside = {k: self.labels.unfold("exp", Atom(*k)) for k in outside}
        if not outside or any(x is None for x in inside.values()):
            return None
        rest = self._divided(p, outside)
        out: NF = [] if rest == [ONE] else self._function("log", [rest])
        for k, e in outside.items():
            out = out + scale(inside[k] or [], e)
        return combine(out)

    def _reciprocal(self, p: NF) -> NF:
        if self.laws == RANGE and len(p) > 1:
            outside = {k: e for k, e in self._exponentials(p).items() if e < 0}
            if outside:
                inner = super()._reciprocal(self._divided(p, outside))
                return self._divided(inner, outside)
        return super()._reciprocal(p)

    # ---- maxima
    def _maximum(self, entries: NF) -> NF:
        if self.laws == EXACT or not entries:
            return super()._maximum(entries)
        values = [self._value(m) for m in entries]
        bound = [set(m.binders) for m in entries]
        shared = [
            x
            for x in values[0]
            if not x.binders
            and not x.guards
            and all(x in value for value in values)
            and not any(x.free() & b for b in bound)
        ]
        if not shared or any(a.label == "inf" for x in shared for a in x.atoms):
            return super()._maximum(entries)
        rest: NF = []
        for m, value in zip(entries, values, strict=True):
            left = list(value)
            for x in shared:
                left.remove(x)
            rest.append(replace(m, atoms=(self._entry(left),)))
        return combine(super()._maximum(list(dict.fromkeys(rest))) + shared)

    def _value(self, m: Monomial) -> NF:
        """What an entry of a maximum stands for."""
        (atom,) = m.atoms
        if atom.label == "value()":
            return []
        return self.labels.unfold("value", atom) or [Monomial(atoms=(atom,))]

    # ---- fractions
    def cleared(self, p: NF, q: NF) -> tuple[NF, NF]:
        """Both sides multiplied by the divisors that are sums."""
        for _ in range(CLEARED):
            found = next((a for m in (*p, *q) for a in m.atoms if a.exp < 0 and self._divisor(a, m) is not None), None)
            if found is None:
                break
            divisor = self._divisor(found, Monomial())
            assert divisor is not None
            power = max(-a.exp for m in (*p, *q) for a in m.atoms if (a.label, a.args) == (found.label, found.args))
            p, q = (combine(self._without_divisor(side, found, divisor, power)) for side in (p, q))
        return p, q

    def _divisor(self, a: Atom, m: Monomial) -> NF | None:
        if not a.label.startswith("value") or any(x.vars & set(m.binders) for x in a.args):
            return None
        return self.labels.unfold("value", replace(a, exp=1))

    def _without_divisor(self, p: NF, found: Atom, divisor: NF, power: int) -> NF:
        out: NF = []
        for m in p:
            here = sum(-a.exp for a in m.atoms if (a.label, a.args) == (found.label, found.args))
            rest = replace(m, atoms=tuple(a for a in m.atoms if (a.label, a.args) != (found.label, found.args)))
            made: NF = [rest]
            for _ in range(power - here):
                made = times(self.ctx, made, divisor)
            out += made
        return out


def _root(p: NF) -> NF | None:
    """The square root of a constant that has a rational one."""
    if len(p) != 1 or p[0].atoms or p[0].sizes or not is_simple(p) or p[0].coef < 0:
        return None
    value = p[0].coef
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return [Monomial(coef=root)] if root * root == value else None


def _var(name: str) -> Poly:
    return Poly((((name,), 1),))


def _order(m: Monomial) -> str:
    return f"{m.atoms}{m.sizes}{m.guards}"


# ---- definitions


def _number(n: int) -> Const:
    return Const(Fraction(n))


def _sum(*args: Term) -> Term:
    total = args[0]
    for a in args[1:]:
        total = Apply("add", (total, a))
    return total


def _product(a: Term, b: Term) -> Term:
    return Apply("mul", (a, b))


def _exp(x: Term) -> Term:
    return Apply("exp", (x,))


def _negated(x: Term) -> Term:
    return Apply("neg", (x,))


def _erfc(x: Term) -> Term:
    return _sum(_number(1), _negated(Apply("erf", (x,))))


def _expm1(x: Term) -> Term:
    return _sum(_exp(x), _number(-1))


def _log1p(x: Term) -> Term:
    return Apply("log", (_sum(_number(1), x),))


def _tanh(x: Term) -> Term:
    denominator = _sum(_exp(_product(_number(2), x)), _number(1))
    return _sum(_number(1), _product(_number(-2), Apply("recip", (denominator,))))


def _sinh(x: Term) -> Term:
    return _product(Const(Fraction(1, 2)), _sum(_exp(x), _negated(_exp(_negated(x)))))


def _cosh(x: Term) -> Term:
    return _product(Const(Fraction(1, 2)), _sum(_exp(x), _exp(_negated(x))))


_DEFINED = {"erfc": _erfc, "expm1": _expm1, "log1p": _log1p, "tanh": _tanh, "sinh": _sinh, "cosh": _cosh}
