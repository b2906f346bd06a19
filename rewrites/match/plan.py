"""What the left side of a rule demands of each role, computed once per rule.

The *signature* of a role is which tensors hold it and which ops of the pattern act on it; the matcher sorts the axes
that it meets into roles by comparing signatures.  A role may live in *parts* of the left side that nothing connects
(the free axes of two separate products): only the rule ties them together, so the matcher has to pair them up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rewrites.language.term import Expr, Rule, Term, roles_of, stem, subterms, touched, windows


@dataclass(frozen=True, slots=True)
class Acts:
    """What one pattern op does: roles it acts on as a set, roles with attributes, tensors below it."""

    over: frozenset[str]
    windows: Mapping[str, tuple[Expr | None, ...]]
    under: frozenset[str]


@dataclass(frozen=True, slots=True)
class MatchPlan:
    """Signatures of the left side.

    Attributes:
        roles: roles that occur on the left side; of many-axis roles that nothing tells apart only the first.
        holders: role -> tensors of the left side that hold it.
        parts: role -> tensors tied together by the left side, one set per unconnected part.
        token: tensor -> role -> size token.
        acts: op term of the left side -> what it does.
        watched: terms whose class a `prefer single(...)` asks for.
    """

    roles: tuple[str, ...]
    holders: Mapping[str, frozenset[str]]
    parts: Mapping[str, tuple[frozenset[str], ...]]
    token: Mapping[str, Mapping[str, str]]
    acts: Mapping[Term, Acts]
    watched: frozenset[Term]


def plan_of(rule: Rule) -> MatchPlan:
    """The plan of a rule, computed on first use."""
    plan = rule.cache.get("plan")
    if plan is None:
        plan = rule.cache["plan"] = _make(rule)
    return plan


def _make(rule: Rule) -> MatchPlan:
    terms = subterms(rule.lhs)
    used = {t["name"] for t in terms if t.op == "var"}
    present = {r for t in terms for r in (*roles_of(rule.vars, t), *touched(t))}
    roles = tuple(r for r in rule.roles if r in present)
    return MatchPlan(
        roles=_distinct(rule, roles),
        holders={r: frozenset(v for v in used if r in map(stem, rule.vars[v])) for r in rule.roles},
        parts={r: _parts(rule, r) for r in roles},
        token={v: {stem(t): t for t in tokens} for v, tokens in rule.vars.items()},
        acts={t: _acts(t) for t in terms},
        watched=frozenset(t for e in rule.prefer for t in _watched(e)),
    )


def _distinct(rule: Rule, roles: tuple[str, ...]) -> tuple[str, ...]:
    """Drop a many-axis role that has the same tensors and is acted on by the same ops as an earlier one."""
    terms = subterms(rule.lhs + rule.rhs)
    seen: set[tuple[object, ...]] = set()
    out: list[str] = []
    for r in roles:
        tokens = tuple(frozenset(t for t in ts if stem(t) == r) != frozenset() for ts in rule.vars.values())
        plain = not any(r in dict(windows(t)) for t in terms) and len({t for t in rule.sizes if stem(t) == r}) == 1
        signature = (tokens, tuple(r in t.get("over", ()) for t in terms))
        if r in rule.many and plain and r not in rule.extras:
            if signature in seen:
                continue
            seen.add(signature)
        out.append(r)
    return tuple(out)


def _acts(t: Term) -> Acts:
    under = frozenset(u["name"] for u in subterms((t,)) if u.op == "var")
    return Acts(frozenset(t.get("over", ())), dict(windows(t)), under)


def _parts(rule: Rule, role: str) -> tuple[frozenset[str], ...]:
    """Tensors whose axes of a role the left side itself ties together."""
    parent: dict[str, str] = {}

    def find(x: str) -> str:
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    def visit(t: Term) -> str | None:
        if t.op == "var":
            name: str = t["name"]
            return find(name) if role in map(stem, rule.vars[name]) else None
        below = [c for c in map(visit, t.args) if c is not None]
        for c in below[1:]:
            parent[find(c)] = find(below[0])
        if not below or (t.op in ("dot", "red", "conv", "take") and role in t["over"]):
            return None
        return below[0]

    for root in rule.lhs:
        visit(root)
    groups: dict[str, set[str]] = {}
    for name in list(parent):
        groups.setdefault(find(name), set()).add(name)
    return tuple(frozenset(g) for g in groups.values())


def _watched(e: Expr) -> list[Term]:
    if e[0] == "single":
        return [e[1]]
    inner: list[Expr] = [x for x in e[1:] if isinstance(x, tuple)]
    return [t for x in inner for t in _watched(x)]
