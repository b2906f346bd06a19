"""The XLA backend: every op lowered, macros expanded, prepare run once and passed as arguments, types kept."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from superopt.backends.lower import LOWER
from superopt.backends.xla import build, to_jax
from superopt.errors import ArgumentError, InputError, SuperoptError
from superopt.ir import opaque
from superopt.ir.graph import Graph, Node, literal, make_input, mk
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import TABLE
from superopt.ir.program import original_program, split

X = make_input("x", (3, 4))
W = make_input("w", (4, 5), frozen=True)
B = make_input("b", (5,), frozen=True)


def dot(x: Node, w: Node) -> Node:
    return mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ())))


def row(b: Node, shape: tuple[int, ...]) -> Node:
    return mk("broadcast_in_dim", b, shape=shape, broadcast_dimensions=(len(shape) - 1,))


def values(*nodes: Node) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(n.shape).astype(n.dtype) for n in nodes]


GRAPH = Graph((X, W, B), (mk("add", dot(X, W), row(B, (3, 5))),))


def test_every_op_of_the_table_has_a_lowering() -> None:
    control = {"input", "macro", "scan", "while", "cond"}
    assert set(TABLE) - control == set(LOWER)


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((2, 3, 4), (((0, 1), (6,)), ((2,), (2, 2)))),
        ((2, 3, 4), (((2, 0), (8,)), ((1,), (3,)))),
        ((6, 4), (((1,), (2, 2)), ((0,), (3, 1, 2)))),
        ((2, 3), (((), (1,)), ((1, 0), (6,)))),
    ],
)
def test_regroup(shape: tuple[int, ...], groups: Any) -> None:
    x = make_input("x", shape)
    graph = Graph((x,), (mk("regroup", x, groups=groups),))
    (array,) = values(x)
    np.testing.assert_array_equal(to_jax(graph)(array)[0], evaluate(graph, {"x": array})[0])


def test_gather_out_of_bounds_in_every_mode() -> None:
    indices = make_input("i", (5, 1), "int32")
    x = make_input("t", (4, 3), "int16")
    at = np.array([[0], [3], [4], [-1], [99]], np.int32)
    table = np.arange(12, dtype=np.int16).reshape(4, 3)
    for mode in ("clip", "fill"):
        node = mk(
            "gather", x, indices, offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,),
            slice_sizes=(1, 3), mode=mode,
        )  # fmt: skip
        graph = Graph((x, indices), (node,))
        np.testing.assert_array_equal(to_jax(graph)(table, at)[0], evaluate(graph, {"t": table, "i": at})[0])


def test_outputs_that_are_inputs_and_literals() -> None:
    graph = Graph((X, B), (X, literal(2.5), X, B))
    x, b = values(X, B)
    got = to_jax(graph)(x, b)
    assert all(isinstance(a, jax.Array) for a in got)
    assert float(got[1]) == 2.5


def test_wrong_number_of_arrays() -> None:
    with pytest.raises(ArgumentError, match="3 inputs, got 1"):
        to_jax(GRAPH)(np.zeros((3, 4), "float32"))


def test_macros_are_expanded_before_lowering() -> None:
    with pytest.raises(InputError, match="macro"):
        to_jax(Graph((X,), (mk("macro", X, rule="square-rule", op="square", attrs=()),)))


# ---- programs


def test_original_program_passes_frozen_inputs_through() -> None:
    program = original_program(GRAPH)
    assert program.prepare is not None
    assert [n["name"] for n in program.hot.inputs] == ["x", "prepared0", "prepared1"]
    assert [n["frozen"] for n in program.hot.inputs] == [False, True, True]
    assert program.live_inputs == (X,)
    assert program.frozen_bytes == program.prepared_bytes == 4 * (20 + 5)
    x, w, b = values(X, W, B)
    run = build(program, [w, b])
    np.testing.assert_allclose(run(x)[0], x @ w + b, rtol=1e-5)
    assert (run.frozen_bytes, run.prepared_bytes, run.added_bytes) == (100, 100, 0)


def test_nothing_frozen_is_nothing_prepared() -> None:
    graph = Graph((X,), (mk("neg", X),))
    program = original_program(graph)
    assert program.prepare is None
    assert program.hot is graph
    (x,) = values(X)
    np.testing.assert_array_equal(build(program)(x)[0], -x)


def test_prepared_tensors_are_computed_once_and_are_arguments() -> None:
    seen: list[np.ndarray] = []

    def record(w: np.ndarray) -> np.ndarray:
        seen.append(w)
        return w

    def call(w: Any) -> tuple[Any]:
        return (jax.pure_callback(record, jax.ShapeDtypeStruct(w.shape, w.dtype), w),)

    merged = mk("concatenate", W, mk("mul", W, W), dimension=1)
    key = opaque.register("record", call, call)
    counted = mk("opaque", merged, primitive="record", params_key=key, result_types=(merged.type,))
    program = split(Graph((X, W, B), (dot(X, counted), mk("neg", row(B, (3, 5))))), [counted, B])
    x, w, b = values(X, W, B)
    run = build(program, {"b": b, "w": w})
    for _ in range(3):
        got = run(x)
    np.testing.assert_allclose(got[0], x @ np.concatenate([w, w * w], 1), rtol=1e-5, atol=1e-5)
    assert len(seen) == 1
    assert run.prepared[0].shape == (4, 10)
    assert (run.added_bytes, run.prepared_bytes) == (4 * 40, 4 * 45)
    text = run.lower().as_text()
    (head,) = [line for line in text.splitlines() if "@main" in line]
    assert "tensor<4x10xf32>" in head
    assert "stablehlo.constant" not in text


def test_prepare_for_other_values() -> None:
    doubled = mk("add", W, W)
    program = split(Graph((X, W, B), (mk("add", dot(X, doubled), row(B, (3, 5))),)), [doubled, B])
    x, w, b = values(X, W, B)
    run = build(program, [w, b])
    np.testing.assert_allclose(run.hot([x], run.prepare([w + 1, b]))[0], x @ (2 * w + 2) + b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run(x)[0], x @ (2 * w) + b, rtol=1e-4, atol=1e-5)


def test_small_prepared_tensors_share_a_buffer() -> None:
    vectors = [make_input(f"v{i}", (n,), d, frozen=True) for i, (n, d) in enumerate(((5, "float32"),) * 5)]
    few = [make_input(f"h{i}", (5,), "float16", frozen=True) for i in range(2)]
    large = make_input("large", (2048,), frozen=True)
    total = mk("reduce_sum", large, axes=(0,))
    prepared = [mk("neg", v) for v in vectors] + [mk("neg", h) for h in few] + [W, mk("neg", large)]
    hot = dot(X, W)
    for v in prepared[:5]:
        hot = mk("add", hot, row(v, (3, 5)))
    for h in prepared[5:7]:
        hot = mk("add", hot, row(mk("convert_element_type", h, new_dtype="float32"), (3, 5)))
    hot = mk("add", hot, mk("broadcast_in_dim", total, shape=(3, 5), broadcast_dimensions=()))
    graph = Graph((X, W, *vectors, *few, large), (hot,))
    frozen = [W, *vectors, *few, large]
    program = split(graph, [*prepared[:8], total])
    x, *given = values(X, *frozen)
    run = build(program, given)
    want = evaluate(graph, dict(zip((n["name"] for n in graph.inputs), (x, *given), strict=True)))[0]
    np.testing.assert_allclose(run(x)[0], want, rtol=1e-4, atol=1e-4)
    assert [a.shape for a in run.prepared] == [(5,)] * 7 + [(4, 5), ()]
    # five vectors and the scalar at multiples of 16 elements; halves are too few, matrices stay alone
    assert [a.shape for a in run.packed] == [(81,), (5,), (5,), (4, 5)]
    again = [g + 1 for g in given]
    got = jax.jit(run.run_packed)(x, *run.pack(run.prepare(again)))[0]
    want = evaluate(graph, dict(zip((n["name"] for n in graph.inputs), (x, *again), strict=True)))[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    traced = jax.jit(lambda x, *g: run.run_packed(x, *run.pack(run.prepare(g))))(x, *again)[0]
    np.testing.assert_allclose(traced, want, rtol=1e-4, atol=1e-4)
    assert len(build(original_program(graph), given).packed) == len(frozen), "the reference is called as users call it"


def test_constants_come_with_the_program() -> None:
    x, w, b = values(X, W, B)
    graph = Graph(GRAPH.inputs, GRAPH.outputs, {"b": b})
    run = build(original_program(graph), {"w": w})
    np.testing.assert_allclose(run(x)[0], x @ w + b, rtol=1e-5)


def test_frozen_values_that_do_not_fit() -> None:
    _, w, b = values(X, W, B)
    program = original_program(GRAPH)
    with pytest.raises(ArgumentError, match="no value for the frozen inputs"):
        build(program, {"w": w})
    with pytest.raises(ArgumentError, match="2 frozen inputs, got 1"):
        build(program, [w])
    with pytest.raises(ArgumentError, match=r"'b' is f32\[5\], got float32\[4\]"):
        build(program, [w, b[:4]])


def test_cuts_that_do_not_split() -> None:
    with pytest.raises(SuperoptError, match="depends on the live input 'x'"):
        split(GRAPH, [dot(X, W), B])
    with pytest.raises(SuperoptError, match="needs the input 'b'"):
        split(GRAPH, [W])


def test_executables_under_transformations() -> None:
    x, w, b = values(X, W, B)
    run = build(original_program(GRAPH), [w, b])
    want = x @ w + b
    np.testing.assert_allclose(jax.jit(run)(x)[0], want, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(run)(np.stack([x, x]))[0][1], want, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda v: run(v)[0].sum())(x), np.tile(w.sum(1), (3, 1)), rtol=1e-5)


# ---- dtypes


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_64_bit_graphs_run_with_64_bit_types_off(dtype: str) -> None:
    assert jnp.asarray(1.0).dtype == jnp.float32
    x, w = make_input("x", (3,), dtype), make_input("w", (3,), dtype, frozen=True)
    big = literal(2.0**40 if dtype == "float64" else 2**40, dtype)
    y = mk("add", mk("mul", x, w), mk("broadcast_in_dim", big, shape=(3,), broadcast_dimensions=()))
    a = np.array([1, 2, 3], dtype)
    run = build(original_program(Graph((x, w), (y,))), [a])
    got = run(a)[0]
    assert str(got.dtype) == dtype
    np.testing.assert_array_equal(np.asarray(got), a * a + 2**40)
    np.testing.assert_array_equal(np.asarray(to_jax(Graph((x, w), (y,)))(a, a)[0]), a * a + 2**40)


def test_half_types_round_after_each_op() -> None:
    x = make_input("x", (64,), "bfloat16")
    graph = Graph((x,), (mk("mul", mk("add", x, x), x),))
    array = np.asarray(jnp.asarray(np.linspace(0.1, 3, 64), "bfloat16"))
    np.testing.assert_array_equal(np.asarray(to_jax(graph)(array)[0]), evaluate(graph, {"x": array})[0])


# ---- opaque operations


def test_opaque_operations_with_several_results() -> None:
    key = opaque.register("divmod", (), lambda a, b: jnp.divmod(a, b))
    node = mk("opaque", X, X, primitive="divmod", params_key=key, result_types=(X.type, X.type))
    graph = Graph((X,), (mk("result", node, index=1), mk("result", node, index=0)))
    (x,) = values(X)
    mod, div = to_jax(graph)(x)
    np.testing.assert_array_equal(div, np.ones_like(x))
    np.testing.assert_array_equal(mod, np.zeros_like(x))


def test_unknown_opaque_operation() -> None:
    node = mk("opaque", X, primitive="lost", params_key="lost#0", result_types=(X.type,))
    with pytest.raises(InputError, match="lost#0"):
        to_jax(Graph((X,), (node,)))(*values(X))


def test_opaque_keys_follow_identity() -> None:
    a = opaque.register("op", ("p", 1), lambda: ())
    assert opaque.register("op", ("p", 1), lambda: ()) == a
    assert opaque.register("op", ("p", 2), lambda: ()) != a
    same_text = [opaque.register("op", Silent(), lambda: ()) for _ in range(3)]
    assert len(set(same_text)) == 3


class Silent:
    """Objects that print alike and are not equal."""

    def __repr__(self) -> str:
        return "silent"
