"""Growing the e-graph: rules applied until nothing new, or until a limit.

One iteration matches every rule at every live class that changed (closed upwards to the depth of the patterns), builds
all right sides, unites, and rebuilds once; a fixed point is confirmed by a pass over all classes.  Rules apply by
their mode.  `saturate` rules apply everywhere; a `macro` rule adds one e-node that stands for a lowering of its op;
`merge` rules join siblings of a shared operand (`rewrites.grow.merge`) whenever the rest is saturated.  `near` rules
apply only at the classes that the caller names, for one iteration.  Frozen classes are leaves for the search.  Only
rules whose right side is a diagonal or a mask (`10 * I`) are matched there, since rules above them read its structure.

Growth never fails for size or time: it stops at a limit with a reason, and the e-graph stays consistent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rewrites.egraph.graph import EGraph, LimitReachedError, Origin
from rewrites.egraph.perm import PERM_BITS
from rewrites.grow.merge import merge_siblings
from rewrites.grow.proof import ProvingEGraph
from rewrites.grow.state import Growth, GrowthLimits, RuleCounts
from rewrites.language.kinds import chooses_by_position
from rewrites.language.term import Rule
from rewrites.match import sites
from rewrites.match.matching import matches
from rewrites.match.space import Alternative, EGraphSpace
from superopt.machine.deadline import Deadline, Stopwatch

LAWS = "rewrites/library/normal.py"
MOST_S = 20.0


@dataclass(frozen=True, slots=True)
class GrowthReport:
    """Result of one growth run: sizes, counts per rule, and the reason why it stopped.

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


def grow(
    eg: EGraph,
    rules: Iterable[Rule],
    limits: GrowthLimits | None = None,
    near: Collection[int] | None = None,
    deadline: Deadline | None = None,
) -> GrowthReport:
    """Apply rules until saturation or a limit; without a deadline, for `MOST_S` seconds at most.

    With `near`, the first iteration applies all rules at these classes, and merge rules apply only there.
    """
    run = init(eg, rules, limits or GrowthLimits(), near, deadline or Deadline.within(MOST_S))
    previous = eg.max_enodes, eg.deadline
    eg.max_enodes, eg.deadline = run.limits.enodes, run.deadline
    try:
        while not (stop := done(run)):
            step(run)
    except LimitReachedError as limit:
        stop = limit.reason
        run.unite()
        run.sizes.append(eg.enode_count)
    finally:
        eg.max_enodes, eg.deadline = previous
        run.finish_counts()
    return GrowthReport(
        stop=stop,
        iterations=run.step,
        enodes=tuple(run.sizes),
        classes=eg.class_count,
        live_classes=len(sites.live_classes(eg)),
        components=len(sites.components(eg)),
        class_caps=run.class_caps,
        hidden=run.hidden,
        symmetric_unions=eg.symmetric_unions,
        seconds=run.watch.elapsed_s,
        rules=run.counts,
    )


def init(
    eg: EGraph, rules: Iterable[Rule], limits: GrowthLimits, near: Collection[int] | None, deadline: Deadline
) -> Growth:
    """The state of growth before the first pass."""
    kept = tuple(rule for rule in rules if not is_law(rule))
    counts = {rule.name: RuleCounts() for rule in kept}
    sizes, everywhere = [eg.enode_count], near is None
    return Growth(eg, limits, kept, near, deadline, Stopwatch(), counts, sizes, everywhere=everywhere)


def done(run: Growth) -> str:
    """Why growth is over, or empty."""
    return "saturated" if run.saturated else "iterations" if run.step >= run.limits.iterations else ""


def step(run: Growth) -> None:
    """Run one iteration: a pass at changed classes, or merges, or a pass everywhere that confirms the fixed point."""
    eg = run.eg
    if run.near is not None and not run.step:
        named = {eg.find_class(cls << PERM_BITS) for cls in run.near}
        _pass(run, [rule for rule in run.rules if rule.mode not in ("merge", "proof")], named)
        run.sizes.append(eg.enode_count)
        return
    always = [rule for rule in run.rules if rule.mode in ("saturate", "macro")]
    levels = sites.pattern_depth(always) + 1  # a condition may read the class of a variable
    classes = None if run.everywhere else sites.affected(eg, eg.dirty, levels)
    eg.dirty.clear()
    changed = _pass(run, always, classes)
    run.sizes.append(eg.enode_count)
    if changed:
        run.everywhere = False
    elif merge_siblings(run, [rule for rule in run.rules if rule.mode == "merge"], run.near):
        run.everywhere = False
        run.hide_variants()
        run.sizes.append(eg.enode_count)
    else:
        run.saturated, run.everywhere = run.everywhere, True


def _pass(run: Growth, rules: Sequence[Rule], classes: Collection[int] | None) -> int:
    """Match all rules at some live classes (None: at all), then unite what was found; return the number of changes."""
    eg = run.eg
    run.step += 1
    index, frozen = [
        sites.by_operator(eg, used if classes is None else [cls for cls in used if cls in classes])
        for used in (sites.live_classes(eg), sites.frozen_classes(eg))
    ]
    for rule in rules:
        counts = run.counts[rule.name]
        candidates = _candidates(rule, index) + (_candidates(rule, frozen) if rule.fact(chooses_by_position) else [])
        before = run.stats.matches[rule.name]
        watch = Stopwatch()
        fire = _lower if rule.mode == "macro" else _rewrite
        try:
            for done, cls in enumerate(candidates):
                run.check_limits()
                if run.stats.matches[rule.name] - before > run.limits.per_rule:
                    counts.capped += len(candidates) - done
                    break
                fire(run, rule, cls)
        finally:
            counts.seconds += watch.elapsed_s
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
    ops = rule.heads
    made = EGraphSpace(eg).alternatives(cls)
    known = {x.key: x for op in ops for x in made.get(op, ())}  # made once: a class may hold thousands of e-nodes
    for node in eg.enodes(cls):
        if eg.op_of(node) not in ops:
            continue
        run.check_limits()
        attrs = (("attrs", eg.attrs_of(node)), ("op", eg.op_of(node)), ("rule", rule.name))
        for _ in matches(rule, _space_of(eg, cls, known[node]), cls << PERM_BITS, stats=run.stats):
            run.stats.matches[rule.name] += 1  # the matcher counts only matches that are consumed to the end
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
    return sorted({cls for op in rule.heads for cls in index.get(op, ())})


def is_law(rule: Rule) -> bool:
    """Whether a rule of the library only states a normal form: the constructors apply it, growth need not."""
    return rule.where.startswith(LAWS)


def _space_of(eg: EGraph, cls: int, one: Alternative) -> EGraphSpace:
    """A matcher's view of the e-graph in which one class holds a single op."""
    space = EGraphSpace(eg)
    space._alternatives[cls] = {one.op: [one]}  # pyright: ignore[reportPrivateUsage]
    return space
