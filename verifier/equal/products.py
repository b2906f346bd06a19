"""Products over a range: multisets of factors, as sums are multisets of terms.

Equal multisets have equal products, since multiplication is associative and commutative and 1 is neutral.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from verifier.equal import conditions as c
from verifier.equal.cases import by_cases
from verifier.equal.guards import onepoint
from verifier.equal.monomial import NF, ONE, Monomial, combine, tidy, times
from verifier.equal.normal import Normaliser
from verifier.equal.poly import var
from verifier.equal.terms import Apply, Const, Reduce, Term, Where


@dataclass
class Products(Normaliser):
    """Normal forms with products over a range."""

    def _product(self, t: Term) -> NF:
        def at(ps: list[NF]) -> NF:
            out: NF = [ONE]
            for m in ps[0]:
                whole = self.labels.unfold("value", m.atoms[0]) if not m.binders and not m.guards else None
                one = replace(m, coef=Fraction(1))
                out = times(
                    self.ctx,
                    out,
                    [Monomial(atoms=(self.labels.classes.atom("rprod", [[one]]),))] if whole is None else whole,
                )
            return out

        return by_cases(self.ctx, [self._product_factors(t)], at, self.records.trail)

    def _product_factors(self, t: Term) -> NF:
        """The multiset of factors, each a guarded monomial with one atom that stands for its value."""
        if isinstance(t, Reduce) and t.kind == "prod":
            domain = (c.ge(var(t.var), 0), c.lt(var(t.var), t.size))
            out: NF = []
            for m in self._product_factors(t.body):
                guards = tidy((*m.guards, *domain))
                if guards is not None:
                    one = onepoint(self.ctx, replace(m, guards=guards, binders=(*m.binders, t.var)))
                    out += [] if one is None else [one]
            return out
        if isinstance(t, Apply) and t.fn == "mul":
            return self._product_factors(t.args[0]) + self._product_factors(t.args[1])
        if isinstance(t, Where):
            return self._chosen(t, self._product_factors)
        if t == Const(Fraction(1)):
            return []

        def at(ps: list[NF]) -> NF:
            return [Monomial(atoms=(self.labels.atom("value", [combine(ps[0])]),))]

        return by_cases(self.ctx, [self.nf(t)], at, self.records.trail, booleans=False)
