"""Guards on binders: one-point sums, disjoint alternatives, and divisions that comparisons do not need.

sum_k [k = e] f(k) = f(e)         x // s >= t  as  x >= s*t        x // s <= t  as  x < s*(t + 1)      for s >= 1
                                                                   x // s <= t  as  x <= s*t           where s divides x
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.monomial import NF, Monomial, cancel, tidy
from verifier.equal.poly import Poly, form_of
from verifier.equal.solver import Context


def undivide(ctx: Context, g: Cond, facts: tuple[Cond, ...], beside: Collection[Cond] = ()) -> Cond:
    """x // s >= t as x >= s*t, and x // s <= t as x < s*(t + 1), for s >= 1; `beside`: conditions that hold as well."""
    if g.kind in ("and", "or"):
        parts = [undivide(ctx, a, facts, beside) for a in g.args]
        return c.conj(parts) if g.kind == "and" else c.disj(parts)
    if g.kind != "ge" or g.poly is None:
        return g
    for atom in g.poly.forms:
        form, lin = form_of(atom), g.poly.affine(atom)
        if form is None or lin is None or form[0] != "//" or lin[0].value not in (1, -1):
            continue
        x, s = form[1]
        if s.value is None and not ctx.holds(c.ge(s, 1), facts):
            continue
        if lin[0].value == 1:
            better = c.ge(x, -lin[1] * s)
        else:
            better = c.ge(lin[1] * s, x) if c.eq(x % s, 0) in beside else c.lt(x, (lin[1] + 1) * s)
        return undivide(ctx, better, facts, beside)
    return g


def onepoint(ctx: Context, m: Monomial) -> Monomial | None:
    """Remove binders that a guard fixes: sum_k [k = e] f(k) = f(e); None when the monomial is 0."""
    progress = True
    while progress and m.binders:
        progress = False
        for k in m.binders:
            value = _fixed(m, k)
            if value is None:
                continue
            sub = {k: value}
            guards = tidy(g.subst(sub) for g in m.guards)
            if guards is None:
                return None
            sizes = tuple((p.subst(sub), e) for p, e in m.sizes)
            atoms = cancel(a.subst(sub) for a in m.atoms)
            m = Monomial(m.coef, sizes, guards, tuple(b for b in m.binders if b != k), atoms)
            progress = True
            break
    return m


def _fixed(m: Monomial, k: str) -> Poly | None:
    lows: list[Poly] = []
    highs: list[Poly] = []
    for g in m.guards:
        lin = g.poly.affine(k) if g.poly is not None and k in g.vars else None
        if lin is None or lin[0].value not in (1, -1):
            continue
        s, rest = lin[0].value, lin[1]
        if g.kind == "eq":
            return -rest if s == 1 else rest
        if g.kind == "ge":
            (lows if s == 1 else highs).append(-rest if s == 1 else rest + 1)
    return next((lo for lo in lows for hi in highs if (hi - lo).value == 1), None)


def split_guards(m: Monomial) -> NF:
    """Disjoint pieces without `or` and `!=` guards on binders that no argument mentions."""
    inside = {v for a in m.atoms for x in a.args for v in x.vars}
    free = [b for b in m.binders if b not in inside]
    if not free:
        return [m]
    todo, done = [m], list[Monomial]()
    while todo:
        x = todo.pop()
        for i, g in enumerate(x.guards):
            if g.kind not in ("or", "ne") or not any(b in g.vars for b in free):
                continue
            if g.kind == "ne" and g.poly is not None:
                alternatives = [c.ge(g.poly, 1), c.ge(-g.poly, 1)]
            else:
                alternatives = list(g.args)
            rest = x.guards[:i] + x.guards[i + 1 :]
            before: list[Cond] = []
            for alt in alternatives:
                guards = tidy((*rest, *before, alt))
                if guards is not None:
                    todo.append(replace(x, guards=guards))
                before.append(c.negate(alt))
            break
        else:
            done.append(x)
    return done
