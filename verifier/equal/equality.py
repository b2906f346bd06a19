"""Equality of two scalars: the strongest laws that suffice, and what the proof then assumes.

Exact laws first, then those of fields, then points (order and premises about values, by the solver), then laws under
which the range of a type may be left; for integers alone, the laws of rings and then the integers of a machine.  A
right side must divide by nothing new that may be zero and leave the domain of no function.  Rules and statements share
this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superopt.ir.ops.table import PARTIAL
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.denominators import outside, undischarged
from verifier.equal.elementary import Elementary
from verifier.equal.integers import ALWAYS, IN_RANGE, equal_integers, integral
from verifier.equal.labels import INF, infinite
from verifier.equal.monomial import NF, Atom, Unsupported
from verifier.equal.normal import EXACT, RANGE, REAL
from verifier.equal.pointwise import Premise, equal_pointwise
from verifier.equal.ranks import MAX_RANK
from verifier.equal.scales import Scaled, nonnegative
from verifier.equal.solver import CannotLower, Context
from verifier.equal.terms import Apply, Const, Reduce, Size, Term, functions, reductions, walk_terms
from verifier.equal.weights import equal
from verifier.verdict import UNKNOWN, UNSUPPORTED

if TYPE_CHECKING:
    from verifier.rules.instance import RankInstance

DEFINED = "the left side is defined:"
POSITIONS = "positions and their sums are in the range of the type"
NO_OVERFLOW = "no operation on integers overflows"
QUICK = 200_000  # steps for the question whether a rule of floats holds of integers, too
ORDER = (EXACT, REAL, RANGE)
"""Classes of exactness, the strongest first."""
_RING = frozenset({"add", "sub", "mul", "neg", "square", "select_n", "max", "min", "and", "or", "not", "xor"})


@dataclass
class Proof:
    """What a proof gathers over its instances."""

    laws: int = 0
    tiers: dict[str, None] | None = None
    assumptions: dict[str, None] | None = None
    integers: bool = True
    obligations: int = 0
    queries: int = 0
    forall: int = 0
    counted: frozenset[str] = frozenset()
    sizes: tuple[tuple[str, int], ...] = ()
    failed: RankInstance | None = None

    def note(self, laws: str, tier: str) -> None:
        """Laws that were used, and where."""
        self.laws = max(self.laws, ORDER.index(laws))
        self.tiers = {**(self.tiers or {}), tier: None}

    def assume(self, text: str) -> None:
        """Something that the certificate must say."""
        self.assumptions = {**(self.assumptions or {}), text: None}


class Stop(Exception):
    """A proof that cannot go on; carries status and cause."""

    def __init__(self, status: str, cause: str) -> None:
        super().__init__(cause)
        self.status, self.cause = status, cause


def equal_terms(
    ctx: Context,
    left: Term,
    right: Term,
    facts: tuple[Cond, ...],
    done: Proof,
    given: Sequence[Premise] = (),
    dtype: str = "",
    *,
    machine: bool = False,
) -> None:
    """Prove that two scalars are equal under the facts, by the strongest laws that suffice.

    Args:
        ctx: premises about sizes.
        left, right: the scalars.
        facts: conditions on the index.
        done: what the proof gathers.
        given: premises about values.
        dtype: `int` for integers alone.
        machine: integers have a width: what holds of integers without bounds alone is not proved.

    Raises:
        Stop: they are not proved equal; holds the causes.
    """
    done.obligations += 1
    causes: list[str] = []
    for laws in ORDER:
        if dtype == "int" and not _ring_safe(laws, left, right):
            continue
        if _by_normal_form(ctx, laws, left, right, facts, done, causes, dtype, given):
            if not _ring_safe(laws, left, right):
                done.integers = done.integers and _by_integers(ctx, left, right, facts, given, causes, dtype) == ALWAYS
            break
        if laws == REAL and dtype != "int" and _by_points(ctx, left, right, facts, causes, given):
            done.note(REAL, "pointwise")
            done.integers = done.integers and _by_integers(ctx, left, right, facts, given, causes, dtype) == ALWAYS
            ctx.forall = max(ctx.forall, MAX_RANK + 1)  # the count of ranks.py is that of normal forms
            break
    else:
        range_of_proof = _by_integers(ctx, left, right, facts, given, causes, dtype) if dtype == "int" else ""
        if machine and range_of_proof == IN_RANGE:
            causes, range_of_proof = ["it holds of integers without bounds; machine integers may overflow"], ""
        if range_of_proof:
            if range_of_proof != ALWAYS:
                done.assume(NO_OVERFLOW)
            if any(isinstance(x, Size) for side in (left, right) for x in walk_terms(side)):
                done.assume(POSITIONS)
            done.note(EXACT, "integers")
            ctx.forall = max(ctx.forall, MAX_RANK + 1)
            return
        unsupported_only = all(x.startswith("unsupported") for x in causes) and causes
        raise Stop(UNSUPPORTED if unsupported_only else UNKNOWN, "; ".join(dict.fromkeys(causes + ctx.notes[-2:])))
    if laws != EXACT:
        _nonempty_maxima(ctx, left, right, facts, done)


def _by_normal_form(
    ctx: Context,
    laws: str,
    left: Term,
    right: Term,
    facts: tuple[Cond, ...],
    done: Proof,
    causes: list[str],
    dtype: str,
    given: Sequence[Premise],
) -> bool:
    normal = Scaled(ctx, laws, positive_entries=nonnegative(ctx, given, facts))
    try:
        p = normal.nf(left)
        met = normal.records
        divided, inverted, partial = list(met.denominators), list(met.inverted), list(met.partial)
        q = normal.nf(right)
        _check_infinities(p, q)
        if not equal(ctx, p, q, facts) and not _equal_fractions(normal, p, q, facts):
            return False
    except Unsupported as why:
        if laws != EXACT:
            causes.append(f"unsupported: {why}")
        return False
    nonzero = [*inverted, *normal.positive(partial)]
    new = undischarged(ctx, met.denominators[len(divided) :], nonzero, facts)
    if new:
        causes.append(f"the right side divides by {'; '.join(new)}, which may be zero")
        return False
    wild = outside(ctx, met.partial[len(partial) :], partial, facts)
    if wild and laws != EXACT:
        causes.append(f"the right side has {'; '.join(wild)}, which may be undefined where the left side is not")
        return False
    for divisor in undischarged(ctx, divided, (), facts):
        done.assume(f"{DEFINED} {divisor} is not zero")
    if partial:
        done.assume(f"{DEFINED} arguments of {', '.join(sorted({_function(a) for a, _ in partial}))} are in the domain")
    done.note(EXACT if dtype == "int" else laws, f"normal form ({laws})")
    return True


def _equal_fractions(normal: Elementary, p: NF, q: NF, facts: tuple[Cond, ...]) -> bool:
    """Are two sums equal when both are multiplied by what they divide by?"""
    if normal.laws == EXACT:
        return False
    cleared = normal.cleared(p, q)
    return cleared != (p, q) and equal(normal.ctx, *cleared, facts)


def _function(a: Atom) -> str:
    return a.label.partition("(")[0].partition("#")[0]


def _check_infinities(*ps: NF) -> None:
    for p in ps:
        if not infinite(p):
            continue
        signs = {m.coef for m in p if any(a.label == INF for a in m.atoms)}
        plain = all(len(m.atoms) == 1 and not m.binders for m in p if any(a.label == INF for a in m.atoms))
        if len(signs) != 1 or not plain:
            raise Unsupported("arithmetic on an infinity")


def _ring_safe(laws: str, left: Term, right: Term) -> bool:
    """Does a proof hold in integers that wrap: ring laws, integer constants, no negation with order or division."""
    used = functions(left) | functions(right)
    kinds = reductions(left) | reductions(right)
    order = kinds & {"max", "min"} or used & {"max", "min", "lt", "le", "gt", "ge", "clamp"}
    constants = {x.value for side in (left, right) for x in walk_terms(side) if isinstance(x, Const)}
    if (order or "div" in used) and (used & {"neg", "sub"} or any(k < 0 for k in constants)):
        return False
    if any(k.denominator != 1 for k in constants):
        return False
    if order and laws != EXACT and used & {"add", "mul", "square"}:
        return False  # sums keep their order only where nothing wraps
    return laws == EXACT or (laws == REAL and all(f in _RING or f.startswith("$") for f in used))


def _by_integers(
    ctx: Context,
    left: Term,
    right: Term,
    facts: tuple[Cond, ...],
    given: Sequence[Premise],
    causes: list[str],
    dtype: str,
) -> str:
    if reductions(left) or reductions(right) or not integral(left, right):
        return ""
    if not dtype and "div" in functions(left) | functions(right):
        return ""  # a rule of quotients is one of floats unless it says so
    steps, ctx.rlimit = ctx.rlimit, ctx.rlimit if dtype else QUICK
    try:
        return equal_integers(ctx, left, right, facts, given)
    except CannotLower as why:
        causes.append(f"integers: {why}")
        return ""
    finally:
        ctx.rlimit = steps


def _by_points(
    ctx: Context,
    left: Term,
    right: Term,
    facts: tuple[Cond, ...],
    causes: list[str],
    given: Sequence[Premise],
) -> bool:
    if any(map(_may_be_undefined, (*walk_terms(left), *walk_terms(right)))):
        return False  # this tier keeps no record of where a value is defined
    try:
        return equal_pointwise(ctx, left, right, facts, given)
    except CannotLower as why:
        if not reductions(left) and not reductions(right):
            causes.append(f"pointwise: {why}")
        return False


def _may_be_undefined(t: Term) -> bool:
    """A function that is not defined everywhere, unless its argument is positive as it stands."""
    if not isinstance(t, Apply) or t.fn.partition("[")[0] not in PARTIAL:
        return False
    if t.fn == "div":
        return not isinstance(t.args[1], Const) or not t.args[1].value
    return t.fn not in ("log", "log1p", "sqrt", "rsqrt") or not _is_positive(t.args[0])


def _is_positive(t: Term) -> bool:
    if isinstance(t, Const):
        return t.value > 0
    if isinstance(t, Apply) and t.fn in ("add", "mul"):
        return all(map(_is_positive, t.args))
    return isinstance(t, Apply) and t.fn in ("exp", "logistic")


def _nonempty_maxima(ctx: Context, left: Term, right: Term, facts: tuple[Cond, ...], done: Proof) -> None:
    """Beyond the exact class, a maximum over an empty range (infinite) must be ruled out or is an assumption."""
    for t in (*walk_terms(left), *walk_terms(right)):
        if isinstance(t, Reduce) and t.kind in ("max", "min") and not ctx.holds(c.ge(t.size, 1), facts):
            done.assume("maxima and minima are over non-empty ranges")
