"""The program before and after as operations that read each other, for drawing.

Both are selections of one e-graph, so a value that exists on both sides has the same number: what is the same, computed
in another way, or absent on the other side is read off directly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from superopt.explain.evidence import layout_of, state_of, type_of
from superopt.explore.found import Exploration
from superopt.ir.graph import Node
from superopt.ir.types import TensorType
from superopt.report.data import Drawing, DrawnNode
from superopt.search.pricing import UNIT_S
from superopt.search.search import Finalist
from superopt.search.snapshot import SHIFT, VIEWS, FrozenLeaf
from superopt.search.state import State

MOST = 6_000  # operations of one side; beyond that nobody could read the drawing


def draw(found: Exploration, finalist: Finalist | None) -> Drawing | None:
    """The original and a finalist (None: the original again); None where there is nothing or too much to draw."""
    before = state_of(found, found.result.original)
    after = before if finalist is None else state_of(found, finalist)
    if not before.active() or max(len(before.active()), len(after.active())) > MOST:
        return None
    own = () if finalist is None else _ahead(found, before)
    return Drawing((*own, *_reading(own, _side(before, after), before)), _side(after, before))


def _side(state: State, other: State) -> tuple[DrawnNode, ...]:
    kernel = _kernels(state)
    out: list[DrawnNode] = []
    for c in _order(state):
        option = state.chosen(c)
        form = option.form
        if not other.readers[c]:
            change = "only"
        elif other.chosen(c).enode != option.enode:
            change = "other"
        else:
            change = "same"
        name = dict(form.attrs).get("name") if form.op == "input" else None
        cost = state.kernel_cost[c]
        out.append(
            DrawnNode(
                id=c,
                op=f"input {name}" if name else form.op,
                type=type_of(state, c),
                reads=tuple(dict.fromkeys(option.kids)),
                frozen=tuple(_frozen(leaf) for leaf in option.frozen if leaf is not None),
                kernel=kernel[c],
                predicted_us=round(1e6 * cost * UNIT_S, 3) if kernel[c] == c and form.op != "input" else None,
                change=change,
                rule=option.origin.rule if option.origin is not None else "",
                layout=layout_of(state, c),
            )
        )
    return tuple(out)


def _ahead(found: Exploration, state: State) -> tuple[DrawnNode, ...]:
    """What the program computes of frozen inputs alone, which the returned program has done ahead of time.

    Such values are no part of a selection; they get negative numbers, one for each class of the e-graph.  Of equal
    values the first is drawn: a value that equals one of its own operands would read itself.
    """
    eg, graph = state.snapshot.eg, found.graph
    nodes = list(dict.fromkeys((*graph.inputs, *graph.nodes())))
    wanted = {eg.find(leaf.source) >> SHIFT for leaf in _leaves(state) if leaf.value is None}
    number: dict[Node, int] = {}
    drawn: set[int] = set()
    out: list[DrawnNode] = []
    needed = {n for n, ref in zip(nodes, eg.imported, strict=True) if eg.find(ref) >> SHIFT in wanted}
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.inputs)
    for node, ref in zip(nodes, eg.imported, strict=True):
        if node not in needed or not eg.frozen(ref) or len(node.types) != 1 or not node.inputs:
            continue
        if node.op in VIEWS:
            if node.inputs[0] in number:
                number[node] = number[node.inputs[0]]
            continue
        number[node] = -1 - (eg.find(ref) >> SHIFT)
        if number[node] in drawn:
            continue
        drawn.add(number[node])
        reads = tuple(dict.fromkeys(number[x] for x in node.inputs if x in number))
        given = tuple(str(x.type) for x in node.inputs if x.op == "input")
        out.append(DrawnNode(number[node], node.op, str(node.type), reads, given, number[node], None, "ahead"))
    return _joined(out)


def _joined(nodes: Sequence[DrawnNode]) -> tuple[DrawnNode, ...]:
    """A value that only one other reads is shown together with it."""
    readers: dict[int, set[int]] = defaultdict(set)
    for node in nodes:
        for k in node.reads:
            readers[k].add(node.id)
    kernel: dict[int, int] = {}
    for node in reversed(nodes):
        above = readers[node.id]
        kernel[node.id] = kernel[next(iter(above))] if len(above) == 1 else node.id
    return tuple(replace(node, kernel=kernel[node.id]) for node in nodes)


def _reading(ahead: Sequence[DrawnNode], nodes: Sequence[DrawnNode], state: State) -> tuple[DrawnNode, ...]:
    """The nodes with the values of frozen inputs among what they read."""
    known = {node.id for node in ahead}
    eg = state.snapshot.eg
    out: list[DrawnNode] = []
    for node in nodes:
        sources = [leaf.source for leaf in state.chosen(node.id).frozen if leaf is not None and leaf.value is None]
        more = [k for k in (-1 - (eg.find(source) >> SHIFT) for source in sources) if k in known]
        out.append(replace(node, reads=(*node.reads, *dict.fromkeys(more))) if more else node)
    return tuple(out)


def _leaves(state: State) -> list[FrozenLeaf]:
    return [leaf for c in state.active() for leaf in state.chosen(c).frozen if leaf is not None]


def _frozen(leaf: FrozenLeaf) -> str:
    if leaf.value is not None:
        return f"{leaf.value:.6g}" if isinstance(leaf.value, float) else str(leaf.value)
    return str(TensorType(leaf.shape, leaf.dtype))


def _order(state: State) -> list[int]:
    """Classes in use, operands first."""
    done: set[int] = set()
    out: list[int] = []
    stack = [(root.cls, False) for root in reversed(state.snapshot.roots) if root.cls >= 0]
    while stack:
        c, ready = stack.pop()
        if ready:
            if c not in done:
                done.add(c)
                out.append(c)
        elif c not in done:
            stack.append((c, True))
            stack.extend((k, False) for k in reversed(state.chosen(c).kids) if k not in done)
    return out


def _kernels(state: State) -> dict[int, int]:
    """Class in use -> the materialised class whose kernel computes it (the first that does)."""
    kernel: dict[int, int] = {}
    for c in reversed(_order(state)):
        if state.materialised[c]:
            kernel[c] = c
        kernel.setdefault(c, c)
        for k in state.chosen(c).kids:
            if not state.materialised[k]:
                kernel[k] = kernel[c]
    return kernel
