"""Sorting labels into roles: which role may each label of a walk play?

A label's *signature* is which tensors hold it and what the pattern ops did to it.  A role can take the label when its
own signature (`rewrites.match.plan`) is the same; the answer is a table look-up, not a search over permutations.  Where
several roles fit (`*p` and `n` of a merge), every choice is a valid and different rewrite.

A label that no role takes may be dropped only where it is inert: size 1 in every tensor, the root included, and
untouched by attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rewrites.language.term import Rule, Term
from rewrites.match.flow import Mark, Marks
from rewrites.match.labels import Labels, Layout
from rewrites.match.plan import MatchPlan
from rewrites.match.walk import WalkState

SETS = frozenset({"dot", "red", "concat", "bcast", "rev", "cum", "take"})
"""Pattern ops that act on roles as sets; the others carry attributes per axis."""

Resolved = dict[int, Any]
"""label -> int (acted on as a set, at this size) or (values, differs from neutral)"""


@dataclass(slots=True)
class Sorted:
    """A walk with labels resolved and candidate roles per label."""

    sizes: dict[str, dict[int, int]]
    layouts: dict[str, Layout]
    roots: list[Layout]
    marks: list[tuple[Term, Resolved]]
    holders: dict[int, frozenset[str]]
    candidates: dict[int, list[str]]
    dropped: frozenset[int]
    root_size: dict[int, int]


def resolve(s: Labels, marks: Marks, op: str) -> Resolved | None:
    """Marks on the labels that are left after unions and splits; None where a split label carries attributes."""
    out: Resolved = {}
    for label, mark in marks.items():
        if isinstance(mark, tuple):
            label = s.find(label)
            if label not in s.split:
                out[label] = mark
            elif mark[1]:
                return None
        elif mark < 0:
            leaves = s.leaves(label)
            if len(leaves) != 1:
                return None
            out[leaves[0]] = mark
        else:
            parts = s.axis(((label, mark),))
            if parts is None:
                return None
            out.update(parts)
    return out


def sort_labels(rule: Rule, plan: MatchPlan, roots: list[Layout], s: WalkState) -> Sorted | str:
    """Candidate roles for every label, or the reason why there is no match."""
    names = s.labels
    if not names.distinct():
        return "one axis would stand twice in a tensor"
    layouts: dict[str, Layout] = {}
    sizes: dict[str, dict[int, int]] = {}
    for v, (_, raw) in s.vars.items():
        lay = names.layout(raw)
        if lay is None:
            return "axes do not nest"
        layouts[v] = lay
        if v not in s.wild:
            sizes[v] = {label: n for axis in lay for label, n in axis}
    marks: list[tuple[Term, Resolved]] = []
    for t, found in s.happened():
        resolved = resolve(names, found, t.op)
        if resolved is None:
            return "an op acts on part of a merged axis"
        marks.append((t, resolved))
    root_layouts: list[Layout] = []
    root_size: dict[int, int] = {}
    for raw in roots:
        lay = names.layout(raw)
        if lay is None:
            return "axes do not nest"
        root_layouts.append(lay)
        for axis in lay:
            for label, n in axis:
                root_size[label] = max(n, root_size.get(label, 0))
    acted = {label for _, m in marks for label, mark in m.items() if isinstance(mark, int) or mark[1]}
    labels = sorted({label for held in sizes.values() for label in held} | acted)
    holders = {label: frozenset(v for v, held in sizes.items() if label in held) for label in labels}
    out = Sorted(sizes, layouts, root_layouts, marks, holders, {}, frozenset(), root_size)
    dropped: set[int] = set()
    signature = Signatures(rule, plan, out, s.wild)
    for label in labels:
        roles = signature.candidates(label)
        if roles:
            out.candidates[label] = roles
        elif signature.inert(label):
            dropped.add(label)
        else:
            return "an axis has no role"
    out.dropped = frozenset(dropped)
    return out


class Signatures:
    """Compares labels with the roles of one rule."""

    def __init__(self, rule: Rule, plan: MatchPlan, found: Sorted, wild: frozenset[str]) -> None:
        self.plan = plan
        self.found = found
        self.many = rule.many
        self.holders: Mapping[str, frozenset[str]] = plan.holders
        self.parts: Mapping[str, tuple[frozenset[str], ...]] = plan.parts
        self.wild_roles: frozenset[str] = frozenset()
        if wild:  # a scalar that stands for its broadcast belongs to whichever of its roles have axes
            self.holders = {r: v - wild for r, v in plan.holders.items()}
            self.parts = {r: tuple(p - wild for p in ps if p - wild) for r, ps in plan.parts.items()}
            self.wild_roles = frozenset(r for r, v in plan.holders.items() if v & wild and r in rule.many)

    def candidates(self, label: int) -> list[str]:
        """Roles that the label can play, the most fitting first."""
        fitting: list[tuple[int, str]] = []
        for r in self.plan.roles:
            penalty = self._penalty(label, r)
            if penalty is not None:
                fitting.append((penalty, r))
        if len(fitting) < 2:
            return [r for _, r in fitting]
        fitting.sort()
        held = self.found.holders[label]
        # drop what says no more than another choice: roles that fit only because the axis has size 1, many-axis roles
        # with attributes that are neutral here, and many-axis roles of a scalar that stands for its broadcast
        exact = [(p, r) for p, r in fitting if held <= self.holders[r]] or fitting
        if exact[0][0] == 0:
            exact = [(p, r) for p, r in exact if p == 0 or r not in self.many]
        roles = [r for _, r in exact]
        return [r for r in roles if r not in self.wild_roles] or roles

    def _penalty(self, label: int, r: str) -> int | None:
        """How far the label is from the role's signature; None when it cannot play the role."""
        found = self.found
        holders = self.holders[r]
        held = found.holders[label]
        mine = held & holders
        if not holders and held:
            return None
        for v in held - holders:
            if found.sizes[v][label] != 1:
                return None
        if holders and mine != holders and mine not in self.parts[r]:
            return None
        penalty = 0
        for t, marks in found.marks:
            acts = self.plan.acts[t]
            mark: Mark | None = marks.get(label)
            listed = r in acts.over
            if t.op in SETS or isinstance(mark, int) or (mark is None and listed):
                hit = isinstance(mark, int)
                if hit != listed and (hit or mine & acts.under or not holders):
                    return None
            elif mark is not None and mark[1] and r not in acts.windows:
                return None
            elif r in acts.windows and (mark is None or not mark[1]) and mine & acts.under:
                if t.op == "conv":  # a window axis is never a plain shared axis
                    return None
                penalty += 1
        return penalty + (0 if mine == held else 1)

    def inert(self, label: int) -> bool:
        """Whether an axis without a role carries nothing: size 1 everywhere, and no attribute acts on it."""
        found = self.found
        if found.root_size.get(label, 1) != 1 or any(found.sizes[v][label] != 1 for v in found.holders[label]):
            return False
        return all(neutral(t, marks.get(label)) is not False for t, marks in found.marks)


def neutral(t: Term, mark: Mark | None) -> bool | None:
    """Whether an op leaves an axis of size 1 as it is; None where it does not touch it."""
    if mark is None or isinstance(mark, int):
        return True if t.op == "bcast" and mark is not None else None
    values, acts = mark
    return values[1] == values[2] == 0 if t.op == "conv" else not acts
