"""Counts: known closed forms, and agreement of the per-node and the fused counts where both are exact."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir.counters import Cost, block_cost, boundary_bytes, graph_cost, guard_share, node_cost
from superopt.ir.expr import block
from superopt.ir.graph import Graph, Node, literal, make_input, mk
from superopt.ir.index import Guard, all_of, clip, iterator, least
from tests.support import ir_cases

NHWC = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))


def _conv(padding: int) -> Node:
    x, w = make_input("x", (1, 8, 8, 4)), make_input("w", (3, 3, 4, 5))
    pads = ((padding, padding),) * 2
    return mk("conv_general_dilated", x, w, window_strides=(1, 1), padding=pads, dimension_numbers=NHWC)


def test_closed_forms() -> None:
    x, w = make_input("x", (6, 7)), make_input("w", (7, 5))
    dot = node_cost(mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ()))))
    assert dot == Cost(2 * 6 * 7 * 5, 0, 4 * (42 + 35), 4 * 30)
    assert node_cost(_conv(0)) == Cost(2 * 36 * 9 * 4 * 5, 0, 4 * (256 + 180), 4 * 36 * 5)
    assert node_cost(mk("exp", x)) == Cost(0, 42, 168, 168)
    assert node_cost(mk("add", x, x)) == Cost(42, 0, 336, 168)
    assert node_cost(mk("transpose", x, permutation=(1, 0))) == Cost(0, 0, 168, 168)
    assert node_cost(mk("reduce_sum", x, axes=(1,))) == Cost(42, 0, 168, 24)
    assert node_cost(mk("cumsum", x, axis=1)) == Cost(42, 0, 168, 168)
    assert node_cost(mk("slice", x, start_indices=(0, 0), limit_indices=(2, 7))) == Cost(0, 0, 56, 56)
    assert node_cost(mk("concatenate", x, x, dimension=0)) == Cost(0, 0, 336, 336)
    scalar = mk("broadcast_in_dim", literal(1.0), shape=(6, 7), broadcast_dimensions=())
    assert node_cost(scalar) == Cost(0, 0, 4, 168)


def test_a_padded_window_counts_only_what_it_reads() -> None:
    inside = sum(
        1
        for o in np.ndindex(8, 8)
        for r in np.ndindex(3, 3)
        if all(0 <= a + b - 1 < 8 for a, b in zip(o, r, strict=True))
    )
    fused = block_cost(*block(_conv(1)))
    assert fused.flops == pytest.approx(2 * inside * 4 * 5)
    assert node_cost(_conv(1)).flops == 2 * 64 * 9 * 4 * 5  # guards count as true


@pytest.mark.parametrize("op", ["dot_general", "reduce_sum", "reduce_max", "tanh", "mul", "transpose", "reduce_prod"])
def test_fused_and_single_counts_agree_without_guards(op: str) -> None:
    rng = np.random.default_rng(4)
    for node in ir_cases.samples(op, rng, 6):
        if 0 in node.shape or any(0 in x.shape for x in node.inputs):
            continue
        single, fused = node_cost(node), block_cost(*block(node))
        assert (single.flops, single.transcendentals, single.write_bytes) == (
            fused.flops,
            fused.transcendentals,
            fused.write_bytes,
        ), node


def test_inlining_a_reduction_into_a_window_is_seen() -> None:
    first = mk("tanh", _conv(1))
    w = make_input("v", (3, 3, 5, 5))
    second = mk(
        "conv_general_dilated", first, w, window_strides=(1, 1), padding=((1, 1), (1, 1)), dimension_numbers=NHWC
    )
    inlined, apart = block_cost(*block(second)), graph_cost(Graph((), (second,)))
    assert inlined.flops > 5 * apart.flops
    stopped = block_cost(*block(second, frozenset([first])))
    assert stopped.flops + block_cost(*block(first)).flops <= apart.flops


def test_a_prefix_is_carried_by_its_loop() -> None:
    """So many additions as elements, and none of them again for a function of the terms or of the result."""
    x = make_input("x", (8, 12))
    y = mk("log", mk("cumsum", mk("exp", x), axis=1, reverse=False))
    cost = block_cost(*block(y))
    assert (cost.flops, cost.transcendentals) == (96, 2 * 96)
    both = mk("add", mk("cumsum", x, axis=0, reverse=False), mk("cumsum", x, axis=1, reverse=False))
    assert block_cost(*block(both)).flops > 4 * 96  # one loop carries, the other sums anew


def test_control_flow_counts_its_bodies() -> None:
    s, x = make_input("s", (4,)), make_input("x", (4,))
    body = Graph((s, x), (mk("add", s, x), mk("exp", x)))
    scan = mk("scan", make_input("a", (4,)), make_input("b", (10, 4)), body=body, num_carry=1, length=10)
    cost = node_cost(scan)
    assert (cost.flops, cost.transcendentals) == (40, 40)
    branches = [Graph((x,), (mk("exp", x),)), Graph((x,), (mk("neg", mk("neg", x)),))]
    choice = node_cost(mk("cond", make_input("i", (), "int32"), make_input("a", (4,)), branches=branches))
    assert (choice.flops, choice.transcendentals) == (8, 0)


def test_boundary_bytes() -> None:
    x, unused = make_input("x", (6, 7)), make_input("u", (9,))
    y = mk("exp", x)
    assert boundary_bytes(Graph((x, unused), (mk("neg", y), y))) == (168, 336)


def test_guard_share() -> None:
    a, b = iterator("a", 4)[1], iterator("b", 3)[1]
    guard = (a - b) >= 0
    assert isinstance(guard, Guard)
    assert guard_share(guard) == 9 / 12
    c = iterator("c", 10)[1]
    both = Guard(guard.terms | (c >= 5).terms)
    assert guard_share(both) == pytest.approx(0.75 * 0.5)


def test_guard_share_of_quotients_remainders_and_clips_is_that_of_all_points() -> None:
    a, b = iterator("a", 7)[1], iterator("b", 5)[1]
    low, high = clip(2 * a - b, 1, 6), least(a, 3 * b)
    guard = all_of(5 * ((a + 3 * b) // 4) - (a + 2 * b) % 3 - 4 >= 0, low - high >= 0)
    assert isinstance(guard, Guard)
    held = sum(
        5 * ((x + 3 * y) // 4) - (x + 2 * y) % 3 - 4 >= 0 and min(max(2 * x - y, 1), 6) >= min(x, 3 * y)
        for x in range(7)
        for y in range(5)
    )
    assert 0 < held < 35
    assert guard_share(guard) == pytest.approx(held / 35)
