"""Scales out of maxima: max_k (s * a_k) = s * max_k a_k for s >= 0.

A scale is known not to be negative when it is an exponential, or when a premise about values says so (`given ge(S, 0)`)
at the very entry that occurs.  The range must be proved not to be empty: the maximum of nothing is infinite, and 0
times that is no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.denominators import index_ranges, positive_atom
from verifier.equal.elementary import Elementary
from verifier.equal.monomial import NF, Atom, Monomial, combine, times
from verifier.equal.normal import EXACT
from verifier.equal.pointwise import Premise
from verifier.equal.poly import const
from verifier.equal.solver import Context
from verifier.equal.terms import Apply, Const, Read


def nonnegative(ctx: Context, given: Sequence[Premise], facts: tuple[Cond, ...]) -> frozenset[Atom]:
    """Entries of inputs that premises of the form `ge(S, 0)` say are not negative."""
    out: set[Atom] = set()
    for where, t in given:
        if isinstance(t, Apply) and t.fn in ("ge", "gt") and isinstance(t.args[0], Read) and ctx.holds(where, facts):
            bound = t.args[1]
            if isinstance(bound, Const) and bound.value >= 0:
                out.add(Atom(t.args[0].name, t.args[0].index))
    return frozenset(out)


@dataclass
class Scaled(Elementary):
    """Normal forms with scales that move out of maxima."""

    positive_entries: frozenset[Atom] = frozenset()

    def _maximum(self, entries: NF) -> NF:
        if self.laws == EXACT or not entries:
            return super()._maximum(entries)
        values = [self._value(m) for m in entries]
        shared = self._scales(entries, [m for p in values for m in p])
        if not shared or not self._some(entries):
            return super()._maximum(entries)
        inverse = [Monomial(atoms=tuple(replace(a, exp=-a.exp) for a in shared))]
        rest = [
            replace(m, atoms=(self._entry(combine(times(self.ctx, p, inverse))),))
            for m, p in zip(entries, values, strict=True)
        ]
        return times(self.ctx, [Monomial(atoms=shared)], super()._maximum(list(dict.fromkeys(rest))))

    def _some(self, entries: NF) -> bool:
        """Is an entry there for sure, at the lowest values of the bound variables?"""
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
            if a.exp > 0
            and (positive_atom(a) or replace(a, exp=1) in self.positive_entries)
            and not any(x.vars & bound for x in a.args)
            and all(a in m.atoms for m in summands)
        )


def _at_origin(m: Monomial) -> list[Cond]:
    origin = {b: const(0) for b in m.binders}
    return [g.subst(origin) for g in m.guards]
