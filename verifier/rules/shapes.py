"""Sizes and attributes for the refuter, chosen by the solver.

Random sampling rarely meets premises with many attributes (a cropping pad before a strided window).  Here the solver
proposes them: first where an obligation of the right side fails, then at random points: each size and attribute is
pushed to a random small value where the premises still allow it.  What comes out is an environment of plain integers;
whether it refutes anything is for the interpreter to say.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from rewrites.language.named import Env, derived_labels
from rewrites.language.term import Rule
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.poly import var
from verifier.equal.ranks import attribute_roles, rank_vectors
from verifier.equal.solver import Context
from verifier.rules.instance import IllFormed, RankInstance, instantiate

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
    found = instance.ctx.model((*extra, *_small(instance.ctx)))
    if found is not None:
        yield env_at(instance, found)


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
