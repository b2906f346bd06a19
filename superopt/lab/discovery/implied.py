"""Whether a set of rules already implies an equation: both sides in one small e-graph, grown a little.

Rules are used as equations: without `prefer`, everywhere, in every direction that binds, and each equation of a rule
with several roots by itself.  Both sides are in the e-graph from the start, so the rules may rewrite either towards the
other.  A positive answer is a derivation; a negative one only means that none was found within the limits.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rewrites.egraph.convert import import_graph
from rewrites.egraph.graph import EGraph, LimitReachedError, Ref
from rewrites.grow.growth import GrowthLimits, grow
from rewrites.language.direction import reverse, unusable
from rewrites.language.term import Rule
from rewrites.lift.generate import Instance, at_env, choose_env
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.machine.deadline import Deadline

BATCHES = ("b", "g", "i", "ba", "bb", "bc", "bd")
"""Names of roles that no enumerated term has: `widen` adds them to several tensors at once."""
SECONDS = 2.0  # of each pass
LIMITS = GrowthLimits(enodes=600, per_class=60, iterations=4, per_rule=60)
"""Limits of growth for one question."""


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


MOST_ROLES = 6
"""Most roles that get an axis in an example, as an e-graph represents tensors up to permutations of axes."""


def examples(rule: Rule) -> list[Instance]:
    """Instances of sizes of at least 2 in which every role has an axis at least once; empty where none is found."""
    batches = [r for r in BATCHES if r in rule.many]
    room = max(1, MOST_ROLES - (len(rule.roles) - len(batches)))
    groups = [batches[i : i + room] for i in range(0, len(batches), room)] or [[]]
    made = [_example(rule, {r: int(r in group or r not in BATCHES) for r in rule.many}) for group in groups]
    return [m for m in made if m is not None] if None not in made else []


def _example(rule: Rule, ranks: Mapping[str, int]) -> Instance | None:
    rng = random.Random(f"{rule.name}/{ranks}")
    for low, high in ((2, 5), (1, 6)):
        env = choose_env(rule, ranks, rng, high, low)
        if env is not None:
            try:
                made = at_env(rule, env, rng)
            except SuperoptError:
                continue
            if made.rhs:
                return made
    return None


def implied(rule: Rule, by: Sequence[Rule], limits: GrowthLimits = LIMITS) -> bool:
    """Whether these equations (of `equations`) derive the rule."""
    made = examples(rule)
    return bool(made) and all(_derives(one, by, limits) for one in made)


def _derives(made: Instance, by: Sequence[Rule], limits: GrowthLimits) -> bool:
    graph = Graph(tuple(made.inputs.values()), (*made.lhs, *made.rhs))
    return derived(import_graph(graph), by, len(made.lhs), limits)


def derived(eg: EGraph, by: Sequence[Rule], n: int, limits: GrowthLimits = LIMITS, seconds: float = SECONDS) -> bool:
    """Whether growth makes the first `n` roots of the e-graph equal to the others."""
    if together(eg, eg.roots[:n], eg.roots[n:]):
        return True
    for _ in range(limits.iterations):
        before = eg.enode_count, len(eg.unions)
        try:
            grow(eg, by, replace(limits, iterations=1), deadline=Deadline.within(seconds))
        except LimitReachedError:
            break
        if together(eg, eg.roots[:n], eg.roots[n:]):
            return True
        if (eg.enode_count, len(eg.unions)) == before or eg.enode_count >= limits.enodes:
            break
    return False


def together(eg: EGraph, left: Sequence[Ref], right: Sequence[Ref]) -> bool:
    """Whether the roots are pairwise equal."""
    return all(eg.find(a) == eg.find(b) for a, b in zip(left, right, strict=True))
