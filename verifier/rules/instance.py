"""A rule at given ranks, with symbolic sizes and attributes: what one proof is about.

Every role gets its axes; every (size token, axis), (attribute, axis) and free parameter becomes a variable.  Premises
are: sizes >= 0, parameters >= 1, the rule's `if` conditions, well-formedness of all left sides.  Right sides contribute
goals: well-formedness, positive divisors, shapes equal to the left's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rewrites.language.named import Env, NamedShape, shape
from rewrites.language.term import Expr, Rule, Term, names_in, subterms, windows
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond, Sym, arithmetic, unwrap
from verifier.equal.poly import Poly, const, var
from verifier.equal.solver import Context
from verifier.equal.terms import Symbolic


class IllFormed(Exception):
    """A side that cannot be given a shape at these ranks; the message says why."""


class Impossible(IllFormed):
    """The left side has no shape at these ranks, whatever the sizes are: it divides by zero."""


@dataclass(frozen=True, slots=True)
class RankInstance:
    """One rule at fixed ranks.

    Attributes:
        ctx: solver context with the premises.
        env: axes, sizes and attributes.
        divisors: what the premises divide by is positive; must follow from the premises.
        goals: per root, conditions of the right side that must follow from the premises.
        shapes: per root, the named shape of the left side.
    """

    ctx: Context
    env: Env
    divisors: tuple[Cond, ...]
    goals: tuple[tuple[Cond, ...], ...]
    shapes: tuple[NamedShape, ...]


def axes(rule: Rule, ranks: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Role -> its axes; a derived role has as many as the role it is derived from."""
    out: dict[str, tuple[str, ...]] = {}
    for role in rule.roles:
        if role not in rule.many:
            out[role] = (role,)
            continue
        source = role
        while source in rule.derived:
            source = rule.derived[source]
        out[role] = tuple(f"{role}.{i}" for i in range(ranks.get(source, 1)))
    return out


def instantiate(rule: Rule, ranks: Mapping[str, int]) -> RankInstance:
    """The rule at the given ranks of its many-axis roles (1 where none is given).

    Raises:
        IllFormed: a side has no shape at these ranks.
    """
    ctx = Context()
    labels = axes(rule, ranks)
    tok: dict[tuple[str, Any], Any] = {}
    attr: dict[tuple[str, Any], Any] = {}
    for name, role in rule.owner.items():
        if name in rule.indices:
            continue
        for label in labels[role]:
            variable = f"{name}@{label}" if label != name else name
            ctx.dims.add(variable)
            if name in rule.sizes:
                tok[(name, label)] = Sym(var(variable))
                ctx.premises.append(c.ge(var(variable), 0))
            else:
                attr[(name, label)] = Sym(var(variable))
    params: dict[str, Any] = {}
    for name in rule.params:
        ctx.dims.add(name)
        params[name] = Sym(var(name))
        if rule.params[name]:  # a constant of the program may be any integer
            ctx.premises.append(c.ge(var(name), 1))
    divisors: list[Cond] = []
    env = Env(rule, labels, tok, attr, params, arithmetic(divisors.append))
    wf: list[Any] = _conditions(env)
    lefts = [_left(t, env, wf) for t in rule.lhs]
    ctx.premises += _distinct(wf)
    positive = tuple(_distinct(divisors))
    goals: list[tuple[Cond, ...]] = []
    for left, t in zip(lefts, rule.rhs, strict=True):
        divisors.clear()
        wanted: list[Any] = []
        right = _shape(t, env, wanted)
        for part in subterms((t,)):
            if part.op in ("fold", "stack"):
                wanted += _fold_goals(part, env)
        if set(left) != set(right):
            raise IllFormed(f"the sides have the axes {sorted(map(str, left))} and {sorted(map(str, right))}")
        same = [c.eq(unwrap(left[label]), unwrap(right[label])) for label in left]
        goals.append(tuple(_distinct([*divisors, *wanted, *same])))
    return RankInstance(ctx, replace(env, arith=arithmetic(_ignore)), positive, tuple(goals), tuple(lefts))


def _ignore(_: Cond) -> None:
    """Divisors met while evaluating are those that were collected as premises and goals."""


def _distinct(conds: Iterable[Any]) -> list[Cond]:
    return list(dict.fromkeys(x for g in conds for x in c.clauses(c.truth(g))))


def _conditions(env: Env) -> list[Any]:
    try:
        return list(env.conditions())
    except (KeyError, ZeroDivisionError, ValueError) as bad:
        raise IllFormed(f"a condition: {bad}") from bad


def _shape(t: Term, env: Env, wf: list[Any]) -> NamedShape:
    try:
        return shape(t, env, wf)
    except (KeyError, ZeroDivisionError, ValueError) as bad:
        raise IllFormed(f"{t.op}: {bad}") from bad


def _left(t: Term, env: Env, wf: list[Any]) -> NamedShape:
    try:
        return _shape(t, env, wf)
    except IllFormed as bad:
        if isinstance(bad.__cause__, ZeroDivisionError):
            raise Impossible(str(bad)) from bad
        raise


def _fold_goals(t: Term, env: Env) -> Iterator[Cond]:
    """The body of a fold has one shape for all values of the index: the two ends agree."""
    labels = env.labels[env.rule.owner[t["bound"]]]
    ends: list[NamedShape] = []
    for last in (False, True):
        at = {(t["idx"], x): env.look(t["bound"], x) - 1 if last else 0 for x in labels}
        ends.append(shape(t.args[0], env.with_attrs(at), []))
    for label in ends[0]:
        yield c.eq(unwrap(ends[0][label]), unwrap(ends[1][label]))


def unsupported(rule: Rule) -> str | None:
    """Why a rule is outside the prover's language, or None."""
    for t in subterms((*rule.lhs, *rule.rhs)):
        if t.op in ("fold", "stack"):
            for inner in subterms(t.args):
                for _, exprs in windows(inner):
                    if any(e is not None and not _affine(e, t["idx"]) for e in exprs):
                        return f"an attribute that is not affine in the fold index {t['idx']}"
        if t.op == "bcast" and t["like"] == () and any(s in rule.indices for s in t["size"]):
            return "a broadcast to the length of a fold index"
    return None


def _affine(e: Expr, name: str) -> bool:
    if name not in names_in(e):
        return True
    if e[0] == "v":
        return True
    if e[0] in ("+", "-"):
        return _affine(e[1], name) and _affine(e[2], name)
    return (
        e[0] == "*"
        and (name in names_in(e[1])) != (name in names_in(e[2]))
        and _affine(e[1], name)
        and _affine(e[2], name)
    )


def algebra(instance: RankInstance) -> Symbolic:
    """The symbolic algebra of an instance."""
    booleans = frozenset(v for v, kind in instance.env.rule.kinds.items() if kind == "bool")
    return Symbolic(instance.ctx.fresh, instance.ctx.range_of, booleans, settled(instance.ctx))


def settled(ctx: Context) -> dict[str, Poly]:
    """Sizes and attributes that a premise says in terms of others."""
    out: dict[str, Poly] = {}
    for premise in ctx.premises:
        gap = premise.poly.subst(out) if premise.kind == "eq" and premise.poly is not None else const(0)
        for name in sorted(gap.vars, reverse=True):
            lin = gap.affine(name)
            if lin is not None and lin[0].value in (1, -1):
                value = {name: lin[1].scale(-(lin[0].value or 1))}
                out = {k: p.subst(value) for k, p in out.items()} | value
                break
    return out


def output(instance: RankInstance, root: int) -> tuple[dict[Any, Sym], tuple[Cond, ...]]:
    """A symbolic index into the result, one variable per axis, and its range."""
    index: dict[Any, Sym] = {}
    facts: list[Cond] = []
    known = settled(instance.ctx)
    for label, size in sorted(instance.shapes[root].items(), key=_by_label):
        n = unwrap(size).subst(known)
        if n.value == 1:
            index[label] = Sym(const(0))
            continue
        o = var(instance.ctx.fresh(n, "o"))
        index[label] = Sym(o)
        facts += [c.ge(o, 0), c.lt(o, n)]
    return index, tuple(facts)


def _by_label(item: tuple[Any, Any]) -> str:
    return str(item[0])
