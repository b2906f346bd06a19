"""Usable directions of a rule: computed, never declared.

`left == right` is one equation.  It can be used from left to right under two conditions.  Every variable,
meta-variable, size and attribute of the right side is bound by the left side.  The left side holds nothing that cannot
be matched (`sigma`, `lay`, `at`, `split`, `merge`, a count).  The same test on the swapped sides says whether it can be
used from right to left.  A direction also needs its own proof, since the new right side must be well formed.
"""

from __future__ import annotations

from dataclasses import dataclass

from rewrites.language.kinds import loose_iota
from rewrites.language.term import UNMATCHABLE, Rule, Term, TokenExpr, names_in, roles_of, subterms, touched, windows

_SQUARE = ("inverse", "solve")
"""Ops of square matrices."""


@dataclass(frozen=True, slots=True)
class Direction:
    """One reading of an equation: the rule that performs it, or the reason why there is none."""

    name: str
    rule: Rule | None
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {'usable' if self.rule else self.reason}"


def directions(rule: Rule) -> tuple[Direction, Direction]:
    """The forward and the backward reading of a rule; a backward one that cannot be used has a reason and no rule."""
    swapped = _swap(rule)
    reason = unusable(swapped)
    return Direction("forward", rule), Direction("backward", None if reason else swapped, reason or "")


def reverse(rule: Rule) -> Rule | None:
    """The rule read from right to left, or None where it cannot be used (see `directions` for the reason)."""
    return directions(rule)[1].rule


def _swap(rule: Rule) -> Rule:
    return Rule(
        name=f"{rule.name}-backward", where=rule.where, source=rule.source, vars=rule.vars, roles=rule.roles,
        many=rule.many, owner=rule.owner, sizes=rule.sizes, indices=rule.indices, metas=rule.metas,
        params=rule.params, extras=rule.extras, derived=rule.derived, kinds=rule.kinds, lhs=rule.rhs, rhs=rule.lhs,
        cond=rule.cond, prefer=(), mode="proof" if rule.mode == "proof" else "near", given=rule.given, dtype=rule.dtype,
        numerics=rule.numerics,
    )  # fmt: skip


def unusable(rule: Rule) -> str | None:
    """Why a rule cannot be used from left to right, or None."""
    left, right = subterms(rule.lhs), subterms(rule.rhs)
    if rule.mode == "proof":
        return None  # an equation that is proved, and never matched
    if rule.given and rule.numerics != "range":
        return "premises about values cannot be checked at a site"
    for root in rule.lhs:
        if root.op in ("var", "lit"):
            return "the left side is a bare variable: it would match everything"
    for t in left:
        if t.op in UNMATCHABLE:
            return f"{_spelled(t)} cannot be matched"
        if t.op == "iota" and loose_iota(rule):
            return "iota cannot be matched where neither a comparison of positions nor a take reads it"
        if t.op == "lit" and t["value"][0] != "n":
            return "count cannot be matched" if t["value"][0] == "prod" else "a computed integer cannot be matched"
    if not rule.cond and any(t.op in _SQUARE for t in right) and not any(t.op in _SQUARE for t in left):
        return "the right side inverts a matrix, and nothing on the left side says that it is square"
    have, want = _tensors(left), _tensors(right)
    for kind, a, b in (("", have, want), ("", _metas(rule, left), _metas(rule, right))):
        for name in sorted(b - a):
            return f"{kind}{name} is not bound on the left side"
    for param in rule.params:
        if any(param in names for names, _ in map(_integers, left)):
            return f"{param} is a free parameter and stands on the left side"
    return _unbound_integers(rule, left, right)


def _unbound_integers(rule: Rule, left: list[Term], right: list[Term]) -> str | None:
    """Return which integers or role the left side leaves unbound, in words; None where all are bound."""
    alone: set[str] = {t for x in left if x.op == "var" for t in rule.vars[x["name"]]}
    used: set[str] = set()
    roles: set[str] = set()
    for t in left:
        names, bare = _integers(t)
        used |= names
        alone |= bare
        roles |= set(roles_of(rule.vars, t)) | touched(t)
        if t.op in ("bcast", "iota", "segsum") and not t.get("like"):
            alone |= set(t["size"])
    for t in right:
        used |= _integers(t)[0]
        if t.op == "segsum" or (t.op == "bcast" and not t["like"]):
            used |= set(t["size"])
        for r in (set(roles_of(rule.vars, t)) | touched(t)) - roles - set(rule.derived):
            return f"the role {r} is not bound on the left side"
    for e in rule.cond:
        used |= names_in(e)
    free = used - alone - rule.indices - set(rule.params)
    return f"{', '.join(sorted(free))} not bound on the left side" if free else None


def _integers(t: Term) -> tuple[set[str], set[str]]:
    """Integer names that a term's own attributes use, and those among them that stand alone, which matching binds."""
    used: set[str] = set()
    alone: set[str] = set()
    for _, exprs in windows(t):
        for e in exprs:
            if e is not None:
                used |= names_in(e)
                if e[0] == "v":
                    alone.add(e[1])
    if t.op == "lit":
        value: TokenExpr = t["value"]
        used |= names_in(value)
    if t.op in ("fold", "stack"):
        used.add(t["bound"])
    return used, alone


def _tensors(ts: list[Term]) -> set[str]:
    return {t["name"] for t in ts if t.op == "var"}


def _metas(rule: Rule, ts: list[Term]) -> set[str]:
    names = {t["f"] for t in ts if t.op == "ew"} | {t["kind"] for t in ts if t.op == "red"}
    return names & set(rule.metas)


def _spelled(t: Term) -> str:
    return ("sigma" if t["kind"] == "sum" else "maxi") if t.op == "fold" else t.op
