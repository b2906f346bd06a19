"""Normal forms as JSON: both sides of an equation as they were compared, for a checker that shares none of this code.

A polynomial is a list of [factor, atoms], an atom a name or [operation, polynomials]; a condition [kind, polynomial or
conditions]; a summand [coefficient, sizes, conditions, binders, factors], a factor [label, arguments, power].  A table
explains labels of opaque functions: function, parameters, and its arguments as sums over these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from verifier.equal.classes import AtomLabels
from verifier.equal.conditions import Cond
from verifier.equal.monomial import NF, Monomial
from verifier.equal.poly import Poly, form_of
from verifier.equal.solver import Context

Written: TypeAlias = "Any"


def written(
    ctx: Context, labels: AtomLabels, laws: str, sides: tuple[NF, NF], added: tuple[NF, NF]
) -> dict[str, Written]:
    """Both sides as JSON, with the sums actually compared where both had first been multiplied by their divisors."""
    todo = [*sides[0], *sides[1], *added[0], *added[1]]
    atoms: dict[str, Written] = {}
    binders: dict[str, Written] = {}
    while todo:
        m = todo.pop()
        for k in m.binders:
            n = ctx.range_of(k)
            if n is not None:
                binders[k] = _poly(n)
        for a in m.atoms:
            explained = None if a.label in atoms else labels.explained(a.label)
            if explained is not None:
                fn, params, sums = explained
                atoms[a.label] = [fn, list(params), [_sum(p) for p in sums]]
                todo += (x for p in sums for x in p)
    out: dict[str, Written] = {"laws": laws, "left": _sum(sides[0]), "right": _sum(sides[1])}
    if added != sides:
        out |= {"added": [_sum(added[0]), _sum(added[1])]}
    return {**out, "atoms": atoms, "ranges": binders}


def _sum(p: NF) -> Written:
    return [_monomial(m) for m in p]


def _monomial(m: Monomial) -> Written:
    sizes = [[_poly(q), e] for q, e in m.sizes]
    factors = [[a.label, [_poly(x) for x in a.args], a.exp] for a in m.atoms]
    return [str(m.coef), sizes, [_cond(g) for g in m.guards], list(m.binders), factors]


def _poly(p: Poly) -> Written:
    return [[k, [_atom(a) for a in mono]] for mono, k in p.terms]


def _atom(name: str) -> Written:
    form = form_of(name)
    return name if form is None else [form[0], [_poly(x) for x in form[1]]]


def _cond(g: Cond) -> Written:
    return [g.kind, _poly(g.poly) if g.poly is not None else [_cond(x) for x in g.args]]


def place(index: Iterable[tuple[Any, Any]]) -> dict[str, Written]:
    """Map each axis of the result to its index, as JSON."""
    return {str(axis): _poly(i) for axis, i in index}
