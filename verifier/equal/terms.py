"""Scalar terms: the value of a tensor expression at one symbolic index; `verifier.equal.algebra` builds them.

A leaf is a read of an input, a rational constant, an integer (a size) as a scalar, or plus or minus infinity.  Other
terms are a scalar function of terms, a choice between terms by an index condition, or a reduction over one bound index
variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from superopt.ir.scalar import SCALARS
from verifier.equal.conditions import Cond
from verifier.equal.poly import Poly, var

COMMUTATIVE = frozenset(name for name, fn in SCALARS.items() if fn.commutative)


@dataclass(frozen=True, slots=True)
class Read:
    """The entry of input `name` at `index`."""

    name: str
    index: tuple[Poly, ...]
    boolean: bool = False


@dataclass(frozen=True, slots=True)
class Const:
    """A rational constant; `truth` marks a truth value, whose 0 is no number with a sign."""

    value: Fraction
    truth: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer expression as a scalar."""

    value: Poly


@dataclass(frozen=True, slots=True)
class Infinity:
    """Plus (+1) or minus (-1) infinity."""

    sign: int


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar function of terms.

    The name is that of the `jax.lax` primitive; `$f` is an uninterpreted function, `?f` an uninterpreted predicate.
    """

    fn: str
    args: tuple[ScalarTerm, ...]


@dataclass(frozen=True, slots=True)
class Where:
    """`then` where the index condition holds, else `orelse`."""

    guard: Cond
    then: ScalarTerm
    orelse: ScalarTerm


@dataclass(frozen=True, slots=True)
class Reduce:
    """The reduction of `body` by `kind`, for `var` = 0 .. size - 1.

    Kinds are sum, prod, max and min, `or` and `and` of truth values, and the bitwise `or[int32]`, `and[uint8]`,
    `xor[bool]` and so on, with their type.  `by` names the operation that adds up floats, and its order, since another
    one rounds the sum differently.
    """

    kind: str
    var: str
    size: Poly
    body: ScalarTerm
    by: str = ""


ScalarTerm: TypeAlias = "Read | Const | Integer | Infinity | Apply | Where | Reduce"
ZERO = Const(Fraction(0))
ONE = Const(Fraction(1))
TRUE, FALSE = Const(Fraction(1), truth=True), Const(Fraction(0), truth=True)


_Bound: TypeAlias = "tuple[tuple[str, str], ...]"
"""Pairs of variables bound by the reductions around two terms, outermost first."""


def alike(a: ScalarTerm, b: ScalarTerm) -> bool:
    """Whether two terms agree up to names of bound variables and the order of commuting operands.

    Sums of floats agree only where the same operation adds them up in the same order.
    """
    known: dict[tuple[int, int, _Bound], bool] = {}

    def same(x: ScalarTerm, y: ScalarTerm, bound: _Bound) -> bool:
        if type(x) is not type(y):
            return False
        if x is y and not bound:
            return True
        key = (id(x), id(y), bound)
        if key not in known:
            known[key] = _same(x, y, bound, same)
        return known[key]

    return same(a, b, ())


def _same(x: ScalarTerm, y: ScalarTerm, bound: _Bound, same: Callable[[ScalarTerm, ScalarTerm, _Bound], bool]) -> bool:
    """One step of `alike`: paired bound variables get the same new name on both sides."""
    here, there = ({pair[side]: var(f"#{i}") for i, pair in enumerate(bound)} for side in (0, 1))
    match x, y:
        case Read(), Read():
            places = [tuple([p.subst(names) for p in t.index]) for t, names in ((x, here), (y, there))]
            return (x.name, x.boolean) == (y.name, y.boolean) and places[0] == places[1]
        case Integer(), Integer():
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
            outer = (x.kind, x.by) == (y.kind, y.by) and x.size.subst(here) == y.size.subst(there)
            return outer and same(x.body, y.body, (*bound, (x.var, y.var)))
        case _:
            return x == y


def parts_of(t: ScalarTerm) -> tuple[ScalarTerm, ...]:
    """The direct subterms of a term."""
    if isinstance(t, Apply):
        return t.args
    if isinstance(t, Where):
        return t.then, t.orelse
    return (t.body,) if isinstance(t, Reduce) else ()


def walk_terms(t: ScalarTerm) -> Iterator[ScalarTerm]:
    """Yield all subterms, shared ones once."""
    seen: set[int] = set()
    todo: list[ScalarTerm] = [t]
    while todo:
        t = todo.pop()
        if id(t) in seen:
            continue
        seen.add(id(t))
        yield t
        todo += parts_of(t)[::-1]


def free_of(t: ScalarTerm) -> frozenset[str]:
    """The names of sizes and index variables in a term that no reduction in it binds; variables are bound once."""
    free, bound = set[str](), set[str]()
    for x in walk_terms(t):
        if isinstance(x, Read):
            free |= {name for p in x.index for name in p.vars}
        elif isinstance(x, Integer):
            free |= x.value.vars
        elif isinstance(x, Where):
            free |= x.guard.vars
        elif isinstance(x, Reduce):
            free |= x.size.vars
            bound.add(x.var)
    return frozenset(free - bound)


def reductions(t: ScalarTerm) -> frozenset[str]:
    """The kinds of reduction that occur in a term."""
    return frozenset(x.kind for x in walk_terms(t) if isinstance(x, Reduce))


def functions(t: ScalarTerm) -> frozenset[str]:
    """The scalar functions that occur in a term."""
    return frozenset(x.fn for x in walk_terms(t) if isinstance(x, Apply))
