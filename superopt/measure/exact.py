"""Results of a program over float64, by the reference interpreter.

There are none for programs with opaque operations or with loops of unknown trip count, and for those of very much work.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from superopt.arrays.placing import release
from superopt.errors import InputError
from superopt.ir.counters import graph_cost
from superopt.ir.graph import Graph, bodies_of, every_node
from superopt.ir.interp import evaluate
from superopt.ir.ops.reduction import CUMULATIVE
from superopt.ir.program import Program
from superopt.ir.types import DTYPES
from superopt.measure.conditioning import Change, Neighbours, wide
from superopt.measure.rounding import unrounded

LIMIT_FLOPS = 1e11
LIMIT_PREFIX_STEPS = 1e8
LIMIT_LOOP_STEPS = 1e5  # operations inside of loops, 10 to 40 us each whatever their size


def exact_results_of(
    program: Program, live: Sequence[Any], frozen: Mapping[str, Any], change: Change = wide
) -> tuple[np.ndarray, ...] | None:
    """Return the results of a program in two parts over float64 for changed values; None where there are none.

    Those that are rounded to integers are their values before that (`superopt.measure.rounding`).
    """
    prepared: tuple[np.ndarray, ...] | None = ()
    if program.prepare is not None:
        prepared = exact_results(program.prepare, (), frozen, change)
    if prepared is None:
        return None
    names = [node["name"] for node in program.prepared_inputs]
    values = dict(zip(names, prepared, strict=True))
    arguments = [change(np.asarray(x)) for x in live]
    return exact_results(unrounded(program.hot), arguments, values, lambda x: x)


def neighbours_of(graph: Graph, live: Sequence[Any], frozen: Mapping[str, Any], seed: int = 0) -> Neighbours:
    """Return exact results of a graph for the values of its inputs, and of inputs nearby.

    Results that are rounded to integers are their values before that (`superopt.measure.rounding`).
    """
    return Neighbours(functools.partial(exact_results, unrounded(graph), live, frozen), seed)


def neighbours_of_kernel(graph: Graph, values: Mapping[str, Any]) -> Neighbours:
    """Return the same for the graph of a kernel, all of whose inputs have their values by name."""
    return neighbours_of(graph, [values[x["name"]] for x in graph.inputs if not x["frozen"]], values)


def exact_results(
    graph: Graph, live: Sequence[Any], frozen: Mapping[str, Any], change: Change = wide
) -> tuple[np.ndarray, ...] | None:
    """Return the results of a graph over float64 for changed values; None where there are none."""
    if graph_cost(graph).flops > LIMIT_FLOPS or prefix_steps(graph) > LIMIT_PREFIX_STEPS:
        return None
    if loop_steps(graph) > LIMIT_LOOP_STEPS:
        return None
    if any(node.dtype not in DTYPES for node in graph.inputs) or any(n.op == "while" for n in every_node([graph])):
        return None
    arguments = [node for node in graph.inputs if not node["frozen"]]
    values = {node["name"]: np.asarray(x) for node, x in zip(arguments, live, strict=True)}
    try:
        return evaluate(graph, _Changed({**graph.constants, **frozen, **values}, change), wide=True)
    except InputError:  # an opaque operation, perhaps inside a body, has no value here
        return None


class _Changed(Mapping[str, np.ndarray]):
    """Values changed on access; memory of those that lie in a file is released again."""

    def __init__(self, values: Mapping[str, Any], change: Change) -> None:
        self._values, self._change = values, change

    def __getitem__(self, name: str) -> np.ndarray:
        array = np.asarray(self._values[name])
        changed = self._change(array)
        if changed is not array:
            release(array)
        return changed

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def prefix_steps(graph: Graph) -> float:
    """Return the steps of the interpreter through prefix folds and sums by segments.

    Each result is formed from the start of its axis, or from all rows.
    """
    steps = 0.0
    for node in graph.nodes():
        sizes: list[int] = [int(n) for n in node.shape] if len(node.types) == 1 else []  # pyright: ignore[reportArgumentType] (sizes are concrete here)
        if node.op in CUMULATIVE:
            steps += float(math.prod(sizes)) * sizes[node["axis"]]
        elif node.op == "segment_sum":
            steps += float(math.prod(sizes)) * math.prod([int(str(n)) for n in node.inputs[1].shape])
    return steps


def loop_steps(graph: Graph) -> float:
    """Return the operations of the interpreter inside of loops and other bodies."""
    steps = 0.0
    for node in graph.nodes():
        for body in bodies_of(node):
            turns = node["length"] if node.op == "scan" else 1
            steps += turns * (len(list(body.nodes())) + loop_steps(body))
    return steps
