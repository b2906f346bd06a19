"""Drawings of a returned program in regions as it runs: one box for each region, on its backend.

Before and after need the same number for the same value.  After a search both are selections of one e-graph, whose
classes number them.  Without one, values are the same where their expressions are, in any order of axes: the identity
form is the original with part of it computed ahead and part of it in another layout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from costmodel.model.objective import Objective
from superopt.candidates.candidate import Candidate
from superopt.explain.drawing import MOST, as_written, change_of, drawn_before, types_of
from superopt.explain.evidence import by_xla, layout_of, state_of, type_of
from superopt.explore.found import Exploration
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.program import Program
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.regions import Region, is_inside, key_of
from superopt.measure.kernels import XLA
from superopt.report.data import Drawing, DrawnNode, NativeKernel
from superopt.search.snapshot import SHIFT

_LEAVES = ("input", "literal")


def apart_of(program: Program) -> list[Node]:
    """Return the operations of each call that belong to no region."""
    return [n for n in program.hot.nodes() if n.op not in (*_LEAVES, "result") and not is_inside(n)]


def draw_regions(
    graph: Graph, candidate: Candidate, rows: Sequence[NativeKernel], found: Exploration | None, objective: Objective
) -> Drawing | None:
    """Draw the original as XLA computes it, and the returned program as it runs; None where it is too large.

    Args:
        graph: the original.
        rows: the candidate's regions in the report.
        objective: prices the kernels that XLA computes, where no search has.
    """
    hot = candidate.program.hot
    if not graph.nodes() or max(len(graph.nodes()), len(hot.nodes())) > MOST:
        return None
    if found is None:
        return _alone(graph, candidate, rows, objective)
    original = by_xla(found, found.result.original)
    shown = found.finalist(candidate.finalist) or found.result.original
    state, count = state_of(found, shown), len(found.result.problem.snapshot.options)
    number = _classes(found, candidate)
    drawn = _side(
        hot, candidate.regions, number, _runs(candidate, rows),
        lambda c: change_of(state, original, c) if c < count and state.readers[c] else "only",
    )  # fmt: skip
    told: list[DrawnNode] = []
    for node in drawn:
        if 0 <= node.id < count and state.readers[node.id]:
            option = state.chosen(node.id)
            rule, layout = option.origin.rule if option.origin is not None else "", layout_of(state, node.id)
            node = replace(node, rule=rule, layout=layout or node.layout, type=type_of(state, node.id))
        told.append(node)
    before = drawn_before(found, state, candidate.program.computes_ahead)
    return Drawing(before, as_written(told, types_of(found)))


def named(drawing: Drawing, graph: Graph, found: Exploration | None, scopes: Mapping[Node, str]) -> Drawing:
    """Return a drawing with the names that the program gives to its values.

    Args:
        graph: the original.
        found: the search whose classes number the values; without one their expressions do.
        scopes: node of the original -> its name.
    """
    number = _RegionValues().numbered(graph) if found is None else _imported(found)
    names, alone = dict[int, str](), found is None  # where what is computed ahead has numbers -1 - n
    for node, scope in scopes.items():
        if node in number:
            names.setdefault(number[node], scope)

    def side(nodes: Sequence[DrawnNode]) -> tuple[DrawnNode, ...]:
        return tuple(replace(n, label=names.get(n.id) or (names.get(-1 - n.id, "") if alone else "")) for n in nodes)

    return Drawing(side(drawing.before), side(drawing.after))


def _imported(found: Exploration) -> dict[Node, int]:
    """Return the number of each node of the original: its class in use, or -1 less its class of frozen values."""
    snapshot = found.result.problem.snapshot
    number = {cls: c for c, cls in enumerate(snapshot.class_ids)}
    nodes = dict.fromkeys((*found.graph.inputs, *found.graph.nodes()))
    classes = {node: snapshot.eg.find(ref) >> SHIFT for node, ref in zip(nodes, snapshot.eg.imported, strict=True)}
    return {node: number.get(cls, -1 - cls) for node, cls in classes.items()}


def _alone(graph: Graph, candidate: Candidate, rows: Sequence[NativeKernel], objective: Objective) -> Drawing:
    """Draw both sides without a search: the original in the regions that it would be cut into."""
    program, values = candidate.program, _RegionValues()
    ahead = _done_ahead(program)
    before, after = values.numbered(graph), values.of_program(program)
    cut = [region for region in partition(graph) if not region.is_free and region.root not in ahead]
    prices = objective.price([region.graph for region in cut]).tolist() if cut else []
    runs = {region.root: _RegionRun(XLA, 1e6 * s) for region, s in zip(cut, prices, strict=True)}
    if candidate.is_original:
        drawn = _side(graph, cut, before, runs, lambda _: "same")
        return Drawing(drawn, drawn)
    both = set(after.values()) & set(before.values())

    def change(number: int) -> str:
        return "same" if number in both else "only"

    return Drawing(
        _side(graph, cut, before, runs, change, ahead),
        _side(program.hot, candidate.regions, after, _runs(candidate, rows), change),
    )


@dataclass(frozen=True, slots=True)
class _RegionRun:
    """The backend that runs a region, and the time of one run, if known."""

    backend: str
    us: float | None
    timed: bool = False


def _runs(candidate: Candidate, rows: Sequence[NativeKernel]) -> dict[Node, _RegionRun]:
    """Return the regions of the returned program by root, with the figures of its table."""
    by_key: Mapping[str, NativeKernel] = {row.key: row for row in rows}
    runs: dict[Node, _RegionRun] = {}
    for region in candidate.regions:
        row = by_key[key_of(region.graph)]
        us = None if row.takes_ms is None else 1e3 * row.takes_ms
        runs[region.root] = _RegionRun(row.backend if row.used else XLA, us, row.is_timed)
    return runs


@dataclass(slots=True)
class _RegionValues:
    """Numbers of values by their expression; a transpose has the number of its operand."""

    known: dict[Any, int] = field(default_factory=dict[Any, int])

    def numbered(
        self, graph: Graph, given: Mapping[Node, tuple[int, tuple[int, ...]]] | None = None
    ) -> dict[Node, int]:
        """Return the number of the value of each node."""
        return {node: number for node, (number, _) in self.laid(graph.nodes(), given or {}).items()}

    def of_program(self, program: Program) -> dict[Node, int]:
        """Return the number of the value of each node of a program's hot part, those of prepared tensors included."""
        given: dict[Node, tuple[int, tuple[int, ...]]] = {}
        if program.prepare is not None:
            ahead = self.laid(program.prepare.nodes(), {})
            given = {
                x: ahead[source] for x, source in zip(program.prepared_inputs, program.prepare.outputs, strict=True)
            }
        return self.numbered(program.hot, given)

    def laid(
        self, nodes: Iterable[Node], given: Mapping[Node, tuple[int, tuple[int, ...]]]
    ) -> dict[Node, tuple[int, tuple[int, ...]]]:
        """Return the number of each node's value, and the order in which its axes lie in the node."""
        laid = dict(given)
        for node in nodes:
            if node in laid:
                continue
            if node.op == "transpose":
                number, order = laid[node.inputs[0]]
                laid[node] = number, tuple(order[axis] for axis in node["permutation"])
                continue
            sign = (node.op, node.attrs, node.types, tuple(laid[x] for x in node.inputs))
            rank = len(node.shape) if len(node.types) == 1 else 0
            laid[node] = self.known.setdefault(sign, len(self.known)), tuple(range(rank))
        return laid


def _classes(found: Exploration, candidate: Candidate) -> dict[Node, int]:
    """Return the number of each node's value in the returned program: its class, if that is in use."""
    snapshot, hot = found.result.problem.snapshot, candidate.program.hot
    count, values = len(snapshot.options), _RegionValues()
    of: dict[int, int] = {}  # number of an expression -> class
    winner = found.finalist(candidate.finalist)
    if winner is not None:
        lowering, chosen = found.result.lowering, winner.selection
        program, marked = lowering.lower_classes(chosen, found.graph, found.expand)
        numbered = values.numbered(hot)
        if program.hot.outputs == hot.outputs:
            of = {numbered[node]: c for node, c in marked.items() if node in numbered}
    else:
        number = {cls: c for c, cls in enumerate(snapshot.class_ids)}
        imported = dict.fromkeys((*found.graph.inputs, *found.graph.nodes()))
        expressions = values.laid(imported, {})
        numbered = values.of_program(candidate.program)
        for node, ref in zip(imported, snapshot.eg.imported, strict=True):
            c = number.get(snapshot.eg.find(ref) >> SHIFT)
            if c is not None and len(node.types) == 1:
                of.setdefault(expressions[node][0], c)
    return {node: of.get(number, count + number) for node, number in numbered.items()}


def _done_ahead(program: Program) -> set[Node]:
    """Return the nodes that the original computes of frozen inputs on each call and the program computes ahead."""
    if program.prepare is None or not program.computes_ahead:
        return set()
    return {node for node in program.prepare.nodes() if node.op not in (*_LEAVES, "transpose")}


def _side(
    graph: Graph,
    cut: Sequence[Region],
    number: Mapping[Node, int],
    runs: Mapping[Node, _RegionRun],
    change: Callable[[int], str],
    ahead: Collection[Node] = (),
) -> tuple[DrawnNode, ...]:
    """Return the operations of a graph that is cut into regions, for drawing.

    Args:
        number: number of the value of each node.
        runs: backend and time of each region, by its root.
        change: how a value differs from the other side, by its number.
        ahead: operations that the other side computes ahead of time.
    """
    order = graph.nodes()
    cut = [region for region in cut if region.root in set(order)]  # bodies of control flow are one box
    constant = _constants(order) - {region.root for region in cut}
    own = {node: -1 - number[node] if node in ahead else number[node] for node in order}
    kernel, at = dict[int, int](), dict[int, _RegionRun]()
    fresh = max(number.values(), default=0) + 1
    for region in reversed(cut):
        root = own[region.root]
        if root in at:  # the same value in two orders of axes
            root = own[region.root] = fresh
            fresh += 1
        kernel[root], at[root] = root, runs[region.root]
        for node in region.nodes:
            kernel.setdefault(own[node], root)
    for node in order:
        if node.op not in (*_LEAVES, "result") and not is_inside(node) and node not in constant:
            at.setdefault(own[node], _RegionRun(XLA, None))
    laid: dict[int, str] = {}
    lies = {own[region.root]: region.root for region in cut if region.root.op == "transpose"}
    for c, root in lies.items():
        laid[c] = "axes " + ",".join(map(str, root["permutation"]))
    out: dict[int, DrawnNode] = {}
    for node in order:
        c = own[node]
        if c in out or node.op == "literal" or (node in constant and node not in ahead):
            continue
        reads: dict[int, None] = {}
        given: list[str] = []
        for x in node.inputs:
            if own[x] in out and own[x] != c:
                reads[own[x]] = None
            elif x in constant:
                given.append(_given(x))
        at_home = kernel.get(c, c)
        run = at.get(at_home, _RegionRun("", None))
        out[c] = DrawnNode(
            id=c,
            op=f"input {node['name']}" if node.op == "input" else node["op"] if node.op == "macro" else node.op,
            type=str(node.type) if len(node.types) == 1 else "tuple",
            reads=tuple(reads),
            frozen=tuple(given),
            kernel=at_home,
            us=run.us if at_home == c else None,
            change="ahead" if node in ahead else change(c),
            layout=laid.get(c, ""),
            backend=run.backend,
            timed=run.timed and at_home == c,
        )
    return _at_home(out)


def _at_home(nodes: Mapping[int, DrawnNode]) -> tuple[DrawnNode, ...]:
    """Give each node whose kernel is not drawn a box of its own."""
    return tuple(node if node.kernel in nodes else replace(node, kernel=node.id) for node in nodes.values())


def _constants(order: Sequence[Node]) -> set[Node]:
    """Return the nodes that no live input leads to: literals, frozen inputs, and values computed of these alone."""
    constants: set[Node] = set()
    for node in topological(order):
        given = node.op == "literal" or (node.op == "input" and node["frozen"])
        if given or (node.inputs and all(x in constants for x in node.inputs)):
            constants.add(node)
    return constants


def _given(node: Node) -> str:
    """Describe an operand that does not change."""
    while node.op in ("broadcast_in_dim", "reshape", "transpose"):
        node = node.inputs[0]
    if node.op != "literal":
        return str(node.type)
    value = node["value"]
    return f"{value:.6g}" if isinstance(value, float) else str(value)
