"""The program before and after as operations that read each other, for drawing.

Both are selections of one e-graph, so a value that exists on both sides has the same number: what is the same, computed
in another way, or absent on the other side is read off directly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.explain.evidence import layout_of, state_of, type_of
from superopt.explore.found import Exploration
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.program import map_nodes
from superopt.ir.types import TensorType
from superopt.kernels.choose.partition import partition
from superopt.measure.kernels import XLA
from superopt.report.data import Drawing, DrawnNode
from superopt.search.emit import numbered_inputs
from superopt.search.pricing import kernel_graph
from superopt.search.search import Finalist
from superopt.search.snapshot import SHIFT, VIEWS, FrozenLeaf
from superopt.search.state import State

MOST = 6_000  # operations of one side; beyond that nobody could read the drawing


def draw(found: Exploration, finalist: Finalist | None, in_kernels: bool = False) -> Drawing | None:
    """The original and a finalist (None: the original again); None where there is nothing or too much to draw.

    The original is drawn in the kernels of XLA, and so is the finalist unless it is `in_kernels`: regions, which are
    kernels of our own or left to XLA.
    """
    shown = finalist or found.result.original
    before = found.result.by_xla(found.result.original, found.model.xla)
    after = state_of(found, shown) if in_kernels else found.result.by_xla(shown, found.model.xla)
    if not before.active() or max(len(before.active()), len(after.active())) > MOST:
        return None
    own = () if finalist is None else _ahead(found, before)
    fused = _regions(found, shown, after, searched=finalist is not None) if in_kernels else _kernels(found, after)
    return Drawing(
        (*own, *_reading(own, _side(before, after, _kernels(found, before)), before)), _side(after, before, fused)
    )


@dataclass(frozen=True, slots=True)
class _Fused:
    """How a side is cut into kernels.

    Attributes:
        kernel: of each class in use, the class whose kernel computes it (the first that does).
        seconds, backend: of each kernel, by the class that it computes.
    """

    kernel: Mapping[int, int]
    seconds: Mapping[int, float]
    backend: Mapping[int, str]


def _side(state: State, other: State, fused: _Fused) -> tuple[DrawnNode, ...]:
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
                predicted_us=None if seconds is None else round(1e6 * seconds, 3),
                change=change,
                rule=option.origin.rule if option.origin is not None else "",
                layout=layout_of(state, c),
                backend=fused.backend.get(kernel, ""),
            )
        )
    return tuple(out)


def _regions(found: Exploration, finalist: Finalist, state: State, *, searched: bool) -> _Fused:
    """A finalist's program cut into regions, each on its backend.

    Args:
        searched: where the search has cut it; else it is the plain candidate, cut as any program is.
    """
    outputs, classes = found.result.lowering.emit(finalist.selection, numbered_inputs())
    done = map_nodes(outputs, lambda _, fresh: found.expand(fresh) if fresh.op == "macro" else fresh)
    of = {done[node]: c for node, c in classes.items() if node in done}
    stored = {node for node, c in of.items() if state.materialised[c]}
    outs = tuple(done[node] for node in outputs)
    inputs = tuple(node for node in topological(outs) if node.op == "input")
    kernel: dict[int, int] = {}
    cut: list[tuple[int, Graph]] = []
    reader: dict[Node, int] = {}
    for region in reversed(partition(Graph(inputs, outs), stored if searched else frozenset())):
        members = [of[node] for node in region.nodes if node in of]
        others = (reader.get(region.root), *reversed(members))  # inside of a macro, of an output laid out
        root = of.get(region.root, next((c for c in others if c is not None), None))
        if root is None:  # an output that is an input laid out
            continue
        reader = dict.fromkeys(region.reads, root) | reader
        kernel[root] = root
        for c in members:
            kernel.setdefault(c, root)
        if not region.is_free:
            cut.append((root, region.graph))
    backend = {c: found.model.own_name if found.model.is_own(graph) else XLA for c, graph in cut}
    prices = found.model.by_backend([graph for _, graph in cut]) if cut else {}
    seconds: dict[int, float] = defaultdict(float)
    for i, (c, _) in enumerate(cut):
        seconds[c] += float(prices[backend[c]][i])
    return _Fused({c: kernel.get(c, c) for c in state.active()}, seconds, backend)


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


def _kernels(found: Exploration, state: State) -> _Fused:
    """A selection in the kernels of XLA: what is materialised, and what is fused into it."""
    kernel: dict[int, int] = {}
    for c in reversed(_order(state)):
        if state.materialised[c]:
            kernel[c] = c
        kernel.setdefault(c, c)
        for k in state.chosen(c).kids:
            if not state.materialised[k]:
                kernel[k] = kernel[c]
    roots = state.kernels()
    prices = found.model.xla.price([kernel_graph(node) for _, node in roots]).tolist() if roots else []
    seconds = {c: s for (c, _), s in zip(roots, prices, strict=True)}
    return _Fused(kernel, seconds, dict.fromkeys(seconds, XLA))
