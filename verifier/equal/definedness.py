"""Records of divisors and of values of partial functions, and checks that the right side is no less defined.

A value matters only where it is needed: a quotient in one branch of a choice says nothing about the other branch.  The
trail holds the conditions on indices and the Boolean atoms under which the present term is needed.

A NaN that a program makes itself (`where(n > 1, x / (n - 1), nan)`) is a value of a partial function, too.  Under field
laws it would be a number: 0 times it is 0.  The left side's own NaN are assumptions about sizes or inputs, and end the
proof where they are met whatever these are.

The right side may divide by nothing that could be zero where the left side is defined.  A divisor of the right side is
discharged when it is provably non-zero (a size known positive, an exponential, a sum of positive terms over a non-empty
range).  It is also discharged when the left side divides by the same value, since the left side is undefined where that
is zero.  The left side's own divisors are assumptions of the certificate unless provably non-zero.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.monomial import NF, Atom, Monomial, Trail, comparands
from verifier.equal.poly import Poly, const, of_data
from verifier.equal.solver import NO, Context

NAN = "nan()"
"""Label of a NaN that a program makes itself."""
ELSEWHERE = "NaN that it makes itself is not used"


@dataclass
class Definedness:
    """Divisors met by a normaliser, values known to be non-zero because of them, and values of partial functions."""

    denominators: list[tuple[NF, Trail, tuple[Atom, ...]]] = field(default_factory=list[Any], init=False)
    inverted: list[tuple[Atom, Trail]] = field(default_factory=list[Any], init=False)
    partial: list[tuple[Atom, Trail]] = field(default_factory=list[Any], init=False)
    trail: list[Any] = field(default_factory=list[Any], init=False)

    @contextmanager
    def under(self, *known: Cond | tuple[Atom, bool]) -> Generator[None]:
        """Context manager: values met inside the block are needed only where this holds."""
        self.trail += known
        try:
            yield
        finally:
            del self.trail[len(self.trail) - len(known) :]

    def conditions(self) -> tuple[Cond, ...]:
        """The conditions on indices under which the present term is needed."""
        return _conditions(tuple(self.trail))

    def divided_by(self, p: NF, atoms: Sequence[Atom]) -> None:
        """Record a divisor, and the values that are non-zero where it is."""
        trail = tuple(self.trail)
        self.denominators.append((p, trail, tuple(replace(a, exp=1) for a in atoms)))
        self.inverted += [(replace(a, exp=1), trail) for a in atoms]


def undischarged(
    ctx: Context,
    wanted: Sequence[tuple[NF, Trail, tuple[Atom, ...]]],
    given: Sequence[tuple[Atom, Trail]],
    facts: tuple[Cond, ...],
) -> list[str]:
    """Descriptions of the divisors among `wanted` that may be zero; `given` are values by which the other side divides.

    Each comes with its trail: a value by which the other side divides only elsewhere discharges nothing.
    """
    out: list[str] = []
    for p, trail, atoms in wanted:
        known = (*facts, *_conditions(trail))
        if not _nonzero(ctx, p, trail, given, known) and not _divided(ctx, p, atoms, trail, given, known):
            out.append(describe(p))
    return list(dict.fromkeys(out))


def outside(
    ctx: Context,
    wanted: Sequence[tuple[Atom, Trail]],
    given: Sequence[tuple[Atom, Trail]],
    facts: tuple[Cond, ...],
) -> list[str]:
    """Labels of the values of partial functions among `wanted` that the other side does not have."""
    out: list[str] = []
    for a, trail in wanted:
        ranges = (*facts, *_conditions(trail), *index_ranges(ctx, Monomial(atoms=(a,))))
        if not any(is_among(ctx, a, trail, b, ranges) for b in given):
            out.append(a.label)
    return list(dict.fromkeys(out))


def without_nan(ctx: Context, trails: Sequence[Trail], kept: bool) -> list[str] | None:
    """Conditions, as texts, under which no NaN of these trails is met; None where one is met for all sizes and inputs.

    At some positions alone it may be met, if it is `kept`: then the result is NaN there.
    """
    out: dict[str, None] = {}
    for trail in trails:
        met = c.conj(_conditions(trail))
        given = len(_conditions(trail)) < len(set(trail)) or any(map(of_data, comparands(met)))
        if not given and met.vars <= ctx.dims:
            if ctx.possible(c.negate(met)) == NO:
                return None
            if ctx.possible(met) != NO:
                out[str(c.negate(met))] = None
        elif given or kept:
            out[ELSEWHERE] = None
        else:
            return None
    return list(out)


def _conditions(trail: Trail) -> tuple[Cond, ...]:
    return tuple(dict.fromkeys(x for x in trail if isinstance(x, Cond)))


def _nonzero(ctx: Context, p: NF, trail: Trail, given: Sequence[tuple[Atom, Trail]], facts: tuple[Cond, ...]) -> bool:
    if len(p) == 1 and not p[0].binders and not p[0].guards:
        m = p[0]
        ranges = facts + index_ranges(ctx, m)
        sizes = all(ctx.holds(c.ne(q, 0), facts) for q, _ in m.sizes)
        return sizes and all(
            positive_atom(a) or any(is_among(ctx, a, trail, b, ranges) for b in given) for a in m.atoms
        )
    return positive_sum(ctx, p, facts)


def _divided(
    ctx: Context,
    p: NF,
    atoms: tuple[Atom, ...],
    trail: Trail,
    given: Sequence[tuple[Atom, Trail]],
    facts: tuple[Cond, ...],
) -> bool:
    """Whether a divisor that is a sum, with one atom for its value, is among the divisors of the other side."""
    ranges = facts + tuple(f for m in p for f in index_ranges(ctx, m))
    return len(atoms) == 1 and len(given) > 0 and any(is_among(ctx, atoms[0], trail, b, ranges) for b in given)


def positive_atom(a: Atom) -> bool:
    """Whether an atom is positive for every argument."""
    return a.label.startswith(("exp(", "exp#", "exp2(", "exp2#", "logistic(", "logistic#", "cosh("))


def positive_sum(ctx: Context, p: NF, facts: tuple[Cond, ...]) -> bool:
    """Whether all terms are non-negative and, at the lowest values of the binders, one is present and positive."""
    if any(m.coef <= 0 or not all(positive_atom(a) or a.exp % 2 == 0 for a in m.atoms) for m in p):
        return False
    if not all(ctx.holds(c.ge(q, 0), facts) for m in p for q, _ in m.sizes):
        return False
    ranges = facts + tuple(f for m in p for f in index_ranges(ctx, m))
    present: list[Cond] = []
    for m in p:
        if all(map(positive_atom, m.atoms)):
            origin = {b: const(0) for b in m.binders}
            present.append(c.conj([g.subst(origin) for g in m.guards] + [c.ge(q, 1) for q, _ in m.sizes]))
    return ctx.holds(c.disj(present), ranges)


def index_ranges(ctx: Context, m: Monomial) -> tuple[Cond, ...]:
    """Ranges of the index variables that are free in a monomial (they are bound further out)."""
    return ctx.facts_of(sorted(m.free() - ctx.dims))


def is_among(ctx: Context, a: Atom, trail: Trail, there: tuple[Atom, Trail], facts: tuple[Cond, ...]) -> bool:
    """Whether value `a` is among those recorded in `there`, and is needed only where one of them is.

    The variables of `there` range over their own index sets.
    """
    b, needed = there
    if a.label != b.label or len(a.args) != len(b.args):
        return False
    choice: dict[str, Poly] = {}
    for x, y in zip(a.args, b.args, strict=True):
        y = y.subst(choice)
        if x == y:
            continue
        for name in sorted(y.vars):
            n, lin = ctx.range_of(name), y.affine(name)
            if name.startswith("k!") and n is not None and lin is not None and lin[0].value in (1, -1):
                value = (x - lin[1]).scale(lin[0].value or 1)
                if all(ctx.holds(f, facts) for f in (c.ge(value, 0), c.lt(value, n))):
                    choice[name] = value
                    y = y.subst(choice)
                    break
        if not ctx.holds(c.eq(x, y), facts):
            return False
    return all(_known(ctx, x, choice, trail, facts) for x in needed)


def _known(
    ctx: Context, x: Cond | tuple[Atom, bool], choice: dict[str, Poly], trail: Trail, facts: tuple[Cond, ...]
) -> bool:
    """Whether a condition of the other side's trail holds where the value is needed."""
    if isinstance(x, Cond):
        return ctx.holds(x.subst(choice), facts)
    atom, truth = x[0].subst(choice), x[1]
    return any(
        not isinstance(y, Cond)
        and y[1] == truth
        and y[0].label == atom.label
        and all(p == q or ctx.holds(c.eq(p, q), facts) for p, q in zip(y[0].args, atom.args, strict=True))
        for y in trail
    )


def describe(p: NF) -> str:
    """A divisor as text for messages: the inputs and sizes in it."""
    names = sorted({a.label for m in p for a in m.atoms} | {str(q) for m in p for q, _ in m.sizes})
    return " and ".join(names) or "a constant"
