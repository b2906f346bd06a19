"""Quotients whose last digit decides, because a step reads them, are rounded once as ONNX Runtime's are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.frontends.onnx.frontend import load_model
from superopt.frontends.onnx.read import function_table
from superopt.frontends.onnx.steps import deciding
from tests.support.onnx_models import info, model, node

MULTIPLES = (np.arange(600, dtype=np.float32) * np.float32(7)).reshape(20, 30)
TENTHS = ((np.arange(6000) + 0.5) * 0.1).astype(np.float32).reshape(200, 30)
ROW = np.linspace(0.05, 0.3, 30).astype(np.float32)
SEVEN, TENTH = np.array(7, np.float32), np.array(0.1, np.float32)


def given(nodes: list[onnx.NodeProto], x: np.ndarray, stored: dict[str, Any]) -> np.ndarray:
    """The result of a loaded model of these nodes."""
    one = model(nodes, [info("x", x.shape, x.dtype.type)], [onnx.ValueInfoProto(name="y")], stored)
    return np.asarray(load_model(one)(x)[0])


STEPS: dict[str, tuple[list[onnx.NodeProto], Callable[[np.ndarray], np.ndarray]]] = {
    "Round": ([node("Round", "q", "y")], np.round),
    "Floor": ([node("Floor", "q", "y")], np.floor),
    "Ceil": ([node("Ceil", "q", "y")], np.ceil),
    "Cast": ([node("Cast", "q", "y", to=TensorProto.INT32)], lambda q: q.astype(np.int32)),
    "moved": (
        [node("Clip", "q low", "a"), node("Transpose", "a", "b"), node("Floor", "b", "c"), node("Transpose", "c", "y")],
        lambda q: np.floor(np.maximum(q, 0)),
    ),
    "shifted": ([node("Add", "q half", "a"), node("Floor", "a", "y")], lambda q: np.floor(q + np.float32(0.5))),
    "equal": (
        [node("Floor", "q", "f"), node("Equal", "q f", "e"), node("Cast", "e", "y", to=TensorProto.FLOAT)],
        lambda q: (q == np.floor(q)).astype(np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(("x", "by"), [(MULTIPLES, SEVEN), (TENTHS, TENTH), (TENTHS, ROW)], ids=["7", "0.1", "row"])
def test_quotients_before_steps_are_rounded_once(name: str, x: np.ndarray, by: np.ndarray) -> None:
    nodes, wanted = STEPS[name]
    stored = {"by": by, "low": np.float32(0), "half": np.float32(0.5)}
    np.testing.assert_array_equal(given([node("Div", "x by", "q"), *nodes], x, stored), wanted(x / by))


def test_so_are_those_of_optimised_programs() -> None:
    nodes = [node("Div", "x by", "q"), node("Round", "q", "y")]
    one = load_model(model(nodes, [info("x", TENTHS.shape)], [info("y", TENTHS.shape)], {"by": TENTH}))
    for search in (False, True):
        fast = superopt.optimize(one, TENTHS, budget="3s", search=search, store=False)
        np.testing.assert_array_equal(fast(TENTHS)[0], np.round(TENTHS / TENTH))


@pytest.mark.parametrize("op", ["Mean", "ReduceMean", "AveragePool", "GlobalAveragePool"])
def test_so_are_means(op: str) -> None:
    x = np.arange(8 * 3 * 7, dtype=np.float32).reshape(1, 8, 3, 7) * 7
    nodes, wanted = {
        "Mean": ([node("Mean", "x x z z z z z", "q")], x * 2 / np.float32(7)),
        "ReduceMean": ([node("ReduceMean", "x axes", "q")], x.sum(-1, keepdims=True) / np.float32(7)),
        "AveragePool": ([node("AveragePool", "x", "q", kernel_shape=[1, 7])], x.sum(-1, keepdims=True) / np.float32(7)),
        "GlobalAveragePool": ([node("GlobalAveragePool", "x", "q")], x.sum((2, 3), keepdims=True) / np.float32(21)),
    }[op]
    stored = {"z": np.float32(0), "axes": np.array([3])}
    np.testing.assert_array_equal(given([*nodes, node("Floor", "q", "y")], x, stored), np.floor(wanted))


def test_quantised_numbers_are_divided_by_the_scale() -> None:
    found = given([node("QuantizeLinear", "x s z", "y")], TENTHS, {"s": TENTH, "z": np.uint8(3)})
    np.testing.assert_array_equal(found, np.clip(np.round(TENTHS / TENTH) + 3, 0, 255).astype(np.uint8))


def test_half_types_are_rounded_once_before_and_without_steps() -> None:
    x = TENTHS.astype(np.float16)
    found = given([node("Div", "x by", "y")], x, {"by": np.float16(3)})
    np.testing.assert_array_equal(found, (x.astype(np.float32) / 3).astype(np.float16))


def floored(inside: str) -> onnx.ModelProto:
    """Multiples of seven over seven, rounded down: the quotient, or the step, or both in a function or a body."""
    div, floor = node("Div", "x by", "q"), node("Floor", "q", "y")
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
    functions: list[onnx.FunctionProto] = []
    nodes = [div, floor]
    if inside == "quotient":
        functions = [helper.make_function("f", "d", ["x", "by"], ["q"], [div], imports)]
        nodes = [node("d", "x by", "q", domain="f"), floor]
    elif inside == "step":
        functions = [helper.make_function("f", "s", ["q"], ["y"], [floor], imports)]
        nodes = [div, node("s", "q", "y", domain="f")]
    elif inside in ("branch of the quotient", "branch of the step"):
        body = [div] if "quotient" in inside else [floor]
        result = body[0].output[0]
        graphs = [helper.make_graph(body, name, [], [info(result, MULTIPLES.shape)]) for name in ("then", "else")]
        made = helper.make_node("If", ["c"], [result], then_branch=graphs[0], else_branch=graphs[1])
        live = [node("ReduceMax", "x", "m", keepdims=0), node("Cast", "m", "c", to=TensorProto.BOOL)]
        nodes = [*live, made, floor] if "quotient" in inside else [*live, div, made]
    return model(nodes, [info("x", MULTIPLES.shape)], [info("y", MULTIPLES.shape)], {"by": SEVEN}, functions=functions)


@pytest.mark.parametrize(
    "inside", ["neither", "quotient", "step", "branch of the quotient", "branch of the step"]
)  # fmt: skip
def test_steps_are_seen_through_functions_and_bodies(inside: str) -> None:
    (y,) = load_model(floored(inside))(MULTIPLES)
    np.testing.assert_array_equal(y, np.floor(MULTIPLES / SEVEN))


def test_other_quotients_are_left_to_the_compiler() -> None:
    """A quotient that no step reads, or by a power of two, keeps its form, which rules know."""

    def selects(nodes: list[onnx.NodeProto], by: float) -> bool:
        one = load_model(model(nodes, [info("x", (4, 4))], [info("y", (4, 4))], {"by": np.array(by, np.float32)}))
        with jax.enable_x64(True):
            return "select" in str(jax.make_jaxpr(one.fn)(dict(one.params), np.zeros((4, 4), np.float32)))

    div = node("Div", "x by", "q")
    assert selects([div, node("Floor", "q", "y")], 3)
    assert not selects([div, node("Floor", "q", "y")], 4)
    assert not selects([div, node("Exp", "q", "y")], 3)
    assert not selects([div, node("Exp", "q", "e"), node("Floor", "e", "y")], 3)


def test_what_decides() -> None:
    nodes = [node("Div", "a b", "c"), node("MatMul", "c d", "e"), node("Cast", "e", "f", to=TensorProto.FLOAT16),
             node("Cast", "f", "g", to=TensorProto.INT8)]  # fmt: skip
    assert deciding(nodes, [], {}) == {"e", "f"}
    assert deciding(nodes[:2], ["c"], {}) == {"a", "b", "c"}
    functions = function_table(floored("step"))
    assert deciding([node("s", "q", "y", domain="f")], [], functions) == {"q"}
