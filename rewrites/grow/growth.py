"""Growing the e-graph: rules applied until nothing new, or until a limit.

One iteration matches every rule at the live classes that changed and at those above them as far as its pattern is
deep, builds all right sides, unites, and rebuilds once.  What a limit kept from being matched is matched by the next
growth.  Equal layers are matched once (`rewrites.match.likeness`).  Rules apply by their mode.  `saturate` rules apply
everywhere; a `macro` rule adds one e-node that stands for a lowering of its op; `merge` rules join siblings of a
shared operand (`rewrites.grow.merge`) whenever the rest is saturated.  `near` rules apply only at the classes that the
caller names, for one iteration.  Frozen classes are leaves for the search.  Only rules whose right side is a diagonal
or a mask (`10 * I`) are matched there, since rules above them read its structure.

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
from rewrites.language.kinds import chooses_by_position, rounds_products
from rewrites.language.term import Rule
from rewrites.match import sites
from rewrites.match.likeness import names_once
from rewrites.match.matching import matches, may_match
from rewrites.match.space import Alternative, EGraphSpace, space_of
from superopt.ir.scalar import HALVES
from superopt.ir.types import FLOATS
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

    With `near`, the first iteration applies rules of mode `near` at these classes, and merge rules apply only there.
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
    """Run one iteration: a pass at changed classes, or merges where it changes nothing."""
    eg = run.eg
    always = [rule for rule in run.rules if rule.mode in ("saturate", "macro")]
    everywhere, dirty = run.everywhere, set(eg.dirty)
    above = None if everywhere else sites.affected(eg, dirty, run.deepest)
    run.likeness.forget(above)
    live = sites.live_classes(eg)
    if run.near is not None and not run.step:
        named = {eg.find_class(cls << PERM_BITS): 0 for cls in run.near}
        _pass(run, [rule for rule in run.rules if rule.mode == "near"], live, named)
        run.sizes.append(eg.enode_count)
        return
    eg.dirty = _unused(eg, dirty, live)
    try:
        changes = _pass(run, always, live, above)
    except LimitReachedError:
        eg.dirty |= set(eg.classes()) if everywhere else dirty
        raise
    run.sizes.append(eg.enode_count)
    if changes:
        return
    if merge_siblings(run, [rule for rule in run.rules if rule.mode == "merge"], run.near):
        run.hide_variants()
        run.sizes.append(eg.enode_count)
    else:
        run.saturated = everywhere or not run.everywhere


def _unused(eg: EGraph, classes: Iterable[int], live: Sequence[int]) -> set[int]:
    """Those of some classes that nothing uses yet and that are not frozen: they are matched when something does."""
    current = {eg.find_class(cls << PERM_BITS) for cls in classes}
    return {cls for cls in current.difference(live) if not eg.frozen(cls << PERM_BITS)}


def _pass(run: Growth, rules: Sequence[Rule], live: Sequence[int], above: Mapping[int, int] | None) -> int:
    """Match all rules at some live classes, then unite what was found; return the number of changes.

    Args:
        above: class -> number of ops between it and what has changed, within the left sides of some rule; None: at all.
    """
    eg = run.eg
    run.step += 1
    run.everywhere = False
    index = sites.by_operator(eg, _within(live, above))
    has_frozen = above is None or any(eg.frozen(cls << PERM_BITS) for cls in above)
    frozen = sites.by_operator(eg, _within(sites.frozen_classes(eg), above) if has_frozen else ())
    for rule in rules:
        counts = run.counts[rule.name]
        candidates = _candidates(rule, index) + (_candidates(rule, frozen) if rule.fact(chooses_by_position) else [])
        if above is not None:
            depth = rule.fact(sites.pattern_depth)
            candidates = [cls for cls in candidates if above[cls] <= depth]
        before = run.stats.matches[rule.name]
        watch = Stopwatch()
        try:
            for done, cls in enumerate(candidates):
                run.check_limits()
                if run.stats.matches[rule.name] - before > run.limits.per_rule:
                    counts.capped += len(candidates) - done
                    run.everywhere = True
                    break
                _fire(run, rule, cls)
        finally:
            counts.seconds += watch.elapsed_s
    changed = run.unite()
    run.hide_variants()
    return changed


def _fire(run: Growth, rule: Rule, cls: int) -> None:
    """Apply a rule at a class, unless it is known to match nothing there, or nothing else than before."""
    if not rule.fact(names_once):
        _apply(run, rule, cls)
        return
    likeness, space, before = run.likeness, space_of(run.eg), run.stats.matches[rule.name]
    if not may_match(rule, space, cls):
        run.stats.attempts[rule.name] += 1
        return
    number = likeness.of(space, cls, rule.fact(sites.pattern_depth))
    if (rule.name, number) in likeness.unmatched or likeness.matched.get((rule.name, cls)) == number:
        return
    _apply(run, rule, cls)
    if run.stats.matches[rule.name] == before:
        likeness.unmatched.add((rule.name, number))
    else:
        likeness.matched[rule.name, cls] = number


def _apply(run: Growth, rule: Rule, cls: int) -> None:
    fire = _lower if rule.mode == "macro" else _rewrite
    fire(run, rule, cls)


def _rewrite(run: Growth, rule: Rule, cls: int) -> None:
    """Build the right sides of all matches at a class."""
    for match in matches(rule, run.eg, cls << PERM_BITS, stats=run.stats, dtypes=rule.fact(_dtypes)):
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
        space = _space_of(eg, cls, known[node])
        for _ in matches(rule, space, cls << PERM_BITS, stats=run.stats, dtypes=rule.fact(_dtypes)):
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


def _dtypes(rule: Rule) -> tuple[str, ...]:
    """Float types in which growth applies a rule."""
    return tuple([x for x in FLOATS if x not in HALVES]) if rounds_products(rule) else FLOATS


def _within(classes: Sequence[int], some: Collection[int] | None) -> list[int]:
    return [cls for cls in classes if some is None or cls in some]


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
