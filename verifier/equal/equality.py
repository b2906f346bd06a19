"""Equality of two scalars, proved by the strongest laws that suffice, with the assumptions of the proof.

Exact laws come first, then field laws, then the pointwise tier (order and premises about values, by the solver), then
laws under which values may overflow.  For integers alone these are ring laws and then machine integers.  The right side
must have no new divisor that may be zero and leave the domain of no function.  Rules and statements share this module.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from superopt.ir.scalar import ANGLES, COMPARISONS, LOGICAL, UNROUNDED
from superopt.ir.types import INTEGERS
from verifier.equal import conditions as c
from verifier.equal.classes import INF, infinite
from verifier.equal.conditions import Cond
from verifier.equal.definedness import NAN, outside, undischarged, without_nan
from verifier.equal.domains import Domains
from verifier.equal.inverses import InverseLaws
from verifier.equal.laws import LawNormaliser, nonnegative, nonzero_entries
from verifier.equal.monomial import NF, Atom, Unsupported
from verifier.equal.normal import BITWISE, EXACT, RANGE, REAL, steps
from verifier.equal.pointwise import ALWAYS, IN_RANGE, Premise, equal_integers, equal_pointwise, integral
from verifier.equal.ranks import MAX_RANK
from verifier.equal.solver import CannotLower, Context
from verifier.equal.terms import Apply, Const, Integer, Reduce, ScalarTerm, functions, reductions, walk_terms
from verifier.equal.weights import equal
from verifier.equal.written import written
from verifier.verdict import UNKNOWN, UNSUPPORTED

DEFINED = "the left side is defined:"
POSITIONS = "positions and their sums are in the range of the type"
BY_ROUNDING = "a comparison or a step reads values that are equal over the reals only, and rounding may decide it"
NO_OVERFLOW = "no operation on integers overflows"
QUICK = 200_000  # solver steps for the query whether a rule of floats also holds for integers
ORDER = (EXACT, REAL, RANGE)
"""Classes of exactness, the strongest first."""
_RING = LOGICAL | {"add", "sub", "mul", "neg", "select_n", "max", "min"}


@dataclass
class Proof:
    """Record of a proof, gathered over its instances: laws, tiers, assumptions, counts and suspects."""

    laws: int = 0
    tiers: dict[str, None] | None = None
    assumptions: dict[str, None] | None = None
    integers: bool = True
    obligations: int = 0
    queries: int = 0
    forall: int = 0
    counted: frozenset[str] = frozenset()
    sizes: tuple[tuple[str, int], ...] = ()
    changes: list[Any] = field(default_factory=list[Any])  # points where conditions change, at which proofs are tested
    suspects: list[Any] = field(default_factory=list[Any])  # points where the solver sees a difference
    directed: bool = False  # the right side comes in place of the left one, whose range may then be lost
    sums: list[dict[str, Any]] | None = None  # both sides of equations proved by normal forms, as JSON; None: not kept

    def note(self, laws: str, tier: str) -> None:
        """Record the laws and the tier that were used."""
        self.laws = max(self.laws, ORDER.index(laws))
        self.tiers = {**(self.tiers or {}), tier: None}

    def assume(self, text: str) -> None:
        """Record an assumption for the certificate."""
        self.assumptions = {**(self.assumptions or {}), text: None}


class Stop(Exception):
    """Raised when a proof cannot go on; carries status and cause."""

    def __init__(self, status: str, cause: str) -> None:
        super().__init__(cause)
        self.status, self.cause = status, cause


def equal_terms(
    ctx: Context,
    left: ScalarTerm,
    right: ScalarTerm,
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
        done: record of the proof.
        given: premises about values.
        dtype: `int` for integers that wrap, `mixed` where floats occur as well, else empty.
        machine: whether integers have a width; an equality of unbounded integers is then no proof.

    Raises:
        Stop: they are not proved equal; contains the causes.
    """
    done.obligations += 1
    asked = _Question(ctx, left, right, facts, tuple(given), dtype, done)
    for laws in ORDER:
        if dtype and not asked.ring_safe(laws):
            continue
        if asked.by_normal_form(laws) or (laws == REAL and asked.by_angles()):
            if not asked.ring_safe(laws):
                done.integers = done.integers and asked.by_integers() == ALWAYS
            break
        if laws == REAL and not dtype and asked.by_points():
            done.note(REAL, "pointwise")
            done.integers = done.integers and asked.by_integers() == ALWAYS
            ctx.forall = max(ctx.forall, MAX_RANK + 1)  # the rank argument of ranks.py covers normal forms only
            break
    else:
        causes = asked.causes
        if dtype != "int" and asked.decided_by_rounding():
            causes = [BY_ROUNDING]
            ctx.notes.clear()
        range_of_proof = asked.by_integers() if dtype == "int" else ""
        if machine and range_of_proof == IN_RANGE:
            causes, range_of_proof = ["it holds of integers without bounds; machine integers may overflow"], ""
        if range_of_proof:
            if range_of_proof != ALWAYS:
                done.assume(NO_OVERFLOW)
            if any(isinstance(x, Integer) for x in asked.subterms()):
                done.assume(POSITIONS)
            done.note(EXACT, "integers")
            ctx.forall = max(ctx.forall, MAX_RANK + 1)
            return
        unsupported_only = all(x.startswith("unsupported") for x in causes) and causes
        raise Stop(UNSUPPORTED if unsupported_only else UNKNOWN, "; ".join(dict.fromkeys(causes + ctx.notes[-2:])))
    if laws != EXACT:
        asked.assume_nonempty_maxima()


def equal_exactly(
    ctx: Context, left: ScalarTerm, right: ScalarTerm, facts: tuple[Cond, ...], done: Proof, dtype: str = ""
) -> bool:
    """Whether two scalars are proved equal under the facts by exact laws alone; arguments as for `equal_terms`."""
    done.obligations += 1
    asked = _Question(ctx, left, right, facts, (), dtype, done)
    return (not dtype or asked.ring_safe(EXACT)) and asked.by_normal_form(EXACT)


@dataclass
class _Question:
    """Two scalars to be proved equal, with facts and premises, and the causes of failure so far."""

    ctx: Context
    left: ScalarTerm
    right: ScalarTerm
    facts: tuple[Cond, ...]
    given: tuple[Premise, ...]
    dtype: str
    done: Proof
    causes: list[str] = field(default_factory=list[str])
    loose: bool = False  # comparisons and steps read exact real numbers; the result is then no proof

    def subterms(self) -> Iterator[ScalarTerm]:
        """The subterms of both sides."""
        return itertools.chain(walk_terms(self.left), walk_terms(self.right))

    def functions(self) -> frozenset[str]:
        """The scalar functions of both sides."""
        return functions(self.left) | functions(self.right)

    def reductions(self) -> frozenset[str]:
        """The kinds of reductions of both sides."""
        return reductions(self.left) | reductions(self.right)

    def by_angles(self) -> bool:
        """Whether the laws of sines and cosines of sums prove both sides equal over the reals."""
        return not self.functions().isdisjoint(ANGLES) and self.by_normal_form(REAL, angles=True)

    def by_normal_form(self, laws: str, *, angles: bool = False) -> bool:
        """Whether some laws prove both sides equal, with the right side defined wherever the left side is."""
        ctx, facts = self.ctx, self.facts
        bitwise = frozenset(kind for kind in self.reductions() if kind.startswith(BITWISE))
        normal = LawNormaliser(ctx, laws, loose=self.loose, bitwise=bitwise, angles=angles)
        normal.positive_entries = nonnegative(ctx, self.given, facts)
        try:
            with normal.replaced() if self.done.directed else nullcontext():
                p = normal.nf(self.left)
            met = normal.records
            divided, inverted, partial = list(met.denominators), list(met.inverted), list(met.partial)
            q = normal.nf(self.right)
            _check_infinities(p, q)
            added = (p, q) if equal(ctx, p, q, facts) else _equal_when_cleared(normal, p, q, facts)
            if added is None:
                return False
        except Unsupported as why:
            if laws != EXACT:
                self.causes.append(f"unsupported: {why}")
            return False
        premised = nonzero_entries(self.given)
        implied = InverseLaws(ctx, normal.labels, facts, nonzero=premised).implied(partial)
        nonzero = [*inverted, *normal.positive(partial), *implied, *premised]
        new = undischarged(ctx, met.denominators[len(divided) :], nonzero, facts)
        if new:
            self.causes.append(f"the right side divides by {'; '.join(new)}, which may be zero")
            return False
        wild = outside(ctx, met.partial[len(partial) :], [*partial, *implied], facts)
        if wild and laws != EXACT:
            text = f"the right side has {'; '.join(wild)}, which may be undefined where the left side is not"
            self.causes.append(text)
            return False
        free = [] if laws == EXACT else without_nan(ctx, [trail for a, trail in partial if a.label == NAN], _of_nan(p))
        if free is None:
            self.causes.append("the left side takes a NaN of its own for a number")
            return False
        for text in free:
            self.done.assume(f"{DEFINED} {text}")
        for divisor in undischarged(ctx, [d for d in divided if not _of_nan(d[0])], (), facts):
            self.done.assume(f"{DEFINED} {divisor} is not zero")
        names = sorted({_function(a) for a, _ in partial if a.label != NAN})
        if names:
            self.done.assume(f"{DEFINED} arguments of {', '.join(names)} are in the domain")
        self.done.note(EXACT if self.dtype == "int" else laws, f"normal form ({laws})")
        if self.done.sums is not None:
            self.done.sums.append(written(ctx, normal.labels, laws, (p, q), added))
        return True

    def ring_safe(self, laws: str) -> bool:
        """Whether a proof also holds for integers that wrap.

        It does with ring laws and integer constants, unless negation occurs together with order or division.
        """
        used = self.functions()
        order = self.reductions() & {"max", "min"} or used & {"max", "min", "lt", "le", "gt", "ge"}
        constants = {x.value for x in self.subterms() if isinstance(x, Const)}
        if (order or "div" in used) and (used & {"neg", "sub"} or any(k < 0 for k in constants)):
            return False
        if any(k.denominator != 1 for k in constants):
            return False
        if order and laws != EXACT and used & {"add", "mul"}:
            return False  # sums keep their order only where nothing wraps
        return laws == EXACT or (laws == REAL and all(f in _RING or _is_opaque(f) for f in used))

    def by_integers(self) -> str:
        """Where both sides are proved equal as integers: `ALWAYS`, `IN_RANGE`, or empty where it is not known."""
        ctx = self.ctx
        if self.reductions() or not integral(self.left, self.right):
            return ""
        if not self.dtype and "div" in self.functions():
            return ""  # a rule with quotients concerns floats, unless its dtype says otherwise
        steps, ctx.rlimit = ctx.rlimit, ctx.rlimit if self.dtype else QUICK
        try:
            return equal_integers(ctx, self.left, self.right, self.facts, self.given)
        except CannotLower as why:
            self.causes.append(f"integers: {why}")
            return ""
        finally:
            ctx.rlimit = steps

    def by_points(self) -> bool:
        """Whether the pointwise tier proves both sides equal over the reals.

        Sides with reductions or possibly undefined values are not tried.
        """
        defined = Domains(lambda g: self.ctx.holds(g, self.facts))
        if any(defined.may_fail(t) or (_is_rounded_step(t) and not self.loose) for t in self.subterms()):
            return False  # this tier keeps no record of where a value is defined, and treats arguments as real numbers
        try:
            return equal_pointwise(self.ctx, self.left, self.right, self.facts, self.given, loose=self.loose)
        except CannotLower as why:
            if not self.reductions():
                self.causes.append(f"pointwise: {why}")
            return False

    def decided_by_rounding(self) -> bool:
        """Whether both sides would be equal if comparisons and step functions read exact real numbers."""
        if not any(map(_reads_rounded, self.subterms())):
            return False
        again = replace(self, done=Proof(), causes=[], loose=True)
        return again.by_normal_form(REAL) or again.by_points() or again.by_normal_form(RANGE)

    def assume_nonempty_maxima(self) -> None:
        """Assume non-empty maxima unless they are proved so: beyond the exact class, an empty one is infinite."""
        sizes = [t.size for t in self.subterms() if isinstance(t, Reduce) and t.kind in ("max", "min")]
        if not all(self.ctx.holds(c.ge(n, 1), self.facts) for n in sizes):
            self.done.assume("maxima and minima are over non-empty ranges")


def _is_opaque(fn: str) -> bool:
    """Whether a function of integers is uninterpreted: only congruence is known of it."""
    return fn.startswith("$") or (fn.startswith("convert[") and all(x in INTEGERS for x in fn[8:-1].split(",")))


def _equal_when_cleared(normal: LawNormaliser, p: NF, q: NF, facts: tuple[Cond, ...]) -> tuple[NF, NF] | None:
    """Two sums without divisors that are sums and without products of inverses, if they are then proved equal."""
    if normal.laws == EXACT:
        return None
    ctx, notes = normal.ctx, len(normal.ctx.notes)
    fractions = normal.cleared(p, q)
    ways = [fractions] if fractions != (p, q) else []
    always = [
        a for a, trail in normal.records.partial if all(isinstance(g, Cond) and ctx.holds(g, facts) for g in trail)
    ]
    laws = InverseLaws(ctx, normal.labels, facts, everywhere=frozenset(always))
    for way in itertools.chain(ways, laws.cleared(*fractions)):
        if equal(ctx, *way, facts):
            del ctx.notes[notes:]
            return way
    del ctx.notes[notes + 2 :]
    return None


def _function(a: Atom) -> str:
    return a.label.partition("(")[0].partition("#")[0]


def _of_nan(p: NF) -> bool:
    """Whether a sum contains a NaN that the program makes itself."""
    return any(a.label == NAN for m in p for a in m.atoms)


def _check_infinities(*ps: NF) -> None:
    for p in ps:
        if not infinite(p):
            continue
        signs = {m.coef for m in p if any(a.label == INF for a in m.atoms)}
        plain = all(len(m.atoms) == 1 and not m.binders for m in p if any(a.label == INF for a in m.atoms))
        if len(signs) != 1 or not plain:
            raise Unsupported("arithmetic on an infinity")


def _reads_rounded(t: ScalarTerm) -> bool:
    """Whether a term is a comparison or a step function of a value that was rounded when it was computed."""
    if not isinstance(t, Apply) or not (t.fn in COMPARISONS or t.fn == "sign" or t.fn.startswith("?") or steps(t.fn)):
        return False
    names = {fn.partition("[")[0] for fn in functions(t)}
    return bool(reductions(t) - {"max", "min", "or", "and"}) or not names <= UNROUNDED | LOGICAL | {"convert", "narrow"}


def _is_rounded_step(t: ScalarTerm) -> bool:
    """Whether a term is a step function of a computed value, which rounding may have put on either side of a step."""
    names = {fn.partition("[")[0] for fn in functions(t)} if isinstance(t, Apply) and steps(t.fn) else set[str]()
    return not names <= UNROUNDED | LOGICAL | {"convert", "narrow"}
