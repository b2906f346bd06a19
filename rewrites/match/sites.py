"""Sites where rules can fire: classes by operator, and the classes that a change can affect.

Semi-naive growth re-matches a rule only at *dirty* classes: those that changed since the last pass and those above them
up to the depth of the deepest pattern.  Reshapes and broadcasts do not count as depth, because the matcher sees
through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import networkx as nx

from rewrites.egraph.graph import EGraph
from rewrites.egraph.perm import PERM_BITS
from rewrites.language.term import Rule, Term

_TRANSPARENT = frozenset({"regroup", "broadcast_in_dim"})


def depth(t: Term) -> int:
    """Number of ops on the longest path of a pattern."""
    return 0 if t.op in ("var", "lit") else 1 + max((depth(a) for a in t.args), default=0)


def pattern_depth(rule: Rule) -> int:
    """Depth of the deepest left side of a rule: what lies further below a class is not read, conditions included."""
    return max(depth(t) for t in rule.lhs)


def by_operator(eg: EGraph, classes: Iterable[int]) -> Mapping[str, Sequence[int]]:
    """Classes that hold an e-node of each operator, in order of creation."""
    found: dict[str, list[int]] = {}
    for cls in sorted(classes):
        for op in dict.fromkeys(eg.op_of(node) for node in eg.enodes(cls)):
            found.setdefault(op, []).append(cls)
    return found


def affected(eg: EGraph, changed: Iterable[int], most: int) -> dict[int, int]:
    """The changed classes and those at most `most` ops above them, each with the number of ops between."""
    reached: dict[int, int] = {}
    frontier = {eg.find_class(cls << PERM_BITS) for cls in changed}
    for level in range(most + 1):
        above: set[int] = set()
        stack = list(frontier)
        while stack:
            cls = stack.pop()
            if reached.get(cls, most + 1) <= level:
                continue
            reached[cls] = level
            for node in eg.parents(cls):
                parent = eg.ref_of(node) >> PERM_BITS
                if eg.op_of(node) in _TRANSPARENT:
                    stack.append(parent)
                else:
                    above.add(parent)
        frontier = above
    return reached


def live_classes(eg: EGraph) -> list[int]:
    """Classes that some selection from the roots may use and that are not frozen, in order of creation."""
    return _used(eg, lambda cls: not eg.frozen(cls << PERM_BITS))


def frozen_classes(eg: EGraph) -> list[int]:
    """Frozen classes that the live ones are made of, in order of creation."""
    return [cls for cls in _used(eg, lambda cls: True) if eg.frozen(cls << PERM_BITS)]


def _used(eg: EGraph, enters: Callable[[int], bool]) -> list[int]:
    """Classes on the ways down from the roots, as far as a test of classes lets through."""
    seen: set[int] = set()
    stack = [eg.find_class(root) for root in eg.roots]
    while stack:
        cls = stack.pop()
        if cls in seen or not enters(cls):
            continue
        seen.add(cls)
        stack.extend(eg.find_class(child) for node in eg.enodes(cls) for child in node[1:])
    return sorted(seen)


def components(eg: EGraph) -> list[list[int]]:
    """Strongly connected components of more than one class: only inside one can a selection be cyclic."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from((cls, child) for cls in eg.classes() for child in _children(eg, cls))
    return [sorted(found) for found in nx.strongly_connected_components(graph) if len(found) > 1]


def _children(eg: EGraph, cls: int) -> list[int]:
    return list(dict.fromkeys(eg.find_class(child) for node in eg.enodes(cls) for child in node[1:]))
