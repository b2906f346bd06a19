"""Values that are compared with themselves are computed by one kernel, however a program is cut into kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import pytest

from superopt.ir.graph import Graph, Node, literal, make_input, mk
from superopt.kernels.choose.bitwise_consistency import compared_values, computed_twice
from superopt.kernels.choose.defaults import default
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.regions import Region, cut, region_of
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm import cpu
from superopt.kernels.loops.program import from_graph
from superopt.kernels.runtime.kernel import build

ROWS, COLUMNS, HALF = 40, 72, "bfloat16"


def values(positions: bool) -> tuple[Node, Node]:
    """Products of 16-bit floats, which kernels round where they are stored, and the largest of each column."""
    if positions:
        x = mk("add", mk("iota", shape=(ROWS, COLUMNS), dtype=HALF, dimension=1), _all(0.5))
        y = mk("mul", x, mk("add", mk("iota", shape=(ROWS, COLUMNS), dtype=HALF, dimension=0), _all(0.75)))
    else:
        y = mk("mul", make_input("x", (ROWS, COLUMNS), HALF), make_input("z", (ROWS, COLUMNS), HALF))
    return y, mk("reduce_max", y, axes=(0,))


def _all(value: float) -> Node:
    return mk("broadcast_in_dim", literal(value, HALF), shape=(ROWS, COLUMNS), broadcast_dimensions=())


def mask(y: Node, most: Node, op: str = "eq") -> Node:
    """Where a column has its largest element."""
    along = mk("broadcast_in_dim", most, shape=(ROWS, COLUMNS), broadcast_dimensions=(1,))
    return mk("convert_element_type", mk(op, y, along), new_dtype="float32")


def run(graph: Graph, regions: Sequence[Region]) -> np.ndarray:
    """The last region's value, each region by a kernel of its own."""
    rng = np.random.default_rng(0)
    held: dict[Node, np.ndarray] = {
        n: (rng.random((ROWS, COLUMNS)) + 0.5).astype(ml_dtypes.bfloat16) for n in graph.inputs
    }
    for region in regions:
        alone = region.graph
        given: Mapping[str, np.ndarray] = {f"x{i}": held[x] for i, x in enumerate(region.reads)}
        held[region.root] = build(generate(default(from_graph(alone.outputs)))).run(given)["out0"]
    return held[regions[-1].root]


def graph_of(root: Node) -> Graph:
    """Of one output."""
    seen: dict[Node, None] = {}
    stack = [root]
    while stack:
        node = stack.pop()
        if node.op == "input":
            seen[node] = None
        stack += node.inputs
    return Graph(tuple(seen), (root,))


def by_hand(last: Node, most: Node) -> tuple[Graph, list[Region]]:
    """Two regions, each of which computes what is compared."""
    graph = graph_of(last)
    return graph, [region_of(most, graph.inputs), region_of(last, [*graph.inputs, most])]


@pytest.mark.skipif(not cpu.supported(), reason="no code is generated for this processor")
@pytest.mark.parametrize("positions", [False, True])
def test_every_column_has_its_largest_element(positions: bool) -> None:
    y, most = values(positions)
    last = mask(y, most)
    graph, two = by_hand(last, most)
    assert (run(graph, two).sum(0) == 0).any(), "two kernels that round in two ways are what is to be avoided"
    assert computed_twice(graph, two) == {y}
    regions = partition(graph)
    assert not computed_twice(graph, regions)
    assert (run(graph, regions).sum(0) >= 1).all()


def test_a_value_that_xla_computes_too_is_computed_twice() -> None:
    y, most = values(False)
    graph = graph_of(mask(y, most))
    assert computed_twice(graph, [region_of(most, graph.inputs)]) == {y}
    assert not computed_twice(graph, [])
    assert not computed_twice(graph, [cut(y, set()), cut(most, {y})])


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_what_both_sides_of_a_comparison_come_down_to(op: str) -> None:
    y, most = values(False)
    assert compared_values(graph_of(mask(y, most, op))) == {y}


def test_comparisons_of_other_values_ask_for_nothing() -> None:
    y, _ = values(False)
    x, z = make_input("x", (ROWS, COLUMNS), HALF), make_input("z", (COLUMNS,), HALF)
    assert not compared_values(graph_of(mask(y, z)))
    assert not compared_values(graph_of(mask(x, mk("reduce_max", x, axes=(0,)))))
    assert not compared_values(graph_of(mask(mk("exp", x), mk("reduce_max", x, axes=(0,)))))
