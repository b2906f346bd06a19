"""Pairs over symbolic sizes that are equal only up to what a proof behind cuts would lose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt.equivalence import symbolic
from superopt.equivalence.functions import compare_functions
from superopt.equivalence.models import compare_models
from superopt.equivalence.modules import compare_modules
from superopt.lab.bench import sweeps
from verifier.statements.statement import check_statement, make_statement
from verifier.verdict import PROVED, REFUTED


def swept(
    monkeypatch: pytest.MonkeyPatch, first: Callable[..., Any], second: Callable[..., Any], *specs: str, **more: Any
) -> Any:
    monkeypatch.setattr(symbolic, "MOST", 0)  # small programs are proved node by node as well
    return compare_functions(first, second, *specs, **more)


def test_an_argument_has_the_name_of_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(cut0: Any, x: Any) -> Any:
        return jnp.exp(jnp.sin(jnp.cos(x)) + 1e-9 * cut0)

    def second(cut0: Any, x: Any) -> Any:
        c = jnp.sin(jnp.cos(x))
        return jnp.exp(c + 1e-9 * c)

    assert swept(monkeypatch, first, second, "n", "n").status != PROVED


def test_a_comparison_of_what_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(i: Any, x: Any) -> Any:
        c = i.astype(jnp.float32) + 5  # 0 where i is -5
        return jnp.where(c / c > 0.5, 5.0, x)

    def second(i: Any, x: Any) -> Any:
        c = i.astype(jnp.float32) + 5
        return jnp.where(c * 0 + 1 > 0.5, 5.0, x)

    assert swept(monkeypatch, first, second, "int32[n]", "n").status != PROVED


def test_a_comparison_behind_a_cut_that_may_be_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(i: Any, x: Any) -> Any:
        c = 1 / (i.astype(jnp.float32) + 5)
        return jnp.where(c - c < 0.5, x, 5.0)

    def second(i: Any, x: Any) -> Any:
        c = 1 / (i.astype(jnp.float32) + 5)
        return jnp.where(c * 0 < 0.5, x, 5.0)

    assert swept(monkeypatch, first, second, "int32[n]", "n").status != PROVED


def test_rounding_to_integers_of_what_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    found = swept(
        monkeypatch,
        lambda x, y: (jnp.floor(jnp.exp(x) * jnp.exp(y)), jnp.exp(x) * jnp.exp(y)),
        lambda x, y: (jnp.floor(jnp.exp(x + y)), jnp.exp(x + y)),
        "n", "n", numerics="range",
    )  # fmt: skip
    assert found.outputs[0].status != PROVED


def test_what_no_step_reads_is_still_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(x: Any, y: Any) -> Any:
        return jnp.where(y > 0, jnp.exp(x) * (y + y), 0.0)

    def second(x: Any, y: Any) -> Any:
        return jnp.where(y > 0, 2 * y * jnp.exp(x), 0.0)

    assert swept(monkeypatch, first, second, "n", "n").status == PROVED


def test_the_name_for_a_quotient_is_no_name_of_a_size() -> None:
    found = check_statement(
        make_statement("s", lambda x: x * x.shape[0], lambda x: x * (2 * x.shape[1]), ["b b_"], {}, "b % 2 == 0")
    )
    assert found.status == REFUTED


@pytest.mark.parametrize("count", [2, pytest.param(240, marks=pytest.mark.slow)])
def test_false_pairs_by_kinds(count: int) -> None:
    rows, summary = sweeps.compared(count, 1, lambda _: None)
    assert summary["sweep_false_proofs"] == 0, [row for row in rows if row.get("false")]
    assert summary["sweeps_refused"] <= 0.2 * len(rows)


def test_one_graph_that_a_question_of_sizes_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both traces are one graph, and the first function is another where n is 1."""
    found = swept(monkeypatch, lambda x: x if x.shape[0] != 1 else 2 * x, lambda x: x, "n")
    assert found.status != PROVED


def test_the_place_of_a_maximum_of_what_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    found = swept(
        monkeypatch,
        lambda x, y: x[jnp.argmax((x + y) * (x - y))],
        lambda x, y: x[jnp.argmax(x * x - y * y)],
        "n", "n",
    )  # fmt: skip
    assert found.status != PROVED


def test_an_assumption_names_what_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(x: Any, y: Any) -> Any:
        return jnp.sin(x) * y / jnp.sin(x) + 1

    def second(x: Any, y: Any) -> Any:
        return 1 + y

    found = swept(monkeypatch, first, second, "n", "n")
    assert found.status == PROVED, str(found)
    assert "cut" not in str(found)


MAIN = """module @m {
  func.func public @main(%%a: tensor<?x2xf32>, %%b: tensor<?x2xf32>) -> tensor<?x2xf32> {
    %%n = "stablehlo.get_dimension_size"(%%a) {dimension = 0 : i64} : (tensor<?x2xf32>) -> tensor<i32>
    %%m = "stablehlo.get_dimension_size"(%%b) {dimension = 0 : i64} : (tensor<?x2xf32>) -> tensor<i32>
    %s
  }
  %s
}"""


def told(first: str, second: str, *functions: str) -> str:
    texts = [(MAIN % (x, f)).encode() for x, f in zip((first, second), (*functions, "", ""), strict=False)]
    return str(compare_modules(*texts))


SCALED = """%%k = stablehlo.constant dense<100> : tensor<i32>
    %%d = stablehlo.subtract %%n, %%k : tensor<i32>
    %%one = stablehlo.constant dense<1> : tensor<i32>
    %%two = stablehlo.constant dense<2> : tensor<i32>
    %s
    %%f = stablehlo.convert %%q : (tensor<i32>) -> tensor<f32>
    %%n1 = stablehlo.reshape %%n : (tensor<i32>) -> tensor<1xi32>
    %%t1 = stablehlo.constant dense<2> : tensor<1xi32>
    %%sh = "stablehlo.concatenate"(%%n1, %%t1) {dimension = 0 : i64} : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %%w = "stablehlo.dynamic_broadcast_in_dim"(%%f, %%sh) {broadcast_dimensions = array<i64>} \
: (tensor<f32>, tensor<2xi32>) -> tensor<?x2xf32>
    %%y = stablehlo.multiply %%a, %%w : tensor<?x2xf32>
    return %%y : tensor<?x2xf32>"""
IS_OTHER = "%p = stablehlo.convert %d : (tensor<i32>) -> tensor<i1>\n"
ONE = "%q = stablehlo.maximum %one, %one : tensor<i32>"


@pytest.mark.parametrize(
    "made",
    [
        IS_OTHER + "%q = stablehlo.select %p, %one, %two : tensor<i1>, tensor<i32>",  # 2 where n = 100
        "%s = stablehlo.convert %n : (tensor<i32>) -> tensor<i8>\n%t = stablehlo.convert %s : (tensor<i8>) -> "
        "tensor<i32>\n%u = stablehlo.subtract %t, %n : tensor<i32>\n%q = stablehlo.add %u, %one : tensor<i32>",
    ],
)
def test_a_size_as_a_truth_or_in_few_bits(made: str) -> None:
    assert not told(SCALED % made, SCALED % ONE).startswith(PROVED)


def test_a_module_calls_a_size_by_the_name_of_another() -> None:
    named = """func.func private @f(%n: tensor<i32> {jax.global_constant = "arg1_0"}, %a: tensor<?x2xf32>)
    -> tensor<?x2xf32> { return %a : tensor<?x2xf32> }"""
    call = "%y = call @f(%n, %a) : (tensor<i32>, tensor<?x2xf32>) -> tensor<?x2xf32>\nreturn %y : tensor<?x2xf32>"
    assert "for all sizes arg0_0, arg1_0" in told(call, "return %a : tensor<?x2xf32>", named)


ASSERTION = """stablehlo.custom_call @shape_assertion(%e) {api_version = 2 : i32, has_side_effect = true}
    : (tensor<i1>) -> ()\n"""
EQUAL = "%e = stablehlo.compare EQ, %n, %m, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"


def test_what_a_module_asserts_is_said() -> None:
    sums = ["%y = stablehlo.add %a, %b : tensor<?x2xf32>\n", "%y = stablehlo.add %b, %a : tensor<?x2xf32>\n"]
    first, second = (x + "return %y : tensor<?x2xf32>" for x in sums)
    text = told(EQUAL + ASSERTION + first, second)
    assert text.startswith(PROVED)
    assert "where arg0_0 = arg1_0" in text.splitlines()[0]


def test_an_assertion_in_a_branch_is_no_premise() -> None:
    branch = (
        EQUAL
        + f"""%z = stablehlo.constant dense<0> : tensor<i32>
    %o = "stablehlo.dynamic_slice"(%a, %z, %z) {{slice_sizes = array<i64: 1, 1>}}
        : (tensor<?x2xf32>, tensor<i32>, tensor<i32>) -> tensor<1x1xf32>
    %r = stablehlo.reshape %o : (tensor<1x1xf32>) -> tensor<f32>
    %p = stablehlo.compare GT, %r, %r, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %y = "stablehlo.if"(%p) ({{ {ASSERTION} stablehlo.return %a : tensor<?x2xf32> }},
        {{ stablehlo.return %a : tensor<?x2xf32> }}) : (tensor<i1>) -> tensor<?x2xf32>
    return %y : tensor<?x2xf32>"""
    )
    assert not told(branch, "return %a : tensor<?x2xf32>").startswith(PROVED)


FAR = 2**63 - 1


@pytest.mark.parametrize(("start", "end", "step"), [(3, -FAR, 1), (-2, -FAR, 2), (3, FAR, -1), (FAR, 0, 1)])
def test_a_slice_that_is_empty_for_all_sizes(start: int, end: int, step: int) -> None:
    def made(*bounds: int) -> Any:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])]
        result = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
        stored = [numpy_helper.from_array(np.array([v]), k) for k, v in zip("seat", bounds, strict=True)]
        nodes = [helper.make_node("Slice", ["x", *"seat"], ["out"])]
        graph = helper.make_graph(nodes, "g", inputs, [result], stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    assert compare_models(made(start, end, 0, step), made(0, 0, 0, 1)).status == PROVED


@pytest.mark.parametrize("narrow", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.FLOAT16])
def test_a_size_that_a_model_converts_to_fewer_bits(narrow: int) -> None:
    def made(types: list[int]) -> Any:
        casts = [
            helper.make_node("Cast", [f"n{i}"], [f"n{i + 1}"], to=kind)
            for i, kind in enumerate([*types, TensorProto.FLOAT])
        ]
        nodes = [
            helper.make_node("Shape", ["x"], ["n0"], start=0, end=1),
            *casts,
            helper.make_node("Mul", ["x", f"n{len(casts)}"], ["y"]),
        ]
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "y")]
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    plain = made([TensorProto.INT64])
    assert compare_models(made([TensorProto.INT32]), plain).status == PROVED
    assert compare_models(made([narrow, TensorProto.INT64]), plain).status != PROVED
