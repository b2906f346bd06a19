"""Terms to sum normal form, under one of three sets of laws.

    exact   only movement, choice, maxima and sign are interpreted: equal normal forms are bit-identical values.
    real    also the field laws: sums, products, reciprocals; other scalar functions are opaque (congruence only).
    range   also exp(a + b) = exp a * exp b and log(exp a) = a: equal over the reals, but range may be lost.

A nonlinear function first splits on the guards (and Boolean atoms) of its arguments that no binder touches, so that
f([g] a + [not g] b) = [g] f(a) + [not g] f(b).  Arguments without binders become structural labels whose coordinates
are the atoms' arguments; arguments with sums become class atoms.  Maxima are sets of guarded entries: the same
calculus with Boolean weights.  Denominators are collected for prove.py, which discharges them or records them.

Some functions are discontinuous: comparisons, signs, tests for NaN and step functions (floor, remainders, conversions
to integers).  Rounding may move their results by a whole step, so values that are equal over the reals alone are
different operands to them.  Their arguments are therefore normalised by exact laws, whatever the laws of the proof are
(`within`).  Over the reals a comparison is the negation of its opposite.  Where an argument may be undefined it is not,
since the comparison still has a value and no assumption excludes it.  `loose` disables all of this, to find out whether
a proof fails because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any

from superopt.ir.ops.record import identity
from superopt.ir.ops.table import PARTIAL
from superopt.ir.scalar import COMPARISONS, LOGICAL, SCALARS
from superopt.ir.types import FLOATS, INTEGERS
from verifier.equal import conditions as c
from verifier.equal.classes import INF, ORDERED, AtomLabels, infinite
from verifier.equal.definedness import Definedness, index_ranges, positive_sum
from verifier.equal.domains import Domains
from verifier.equal.monomial import (
    NF,
    ONE,
    Atom,
    Monomial,
    Trail,
    Unsupported,
    by_cases,
    choice,
    combine,
    common,
    complement,
    factors,
    freshen,
    gate,
    is_simple,
    merge_sizes,
    scale,
    subst,
    tidy,
    times,
    with_one_size,
    without,
)
from verifier.equal.poly import Poly, const, form_of, quoted, var
from verifier.equal.solver import Context
from verifier.equal.terms import Apply, Const, Infinity, Integer, Read, Reduce, ScalarTerm, Where
from verifier.equal.weights import onepoint

EXACT, REAL, RANGE = "exact", "real", "range"
BITWISE = ("or[", "and[", "xor[")
MULTISET = "entries"
"""Reduction to all entries, of which a sort makes an order."""
INVERSE, MATRIX, ENTRY = "inverse", "matrix", "entry"
"""Entry of the inverse of a matrix: a function of its size, a place and the matrix; the reduction to all entries of a
matrix; and one of these at its place."""
ROW, COLUMN = "row", "column"
"""Labels of unknowns, of which a matrix has one for each row and one for each column."""
ZERO = Atom("0")
COMMUTATIVE = frozenset({"add", "mul"})
_RECORDED = PARTIAL - {"div", "rsqrt"} | {"nan"}  # these two are recorded by their divisors
_STEPS = frozenset(name for name, fn in SCALARS.items() if fn.steps) - {"sign"}


def whole_of_float(fn: str) -> bool:
    """Whether a function is a conversion of floats to integers."""
    source, _, target = fn.removeprefix("convert[").removesuffix("]").partition(",")
    return source in FLOATS and target in INTEGERS


def steps(fn: str) -> bool:
    """Whether a function is a step function: discontinuous, but not a comparison."""
    return fn.partition("[")[0] in _STEPS or whole_of_float(fn)


@dataclass
class Normaliser:
    """Normal forms over one context; both sides of an equation share it."""

    ctx: Context
    laws: str
    labels: AtomLabels = field(init=False)
    records: Definedness = field(default_factory=Definedness)
    domains: Domains = field(init=False)
    inside: bool = False  # for arguments of a function that are normalised by stronger laws
    loose: bool = False  # comparisons and steps read exact real numbers; the result is then no proof
    unlogged: bool = False  # log(exp(a) * b) is a + log(b), as for the side that may lose range, and is replaced
    bitwise: frozenset[str] = (
        frozenset()
    )  # bitwise reductions that occur; their binary functions are treated as such, too
    _memo: dict[tuple[int, Trail], tuple[ScalarTerm, NF]] = field(default_factory=dict[Any, Any], init=False)
    _stronger: dict[str, Normaliser] = field(default_factory=dict[str, Any], init=False)

    def __post_init__(self) -> None:
        self.labels = AtomLabels(self.ctx)
        self.domains = Domains(lambda g: self.ctx.holds(g, self.ctx.facts_of(sorted(g.vars - self.ctx.dims))))

    @contextmanager
    def replaced(self) -> Generator[None]:
        """Read the side of an equation that is replaced: its exponentials below logarithms need no range any more."""
        self.unlogged = True
        yield
        self.unlogged = False
        self._stronger.clear()

    def within(self, laws: str) -> Normaliser:
        """A normaliser by stronger laws, with the same labels, whose records of definedness are dropped."""
        if laws not in self._stronger:
            made = replace(self, laws=laws, inside=True, records=Definedness())
            made.labels, made.domains, made.records.trail = self.labels, self.domains, self.records.trail
            self._stronger[laws] = made
        return self._stronger[laws]

    def _laws_of(self, fn: str, args: Sequence[ScalarTerm]) -> str:
        """The laws by which the arguments of a function are normalised."""
        if self.laws == EXACT:
            return EXACT
        if steps(fn) or fn.startswith("?"):
            return REAL if self.loose else EXACT
        if fn in COMPARISONS:
            return REAL if self.domains.whole(*args) else EXACT
        return REAL if fn == "sign" else self.laws

    def _read_by_steps(self) -> Normaliser:
        """The normaliser for operands of a comparison or a sign."""
        return self if self.loose else self.within(EXACT)

    def nf(self, t: ScalarTerm) -> NF:
        """The normal form of a term.

        Raises:
            Unsupported: the term is outside the theory.
        """
        key = (id(t), tuple(self.records.trail))  # records of divisors contain the trail
        hit = self._memo.get(key)
        if hit is None:
            hit = self._memo[key] = (t, self._nf(t))
        return hit[1]

    def _chosen(self, t: Where, of: Callable[[ScalarTerm], NF]) -> NF:
        """The sum of a function of both branches of a choice, each gated by its condition."""
        out: NF = []
        for branch, guard in ((t.then, t.guard), (t.orelse, c.negate(t.guard))):
            with self.records.under(guard):
                out += gate(of(branch), guard)
        return out

    def _nf(self, t: ScalarTerm) -> NF:
        if isinstance(t, Read):
            index = tuple([self._settled(i) for i in t.index])
            return [Monomial(atoms=(Atom(f"?{quoted(t.name)}" if t.boolean else quoted(t.name), index),))]
        if isinstance(t, Const):
            return [Monomial(coef=t.value)] if t.value else [] if t.truth else self._zero()
        if isinstance(t, Integer) and self.laws == EXACT:
            return [Monomial(atoms=(Atom("size", (self._settled(t.value),)),))]
        if isinstance(t, Integer):
            k, sizes = factors(self._settled(t.value))
            return [Monomial(coef=k, sizes=sizes)]
        if isinstance(t, Infinity):
            return [Monomial(coef=Fraction(t.sign), atoms=(Atom(INF),))]
        if isinstance(t, Where):
            return self._chosen(t, self.nf)
        if isinstance(t, Reduce):
            return self._reduce(t)
        return self._apply(t)

    def _settled(self, p: Poly) -> Poly:
        """A position without the extremes that are decided by the conditions under which it is needed."""
        known = self.records.conditions()
        for atom in p.forms if known else ():
            form = form_of(atom)
            lin = p.affine(atom) if form is not None and form[0] in ("max", "min") else None
            if form is None or lin is None:
                continue
            op, args = form
            if not any(g.vars & args[0].vars | g.vars & args[1].vars for g in known):
                continue
            facts = (*known, *self.ctx.facts_of(sorted((args[0].vars | args[1].vars) - self.ctx.dims)))
            for larger, smaller in (args, args[::-1]):
                if self.ctx.holds(c.ge(larger, smaller), facts):
                    return self._settled(lin[0] * (larger if op == "max" else smaller) + lin[1])
        return p

    def _zero(self) -> NF:
        """The number 0: under exact laws an atom, so that -0 is a different value."""
        return [Monomial(atoms=(ZERO,))] if self.laws == EXACT else []

    def _reduce(self, t: Reduce) -> NF:
        if t.kind in ("max", "min", "or", "and"):
            return self._extreme(t)
        if t.kind.startswith(BITWISE):
            return self._bit_by_bit(t, t.kind)
        if t.kind == MULTISET:
            return self._multiset(t)
        if t.kind == "prod" and self.laws != EXACT:
            return self._product(t)
        if t.kind != "sum" or (self.laws == EXACT and not self.inside):
            raise Unsupported(f"reduction {t.kind}")
        out = [x for m in self.nf(t.body) for x in self._bound(t, m)]
        # a step function of a sum depends on the order of its additions, and on the op that adds it up
        return out if self.laws != EXACT else [Monomial(atoms=(self.labels.classes.atom(f"{ORDERED}{t.by}]", [out]),))]

    def _bound(self, t: Reduce, m: Monomial) -> NF:
        """A summand under the binder of a reduction; empty where it is 0."""
        guards = tidy((*m.guards, *c.within(var(t.var), t.size)))
        one = None if guards is None else onepoint(self.ctx, replace(m, guards=guards, binders=(*m.binders, t.var)))
        return [] if one is None else [one]

    # ---- scalar functions
    def _apply(self, t: Apply) -> NF:
        """Return the normal form of a function's application."""
        fn, args = t.fn, t.args
        laws = self._laws_of(fn, args)
        if laws != self.laws:
            if not fn.startswith("?") and fn not in COMPARISONS and not whole_of_float(fn):
                for a in args:  # record where arguments are undefined: the function is undefined there, too
                    self.nf(a)
            if fn.partition("[")[0] in _RECORDED:
                return self._opaque_term(fn, args, self.within(laws))
            return self.within(laws).nf(t)
        if fn in ("max", "min"):
            return self._extreme(t)
        if fn == INVERSE:
            return self._inverse(t)
        if fn.removeprefix("$") in self.bitwise:
            return self._bit_by_bit(t, fn.removeprefix("$"))
        if fn == "neg":
            return scale(self.nf(args[0]), -1)
        if fn == "sub":
            return self._apply(Apply("add", (args[0], Apply("neg", (args[1],)))))
        if fn == "select_n":
            return self._select(args)
        if fn in LOGICAL:
            return self._logic(fn, args)
        if fn in COMPARISONS:
            return self._compare(fn, args)
        if self.laws == EXACT:
            return self._exact(fn, args)
        if fn == "add":
            return self._sum(self.nf(args[0]), self.nf(args[1]))
        if fn == "mul":
            p, q = self.nf(args[0]), self.nf(args[1])
            if infinite(p) or infinite(q):
                raise Unsupported("a product with an infinity")
            return times(self.ctx, p, q)
        if fn == "div":
            return times(self.ctx, self.nf(args[0]), self._apply(Apply("recip", (args[1],))))
        if fn == "rsqrt":
            return self._apply(Apply("recip", (Apply("sqrt", args),)))
        if fn == "sign":
            self.nf(args[0])  # record where it is undefined: the sign is undefined there, too
            return self._opaque_term(fn, args, self._read_by_steps())
        if fn == "logistic" and self.laws == RANGE:  # 1 / (1 + exp(-x))
            one = Const(Fraction(1))
            return self._apply(Apply("recip", (Apply("add", (one, Apply("exp", (Apply("neg", args),)))),)))
        return self._opaque_term(fn, args)

    def _sum(self, p: NF, q: NF) -> NF:
        signs = {m.coef > 0 for m in (*p, *q) if any(a.label == INF for a in m.atoms)}
        if len(signs) > 1:
            raise Unsupported("a sum of both infinities")
        return p + q

    def _opaque_term(self, fn: str, args: Sequence[ScalarTerm], reader: Normaliser | None = None) -> NF:
        def at(ps: list[NF]) -> NF:
            return self._function(fn, ps)

        return by_cases(self.ctx, [(reader or self).nf(a) for a in args], at, self.records.trail)

    def _exact(self, fn: str, args: Sequence[ScalarTerm]) -> NF:
        def at(given: list[NF]) -> NF:
            ps = list(given)
            if fn in ("mul", "div") and ps[1] == [ONE]:
                return ps[0]
            if fn == "mul" and ps[0] == [ONE]:
                return ps[1]
            sign = 1
            if fn in ("mul", "div"):  # the sign of a product is exact
                for i, p in enumerate(ps):
                    if len(p) == 1 and p[0].coef < 0:
                        sign, ps[i] = -sign, scale(p, -1)
            if fn.partition("[")[0] in COMMUTATIVE:
                ps = sorted(ps, key=str)
            return scale(self._function(fn, ps), sign)

        return by_cases(self.ctx, [self.nf(a) for a in args], at, self.records.trail)

    def _function(self, fn: str, ps: list[NF]) -> NF:
        """The normal form of a function of arguments that have no binder-free guards left."""
        ps = [with_one_size(combine(p), self.ctx.dims) for p in ps]
        if fn == "recip":
            return self._reciprocal(ps[0])
        if self.laws == RANGE and fn == "exp":
            return self._exponential(ps[0])
        unlogged = self.laws == RANGE or (self.laws == REAL and self.unlogged)
        if unlogged and fn == "log" and (inside := self._logarithm(ps[0])) is not None:
            return inside
        if fn == "exp" and len(ps[0]) == 1 and ps[0][0].atoms == (Atom(INF),) and ps[0][0].coef < 0:
            return self._zero()
        if fn == "exp" and (not ps[0] or [m.atoms for m in ps[0]] == [(ZERO,)]):
            return [ONE]
        if fn == "sqrt" and ps[0] in ([], [ONE]):
            return ps[0]
        atom = self.labels.atom(fn, ps)
        if fn.partition("[")[0] in _RECORDED and not self._has_value(fn, ps):
            self.records.partial.append((atom, tuple(self.records.trail)))
        return [Monomial(atoms=(atom,))]

    def _has_value(self, fn: str, ps: Sequence[NF]) -> bool:
        """Whether a partial function has a value at its arguments: a sum of positive terms, a divisor that is not 0."""
        if steps(fn):  # a remainder
            return _number(ps[1]) not in (None, 0)
        if fn not in ("log", "sqrt") or self.laws == EXACT or not ps[0]:
            return False
        known = (*self.records.conditions(), *(f for m in ps[0] for f in index_ranges(self.ctx, m)))
        return positive_sum(self.ctx, ps[0], known)

    def _exponential(self, p: NF) -> NF:
        out: NF = [ONE]
        for m in (part for whole in p for part in self._by_positions(whole)):
            if m.atoms == (Atom(INF),) and m.coef < 0:
                return []
            whole = m.coef.denominator == 1 and not m.binders and not m.guards
            power = int(m.coef) if whole else -1 if m.coef < 0 else 1  # exp(-a) = 1 / exp(a)
            atom = replace(self.labels.atom("exp", [[replace(m, coef=m.coef / power)]]), exp=power)
            out = times(self.ctx, out, [Monomial(atoms=(atom,))])
        return out

    def _by_positions(self, m: Monomial) -> NF:
        """Split a monomial along a sum of positions, so that exp(a * (i - j)) has a factor for i and one for j."""
        for at, (q, e) in enumerate(m.sizes):
            if e == 1 and len(q.terms) > 1 and not q.vars <= self.ctx.dims:
                rest = m.sizes[:at] + m.sizes[at + 1 :]
                parts = [factors(Poly([term])) for term in q.terms]
                return [replace(m, coef=m.coef * k, sizes=merge_sizes([*rest, *sizes])) for k, sizes in parts]
        return [m]

    def _logarithm(self, p: NF) -> NF | None:
        if len(p) != 1 or p[0].coef != 1 or p[0].sizes or not p[0].atoms or not is_simple(p):
            return None
        out: NF = []
        for a in p[0].atoms:
            inside = self.labels.unfold("exp", a)
            if inside is None:
                return None
            out += scale(inside, a.exp)
        return out

    def _reciprocal(self, p: NF) -> NF:
        """Return 1 over a sum, which is recorded as not 0."""
        if not p:
            raise Unsupported("division by zero")
        if infinite(p):
            raise Unsupported("division by an infinity")
        if len(p) == 1 and not p[0].binders and not p[0].guards:
            m = p[0]
            self.records.divided_by(p, m.atoms)
            return [
                Monomial(
                    1 / m.coef,
                    tuple((q, -e) for q, e in m.sizes),
                    (),
                    (),
                    tuple(replace(a, exp=-a.exp) for a in m.atoms),
                )
            ]
        shared = common(p)
        if shared:
            inverse = tuple(replace(a, exp=-a.exp) for a in shared)
            self.records.divided_by([Monomial(atoms=shared)], shared)
            inner = [replace(m, atoms=without(m.atoms, shared)) for m in p]
            return times(self.ctx, [Monomial(atoms=inverse)], self._reciprocal(combine(inner)))
        atom = self.labels.classes.atom("value", [p])
        self.records.divided_by(p, (atom,))
        return [Monomial(atoms=(replace(atom, exp=-1),))]

    # ---- matrices
    def _inverse(self, t: Apply) -> NF:
        """An entry of an inverse.

        A matrix is known by its bilinear form: the sum of x[r] * a[r, c] * y[c] over unknowns x and y.  Its transpose
        has the transpose of its inverse, a diagonal matrix the reciprocals of its entries, and a Kronecker product the
        Kronecker product of the inverses.
        """
        if self.laws == EXACT:
            raise Unsupported("the inverse of a matrix")
        *numbers, matrix = t.args
        places = [self._settled(_place(x)) for x in numbers]
        axes = len(places) // 4
        rows, columns, *at = (tuple(places[k * axes : (k + 1) * axes]) for k in range(4))

        def entry(ps: list[NF]) -> NF:
            form = combine(ps[0])
            if infinite(form):
                raise Unsupported("the inverse of a matrix with an infinity")
            out: NF = [ONE]
            for part, ends in self._factors(form, rows, columns):
                own = [[sizes[k] for k in ends] for sizes in (rows, columns, *at)]
                out = times(self.ctx, out, self._inverted(part, *own))
            return out

        return by_cases(self.ctx, [self._form(matrix)], entry, self.records.trail)

    def _inverted(self, form: NF, rows: list[Poly], columns: list[Poly], row: list[Poly], column: list[Poly]) -> NF:
        """An entry of the inverse of the matrix with a bilinear form."""
        names = [[self.ctx.fresh(n, "p") for n in sizes] for sizes in (columns, rows)]
        p, q = (list(map(_length, map(var, own))) for own in names)
        down, right = (list(map(_length, sizes)) for sizes in (rows, columns))
        ways = [*down, *right, *p, *q, form], [*right, *down, *q, *p, _turned(form)]
        known = next(filter(None, (self.labels.classes.known(INVERSE, way) for way in ways)), None)
        atom = known or self.labels.classes.atom(INVERSE, ways[0])
        generic = [*names[0], *names[1]]
        self.records.partial.append((atom.subst(dict.fromkeys(generic, const(0))), tuple(self.records.trail)))
        diagonal = self._diagonal(form, row)
        if diagonal is not None:
            ones = by_cases(self.ctx, [diagonal], lambda x: self._reciprocal(x[0]), self.records.trail)
            return gate(ones, c.conj(map(c.eq, row, column)))
        return [Monomial(atoms=(atom.subst(dict(zip(generic, (*row, *column), strict=True))),))]

    def _diagonal(self, form: NF, at: Sequence[Poly]) -> NF | None:
        """An entry on the diagonal of a matrix that has no others; else None."""
        out: NF = []
        for m in form:
            ends = {a.label: a.args for a in m.atoms if a.label in (ROW, COLUMN)}
            names = dict(zip(map(str, ends[ROW]), at, strict=True))
            if ends[ROW] != ends[COLUMN] or len(names) < len(at) or not names.keys() <= set(m.binders):
                return None
            rest = tuple([a for a in m.atoms if a.label not in ends])
            entry = subst(replace(m, binders=tuple([b for b in m.binders if b not in names]), atoms=rest), names)
            known = (*self.records.conditions(), *self.ctx.facts_of(sorted(entry.free() - self.ctx.dims)))
            guards = tuple([g for g in entry.guards if not self.ctx.holds(g, known)])
            out.append(freshen(self.ctx, replace(entry, guards=guards)))
        return combine(out)

    def _factors(self, form: NF, rows: Sequence[Poly], columns: Sequence[Poly]) -> list[tuple[NF, list[int]]]:
        """The matrices of which a matrix is the Kronecker product, each with the numbers of its axes."""
        whole = [(form, list(range(len(rows))))]
        if len(rows) < 2 or len(form) != 1:
            return whole
        (m,) = form
        bound = frozenset(m.binders)
        if any(q.vars & bound for q, _ in m.sizes):  # positions are factors
            return whole
        ends = {a.label: a.args for a in m.atoms if a.label in (ROW, COLUMN)}
        inner = [a for a in m.atoms if a.label not in ends]
        parts: list[frozenset[str]] = []  # variables that belong together
        tied = [p.vars for args in ends.values() for p in args]
        tied += [g.vars for g in m.guards]
        for names in (x & bound for x in (*tied, *map(_variables, inner)) if x & bound):
            near = [part for part in parts if part & names]
            parts = [*(part for part in parts if part not in near), names.union(*near)]
        out: list[tuple[NF, list[int]]] = []
        for part in parts:
            down, right = ([k for k, p in enumerate(ends[x]) if p.vars & part] for x in (ROW, COLUMN))
            sizes = [prod([n[k] for k in down], start=const(1)) for n in (rows, columns)]
            if down != right or not down or not self.ctx.holds(c.eq(sizes[0], sizes[1])):
                return whole
            first = not out  # what no axis numbers is a factor of the first matrix
            atoms = [a for a in inner if _variables(a) & part or (first and not _variables(a) & bound)]
            atoms += [Atom(label, tuple([ends[label][k] for k in down])) for label in (ROW, COLUMN)]
            guards = tuple([g for g in m.guards if g.vars & part or (first and not g.vars & bound)])
            binders = tuple([b for b in m.binders if b in part])
            made = Monomial(guards=guards, binders=binders, atoms=tuple(atoms))
            out.append(([replace(made, coef=m.coef, sizes=m.sizes) if first else made], down))
        return out if sum(len(down) for _, down in out) == len(rows) else whole

    def _form(self, t: ScalarTerm) -> NF:
        """The bilinear form of a matrix."""
        if isinstance(t, Reduce):
            return [x for m in self._form(t.body) for x in self._bound(t, m)]
        assert isinstance(t, Apply)
        *ends, value = t.args
        half = len(ends) // 2
        rows, columns = (tuple(map(_place, own)) for own in (ends[:half], ends[half:]))
        return [replace(m, atoms=(*m.atoms, Atom(ROW, rows), Atom(COLUMN, columns))) for m in self.nf(value)]

    # ---- choice, logic, comparison
    def _select(self, args: Sequence[ScalarTerm]) -> NF:
        which, false, true = args
        p = self._truth(which)
        with self.records.under(*choice(p, True)):
            yes = self.nf(true)
        with self.records.under(*choice(p, False)):
            no = self.nf(false)
        return times(self.ctx, p, yes) + times(self.ctx, complement(p), no)

    def _truth(self, t: ScalarTerm) -> NF:
        known = LOGICAL | COMPARISONS | {"select_n"}
        if isinstance(t, Read) or (isinstance(t, Apply) and (t.fn in known or t.fn.startswith("?"))):
            return self.nf(t)
        if isinstance(t, Const) and t.value in (0, 1):
            return [ONE] if t.value else []
        if isinstance(t, Where):
            return self._chosen(t, self._truth)
        if isinstance(t, Reduce) and t.kind in ("or", "and") and not infinite(some := self.nf(t)):
            return some
        if isinstance(t, Reduce) and t.kind == "xor[bool]":
            return self.nf(t)
        raise Unsupported("a predicate that is no comparison")

    def _logic(self, fn: str, args: Sequence[ScalarTerm]) -> NF:
        ps = [self._truth(a) for a in args]
        if fn == "not":
            return complement(ps[0])
        both = times(self.ctx, ps[0], ps[1])
        if fn == "and":
            return both
        return [*ps[0], *ps[1], *scale(both, -1 if fn == "or" else -2)]

    def _compare(self, fn: str, args: Sequence[ScalarTerm]) -> NF:
        swapped = ("gt", "ge") if self.laws == EXACT else ("gt", "le")
        a, b = (args[1], args[0]) if fn in swapped else (args[0], args[1])
        negated = fn == "ne" or (self.laws != EXACT and fn in ("ge", "le"))

        def at(ps: list[NF]) -> NF:  # under exact laws a <= b is not the negation of b < a: neither holds for NaN
            exact = self.laws == EXACT
            test = "?eq" if fn in ("eq", "ne") else "?lt" if fn in ("lt", "gt") or not exact else "?le"
            if self.loose and not exact:
                return self._sign_test(test, combine([*ps[0], *scale(ps[1], -1)]))
            return self._ordered(test, *map(combine, ps))

        reader = self._read_by_steps()
        out = by_cases(self.ctx, [reader.nf(a), reader.nf(b)], at, self.records.trail)
        return complement(out) if negated else out

    def _ordered(self, test: str, p: NF, q: NF) -> NF:
        """A comparison of two values as an atom or a constant; -p against -q is written as q against p."""
        known = [_number(p), _number(q)]
        if None not in known or (p == q and self.laws != EXACT):
            a, b = known if None not in known else (Fraction(0), Fraction(0))
            assert a is not None
            assert b is not None
            return [ONE] if (a == b if test == "?eq" else a < b if test == "?lt" else a <= b) else []
        ways = [[p, q], [scale(q, -1), scale(p, -1)]]
        ways += [way[::-1] for way in ways] if test == "?eq" else []
        return [Monomial(atoms=(self.labels.atom(test, min(ways, key=_plainness)),))]

    def _sign_test(self, test: str, gap: NF) -> NF:
        if not gap or (len(gap) == 1 and not gap[0].atoms and not gap[0].sizes and is_simple(gap)):
            value = gap[0].coef if gap else Fraction(0)
            return [ONE] if (value == 0 if test == "?eq" else value < 0) else []
        if test == "?eq" and min(gap, key=lambda m: str(m.atoms)).coef < 0:
            gap = scale(gap, -1)
        return [Monomial(atoms=(self.labels.atom(test, [gap]),))]

    # ---- products over a range
    def _product(self, t: Reduce) -> NF:
        """A product over a range, from its factors: equal multisets have equal products, since 1 is neutral."""

        def at(ps: list[NF]) -> NF:
            out: NF = [ONE]
            for m in ps[0]:
                out = times(self.ctx, out, self._factor(m))
            return out

        return by_cases(self.ctx, [self._product_factors(t)], at, self.records.trail)

    def _factor(self, m: Monomial) -> NF:
        """The product of one factor over its binders."""
        whole = self.labels.unfold("value", m.atoms[0]) if not m.binders and not m.guards else None
        one = replace(m, coef=Fraction(1))
        return [Monomial(atoms=(self.labels.classes.atom("rprod", [[one]]),))] if whole is None else whole

    def _product_factors(self, t: ScalarTerm) -> NF:
        """The multiset of factors, each a guarded monomial with one atom that stands for its value."""
        if isinstance(t, Reduce) and t.kind == "prod":
            return [x for m in self._product_factors(t.body) for x in self._bound(t, m)]
        if isinstance(t, Apply) and t.fn == "mul":
            return self._product_factors(t.args[0]) + self._product_factors(t.args[1])
        if isinstance(t, Where):
            return self._chosen(t, self._product_factors)
        if t == Const(Fraction(1)):
            return []

        def at(ps: list[NF]) -> NF:
            return [Monomial(atoms=(self.labels.atom("value", [combine(ps[0])]),))]

        return by_cases(self.ctx, [self.nf(t)], at, self.records.trail, booleans=False)

    # ---- bits
    def _bit_by_bit(self, t: ScalarTerm, kind: str) -> NF:
        """A reduction by bits, from its entries: a set for `or` and `and`, a multiset for `xor`."""
        name, _, dtype = kind.removesuffix("]").partition("[")
        neutral = Const(Fraction(identity(name, dtype)), truth=dtype == "bool")

        def at(ps: list[NF]) -> NF:
            entries = ps[0] if name == "xor" else list(dict.fromkeys(ps[0]))
            if not entries:
                return self.nf(neutral)
            if len(entries) == 1 and not entries[0].binders and not entries[0].guards:
                return self.labels.unfold("value", entries[0].atoms[0]) or []
            return [Monomial(atoms=(self.labels.classes.atom(f"{'?' if dtype == 'bool' else ''}r{kind}", [entries]),))]

        return by_cases(self.ctx, [self._bits_of(t, kind, neutral)], at, self.records.trail)

    def _multiset(self, t: Reduce) -> NF:
        """The entries of a sort, in any order."""

        def at(ps: list[NF]) -> NF:
            return [Monomial(atoms=(self.labels.classes.atom(f"r{MULTISET}", [ps[0]]),))]

        return by_cases(self.ctx, [self._bits_of(t, MULTISET, None)], at, self.records.trail)

    def _bits_of(self, t: ScalarTerm, kind: str, neutral: Const | None) -> NF:
        """The entries of a reduction by bits, or of a multiset: guarded monomials, each with one atom for its value."""
        if isinstance(t, Reduce) and t.kind == kind:
            some = kind.startswith(("or", "and")) and self.ctx.holds(c.ge(t.size, 1))
            out: NF = []
            for m in self._bits_of(
                t.body, kind, neutral
            ):  # over a range that is not empty, an entry without the bound variable is one entry
                out += [m] if some and t.var not in m.free() else self._bound(t, m)
            return out
        if isinstance(t, Apply) and t.fn.removeprefix("$") == kind:
            return [m for x in t.args for m in self._bits_of(x, kind, neutral)]
        if isinstance(t, Where):
            return self._chosen(t, lambda branch: self._bits_of(branch, kind, neutral))
        if t == neutral:
            return []

        def at(ps: list[NF]) -> NF:
            return [Monomial(atoms=(self.labels.atom("value", [combine(ps[0])]),))]

        return by_cases(self.ctx, [self.nf(t)], at, self.records.trail, booleans=False)

    # ---- maxima
    def _extreme(self, t: ScalarTerm) -> NF:
        kind = t.kind if isinstance(t, Reduce) else t.fn if isinstance(t, Apply) else ""
        sign = -1 if kind in ("min", "and") else 1

        def at(ps: list[NF]) -> NF:
            return self._maximum(list(dict.fromkeys(ps[0])))

        return scale(by_cases(self.ctx, [self._entries(t, sign)], at, self.records.trail), sign)

    def _maximum(self, entries: NF) -> NF:
        if not entries:
            return [Monomial(coef=Fraction(-1), atoms=(Atom(INF),))]
        if len(entries) == 1 and not entries[0].binders and not entries[0].guards:
            atom = entries[0].atoms[0]
            return self.labels.unfold("value", atom) or ([] if atom.label == "value()" else [Monomial(atoms=(atom,))])
        return [Monomial(atoms=(self.labels.classes.atom("rmax", [entries]),))]

    def _entries(self, t: ScalarTerm, sign: int) -> NF:
        """The set of entries of sign * t, each a guarded monomial with one atom that stands for its value."""
        if isinstance(t, Reduce) and t.kind in (("max", "or") if sign > 0 else ("min", "and")):
            out: NF = []
            some = self.ctx.holds(c.ge(t.size, 1))
            for m in self._entries(
                t.body, sign
            ):  # over a range that is not empty, an entry without the bound variable is one entry
                out += [m] if some and t.var not in m.free() else self._bound(t, m)
            return out
        if isinstance(t, Apply) and t.fn == ("max" if sign > 0 else "min"):
            return self._entries(t.args[0], sign) + self._entries(t.args[1], sign)
        if isinstance(t, Apply) and t.fn == "neg":
            return self._entries(t.args[0], -sign)
        if isinstance(t, Where):
            return self._chosen(t, lambda branch: self._entries(branch, sign))
        if isinstance(t, Infinity) and t.sign * sign < 0:
            return []

        def at(ps: list[NF]) -> NF:
            return [Monomial(atoms=(self._entry(combine(ps[0])),))]

        # only index conditions are split here: a sum over Boolean cases is a value, not a set of entries
        return by_cases(self.ctx, [scale(self.nf(t), sign)], at, self.records.trail, booleans=False)

    def _entry(self, p: NF) -> Atom:
        if len(p) == 1 and p[0].coef == 1 and not p[0].sizes and is_simple(p):
            atoms = p[0].atoms
            if len(atoms) == 1 and atoms[0].exp == 1 and atoms[0].label.startswith("rmax#"):
                return atoms[0]
        return self.labels.atom("value", [p])


def _number(p: NF) -> Fraction | None:
    """The number of a constant value, the same for zeros of both signs; None where it is no constant."""
    if len(p) != 1 or p[0].sizes or p[0].atoms not in ((), (ZERO,)) or not is_simple(p):
        return None
    return p[0].coef if not p[0].atoms else Fraction(0)


def _place(t: ScalarTerm) -> Poly:
    """The polynomial of a row, a column or a size."""
    assert isinstance(t, Integer | Const)
    return t.value if isinstance(t, Integer) else const(int(t.value))


def _variables(a: Atom) -> frozenset[str]:
    """Variables in the arguments of an atom."""
    return frozenset[str]().union(*(x.vars for x in a.args))


def _length(n: Poly) -> NF:
    """A size or a place as a sum."""
    return [Monomial(sizes=((n, 1),))]


def _turned(form: NF) -> NF:
    """The bilinear form of the transpose."""
    other = {ROW: COLUMN, COLUMN: ROW}
    return [replace(m, atoms=tuple([replace(a, label=other.get(a.label, a.label)) for a in m.atoms])) for m in form]


def _plainness(way: list[NF]) -> tuple[int, str]:
    """Sort key of ways to write one comparison: few negations first."""
    return sum(m.coef < 0 for p in way for m in p), str(way)
