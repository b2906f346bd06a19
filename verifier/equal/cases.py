"""Case splits: a function of sums, on every case of the conditions that no binder touches.

    f([g] a + [not g] b)  =  [g] f(a) + [not g] f(b)
    f(p a + (1 - p) b)    =  p f(a) + (1 - p) f(b)      for p in {0, 1}

The guards of one monomial are split as a whole, so that the number of cases does not grow with the rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.monomial import NF, ONE, Atom, Monomial, Unsupported, gate, scale, tidy, times
from verifier.equal.solver import NO, Context

MAX_SPLIT = 40
Case: TypeAlias = "tuple[Cond, ...]"


def by_cases(
    ctx: Context,
    ps: list[NF],
    at: Callable[[list[NF]], NF],
    trail: list[Any],
    booleans: bool = True,
    case: Case = (),
) -> NF:
    """`at` on every case, each under its conditions; with `booleans`, Boolean atoms are cases too.

    While a case is computed, its conditions stand in `trail`.

    Raises:
        Unsupported: too many cases.
    """
    if case:
        ps = [_known(p, case) for p in ps]
    guard = next((g for p in ps for m in p if (g := _outer(m)) != c.TRUE), None)
    if guard is not None:
        if len(case) >= MAX_SPLIT:
            raise Unsupported(f"a case split on {len(case)} conditions")
        out: NF = []
        for side in (guard, c.negate(guard)):
            if not case or ctx.possible(side, case) != NO:
                trail.append(side)
                out += gate(by_cases(ctx, ps, at, trail, booleans, (*case, *c.clauses(side))), side)
                trail.pop()
        return out
    flag = next((a for p in ps for m in p for a in m.atoms if booleans and _is_flag(a, m)), None)
    if flag is None:
        return at(ps)
    true = [[replace(m, atoms=tuple(a for a in m.atoms if a != flag)) for m in p] for p in ps]
    false = [[m for m in p if flag not in m.atoms] for p in ps]
    chosen: NF = [Monomial(atoms=(flag,))]
    trail.append((flag, True))
    yes = times(ctx, chosen, by_cases(ctx, true, at, trail, booleans, case))
    trail[-1] = (flag, False)
    no = times(ctx, complement(chosen), by_cases(ctx, false, at, trail, booleans, case))
    trail.pop()
    return yes + no


def complement(p: NF) -> NF:
    """1 - p."""
    return [ONE, *scale(p, -1)]


def _outer(m: Monomial) -> Cond:
    """The guards that no binder touches."""
    bound = set(m.binders)
    return c.conj(g for g in m.guards if not g.vars & bound)


def _is_flag(a: Atom, m: Monomial) -> bool:
    return a.label.startswith("?") and not any(x.vars & set(m.binders) for x in a.args)


def _known(p: NF, case: Case) -> NF:
    """A sum whose guards are simplified by conditions that hold."""
    out: NF = []
    for m in p:
        if c.negate(_outer(m)) in case:
            continue
        guards = tidy(_under(g, case) for g in m.guards)
        if guards is not None:
            out.append(replace(m, guards=guards))
    return out


def _under(g: Cond, case: Case) -> Cond:
    if g in case:
        return c.TRUE
    if c.negate(g) in case:
        return c.FALSE
    if g.kind in ("and", "or"):
        parts = [_under(a, case) for a in g.args]
        return c.conj(parts) if g.kind == "and" else c.disj(parts)
    return g
