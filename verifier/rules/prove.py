"""Proof of a rule: for every rank that ranks.py requires, every reducer and every root, in this order.

1. Premises (sizes, conditions, well-formed left sides) are satisfiable, with concrete sizes as witness.
2. Goals: the right side is well formed and in bounds, shapes are equal: proved, not assumed.
3. Equality of the two scalars at a symbolic index: exact laws first, then real, then pointwise, then range.
4. The right side has no new divisor that may be zero.

No step decides that a rule is wrong: a failed obligation is UNKNOWN with its cause; only refute.py refutes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping

from rewrites.language.direction import directions
from rewrites.language.kinds import Disagree, agree
from rewrites.language.named import Env
from rewrites.language.show import rule_key, text
from rewrites.language.term import Rule, names_in, subterms
from superopt.machine.deadline import Stopwatch
from verifier.equal import conditions as c
from verifier.equal.conditions import unwrap
from verifier.equal.equality import ORDER, Proof, Stop, equal_terms
from verifier.equal.pointwise import MachineIntegers, Reals, consistent
from verifier.equal.poly import readable
from verifier.equal.ranks import ANY, MAX_RANK, attribute_roles, rank_vectors, uniform
from verifier.equal.solver import UNKNOWN as OPEN
from verifier.equal.solver import CannotLower
from verifier.equal.terms import Where, walk_terms
from verifier.equal.written import place
from verifier.rules.instance import (
    LARGEST,
    IllFormed,
    Impossible,
    RankInstance,
    env_at,
    instantiate,
    output,
    premises_at,
    symbolic,
    unsupported,
)
from verifier.verdict import PROVED, UNKNOWN, UNSUPPORTED, ValidityDomain, Verdict

CONTRADICTION = "the premises contradict each other"
EMPTY_ONLY = "the premises hold for empty tensors only: a size token stands for two lengths"
FINITE = "inputs and intermediate values are finite"
_INFINITIES = (("n", math.inf), ("n", -math.inf))


LOOKS = 3
"""Most places where conditions change at which a proved rule is evaluated."""


class _StopAt(Stop):
    """Raised when a proof cannot go on at an instance of the rule."""

    def __init__(self, status: str, cause: str, instance: RankInstance) -> None:
        super().__init__(status, cause)
        self.instance = instance


def prove(rule: Rule, direction: str = "forward", suspects: list[Env] | None = None) -> Verdict:
    """Prove one direction of a rule for all sizes and ranks; never refutes.

    Sizes and attributes at which values should be compared are added to `suspects`.  For an unproved rule these are
    points where the solver sees a difference, for a proved one points where conditions on indices change.  The backward
    direction of a rule that cannot be used backwards is UNSUPPORTED with the reason.
    """
    watch = Stopwatch()
    forward, backward = directions(rule)
    chosen = forward if direction == "forward" else backward
    done = Proof(sums=[], directed=True)
    if chosen.rule is None:
        status, cause, domain = UNSUPPORTED, f"not usable {direction}: {chosen.reason}", None
    else:
        try:
            domain = _prove(chosen.rule, done)
            status, cause = PROVED, ""
            if suspects is not None:
                suspects += done.changes
        except Stop as stop:
            status, cause, domain = stop.status, readable(stop.cause), None
            if suspects is not None and isinstance(stop, _StopAt):
                models = itertools.islice(stop.instance.ctx.suspects(LARGEST), 3)
                suspects += [env_at(stop.instance, model) for model in models]
    return Verdict(
        rule=rule.name,
        key=rule_key(rule),
        where=rule.where,
        direction=direction,
        status=status,
        domain=domain,
        cause=cause,
        tiers=tuple(done.tiers or ()),
        obligations=done.obligations,
        queries=done.queries,
        seconds=watch.elapsed_s,
        sums=json.dumps(done.sums, separators=(",", ":")) if status == PROVED else "",
    )


def _prove(rule: Rule, done: Proof) -> ValidityDomain:
    """Prove a rule at as many ranks as stand for all; return where it holds, or raise `Stop`."""
    reason = unsupported(rule)
    if reason:
        raise Stop(UNSUPPORTED, reason)
    if rule.lhs == rule.rhs:
        raise Stop(UNKNOWN, "both sides are the same term: the rule says nothing")
    try:
        agree(rule)
    except Disagree as why:
        raise Stop(UNKNOWN, f"dtypes disagree: {why}") from why
    roles = attribute_roles(rule)
    low, high = -1, 2
    while True:
        for ranks in rank_vectors(roles, low, high):
            for metas in _reducers(rule):
                _at_ranks(rule, ranks, metas, done)
        if not roles or done.forall <= high or high >= MAX_RANK:
            break
        low, high = high, min(done.forall, MAX_RANK)
    tried = {r: ANY if _bounded(rule, r, done, high) else str(high) for r in roles}
    ranks = tuple((r, tried.get(r, ANY)) for r in sorted(rule.many))
    if done.laws:
        done.assume(FINITE)
    for premise in rule.given:
        done.assume(f"given: {text(rule, premise)}")
    exactness = max(rule.numerics or ORDER[0], ORDER[done.laws], key=ORDER.index)
    assumptions = tuple(map(readable, done.assumptions or ()))
    return ValidityDomain(exactness, ranks, _dtypes(rule, done), assumptions, done.sizes)


def _dtypes(rule: Rule, done: Proof) -> tuple[str, ...]:
    if rule.dtype:
        return (rule.dtype,)
    if all(rule.kinds[v] == "bool" for v in rule.vars) and done.laws == 0 and rule.vars:
        return ("bool",)
    infinite_literal = any(t.op == "lit" and t["value"] in _INFINITIES for t in subterms((*rule.lhs, *rule.rhs)))
    return ("float", "int") if done.integers and not infinite_literal else ("float",)


def _bounded(rule: Rule, role: str, done: Proof, high: int) -> bool:
    counted = any(v.partition("@")[2].startswith(f"{role}.") for v in done.counted)
    return done.forall <= high and uniform(rule, role) and not counted


def _reducers(rule: Rule) -> Iterator[dict[str, str]]:
    choices = [(name, kinds) for name, kinds in rule.metas.items() if isinstance(kinds, tuple)]
    for pick in itertools.product(*(kinds for _, kinds in choices)):
        yield {name: kind for (name, _), kind in zip(choices, pick, strict=True)}


def _at_ranks(rule: Rule, ranks: Mapping[str, int], metas: Mapping[str, str], done: Proof) -> None:
    try:
        instance = instantiate(rule, ranks)
    except Impossible as bad:
        raise Stop(UNKNOWN, f"{CONTRADICTION} at ranks {dict(ranks)}: {bad}") from bad
    except IllFormed as bad:
        raise Stop(UNKNOWN, f"at ranks {dict(ranks)}: {bad}") from bad
    ctx = instance.ctx
    try:
        _premises(instance, done)
        for root in range(len(rule.lhs)):
            _goals(instance, root, done)
            _equal(instance, root, metas, done)
    except Stop as stop:
        where = f" at ranks {dict(ranks)}" if ranks else ""
        raise _StopAt(stop.status, f"{stop.cause}{where}", instance) from stop
    finally:
        done.queries += ctx.counters.queries
        done.forall = max(done.forall, ctx.forall)
        done.counted |= ctx.counted


def _premises(instance: RankInstance, done: Proof) -> None:
    ctx = instance.ctx
    said = {name for e in instance.env.rule.cond for name in names_in(e)}  # a rule may concern empty axes on purpose
    sizes = [str(n) for n in instance.env.tok.values()]
    witness = ctx.witness(positive=sizes)
    if witness is None and said:
        witness = ctx.witness(positive=[str(n) for (token, _), n in instance.env.tok.items() if token not in said])
    done.obligations += 1
    if witness is not None:
        done.sizes = tuple(sorted(witness.items()))
        for positive in instance.divisors:
            if not ctx.holds(positive):
                raise Stop(UNKNOWN, f"a premise divides by what may not be positive: {positive} does not follow")
        return
    if ctx.witness() is not None:
        raise Stop(UNKNOWN, EMPTY_ONLY)
    unsure = ctx.possible(c.TRUE) == OPEN
    raise Stop(UNKNOWN, "no witness for the premises was found" if unsure else CONTRADICTION)


def _goals(instance: RankInstance, root: int, done: Proof) -> None:
    for goal in instance.goals[root]:
        done.obligations += 1
        if not instance.ctx.holds(goal):
            raise Stop(UNKNOWN, f"the right side may be ill-formed: {goal} does not follow")


def _equal(instance: RankInstance, root: int, metas: Mapping[str, str], done: Proof) -> None:
    """Prove that both sides of a root are equal at these ranks; record the proof in `done`, or raise `Stop`."""
    meaning = symbolic(instance, metas)
    ctx, rule = instance.ctx, instance.env.rule
    index, facts = output(meaning, instance.shapes[root])
    try:
        left, right = meaning.at(rule.lhs[root], index), meaning.at(rule.rhs[root], index)
        given = premises_at(meaning, left, right, index)
    except NotImplementedError as missing:
        raise Stop(UNSUPPORTED, str(missing)) from missing
    if given:
        done.obligations += 1
        try:
            possible = consistent(ctx, MachineIntegers(ctx) if rule.dtype else Reals(ctx), given, facts)
        except CannotLower as why:
            raise Stop(UNSUPPORTED, f"a premise about values: {why}") from why
        if not possible:
            raise Stop(UNKNOWN, CONTRADICTION)
    before = len(done.sums or ())
    equal_terms(ctx, left, right, facts, done, given, rule.dtype)
    meaning.k.certify(done)
    sample = ctx.sample(facts)
    for row in (done.sums or [])[before:]:
        ranks = {role: len(labels) for role, labels in instance.env.labels.items() if role in rule.many}
        where = place((axis, unwrap(i)) for axis, i in index.items())
        row |= {"root": root, "ranks": ranks, "metas": dict(metas), "index": where, "witness": sample}
    if len(done.changes) < LOOKS:
        guards = dict.fromkeys(t.guard for side in (left, right) for t in walk_terms(side) if isinstance(t, Where))
        edges = ctx.edges(guards | meaning.k.guards, LARGEST)
        done.changes += [env_at(instance, model) for model in itertools.islice(edges, LOOKS)]
