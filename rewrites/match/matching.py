"""Matching rules on an e-graph (or an IR graph), modulo the order, merging and size-1 axes of physical tensors.

Structure first, then the walk with labels (`rewrites.match.walk`), sorting labels into roles, binding and checking
(`rewrites.match.bind`).  Every attempt is counted; "the structure matched but an axis had no role" is the list of rules
to generalise next.

A rule holds for one float dtype at a time: all its tensors share it, apart from predicates (bool) and indices
(integers).  Products and convolutions of one match must agree in precision and accumulation type, which the right
side then carries.

`prefer` conditions steer the engine and are no part of the proof: `frozen(A)` and `live(A)` test whether a tensor is
known ahead of time, `single(term)` whether it has one reader.  Comparisons of sizes must hold at every axis of the role
that they mention.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rewrites.egraph.graph import EGraph
from rewrites.egraph.perm import PERM_BITS
from rewrites.language.named import Env
from rewrites.language.show import unmet
from rewrites.language.term import Rule, Term, TokenExpr, walk
from rewrites.match.bind import Binding, bindings, sort_labels
from rewrites.match.labels import Layout
from rewrites.match.space import Class, Reference, Space, space_of
from rewrites.match.walk import VIEWS_PER_EDGE, Goals, Walk, WalkState, patterns_of
from superopt.errors import RuleError
from superopt.ir.types import FLOATS, INTEGERS

MATCHES_PER_ATTEMPT = 64
WALKS_PER_ATTEMPT = 256


@dataclass(slots=True)
class MatchStats:
    """Counts of each rule's attempts, by how far they got."""

    attempts: Counter[str] = field(default_factory=Counter[str])
    structural: Counter[str] = field(default_factory=Counter[str])
    matches: Counter[str] = field(default_factory=Counter[str])
    misses: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """(rule, reason) of attempts whose structure matched."""


@dataclass(frozen=True, slots=True)
class Match:
    """A rule bound at a site.

    Attributes:
        rule: the rule.
        env: labels of every role, sizes, attributes.
        vars: tensor -> its value and the layout of its axes; a scalar with a longer layout stands for its broadcast.
        metas: meta-variable -> op name and attributes.
        roots: value and layout of each root; the right sides equal these values.
        dtype: the one float dtype of the rule at this site.
        carried: precision and preferred_element_type of the products that were matched.
        trail: e-nodes that were matched, and classes that were read as constants.
    """

    rule: Rule
    env: Env
    vars: Mapping[str, tuple[Reference, Layout]]
    metas: Mapping[str, tuple[str, tuple[tuple[str, Any], ...]]]
    roots: tuple[tuple[Reference, Layout], ...]
    dtype: str = "float32"
    carried: tuple[Any, Any] = (None, None)
    trail: tuple[Any, ...] = ()


def matches(
    rule: Rule,
    graph: EGraph | Space,
    *roots: Reference,
    stats: MatchStats | None = None,
    prefer: bool = True,
    dtypes: Sequence[str] = FLOATS,
) -> Iterator[Match]:
    """All matches of a rule's roots at these values, at most 64 per tuple of roots.

    A rule with several roots may be given its first root alone: partners are then found among the readers of the
    tensors that the roots share.  `prefer=False` ignores the rule's `prefer` clause.
    """
    space = space_of(graph)
    if len(roots) < len(rule.lhs):
        if not isinstance(graph, EGraph) or len(roots) != 1:
            raise RuleError(f"rule {rule.name} has {len(rule.lhs)} roots; partners are searched in an e-graph only")
        for others in partners(rule, graph, roots[0]):
            yield from matches(rule, graph, *roots, *others, stats=stats, prefer=prefer, dtypes=dtypes)
        return
    stats = MatchStats() if stats is None else stats
    stats.attempts[rule.name] += 1
    classes = [space.child(r)[0] for r in roots]
    if not all(may_match(rule, space, c, i) for i, c in enumerate(classes)):
        return
    stats.structural[rule.name] += 1
    found = 0
    for m in itertools.islice(_Attempt(rule, space, classes, prefer, dtypes).matches(stats), MATCHES_PER_ATTEMPT):
        found += 1
        yield m
    stats.matches[rule.name] += found


@dataclass(slots=True)
class _Attempt:
    """One rule at one tuple of roots; reasons of failure are counted."""

    rule: Rule
    space: Space
    classes: Sequence[Class]
    prefer: bool
    dtypes: Sequence[str]
    reasons: Counter[str] = field(default_factory=Counter[str])

    def matches(self, stats: MatchStats) -> Iterator[Match]:
        """All matches: those of a strict walk, or where it finds none, of a loose one."""
        s = WalkState()
        layouts: list[Layout] = []
        goals: Goals = ()
        for pattern, cls in reversed(list(zip(patterns_of(self.rule), self.classes, strict=True))):
            lay = tuple([((s.labels.fresh(), n),) for n in self.space.shape(cls)])
            layouts.insert(0, lay)
            goals = ((pattern, cls, lay, True, 0), goals)
        for strict in (True, False):
            hit = False
            walker = Walk(self.rule, self.space, strict=strict)
            for end in itertools.islice(walker.solve(goals, s.copy()), WALKS_PER_ATTEMPT):
                for found in self._complete(layouts, end):
                    hit = True
                    yield found
            if hit:
                return
        if walker.clashes:
            self.reasons["carried attributes disagree"] += 1
        for reason in self.reasons or {"the walk found no way": 1}:
            stats.misses[self.rule.name, reason] += 1

    def _complete(self, layouts: list[Layout], end: WalkState) -> Iterator[Match]:
        """The matches of one walk."""
        rule, reasons = self.rule, self.reasons
        dtype = self._dtype(end)
        if dtype is None:
            reasons["dtypes"] += 1
            return
        found = sort_labels(rule, layouts, end)
        if isinstance(found, str):
            reasons[found] += 1
            return
        for binding in bindings(rule, found, end):
            if isinstance(binding, str):
                reasons[binding] += 1
            elif self.prefer and (wanted := self._unpreferred(binding.env, end)) is not None:
                reasons[unmet(rule, wanted)] += 1
            else:
                yield self._match(end, binding, dtype)

    def _match(self, end: WalkState, binding: Binding, dtype: str) -> Match:
        return Match(
            rule=self.rule,
            env=binding.env,
            vars={v: (self.space.value(cls), binding.layouts[v]) for v, (cls, _) in end.vars.items()},
            metas=end.metas,
            roots=tuple((self.space.value(c), lay) for c, lay in zip(self.classes, binding.roots, strict=True)),
            dtype=dtype,
            carried=(None, None) if end.carried is None else end.carried[:2],
            trail=end.taken(),
        )

    def _dtype(self, s: WalkState) -> str | None:
        """The one float dtype of the tensors bound, or None where they disagree."""
        found: str | None = None
        for v, (cls, _) in s.vars.items():
            dtype, kind = self.space.dtype(cls), self.rule.kinds[v]
            if kind == "bool":
                if dtype != "bool":
                    return None
            elif kind == "int":
                if dtype not in INTEGERS:
                    return None
            elif found is None:
                if dtype not in self.dtypes:
                    return None
                found = dtype
            elif dtype != found:
                return None
        found = found or "float32"
        return found if s.carried is None or s.carried[2] == found else None

    def _unpreferred(self, env: Env, s: WalkState) -> TokenExpr | None:
        """The first `prefer` condition that does not hold for a binding; of a conjunction, the part that does not."""
        for e in self.rule.prefer:
            if not self._holds(e, env, s):
                while e[0] == "and":
                    e = e[2] if self._holds(e[1], env, s) else e[1]
                return e
        return None

    def _holds(self, e: TokenExpr, env: Env, s: WalkState) -> bool:
        """Whether a `prefer` condition holds; one on sizes must hold at every axis of the role that it mentions."""
        op = e[0]
        if op == "and":
            return self._holds(e[1], env, s) and self._holds(e[2], env, s)
        if op == "or":
            return self._holds(e[1], env, s) or self._holds(e[2], env, s)
        if op == "not":
            return not self._holds(e[1], env, s)
        if op == "frozen":
            return self.space.frozen(s.vars[e[1]][0])
        if op == "live":
            return not self.space.frozen(s.vars[e[1]][0])
        if op == "single":
            t: Term = e[1]
            cls = s.vars[t["name"]][0] if t.op == "var" else s.watched.get(t)
            return cls is not None and self.space.readers(cls) <= 1
        return all(env.value(e, label) for label in env.axes_of(e))


def may_match(rule: Rule, space: Space, cls: Class, root: int = 0) -> bool:
    """Whether the ops of a class and of those below it may match a root of the rule; nearly always they do not."""
    return patterns_of(rule)[root].quick(space, cls, top=True)


def partners(rule: Rule, eg: EGraph, root: Reference) -> Iterator[tuple[Reference, ...]]:
    """Values for the other roots of a rule: tensors with the op of that root that read an operand of the first root."""
    space = space_of(eg)
    patterns = patterns_of(rule)
    first = space.child(root)[0]
    if not may_match(rule, space, first):
        return
    readers: dict[Class, None] = {}
    for cls in _operands(rule, space, first, shared_tensors(rule)):
        _readers(eg, cls, VIEWS_PER_EDGE, readers)
    pools: list[list[Class]] = []
    for pattern in patterns[1:]:
        pools.append([c for c in readers if c != first and pattern.quick(space, c, top=True)])
    for others in itertools.product(*pools):
        if len(set(others)) == len(others):
            yield tuple(space.value(c) for c in others)


def _readers(eg: EGraph, cls: Class, views: int, out: dict[Class, None]) -> None:
    """Classes that read a class, directly or through reshapes."""
    for enode in eg.parents(cls):
        reader = eg.ref_of(enode) >> PERM_BITS
        out[reader] = None
        if views and eg.op_of(enode) == "regroup":
            _readers(eg, reader, views - 1, out)


def shared_tensors(rule: Rule) -> frozenset[str]:
    """Tensors that all roots of a rule read."""
    out: frozenset[str] = frozenset(rule.vars)
    for t in rule.lhs:
        out &= {u["name"] for u in walk(t) if u.op == "var"}
    return out


def _operands(rule: Rule, space: Space, cls: Class, shared: frozenset[str]) -> list[Class]:
    """Classes that a shared variable may be bound to under the first root."""
    out: dict[Class, None] = {}
    s = WalkState()
    lay = tuple([((s.labels.fresh(), n),) for n in space.shape(cls)])
    pattern = patterns_of(rule)[0]
    for end in itertools.islice(Walk(rule, space).solve(((pattern, cls, lay, True, 0), ()), s), WALKS_PER_ATTEMPT):
        for v in shared:
            if v in end.vars:
                out[end.vars[v][0]] = None
    return list(out)
