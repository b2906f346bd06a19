"""Generalises a pair to the most general rule that the prover proves.

The steps in order: every role for any number of axes, where the language allows it; any elementwise function in place
of one that occurs; and batch roles, which no example has.  A batch role is a fresh role on some of the tensors; as many
as prove are added.  The prover judges every step, after the reference interpreter has tried to refute it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from rewrites.language.direction import unusable
from rewrites.language.parse import parse
from rewrites.language.term import Rule
from superopt.errors import RuleError
from superopt.lab.discovery.draft import Draft
from superopt.lab.discovery.implied import BATCHES
from verifier.rules.check import check
from verifier.verdict import Verdict

METAS = {"relu": "f", "add": "fa", "mul": "fm", "sub": "fs", "maximum": "fx"}
MOST_VARS = 5
AFTER = 12
"""Instances tried on a rule that is not proved."""


def rule_of(draft: Draft, name: str) -> Rule | None:
    """The draft as a rule, from right to left where only that binds; None where the language accepts neither."""
    for way in (draft, draft.swapped()):
        try:
            rule = parse(way.text(name), where="discovered")
        except RuleError:
            continue
        if unusable(rule) is None:
            return rule
    return None


def verdict_of(draft: Draft, name: str, after: int = AFTER) -> Verdict | None:
    """The verdict on a draft; None where it is no rule."""
    rule = rule_of(draft, name)
    return None if rule is None else check(rule, after=after)


def widen(draft: Draft, name: str) -> tuple[Draft, Verdict]:
    """The most general proved form of a draft, with its verdict; the draft and its own verdict where it is not proved.

    Raises:
        RuleError: the draft is no rule of the language in either direction.
    """
    starred = replace(draft, many=frozenset(draft.roles) - draft.single)
    best, verdict = starred, verdict_of(starred, name)
    if verdict is not None and not verdict.proved and draft.pools:
        best, verdict = _better(best, verdict, replace(starred, unpadded=True), name)
    if verdict is None or not verdict.proved:
        best, verdict = replace(draft, many=frozenset()), verdict_of(draft, name)
        if verdict is None:
            raise RuleError(f"no direction of {draft.text(name)} binds")
        if not verdict.proved:
            return best, verdict
        for role in starred.roles:
            if role in starred.many:
                best, verdict = _better(best, verdict, replace(best, many=best.many | {role}), name)
    for f in draft.ops:
        best, verdict = _better(best, verdict, replace(best, metas=(*best.metas, (f, METAS[f]))), name)
    if not any(axes for _, axes in best.vars):
        return best, verdict
    for role in BATCHES:
        for wider in _batched(best, role):
            before = best
            best, verdict = _better(best, verdict, wider, name)
            if best is not before:
                break
    return best, verdict


def _better(best: Draft, verdict: Verdict, wider: Draft, name: str) -> tuple[Draft, Verdict]:
    wide = verdict_of(wider, name, after=0)
    return (wider, wide) if wide is not None and wide.proved else (best, verdict)


def _batched(draft: Draft, role: str) -> Iterator[Draft]:
    """The draft with a fresh role on all of its tensors, on all but one, and so on."""
    names = [name for name, _ in draft.vars]
    free = draft.many - draft.contracted
    given = {r: {name for name, axes in draft.vars if r in {x for x, _ in axes}} for r in free}
    if len(names) > MOST_VARS:
        return
    for count in range(len(names), 0, -1):
        for chosen in itertools.combinations(names, count):
            if set(chosen) in given.values():
                continue  # there is a role for such axes
            declared = tuple((n, ((role, role), *axes) if n in chosen else axes) for n, axes in draft.vars)
            yield replace(draft, vars=declared, many=draft.many | {role})
