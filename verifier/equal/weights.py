"""Atoms as coordinates: sums are compared by their weights at every combination of atom arguments.

For fixed atoms A1..An at fresh coordinates a1..am, a monomial contributes the number of binder values at which its
arguments equal the coordinates and its guards hold (eliminate.py).  Two sums over independent atoms are equal exactly
when for each multiset of atoms the total weights agree at all coordinates: one quantifier-free question in integers.
In a maximum, weights are Boolean: present or not.  Summands equal up to the names of binders cancel first.

Trusted laws: Fubini (binders are a set), one-point sums, uniqueness of quotient and remainder, interval counts.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.eliminate import CannotSolve, Weight, eliminate
from verifier.equal.guards import split_guards
from verifier.equal.monomial import NF, Atom, Monomial, canonical, merge_sizes
from verifier.equal.poly import Poly, const, var
from verifier.equal.solver import NO, Context

MAX_ORDERS = 720
WRITTEN = 6  # a seventh equal atom would pass MAX_ORDERS
Signature: TypeAlias = "tuple[tuple[str, int, int], ...]"
"""Atoms of a monomial, powers written out: (label, sign of the power, number of arguments)."""


def signature(m: Monomial) -> Signature:
    """The multiset of atoms, each as (label, sign of its power, number of arguments)."""
    return tuple((a.label, a.exp, len(a.args)) for a in spread(m).atoms)


def spread(m: Monomial) -> Monomial:
    """Powers written out as repeated atoms, in order of label; a high one is an atom of its own."""
    atoms: list[Atom] = []
    for a in m.atoms:
        n, sign = abs(a.exp), 1 if a.exp > 0 else -1
        atoms += [Atom(a.label, a.args, sign)] * n if n <= WRITTEN else [Atom(f"{a.label}^{n}", a.args, sign)]
    atoms.sort(key=lambda a: (a.label, a.exp, len(a.args)))
    return replace(m, atoms=tuple(atoms))


def groups(p: NF) -> dict[Signature, NF]:
    """Monomials by signature."""
    out: dict[Signature, NF] = {}
    for m in p:
        out.setdefault(signature(m), []).append(spread(m))
    return out


def equal(ctx: Context, p: NF, q: NF, facts: tuple[Cond, ...] = (), exists: bool = False) -> bool:
    """Are two sums (or, with `exists`, two sets under a maximum) equal for all values of all atoms?"""
    left, right = groups(p), groups(q)
    for sig in sorted(set(left) | set(right)):
        a, b = left.get(sig, []), right.get(sig, [])
        try:
            ctx.forall = max(ctx.forall, _atoms_of_condition(a + b, sig))
        except CannotSolve as stop:
            ctx.notes.append(f"cannot solve: {stop}")
            return False
        if exists:
            same = {canonical(m) for m in a} == {canonical(m) for m in b}
        else:
            a, b = _without_common(a, b)
            same = not a and not b
        if same:
            continue
        coords = [var(ctx.fresh(None, "a")) for _ in range(sum(n for _, _, n in sig))]
        try:
            ok = _same_sets(ctx, a, b, sig, coords, facts) if exists else _same_sums(ctx, a, b, sig, coords, facts)
        except CannotSolve as stop:
            ctx.notes.append(f"cannot solve: {stop}")
            return False
        if not ok:
            return False
    return True


def _atoms_of_condition(ms: NF, sig: Signature) -> int:
    """Upper bound on the number of 'for all axes' statements in the equation of two weights (see ranks.py)."""
    statements: set[object] = set()
    orders = len(_orders(sig))
    # equations that all weights share hold wherever the weights differ: they need no witness
    shared = orders == 1 and not any(m.binders for m in ms) and len({m.atoms for m in ms}) == 1
    for m in ms:
        plain = frozenset(g for g in m.guards if g.kind not in ("or", "ne"))
        for g in m.guards:
            statements |= _statements(g) if g not in plain else set()
        if not shared and any(a.args for a in m.atoms):
            text = canonical(replace(m, guards=tuple(g for g in m.guards if g in plain)))
            statements |= {(text, n) for n in range(orders)}
        elif plain:
            statements.add(plain)
    return len(statements)


def _statements(g: Cond) -> set[object]:
    """The conjunctions of comparisons of which a condition is a Boolean combination."""
    if g.kind == "ne":
        return {frozenset({c.negate(g)})}
    if g.kind not in ("and", "or"):
        return {frozenset({g})}
    compared = [x for x in g.args if x.poly is not None]
    if g.kind == "or":  # not all of the complements
        compared = [c.negate(x) for x in compared]
    out: set[object] = {frozenset(compared)} if compared else set()
    for x in g.args:
        out |= _statements(x) if x.poly is None else set()
    return out


def _without_common(a: NF, b: NF) -> tuple[NF, NF]:
    totals: dict[str, tuple[Fraction, Monomial]] = {}
    for sign, ms in ((1, a), (-1, b)):
        for m in ms:
            key = canonical(m)
            old = totals.get(key)
            totals[key] = ((old[0] if old else Fraction(0)) + sign * m.coef, old[1] if old else m)
    left = [replace(m, coef=k) for k, m in totals.values() if k > 0]
    return left, [replace(m, coef=-k) for k, m in totals.values() if k < 0]


def _orders(sig: Signature) -> list[list[int]]:
    """Orders of the atoms that differ only within runs of equal ones."""
    runs = [list(g) for _, g in itertools.groupby(range(len(sig)), key=lambda i: sig[i])]
    if math.prod(math.factorial(len(r)) for r in runs) > MAX_ORDERS:
        raise CannotSolve(f"{len(sig)} equal atoms have too many orders")
    return [[i for run in pick for i in run] for pick in itertools.product(*[itertools.permutations(r) for r in runs])]


def _weights(
    ctx: Context,
    ms: NF,
    sig: Signature,
    coords: list[Poly],
    facts: tuple[Cond, ...],
    exists: bool,
) -> list[Weight]:
    starts = [0, *itertools.accumulate(n for _, _, n in sig)]
    out: list[Weight] = []
    for m in (piece for x in ms for piece in split_guards(x)):
        for order in _orders(sig):
            at = [x for i in order for x in coords[starts[i] : starts[i + 1]]]
            w = eliminate(ctx, m, at, facts, exists)
            if w.guard != c.FALSE:
                out.append(w)
    return out


def _same_sums(
    ctx: Context,
    a: NF,
    b: NF,
    sig: Signature,
    coords: list[Poly],
    facts: tuple[Cond, ...],
) -> bool:
    parts = _weights(ctx, a, sig, coords, facts, False)
    parts += [replace(w, coef=-w.coef) for w in _weights(ctx, b, sig, coords, facts, False)]
    down: dict[Poly, int] = {}
    for w in parts:
        for p, e in w.sizes:
            if e < 0:
                down[p] = max(down.get(p, 0), -e)
    lcm = math.lcm(*(w.coef.denominator for w in parts)) if parts else 1
    table: dict[Cond, Poly] = {}
    for w in parts:
        total = const(int(w.coef * lcm))
        for p, e in merge_sizes([*w.sizes, *down.items()]):
            for _ in range(e):
                total = total * p
        table[w.guard] = table.get(w.guard, const(0)) + total
    live = [(p, g) for g, p in table.items() if p.terms]
    if not live:
        return True
    nonzero = tuple(c.ne(p, 0) for p in down)
    answer = ctx.differ(ctx.weighted(live), (*facts, *nonzero))
    if answer not in (NO,):
        ctx.notes.append(f"weights of {'*'.join(label for label, _, _ in sig) or '1'} differ ({answer})")
    return answer == NO


def _same_sets(
    ctx: Context,
    a: NF,
    b: NF,
    sig: Signature,
    coords: list[Poly],
    facts: tuple[Cond, ...],
) -> bool:
    left, right = (c.disj(w.guard for w in _weights(ctx, ms, sig, coords, facts, True)) for ms in (a, b))
    return left == right or ctx.differ(ctx.not_iff(left, right), facts) == NO
