"""Does a set of rules already say an equation?  Both sides in one small e-graph, grown a little.

Rules are used as equations: without `prefer`, everywhere, in every direction that binds, and each equation of a rule
with several roots by itself.  Both sides stand in the e-graph from the start, so the rules may rewrite either towards
the other.  A yes is a derivation; a no is only that none was found within the limits.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rewrites.convert import import_graph
from rewrites.direction import reverse, unusable
from rewrites.egraph import EGraph, LimitReachedError, Ref
from rewrites.generate import Instance, at_env, choose_env
from rewrites.grow import Limits, grow
from rewrites.term import Rule
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph

LIMITS = Limits(enodes=600, seconds=2.0, per_class=60, iterations=4, per_rule=60)
"""Growth for one question."""


def equations(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules as equations to grow with: both directions, one root each, no preferences; macros left out."""
    out: list[Rule] = []
    for rule in rules:
        if rule.mode == "macro":
            continue
        for n in range(len(rule.lhs)):
            one = replace(
                rule, name=f"{rule.name}.{n}", lhs=rule.lhs[n : n + 1], rhs=rule.rhs[n : n + 1], prefer=(),
                mode="saturate", cache={},
            )  # fmt: skip
            if unusable(one) is None:
                out.append(one)
            backward = reverse(one)
            if backward is not None:
                out.append(replace(backward, mode="saturate", cache={}))
    return tuple(out)


def example(rule: Rule, seed: int = 0) -> Instance | None:
    """An instance with one axis per role and sizes of at least 2, or None where none is found."""
    rng = random.Random(f"{rule.name}/{seed}")
    for low, high in ((2, 5), (1, 6)):
        env = choose_env(rule, dict.fromkeys(rule.many, 1), rng, high, low)
        if env is not None:
            try:
                made = at_env(rule, env, rng)
            except SuperoptError:
                continue
            if made.rhs:
                return made
    return None


def implied(rule: Rule, by: Sequence[Rule], limits: Limits = LIMITS) -> bool:
    """Do these equations (of `equations`) derive the rule?"""
    made = example(rule)
    if made is None:
        return False
    graph = Graph(tuple(made.inputs.values()), (*made.lhs, *made.rhs))
    n = len(made.lhs)
    return derived(import_graph(graph), by, n, limits)


def derived(eg: EGraph, by: Sequence[Rule], n: int, limits: Limits = LIMITS) -> bool:
    """Does growth make the first `n` roots of the e-graph equal to the others?"""
    if together(eg, eg.roots[:n], eg.roots[n:]):
        return True
    for _ in range(limits.iterations):
        before = eg.enode_count, len(eg.unions)
        try:
            grow(eg, by, replace(limits, iterations=1))
        except LimitReachedError:
            break
        if together(eg, eg.roots[:n], eg.roots[n:]):
            return True
        if (eg.enode_count, len(eg.unions)) == before or eg.enode_count >= limits.enodes:
            break
    return False


def together(eg: EGraph, left: Sequence[Ref], right: Sequence[Ref]) -> bool:
    """Are the roots pairwise equal?"""
    return all(eg.find(a) == eg.find(b) for a, b in zip(left, right, strict=True))
