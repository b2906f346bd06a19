"""The state of growth: limits, counts, pending equalities, and which variants of a form stay listed.

Forms that differ only in what is computed ahead of time are hidden.  Rules that move scales and biases reach one value
by several ways, `x W + (B - M S)` and `x W + (-M S + B)`.  The frozen operands are equal, but no rule says so, because
few rules are matched at frozen classes.  Each variant would feed the rules above it, and the variants multiply from
layer to layer.  Since frozen values cost nothing in the objective, one of the forms is enough: of the e-nodes of a
class that agree in op, live operands and size of the frozen operands, the oldest stays listed.  E-nodes of the program
itself are never hidden.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from rewrites.build.arrange import BuildError
from rewrites.build.terms import build
from rewrites.egraph.graph import EGraph, ENode, LimitReachedError, Origin, Ref
from rewrites.egraph.normal import broadcast_views
from rewrites.egraph.perm import PERM_BITS
from rewrites.grow.proof import claims
from rewrites.language.term import Rule
from rewrites.match.likeness import Likeness, likeness_of
from rewrites.match.matching import Match, MatchStats
from rewrites.match.sites import pattern_depth
from superopt.errors import ShapeError
from superopt.ir.graph import Attrs
from superopt.ir.ops.table import CONVOLUTIONS, PRODUCTS
from superopt.ir.scalar import COMMUTATIVE
from superopt.machine.deadline import Deadline, Stopwatch


@dataclass(frozen=True, slots=True)
class GrowthLimits:
    """Limits at which growth stops or passes over a site.

    Attributes:
        enodes: size of the e-graph.
        per_class: e-nodes of one class; a class of thousands makes every match on it slow.
        iterations: passes over the rules.
        per_rule: matches of one rule in one iteration.
        matches: of all rules.
    """

    enodes: int = 20_000
    per_class: int = 256
    iterations: int = 40
    per_rule: int = 2_000
    matches: float = math.inf


@dataclass(slots=True)
class RuleCounts:
    """Counts of one rule's attempts, matches and failures, and the time spent on it.

    Attributes:
        attempts: classes with the rule's root operator that were tried.
        structure: attempts whose ops fit the pattern.
        matches: complete matches.
        unions: matches that changed the e-graph.
        capped: attempts or unions passed over because of a limit.
        misses: reason -> attempts whose structure fitted and that failed for it (an axis without a role, a condition).
        errors: right sides that could not be built, by message.
        seconds: time spent matching and building.
    """

    attempts: int = 0
    structure: int = 0
    matches: int = 0
    unions: int = 0
    capped: int = 0
    misses: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0


@dataclass(slots=True)
class Growth:
    """The state of one growth run.

    Attributes:
        rules: those that growth applies.
        deadline: when growth ends.
        watch: its time so far.
        near: the classes where it merges, and first applies rules of mode `near`; None: everywhere.
        counts: the counts of each rule.
        sizes: e-nodes before growth and after every iteration.
        everywhere: whether the next pass is over all classes: it is the first, or a rule left out classes in the last.
        step: passes so far.
        tried: matches, in all iterations.
        found: pairs of equal references, with their origins, that are not united yet.
        likeness: which classes look alike to the rules, and what was matched there.
        deepest: depth of the deepest left side of a rule.
    """

    eg: EGraph
    limits: GrowthLimits
    rules: tuple[Rule, ...]
    near: Collection[int] | None
    deadline: Deadline
    watch: Stopwatch
    counts: dict[str, RuleCounts]
    sizes: list[int]
    everywhere: bool
    saturated: bool = False
    stats: MatchStats = field(default_factory=MatchStats)
    step: int = 0
    class_caps: int = 0
    hidden: int = 0
    tried: int = 0
    found: list[tuple[Ref, Ref, Origin]] = field(default_factory=list[tuple[Ref, Ref, Origin]])
    likeness: Likeness = field(init=False)
    deepest: int = field(init=False)

    def __post_init__(self) -> None:
        self.likeness = likeness_of(self.eg)
        self.deepest = max((rule.fact(pattern_depth) for rule in self.rules), default=0)

    def check_limits(self) -> None:
        """Check the time limit and the limit of matches.

        Raises:
            LimitReachedError: either is reached.
        """
        if self.deadline.is_over:
            raise LimitReachedError("seconds")
        if self.tried > self.limits.matches:
            raise LimitReachedError("matches")

    def build(self, match: Match, origin: Origin) -> tuple[Ref, ...] | None:
        """The right sides of a match, or None where they cannot be built (the failure is counted)."""
        self.eg.current_origin = origin
        try:
            values = build(match, self.eg)
            claims(self.eg, match, values, origin)
            return values
        except (BuildError, ShapeError) as error:
            self.counts[match.rule.name].errors[str(error)] += 1
            return None
        finally:
            self.eg.current_origin = None

    def unite(self) -> int:
        """Unite the pairs in `found` and rebuild; return the number of changes."""
        eg = self.eg
        changed = 0
        for a, b, origin in self.found:
            cls = eg.find_class(a)
            if eg.find_class(b) != cls and len(eg.enodes(cls)) >= self.limits.per_class:
                self.class_caps += 1
                self.counts[origin.rule].capped += 1
            elif eg.union(a, b, origin):
                changed += 1
                self.counts[origin.rule].unions += 1
        self.found.clear()
        eg.rebuild()
        return changed

    def hide_variants(self) -> None:
        """Keep one of the forms that differ only in frozen operands, in the classes that changed."""
        eg = self.eg
        for cls in sorted({eg.find_class(c << PERM_BITS) for c in eg.dirty}):
            nodes = eg.enodes(cls)
            if len(nodes) < 2:
                continue
            seen: set[Hashable] = set()
            for node in sorted(nodes, key=eg.origin.__contains__):
                key = _live_part(eg, node)
                if key is None:
                    continue
                if key in seen and node in eg.origin:
                    eg.hide(node)
                    self.hidden += 1
                seen.add(key)

    def finish_counts(self) -> None:
        """Copy the matcher's statistics into the counts per rule."""
        for name, counts in self.counts.items():
            counts.attempts = self.stats.attempts[name]
            counts.structure = self.stats.structural[name]
            counts.matches = self.stats.matches[name]
        for (name, reason), number in self.stats.misses.items():
            self.counts[name].misses[reason] = number


def _live_part(eg: EGraph, node: ENode) -> Hashable:
    """Key on which variants agree: op, live operands and sizes of frozen ones; None unless there are both kinds.

    Two e-nodes of a class with one key differ only in frozen operands.
    """
    frozen = [eg.frozen(child) for child in node[1:]]
    if all(frozen) or not any(frozen):
        return None
    op, attrs = eg.op_of(node), eg.attrs_of(node)
    if op == "macro":
        v = eg.values_of(node)
        return v["rule"], _signature(eg, v["op"], v["attrs"], node[1:], frozen)
    return _signature(eg, op, attrs, node[1:], frozen)


def _signature(eg: EGraph, op: str, attrs: Attrs, children: tuple[Ref, ...], frozen: list[bool]) -> Hashable:
    operands = [
        (_stored(eg, child), -1) if is_frozen else (-1, eg.find_class(child))
        for child, is_frozen in zip(children, frozen, strict=True)
    ]
    if op in COMMUTATIVE:
        return op, tuple(sorted(operands))
    if op in PRODUCTS:
        v = dict(attrs)
        contracted, batch = v["dimension_numbers"]
        side = frozen.index(False)
        return op, contracted[side], batch[side], v["precision"], v["preferred_element_type"], tuple(sorted(operands))
    if op in CONVOLUTIONS:
        v = dict(attrs)
        image, kernel, _ = v.pop("dimension_numbers")
        return op, (kernel if frozen[0] else image), tuple(sorted(v.items())), tuple(operands)
    return op, attrs, tuple(operands)


def _stored(eg: EGraph, ref: Ref) -> int:
    """Number of elements that a frozen tensor takes in memory."""
    for source, _ in broadcast_views(eg, ref):
        return math.prod(eg.shape(source))
    return math.prod(eg.shape(ref))
