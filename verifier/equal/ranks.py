"""The ranks that have to be proved so that a rule holds for every rank.

*Plain* roles.  No op attaches attributes to them, reverses, splits, merges or folds over them: their index is only
copied, shared or summed over.  Any bijection of the index set of such a role preserves both sides, so r axes of sizes
n1..nr behave as one axis of size n1*...*nr and no axis as one axis of size 1.  The rank-1 proof at all sizes is the
proof for every rank.  A product over the role (`count`) is invariant too.

*Attribute* roles.  Every op treats the axes of the role alike and independently, so premises are conjunctions "for all
axes".  Each verification condition compares weights that are Boolean combinations of k atoms "for all axes of the
role: ...".  A counterexample of rank R > k keeps, for each false atom, one axis that makes it false, and restricts to
those at most k axes.  True atoms stay true and false ones false, so the weights still differ.  Hence ranks 0..k prove
all ranks.  k is counted from the conditions actually compared (`Context.forall`).  There is one atom per distinct
conjunction (the guards and coordinate equations of a monomial), and one per distinct conjunction inside a disjunctive
guard (its complement).  Equations that all monomials share hold wherever the weights differ and need no witness.  Goals
are conjunctions over axes: one axis suffices.

The certificate states the highest rank tried instead of "any" in three cases: weights are not Boolean in the role (a
window position counted rather than read), a product over the role occurs, or the count exceeds `MAX_RANK`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rewrites.language.term import Rule, TokenExpr, subterms, windows

MAX_RANK = 3
ANY = "any"


def attribute_roles(rule: Rule) -> tuple[str, ...]:
    """Many-axis roles whose axes carry attributes, are reversed, split, merged or folded over."""
    busy: set[str] = set()
    for t in subterms((*rule.lhs, *rule.rhs)):
        busy |= {r for r, _ in windows(t)}
        if t.op in ("rev", "split", "merge"):
            busy |= set(t["over"])
        if t.op in ("fold", "stack"):
            busy.add(rule.owner[t["bound"]])
    for e in rule.cond:
        busy |= {rule.owner[n] for n in _names(e) if n in rule.owner}
    for role in list(rule.derived)[::-1]:  # a derived role makes its source an attribute role, too
        if role in busy:
            busy.add(rule.derived[role])
    return tuple(r for r in rule.roles if r in rule.many and r in busy and r not in rule.derived)


def _names(e: TokenExpr) -> Iterator[str]:
    if e[0] in ("v", "prod"):
        yield e[1]
    elif e[0] != "n":
        for x in e[1:]:
            yield from _names(x)


def uniform(rule: Rule, role: str) -> bool:
    """Whether no product over the role occurs: then every condition is stated axis by axis."""
    terms = list(subterms((*rule.lhs, *rule.rhs, *rule.given)))
    values = [t["value"] for t in terms if t.op == "lit"]
    attributes = [e for t in terms for _, exprs in windows(t) for e in exprs if e is not None]
    products = [e for e in (*values, *attributes, *rule.cond) for e in _products(e)]
    return not any(rule.owner.get(name) == role for name in products)


def _products(e: TokenExpr) -> Iterator[str]:
    if e[0] == "prod":
        yield e[1]
    elif e[0] not in ("n", "v"):
        for x in e[1:]:
            yield from _products(x)


def rank_vectors(roles: tuple[str, ...], low: int, high: int) -> list[dict[str, int]]:
    """All ranks 0..high of the roles in which some role exceeds `low` (-1: all of them), small ones first."""
    vectors = itertools.product(range(high + 1), repeat=len(roles))
    picked = [v for v in vectors if max(v, default=0) > low or (low < 0 and not v)]
    return [dict(zip(roles, v, strict=True)) for v in sorted(picked, key=sum)]
