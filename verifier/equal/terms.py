"""Scalar terms: what a tensor expression is at one index, and the algebra that builds them.

`sem` (verifier/equal/sem.py) writes the meaning of a rule against the protocol `TermAlgebra`.  In
`Symbolic` indices are polynomials and scalars are the terms below: what the prover proves things about.  (Over numbers
it is implemented by the tests, which compare it with the interpreter.)

A term is a read of an input, a rational constant, an integer (a size) as a scalar, plus or minus infinity, a scalar
function of terms, a choice between terms by an index condition, or a reduction over one bound index variable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol, TypeAlias, TypeVar

from superopt.ir.scalar import SCALARS
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond, Int, Sym, Truth, unwrap
from verifier.equal.poly import Poly, const, divide, entry, greatest, least, var

S = TypeVar("S")
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


class TermAlgebra(Protocol[S]):
    """What `sem` needs of scalars; indices are ints or polynomials and use Python's own operators."""

    def read(self, name: str, index: Sequence[Int]) -> S:
        """The entry of an input."""
        ...

    def const(self, value: Fraction | float) -> S:
        """A rational constant or an infinity."""
        ...

    def size(self, value: Int) -> S:
        """An integer as a scalar."""
        ...

    def op(self, fn: str, *args: S) -> S:
        """A scalar function."""
        ...

    def where(self, guard: Truth, then: Callable[[], S], orelse: Callable[[], S]) -> S:
        """A choice by an index condition; `then` need only make sense under it."""
        ...

    def reduce(self, kind: str, sizes: Sequence[Int], body: Callable[[Sequence[Int]], S]) -> S:
        """Fold of `body` over a box of indices."""
        ...

    def divmod(self, index: Int, inner: Int) -> tuple[Int, Int]:
        """The pair (outer, inner) of an index into a merged axis."""
        ...

    def entry(self, value: S, size: Int) -> Int:
        """An integer scalar as an index, clipped to 0 .. size - 1."""
        ...


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
    """Indices are polynomials, scalars are terms."""

    def __init__(
        self,
        fresh: Callable[[Poly, str], str],
        within: Callable[[str], Poly | None],
        booleans: frozenset[str],
        known: Mapping[str, Poly],
    ):
        self._fresh, self._within, self._booleans, self._known = fresh, within, booleans, known
        self.computed = False  # was a comparison of positions decided here?

    def read(self, name: str, index: Sequence[Int]) -> Term:
        """The entry of an input."""
        return Read(name, tuple(unwrap(i) for i in index), name in self._booleans)

    def const(self, value: Fraction | float) -> Term:
        """A rational constant or an infinity."""
        if isinstance(value, bool):
            return TRUE if value else FALSE
        if isinstance(value, float) and math.isinf(value):
            return Infinity(1 if value > 0 else -1)
        return Const(Fraction(value))

    def size(self, value: Int) -> Term:
        """An integer as a scalar."""
        v = unwrap(value).value
        return Size(unwrap(value)) if v is None else Const(Fraction(v))

    def op(self, fn: str, *args: Term) -> Term:
        """A scalar function; a comparison of positions is a condition on indices."""
        if fn in _COMPARISONS:
            if any(isinstance(x, Where) for x in args) and all(map(_chosen_position, args)):
                return self._chosen(fn, args)
            a, b = map(_position, args)
            if a is not None and b is not None:
                self.computed |= not all(isinstance(x, Const) for x in args)
                return self.where(_COMPARISONS[fn](a, b), lambda: TRUE, lambda: FALSE)
        if fn == "select_n" and isinstance(args[0], Where) and {args[0].then, args[0].orelse} <= {ONE, ZERO}:
            which, (false, true) = args[0], args[1:]
            picked = [true if x == ONE else false for x in (which.then, which.orelse)]
            return self.where(which.guard, lambda: picked[0], lambda: picked[1])
        return Apply(fn, args)

    def _chosen(self, fn: str, args: tuple[Term, ...]) -> Term:
        """A comparison of choices between positions: the choice between comparisons."""
        i, choice = next((i, x) for i, x in enumerate(args) if isinstance(x, Where))

        def on(branch: Term) -> Term:
            return self.op(fn, *args[:i], branch, *args[i + 1 :])

        return self.where(choice.guard, lambda: on(choice.then), lambda: on(choice.orelse))

    def where(self, guard: Truth, then: Callable[[], Term], orelse: Callable[[], Term]) -> Term:
        """A choice by an index condition."""
        g = c.truth(guard)
        if g == c.TRUE:
            return then()
        return orelse() if g == c.FALSE else Where(g, then(), orelse())

    def reduce(self, kind: str, sizes: Sequence[Int], body: Callable[[Sequence[Int]], Term]) -> Term:
        """Fold over fresh bound variables; a range of extent 1 binds the index 0, and its sum is 0 + the element."""
        extents = [unwrap(n).subst(self._known) for n in sizes]
        names = [None if n.value == 1 else self._fresh(n, "k") for n in extents]
        term = body([Sym(const(0) if name is None else var(name)) for name in names])
        for name, n in zip(names, extents, strict=True):
            if name is not None:
                term = Reduce(kind, name, n, term)
        if kind == "sum" and names and not any(names):
            term = Apply("add", (ZERO, term))  # of -0 that is 0
        return term

    def divmod(self, index: Int, inner: Int) -> tuple[Int, Int]:
        """Quotient and remainder; a remainder known to be in range is itself."""
        whole, q = unwrap(index), unwrap(inner)
        for mono, k in whole.terms:
            part = Poly([(mono, k)])
            if self._within(str(part)) == q:
                outer, rest = divide(whole - part, q)
                if rest.value == 0:
                    return Sym(outer), Sym(part)
        outer, rest = divide(whole, q)
        return Sym(outer), Sym(rest)

    def entry(self, value: Term, size: Int) -> Int:
        """An entry of an integer input, clipped.

        Raises:
            NotImplementedError: the index is computed, not read.
        """
        if not isinstance(value, Read):
            raise NotImplementedError("an index that is not an entry of an input")
        return Sym(greatest(0, least(entry(value.name, value.index), unwrap(size) - 1)))


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
