"""Scalar terms: what a tensor expression is at one index, and the algebra that builds them.

In the algebra `Symbolic` indices are polynomials and scalars are the terms below: what the denotations of the op table
give there, at the entries that a rule names (`verifier.equal.sem`), is what the prover proves things about.

A term is a read of an input, a rational constant, an integer (a size) as a scalar, plus or minus infinity, a scalar
function of terms, a choice between terms by an index condition, or a reduction over one bound index variable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from superopt.ir.scalar import SCALARS
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond, Int, Sym, Truth, unwrap
from verifier.equal.poly import Poly, const, divide, entry, greatest, least, var
from verifier.equal.solver import Context

COMMUTATIVE = frozenset(name for name, fn in SCALARS.items() if fn.commutative)


@dataclass(frozen=True, slots=True)
class Read:
    """The entry of input `name` at `index`."""

    name: str
    index: tuple[Poly, ...]
    boolean: bool = False


@dataclass(frozen=True, slots=True)
class Const:
    """A rational constant; `truth`: a truth value, for which 0 is no number with a sign."""

    value: Fraction
    truth: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Size:
    """An integer expression as a scalar."""

    value: Poly


@dataclass(frozen=True, slots=True)
class Infinity:
    """The greatest (+1) or least (-1) value."""

    sign: int


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar function; the name is the `jax.lax` primitive's, or `?f` for a meta-variable."""

    fn: str
    args: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Where:
    """`then` where the index condition holds, else `orelse`."""

    guard: Cond
    then: Term
    orelse: Term


@dataclass(frozen=True, slots=True)
class Reduce:
    """`kind` (sum or max) of `body` for `var` = 0 .. size - 1."""

    kind: str
    var: str
    size: Poly
    body: Term


Term: TypeAlias = "Read | Const | Size | Infinity | Apply | Where | Reduce"
ZERO = Const(Fraction(0))
ONE = Const(Fraction(1))
TRUE, FALSE = Const(Fraction(1), truth=True), Const(Fraction(0), truth=True)


_Bound: TypeAlias = "tuple[tuple[str, str], ...]"
"""Variables that reductions around two terms bind, outermost first."""


def alike(a: Term, b: Term) -> bool:
    """Are two terms the same but for the names of bound variables and the order of operands that commute?"""
    known: dict[tuple[int, int, _Bound], bool] = {}

    def same(x: Term, y: Term, bound: _Bound) -> bool:
        if type(x) is not type(y):
            return False
        if x is y and not bound:
            return True
        key = (id(x), id(y), bound)
        if key not in known:
            known[key] = _same(x, y, bound, same)
        return known[key]

    return same(a, b, ())


def _same(x: Term, y: Term, bound: _Bound, same: Callable[[Term, Term, _Bound], bool]) -> bool:
    """One step of `alike`: variables of one pair get one new name on both sides."""
    here, there = ({pair[side]: var(f"#{i}") for i, pair in enumerate(bound)} for side in (0, 1))
    match x, y:
        case Read(), Read():
            places = [tuple([p.subst(names) for p in t.index]) for t, names in ((x, here), (y, there))]
            return (x.name, x.boolean) == (y.name, y.boolean) and places[0] == places[1]
        case Size(), Size():
            return x.value.subst(here) == y.value.subst(there)
        case Apply(), Apply():
            if x.fn != y.fn or len(x.args) != len(y.args):
                return False
            if all(same(p, q, bound) for p, q in zip(x.args, y.args, strict=True)):
                return True
            turned = x.fn.partition("[")[0] in COMMUTATIVE and len(x.args) == 2
            return turned and same(x.args[0], y.args[1], bound) and same(x.args[1], y.args[0], bound)
        case Where(), Where():
            alike_guards = x.guard.subst(here) == y.guard.subst(there)
            return alike_guards and same(x.then, y.then, bound) and same(x.orelse, y.orelse, bound)
        case Reduce(), Reduce():
            outer = x.kind == y.kind and x.size.subst(here) == y.size.subst(there)
            return outer and same(x.body, y.body, (*bound, (x.var, y.var)))
        case _:
            return x == y


def _gt(a: Poly, b: Poly) -> Cond:
    return c.lt(b, a)


def _le(a: Poly, b: Poly) -> Cond:
    return c.ge(b, a)


_COMPARISONS: dict[str, Callable[[Poly, Poly], Cond]] = {
    "lt": c.lt, "ge": c.ge, "gt": _gt, "le": _le, "eq": c.eq, "ne": c.ne,
}  # fmt: skip


def _position(t: Term) -> Poly | None:
    """The integer that a term of positions, sizes and integer constants is, or None."""
    if isinstance(t, Size):
        return t.value
    if isinstance(t, Const):
        return const(int(t.value)) if t.value.denominator == 1 else None
    if not isinstance(t, Apply) or t.fn not in ("add", "sub", "neg", "mul"):
        return None
    parts = [_position(a) for a in t.args]
    a, b = parts[0], parts[-1]
    if a is None or b is None:
        return None
    return -a if t.fn == "neg" else a + b if t.fn == "add" else a - b if t.fn == "sub" else a * b


def _chosen_position(t: Term) -> bool:
    """A position, or a choice between positions by conditions on indices (a concatenation of positions)."""
    if isinstance(t, Where):
        return _chosen_position(t.then) and _chosen_position(t.orelse)
    return _position(t) is not None


class Symbolic:
    """The algebra of `superopt.ir.algebra` in which indices are polynomials and scalars are terms.

    Types play no part: what is denoted here holds of every type of floats, and integers are looked at afterwards.
    """

    def __init__(self, ctx: Context, booleans: frozenset[str], known: Mapping[str, Poly]):
        self.ctx, self._booleans, self._known = ctx, booleans, known
        self.computed = False  # was a comparison of positions decided here?
        self._bound: set[str] = set()
        self._decided: dict[tuple[Cond, tuple[Poly, ...]], bool] = {}

    def read(self, name: str, index: Sequence[Int]) -> Term:
        """The entry of an input."""
        return Read(name, tuple(unwrap(i) for i in index), name in self._booleans)

    def const(self, value: bool | int | float, dtype: str) -> Term:
        """A rational constant, a truth value or an infinity."""
        if isinstance(value, bool):
            return TRUE if value else FALSE
        if isinstance(value, float) and math.isinf(value):
            return Infinity(1 if value > 0 else -1)
        return Const(Fraction(value))

    def op(self, fn: str, dtype: str, *args: Term) -> Term:
        """A scalar function; a comparison of positions is a condition on indices."""
        if fn in _COMPARISONS:
            if any(isinstance(x, Where) for x in args) and all(map(_chosen_position, args)):
                return self._chosen(fn, dtype, args)
            a, b = map(_position, args)
            if a is not None and b is not None:
                self.computed |= not all(isinstance(x, Const) for x in args)
                return self.where(_COMPARISONS[fn](a, b), lambda: TRUE, lambda: FALSE)
        if fn == "select_n" and isinstance(args[0], Where) and {args[0].then, args[0].orelse} <= {ONE, ZERO}:
            which, (false, true) = args[0], args[1:]
            picked = [true if x == ONE else false for x in (which.then, which.orelse)]
            return self.where(which.guard, lambda: picked[0], lambda: picked[1])
        return Apply(fn, args)

    def _chosen(self, fn: str, dtype: str, args: tuple[Term, ...]) -> Term:
        """A comparison of choices between positions: the choice between comparisons."""
        i, choice = next((i, x) for i, x in enumerate(args) if isinstance(x, Where))

        def on(branch: Term) -> Term:
            return self.op(fn, dtype, *args[:i], branch, *args[i + 1 :])

        return self.where(choice.guard, lambda: on(choice.then), lambda: on(choice.orelse))

    def convert(self, value: Term, source: str, target: str) -> Term:
        """A conversion is a function of which nothing is known."""
        return value if source == target else Apply(f"convert[{source},{target}]", (value,))

    def where(self, guard: Truth, then: Callable[[], Term], orelse: Callable[[], Term]) -> Term:
        """A choice by an index condition."""
        g = c.conj(x for x in c.clauses(c.truth(guard)) if not self._always(x))
        if g == c.TRUE:
            return then()
        return orelse() if g == c.FALSE else Where(g, then(), orelse())

    def _always(self, g: Cond) -> bool:
        """Does a condition on a bound index follow from premises and ranges: does a window stay inside its tensor?"""
        names = [x for x in sorted(g.vars) if self.ctx.range_of(x) is not None]
        if self._bound.isdisjoint(names):
            return False
        renamed = {x: var(f"#{i}") for i, x in enumerate(names)}
        key = g.subst(renamed), tuple([self.ctx.ranges[x].subst(renamed) for x in names])
        if key not in self._decided:
            self._decided[key] = self.ctx.holds(g, self.ctx.facts_of(names))
        return self._decided[key]

    def reduce(self, monoid: str, extents: Sequence[Int], body: Callable[..., Term], dtype: str) -> Term:
        """Fold over fresh bound variables; a range of extent 1 binds the index 0, and its sum is 0 + the element."""
        sizes = [unwrap(n).subst(self._known) for n in extents]
        names = [None if n.value == 1 else self.ctx.fresh(n) for n in sizes]
        self._bound |= {x for x in names if x is not None}
        term = body(*[Sym(const(0) if name is None else var(name)) for name in names])
        for name, n in zip(names, sizes, strict=True):
            if name is not None:
                term = Reduce(monoid, name, n, term)
        if monoid == "sum" and names and not any(names):
            term = Apply("add", (ZERO, term))  # of -0 that is 0
        return term

    def to_index(self, value: Term) -> Int:
        """A position, or an entry of an integer input, as an index.

        Raises:
            NotImplementedError: the index is computed from entries.
        """
        if isinstance(value, Read):
            return Sym(entry(value.name, value.index))
        known = _position(value)
        if known is None:
            raise NotImplementedError("an index that is not an entry of an input")
        return Sym(known)

    def from_index(self, index: Int, dtype: str) -> Term:
        """An index as a scalar."""
        p = unwrap(index)
        return Size(p) if p.value is None else Const(Fraction(p.value))

    def clip(self, index: Int, low: Int, high: Int) -> Int:
        """`min(max(index, low), high)`."""
        return Sym(least(greatest(unwrap(index), unwrap(low)), unwrap(high)))

    def all(self, *guards: Truth) -> Truth:
        """Conjunction."""
        return c.conj(guards)

    def eq(self, a: Int, b: Int) -> Truth:
        """Equality of indices."""
        return c.eq(unwrap(a), unwrap(b))

    def regroup(self, index: Sequence[Int], outer: Sequence[Int], inner: Sequence[Int]) -> Sequence[Int]:
        """The index in `inner` at the same row-major position; a remainder known to be in range is itself."""
        flat = const(0)
        for i, n in zip(index, outer, strict=True):
            flat = flat * unwrap(n) + unwrap(i)
        found: list[Int] = []
        for n in reversed(inner[1:]):
            flat, rest = self._divide(flat, unwrap(n))
            found.append(Sym(rest))
        return [Sym(flat), *reversed(found)]

    def _divide(self, whole: Poly, q: Poly) -> tuple[Poly, Poly]:
        for mono, k in whole.terms:
            part = Poly([(mono, k)])
            if self.ctx.range_of(str(part)) == q:
                outer, rest = divide(whole - part, q)
                if rest.value == 0:
                    return outer, part
        return divide(whole, q)


def walk_terms(t: Term) -> Iterator[Term]:
    """All subterms, shared ones once."""
    seen: set[int] = set()
    todo: list[Term] = [t]
    while todo:
        t = todo.pop()
        if id(t) in seen:
            continue
        seen.add(id(t))
        yield t
        if isinstance(t, Apply):
            todo += t.args[::-1]
        elif isinstance(t, Where):
            todo += (t.orelse, t.then)
        elif isinstance(t, Reduce):
            todo.append(t.body)


def reductions(t: Term) -> frozenset[str]:
    """The kinds of reduction that occur in a term."""
    return frozenset(x.kind for x in walk_terms(t) if isinstance(x, Reduce))


def functions(t: Term) -> frozenset[str]:
    """The scalar functions that occur in a term."""
    return frozenset(x.fn for x in walk_terms(t) if isinstance(x, Apply))
