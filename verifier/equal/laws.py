"""Laws of single functions on top of the normal form: signs, definitions, logarithms, powers, scales of maxima.

    real    f(-x) = -f(x) and g(-x) = g(x) for odd f and even g; |p| = p for sums of positive terms.
            cos(a + b) = cos a * cos b - sin a * sin b    sin(a + b) = sin a * cos b + cos a * sin b.
            max_k (a_k + s) = s + max_k a_k over a non-empty set; sum_k s = n * s for s without k.
            max_k (s * a_k) = s * max_k a_k over a set that is not empty, for s >= 0.
            max_k f(a_k) = f(max_k a_k) over a set that is not empty, for increasing f.
            log(a^n) = n * log a for odd n, log(sqrt a) = log(a) / 2; sqrt(c^2 * p) = c * sqrt p for rational c >= 0.
            x^(n + 1/2 + 1/8) = x^n * sqrt x * sqrt sqrt sqrt x      x^-c = 1 / x^c.
            sqrt(p) * sqrt(p) = p      and all powers of one x collected: x * x^(-1/4) = sqrt x * sqrt sqrt x.
            sqrt(x * sqrt x) = x^(3/4): the root of a product of powers whose bases have a root in it.
    range   erfc x = 1 - erf x    expm1 x = exp x - 1    log1p x = log(1 + x).
            tanh x = 1 - 2 / (exp 2x + 1)    sinh, cosh by exponentials.
            log(exp a * p) = a + log p       1 / (exp(-a) + p) = exp a / (1 + exp a * p).
            exp(n * log p) = p^n    prod_k exp a_k = exp(sum_k a_k).
            log(p / v) = log p - log v for sums v of positive terms.

Fractions are equal, p / v = q / w, where p * w = q * v, for divisors that are not zero.

A power with a fraction in its exponent is defined exactly where its square roots are, and their records say so.  With
an integer in it, it is a product, defined for negative x, too.  `_collected` adds exponents only where a root of x
occurs, so x >= 0 is recorded, and x is recorded as a divisor where an exponent is negative.

A scale is known not to be negative when it is an exponential, a sum of these, or by a premise about values (`given
ge(S, 0)`) at the very entry that occurs.  The range must be proved non-empty: the maximum of an empty set is infinite,
and 0 times that is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from superopt.ir.scalar import ANGLES, SCALARS
from verifier.equal import conditions as c
from verifier.equal.classes import infinite
from verifier.equal.conditions import Cond
from verifier.equal.definedness import index_ranges, positive_atom, positive_sum
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
    tidy,
    times,
)
from verifier.equal.normal import EXACT, RANGE, Normaliser
from verifier.equal.pointwise import Premise
from verifier.equal.poly import Poly, const, quoted, var
from verifier.equal.solver import Context
from verifier.equal.terms import Apply, Const, Read, Reduce, ScalarTerm

CLEARED = 6
SPLIT = 4
"""Number of sums under an exponential up to which each becomes a factor."""
MOST, DIGITS = 8, 4
"""Largest exponent, and most binary digits after its point."""
INCREASING = frozenset({"asinh", "atan", "cbrt", "erf", "exp", "exp2", "expm1", "logistic", "sinh", "tanh"})
"""Functions that have a value everywhere and increase."""
Factor: TypeAlias = "tuple[str, tuple[Poly, ...]]"


def nonnegative(ctx: Context, given: Sequence[Premise], facts: tuple[Cond, ...]) -> frozenset[Atom]:
    """Entries of inputs that are not negative by premises of the form `ge(S, 0)`."""
    out: set[Atom] = set()
    for where, t in given:
        if isinstance(t, Apply) and t.fn in ("ge", "gt") and isinstance(t.args[0], Read) and ctx.holds(where, facts):
            bound = t.args[1]
            if isinstance(bound, Const) and bound.value >= 0:
                out.add(Atom(quoted(t.args[0].name), t.args[0].index))
    return frozenset(out)


def nonzero_entries(given: Sequence[Premise]) -> list[tuple[Atom, Trail]]:
    """Entries of inputs that are not 0 by premises of the form `ne(D, 0)`, each where the premise is about it."""
    return [
        (Atom(quoted(t.args[0].name), t.args[0].index), (where,))
        for where, t in given
        if isinstance(t, Apply) and t.fn == "ne" and isinstance(t.args[0], Read) and t.args[1] == Const(Fraction(0))
    ]


@dataclass
class LawNormaliser(Normaliser):
    """Normal forms with the laws of single functions.

    Attributes:
        positive_entries: entries of inputs that are known not to be negative.
        angles: split sines and cosines of sums; a second attempt, since the sums may be equal as they stand.
    """

    positive_entries: frozenset[Atom] = frozenset()
    angles: bool = False

    def _reduce(self, t: Reduce) -> NF:
        out = super()._reduce(t)
        return [self._counted(m, t) for m in out] if t.kind == "sum" else out

    def _counted(self, m: Monomial, t: Reduce) -> Monomial:
        """A summand that does not depend on the bound variable, times the number of its values."""
        domain = c.within(var(t.var), t.size)
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
        if self.laws == RANGE and t.fn in _DEFINED:
            return self.nf(_DEFINED[t.fn](t.args[0]))
        if t.fn == "pow" and (product := as_product(*t.args)) is not None:
            return self.nf(product)
        out = super()._apply(t)
        if t.fn == "add":
            return combine(out)
        return [x for m in out for x in self._squared(m)] if t.fn in ("mul", "div") else out

    def _function(self, fn: str, ps: list[NF]) -> NF:
        if self.laws == EXACT:
            return super()._function(fn, ps)
        if fn == "sqrt" and (root := _root(ps[0]) or self._root_of_roots(combine(ps[0]))) is not None:
            return root
        if fn == "sqrt" and len(ps[0]) == 1 and (square := _rational_root(ps[0][0].coef)) not in (None, 1):
            return scale(self._function(fn, [[replace(ps[0][0], coef=Fraction(1))]]), square or 1)
        if fn == "log" and (power := self._log_of_power(ps[0])) is not None:
            return power
        if fn in ANGLES and self.angles and 1 < len(sums := combine(ps[0])) <= SPLIT:
            return self._of_angles(fn, sums[:1], sums[1:])
        sign, parity = 1, SCALARS[fn].parity if fn in SCALARS else 0
        if parity:
            (p,) = ps = [combine(ps[0])]
            if fn == "abs" and p and all(map(self._not_negative, p)):
                return p
            if p and min(p, key=_order).coef < 0:
                sign, ps = parity, [scale(p, -1)]
        return scale(super()._function(fn, ps), sign)

    def _of_angles(self, fn: str, a: NF, b: NF) -> NF:
        """The sine or cosine of a sum of two angles."""
        (sin_a, cos_a), (sin_b, cos_b) = ([self._function(f, [x]) for f in ANGLES] for x in (a, b))
        if fn == ANGLES[0]:
            return combine(times(self.ctx, sin_a, cos_b) + times(self.ctx, cos_a, sin_b))
        return combine(times(self.ctx, cos_a, cos_b) + scale(times(self.ctx, sin_a, sin_b), -1))

    def _not_negative(self, m: Monomial) -> bool:
        """Whether a summand is not negative for all values of its atoms and sizes."""
        sizes = all(e % 2 == 0 or self.ctx.holds(c.ge(q, 0), index_ranges(self.ctx, m)) for q, e in m.sizes)
        return m.coef > 0 and all(positive_atom(a) or a.exp % 2 == 0 for a in m.atoms) and sizes

    def _log_of_power(self, p: NF) -> NF | None:
        """log(a^e) = e log a for odd e, or with a root of a, so that a is positive where the left side is defined."""
        if len(p) != 1 or not is_simple(p) or p[0].coef != 1 or p[0].sizes:
            return None
        roots, total = self._bases(p[0].atoms)
        if len(roots) == 1 and not any(digits == {0} for digits in roots.values()):
            ((base, exponent),) = total.items()
            inside = self.labels.unfold("value", base) or [Monomial(atoms=(base,))]
            return scale(self._function("log", [inside]), exponent)
        if len(p[0].atoms) != 1:
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

    # ---- powers
    def _root_of_roots(self, p: NF) -> NF | None:
        """The root of a product of powers of values that are recorded as not negative; else None."""
        if len(p) != 1 or p[0].coef != 1 or p[0].sizes or not is_simple(p):
            return None
        roots, total = self._bases(p[0].atoms)
        if not roots or any(digits == {0} for digits in roots.values()):
            return None
        if any(2**DIGITS % (e / 2).denominator for e in total.values()):
            return None
        return [Monomial(atoms=tuple(a for base, e in total.items() for a in self._written(base, e / 2)))]

    def _under_root(self, a: Atom) -> Atom | None:
        """The x of an atom sqrt(x) of any power, where x is an atom; else None."""
        p = self.labels.unfold("sqrt", replace(a, exp=1))
        if p is None or len(p) != 1 or p[0].coef != 1 or p[0].sizes or not is_simple(p) or len(p[0].atoms) != 1:
            return None
        (inner,) = p[0].atoms
        return inner if inner.exp == 1 and not inner.label.startswith("?") else None

    def _base(self, a: Atom) -> tuple[Atom, int]:
        """The x, at power 1, and n of an atom that is n nested square roots of an atom x."""
        n, inner = 0, self._under_root(a)
        while inner is not None:
            a, n, inner = inner, n + 1, self._under_root(inner)
        return replace(a, exp=1), n

    def _squared(self, m: Monomial) -> NF:
        """The summand with every power of a root collected, and squares of roots of sums multiplied out."""
        m = replace(m, atoms=self._collected(m.atoms))
        for a in m.atoms:
            p = self.labels.unfold("sqrt", replace(a, exp=1)) if a.exp >= 2 else None
            if p is None:
                continue
            rest = tuple(x for x in m.atoms if x is not a) + ((replace(a, exp=1),) if a.exp % 2 else ())
            out: NF = [replace(m, atoms=rest)]
            for _ in range(a.exp // 2):
                out = times(self.ctx, out, p)
            return [x for y in out for x in self._squared(y)]
        return [m]

    def _collected(self, atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        """The same product with one exponent per x of which a root occurs, written in binary digits."""
        roots, total = self._bases(atoms)
        kept = [a for a in atoms if roots.get(replace(a, exp=1)) == {0}]
        for base, digits in roots.items():
            if digits != {0}:
                kept += self._written(base, total[base])
        return tuple(kept)

    def _bases(self, atoms: Sequence[Atom]) -> tuple[dict[Atom, set[int]], dict[Atom, Fraction]]:
        """The x of all factors, for each which roots of it occur (0: x itself), and the sum of its exponents."""
        roots: dict[Atom, set[int]] = {}
        total: dict[Atom, Fraction] = {}
        for a in atoms:
            base, n = self._base(a)
            roots.setdefault(base, set()).add(n)
            total[base] = total.get(base, Fraction(0)) + Fraction(a.exp, 2**n)
        return roots, total

    def _written(self, base: Atom, exponent: Fraction) -> list[Atom]:
        """base^exponent as atoms: the integer part, then one root per binary digit."""
        sign = 1 if exponent >= 0 else -1
        whole, rest = divmod(abs(exponent), 1)
        out = [replace(base, exp=sign * int(whole))] if whole else []
        root = base
        while rest:
            root = self.labels.atom("sqrt", [[Monomial(atoms=(root,))]])
            digit, rest = divmod(2 * rest, 1)
            out += [replace(root, exp=sign)] if digit else []
        return out

    # ---- exponentials as factors
    def _exponentials(self, p: NF) -> dict[Factor, int]:
        """Exponentials free of binders, with their least power among all summands (0 in one that lacks it)."""
        powers: dict[Factor, list[int]] = {}
        for m in p:
            for a in m.atoms:
                if a.label.startswith("exp") and not any(x.vars & set(m.binders) for x in a.args):
                    powers.setdefault((a.label, a.args), []).append(a.exp)
        least = {k: min(es) if len(es) == len(p) else min(0, *es) for k, es in powers.items()}
        return {k: e for k, e in least.items() if e}

    def _exponential(self, p: NF) -> NF:
        """exp(a + b) = exp a * exp b; of many sums over binders only all of them together are one factor."""
        powers = [self._of_logarithm(m) for m in p]
        if any(q is not None for q in powers):
            out = self._exponential([m for m, q in zip(p, powers, strict=True) if q is None])
            for q in powers:
                out = out if q is None else times(self.ctx, out, q)
            return out
        many = [m for m in p if m.binders or m.guards]
        if len(many) <= SPLIT:
            return super()._exponential(p)
        rest = super()._exponential([m for m in p if not (m.binders or m.guards)])
        return times(self.ctx, rest, [Monomial(atoms=(self.labels.atom("exp", [many]),))])

    def _factor(self, m: Monomial) -> NF:
        """The product of exponentials over binders is the exponential of the sum of their arguments."""
        p = self.labels.unfold("value", m.atoms[0]) if self.laws == RANGE and m.atoms[0].exp == 1 else None
        fn, coef, argument = (self._argument(p[0]) if p and len(p) == 1 else None) or ("", Fraction(0), [])
        if (fn, coef) != ("exp", 1) or infinite(argument):
            return super()._factor(m)
        guarded = [(x, tidy((*m.guards, *x.guards))) for x in argument]
        total = [replace(x, guards=g, binders=(*m.binders, *x.binders)) for x, g in guarded if g is not None]
        return self._exponential(combine(total))

    def _of_logarithm(self, m: Monomial) -> NF | None:
        """exp(k * log p) = p^k for a small whole number k; None for other summands."""
        if len(m.atoms) != 1 or m.atoms[0].exp != 1 or m.sizes or not is_simple([m]):
            return None
        p = self.labels.unfold("log", m.atoms[0])
        if p is None or m.coef.denominator != 1 or abs(m.coef) > MOST:
            return None
        factor, out = p if m.coef > 0 else self._reciprocal(p), [ONE]
        for _ in range(abs(int(m.coef))):
            out = times(self.ctx, out, factor)
        return out

    def _divided(self, p: NF, by: dict[Factor, int]) -> NF:
        inverse = [Monomial(atoms=tuple(Atom(label, args, -e) for (label, args), e in by.items()))]
        return combine(times(self.ctx, p, inverse))

    def _logarithm(self, p: NF) -> NF | None:
        known = super()._logarithm(p) if p else None
        if known is not None or not p:
            return known
        if (quotient := self._log_of_quotient(p)) is not None:
            return quotient
        outside = self._exponentials(p)
        inside = {k: self.labels.unfold("exp", Atom(*k)) for k in outside}
        if not outside or any(x is None for x in inside.values()):
            return None
        rest = self._divided(p, outside)
        out: NF = [] if rest == [ONE] else self._function("log", [rest])
        for k, e in outside.items():
            out = out + scale(inside[k] or [], e)
        return combine(out)

    def _log_of_quotient(self, p: NF) -> NF | None:
        """log(p / v) = log p - log v for a sum v of positive terms that divides some of several summands; else None."""
        divisor_atom = next((a for m in p for a in m.atoms if a.exp < 0 and self._divisor(a, m) is not None), None)
        divisor = None if divisor_atom is None or len(p) == 1 else self._divisor(divisor_atom, Monomial())
        if divisor_atom is None or divisor is None or not positive_sum(self.ctx, divisor, ()):
            return None
        power = max(-a.exp for m in p for a in m.atoms if (a.label, a.args) == (divisor_atom.label, divisor_atom.args))
        rest = combine(self._without_divisor(p, divisor_atom, divisor, power))
        out: NF = [] if rest == [ONE] else self._function("log", [rest])
        return combine(out + scale(self._function("log", [divisor]), -power))

    def _reciprocal(self, p: NF) -> NF:
        outside: dict[Factor, int] = {}
        if self.laws == RANGE and len(p) > 1:
            outside = {k: e for k, e in self._exponentials(p).items() if e < 0}
        rest = self._divided(p, outside) if outside else p
        out = super()._reciprocal(rest)
        if len(rest) == 1 and is_simple(rest):  # where sqrt(x) is not zero, neither is x
            trail = tuple(self.records.trail)
            for a in rest[0].atoms:
                inner = self._under_root(a)
                while inner is not None:
                    self.records.inverted.append((inner, trail))
                    inner = self._under_root(inner)
        return self._divided(out, outside) if outside else out

    # ---- maxima
    def _maximum(self, entries: NF) -> NF:
        if self.laws == EXACT or not entries:
            return super()._maximum(entries)
        values = [self._value(m) for m in entries]
        factors_of = {abs(m.coef) for p in values for m in p}
        if len(factors_of) == 1 and factors_of != {1}:
            (k,) = factors_of
            rest = [replace(m, atoms=(self._entry(scale(p, 1 / k)),)) for m, p in zip(entries, values, strict=True)]
            return scale(self._maximum(rest), k)
        shared = self._scales(entries, [m for p in values for m in p])
        if not shared or not self._some(entries):
            return self._shifted(entries)
        inverse = [Monomial(atoms=tuple(replace(a, exp=-a.exp) for a in shared))]
        rest = [
            replace(m, atoms=(self._entry(combine(times(self.ctx, p, inverse))),))
            for m, p in zip(entries, values, strict=True)
        ]
        return times(self.ctx, [Monomial(atoms=shared)], self._shifted(list(dict.fromkeys(rest))))

    def _some(self, entries: NF) -> bool:
        """Whether some entry is proved to exist, at the lowest values of the bound variables."""
        facts = tuple(f for m in entries for f in index_ranges(self.ctx, m))
        return self.ctx.holds(c.disj(c.conj(_at_origin(m)) for m in entries), facts)

    def _scales(self, entries: NF, summands: NF) -> tuple[Atom, ...]:
        """Factors of every summand of every entry that are not negative and no binder touches."""
        if not summands:
            return ()
        bound = {b for m in (*entries, *summands) for b in m.binders}
        return tuple(
            a
            for a in summands[0].atoms
            if (self._is_positive(a) or (a.exp > 0 and replace(a, exp=1) in self.positive_entries))
            and not any(x.vars & bound for x in a.args)
            and all(a in m.atoms for m in summands)
        )

    def _is_positive(self, a: Atom) -> bool:
        """Whether a power is positive: of a positive function, or of a sum of positive terms."""
        p = None if positive_atom(a) else self._divisor(a, Monomial())
        return positive_atom(a) or (p is not None and positive_sum(self.ctx, p, ()))

    def _shifted(self, entries: NF) -> NF:
        """A maximum with the summands that all entries share taken out."""
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
            return self._of_arguments(entries, values) or super()._maximum(entries)
        rest: NF = []
        for m, value in zip(entries, values, strict=True):
            left = list(value)
            for x in shared:
                left.remove(x)
            rest.append(replace(m, atoms=(self._entry(left),)))
        return combine(super()._maximum(list(dict.fromkeys(rest))) + shared)

    def _of_arguments(self, entries: NF, values: Sequence[NF]) -> NF | None:
        """A maximum of values of one increasing function, each times one number, by its arguments; else None."""
        arguments = [self._argument(p[0]) if len(p) == 1 else None for p in values]
        known = [x for x in arguments if x is not None]
        plain = len(entries) == 1 and not entries[0].binders and not entries[0].guards
        if plain or len(known) < len(entries) or len({x[:2] for x in known}) > 1 or not self._some(entries):
            return None
        fn, coef, _ = known[0]
        sign = 1 if coef > 0 else -1
        inner = [replace(m, atoms=(self._entry(scale(p, sign)),)) for m, (_, _, p) in zip(entries, known, strict=True)]
        greatest = scale(self._maximum(list(dict.fromkeys(inner))), sign)
        return scale(self._function(fn, [greatest]), coef)

    def _argument(self, m: Monomial) -> tuple[str, Fraction, NF] | None:
        """A number times an increasing function, as its name, the number and the argument; None for other summands.

        A product of powers of exponentials is the exponential of a sum.
        """
        names = {a.label.partition("(")[0].partition("#")[0] for a in m.atoms}
        one = names == {"exp"} or (len(m.atoms) == 1 and m.atoms[0].exp == 1 and names <= INCREASING)
        if not one or m.sizes or not is_simple([m]):
            return None
        (fn,), argument = names, list[Monomial]()
        for a in m.atoms:
            p = self.labels.unfold(fn, replace(a, exp=1))
            if p is None:
                return None
            argument += scale(p, a.exp)
        return fn, m.coef, combine(argument)

    def _value(self, m: Monomial) -> NF:
        """The value of an entry of a maximum, as a sum."""
        (atom,) = m.atoms
        if atom.label == "value()":
            return []
        return self.labels.unfold("value", atom) or [Monomial(atoms=(atom,))]

    # ---- fractions
    def cleared(self, p: NF, q: NF) -> tuple[NF, NF]:
        """Both sides multiplied by the divisors that are sums."""
        for _ in range(CLEARED):
            divisor_atom = next(
                (a for m in (*p, *q) for a in m.atoms if a.exp < 0 and self._divisor(a, m) is not None), None
            )
            if divisor_atom is None:
                break
            divisor = self._divisor(divisor_atom, Monomial())
            assert divisor is not None
            power = max(
                -a.exp
                for m in (*p, *q)
                for a in m.atoms
                if (a.label, a.args) == (divisor_atom.label, divisor_atom.args)
            )
            p, q = (combine(self._without_divisor(side, divisor_atom, divisor, power)) for side in (p, q))
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


def _at_origin(m: Monomial) -> list[Cond]:
    origin = {b: const(0) for b in m.binders}
    return [g.subst(origin) for g in m.guards]


def _root(p: NF) -> NF | None:
    """The square root of a constant that has a rational one."""
    if len(p) != 1 or p[0].atoms or p[0].sizes or not is_simple(p) or p[0].coef < 0:
        return None
    root = _rational_root(p[0].coef)
    return None if root is None else [Monomial(coef=root)]


def _rational_root(value: Fraction) -> Fraction | None:
    if value < 0:
        return None
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return root if root * root == value else None


def _order(m: Monomial) -> str:
    return f"{m.atoms}{m.sizes}{m.guards}"


def as_product(x: ScalarTerm, exponent: ScalarTerm) -> ScalarTerm | None:
    """x^c as products and square roots, or None where c is no small constant of few binary digits."""
    if not isinstance(exponent, Const) or exponent.truth:
        return None
    c = exponent.value
    if not c or abs(c) > MOST or 2**DIGITS % c.denominator:
        return None
    whole, rest = divmod(abs(c), 1)
    factors = [x] * int(whole)
    while rest:
        x = Apply("sqrt", (x,))
        digit, rest = divmod(2 * rest, 1)
        factors += [x] if digit else []
    out = factors[0]
    for f in factors[1:]:
        out = Apply("mul", (out, f))
    return out if c > 0 else Apply("recip", (out,))


# ---- definitions


def _number(n: int) -> Const:
    return Const(Fraction(n))


def _sum(*args: ScalarTerm) -> ScalarTerm:
    total = args[0]
    for a in args[1:]:
        total = Apply("add", (total, a))
    return total


def _product(a: ScalarTerm, b: ScalarTerm) -> ScalarTerm:
    return Apply("mul", (a, b))


def _exp(x: ScalarTerm) -> ScalarTerm:
    return Apply("exp", (x,))


def _negated(x: ScalarTerm) -> ScalarTerm:
    return Apply("neg", (x,))


def _erfc(x: ScalarTerm) -> ScalarTerm:
    return _sum(_number(1), _negated(Apply("erf", (x,))))


def _expm1(x: ScalarTerm) -> ScalarTerm:
    return _sum(_exp(x), _number(-1))


def _log1p(x: ScalarTerm) -> ScalarTerm:
    return Apply("log", (_sum(_number(1), x),))


def _tanh(x: ScalarTerm) -> ScalarTerm:
    denominator = _sum(_exp(_product(_number(2), x)), _number(1))
    return _sum(_number(1), _product(_number(-2), Apply("recip", (denominator,))))


def _sinh(x: ScalarTerm) -> ScalarTerm:
    return _product(Const(Fraction(1, 2)), _sum(_exp(x), _negated(_exp(_negated(x)))))


def _cosh(x: ScalarTerm) -> ScalarTerm:
    return _product(Const(Fraction(1, 2)), _sum(_exp(x), _exp(_negated(x))))


_DEFINED = {"erfc": _erfc, "expm1": _expm1, "log1p": _log1p, "tanh": _tanh, "sinh": _sinh, "cosh": _cosh}
