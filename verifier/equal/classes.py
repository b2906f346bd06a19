"""Opaque functions as atoms: structural labels for plain arguments, class atoms for arguments with sums.

A function of plain polynomials in atoms becomes one atom whose label spells the polynomials without their indices and
whose coordinates are the indices, in a fixed order: exp(X[i] - M[j]) is the atom `exp(-1*M^1+1*X^1)[j, i]`.  The table
keeps the arguments of each label, so that an atom can be unfolded again (log of exp, a maximum of one entry).

A function of a sum becomes an atom that is shared by all sums proved equal to it.  `f(p)` with p a sum over binders is
abstracted: the parts of its arguments that do not depend on binders become parameters, so that `f(sum_k A[i, k])` at
two places is one class `f#0` with parameter i.  Before a class is made, the sum is compared with that of each existing
class of the same function and signature.  The prover itself decides whether they are equal for all values of the
parameters, under some order of these (congruence).  Different classes are independent atoms, which can only make the
prover weaker.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.monomial import NF, Atom, Monomial, Unsupported, atom_key, canonical, freshen, is_simple, subst
from verifier.equal.poly import Poly, const, var
from verifier.equal.solver import Context
from verifier.equal.weights import equal, groups

SETS = ("rmax", "ror[", "rand[")
"""Prefixes of classes of sets, in which an entry counts once."""
ORDERED = "rsum["
"""Prefix of classes of float sums in a given order of additions."""
ORDERS = 24
FEW = 5
"""Number of parameters up to which all orders are tried."""


@dataclass(frozen=True, slots=True)
class ClassRep:
    """One class: its function, parameters, argument sums, and the size part of each parameter's first use."""

    fn: str
    params: tuple[str, ...]
    sums: tuple[NF, ...]
    label: str
    shifts: tuple[Poly, ...]
    sizes: tuple[str, ...]


@dataclass
class ClassTable:
    """The classes of one proof."""

    ctx: Context
    reps: list[ClassRep] = field(default_factory=list[ClassRep])
    _known: dict[tuple[str, str], ClassRep] = field(default_factory=dict[tuple[str, str], ClassRep])

    def atom(self, fn: str, sums: Sequence[NF]) -> Atom:
        """The class atom of `fn` at the given sums."""
        atom, ps, full = self._looked_up(fn, sums)
        if atom is None:
            label, args = self._new(fn, ps, full)
            atom = Atom(label, tuple(x.subst(full.values) for x in args))
        return atom

    def known(self, fn: str, sums: Sequence[NF]) -> Atom | None:
        """The class atom of `fn` at the given sums; None where they are in no class yet."""
        return self._looked_up(fn, sums)[0]

    def _looked_up(self, fn: str, sums: Sequence[NF]) -> tuple[Atom | None, list[NF], _Abstraction]:
        full = _Abstraction(self.ctx, shifted=False)
        ps = [full.sum(p) for p in sums]
        atom = self._find(fn, ps, full.params(ps), shifted=False)
        if atom is None and full.table:
            loose = _Abstraction(self.ctx, shifted=True)
            qs = [loose.sum(p) for p in sums]
            atom = self._find(fn, qs, loose.params(qs), shifted=True)
            if atom is not None:
                return Atom(atom[0], tuple(x.subst(loose.values) for x in atom[1])), ps, full
        if atom is None:
            return None, ps, full
        return Atom(atom[0], tuple(x.subst(full.values) for x in atom[1])), ps, full

    def _new(self, fn: str, ps: list[NF], abstraction: _Abstraction) -> tuple[str, tuple[Poly, ...]]:
        params = abstraction.params(ps)
        shifts = tuple(_size_part(self.ctx, abstraction.values.get(p, const(0))) for p in params)
        label = f"{'?' if fn.startswith('?') else ''}{fn.lstrip('?')}#{len(self.reps)}"
        rep = ClassRep(fn, params, tuple(ps), label, shifts, tuple(map(_shape, ps)))
        self.reps.append(rep)
        self.ctx.opaque[label] = fn, ps
        self._known[(fn, _text(ps, params))] = rep
        return label, tuple(map(var, params))

    def _find(
        self, fn: str, ps: list[NF], params: tuple[str, ...], shifted: bool
    ) -> tuple[str, tuple[Poly, ...]] | None:
        quick = self._known.get((fn, _text(ps, params)))
        if quick is not None and not shifted:
            return quick.label, tuple(map(var, params))
        facts = self.ctx.facts_of(params)
        shapes = tuple(map(_shape, ps))
        for rep in self.reps:
            if rep.fn != fn or len(rep.params) != len(params) or rep.sizes != shapes:
                continue
            for order in _orders(rep, ps, params, 6 if shifted else ORDERS):
                actual = tuple(var(p) + d if shifted else var(p) for p, d in zip(order, rep.shifts, strict=True))
                sub = dict(zip(rep.params, actual, strict=True))
                if all(
                    self._same(fn, p, [freshen(self.ctx, subst(m, sub)) for m in q], facts)
                    for p, q in zip(ps, rep.sums, strict=True)
                ):
                    return rep.label, actual
        return None

    def _same(self, fn: str, p: NF, q: NF, facts: tuple[Cond, ...]) -> bool:
        if fn.startswith(ORDERED):
            return _summands(p) == _summands(q)
        notes = len(self.ctx.notes)
        same = equal(self.ctx, p, q, facts, exists=fn.startswith(SETS))
        if not same:
            del self.ctx.notes[notes:]  # a failed guess is no cause of failure
        return same


def _summands(p: NF) -> list[str]:
    """Canonical texts of the summands, sorted."""
    return sorted(f"{m.coef}*{canonical(m)}" for m in p)


def _shape(p: NF) -> str:
    return str(sorted(groups(p)))


def _text(ps: list[NF], params: tuple[str, ...]) -> str:
    names = {p: var(f"${i}") for i, p in enumerate(params)}
    return " ; ".join(" + ".join(sorted(f"{m.coef}*{canonical(subst(m, names))}" for m in p)) for p in ps)


def _profile(ps: Sequence[NF], param: str) -> list[str]:
    return sorted(
        f"{a.label}.{i}" for p in ps for m in p for a in m.atoms for i, x in enumerate(a.args) if param in x.vars
    )


def _orders(rep: ClassRep, ps: list[NF], params: tuple[str, ...], most: int) -> list[tuple[str, ...]]:
    """Orders of the parameters to try, those with the same occurrences first; of many parameters only those."""
    if len(params) <= FEW:
        return sorted(itertools.permutations(params), key=lambda o: _mismatch(rep, ps, o))[:most]
    wanted = [_profile(rep.sums, p) for p in rep.params]
    have = {p: _profile(ps, p) for p in params}
    orders: list[tuple[str, ...]] = [()]
    for profile in wanted:
        longer = ((*o, p) for o in orders for p in params if p not in o and have[p] == profile)
        orders = list(itertools.islice(longer, most))
    return orders


def _mismatch(rep: ClassRep, ps: list[NF], order: tuple[str, ...]) -> int:
    return sum(_profile(rep.sums, a) != _profile(ps, b) for a, b in zip(rep.params, order, strict=True))


def _size_part(ctx: Context, p: Poly) -> Poly:
    return Poly((m, k) for m, k in p.terms if Poly([(m, 1)]).vars <= ctx.dims)


class _Abstraction:
    """Replaces the binder-free part of each argument by a parameter: a = p + (part with binders)."""

    def __init__(self, ctx: Context, shifted: bool) -> None:
        self.ctx, self.shifted = ctx, shifted
        self.table: dict[Poly, str] = {}
        self.values: dict[str, Poly] = {}

    def params(self, ps: Sequence[NF]) -> tuple[str, ...]:
        """The parameters, then the other free index variables."""
        out = dict.fromkeys(self.table.values())
        for p in ps:
            for m in p:
                out.update(dict.fromkeys(sorted(m.free() - self.ctx.dims)))
        return tuple(out)

    def sum(self, p: NF) -> NF:
        """The abstracted sum."""
        order = sorted(p, key=lambda m: [(a.label, a.exp) for a in m.atoms].__repr__())
        return [self._monomial(m) for m in order]

    def _monomial(self, m: Monomial) -> Monomial:
        bound = set(m.binders)
        origin = {b: const(0) for b in bound}
        atoms = tuple(
            Atom(a.label, tuple(self._argument(x, bound, origin) for x in a.args), a.exp)
            for a in sorted(m.atoms, key=atom_key)
        )
        return replace(m, atoms=atoms, guards=tuple(self._guard(g, bound, origin) for g in m.guards))

    def _parts(self, x: Poly, bound: set[str], origin: dict[str, Poly]) -> tuple[Poly, Poly] | None:
        if not x.vars - self.ctx.dims - bound:
            return None
        base = x.subst(origin)
        rest = x - base
        return None if rest.vars - self.ctx.dims - bound else (base, rest)

    def _argument(self, x: Poly, bound: set[str], origin: dict[str, Poly]) -> Poly:
        parts = self._parts(x, bound, origin)
        if parts is None:
            return x
        base, rest = parts
        if self.shifted:
            shift = _size_part(self.ctx, base)
            base, rest = base - shift, rest + shift
        return var(self._name(base)) + rest

    def _name(self, base: Poly) -> str:
        if base not in self.table:
            name = self.ctx.fresh(None, "p")
            self.table[base] = name
            self.values[name] = base
        return self.table[base]

    def _guard(self, g: Cond, bound: set[str], origin: dict[str, Poly]) -> Cond:
        if g.kind in ("and", "or"):
            parts = [self._guard(a, bound, origin) for a in g.args]
            return c.conj(parts) if g.kind == "and" else c.disj(parts)
        split = self._parts(g.poly, bound, origin) if g.poly is not None else None
        if split is None:
            return g
        base, rest = split
        for known, name in self.table.items():
            for sign in (1, -1):
                gap = base - known.scale(sign)
                if gap.vars <= self.ctx.dims:
                    return _rebuild(g.kind, var(name).scale(sign) + gap + rest)
        return _rebuild(g.kind, var(self._name(base)) + rest)


def _rebuild(kind: str, p: Poly) -> Cond:
    return {"ge": c.ge, "eq": c.eq, "ne": c.ne}[kind](p, 0)


INF = "inf"


@dataclass
class AtomLabels:
    """The opaque atoms of one proof."""

    ctx: Context
    classes: ClassTable = field(init=False)
    _patterns: dict[str, NF] = field(default_factory=dict[str, NF])
    _made: dict[str, tuple[str, list[NF]]] = field(default_factory=dict[str, tuple[str, list[NF]]])

    def __post_init__(self) -> None:
        self.classes = ClassTable(self.ctx)

    def atom(self, fn: str, ps: Sequence[NF]) -> Atom:
        """The atom `fn(ps)`.

        Raises:
            Unsupported: an argument is infinite.
        """
        if any(infinite(p) for p in ps):
            raise Unsupported(f"{fn} of an infinity")
        if all(is_simple(p) for p in ps):
            return self._structural(fn, ps)
        return self.classes.atom(fn, ps)

    def _structural(self, fn: str, ps: Sequence[NF]) -> Atom:
        ordered = [sorted(map(self._piece, p), key=_piece_key) for p in ps]
        label = f"{fn}({';'.join('+'.join(text for text, _, _ in pieces) for pieces in ordered)})"
        self._made.setdefault(label, (fn, [[m for _, _, m in pieces] for pieces in ordered]))
        if len(ps) == 1:
            self._patterns.setdefault(label, [m for _, _, m in ordered[0]])
        return Atom(label, tuple(x for pieces in ordered for _, coords, _ in pieces for x in coords))

    def _piece(self, m: Monomial) -> tuple[str, list[Poly], Monomial]:
        """Return a monomial's text without its coordinates, the coordinates, and itself with its atoms in order."""
        atoms = tuple(sorted(m.atoms, key=atom_key))
        coords = [x for a in atoms for x in a.args]
        text = "*".join((str(m.coef), *(f"{a.label}^{a.exp}" for a in atoms)))
        for q, e in m.sizes:
            if q.vars <= self.ctx.dims:
                text += f"*({q})^{e}"
            else:
                text += f"*size^{e}"
                coords.append(q)
        return text, coords, replace(m, atoms=atoms)

    def explained(self, label: str) -> tuple[str, tuple[str, ...], list[NF]] | None:
        """The definition of an opaque label: function, parameters, and arguments over these; None for an input."""
        for rep in self.classes.reps:
            if rep.label == label:
                return rep.fn, rep.params, list(rep.sums)
        if label not in self._made:
            return None
        fn, pieces = self._made[label]
        names: list[str] = []

        def parameter() -> Poly:
            names.append(f"p!{len(names)}")
            return var(names[-1])

        sums: list[NF] = []
        for p in pieces:
            sums.append([])
            for m in p:
                atoms = tuple([Atom(a.label, tuple([parameter() for _ in a.args]), a.exp) for a in m.atoms])
                sizes = tuple([(q if q.vars <= self.ctx.dims else parameter(), e) for q, e in m.sizes])
                sums[-1].append(replace(m, atoms=atoms, sizes=sizes))
        return fn, tuple(names), sums

    def unfold(self, fn: str, atom: Atom) -> NF | None:
        """The p of an atom `fn(p)` of power 1, or None where the label is no such function."""
        if atom.label.startswith(f"{fn}#"):
            for rep in self.classes.reps:
                if rep.label == atom.label:
                    sub = dict(zip(rep.params, atom.args, strict=True))
                    return [subst(freshen(self.ctx, m), sub) for m in rep.sums[0]]
        if not atom.label.startswith(f"{fn}("):
            return None
        pattern = self._patterns.get(atom.label)
        if pattern is None:
            return None
        left = list(atom.args)
        out: NF = []
        for m in pattern:
            atoms: list[Atom] = []
            for a in m.atoms:
                atoms.append(Atom(a.label, tuple(left[: len(a.args)]), a.exp))
                left = left[len(a.args) :]
            sizes: list[tuple[Poly, int]] = []
            for q, e in m.sizes:
                sizes.append((q, e) if q.vars <= self.ctx.dims else (left.pop(0), e))
            out.append(replace(m, atoms=tuple(atoms), sizes=tuple(sizes)))
        return out


def infinite(p: NF) -> bool:
    """Whether an infinity occurs in a normal form."""
    return any(a.label == INF for m in p for a in m.atoms)


def _piece_key(piece: tuple[str, list[Poly], Monomial]) -> tuple[str, tuple[str, ...]]:
    return (piece[0], tuple(map(str, piece[1])))
