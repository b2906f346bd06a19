"""Powers with constant exponents of few binary digits, and the square roots that they are made of.

    real    x^(n + 1/2 + 1/8) = x^n * sqrt x * sqrt sqrt sqrt x      x^-c = 1 / x^c
            sqrt(p) * sqrt(p) = p      and all powers of one x collected: x * x^(-1/4) = sqrt x * sqrt sqrt x
            sqrt(x * sqrt x) = x^(3/4): the root of a product of powers whose bases have a root in it

A power with a fraction in its exponent is defined exactly where its square roots are, and their records say so.  With
an integer in it, it is a product, defined for negative x, too.  `collected` adds exponents only where a root of x
stands, so x >= 0 is on record, and x is on record as a divisor where an exponent is negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from verifier.equal.monomial import NF, Atom, Monomial, combine, is_simple, times
from verifier.equal.normal import EXACT
from verifier.equal.products import Products
from verifier.equal.terms import Apply, Const, Term

MOST, DIGITS = 8, 4
"""Largest exponent, and binary digits behind its point."""


@dataclass
class Powers(Products):
    """Normal forms with powers to constants."""

    def _apply(self, t: Apply) -> NF:
        if self.laws == EXACT:
            return super()._apply(t)
        if t.fn == "pow" and (product := as_product(*t.args)) is not None:
            return self.nf(product)
        out = super()._apply(t)
        return [x for m in out for x in self._squared(m)] if t.fn in ("mul", "div") else out

    def _reciprocal(self, p: NF) -> NF:
        out = super()._reciprocal(p)
        if len(p) == 1 and is_simple(p):  # where a root is not zero, neither is what it is the root of
            trail = tuple(self.records.trail)
            for a in p[0].atoms:
                inner = self._under_root(a)
                while inner is not None:
                    self.records.inverted.append((inner, trail))
                    inner = self._under_root(inner)
        return out

    def _function(self, fn: str, ps: list[NF]) -> NF:
        if fn == "sqrt" and self.laws != EXACT and (root := self._root_of_roots(combine(ps[0]))) is not None:
            return root
        return super()._function(fn, ps)

    def _root_of_roots(self, p: NF) -> NF | None:
        """The root of a product of powers of values that are on record as not negative."""
        if len(p) != 1 or p[0].coef != 1 or p[0].sizes or not is_simple(p):
            return None
        roots, total = self._bases(p[0].atoms)
        if not roots or any(digits == {0} for digits in roots.values()):
            return None
        if any(2**DIGITS % (e / 2).denominator for e in total.values()):
            return None
        return [Monomial(atoms=tuple(a for base, e in total.items() for a in self._written(base, e / 2)))]

    def _under_root(self, a: Atom) -> Atom | None:
        """The x of an atom sqrt(x), whatever its power, where x is an atom."""
        p = self.labels.unfold("sqrt", replace(a, exp=1))
        if p is None or len(p) != 1 or p[0].coef != 1 or p[0].sizes or not is_simple(p) or len(p[0].atoms) != 1:
            return None
        (inner,) = p[0].atoms
        return inner if inner.exp == 1 and not inner.label.startswith("?") else None

    def _base(self, a: Atom) -> tuple[Atom, int]:
        """The x and n of an atom that is the n-th square root of an atom x in turn, at power 1."""
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


def as_product(x: Term, exponent: Term) -> Term | None:
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
