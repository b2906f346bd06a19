"""Element labels of all nodes of a plan and its programs: each computed once, and kept only while a reader is left.

A node is labelled from its operands' labels; as soon as both sides of a step are labelled, they are made equal.  The
order follows the depth of the original program: steps at one depth come before the parts of the returned program there.
A node comes right before its first reader, so that few labels are kept at a time.

A label identifies the expression of an element, and equalities are only ever added, so a label that was computed before
an equality was known is still true.  Neither the order, nor the labels kept, nor the number of sweeps can make two
different expressions equal; they decide whether a proof is found, and how soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from superopt.ir.graph import Node
from superopt.ir.ops.table import CONTRACTIONS
from verifier.programs.elements import ElementLabels
from verifier.programs.mixing import Ids

NodePair = tuple[Node, Node]
IdRow = tuple[Ids, ...]


@dataclass(frozen=True, slots=True)
class LabelTask:
    """A node to label, pairs to make equal that are then labelled, and nodes whose labels are no longer read."""

    node: Node
    equal: tuple[NodePair, ...]
    done: tuple[Node, ...]


def tasks(original: Sequence[Node], steps: Sequence[NodePair], returned: Sequence[Node]) -> list[LabelTask]:
    """Tasks for all nodes below the outputs of two programs and the sides of steps, ordered to keep few labels."""
    partners: dict[Node, list[NodePair]] = {}
    for pair in steps:
        for side in pair:
            partners.setdefault(side, []).append(pair)
    first, depth = _depths((*original, *(side for pair in steps for side in pair)), partners, {})
    known = set(first)
    last, depth = _depths(returned, {}, depth)
    anchors = [n for n in (*first, *last) if depth[n][0]]
    anchors.sort(key=lambda n: (depth[n][1], n not in known))  # stable: operands first
    order = _order((*anchors, *first, *last), partners)
    place = {node: at for at, node in enumerate(order)}
    equal: dict[Node, list[NodePair]] = {}
    until = dict(place)
    for node in order:
        for x in node.inputs:
            until[x] = max(until[x], place[node])
    for a, b in dict.fromkeys(steps):
        later = max(a, b, key=lambda n: place[n])
        equal.setdefault(later, []).append((a, b))
        until[a], until[b] = max(until[a], place[later]), max(until[b], place[later])
    kept = {*original, *returned}
    done: dict[int, list[Node]] = {}
    for node in order:
        if node not in kept:
            done.setdefault(until[node], []).append(node)
    return [LabelTask(n, tuple(equal.get(n, ())), tuple(done.get(at, ()))) for at, n in enumerate(order)]


def sweep(
    labels: ElementLabels, order: Sequence[LabelTask], visit: Callable[[Node, IdRow], None] | None = None
) -> dict[Node, IdRow]:
    """Label all nodes once and unite the pairs that are stated equal; returns the labels of the programs' outputs."""
    held: dict[Node, IdRow] = {}
    for task in order:
        row = held[task.node] = labels.label(task.node, [held[x] for x in task.node.inputs])
        if visit is not None:
            visit(task.node, row)
        for a, b in task.equal:
            held[a] = held[b] = tuple(map(labels.merges.unite, held[a], held[b]))
        for node in task.done:
            del held[node]
    return held


def _order(roots: Iterable[Node], partners: dict[Node, list[NodePair]]) -> list[Node]:
    """Nodes in topological order; nodes that a step equates with a node come right after it."""
    out: dict[Node, None] = {}
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [] if node in out else [x for x in reversed(node.inputs) if x not in out]
            if missing:
                stack += missing
                continue
            stack.pop()
            if node not in out:
                out[node] = None
                stack += [side for pair in partners.get(node, ()) for side in pair if side not in out]
    return list(out)


def _depths(
    roots: Iterable[Node], partners: dict[Node, list[NodePair]], known: dict[Node, tuple[bool, int]]
) -> tuple[list[Node], dict[Node, tuple[bool, int]]]:
    """Nodes in order, and for each, whether it depends on unfrozen inputs and how many contractions lie between.

    Both sides of a step get the same depth.
    """
    depth = dict(known)
    order = [n for n in _order(roots, partners) if n not in known]
    for node in order:
        below = [depth[x] for x in node.inputs if depth[x][0]]
        live = bool(below) or (node.op == "input" and not node["frozen"])
        depth[node] = live, max((n for _, n in below), default=0) + (live and node.op in CONTRACTIONS)
        for a, b in partners.get(node, ()):
            if a in depth and b in depth:
                depth[a] = depth[b] = min(depth[a], depth[b])
    return order, depth


__all__ = ["LabelTask", "sweep", "tasks"]
