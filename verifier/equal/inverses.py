"""Products of matrices with their inverses, in sums of products.

An entry of an inverse is a class atom, whose arguments hold the matrix as a bilinear form (`normal`).  V is the inverse
of M.

    1.  sum_c M[r, c] * V[c, s] = [r = s].
    2.  sum_r V[b, r] * M[r, c] = [b = c].
    3.  x = y where sum_c M[r, c] * x[c] = sum_c M[r, c] * y[c] for all r, and likewise for sums over r.

Sums are rewritten by the first two laws.  One term of M that is not diagonal is its lead: the lead times V is the
identity less the other terms times V.  The third law removes an inverse from both sides of an equation.

A matrix of the right side has an inverse where the left side has one of another matrix.

    s + Y X      where s + X Y has one, for a number s that is not 0, or if X Y is no smaller than Y X (Sylvester).
    s            is not 0 where s + X Y has one, if X Y is larger than Y X.
    1 + Y X / d  where d + X Y has one, for a diagonal d without zeros.
    L M R        where L, M and R have one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from verifier.equal import conditions as c
from verifier.equal.classes import AtomLabels
from verifier.equal.conditions import Cond
from verifier.equal.definedness import is_among
from verifier.equal.monomial import (
    NF,
    ONE,
    Atom,
    Monomial,
    Trail,
    cancel,
    combine,
    freshen,
    merge_sizes,
    subst,
    tidy,
    times,
)
from verifier.equal.normal import COLUMN, INVERSE, ROW
from verifier.equal.poly import Poly, const, var
from verifier.equal.solver import Context
from verifier.equal.weights import onepoint

STEPS = 64
"""Most rewritings of one sum; the longest of the library takes five."""
CHOICES = 8
"""Most choices of leads that are tried."""
END = "end"
"""Label of the other end of a term that is multiplied with an inverse."""
ENDS = (COLUMN, ROW)
"""Ends of a matrix, as its inverse has them: the row of an inverse is a column of the matrix."""


@dataclass(frozen=True)
class InverseEntry:
    """An entry of an inverse.

    Attributes:
        atom: the entry as an atom.
        slots: the arguments of the atom that are its row and its column.
        form: the matrix as a bilinear form.
        size: the number of rows.
    """

    atom: Atom
    slots: tuple[int, int]
    form: NF
    size: Poly

    def place(self, side: int) -> Poly:
        """The row (0) or the column (1) of the entry."""
        return self.atom.args[self.slots[side]]

    def at(self, side: int, value: Poly) -> Atom:
        """The entry in another row (0) or column (1)."""
        args = list(self.atom.args)
        args[self.slots[side]] = value
        return replace(self.atom, args=tuple(args))

    @property
    def inverse(self) -> Atom:
        """The first entry of the inverse, which stands for all of it."""
        args = [const(0) if n in self.slots else x for n, x in enumerate(self.atom.args)]
        return replace(self.atom, args=tuple(args))


@dataclass(frozen=True)
class InverseLaws:
    """The laws of inverses in one proof.

    Attributes:
        ctx: premises about sizes.
        labels: the opaque atoms.
        facts: conditions on the index of the result.
        everywhere: inverses that exist at every index of the result.
        nonzero: values that are not 0, by premises, each with the conditions under which it is not.
        leads: label of an inverse -> number of its lead among the terms of the matrix that may be it.
    """

    ctx: Context
    labels: AtomLabels
    facts: tuple[Cond, ...]
    everywhere: frozenset[Atom] = frozenset()
    nonzero: Sequence[tuple[Atom, Trail]] = ()
    leads: Mapping[str, int] = field(default_factory=dict[str, int])

    def entry(self, a: Atom) -> InverseEntry | None:
        """The entry of an inverse that an atom is; None for others, and for matrices whose rows have several axes."""
        rep = next((rep for rep in self.labels.classes.reps if rep.label == a.label and rep.fn == INVERSE), None)
        if rep is None or len(rep.sums) != 5 or a.exp != 1:
            return None
        at = dict(zip(rep.params, a.args, strict=True))
        lengths = [sums[0].sizes[0][0] for sums in rep.sums[:4]]
        down, right = (n.subst(at) for n in lengths[:2])
        names = [_name(p) for p in lengths[2:]]
        if not all(name in at for name in names) or not self.ctx.holds(c.eq(down, right), self.facts):
            return None
        slots = tuple(rep.params.index(str(name)) for name in names)
        form = [freshen(self.ctx, subst(m, at)) for m in rep.sums[4]]
        return InverseEntry(a, (slots[0], slots[1]), form, down)

    # ---- equations
    def cleared(self, p: NF, q: NF) -> Iterator[tuple[NF, NF]]:
        """Both sides of an equation with products of matrices and inverses rewritten; then with an inverse removed."""
        met = {a.label: e for m in (*p, *q) for a in m.atoms if (e := self.entry(a)) is not None}
        counts = {label: sum(_is_lead(t, _without_ends(t)[1]) for t in e.form) for label, e in sorted(met.items())}
        choices = itertools.product(*[range(max(n, 1)) for n in counts.values()])
        for choice in itertools.islice(choices, CHOICES if counts else 0):
            laws = replace(self, leads=dict(zip(counts, choice, strict=True)))
            yield laws.reduced(p), laws.reduced(q)
            for entry, side, name in laws._removable(p, q):
                one, two = (laws.reduced(laws._multiplied(x, entry, side, name)) for x in (p, q))
                yield one, two

    def _removable(self, p: NF, q: NF) -> list[tuple[InverseEntry, int, str]]:
        """Inverses of which an entry at a free index occurs, with the end at which the index stands, and its name.

        They exist wherever the equation is to hold: where a matrix has no inverse, nothing follows of products with it.
        """
        out: dict[tuple[Atom, int, str], InverseEntry] = {}
        for m in (*p, *q):
            entries = [e for e in map(self.entry, m.atoms) if e is not None and e.inverse in self.everywhere]
            for entry, side in itertools.product(entries, (0, 1)):
                name = _name(entry.place(side))
                if name is not None and name not in m.binders and self._is_free(name, entry):
                    out[entry.inverse, side, name] = entry
        return [(entry, side, name) for (_, side, name), entry in out.items()]

    def _is_free(self, name: str, entry: InverseEntry) -> bool:
        """Whether an index takes all values below the size of a matrix, and the matrix does not depend on it."""
        own, range_ = {x for g in self.facts for x in c.clauses(g) if name in x.vars}, c.within(var(name), entry.size)
        whole = all(self.ctx.holds(x, range_) for x in own) and all(self.ctx.holds(x, self.facts) for x in range_)
        return name not in self.ctx.dims and whole and not any(name in m.free() for m in entry.form)

    def _multiplied(self, p: NF, entry: InverseEntry, side: int, name: str) -> NF:
        """A sum over an index of a matrix times a sum; the index stands for the other end of the matrix afterwards."""
        out: NF = []
        for m in p:
            same = [e for e in map(self.entry, m.atoms) if e is not None and e.inverse == entry.inverse]
            same = [e for e in same if e.place(side) == var(name)]
            rest = replace(m, atoms=tuple([x for x in m.atoms if all(x != e.atom for e in same)]))
            if len(same) == 1 and name not in rest.free() | same[0].place(1 - side).vars:
                out += self._with(rest, (c.eq(same[0].place(1 - side), var(name)),))
                continue
            summed = self.ctx.fresh(entry.size)
            moved = subst(m, {name: var(summed)})
            inside = replace(moved, guards=(*moved.guards, *c.within(var(summed), entry.size)))
            inside = replace(inside, binders=(*inside.binders, summed))
            ends = dict(zip((ENDS[side], ENDS[1 - side]), (var(summed), var(name)), strict=True))
            for x in times(self.ctx, [inside], [freshen(self.ctx, t) for t in entry.form]):
                inner, at = _without_ends(x)
                out += self._with(inner, [c.eq(at[end], value) for end, value in ends.items()])
        return out

    # ---- rewriting
    def reduced(self, p: NF) -> NF:
        """A sum without products of a lead and its inverse."""
        todo, done = list(p), list[Monomial]()
        for _ in range(STEPS):
            m = todo.pop() if todo else None
            step = None if m is None else self._step(m)
            if m is not None and step is None:
                done.append(m)
            todo += step or []
        return combine([*done, *todo])

    def _step(self, m: Monomial) -> NF | None:
        """A summand with one product of a lead and its inverse replaced; None where there is none."""
        entries = sorted(filter(None, map(self.entry, m.atoms)), key=lambda e: len(e.form))  # what has no rest first
        for entry, side in itertools.product(entries, (0, 1)):
            if _name(entry.place(side)) in m.binders and (made := self._replaced(m, entry, side)) is not None:
                return made
        return None

    def _replaced(self, m: Monomial, entry: InverseEntry, side: int) -> NF | None:
        near, far = ENDS[side], ENDS[1 - side]
        terms = [(t, *_without_ends(t)) for t in entry.form]
        may = [n for n, (t, _, at) in enumerate(terms) if _is_lead(t, at)]
        if not may:
            return None
        lead = may[self.leads.get(entry.atom.label, 0) % len(may)]
        _, inner, at = terms[lead]
        matched = self._matched(m, entry, side, inner, (str(at[near]), str(at[far])))
        if matched is None:
            return None
        rest, other = matched
        rest = replace(rest, coef=rest.coef / inner.coef)
        out = self._with(rest, (c.eq(other, entry.place(1 - side)),))
        for n, (_, term, ends) in enumerate(terms):
            if n != lead:
                atoms = (*term.atoms, entry.at(side, ends[near]), Atom(END, (ends[far],)))
                for x in times(self.ctx, [rest], [replace(term, coef=-term.coef, atoms=atoms)]):
                    out += self._with(*_without_end(x, other))
        return out

    def _matched(
        self, m: Monomial, entry: InverseEntry, side: int, lead: Monomial, ends: tuple[str, str]
    ) -> tuple[Monomial, Poly] | None:
        """The factors of a summand beside a lead and its inverse, and the value of the lead's other end."""
        summed = str(entry.place(side))
        beside = [a for a in m.atoms if a != entry.atom]
        for at, left in _matches(list(lead.atoms), beside, {ends[0]: var(summed)}, frozenset(lead.binders)):
            inner = [at.get(b) for b in lead.binders if b != ends[1]]
            used = {str(x) for x in inner if x is not None}
            if ends[1] not in at or None in inner or not used <= set(m.binders) or len(used) < len(inner):
                continue
            asked = [g.subst(at) for g in lead.guards]
            own = [g for g in m.guards if g.vars & used]
            kept = [g for g in m.guards if not g.vars & used]
            rest = replace(
                m, guards=tuple(kept), binders=tuple([b for b in m.binders if b not in used]), atoms=tuple(left)
            )
            elsewhere = rest.free() | at[ends[1]].vars | entry.place(1 - side).vars
            if used & elsewhere or not self._alike(own, asked, kept):
                continue
            return rest, at[ends[1]]
        return None

    def _alike(self, own: Sequence[Cond], asked: Sequence[Cond], kept: Sequence[Cond]) -> bool:
        """Whether two sets of conditions are equivalent where others hold."""
        names = sorted({v for g in (*own, *asked, *kept) for v in g.vars} - self.ctx.dims)
        known = (*self.facts, *self.ctx.facts_of(names), *kept)
        return all(self.ctx.holds(g, (*known, *asked)) for g in own) and all(
            self.ctx.holds(g, (*known, *own)) for g in asked
        )

    def _with(self, m: Monomial, guards: Sequence[Cond]) -> NF:
        """A summand under further conditions, without the bound variables that these fix; empty where it is 0."""
        held = tidy((*m.guards, *guards))
        one = None if held is None else onepoint(self.ctx, replace(m, guards=held, atoms=cancel(m.atoms)))
        return [] if one is None else [one]

    # ---- matrices that have an inverse
    def implied(self, partial: Sequence[tuple[Atom, Trail]]) -> list[tuple[Atom, Trail]]:
        """Inverses that exist, and numbers that are not 0, where the given inverses exist."""
        entries = [(entry, trail) for a, trail in partial if (entry := self.entry(a)) is not None]
        out: list[tuple[Atom, Trail]] = []
        for entry, trail in entries:
            out += [(a, trail) for a in self._exchanged(entry)]
        for (m, trail), (left, one), (right, two) in itertools.product(entries, repeat=3):
            if {*one, *two} <= {*trail}:
                out += [(a, trail) for a in self._product(left, m, right)]
        return out

    def _exchanged(self, entry: InverseEntry) -> list[Atom]:
        """The inverse of s + Y X, and s, where a matrix is s + X Y; that of 1 + Y X / s, where no entry of s is 0."""
        terms = [(t, *_without_ends(t)) for t in entry.form]
        diagonal = next(((t, inner) for t, inner, at in terms if _is_diagonal(t, at)), None)
        lead = next(((t, inner, at) for t, inner, at in terms if _is_lead(t, at)), None)
        if len(terms) != 2 or diagonal is None or lead is None or diagonal[0].sizes:
            return []
        (scaled, number), (term, inner, at) = diagonal, lead
        (place,), row, column = scaled.binders, str(at[ROW]), str(at[COLUMN])
        within = [b for b in term.binders if b not in (row, column)]
        size = self.ctx.range_of(within[0]) if len(within) == 1 else None
        if size is None:
            return []
        ranges = {row: entry.size, column: entry.size, within[0]: size}
        every = [g for b, n in ranges.items() for g in c.within(var(b), n)]
        own = c.within(var(place), entry.size)
        if not self._alike(term.guards, every, ()) or not self._alike(scaled.guards, own, ()):
            return []
        first = [a for a in inner.atoms if any(row in x.vars for x in a.args)]
        second = [a for a in inner.atoms if any(column in x.vars for x in a.args)]
        if any(a in second for a in first):
            return []
        down, right, same, summed = (self.ctx.fresh(n) for n in (size, size, size, entry.size))
        swapped = [a.subst({column: var(summed), within[0]: var(down)}) for a in second]
        swapped += [a.subst({row: var(summed), within[0]: var(right)}) for a in inner.atoms if a not in second]
        product = self._form(
            {down: size, right: size, summed: entry.size}, (down, right), replace(inner, atoms=tuple(swapped))
        )
        if not any(place in x.vars for a in number.atoms for x in a.args):
            whole = not number.atoms or self.ctx.holds(c.ge(entry.size, size), self.facts)
            least = self._form({same: size}, (same, same), number)
            known = self._known([product, least], size) if whole else []
            return [*known, *(number.atoms if self.ctx.holds(c.lt(size, entry.size), self.facts) else ())]
        if not all(self._nonzero(a, own) for a in number.atoms):
            return []
        below = [replace(a, exp=-a.exp).subst({place: var(summed)}) for a in number.atoms]
        divided = replace(product, coef=product.coef / number.coef, atoms=cancel([*product.atoms, *below]))
        return self._known([divided, self._form({same: size}, (same, same), ONE)], size)

    def _form(self, ranges: Mapping[str, Poly], ends: tuple[str, str], m: Monomial) -> Monomial:
        """A term of a bilinear form, by the ranges of its bound variables, its row and its column, and its factors."""
        guards = tuple([g for name, n in ranges.items() for g in c.within(var(name), n)])
        atoms = (*m.atoms, Atom(ROW, (var(ends[0]),)), Atom(COLUMN, (var(ends[1]),)))
        return Monomial(coef=m.coef, guards=guards, binders=tuple(ranges), atoms=atoms)

    def _nonzero(self, a: Atom, known: tuple[Cond, ...]) -> bool:
        """Whether a factor is not 0, by a premise about values."""
        return any(is_among(self.ctx, replace(a, exp=1), (), there, (*self.facts, *known)) for there in self.nonzero)

    def _product(self, left: InverseEntry, m: InverseEntry, right: InverseEntry) -> list[Atom]:
        """The inverse of the product of three matrices."""
        form: NF = []
        for factors in itertools.product(left.form, m.form, right.form):
            parts = [_without_ends(freshen(self.ctx, x)) for x in factors]
            guards = [c.eq(a[COLUMN], b[ROW]) for (_, a), (_, b) in itertools.pairwise(parts)]
            ends = (Atom(ROW, (parts[0][1][ROW],)), Atom(COLUMN, (parts[2][1][COLUMN],)))
            form += self._with(_joined([x for x, _ in parts], ends), guards)
        return self._known(self.reduced(form), left.size)

    def _known(self, form: NF, size: Poly) -> list[Atom]:
        """The inverse of a matrix, if it occurs in the proof."""
        ends = [self.ctx.fresh(size, "p") for _ in ENDS]
        lengths = [[Monomial(sizes=((n, 1),))] for n in (size, size, *map(var, ends))]
        turned = [replace(m, atoms=tuple([_turned(a) for a in m.atoms])) for m in form]
        ways = [[*lengths, form], [*lengths[:2], lengths[3], lengths[2], turned]]
        atom = next(filter(None, (self.labels.classes.known(INVERSE, way) for way in ways)), None)
        return [] if atom is None else [atom.subst(dict.fromkeys(ends, const(0)))]


def _name(p: Poly) -> str | None:
    """The variable that a position is; None for other positions."""
    return str(p) if len(p.vars) == 1 and p == var(str(p)) else None


def _without_ends(m: Monomial) -> tuple[Monomial, dict[str, Poly]]:
    """A term of a bilinear form without the unknowns, and their places."""
    at = {a.label: a.args[0] for a in m.atoms if a.label in ENDS}
    return replace(m, atoms=tuple([a for a in m.atoms if a.label not in at])), at


def _without_end(m: Monomial, other: Poly) -> tuple[Monomial, tuple[Cond]]:
    """A summand without its mark of the other end, and the condition that this is a given place."""
    (end,) = (a for a in m.atoms if a.label == END)
    return replace(m, atoms=tuple([a for a in m.atoms if a is not end])), (c.eq(end.args[0], other),)


def _joined(ms: Sequence[Monomial], atoms: Sequence[Atom]) -> Monomial:
    """The product of summands, whose binders differ, and further factors."""
    return Monomial(
        coef=math.prod([m.coef for m in ms], start=Fraction(1)),
        sizes=merge_sizes([x for m in ms for x in m.sizes]),
        guards=tuple([g for m in ms for g in m.guards]),
        binders=tuple([b for m in ms for b in m.binders]),
        atoms=(*[a for m in ms for a in m.atoms], *atoms),
    )


def _turned(a: Atom) -> Atom:
    """An unknown of the rows as one of the columns, and the reverse."""
    return replace(a, label={ROW: COLUMN, COLUMN: ROW}.get(a.label, a.label))


def _is_diagonal(m: Monomial, at: Mapping[str, Poly]) -> bool:
    """Whether a term of a bilinear form is the diagonal of a matrix."""
    return len(m.binders) == 1 and all(_name(p) == m.binders[0] for p in at.values())


def _is_lead(m: Monomial, at: Mapping[str, Poly]) -> bool:
    """Whether a term of a bilinear form is at rows and columns that are bound variables of their own."""
    names = {_name(p) for p in at.values()}
    return len(names) == 2 and names <= set(m.binders) and not m.sizes


def _matches(
    wanted: list[Atom], have: list[Atom], at: dict[str, Poly], names: frozenset[str]
) -> Iterator[tuple[dict[str, Poly], list[Atom]]]:
    """Assignments of variables under which some factors are the wanted ones; with the factors that are left."""
    if not wanted:
        yield at, have
        return
    first = max(wanted, key=lambda a: sum(x.vars <= at.keys() for x in a.args))
    later = [a for a in wanted if a is not first]
    for n, a in enumerate(have):
        bound = _unified(first, a, at, names) if a.label == first.label else None
        if bound is None or abs(a.exp) < abs(first.exp) or a.exp * first.exp < 0:
            continue
        left = [replace(a, exp=a.exp - first.exp)] if a.exp != first.exp else []
        yield from _matches(later, [*have[:n], *left, *have[n + 1 :]], bound, names)


def _unified(pattern: Atom, a: Atom, at: Mapping[str, Poly], names: frozenset[str]) -> dict[str, Poly] | None:
    """The assignment under which a factor is the wanted one; None where there is none."""
    out = dict(at)
    for x, y in zip(pattern.args, a.args, strict=True):
        name = _name(x)
        if name is not None and name in names and name not in out:
            out[name] = y
        elif x.subst(out) != y:
            return None
    return out


__all__ = ["InverseLaws"]
