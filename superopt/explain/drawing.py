"""Drawings of the program before and after, as operations that read each other.

Both are selections of one e-graph, so a value that exists on both sides has the same number.  Whether a value is the
same, computed in another way, or absent on the other side is read off directly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.explain.evidence import by_xla, layout_of, priced, type_of
from superopt.explore.found import Exploration
from superopt.ir.graph import Node
from superopt.ir.types import TensorType
from superopt.measure.kernels import XLA
from superopt.report.data import Drawing, DrawnNode
from superopt.search.search import Finalist
from superopt.search.snapshot import SHIFT, VIEWS, FrozenLeaf
from superopt.search.state import State

MOST = 6_000  # operations of one side; beyond that nobody could read the drawing


def draw(found: Exploration, finalist: Finalist | None, computes_ahead: bool = False) -> Drawing | None:
    """Draw the original and a finalist (None: the original again) as XLA computes them; None where it is too large.

    Args:
        computes_ahead: whether the original's identity form is returned, with its frozen part computed ahead.
    """
    before = by_xla(found, found.result.original)
    after = by_xla(found, finalist or found.result.original)
    if not before.active() or max(len(before.active()), len(after.active())) > MOST:
        return None
    own = ahead(found, before) if finalist is not None or computes_ahead else ()
    own_types = types_of(found)
    return Drawing(
        (*own, *as_written(_reading(own, _side(before, after, _kernels(found, before)), before), own_types)),
        as_written(_side(after, before, _kernels(found, after)), own_types),
    )


def drawn_before(found: Exploration, after: State, computes_ahead: bool) -> tuple[DrawnNode, ...]:
    """Draw the original as XLA computes it, for comparison with a program that is this state.

    The program may compute frozen values ahead.
    """
    before = by_xla(found, found.result.original)
    own = ahead(found, before) if computes_ahead else ()
    drawn = _reading(own, _side(before, after, _kernels(found, before)), before)
    return (*own, *as_written(drawn, types_of(found)))


def types_of(found: Exploration) -> dict[int, str]:
    """Return the types of values that the program itself computes, with their axes in its order, by class."""
    snapshot, graph = found.result.problem.snapshot, found.graph
    number = {cls: c for c, cls in enumerate(snapshot.class_ids)}
    types: dict[int, str] = {}
    for node, ref in zip(dict.fromkeys((*graph.inputs, *graph.nodes())), snapshot.eg.imported, strict=True):
        c = number.get(snapshot.eg.find(ref) >> SHIFT)
        if c is not None and len(node.types) == 1:
            types.setdefault(c, str(node.type))
    return types


def as_written(nodes: Sequence[DrawnNode], types: Mapping[int, str]) -> tuple[DrawnNode, ...]:
    """Return the nodes with these types; layouts are kept only where the type has the axis order of its class."""
    return tuple(
        replace(node, type=types[node.id], layout=node.layout if types[node.id] == node.type else "")
        if node.id in types
        else node
        for node in nodes
    )


@dataclass(frozen=True, slots=True)
class _Fused:
    """The partition of a side into kernels.

    Attributes:
        kernel: class in use -> the class whose kernel computes it (the first that does).
        seconds, timed: class that a kernel computes -> its seconds, and whether it was timed.
    """

    kernel: Mapping[int, int]
    seconds: Mapping[int, float]
    timed: Mapping[int, bool]


def _side(state: State, other: State, fused: _Fused) -> tuple[DrawnNode, ...]:
    """Return the nodes of a program's drawing, with what changed against the other one."""
    out: list[DrawnNode] = []
    for c in _order(state):
        option = state.chosen(c)
        form = option.form
        change = change_of(state, other, c)
        name = dict(form.attrs).get("name") if form.op == "input" else None
        kernel = fused.kernel.get(c, c)
        seconds = fused.seconds.get(c) if kernel == c else None
        out.append(
            DrawnNode(
                id=c,
                op=f"input {name}" if name else form.op,
                type=type_of(state, c),
                reads=tuple(dict.fromkeys(option.kids)),
                frozen=tuple(_frozen(leaf) for leaf in option.frozen if leaf is not None),
                kernel=kernel,
                us=None if seconds is None else 1e6 * seconds,
                change=change,
                rule=option.origin.rule if option.origin is not None else "",
                layout=layout_of(state, c),
                backend=XLA if kernel in fused.seconds else "",
                timed=seconds is not None and fused.timed[c],
            )
        )
    return tuple(out)


def change_of(state: State, other: State, c: int) -> str:
    """Classify how the value of a class differs from the other side: only, same or other."""
    if not other.readers[c]:
        return "only"
    return "same" if other.chosen(c).enode == state.chosen(c).enode else "other"


def ahead(found: Exploration, state: State) -> tuple[DrawnNode, ...]:
    """Return the nodes computed of frozen inputs alone, which the returned program computes ahead of time.

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
    """Draw a value that only one other reads in the same box as its reader."""
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
    """Add the values of frozen inputs to the operands of the nodes that read them."""
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
    """Return the classes in use, operands first."""
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


def _kernels(found: Exploration, state: State) -> _Fused:
    """Partition a selection into the kernels of XLA: the materialised values, and the values fused into each."""
    kernel: dict[int, int] = {}
    for c in reversed(_order(state)):
        if state.materialised[c]:
            kernel[c] = c
        kernel.setdefault(c, c)
        for k in state.chosen(c).kids:
            if not state.materialised[k]:
                kernel[k] = kernel[c]
    known = priced(found, state)
    seconds = {c: s for c, (_, s) in known.items()}
    return _Fused(kernel, seconds, {c: graph in found.model.xla for c, (graph, _) in known.items()})
