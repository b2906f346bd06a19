"""Broadcasts to a layout: one operation where axes are whole, and a split only where an axis is new in part."""

from __future__ import annotations

import numpy as np
import pytest

from rewrites.build.arrange import arrange, broadcast
from rewrites.build.target import IRTarget
from rewrites.match.labels import Layout
from superopt.ir.build import kernel, tensor
from superopt.ir.interp import evaluate

A, B, C, D = ((1, 3), (2, 4), (3, 5), (4, 2))  # labels with their sizes; the tensor has A and B


@pytest.mark.parametrize(
    ("lay", "ops"),
    [
        (((A,), (B,)), []),
        (((A,), (B,), (C,)), ["broadcast_in_dim"]),
        (((A,), (C, D), (B,)), ["broadcast_in_dim"]),
        (((C,), (D,), (A,), (B,)), ["broadcast_in_dim"]),
        (((A, C), (B,)), ["broadcast_in_dim", "reshape"]),
        (((D,), (C, A), (B,)), ["broadcast_in_dim", "reshape"]),
        (((A, B),), ["reshape"]),
    ],
)
def test_a_tensor_is_broadcast_in_one_operation_unless_an_axis_is_new_in_part(lay: Layout, ops: list[str]) -> None:
    x = tensor("x", 3, 4)
    node = broadcast(IRTarget(), (x, ((A,), (B,))), lay)
    graph = kernel(node)
    assert [n.op for n in graph.nodes() if n.op != "input"] == ops
    given = np.arange(12, dtype=np.float32).reshape(3, 4)
    order = [label for axis in lay for label, _ in axis]
    sizes = dict(entry for axis in lay for entry in axis)
    spread = given.reshape([sizes[label] if label in (1, 2) else 1 for label in order])
    wanted = np.broadcast_to(spread, [sizes[label] for label in order]).reshape(node.shape)
    np.testing.assert_array_equal(evaluate(graph, {"x": given})[0], wanted)


@pytest.mark.parametrize(
    ("lay", "goal", "ops"),
    [
        (((A, B), (C,)), ((C,), (A, B)), ["transpose"]),
        (((A, B), (C,)), ((A,), (C,), (B,)), ["reshape", "transpose"]),
        (((A, B), (C,)), ((B, A), (C,)), ["reshape", "transpose", "reshape"]),
    ],
)
def test_axes_stay_merged_where_they_move_as_a_block(lay: Layout, goal: Layout, ops: list[str]) -> None:
    x = tensor("x", 12, 5)
    node, _ = arrange(IRTarget(), (x, lay), goal)
    graph = kernel(node)
    assert [n.op for n in graph.nodes() if n.op != "input"] == ops
    given = np.arange(60, dtype=np.float32).reshape(12, 5)
    order = [label - 1 for axis in goal for label, _ in axis]
    wanted = given.reshape(3, 4, 5).transpose(order).reshape(node.shape)
    np.testing.assert_array_equal(evaluate(graph, {"x": given})[0], wanted)
