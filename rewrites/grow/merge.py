"""Merging siblings: products or convolutions of one operand with frozen weights become slices of one.

A merge rule has two roots that share an operand.  Its siblings are the classes that hold such a product of one live
class.  The pair rule joins them from left to right as one chain: Y1 = merge(r1, r2), Y2 = merge(Y1, r3), and so on.
Siblings that do not fit the chain (another window, say) start a chain of their own.  Each member then equals one slice
of the last product, since the normal forms turn slices of slices into slices.  Where the members differ in shape, those
of equal shape are merged too, because slices of equal size are cheaper to share.

A merged product is never merged again and a set of siblings is merged once: without both bounds merges of merges, in
every order, fill the e-graph.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field

from rewrites.egraph.graph import EGraph, Origin, Ref
from rewrites.egraph.normal import slice_, slice_views
from rewrites.egraph.perm import PERM_BITS, PERM_MASK
from rewrites.grow.proof import ProvingEGraph
from rewrites.grow.state import Growth
from rewrites.language.term import Rule
from rewrites.match import sites
from rewrites.match.matching import matches, shared_tensors

MAX_SIBLINGS = 16


@dataclass(slots=True)
class _MergedSiblings:
    """Siblings merged so far, the slice of the last product that each one equals, and that product."""

    members: list[Ref]
    origin: Origin
    slices: list[tuple[Ref, Ref]] = field(default_factory=list[tuple[Ref, Ref]])
    product: Ref | None = None


def merge_siblings(run: Growth, rules: Sequence[Rule], near: Collection[int] | None = None) -> int:
    """Merge all sets of siblings not merged before, among the classes `near` if given; return the number of changes."""
    eg = run.eg
    changed = 0
    chosen = None if near is None else {eg.find_class(cls << PERM_BITS) for cls in near}
    for rule in rules:
        (shared,) = shared_tensors(rule)
        live = frozenset(sites.live_classes(eg))
        for cls in sorted(live):
            run.check_limits()
            siblings = _siblings(eg, cls, rule.heads, live)
            if chosen is not None:
                siblings = [c for c in siblings if c in chosen]
            for group in (siblings, *_by_shape(eg, siblings)):
                changed += _merge_group(run, rule, cls, shared, group)
    return changed


def _siblings(eg: EGraph, cls: int, ops: frozenset[str], live: Set[int]) -> list[int]:
    """Up to `MAX_SIBLINGS` live classes with an op of these kinds on the class, of one scale, none a merged product."""
    merged = {eg.find_class(c << PERM_BITS) for c in eg.merged}
    found = {eg.ref_of(node) >> PERM_BITS for node in eg.parents(cls) if eg.op_of(node) in ops}
    return _one_scale(eg, sorted(c for c in found if c in live and c not in merged))[:MAX_SIBLINGS]


def _one_scale(eg: EGraph, siblings: list[int]) -> list[int]:
    """Drop siblings that differ from another one by a frozen factor.

    The sibling with all factors is kept, or where chains of factors fork, the one without any.

    A factor folded into the weights makes a second product of the same operand; merging both would compute it twice.
    """
    scaled_from: dict[int, int] = {}
    for cls in siblings:
        for node in eg.enodes(cls):
            if eg.op_of(node) in ("mul", "div", "neg"):
                below = [eg.find_class(child) for child in node[1:] if not eg.frozen(child)]
                if len(below) == 1 and below[0] in siblings:
                    scaled_from.setdefault(cls, below[0])
    chosen: dict[int, None] = {}
    for cls in siblings:
        if cls not in scaled_from:
            chosen[_all_factors(cls, scaled_from)] = None
    return sorted(chosen)


def _all_factors(base: int, scaled_from: dict[int, int]) -> int:
    """The end of the chain of factors above an unscaled product, or the product itself where it forks."""
    last = base
    for _ in scaled_from:
        above = [cls for cls, below in scaled_from.items() if below == last]
        if not above:
            return last
        if len(above) > 1:
            return base
        (last,) = above
    return last


def _by_shape(eg: EGraph, siblings: Sequence[int]) -> list[list[int]]:
    """Siblings grouped by shape; empty where all have one shape."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for cls in siblings:
        groups.setdefault(eg.shape(cls << PERM_BITS), []).append(cls)
    return list(groups.values()) if len(groups) > 1 else []


def _merge_group(run: Growth, rule: Rule, cls: int, shared: str, group: Sequence[int]) -> int:
    """Merge one set of siblings, unless it was merged before; return the number of changes."""
    eg = run.eg
    key = (rule.name, cls, tuple(group))
    if len(group) < 2 or key in eg.merge_keys:
        return 0
    eg.merge_keys.add(key)
    changed = 0
    pending: list[int] = list(group)
    while len(pending) > 1:
        chain = _MergedSiblings([pending[0] << PERM_BITS], Origin(rule.name, run.step, ()))
        rest: list[int] = []
        for c in pending[1:]:
            if not _extend(run, rule, cls, shared, chain, c << PERM_BITS):
                rest.append(c)
        pending = rest
        if chain.product is not None:
            changed += _finish(run, rule, chain)
    return changed


def _extend(run: Growth, rule: Rule, cls: int, shared: str, chain: _MergedSiblings, sibling: Ref) -> bool:
    """Join one more sibling to a chain; whether it fits."""
    eg = run.eg
    last = chain.members[0] if chain.product is None else chain.product
    for match in matches(rule, eg, last, sibling, stats=run.stats):
        if eg.find_class(match.vars[shared][0]) != cls:
            continue
        values = run.build(match, chain.origin)
        if values is None:
            continue
        product = _common_source(eg, *values)
        if product is None:
            continue
        if chain.product is None:
            chain.slices.append((last, values[0]))
        else:
            eg.union(chain.product, values[0], chain.origin)
            eg.rebuild()
        chain.slices.append((sibling, values[1]))
        chain.members.append(sibling)
        chain.product = product
        eg.merged.add(eg.find_class(product))
        return True
    return False


def _common_source(eg: EGraph, left: Ref, right: Ref) -> Ref | None:
    """The tensor of which both references are slices, or None."""
    others = {source >> PERM_BITS for source, _ in slice_views(eg, right)}
    for source, _ in slice_views(eg, left):
        if source >> PERM_BITS in others:
            return eg.find(source & ~PERM_MASK)
    return None


def _finish(run: Growth, rule: Rule, chain: _MergedSiblings) -> int:
    """Unite every member with its slice of the last product, as one rule instance; return the number of changes."""
    eg = run.eg
    origin = Origin(rule.name, run.step, tuple(chain.members))
    if isinstance(eg, ProvingEGraph):
        eg.rename(origin, chain.origin)
    eg.current_origin = origin
    for member, piece in chain.slices:
        for source, box in slice_views(eg, piece):
            run.found.append((member, slice_(eg, source, *box), origin))
            break
    eg.current_origin = None
    for node, known in eg.origin.items():
        if known is chain.origin:
            eg.origin[node] = origin
    return run.unite()
