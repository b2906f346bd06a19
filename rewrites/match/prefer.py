"""Evaluating `prefer`: conditions that steer the engine and are no part of the proof.

`frozen(A)` and `live(A)` ask whether a tensor is known ahead of time, `single(term)` whether it has one reader;
comparisons of sizes hold when they hold at every axis of the role that they speak of.
"""

from __future__ import annotations

from rewrites.language.named import Env
from rewrites.language.term import Expr, Rule, Term
from rewrites.match.space import Class, Space
from rewrites.match.walk import WalkState


def unpreferred(rule: Rule, space: Space, env: Env, s: WalkState) -> Expr | None:
    """The first `prefer` condition that does not hold for a binding; of a conjunction, the part that does not."""
    for e in rule.prefer:
        if not _holds(e, space, env, s):
            while e[0] == "and":
                e = e[2] if _holds(e[1], space, env, s) else e[1]
            return e
    return None


def _holds(e: Expr, space: Space, env: Env, s: WalkState) -> bool:
    op = e[0]
    if op == "and":
        return _holds(e[1], space, env, s) and _holds(e[2], space, env, s)
    if op == "or":
        return _holds(e[1], space, env, s) or _holds(e[2], space, env, s)
    if op == "not":
        return not _holds(e[1], space, env, s)
    if op == "frozen":
        return space.frozen(s.vars[e[1]][0])
    if op == "live":
        return not space.frozen(s.vars[e[1]][0])
    if op == "single":
        cls = _class_of(e[1], s)
        return cls is not None and space.readers(cls) <= 1
    return all(env.value(e, label) for label in env.axes_of(e))


def _class_of(t: Term, s: WalkState) -> Class | None:
    return s.vars[t["name"]][0] if t.op == "var" else s.watched.get(t)
