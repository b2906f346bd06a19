"""Growing the e-graph: rules applied until nothing new, or until a limit.

One iteration matches every rule at every live class that changed (closed upwards to the depth of the patterns), builds
all right sides, unites, and rebuilds once; a fixed point is confirmed by a pass over all classes.  Rules apply by
their mode: `saturate` everywhere; `macro` adds one e-node that stands for a lowering of its op; `merge` joins
siblings of a shared operand (`rewrites.grow.merge`) whenever the rest is saturated; `near` only at the classes that the
caller names, for one iteration.  Frozen classes are leaves for the search, so nothing is matched there.

Growth never fails for size or time: it stops at a limit with a reason, and the e-graph stays consistent.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rewrites.build.arrange import BuildError
from rewrites.build.terms import build
from rewrites.egraph.graph import EGraph, LimitReachedError, Origin, Ref
from rewrites.egraph.perm import PERM_BITS
from rewrites.grow import merge, variants
from rewrites.grow.proof import ProvingEGraph, claims
from rewrites.language.term import Rule
from rewrites.match import sites
from rewrites.match.matching import Match, MatchStats, matches
from rewrites.match.space import Alternative, EGraphSpace
from superopt.errors import ShapeError

LAWS = "rewrites/library/normal.py"


@dataclass(frozen=True, slots=True)
class GrowthLimits:
    """When growth stops, or passes over a site.

    Attributes:
        enodes: size of the e-graph.
        seconds: wall time.
        per_class: e-nodes of one class; a class of thousands makes every match on it slow.
        iterations: passes over the rules.
        per_rule: matches of one rule in one iteration.
        matches: of all rules.
    """

    enodes: int = 20_000
    seconds: float = 20.0
    per_class: int = 256
    iterations: int = 40
    per_rule: int = 2_000
    matches: float = math.inf


@dataclass(slots=True)
class RuleCounts:
    """What one rule did.

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


@dataclass(frozen=True, slots=True)
class GrowthReport:
    """What growth did and why it stopped.

    Attributes:
        stop: `saturated`, `enodes`, `seconds` or `iterations`.
        enodes: size of the e-graph before growth and after every iteration.
        live_classes: classes that a selection may use and that are not frozen.
        components: strongly connected components of more than one class; selections can be cyclic only there.
        class_caps: unions passed over because a class was full.
        hidden: forms that differ from a listed one only in frozen operands.
    """

    stop: str
    iterations: int
    enodes: tuple[int, ...]
    classes: int
    live_classes: int
    components: int
    class_caps: int
    hidden: int
    symmetric_unions: int
    seconds: float
    rules: Mapping[str, RuleCounts]


@dataclass(slots=True)
class Growth:
    """The state of one growth run."""

    eg: EGraph
    limits: GrowthLimits
    started_s: float
    counts: dict[str, RuleCounts]
    stats: MatchStats = field(default_factory=MatchStats)
    step: int = 0
    class_caps: int = 0
    hidden: int = 0
    tried: int = 0  # matches, in all iterations
    found: list[tuple[Ref, Ref, Origin]] = field(default_factory=list[tuple[Ref, Ref, Origin]])

    def check_limits(self) -> None:
        """Stop when the time is over, or the matches that stand for it.

        Raises:
            LimitReachedError: it is.
        """
        if time.perf_counter() - self.started_s > self.limits.seconds:
            raise LimitReachedError("seconds")
        if self.tried > self.limits.matches:
            raise LimitReachedError("matches")

    def build(self, match: Match, origin: Origin) -> tuple[Ref, ...] | None:
        """The right sides of a match, or None where they cannot be built (counted)."""
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
        """Unite what was found and rebuild; number of changes."""
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
        self.hidden += variants.hide_variants(
            self.eg, sorted({self.eg.find_class(c << PERM_BITS) for c in self.eg.dirty})
        )

    def finish_counts(self) -> None:
        """Copy the matcher's statistics into the counts per rule."""
        for name, counts in self.counts.items():
            counts.attempts = self.stats.attempts[name]
            counts.structure = self.stats.structural[name]
            counts.matches = self.stats.matches[name]
        for (name, reason), number in self.stats.misses.items():
            self.counts[name].misses[reason] = number


def grow(
    eg: EGraph, rules: Iterable[Rule], limits: GrowthLimits | None = None, near: Collection[int] | None = None
) -> GrowthReport:
    """Apply rules until saturation or a limit; with `near`, first once all rules there, and merge only there."""
    limits = limits or GrowthLimits()
    rules = tuple(rule for rule in rules if not is_law(rule))
    run = Growth(eg, limits, time.perf_counter(), {rule.name: RuleCounts() for rule in rules})
    previous = eg.max_enodes, eg.deadline_s
    eg.max_enodes, eg.deadline_s = limits.enodes, run.started_s + limits.seconds
    sizes = [eg.enode_count]
    try:
        stop = _loop(run, rules, near, sizes)
    except LimitReachedError as limit:
        stop = limit.reason
        run.unite()
        sizes.append(eg.enode_count)
    finally:
        eg.max_enodes, eg.deadline_s = previous
        run.finish_counts()
    return GrowthReport(
        stop=stop,
        iterations=run.step,
        enodes=tuple(sizes),
        classes=eg.class_count,
        live_classes=len(sites.live_classes(eg)),
        components=len(sites.components(eg)),
        class_caps=run.class_caps,
        hidden=run.hidden,
        symmetric_unions=eg.symmetric_unions,
        seconds=time.perf_counter() - run.started_s,
        rules=run.counts,
    )


def _loop(run: Growth, rules: Sequence[Rule], near: Collection[int] | None, sizes: list[int]) -> str:
    """Iterate to a fixed point; the stop reason."""
    eg = run.eg
    always = [rule for rule in rules if rule.mode in ("saturate", "macro")]
    merging = [rule for rule in rules if rule.mode == "merge"]
    levels = sites.pattern_depth(always) + 1  # a condition may read the class of a variable
    everywhere = near is None
    if near is not None:
        named = {eg.find_class(cls << PERM_BITS) for cls in near}
        _pass(run, [rule for rule in rules if rule.mode not in ("merge", "proof")], named)
        sizes.append(eg.enode_count)
    while run.step < run.limits.iterations:
        classes = None if everywhere else sites.affected(eg, eg.dirty, levels)
        eg.dirty.clear()
        changed = _pass(run, always, classes)
        sizes.append(eg.enode_count)
        if changed:
            everywhere = False
        elif merge.merge_siblings(run, merging, near):
            everywhere = False
            run.hide_variants()
            sizes.append(eg.enode_count)
        elif everywhere:
            return "saturated"
        else:
            everywhere = True  # confirm the fixed point without the index
    return "iterations"


def _pass(run: Growth, rules: Sequence[Rule], classes: Collection[int] | None) -> int:
    """Match all rules at some live classes (None: at all), then unite everything found; number of changes."""
    eg = run.eg
    run.step += 1
    live = sites.live_classes(eg)
    index = sites.by_operator(eg, live if classes is None else [cls for cls in live if cls in classes])
    for rule in rules:
        counts = run.counts[rule.name]
        candidates = _candidates(rule, index)
        before = run.stats.matches[rule.name]
        start = time.perf_counter()
        fire = _lower if rule.mode == "macro" else _rewrite
        try:
            for done, cls in enumerate(candidates):
                run.check_limits()
                if run.stats.matches[rule.name] - before > run.limits.per_rule:
                    counts.capped += len(candidates) - done
                    break
                fire(run, rule, cls)
        finally:
            counts.seconds += time.perf_counter() - start
    changed = run.unite()
    run.hide_variants()
    return changed


def _rewrite(run: Growth, rule: Rule, cls: int) -> None:
    """Build the right sides of all matches at a class."""
    for match in matches(rule, run.eg, cls << PERM_BITS, stats=run.stats):
        run.tried += 1
        run.check_limits()
        roots = tuple([value for value, _ in match.roots])
        origin = Origin(rule.name, run.step, roots)
        values = run.build(match, origin)
        if values is not None:
            run.found += [(root, value, origin) for root, value in zip(roots, values, strict=True)]


def _lower(run: Growth, rule: Rule, cls: int) -> None:
    """Add the e-node that stands for a lowering of each op of the class that the rule matches."""
    eg = run.eg
    ops = sites.operators(rule, rule.lhs[0])
    made = EGraphSpace(eg).alternatives(cls)
    known = {x.key: x for op in ops for x in made.get(op, ())}  # made once: a class may hold thousands of e-nodes
    for node in eg.enodes(cls):
        if eg.op_of(node) not in ops:
            continue
        run.check_limits()
        attrs = (("attrs", eg.attrs_of(node)), ("op", eg.op_of(node)), ("rule", rule.name))
        for _ in matches(rule, _space_of(eg, cls, known[node]), cls << PERM_BITS, stats=run.stats):
            run.stats.matches[rule.name] += 1  # the matcher counts only what is read to the end
            origin = Origin(rule.name, run.step, (cls << PERM_BITS,))
            eg.current_origin = origin
            try:
                found = (eg.ref_of(node), eg.insert("macro", attrs, node[1:]))
                if isinstance(eg, ProvingEGraph):
                    eg.claim_same(node, *found)
                run.found.append((*found, origin))
            finally:
                eg.current_origin = None
            break


def _candidates(rule: Rule, index: Mapping[str, Sequence[int]]) -> list[int]:
    """Classes with an e-node that the rule's root can match."""
    return sorted({cls for op in sites.operators(rule, rule.lhs[0]) for cls in index.get(op, ())})


def is_law(rule: Rule) -> bool:
    """Whether a rule of the library only states a normal form: the constructors apply it, growth need not."""
    return rule.where.startswith(LAWS)


def _space_of(eg: EGraph, cls: int, one: Alternative) -> EGraphSpace:
    """The e-graph as the matcher sees it, with one op alone in its class."""
    space = EGraphSpace(eg)
    space._alternatives[cls] = {one.op: [one]}  # pyright: ignore[reportPrivateUsage]
    return space
