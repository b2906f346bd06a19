"""Equality outside a box: the indices at which a false equation does hold.

Rewrites such as "convolve two halves of an image apart" are wrong only near the seam (PET, OSDI 2021, calls such
programs partially equivalent and corrects them there).  For every axis of the result this finds the largest `low` and
the least `high` for which the equation is *proved* at all indices below `low` and from `high` on.  An index that
differs lies in [low, high) along every axis.  The product of these intervals is the failing box, with bounds in terms
of the sizes.

Candidates for bounds are the places where a condition on the index changes, at both ends of the ranges of bound
variables.  Roles with a star are taken at rank 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rewrites.language.term import Rule
from verifier.equal import conditions as c
from verifier.equal.algebra import Terms
from verifier.equal.conditions import Cond, unwrap
from verifier.equal.equality import Proof, Stop, equal_terms
from verifier.equal.poly import Poly, const, var
from verifier.equal.solver import Context
from verifier.equal.terms import Reduce, ScalarTerm, Where, walk_terms
from verifier.rules.instance import IllFormed, RankInstance, instantiate, output, symbolic


@dataclass(frozen=True, slots=True)
class SizeInterval:
    """The indices low .. high - 1 along one axis of the result, which has `size` entries."""

    axis: str
    low: Poly
    high: Poly
    size: Poly

    @property
    def everything(self) -> bool:
        """Whether nothing is proved along this axis."""
        return self.low == const(0) and self.high == self.size

    def __str__(self) -> str:
        return re.sub(r"@[\w.]+", "", f"{self.axis} in [{self.low}, {self.high})")


@dataclass(frozen=True, slots=True)
class FailureBox:
    """The indices at which an equation may fail; elsewhere it is proved, for all sizes that meet the premises.

    Attributes:
        intervals: one per axis of the result along which something is proved; empty where it is proved everywhere.
        holds: the equation is proved everywhere, so that the box is empty.
    """

    intervals: tuple[SizeInterval, ...]
    holds: bool = False

    def contains(self, index: dict[str, int], sizes: dict[str, int]) -> bool:
        """Whether an index of the result is in the box at given sizes and attributes."""
        at = {name: const(n) for name, n in sizes.items()}

        def value(p: Poly) -> int:
            value = p.subst(at).value
            if value is None:
                raise ValueError(f"{p} needs more sizes than {sorted(sizes)}")
            return value

        return not self.holds and all(value(x.low) <= index[x.axis] < value(x.high) for x in self.intervals)

    def __str__(self) -> str:
        return "nowhere" if self.holds else " and ".join(map(str, self.intervals)) or "anywhere"


def failing_box(rule: Rule, root: int = 0) -> FailureBox:
    """The box outside which an equation is proved.

    Raises:
        IllFormed: a side has no shape, or the right side is not proved to be well formed and of the left's shape.
        NotImplementedError: an op without a meaning in the prover.
    """
    instance = instantiate(rule, {})
    ctx = instance.ctx
    for goal in instance.goals[root]:
        if not ctx.holds(goal):
            raise IllFormed(f"the right side may be ill-formed: {goal} does not follow")
    meaning = symbolic(instance, {})
    index, facts = output(meaning, instance.shapes[root])
    left, right = meaning.at(rule.lhs[root], index), meaning.at(rule.rhs[root], index)
    if _equal(ctx, left, right, facts):
        return FailureBox((), holds=True)
    sizes = _example(instance)
    out: list[SizeInterval] = []
    for label, size in instance.shapes[root].items():
        position = index[label].p
        if position.value is not None:
            continue
        (name,) = position.vars
        size = unwrap(size).subst(meaning.k.settled)
        interval = _interval(meaning.k, (left, right), facts, name, size, sizes)
        if not interval.everything:
            out.append(SizeInterval(str(label).partition(".")[0], interval.low, interval.high, interval.size))
    return FailureBox(tuple(out))


def _interval(
    k: Terms, sides: tuple[ScalarTerm, ScalarTerm], facts: tuple[Cond, ...], name: str, size: Poly, at: dict[str, Poly]
) -> SizeInterval:
    ctx, o = k.ctx, var(name)
    places = sorted(set(_thresholds(k, sides, name)), key=lambda p: (_value(p, at), str(p)))
    low = next((p for p in reversed(places) if _equal(ctx, *sides, (*facts, c.lt(o, p)))), const(0))
    high = next((p for p in places if _equal(ctx, *sides, (*facts, c.ge(o, p)))), size)
    return SizeInterval(name, low, high, size)


def _thresholds(k: Terms, sides: Sequence[ScalarTerm], name: str) -> Iterator[Poly]:
    """Indices at which a condition changes, with bound variables at the ends of their ranges."""
    bound = {t.var: t.size for side in sides for t in walk_terms(side) if isinstance(t, Reduce)}
    for side in sides:
        for t in walk_terms(side):
            if isinstance(t, Where):
                for p in _compared(t.guard):
                    lin = p.affine(name)
                    if lin is None or lin[0].value not in (1, -1):
                        continue
                    rest = lin[1].scale(-(lin[0].value or 1))
                    for end in _ends(rest, bound):
                        end = end.subst(k.settled)
                        if end.vars <= k.ctx.dims:
                            yield from (end, end + 1)


def _compared(g: Cond) -> Iterator[Poly]:
    if g.poly is not None:
        yield g.poly
    for x in g.args:
        yield from _compared(x)


def _ends(p: Poly, bound: dict[str, Poly]) -> list[Poly]:
    out = [p]
    for k in sorted(p.vars & set(bound)):
        out = [q.subst({k: end}) for q in out for end in (const(0), bound[k] - 1)]
    return out


def _example(instance: RankInstance) -> dict[str, Poly]:
    """Sizes at which bounds are compared to order them, large ones if there are any."""
    for least in (7, 3, 1, 0):
        example = instance.ctx.model([c.ge(unwrap(n), least) for n in _free(instance)])
        if example is not None:
            return {k: const(v) for k, v in example.items()}
    return {}


def _free(instance: RankInstance) -> list[Any]:
    """Size variables that no premise fixes."""
    fixed = {v for p in instance.ctx.premises if p.kind == "eq" for v in p.vars}
    return [n for n in instance.env.tok.values() if not unwrap(n).vars & fixed]


def _value(p: Poly, at: dict[str, Poly]) -> int:
    return p.subst(at).value or 0


def _equal(ctx: Context, left: ScalarTerm, right: ScalarTerm, facts: tuple[Cond, ...]) -> bool:
    notes = len(ctx.notes)
    try:
        equal_terms(ctx, left, right, facts, Proof())
    except Stop:
        del ctx.notes[notes:]
        return False
    return True
