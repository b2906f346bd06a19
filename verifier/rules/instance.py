"""A rule at given ranks, with symbolic sizes and attributes: the subject of one proof.

Every role gets its axes; every (size token, axis), (attribute, axis) and free parameter becomes a variable.  Premises
are: sizes >= 0, parameters >= 1, the rule's `if` conditions, and that all left sides are well formed.  Right sides
contribute goals: they are well formed, their divisors are positive, their shapes equal those of the left sides.

A premise about values (`given`) such as `ge(X, 0)` holds at every index of its operands.  A proof over uninterpreted
inputs uses it at the indices at which the two sides read these operands, and at the index of the result where that has
all its axes.  Each use is under the condition that the index is in range.

For the refuter the solver proposes sizes and attributes, since random sampling rarely meets premises with many of them
(a cropping pad before a strided window).  It proposes points where an obligation of the right side fails, then random
points, where each size and attribute takes a random small value if the premises still allow it.  The result is an
environment of plain integers; whether it refutes the rule is decided by the interpreter.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rewrites.language.named import Env, NamedShape, derived_labels
from rewrites.language.shapes import shape
from rewrites.language.term import Rule, Term, TokenExpr, names_in, stem, subterms, windows
from verifier.equal import conditions as c
from verifier.equal.algebra import Terms
from verifier.equal.conditions import Cond, Int, Sym, arithmetic, unwrap
from verifier.equal.pointwise import Premise
from verifier.equal.poly import Poly, const, var
from verifier.equal.ranges import PremiseRanges
from verifier.equal.ranks import attribute_roles, rank_vectors
from verifier.equal.sem import AxisPositions, Meaning, dtype_of
from verifier.equal.solver import Context
from verifier.equal.terms import Read, ScalarTerm, walk_terms


class IllFormed(Exception):
    """Raised when a side has no shape at these ranks; the message says why."""


class Impossible(IllFormed):
    """Raised when the left side has no shape at these ranks, whatever the sizes are: it divides by zero."""


@dataclass(frozen=True, slots=True)
class RankInstance:
    """One rule at fixed ranks.

    Attributes:
        ctx: solver context with the premises.
        env: axes, sizes and attributes.
        divisors: conditions that divisors in the premises are positive; they must follow from the premises.
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
        if set(left) != set(right):
            raise IllFormed(f"the sides have the axes {sorted(map(str, left))} and {sorted(map(str, right))}")
        same = [c.eq(unwrap(left[label]), unwrap(right[label])) for label in left]
        goals.append(tuple(_distinct([*divisors, *wanted, *same])))
        _straight(t, env, ctx)
    return RankInstance(ctx, replace(env, arith=arithmetic(_ignore)), positive, tuple(goals), tuple(lefts))


def _ignore(_: Cond) -> None:
    """Ignore a divisor: those met while evaluating were already collected as premises and goals."""


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


def _straight(t: Term, env: Env, ctx: Context) -> None:
    """Check that sizes and well-formedness conditions under a fold are affine in its index, so that both ends suffice.

    Attributes are affine by `unsupported`; products of two sizes and lengths of strided slices need not be.

    Raises:
        IllFormed: one of them is not affine.
    """
    folds = [x for x in subterms((t,)) if x.op in ("fold", "stack")]
    inside = {x for fold in folds for x in subterms(fold.args)}
    for fold in folds:
        if fold in inside:
            continue
        index = {label: ctx.fresh() for label in env.labels[env.rule.owner[fold["bound"]]]}
        said: list[Any] = []
        at = {(fold["idx"], label): Sym(var(name)) for label, name in index.items()}
        within = replace(env, arith=arithmetic(said.append)).with_attrs(at)
        sizes = _shape(fold.args[0], within, said)
        conds = [*_distinct(said), *(c.eq(unwrap(n), 0) for n in sizes.values())]
        for name in index.values():
            if any(name in x.vars and (x.poly is None or x.poly.affine(name) is None) for x in conds):
                raise IllFormed(f"{fold.op}: a size that is not affine in the index {fold['idx']}")
        _straight(fold.args[0], within, ctx)


def unsupported(rule: Rule) -> str | None:
    """The reason why a rule is outside the prover's language, or None."""
    for t in subterms((*rule.lhs, *rule.rhs)):
        if t.op in ("fold", "stack"):
            for inner in subterms(t.args):
                for _, exprs in windows(inner):
                    if any(e is not None and not _affine(e, t["idx"]) for e in exprs):
                        return f"an attribute that is not affine in the fold index {t['idx']}"
        if t.op == "bcast" and t["like"] == () and any(s in rule.indices for s in t["size"]):
            return "a broadcast to the length of a fold index"
    return None


def _affine(e: TokenExpr, name: str) -> bool:
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


def symbolic(instance: RankInstance, metas: Mapping[str, str]) -> Meaning[ScalarTerm]:
    """The denotations of an instance's terms at symbolic indices."""
    terms = Terms(instance.ctx, PremiseRanges(instance.ctx, untyped=True), settled=settled(instance.ctx))
    kinds = instance.env.rule.kinds

    def read(name: str, index: Sequence[Int]) -> ScalarTerm:
        return terms.read(name, index, dtype_of(kinds[name]))

    return Meaning(instance.env, terms, read, metas)


def settled(ctx: Context) -> dict[str, Poly]:
    """Sizes and attributes that an equation among the premises determines, as polynomials of the others."""
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


def output(meaning: Meaning[ScalarTerm], sizes: NamedShape) -> tuple[dict[Any, Sym], tuple[Cond, ...]]:
    """A symbolic index into a result, one variable per axis, and its range."""
    made: list[tuple[str, Poly]] = []
    ordered = sorted(sizes.items(), key=_by_label)
    index = {label: Sym(unwrap(meaning.k.variable(unwrap(size), "o", made))) for label, size in ordered}
    return index, meaning.k.ctx.facts_of(name for name, _ in made)


def _by_label(item: tuple[Any, Any]) -> str:
    return str(item[0])


def premises_at(
    meaning: Meaning[ScalarTerm], left: ScalarTerm, right: ScalarTerm, index: AxisPositions
) -> tuple[Premise, ...]:
    """The premises of the rule at the entries that two scalars read, and at the index of the result."""
    rule = meaning.env.rule
    if not rule.given:
        return ()
    reads = {x for side in (left, right) for x in walk_terms(side) if isinstance(x, Read)}
    out: dict[Premise, None] = {}
    for t in rule.given:
        shape = meaning.shape(t)
        if not shape:
            out[c.TRUE, meaning.at(t, {})] = None
            continue
        if set(shape) <= set(index):
            out[_inside(shape, index), meaning.at(t, index)] = None
        held = {x["name"] for x in subterms((t,)) if x.op == "var"}
        for read in sorted((r for r in reads if r.name in held), key=repr):
            where = _index(meaning, t, shape, read)
            if where is not None:
                out[where] = None
    return tuple(out)


def _index(meaning: Meaning[ScalarTerm], t: Term, shape: NamedShape, read: Read) -> Premise | None:
    """The premise at the index of a read, or None where the read does not determine the whole index."""
    env = meaning.env
    labels = [x for token in env.rule.vars[read.name] for x in env.labels[stem(token)]]
    index: dict[Any, Any] = {x: Sym(i) for x, i in zip(labels, read.index, strict=True)}
    if not set(shape) <= set(index):
        return None
    return _inside(shape, index), meaning.at(t, index)


def _inside(shape: NamedShape, index: AxisPositions) -> Cond:
    at = {x: unwrap(index[x]) for x in shape}
    return c.conj(cond for x, n in shape.items() for cond in c.within(at[x], unwrap(n)))


LARGEST = 7


def solved_envs(rule: Rule, points: int, seed: int = 0) -> Iterator[Env]:
    """Environments that satisfy the premises: at failing obligations, then at random points, at small ranks."""
    rng = random.Random(f"{rule.name}/{seed}/shapes")
    vectors = rank_vectors(attribute_roles(rule), -1, 1)
    made: list[RankInstance] = []
    for ranks in vectors[::-1]:
        try:
            made.append(instantiate(rule, ranks))
        except IllFormed:
            continue
    for instance in made:
        for goals in instance.goals:
            for goal in goals:
                yield from _env(instance, (c.negate(goal),))
    for n in range(points if made else 0):
        instance = made[n % len(made)]
        yield from _env(instance, _nudges(instance.ctx, rng))


def _nudges(ctx: Context, rng: random.Random) -> tuple[Cond, ...]:
    """Random values for as many variables as the premises allow, in random order."""
    names = sorted(ctx.dims)
    rng.shuffle(names)
    kept: list[Cond] = []
    for name in names:
        wanted = c.eq(var(name), rng.choice((-2, -1, 0, 1, 1, 2, 2, 3, 4)))
        if ctx.possible(wanted, tuple(kept)) == "yes":
            kept.append(wanted)
    return tuple(kept)


def _env(instance: RankInstance, extra: tuple[Cond, ...]) -> Iterator[Env]:
    model = instance.ctx.model((*extra, *_small(instance.ctx)))
    if model is not None:
        yield env_at(instance, model)


def env_at(instance: RankInstance, found: dict[str, int]) -> Env:
    """The environment of plain integers that a model of the variables of an instance describes."""
    rule = instance.env.rule
    labels: dict[str, list[int]] = {}
    named: dict[Any, int] = {}
    for role in rule.roles:
        if role not in rule.derived:
            labels[role] = [1000 + len(named) + i for i in range(len(instance.env.labels[role]))]
            named.update(zip(instance.env.labels[role], labels[role], strict=True))
    labels.update(derived_labels(rule, labels, iter(range(2000, 3000))))
    tok = {(t, named[x]): found[str(v)] for (t, x), v in instance.env.tok.items() if x in named}
    attr = {(a, named[x]): found[str(v)] for (a, x), v in instance.env.attr.items() if x in named}
    return Env(rule, labels, tok, attr, {p: found[str(v)] for p, v in instance.env.params.items()})


def _small(ctx: Context) -> tuple[Cond, ...]:
    return tuple(f for n in sorted(ctx.dims) for f in (c.ge(var(n), -LARGEST), c.ge(LARGEST, var(n))))
