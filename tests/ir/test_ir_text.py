"""The text form gives graphs back exactly; ill-formed graphs and texts are refused with a reason."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from superopt.errors import InputError, ShapeError
from superopt.ir.check import check_graph
from superopt.ir.graph import Graph, Node, literal, make_input, mk, topological
from superopt.ir.ops.table import TABLE
from superopt.ir.text import parse_graph, print_graph
from tests.support import ir_cases


def test_random_programs_round_trip() -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        graph = ir_cases.random_graph(rng, 10)
        check_graph(graph)
        text = print_graph(graph)
        again = parse_graph(text)
        assert again.inputs == graph.inputs, text
        assert again.outputs == graph.outputs, text
        assert print_graph(again) == text


@pytest.mark.parametrize("op", list(TABLE))
def test_every_op_round_trips(op: str) -> None:
    rng = np.random.default_rng(3)
    for node in ir_cases.samples(op, rng, 6):
        graph = Graph(tuple(n for n in topological([node]) if n.op == "input"), (node,))
        assert parse_graph(print_graph(graph)).outputs == (node,)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_float_literals_round_trip(dtype: str) -> None:
    rng = np.random.default_rng(0)
    numbers = [0.1, -0.0, 1e-40, 6e-8, 1 / 3, 3.4e38, math.nan, math.inf, -math.inf, *rng.standard_normal(50)]
    outputs = tuple(literal(float(v), dtype) for v in numbers)
    assert parse_graph(print_graph(Graph((), outputs))).outputs == outputs


def test_golden() -> None:
    x, w = make_input("x", (2, 3)), make_input("my w", (3, 4), frozen=True)
    d = mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ())), precision="highest")
    half = mk("broadcast_in_dim", literal(0.1), shape=(2, 4), broadcast_dimensions=())
    carry, row = make_input("carry", (4,)), make_input("row", (4,))
    body = Graph((carry, row), (mk("add", carry, row),))
    s = mk("scan", mk("reduce_sum", d, axes=(0,)), mk("mul", d, half), body=body, num_carry=1, length=2)
    c = make_input("c", (2,), "bfloat16", frozen=True)
    graph = Graph((x, w, c), (s, c), {"c": np.array([1.5, -2], ml_dtypes.bfloat16)})
    assert print_graph(graph) == (
        "%0 = input x : f32[2,3]\n"
        '%1 = input "my w" : f32[3,4] frozen\n'
        "%2 = input c : bf16[2] frozen constant (1.5, -2.0)\n"
        '%3 = dot_general(%0, %1) dimension_numbers=(((1,), (0,)), ((), ())) precision="highest" : f32[2,4]\n'
        "%4 = reduce_sum(%3) axes=(0,) : f32[4]\n"
        "%5 = literal 0.1 : f32[]\n"
        "%6 = broadcast_in_dim(%5) broadcast_dimensions=() shape=(2, 4) : f32[2,4]\n"
        "%7 = mul(%3, %6) : f32[2,4]\n"
        "%8 = scan(%4, %7) body={\n"
        "  %0 = input carry : f32[4]\n"
        "  %1 = input row : f32[4]\n"
        "  %2 = add(%0, %1) : f32[4]\n"
        "  return %2\n"
        "} length=2 num_carry=1 : f32[4]\n"
        "return %8, %2\n"
    )
    again = parse_graph(print_graph(graph))
    assert again.outputs == graph.outputs
    np.testing.assert_array_equal(again.constants["c"], graph.constants["c"])


def test_large_constants_come_from_the_reader() -> None:
    c = make_input("c", (100,), frozen=True)
    value = np.arange(100, dtype=np.float32)
    text = print_graph(Graph((c,), (mk("neg", c),), {"c": value}))
    assert "constant\n" in text
    assert parse_graph(text, {"c": value}).constants["c"] is value
    assert not parse_graph(text).constants


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("%0 = input x : f32[2]\n%1 = foo(%0) : f32[2]\nreturn %1", "line 2: unknown op 'foo'"),
        ("%0 = input x : f32[2]\n%1 = neg(%0) : f32[3]\nreturn %1", "expected the types f32"),
        ("%0 = input x : f32[2]\nreturn %1", "line 2: expected a node defined above"),
        ("%0 = input x : f32[2]\n%1 = neg(%0) axes=(1,) : f32[2]\nreturn %1", "line 2: neg takes the attributes"),
        ("%0 = input x : f32[2]\n%1 = add(%0) : f32[2]\nreturn %1", "add takes 2 operands"),
        ("%0 = input x : f32[2]\nreturn %0 %0", "the end of the text"),
        ("%0 = input x ; f32[2]", "line 1: expected a token"),
        ("%0 : input x : f32[2]\nreturn %0", "line 1: expected '='"),
        ("", "a statement or return"),
    ],
)
def test_wrong_texts_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError) as error:
        parse_graph(text)
    assert reason in str(error.value)


def _graph_errors() -> list[tuple[Graph, str]]:
    x, y = make_input("x", (2,)), make_input("x", (3,))
    node = mk("neg", x)
    frozen = make_input("w", (2,), frozen=True)
    value = np.zeros(2, np.float32)
    return [
        (Graph((), (node,)), "not among the inputs"),
        (Graph((x, y), (node,)), "two inputs are named 'x'"),
        (Graph((node,), (node,)), "neg stands among the inputs"),
        (Graph((x,), (node,), {"w": value}), "not an input"),
        (Graph((x,), (node,), {"x": value}), "not declared frozen"),
        (Graph((frozen,), (frozen,), {"w": np.zeros(3, np.float32)}), "its value float32[3]"),
        (Graph((frozen,), (frozen,), {"w": np.zeros(2)}), "its value float64[2]"),
    ]


@pytest.mark.parametrize("case", range(7))
def test_ill_formed_graphs_are_refused(case: int) -> None:
    graph, reason = _graph_errors()[case]
    with pytest.raises(ShapeError) as error:
        check_graph(graph)
    assert reason in str(error.value)


def _x(*shape: int, dtype: str = "float32") -> Node:
    return make_input("x", shape, dtype)


WRONG = [
    ("add", (_x(2, 3), _x(3, 2)), {}, "f32[2,3], f32[3,2]"),
    ("add", (_x(2), _x(2, dtype="int32")), {}, "one dtype"),
    ("exp", (_x(2, dtype="int32"),), {}, "does not take int32"),
    ("and", (_x(2), _x(2)), {}, "does not take float32"),
    ("select_n", (_x(2), _x(2), _x(2)), {}, "bool or int32"),
    ("clamp", (_x(3), _x(2), _x(3)), {}, "clamp needs bounds"),
    ("integer_pow", (_x(2, dtype="int32"),), {"y": -1}, "needs a float"),
    ("transpose", (_x(2, 3),), {"permutation": (0, 0)}, "permutation of 2 axes"),
    ("reshape", (_x(2, 3),), {"new_sizes": (5,)}, "number of elements"),
    ("reshape", (_x(2, 3),), {"new_sizes": (-1, -6)}, "reshape would give"),
    ("regroup", (_x(2, 3),), {"groups": (((0,), (2,)),)}, "every axis"),
    ("regroup", (_x(2, 3),), {"groups": (((0,), (3,)), ((1,), (2,)))}, "of each group"),
    ("broadcast_in_dim", (_x(2),), {"shape": (3, 2), "broadcast_dimensions": (0,)}, "only axes of size 1"),
    ("broadcast_in_dim", (_x(2, 2),), {"shape": (2, 2), "broadcast_dimensions": (1, 0)}, "must increase"),
    ("slice", (_x(4),), {"start_indices": (1,), "limit_indices": (5,)}, "start <= limit <= size"),
    ("pad", (_x(4), literal(0)), {"padding_config": ((-3, -3, 0),)}, "pad would give"),
    ("pad", (_x(4), literal(0, "int32")), {"padding_config": ((0, 0, 0),)}, "dtype of x"),
    ("concatenate", (_x(2, 3), _x(3, 3)), {"dimension": 1}, "beside axis 1"),
    ("rev", (_x(2),), {"dimensions": (1,)}, "distinct axes below 1"),
    ("reduce_sum", (_x(2),), {"axes": (0, 0)}, "repeated axes"),
    ("reduce_sum", (_x(2, dtype="bool"),), {"axes": (0,)}, "does not take bool"),
    ("argmax", (_x(0),), {"axes": (0,)}, "not empty"),
    ("cumsum", (_x(2),), {"axis": 1}, "distinct axes below 1"),
    ("dot_general", (_x(2, 3), _x(2, 3)), {"dimension_numbers": (((1,), (0,)), ((), ()))}, "sizes differ"),
    ("conv_general_dilated", (_x(1, 3, 4), _x(2, 2, 3)), {"window_strides": (1,)}, "must be the lhs features"),
    ("conv_general_dilated", (_x(1, 2, 4), _x(2, 2, 3)), {"window_strides": (0,)}, "must be positive"),
    ("dynamic_slice", (_x(2), literal(0, "int32")), {"slice_sizes": (3,)}, "slice size <= size"),
    ("dynamic_slice", (_x(2), literal(0)), {"slice_sizes": (1,)}, "scalar integer starts"),
    ("iota", (), {"shape": (2,), "dimension": 1}, "distinct axes below 1"),
    ("neg", (_x(2), _x(2)), {}, "takes 1 operands"),
    ("reduce_sum", (_x(2),), {}, "missing ['axes']"),
    ("reduce_sum", (_x(2),), {"axes": (0,), "axis": 0}, "unknown ['axis']"),
    ("reduce_sum", (_x(2),), {"axes": (0.5,)}, "expected an integer, got 0.5"),
    (
        "dot_general",
        (_x(2), _x(2)),
        {"dimension_numbers": (((0,), (0,)), ((), ())), "precision": "best"},
        "expected one of",
    ),
    ("literal", (), {"value": 300, "dtype": "uint8"}, "not a value of uint8"),
    ("result", (_x(2),), {"index": 1}, "result 1 of an op with 1"),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_types_are_refused_with_shapes(case: int) -> None:
    op, operands, attrs, reason = WRONG[case]
    with pytest.raises(ShapeError) as error:
        mk(op, *operands, **attrs)
    assert reason in str(error.value)


def test_attributes_have_one_canonical_form() -> None:
    x = make_input("x", (4, 3))
    full = mk("slice", x, start_indices=(0, 0), limit_indices=(4, 2), strides=(1, 1))
    assert mk("slice", x, start_indices=[np.int64(0), 0], limit_indices=np.array([4, 2])) is full
    assert mk("reduce_sum", x, axes=[1, 0]) is mk("reduce_sum", x, axes=(0, 1))
    assert literal(0.1) is literal(float(np.float32(0.1)))
    assert literal(0.0) is not literal(-0.0)
    assert literal(1, "int32") is not literal(True, "bool")
    assert mk("convert_element_type", x, new_dtype=np.float16) is mk("convert_element_type", x, new_dtype="float16")
