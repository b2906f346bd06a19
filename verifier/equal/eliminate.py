"""Elimination of binders: the number of binder values at which a monomial's arguments equal given coordinates.

Binders are eliminated by solving `a = e(k)` for k, most direct first: unit coefficients; pairs q*o + i with i in 0..q-1
(quotient and remainder); the two parts k // q and k % q; coefficients known positive, with a divisibility guard.  A
binder in no argument counts as the length of its interval.  Under a maximum (`exists`) presence is all that counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.guards import undivide
from verifier.equal.monomial import Monomial, merge_sizes, tidy
from verifier.equal.poly import Poly, const, form_of, greatest, least, var
from verifier.equal.solver import Context


class CannotSolve(Exception):
    """A binder that cannot be eliminated; the message says which."""


@dataclass(frozen=True, slots=True)
class Weight:
    """coef * sizes where the guard holds, else 0."""

    coef: Fraction
    sizes: tuple[tuple[Poly, int], ...]
    guard: Cond


@dataclass
class _State:
    ctx: Context
    facts: tuple[Cond, ...]
    exists: bool
    guards: list[Cond]
    sizes: list[tuple[Poly, int]]
    left: list[str]
    eqs: list[tuple[Poly, Poly]]  # (coordinate, argument)

    def assign(self, values: Mapping[str, Poly]) -> None:
        self.left = [k for k in self.left if k not in values]
        self.eqs = [(a.subst(values), x.subst(values)) for a, x in self.eqs]
        moved = [g.subst(values) for g in self.guards]
        beside = {*moved, *(c.eq(a, x) for a, x in self.eqs)}
        guards = tidy(undivide(self.ctx, g, self.facts, beside) for g in moved)
        self.guards = [c.FALSE] if guards is None else list(guards)
        self.sizes = [(p.subst(values), e) for p, e in self.sizes]

    def known(self, fact: Cond) -> bool:
        return fact in self.guards or self.ctx.holds(fact, self.facts)


def eliminate(ctx: Context, m: Monomial, coords: Sequence[Poly], facts: tuple[Cond, ...], exists: bool) -> Weight:
    """The weight of a monomial at the coordinates.

    Raises:
        CannotSolve: a binder occurs in a way that the laws do not cover.
    """
    args = [x for a in m.atoms for x in a.args]
    st = _State(
        ctx, facts, exists, list(m.guards), list(m.sizes), list(m.binders), list(zip(coords, args, strict=True))
    )
    bound = set(st.left)
    for g in list(st.guards):
        if g.kind == "eq" and g.poly is not None and g.vars & bound:
            st.guards.remove(g)
            st.eqs.append((const(0), g.poly))
    while st.left and (_unit(st, alone=True) or _pair(st) or _parts(st) or _unit(st, alone=False) or _scaled(st)):
        pass
    for k in list(st.left):
        _count(st, k)
    guard = c.conj(_multiplied(st, [*st.guards, *(c.eq(a, x) for a, x in st.eqs)]))
    return Weight(m.coef, merge_sizes(st.sizes), guard)


def _multiplied(st: _State, conds: list[Cond]) -> list[Cond]:
    """x // s = v with x % s = 0 is x = v*s, for s >= 1."""
    for g in conds:
        for atom in g.poly.forms if g.kind == "eq" and g.poly is not None else ():
            form, lin = form_of(atom), g.poly.affine(atom) if g.poly is not None else None
            if form is None or lin is None or form[0] != "//" or lin[0].value not in (1, -1):
                continue
            x, s = form[1]
            even = c.eq(x % s, 0)
            if even in conds and (s.value is not None or st.known(c.ge(s, 1))):
                value = lin[1].scale(-(lin[0].value or 1))
                return _multiplied(st, [c.eq(x, value * s) if h == g else h for h in conds if h != even])
    return conds


def _unit(st: _State, alone: bool) -> bool:
    """a = k + e or a = e - k."""
    left = set(st.left)
    for i, (a, x) in enumerate(st.eqs):
        inside = x.vars & left
        if not inside or (alone and len(inside) > 1):
            continue
        for k in st.left:
            lin = x.affine(k) if k in inside else None
            if lin is None or lin[0].value not in (1, -1):
                continue
            st.eqs.pop(i)
            st.assign({k: (a - lin[1]) if lin[0].value == 1 else lin[1] - a})
            return True
    return False


def _pair(st: _State) -> bool:
    """a = q*o + i + e with 0 <= i < q: o and i are the quotient and the remainder."""
    left = set(st.left)
    for n, (a, x) in enumerate(st.eqs):
        inside = x.vars & left
        if len(inside) != 2:
            continue
        for o, i in itertools.permutations(sorted(inside)):
            lo, li = x.affine(o), x.affine(i)
            if lo is None or li is None or li[0].value != 1:
                continue
            q = lo[0]
            if q.vars & left or c.ge(var(i), 0) not in st.guards or c.lt(var(i), q) not in st.guards:
                continue
            rest = a - (x - var(o) * q - var(i))
            st.eqs.pop(n)
            if q.value is None and not st.known(c.ge(q, 1)):
                st.guards.append(c.ge(q, 1))
            st.guards = [g for g in st.guards if g not in (c.ge(var(i), 0), c.lt(var(i), q))]
            st.assign({o: rest // q, i: rest % q})
            return True
    return False


def _parts(st: _State) -> bool:
    """a1 = k // q and a2 = k % q: k = a1*q + a2 with 0 <= a2 < q."""
    for (n1, (a1, x1)), (n2, (a2, x2)) in itertools.permutations(enumerate(st.eqs), 2):
        f1, f2 = form_of(str(x1)), form_of(str(x2))
        if f1 is None or f2 is None or (f1[0], f2[0]) != ("//", "%") or f1[1] != f2[1]:
            continue
        whole, q = f1[1]
        for k in st.left:
            lin = whole.affine(k)
            if lin is None or lin[0].value != 1 or q.vars & set(st.left) or not st.known(c.ge(q, 1)):
                continue
            st.eqs = [e for n, e in enumerate(st.eqs) if n not in (n1, n2)]
            st.guards += [c.ge(a2, 0), c.lt(a2, q)]
            st.assign({k: a1 * q + a2 - lin[1]})
            return True
    return False


def _scaled(st: _State) -> bool:
    """a = s*k + e with s known positive (or negative): k is the quotient, and s divides."""
    for i, (a, x) in enumerate(st.eqs):
        for k in st.left:
            lin = x.affine(k) if k in x.vars else None
            if lin is None or lin[0].vars & set(st.left):
                continue
            s, top = lin[0], a - lin[1]
            if not st.known(c.ge(s, 1)):
                if not st.known(c.ge(-s, 1)):
                    continue
                s, top = -s, -top
            st.eqs.pop(i)
            st.guards.append(c.eq(top % s, 0))
            st.assign({k: top // s})
            return True
    return False


def _count(st: _State, k: str) -> None:
    """A binder in no argument: the length of its interval."""
    if any(k in x.vars for _, x in st.eqs) or any(k in p.vars for p, _ in st.sizes):
        raise CannotSolve(f"{k} stays inside {[str(x) for _, x in st.eqs if k in x.vars]}")
    lows: list[Poly] = []
    highs: list[Poly] = []
    for g in st.guards:
        if k in g.vars:
            side, value = _bound(st, g, k)
            (lows if side == "low" else highs).append(value)
    if not lows or not highs:
        raise CannotSolve(f"{k} has no bounds")
    others = set(st.left) - {k}
    if not st.exists and any(p.vars & others for p in (*lows, *highs)):
        raise CannotSolve(f"the bounds of {k} depend on other binders")
    low, high = _sharpest(st, lows, 1), _sharpest(st, highs, -1)
    st.guards = [g for g in st.guards if k not in g.vars]
    width = high - low
    if st.exists:
        st.guards.append(undivide(st.ctx, c.ge(width, 1), st.facts))
    elif width.value is not None:
        st.ctx.counted |= frozenset().union(*(p.vars for p in (*lows, *highs)))
        st.sizes.append((const(max(width.value, 0)), 1))
    else:
        st.ctx.counted |= width.vars
        st.sizes.append((width if st.ctx.holds(c.ge(width, 0), st.facts) else greatest(width, 0), 1))
    st.left.remove(k)


def _sharpest(st: _State, bounds: list[Poly], sign: int) -> Poly:
    best = bounds[0]
    for b in bounds[1:]:
        if st.ctx.holds(c.ge((best - b).scale(sign), 0), st.facts):
            continue
        if st.ctx.holds(c.ge((b - best).scale(sign), 0), st.facts):
            best = b
        else:
            best = greatest(best, b) if sign > 0 else least(best, b)
    return best


def _bound(st: _State, g: Cond, k: str) -> tuple[str, Poly]:
    """`("low", e)` for k >= e, `("high", e)` for k < e."""
    lin = g.poly.affine(k) if g.kind == "ge" and g.poly is not None else None
    if lin is None:
        raise CannotSolve(f"{k} is free under the guard {g}")
    s, rest = lin
    if s.value == 1 or (s.value is None and st.known(c.ge(s, 1))) or (s.value or 0) > 1:
        return "low", -(rest // s)
    if s.value is None and not st.known(c.ge(-s, 1)):
        raise CannotSolve(f"{k} is free under the guard {g}")
    return "high", rest // (-s) + 1
