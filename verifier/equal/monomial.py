"""Monomials: coef * sizes * [guards] * product of atoms, summed over binders; and functions of them by cases.

A normal form is a list of monomials, read as their sum.  An atom is an entry of an input, an opaque scalar function of
such entries, or a class of equal sums; its arguments are its coordinates.  Atoms whose label starts with `?` are
Boolean (0 or 1), so their square is themselves.  Sizes are symbolic integer factors with an exponent.

A function of sums is taken on every case of the conditions that no binder touches:

    f([g] a + [not g] b)  =  [g] f(a) + [not g] f(b).
    f(p a + (1 - p) b)    =  p f(a) + (1 - p) f(b)      for p in {0, 1}.

The guards of one monomial are split as a whole, so that the number of cases does not grow with the rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias

from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.poly import Poly, const, var
from verifier.equal.solver import NO, Context


class Unsupported(Exception):
    """Raised for a term outside the prover's theory; the message names it."""


@dataclass(frozen=True, slots=True)
class Atom:
    """One factor: `label[args]` to an integer power."""

    label: str
    args: tuple[Poly, ...] = ()
    exp: int = 1

    def subst(self, sub: Mapping[str, Poly]) -> Atom:
        """Replace variables in the arguments."""
        return Atom(self.label, tuple(a.subst(sub) for a in self.args), self.exp)


@dataclass(frozen=True, slots=True)
class Monomial:
    """One summand of a normal form."""

    coef: Fraction = Fraction(1)
    sizes: tuple[tuple[Poly, int], ...] = ()
    guards: tuple[Cond, ...] = ()
    binders: tuple[str, ...] = ()
    atoms: tuple[Atom, ...] = ()

    def free(self) -> frozenset[str]:
        """Variables that are not binders."""
        out: set[str] = set()
        for a in self.atoms:
            for x in a.args:
                out |= x.vars
        for g in self.guards:
            out |= g.vars
        for p, _ in self.sizes:
            out |= p.vars
        return frozenset(out) - set(self.binders)


NF: TypeAlias = "list[Monomial]"
Trail: TypeAlias = "tuple[Cond | tuple[Atom, bool], ...]"
"""The conditions under which a value is needed: conditions on indices, and Boolean atoms that are true or false."""
ONE = Monomial()


def choice(p: NF, truth: bool) -> Trail:
    """The conditions and Boolean atoms that hold where a predicate in normal form is true (or false)."""
    if len(p) == 1 and p[0].coef == 1 and not p[0].binders and not p[0].sizes:
        held: Trail = (*p[0].guards, *((a, True) for a in p[0].atoms))
        if truth or not held:
            return held if truth else (c.FALSE,)
        if len(held) == 1:
            (one,) = held
            return (c.negate(one),) if isinstance(one, Cond) else ((one[0], not one[1]),)
    rest = combine([ONE, *scale(p, -1)])
    if len(rest) == 1 and rest[0].coef == 1:
        return choice(rest, not truth)
    names = sorted(frozenset[str]().union(*(m.free() for m in p)))
    label = "?" + " + ".join(sorted(f"{m.coef}*{canonical(m)}" for m in p))
    return ((Atom(label, tuple(map(var, names))), truth),)


def subst(m: Monomial, sub: Mapping[str, Poly]) -> Monomial:
    """Replace free variables; guards are not tidied."""
    if not sub:
        return m
    sizes = tuple((p.subst(sub), e) for p, e in m.sizes)
    return Monomial(
        m.coef, sizes, tuple(g.subst(sub) for g in m.guards), m.binders, tuple(a.subst(sub) for a in m.atoms)
    )


def freshen(ctx: Context, m: Monomial) -> Monomial:
    """The same monomial over new binders."""
    if not m.binders:
        return m
    names = {b: ctx.fresh(ctx.range_of(b)) for b in m.binders}
    return replace(subst(m, {b: var(n) for b, n in names.items()}), binders=tuple(names.values()))


def tidy(guards: Iterable[Cond]) -> tuple[Cond, ...] | None:
    """Flattened, distinct guards; None when one is false or two contradict each other syntactically."""
    out: dict[Cond, None] = {}
    for g in guards:
        for x in c.clauses(g):
            if x == c.FALSE:
                return None
            out[x] = None
    for x in out:
        if x.kind in ("eq", "ne") and c.negate(x) in out:
            return None
        if x.kind == "ge" and x.poly is not None and c.negate(x) in out:
            return None
    return tuple(out)


def cancel(atoms: Iterable[Atom]) -> tuple[Atom, ...]:
    """Merge equal atoms, drop those of power 0."""
    table: dict[tuple[str, tuple[Poly, ...]], int] = {}
    for a in atoms:
        key = (a.label, a.args)
        e = table.get(key, 0) + a.exp
        table[key] = min(e, 1) if a.label.startswith("?") else e
    return tuple(Atom(label, args, e) for (label, args), e in table.items() if e)


def factors(p: Poly, exp: int = 1) -> tuple[Fraction, tuple[tuple[Poly, int], ...]]:
    """A size as a coefficient and factors: one per variable where it is a single product."""
    if len(p.terms) != 1:
        return Fraction(1), ((p, exp),)
    mono, k = p.terms[0]
    return Fraction(k) ** exp, merge_sizes((var(a), exp) for a in mono)


def merge_sizes(sizes: Iterable[tuple[Poly, int]]) -> tuple[tuple[Poly, int], ...]:
    """Equal factors joined, in a fixed order."""
    table: dict[Poly, int] = {}
    for p, e in sizes:
        table[p] = table.get(p, 0) + e
    return tuple(sorted(((p, e) for p, e in table.items() if e), key=_size_key))


def _size_key(item: tuple[Poly, int]) -> tuple[str, int]:
    return (str(item[0]), item[1])


def times(ctx: Context, p: NF, q: NF) -> NF:
    """The product of two sums."""
    out: NF = []
    for x in p:
        for y in q:
            y2 = freshen(ctx, y) if x.binders else y
            guards = tidy(x.guards + y2.guards)
            if guards is None:
                continue
            sizes = merge_sizes(x.sizes + y2.sizes) if x.sizes or y2.sizes else ()
            out.append(Monomial(x.coef * y2.coef, sizes, guards, x.binders + y2.binders, cancel(x.atoms + y2.atoms)))
    return out


def scale(p: NF, k: Fraction | int) -> NF:
    """A sum times a rational."""
    return [replace(m, coef=m.coef * k) for m in p]


def gate(p: NF, guard: Cond) -> NF:
    """A sum where the guard holds, else 0."""
    out: NF = []
    for m in p:
        guards = tidy((*m.guards, guard))
        if guards is not None:
            out.append(replace(m, guards=guards))
    return out


def is_simple(p: NF) -> bool:
    """No binders and no guards: a plain polynomial in atoms."""
    return all(not m.binders and not m.guards for m in p)


def atom_key(a: Atom) -> tuple[str, int, tuple[str, ...]]:
    """A fixed order of atoms."""
    return (a.label, a.exp, tuple(map(str, a.args)))


def combine(p: NF) -> NF:
    """Join like monomials without binders and guards; drop zeros."""
    table: dict[tuple[object, ...], Monomial] = {}
    rest: NF = []
    for m in p:
        if m.binders or m.guards:
            rest.append(m)
            continue
        atoms = tuple(sorted(m.atoms, key=atom_key))
        key = (m.sizes, atoms)
        old = table.get(key)
        table[key] = replace(m, coef=m.coef + (old.coef if old else 0), atoms=atoms)
    return [m for m in table.values() if m.coef] + rest


def with_one_size(p: NF, dims: Collection[str]) -> NF:
    """The sum with its sizes and numbers added up to one size, as it is written where integers are added."""
    plain = [m for m in p if not (m.atoms or m.binders or m.guards) and _of_sizes(m, dims)]
    if len(plain) < 2:
        return p
    scaled = math.lcm(*(m.coef.denominator for m in plain))
    total = const(0)
    for m in plain:
        term = const(int(m.coef * scaled))
        for q, e in m.sizes:
            for _ in range(e):
                term = term * q
        total = total + term
    coef, sizes = factors(total)
    return [m for m in p if m not in plain] + ([Monomial(coef / scaled, sizes)] if total.terms else [])


def _of_sizes(m: Monomial, dims: Collection[str]) -> bool:
    """Whether the factors of a monomial are sizes, none of them a divisor."""
    return all(e > 0 and q.vars <= set(dims) for q, e in m.sizes)


def canonical(m: Monomial) -> str:
    """The monomial without its coefficient as text, binders renamed in order of appearance.

    Equal texts mean equal summands; the converse is left to the solver.
    """
    bound = set(m.binders)
    blank = {b: var("!") for b in bound}
    atoms = sorted(m.atoms, key=atom_key)
    if bound:
        atoms.sort(key=lambda a: (a.label, a.exp, tuple(str(x.subst(blank)) for x in a.args)))
    names: dict[str, Poly] = {}
    polys = [x for a in atoms for x in a.args]
    polys += sorted((p for g in m.guards for p in comparands(g)), key=lambda x: str(x.subst(blank)))
    for x in polys:
        for mono, _ in x.terms:
            for name in mono:
                if name in bound and name not in names:
                    names[name] = var(f"!{len(names)}")
    for b in m.binders:
        names.setdefault(b, var(f"!{len(names)}"))
    parts = [f"{a.label}^{a.exp}[{','.join(str(x.subst(names)) for x in a.args)}]" for a in atoms]
    guards = sorted(str(g.subst(names)) for g in m.guards)
    sizes = [f"({p.subst(names)})^{e}" for p, e in m.sizes]
    return "*".join(sizes + parts) + "|" + ";".join(guards) + f"|{len(m.binders)}"


def comparands(g: Cond) -> list[Poly]:
    """The polynomials that a condition compares with 0."""
    if g.poly is not None:
        return [g.poly]
    return [p for a in g.args for p in comparands(a)]


def common(p: NF) -> tuple[Atom, ...]:
    """Atoms that all summands have, free of binders."""
    shared: dict[Atom, None] | None = None
    for m in p:
        bound = set(m.binders)
        mine = {a: None for a in m.atoms if not any(x.vars & bound for x in a.args)}
        shared = mine if shared is None else {a: None for a in shared if a in mine}
    return tuple(shared or ())


def without(atoms: tuple[Atom, ...], gone: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """The atoms except those in `gone`."""
    return tuple(a for a in atoms if a not in gone)


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

    While a case is computed, its conditions are on `trail`.

    Raises:
        Unsupported: there are too many cases.
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
    """The conjunction of the guards that no binder touches."""
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
