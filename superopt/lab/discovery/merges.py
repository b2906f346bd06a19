"""Merging rules from pairs of slices: two equations with one shared right side.

An equation `slice(T, first part) == L` cannot be used from right to left: nothing binds the operands of T that L
lacks.  But where the other part of the same T is known as well, both together are a rule with two roots: a program
with both values may compute T once.  Such rules follow from known equations, so the e-graph never reports them as new;
yet the search lacks these moves otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rewrites.language.parse import parse
from superopt.lab.discovery.draft import Draft, Side, operands, subsides
from superopt.lab.discovery.implied import BATCHES
from superopt.lab.discovery.judge import parses
from verifier.rules.check import check


def merging(drafts: Iterable[Draft]) -> list[Draft]:
    """Drafts with two roots: two products or convolutions on the left, slices of a joint one on the right.

    One for every arrangement of ops, the one with the most roles.
    """
    parts: dict[tuple[object, ...], dict[str, Draft]] = {}
    for draft in sorted(drafts, key=lambda d: d.text()):
        (left,), _ = draft.sides
        if left[0] == "slice" and any(s[0] == "concat" for s in subsides(left)):
            key = draft.vars, left[1], left[2]
            parts.setdefault(key, {}).setdefault("first" if left[3] == "0" else "rest", draft)
    out: dict[str, Draft] = {}
    for terms in parts.values():
        if len(terms) == 2:
            first, rest = terms["first"], terms["rest"]
            apart = first.sides[1][0], rest.sides[1][0]
            alike = apart[0][0] == apart[1][0] and apart[0][0] in ("dot", "conv")
            if alike and len(_tensors(apart[0]) & _tensors(apart[1])) == 1:
                joint = replace(first, sides=(apart, (first.sides[0][0], rest.sides[0][0])))
                key = repr([_skeleton(s) for side in joint.sides for s in side])
                if key not in out or len(out[key].roles) < len(joint.roles):
                    out[key] = joint
    return list(out.values())


def _skeleton(s: Side) -> tuple[object, ...]:
    """The ops of a side without its names; the operands of a product in one order."""
    if s[0] == "var":
        return ("var",)
    inner = [_skeleton(x) for x in operands(s)]
    return (s[0], *(sorted(inner, key=repr) if s[0] == "dot" else inner))


def _tensors(s: Side) -> set[str]:
    return {x[1] for x in subsides(s) if x[0] == "var"}


def proved_merges(drafts: Iterable[Draft]) -> list[str]:
    """Texts of the merging rules that prove, with any number of axes per role where that proves too."""
    texts: list[str] = []
    for n, draft in enumerate(merging(drafts)):
        starred = replace(draft, many=frozenset(draft.roles) - draft.single)
        batched = replace(
            starred, many=starred.many | {BATCHES[0]},
            vars=tuple((name, ((BATCHES[0], BATCHES[0]), *axes)) for name, axes in starred.vars),
        )  # fmt: skip
        for way in (batched, starred, draft):
            text = way.text(f"merge-{n}") + "\n  mode merge"
            if parses(text) and check(parse(text, where="discovered")).proved:
                texts.append(text)
                break
    return texts
