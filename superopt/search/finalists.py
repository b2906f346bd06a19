"""Finalists: the programs that a search proposes to measure, and how far apart two of them are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from superopt.ir.graph import Graph, Node
from superopt.search.lower import Lowering, Selection
from superopt.search.pricing import UNIT_S, kernel_graph
from superopt.search.snapshot import SHIFT
from superopt.search.state import Problem, Record, State


@dataclass(frozen=True, slots=True)
class Finalist:
    """One program worth measuring.

    Attributes:
        name: where it came from.
        predicted_s: the objective's time.
        selection: options, layouts and materialised classes.
        kernels: (kernel graph, predicted seconds) in execution order, equal kernels repeated.
        rules: rule name -> number of instances whose e-nodes it uses.
        carried: (class reference in its layout, e-node, override) of every class in use, to start a later search.
        classes: the e-graph classes in use (`near` rules grow there).
        prepared_bytes: size of what it prepares.
    """

    name: str
    predicted_s: float
    selection: Selection
    kernels: tuple[tuple[Graph, float], ...]
    rules: Counter[str]
    carried: tuple[tuple[int, tuple[int, ...], int], ...]
    classes: frozenset[int]
    prepared_bytes: int
    original: bool = False


def finalist(problem: Problem, lowering: Lowering, name: str, record: Record) -> Finalist:
    """A record with everything that building, reporting and continuing need."""
    _, options, layouts, bits = record
    state = State(problem, options, layouts, bits)
    snapshot = problem.snapshot
    selection = Selection(tuple(options), tuple(layouts), tuple(bits), tuple(state.materialised))
    place = {c: i for i, c in enumerate(lowering.order(selection))}
    kernels = sorted(state.kernels(), key=lambda item: place[item[0]])
    active = state.active()
    origins = {state.chosen(c).origin for c in active} - {None}
    return Finalist(
        name,
        state.seconds,
        selection,
        tuple((kernel_graph(node), state.kernel_cost[c] * UNIT_S) for c, node in kernels),
        Counter(origin.rule for origin in sorted(origins, key=lambda o: (o.rule, o.step))),
        tuple((snapshot.class_ids[c] << SHIFT | layouts[c], state.chosen(c).enode, bits[c]) for c in active),
        frozenset(snapshot.class_ids[c] for c in active),
        lowering.prepared_bytes(selection),
        original=name == "original",
    )


def kernel_costs(state: State) -> Counter[Node]:
    """Cost of the state by kernel structure."""
    table: Counter[Node] = Counter()
    for c, node in state.kernels():
        table[node] += state.kernel_cost[c]
    return table


def distance(a: Counter[Node], b: Counter[Node]) -> int:
    """Units of kernels that one program has and the other has not."""
    return sum(abs(a[node] - b[node]) for node in a.keys() | b.keys())
