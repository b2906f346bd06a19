"""Operators without a form in JAX are run on the host, and never end the run: strings, and results sized by data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.errors import InputError
from superopt.foreign import onnx_calls
from superopt.frontends.onnx.frontend import UnsupportedOpError, import_model, load_model
from superopt.lab.bench.onnx.types import difference, reference
from tests.support.onnx_models import info, model, node
from tests.support.saved_files import edited

X = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)


def agrees(one: onnx.ModelProto, *arrays: np.ndarray) -> Any:
    """The loaded model, after its results were compared with the reference evaluator's."""
    loaded = load_model(one)
    wanted = reference(one, {i.name: a for i, a in zip(loaded.inputs, arrays, strict=True)})
    got = loaded(*arrays)
    assert len(got) == len(wanted)
    assert not any(difference(g, w) for g, w in zip(got, wanted, strict=True))
    return loaded


def test_an_output_whose_size_depends_on_the_data() -> None:
    nodes = [node("Relu", "x", "r"), node("NonZero", "r", "y")]
    loaded = agrees(model(nodes, [info("x", X.shape)], [info("y", (2, None), np.int64)]), X)
    assert loaded.tail.ops == {"onnx.NonZero": 1}


def test_values_of_known_type_return_to_the_program() -> None:
    nodes = [
        node("Relu", "x", "r"), node("NonZero", "r", "i"), node("Size", "i", "n"), node("Transpose", "i", "t"),
        node("GatherND", "x t", "g"), node("ReduceSum", "g", "s", keepdims=0), node("Exp", "s", "y"),
    ]  # fmt: skip
    loaded = agrees(model(nodes, [info("x", X.shape)], [info("y", ()), info("n", (), np.int64)]), X)
    assert loaded.tail is None
    imported = import_model(loaded, X)
    assert {name.split(".")[0] for name in imported.opaque_ops} == {"onnx"}
    assert [n.dtype for n in imported.graph.outputs] == ["float32", "int64"]


def test_shapes_that_depend_on_the_host() -> None:
    nodes = [
        node("NonZero", "x", "i"), node("Shape", "i", "n"), node("ConstantOfShape", "n", "z"),
        node("Add", "z one", "y"),
    ]  # fmt: skip
    agrees(model(nodes, [info("x", X.shape)], [info("y", (2, None))], {"one": np.float32(1)}), X)


def test_shapes_made_of_data() -> None:
    nodes = [
        node("ReduceMax", "x", "m", keepdims=0), node("Cast", "m", "k", to=TensorProto.INT64),
        node("Reshape", "k s", "r"), node("Concat", "r s", "n", axis=0), node("Tile", "x n", "t"),
        node("Relu", "t", "y"), node("Size", "t", "c"),
    ]  # fmt: skip
    outputs = [info("y", (None, 5)), info("c", (), np.int64)]
    loaded = agrees(model(nodes, [info("x", X.shape)], outputs, {"s": np.array([1])}), X + 1)
    assert set(loaded.tail.ops) >= {"onnx.Tile", "onnx.Relu"}


@pytest.mark.parametrize("inside", [False, True])
def test_nodes_of_the_host_are_checked_as_others_are(inside: bool) -> None:
    pool = node("MaxPool", "u", "y", kernel_shape=[2, 2], strides=[0, 0])
    if inside:
        body = helper.make_graph([pool], "body", [], [onnx.ValueInfoProto(name="y")])
        pool = helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)
    nodes = [
        node("NonZero", "x", "i"), node("Cast", "i", "f", to=TensorProto.FLOAT), node("Unsqueeze", "f a", "u"),
        node("ReduceMax", "x", "m", keepdims=0), node("Cast", "m", "c", to=TensorProto.BOOL), pool,
    ]  # fmt: skip
    outputs = [info("z" if inside else "y", (1, 1, None, None))]
    with pytest.raises(InputError, match="strides is"):
        load_model(model(nodes, [info("x", X.shape)], outputs, {"a": np.array([0, 1])}))


def test_loops_of_the_host_have_an_end() -> None:
    inputs = [info("k", (), np.int64), info("c", (), np.bool_), info("v", (2, None), np.int64)]
    outputs = [info("d", (), np.bool_), info("w", (2, None), np.int64)]
    body = helper.make_graph([node("Identity", "c", "d"), node("Add", "v v", "w")], "body", inputs, outputs)
    nodes = [node("NonZero", "x", "i"), node("Loop", "m - i", "y", body=body)]

    def loop(count: int) -> onnx.ModelProto:
        return model(nodes, [info("x", X.shape)], [info("y", (2, None), np.int64)], {"m": np.array(count)})

    (doubled,) = load_model(loop(3))(X)  # without a condition; ONNX's reference makes no step then
    np.testing.assert_array_equal(doubled, 8 * np.stack(np.nonzero(X)))
    with pytest.raises(InputError, match="1000000000000 steps"):
        load_model(loop(10**12))


def test_boxes_are_selected_on_the_host() -> None:
    rng = np.random.default_rng(1)
    boxes, scores = rng.random((1, 6, 4)).astype(np.float32), rng.random((1, 2, 6)).astype(np.float32)
    stored = {"m": np.array([3]), "i": np.array([0.5], np.float32)}
    inputs = [info("b", boxes.shape), info("s", scores.shape)]
    nodes = [node("Neg", "s", "t"), node("NonMaxSuppression", "b t m i", "y")]
    agrees(model(nodes, inputs, [info("y", (None, 3), np.int64)], stored), boxes, scores)


def labels() -> onnx.ModelProto:
    """Class names of the largest score."""
    encode = helper.make_node(
        "LabelEncoder", ["a"], ["y"], domain="ai.onnx.ml", keys_int64s=list(range(5)), values_strings=list("abcde")
    )
    one = model(
        [node("Softmax", "x", "p"), node("ArgMax", "p", "a", axis=1, keepdims=0), encode],
        [info("x", X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.STRING, (4,)), info("p", X.shape)],
    )
    one.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    return one


def test_strings_come_after_the_program() -> None:
    optimized = superopt.optimize(load_model(labels()), X, budget="2s", store=False, deterministic=True)
    names, scores = optimized(X)
    assert names.tolist() == [list("abcde")[i] for i in X.argmax(1)]
    np.testing.assert_allclose(scores.sum(1), np.ones(4), rtol=1e-6)
    assert optimized.report.opaque_ops == {"onnx.LabelEncoder": 1}
    with pytest.raises(InputError, match="no fixed shape or type"):
        jax.jit(lambda x: optimized(x))(X)


def test_calls_of_the_host_are_saved(tmp_path: Path) -> None:
    counted = [node("Relu", "x", "r"), node("NonZero", "r", "i"), node("Size", "i", "n"), node("Cast", "n", "f", to=1)]
    one = model([*counted, node("Mul", "r f", "y"), node("NonZero", "y", "z")], [info("x", X.shape)],
                [info("y", X.shape), info("z", (2, None), np.int64)])  # fmt: skip
    optimized = superopt.optimize(load_model(one), X, budget="2s", store=False, deterministic=True)
    wanted = reference(one, {"x": X})
    loaded = superopt.load(optimized.save(tmp_path / "p.superopt"))
    for results in (optimized(X), loaded(X)):
        assert not any(difference(g, w) for g, w in zip(results, wanted, strict=True))


SHAPE = np.array([10**6, 10**6])
MOST = node("ReduceMax", "n", "m", keepdims=0)
KEEP = helper.make_graph(
    [node("Identity", "c", "d"), node("Identity", "s", "r")],
    "body",
    [info("i", (), np.int64), info("c", (), bool), info("s", ())],
    [info("d", (), bool), info("r", ())],
)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ConstantOfShape", "n", "y")],
        [node("Abs", "n", "m"), node("Expand", "x m", "y")],
        [
            node("Mul", "n n", "m"), node("ReduceMax", "m", "t", keepdims=0),
            helper.make_node("Loop", ["t", "b", "x"], ["y"], body=KEEP),
        ],
        [MOST, node("Range", "o m o", "r"), node("Unsqueeze", "r a", "u"), node("Add", "u r", "y")],
        [MOST, node("OneHot", "n m v", "h"), node("Tile", "h n", "y")],
        [node("Concat", "a a n", "s", axis=0), node("MaxUnpool", "p i s", "y", kernel_shape=[2, 2])],
    ],
    ids=["constant", "expand", "loop", "broadcast", "tile", "unpool"],
)  # fmt: skip
def test_models_on_the_host_do_no_more_than_their_inputs_ask_for(nodes: list[onnx.NodeProto]) -> None:
    stored = {"n": SHAPE, "o": np.array(1), "a": np.array([1]), "v": np.array([0, 1], np.float32), "b": np.array(True)}
    stored |= {"p": np.ones((1, 1, 2, 2), np.float32), "i": np.arange(4).reshape(1, 1, 2, 2)}
    asked = model(nodes, [info("x", ())], [info("y", None or ())], stored)
    with pytest.raises(InputError, match="asks for more than"):
        onnx_calls.evaluate(asked.SerializeToString(), [np.array(2.0, np.float32)])


def test_models_on_the_host_may_do_what_their_inputs_ask_for() -> None:
    stored = {"k": np.array(3000), "b": np.array(True), "n": np.array([300, 400])}
    nodes = [
        helper.make_node("Loop", ["k", "b", "x"], ["y"], body=KEEP), node("ConstantOfShape", "n", "z"),
        node("Transpose", "z", "t"), node("MatMul", "z t", "p"),
    ]  # fmt: skip
    y, p = onnx_calls.evaluate(
        model(nodes, [info("x", ())], [info("y", ()), info("p", (300, 300))], stored).SerializeToString(),
        [np.array(2.0, np.float32)],
    )
    assert y == 2.0
    assert p.shape == (300, 300)


def test_models_of_strangers_only_compute() -> None:
    tail = load_model(labels()).tail
    assert tail is not None
    assert onnx_calls.refusal(tail.model) == ""
    assert onnx_calls.read_part(tail.to_json(), 2) == tail
    outside = onnx.ModelProto.FromString(tail.model)
    tensor = outside.graph.initializer.add(name="w", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    assert onnx_calls.refusal(outside.SerializeToString()) == "it reads another file"
    other = onnx.ModelProto.FromString(tail.model)
    other.graph.node[0].domain = "com.acme"
    assert "other makers" in onnx_calls.refusal(other.SerializeToString())
    assert onnx_calls.refusal(b"\xff" * 20) == "it is no ONNX model"
    for change in ({"reads": [7]}, {"places": [[True, 9]]}, {"places": [3]}, {"model": "####"}, {"reads": []}):
        with pytest.raises((InputError, ValueError)):
            onnx_calls.read_part({**tail.to_json(), **change}, 2)


def test_known_strings_are_computed_at_conversion() -> None:
    upper = node("StringConcat", "w v", "t")
    tall = [upper, node("Shape", "t", "n"), node("Cast", "n", "f", to=1), node("Add", "x f", "y")]
    words = helper.make_tensor("w", TensorProto.STRING, [2], [b"a", b"b"])
    one = model(tall, [info("x", (1,))], [info("y", (1,))])
    one.graph.initializer.extend([words, helper.make_tensor("v", TensorProto.STRING, [2], [b"c", b"d"])])
    (y,) = load_model(one)(np.zeros(1, np.float32))
    np.testing.assert_array_equal(y, [2.0])


def test_conditions_around_host_values() -> None:
    then = helper.make_graph([node("NonZero", "x", "i"), node("Size", "i", "t")], "then", [], [info("t", (), np.int64)])
    other = helper.make_graph([node("Size", "x", "e")], "else", [], [info("e", (), np.int64)])
    branch = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    nodes = [node("ReduceMax", "x", "m", keepdims=0), node("Greater", "m zero", "c"), branch]
    agrees(model(nodes, [info("x", X.shape)], [info("y", (), np.int64)], {"zero": np.float32(0)}), X)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("summed", [False, True])
def test_branches_whose_results_have_other_shapes(sign: int, summed: bool) -> None:
    then = helper.make_graph([node("Relu", "x", "t")], "then", [], [info("t", X.shape)])
    other = helper.make_graph([node("Concat", "x x", "e", axis=0)], "else", [], [info("e", (8, 5))])
    branch = helper.make_node("If", ["c"], ["b"], then_branch=then, else_branch=other)
    nodes = [node("ReduceSum", "x", "m", keepdims=0), node("Greater", "m zero", "c"), branch]
    nodes.append(node("ReduceSum", "b", "y", keepdims=0) if summed else node("Neg", "b", "y"))
    output = info("y", () if summed else (None, 5))
    agrees(model(nodes, [info("x", X.shape)], [output], {"zero": np.float32(0)}), sign * np.abs(X))


def test_loops_whose_state_grows_by_a_number_of_steps_that_is_not_known() -> None:
    inputs = [info("i", (), np.int64), info("c", (), np.bool_), info("s", (None,))]
    outputs = [info("d", (), np.bool_), info("t", (None,))]
    body = helper.make_graph([node("Identity", "c", "d"), node("Concat", "s v", "t", axis=0)], "body", inputs, outputs)
    nodes = [node("Neg", "v", "first"), node("Loop", "n - first", "y", body=body)]
    grown = model(nodes, [info("n", (), np.int64), info("v", (2,))], [info("y", (None,))])
    v = np.array([1.0, 2.0], np.float32)
    for steps in (0, 3):
        (y,) = load_model(grown)(np.array(steps), v)
        np.testing.assert_array_equal(y, [-1.0, -2.0, *(steps * [1.0, 2.0])])


def test_boxes_that_are_sampled_as_finely_as_they_are_large() -> None:
    image = np.arange(72, dtype=np.float32).reshape(1, 2, 6, 6)
    boxes = np.array([[0, 0, 4, 4], [1, 1, 5.5, 3]], np.float32)
    inputs = [info("x", image.shape), info("r", boxes.shape), info("b", (2,), np.int64)]
    align = node("RoiAlign", "x r b", "a", output_height=2, output_width=3)
    agrees(model([align, node("Neg", "a", "y")], inputs, [info("y", (2, 2, 2, 3))]), image, boxes, np.array([0, 0]))


def acme(**attrs: Any) -> onnx.ModelProto:
    """An operator of another maker."""
    own = helper.make_node("Foo", ["x"], ["h"], domain="com.acme", **attrs)
    one = model([own, node("Relu", "h", "y")], [info("x", X.shape)], [info("y", X.shape)])
    one.opset_import.append(helper.make_opsetid("com.acme", 1))
    return one


def test_functions_for_operators_of_other_makers() -> None:
    with pytest.raises(UnsupportedOpError, match="operators="):
        load_model(acme())
    loaded = load_model(acme(alpha=2.0), operators={"com.acme.Foo": lambda x, alpha: jnp.tanh(x) * alpha})
    np.testing.assert_allclose(loaded(X)[0], np.maximum(np.tanh(X) * 2, 0), rtol=1e-5)


def test_functions_that_the_model_defines_are_its_own_operators() -> None:
    def foo(inner: str, domain: str) -> onnx.FunctionProto:
        body = [node(inner, "a", "b", domain=domain), node("Neg", "b", "c")]
        versions = [helper.make_opsetid("", 20), helper.make_opsetid("com.acme", 1)]
        return helper.make_function("com.acme", "Foo", ["a"], ["c"], body, versions)

    one = acme()
    one.functions.append(foo("Tanh", ""))
    np.testing.assert_allclose(load_model(one)(X)[0], np.maximum(-np.tanh(X), 0), rtol=1e-5)
    unknown = acme()
    unknown.functions.append(foo("Bar", "com.acme"))
    with pytest.raises(UnsupportedOpError, match=r"com\.acme\.Bar.*another maker"):
        load_model(unknown)


def worded(*more: onnx.NodeProto, outputs: Any = ()) -> onnx.ModelProto:
    """A product with a number for each word of an input."""
    words = helper.make_tensor_value_info("w", TensorProto.STRING, (2,))
    encode = helper.make_node(
        "LabelEncoder", ["w"], ["i"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_int64s=[3, 4]
    )
    nodes = [encode, node("Cast", "i", "f", to=TensorProto.FLOAT), node("Mul", "x f", "y"), *more]
    one = model(nodes, [words, info("x", (2,))], [info("y", (2,)), *outputs])
    one.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    return one


WORDS, TWO = np.array(["b", "a"]), np.array([1, 2], np.float32)


def test_strings_of_a_call_are_read_before_the_program(tmp_path: Path) -> None:
    loaded = load_model(worded())
    assert [i.dtype for i in loaded.inputs] == ["object", "float32"]
    assert [(i.name, i.dtype) for i in loaded.taken] == [("x", "float32"), ("i", "int64")]
    assert np.asarray(loaded(WORDS, TWO)[0]).tolist() == [4.0, 6.0]
    optimized = superopt.optimize(loaded, WORDS, TWO, budget="2s", store=False, deterministic=True)
    assert optimized.report.opaque_ops == {"onnx.LabelEncoder": 1}
    for program in (optimized, superopt.load(optimized.save(tmp_path / "p.superopt"))):
        assert np.asarray(program(WORDS, TWO)[0]).tolist() == [4.0, 6.0]
        assert np.asarray(program(["a", "a"], TWO)[0]).tolist() == [3.0, 6.0]
        with pytest.raises(InputError):
            program(TWO)
        with pytest.raises(InputError):
            program(WORDS[:1], TWO)
    (y,) = load_model(worded(), values={"w": WORDS})(TWO)
    assert np.asarray(y).tolist() == [4.0, 6.0]


def test_strings_of_a_call_are_read_after_the_program_too() -> None:
    text = helper.make_tensor_value_info("t", TensorProto.STRING, (2,))
    more = [node("Cast", "y", "c", to=TensorProto.STRING), node("StringConcat", "w c", "t")]
    loaded = load_model(worded(*more, outputs=[text]))
    optimized = superopt.optimize(loaded, WORDS, TWO, budget="2s", store=False, deterministic=True)
    for y, t in (loaded(WORDS, TWO), optimized(WORDS, TWO)):
        assert np.asarray(y).tolist() == [4.0, 6.0]
        assert [str(x)[:2] for x in t] == ["b4", "a6"]


def test_parts_of_the_host_that_do_not_fit_a_saved_program_are_refused(tmp_path: Path) -> None:
    text = helper.make_tensor_value_info("t", TensorProto.STRING, (2,))
    more = [node("Cast", "y", "c", to=TensorProto.STRING), node("StringConcat", "w c", "t")]
    loaded = load_model(worded(*more, outputs=[text]))
    path = superopt.optimize(loaded, WORDS, TWO, search=False, store=False).save(tmp_path / "p.superopt")

    def placed(edit: Callable[[list[Any]], list[Any]]) -> Callable[[bytes], bytes]:
        return lambda data: json.dumps({**(part := json.loads(data)), "places": edit(part["places"])}).encode()

    for member, edit, cause in (
        ("head", lambda places: places[:-1], "its head gives 1"),
        ("tail", lambda places: [[False, 2], *places[1:]], "its tail names a place that is none"),
    ):
        with pytest.raises(InputError, match=cause):
            superopt.load(edited(path, tmp_path / "e.superopt", **{member: placed(edit)}))


def test_strings_beside_what_is_computed_are_refused_by_name() -> None:
    mixed = [
        node("ReduceMax", "y", "m", keepdims=0), node("Cast", "m", "k", to=TensorProto.INT64),
        node("Gather", "w k", "g"), node("Shape", "g", "n"),
    ]  # fmt: skip
    label = helper.make_node("LabelEncoder", ["g"], ["l"], domain="ai.onnx.ml", keys_strings=["a"], values_int64s=[1])
    one = worded(*mixed, label, node("Add", "l n", "z"), outputs=[info("z", (0,), np.int64)])
    with pytest.raises(InputError, match="strings of the call"):
        load_model(one)


def test_four_bit_weights() -> None:
    import ml_dtypes

    w = np.arange(-8, 8).reshape(4, 4).astype(ml_dtypes.int4)
    stored = {"s": np.float32(0.5), "z": np.asarray(1, ml_dtypes.int4)}
    nodes = [node("DequantizeLinear", "w s z", "d"), node("MatMul", "x d", "y")]
    one = model(nodes, [info("x", (2, 4))], [info("y", (2, 4))], stored, opset=21)
    one.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, [4, 4], w.astype(np.int8).ravel()))
    x = X[:2, :4]
    imported = import_model(load_model(one), x)
    assert not imported.opaque_ops
    optimized = superopt.optimize(load_model(one), x, budget="2s", store=False, deterministic=True)
    wanted = x @ ((w.astype(np.float32) - 1) * 0.5)
    np.testing.assert_allclose(optimized(x)[0], wanted, rtol=1e-5)


@pytest.mark.parametrize("trips", [0, 6])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_what_the_steps_of_a_loop_give_is_stacked(trips: int, rank: int) -> None:
    """A condition that is computed in the body; ONNX's reference gives (6, 1) for numbers, and joins matrices."""
    state = np.array([[0.5, -1.0, 2.0], [0.1, 0.2, 0.3]], np.float32)
    given = {0: node("ReduceMax", "s2", "row", keepdims=0), 1: node("ReduceMax", "s2 axis", "row", keepdims=0)}
    body = helper.make_graph(
        [node("Tanh", "s", "s2"), given.get(rank) or node("Identity", "s2", "row"), node("ReduceMax", "s2", "m"),
         node("Less", "m limit", "going")],
        "body", [info("i", (), np.int64), info("c", (), np.bool_), info("s", (2, 3))],
        [info("going", (), np.bool_), info("s2", (2, 3)), info("row", (2, 3)[:rank])],
    )  # fmt: skip
    weights = {"M": np.int64(trips), "yes": np.bool_(True), "limit": np.float32(2.0), "axis": np.array([1])}
    loop = node("Loop", "M yes x", "last rows", body=body)
    outputs = [info("last", (2, 3)), info("rows", (None, *(2, 3)[:rank]))]
    loaded = load_model(model([loop], [info("x", (2, 3))], outputs, weights, opset=18))
    want, rows = state, []
    for _ in range(trips):
        want = np.tanh(want)
        rows.append([want.max(), want.max(1), want][rank])
    last, found = loaded(state)
    np.testing.assert_allclose(last, want, rtol=1e-6)
    np.testing.assert_allclose(found, np.array(rows, np.float32).reshape(trips, *(2, 3)[:rank]), rtol=1e-6)


def test_dictionaries_are_refused_with_what_to_do() -> None:
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(onnx.TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    )
    zipped = helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    graph = helper.make_graph([zipped], "g", [info("x", (2, 2))], [helper.make_value_info("z", maps)])
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    with pytest.raises(UnsupportedOpError, match="ZipMap") as caught:
        load_model(helper.make_model(graph, opset_imports=sets, ir_version=10))
    assert "zipmap" in caught.value.hint


def test_faults_of_the_evaluator_are_told_of_the_node() -> None:
    take = onnx.helper.make_node("Gather", ["x", "i"], ["y"], name="take")
    one = model([take], [info("x", (3,)), info("i", (1,), np.int64)], [info("y", (1,))])
    with pytest.raises(InputError) as caught:
        onnx_calls.evaluate(one.SerializeToString(), [np.zeros(3, np.float32), np.array([7])])
    assert "node 'take' (Gather) cannot be computed from float32[3], int64[1]: an index" in str(caught.value)
    assert "IndexError" not in str(caught.value)
