"""Atoms as coordinates: sums are compared by their weights at every combination of atom arguments.

For fixed atoms A1..An at fresh coordinates a1..am, a monomial contributes the number of binder values at which its
arguments equal the coordinates and its guards hold.  Two sums over independent atoms are equal exactly when for each
multiset of atoms the total weights agree at all coordinates: one quantifier-free query in integers.  In a maximum
(`exists`), weights are Boolean: present or not.  Summands equal up to the names of binders cancel first.

Binders are eliminated by solving `a = e(k)` for k, the most direct cases first: unit coefficients, then pairs q*o + i
with i in 0..q-1 (quotient and remainder), then the two parts k // q and k % q.  Last come coefficients known positive,
with a divisibility guard.  A binder in no argument counts as the length of its interval.  Guards on binders are first
rewritten to allow this:

    sum_k [k = e] f(k) = f(e).    x // s >= t  to  x >= s*t     x // s <= t  to  x < s*(t + 1)      for s >= 1.
                                                                x // s <= t  to  x <= s*t           where s divides x.

Trusted laws: Fubini (binders are a set), one-point sums, uniqueness of quotient and remainder, interval counts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.monomial import NF, Atom, Monomial, cancel, canonical, merge_sizes, tidy
from verifier.equal.poly import Poly, const, form_of, greatest, least, var
from verifier.equal.solver import NO, YES, Context


def undivide(ctx: Context, g: Cond, facts: tuple[Cond, ...], beside: Collection[Cond] = ()) -> Cond:
    """Rewrite x // s >= t to x >= s*t, and x // s <= t to x < s*(t + 1), for s >= 1; `beside` holds as well."""
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


class CannotSolve(Exception):
    """Raised for a binder that cannot be eliminated; the message says which."""


@dataclass(frozen=True, slots=True)
class Weight:
    """coef * sizes where the guard holds, else 0."""

    coef: Fraction
    sizes: tuple[tuple[Poly, int], ...]
    guard: Cond


@dataclass
class _Elimination:
    """State of an elimination: binders left, equations of coordinates and arguments, guards and sizes."""

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
        moved = [(g, g.subst(values)) for g in self.guards]
        beside = {*(g for _, g in moved), *(c.eq(a, x) for a, x in self.eqs)}
        guards = tidy(g if g == old else undivide(self.ctx, g, self.facts, beside) for old, g in moved)
        self.guards = [c.FALSE] if guards is None else list(guards)
        self.sizes = [(p.subst(values), e) for p, e in self.sizes]

    def known(self, fact: Cond) -> bool:
        return fact in self.guards or self.ctx.holds(fact, self.facts)

    def weight(self, coef: Fraction) -> Weight:
        """Eliminate all binders and return the weight: solve for them one by one, then count those in no argument."""
        bound = set(self.left)
        for g in list(self.guards):
            if g.kind == "eq" and g.poly is not None and g.vars & bound:
                self.guards.remove(g)
                self.eqs.append((const(0), g.poly))
        while self.left and self._step():
            pass
        if self.left:
            guards = tidy(undivide(self.ctx, g, self.facts) if g.vars & set(self.left) else g for g in self.guards)
            self.guards = [c.FALSE] if guards is None else list(guards)
        for k in list(self.left):
            self._count(k)
        guard = c.conj(self._multiplied([*self.guards, *(c.eq(a, x) for a, x in self.eqs)]))
        return Weight(coef, merge_sizes(self.sizes), guard)

    def _step(self) -> bool:
        return self._unit(alone=True) or self._pair() or self._parts() or self._unit(alone=False) or self._scaled()

    def _multiplied(self, conds: list[Cond]) -> list[Cond]:
        """Replace x // s = v with x % s = 0 by x = v*s, for s >= 1."""
        for g in conds:
            for atom in g.poly.forms if g.kind == "eq" and g.poly is not None else ():
                form, lin = form_of(atom), g.poly.affine(atom) if g.poly is not None else None
                if form is None or lin is None or form[0] != "//" or lin[0].value not in (1, -1):
                    continue
                x, s = form[1]
                even = c.eq(x % s, 0)
                if even in conds and (s.value is not None or self.known(c.ge(s, 1))):
                    value = lin[1].scale(-(lin[0].value or 1))
                    return self._multiplied([c.eq(x, value * s) if h == g else h for h in conds if h != even])
        return conds

    def _unit(self, alone: bool) -> bool:
        """Solve a = k + e or a = e - k for k; whether one was found."""
        left = set(self.left)
        for i, (a, x) in enumerate(self.eqs):
            inside = x.vars & left
            if not inside or (alone and len(inside) > 1):
                continue
            for k in self.left:
                lin = x.affine(k) if k in inside else None
                if lin is None or lin[0].value not in (1, -1):
                    continue
                self.eqs.pop(i)
                self.assign({k: (a - lin[1]) if lin[0].value == 1 else lin[1] - a})
                return True
        return False

    def _pair(self) -> bool:
        """Solve a = q*o + i + e with 0 <= i < q: o and i are the quotient and the remainder."""
        left = set(self.left)
        for n, (a, x) in enumerate(self.eqs):
            inside = x.vars & left
            if len(inside) != 2:
                continue
            for o, i in itertools.permutations(sorted(inside)):
                lo, li = x.affine(o), x.affine(i)
                if lo is None or li is None or li[0].value != 1:
                    continue
                q = lo[0]
                if q.vars & left or c.ge(var(i), 0) not in self.guards or c.lt(var(i), q) not in self.guards:
                    continue
                rest = a - (x - var(o) * q - var(i))
                self.eqs.pop(n)
                if q.value is None and not self.known(c.ge(q, 1)):
                    self.guards.append(c.ge(q, 1))
                self.guards = [g for g in self.guards if g not in (c.ge(var(i), 0), c.lt(var(i), q))]
                self.assign({o: rest // q, i: rest % q})
                return True
        return False

    def _parts(self) -> bool:
        """Solve a1 = k // q and a2 = k % q: k = a1*q + a2 with 0 <= a2 < q."""
        for (n1, (a1, x1)), (n2, (a2, x2)) in itertools.permutations(enumerate(self.eqs), 2):
            f1, f2 = form_of(str(x1)), form_of(str(x2))
            if f1 is None or f2 is None or (f1[0], f2[0]) != ("//", "%") or f1[1] != f2[1]:
                continue
            whole, q = f1[1]
            for k in self.left:
                lin = whole.affine(k)
                if lin is None or lin[0].value != 1 or q.vars & set(self.left) or not self.known(c.ge(q, 1)):
                    continue
                self.eqs = [e for n, e in enumerate(self.eqs) if n not in (n1, n2)]
                self.guards += [c.ge(a2, 0), c.lt(a2, q)]
                self.assign({k: a1 * q + a2 - lin[1]})
                return True
        return False

    def _scaled(self) -> bool:
        """Solve a = s*k + e with s known positive (or negative): k is the quotient, and s must divide."""
        for i, (a, x) in enumerate(self.eqs):
            for k in self.left:
                lin = x.affine(k) if k in x.vars else None
                if lin is None or lin[0].vars & set(self.left):
                    continue
                s, top = lin[0], a - lin[1]
                if not self.known(c.ge(s, 1)):
                    if not self.known(c.ge(-s, 1)):
                        continue
                    s, top = -s, -top
                self.eqs.pop(i)
                self.guards.append(c.eq(top % s, 0))
                self.assign({k: top // s})
                return True
        return False

    def _count(self, k: str) -> None:
        """Eliminate a binder in no argument: it counts as the length of its interval."""
        if any(k in x.vars for _, x in self.eqs) or any(k in p.vars for p, _ in self.sizes):
            raise CannotSolve(f"{k} stays inside {[str(x) for _, x in self.eqs if k in x.vars]}")
        lows: list[Poly] = []
        highs: list[Poly] = []
        for g in self.guards:
            if k in g.vars:
                side, value = self._bound(g, k)
                (lows if side == "low" else highs).append(value)
        if not lows or not highs:
            raise CannotSolve(f"{k} has no bounds")
        others = set(self.left) - {k}
        if not self.exists and any(p.vars & others for p in (*lows, *highs)):
            raise CannotSolve(f"the bounds of {k} depend on other binders")
        low, high = self._sharpest(lows, 1), self._sharpest(highs, -1)
        self.guards = [g for g in self.guards if k not in g.vars]
        width = high - low
        if self.exists:
            self.guards.append(undivide(self.ctx, c.ge(width, 1), self.facts))
        elif width.value is not None:
            self.ctx.counted |= frozenset().union(*(p.vars for p in (*lows, *highs)))
            self.sizes.append((const(max(width.value, 0)), 1))
        else:
            self.ctx.counted |= width.vars
            self.sizes.append((width if self.ctx.holds(c.ge(width, 0), self.facts) else greatest(width, 0), 1))
        self.left.remove(k)

    def _sharpest(self, bounds: list[Poly], sign: int) -> Poly:
        best = bounds[0]
        for b in bounds[1:]:
            if self.ctx.holds(c.ge((best - b).scale(sign), 0), self.facts):
                continue
            if self.ctx.holds(c.ge((b - best).scale(sign), 0), self.facts):
                best = b
            else:
                best = greatest(best, b) if sign > 0 else least(best, b)
        return best

    def _bound(self, g: Cond, k: str) -> tuple[str, Poly]:
        """`("low", e)` for k >= e, `("high", e)` for k < e."""
        lin = g.poly.affine(k) if g.kind == "ge" and g.poly is not None else None
        if lin is None:
            raise CannotSolve(f"{k} is free under the guard {g}")
        s, rest = lin
        if s.value == 1 or (s.value is None and self.known(c.ge(s, 1))) or (s.value or 0) > 1:
            return "low", -(rest // s)
        if s.value is None and not self.known(c.ge(-s, 1)):
            raise CannotSolve(f"{k} is free under the guard {g}")
        return "high", rest // (-s) + 1


def eliminate(ctx: Context, m: Monomial, coords: Sequence[Poly], facts: tuple[Cond, ...], exists: bool) -> Weight:
    """Eliminate the binders of a monomial; return its weight at the coordinates.

    Raises:
        CannotSolve: a binder occurs in a way that the laws do not cover.
    """
    args = [x for a in m.atoms for x in a.args]
    st = _Elimination(
        ctx, facts, exists, list(m.guards), list(m.sizes), list(m.binders), list(zip(coords, args, strict=True))
    )
    return st.weight(m.coef)


# ---- sums compared

MAX_ORDERS = 720
WRITTEN = 6  # a seventh equal atom would pass MAX_ORDERS
Signature: TypeAlias = "tuple[tuple[str, int, int], ...]"
"""Atoms of a monomial with powers expanded: (label, sign of the power, number of arguments)."""


def signature(m: Monomial) -> Signature:
    """The multiset of atoms, each as (label, sign of its power, number of arguments)."""
    return tuple((a.label, a.exp, len(a.args)) for a in spread(m).atoms)


def spread(m: Monomial) -> Monomial:
    """Powers expanded to repeated atoms, in order of label; a high power becomes one atom."""
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
    """Whether two sums (or, with `exists`, two sets under a maximum) are proved equal for all values of all atoms."""
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
        there = _Coordinates(ctx, sig, [var(ctx.fresh(None, "a")) for _ in range(sum(n for _, _, n in sig))], facts)
        try:
            ok = there.same_sets(a, b) if exists else there.same_sums(a, b)
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
    if g.kind == "or":  # a disjunction is the negation of a conjunction of complements
        compared = [c.negate(x) for x in compared]
    out: set[object] = {frozenset(compared)} if compared else set()
    for x in g.args:
        out |= _statements(x) if x.poly is None else set()
    return out


_PLAIN = {"rmax": "max", "rmin": "min", "rprod": "prod", "ror": "any", "rand": "all", "rsum": "sum"}
"""Opaque functions whose names in a program differ from those of their labels."""
_LONGEST, _MOST = 60, 8
"""Characters (half a line) and factors of an argument in a note; longer ones are elided."""


def _terms(ctx: Context, sig: Signature) -> str:
    """A product of atoms as text for notes, in the names of the program."""
    return f"terms in {' * '.join(_plain(ctx, label) for label, _, _ in sig)}" if sig else "constants"


def _plain(ctx: Context, label: str, depth: int = 3) -> str:
    """A label as text for notes: opaque functions with their arguments, factors one and indices left out."""

    def opaque(match: re.Match[str]) -> str:
        fn, arguments = ctx.opaque.get(match[0], (match[0].partition("#")[0], ()))
        name = fn.lstrip("?").partition("[")[0]
        texts = [_products(ctx, p, depth - 1) if depth else "..." for p in arguments]
        return f"{_PLAIN.get(name, name)}({', '.join(texts)})"

    text = re.sub(r"\??[\w.]+(\[[^\]]*\])?#\d+", opaque, label)
    text = re.sub(r"\^1\b|\b1\*|\?|\*size\^-?\d+", "", text)
    return re.sub(r"\bvalue\(((?:[^()]|\([^()]*\))*)\)", r"\1", text)  # a number read as a term is that number


def _products(ctx: Context, p: NF, depth: int) -> str:
    """The distinct products of a sum as text for notes."""
    factors = dict.fromkeys(tuple([a.label for a in m.atoms]) or (str(m.coef),) for m in p)
    if sum(map(len, factors)) > _MOST:
        return "..."
    text = " + ".join(" * ".join(_plain(ctx, label, depth) for label in labels) for labels in factors)
    return text if len(text) <= _LONGEST else "..."


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
    """Orders of the atoms that differ only within runs of equal signatures."""
    runs = [list(g) for _, g in itertools.groupby(range(len(sig)), key=lambda i: sig[i])]
    if math.prod(math.factorial(len(r)) for r in runs) > MAX_ORDERS:
        raise CannotSolve(f"{len(sig)} equal atoms have too many orders")
    return [[i for run in pick for i in run] for pick in itertools.product(*[itertools.permutations(r) for r in runs])]


@dataclass(frozen=True, slots=True)
class _Coordinates:
    """Fresh coordinates for the atoms of a signature, and facts about them."""

    ctx: Context
    sig: Signature
    at: list[Poly]
    facts: tuple[Cond, ...]

    def _weights(self, ms: NF, exists: bool) -> list[Weight]:
        """Return the weights that monomials have at these coordinates, for each order of equal atoms; no empty ones."""
        starts = [0, *itertools.accumulate(n for _, _, n in self.sig)]
        out: list[Weight] = []
        for m in (piece for x in ms for piece in split_guards(x)):
            for order in _orders(self.sig):
                at = [x for i in order for x in self.at[starts[i] : starts[i + 1]]]
                w = eliminate(self.ctx, m, at, self.facts, exists)
                if w.guard != c.FALSE:
                    out.append(w)
        return out

    def same_sums(self, a: NF, b: NF) -> bool:
        """Whether the total weights of two sums are proved equal at all coordinates."""
        parts = self._weights(a, exists=False)
        parts += [replace(w, coef=-w.coef) for w in self._weights(b, exists=False)]
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
        answer = self.ctx.differ(self.ctx.weighted(live), (*self.facts, *nonzero))
        if answer != NO:
            seen = "are not" if answer == YES else "are not seen to be"
            self.ctx.notes.append(f"{_terms(self.ctx, self.sig)} {seen} added up alike on both sides")
        return answer == NO

    def same_sets(self, a: NF, b: NF) -> bool:
        """Whether an entry is proved to be present in one set exactly where it is in the other."""
        left, right = (c.disj(w.guard for w in self._weights(ms, exists=True)) for ms in (a, b))
        return left == right or self.ctx.differ(self.ctx.not_iff(left, right), self.facts) == NO
