"""Boxes of the drawing have the names that the program gives: named scopes, or the nodes of a model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.frontends.onnx import frontend
from superopt.report.html import to_html

GIVEN = np.ones((4, 4), np.float32)


def block(w: jax.Array, x: jax.Array) -> jax.Array:
    with jax.named_scope("encoder"):
        y = jnp.tanh(x @ jnp.exp(w))
        with jax.named_scope("act"):
            return jax.nn.relu(y) + jnp.sin(y)


@pytest.mark.parametrize("options", [{"search": False}, {"budget": "50steps", "deterministic": True}])
def test_boxes_have_named_scopes(options: dict[str, Any]) -> None:
    report = superopt.optimize(block, GIVEN, GIVEN, frozen=0, store=False, **options).report
    assert report.drawing is not None
    for side in (report.drawing.before, report.drawing.after):
        names = {node.op: node.label for node in side}
        assert names["tanh"] == "encoder"
        assert names["sin"] == "encoder/act"
    ahead = [node.label for node in report.drawing.before if node.op == "exp"]
    assert ahead == ["encoder"]
    page = to_html(report)
    assert ">encoder</text>" in page
    assert "encoder/act = sin" in page, "the operation is in the title of its box"


def test_nodes_of_a_model_keep_their_names(tmp_path) -> None:
    w = numpy_helper.from_array(GIVEN, "w")
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], name="/block/fc"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Exp", ["r"], ["y"], name="/block/act/Exp"),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy"]
    graph = helper.make_graph(nodes, "two", values[:1], values[1:], [w])
    path = tmp_path / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    imported = frontend.import_model(frontend.load_model(path))
    assert {node.op: scope for node, scope in imported.scopes.items()} == {
        "dot_general": "block/fc",
        "exp": "block/act/Exp",
    }
