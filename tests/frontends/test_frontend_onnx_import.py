"""ONNX models as graphs: names and dtypes are kept, shape arithmetic is gone, networks give the right values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import superopt
from superopt.errors import ArgumentError
from superopt.frontends.onnx.frontend import (
    OnnxModel,
    import_model,
    import_onnx,
    light_model_path,
    load_model,
    load_symbolic,
    randomize_weights,
)
from superopt.frontends.onnx.model import _fold_constants, identifiers
from superopt.frontends.onnx.weights import roles
from superopt.ir.interp import evaluate
from tests.support.onnx_models import info, mlp, model, node

LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet",
         "vgg19", "zfnet512")  # fmt: skip


def with_values(path: Path, loaded: OnnxModel) -> onnx.ModelProto:
    """The file with the weights of the model stored in it."""
    proto = onnx.load(path)
    kept = [n for n in proto.graph.node if n.output[0] not in loaded.params]
    stored = [t for t in proto.graph.initializer if t.name not in loaded.params]
    del proto.graph.node[:]
    del proto.graph.initializer[:]
    proto.graph.node.extend(kept)
    proto.graph.initializer.extend(stored)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in loaded.params.items())
    return proto


def test_squeezenet_agrees_with_the_reference_evaluator() -> None:
    path = light_model_path("squeezenet")
    loaded = randomize_weights(load_model(path))
    proto = with_values(path, loaded)
    # the reference evaluator applies today's Softmax to every opset, so compare what goes into it
    last = proto.graph.node[-1]
    assert last.op_type == "Softmax"
    proto.graph.output[0].name = last.input[0]
    (x,) = loaded.example_inputs()
    (wanted,) = ReferenceEvaluator(proto).run(None, {loaded.inputs[0].name: x})
    (got,) = load_model(proto)(x)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_zfnet_gives_the_stored_output() -> None:
    path = light_model_path("zfnet512")
    wanted = numpy_helper.to_array(onnx.load_tensor(str(path).replace(".onnx", "_output_0.pb")))
    loaded = load_model(path)
    shape = loaded.inputs[0].shape
    count = int(np.prod(shape))
    (got,) = loaded((np.arange(count).reshape(shape) / count).astype(np.float32))
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("name", LIGHT)
def test_light_networks_import(name: str) -> None:
    imported = import_onnx(light_model_path(name))
    nodes = imported.graph.nodes()
    assert {n.dtype for n in nodes} == {"float32"}
    assert not imported.opaque_ops
    assert not imported.refused
    assert len(imported.names) == 1
    frozen = [n for n in imported.graph.inputs if n["frozen"]]
    assert {n["name"] for n in frozen} == set(imported.graph.constants)


def test_unknown_light_network() -> None:
    with pytest.raises(ArgumentError, match="no light network 'lenet'"):
        light_model_path("lenet")


def test_import_keeps_names_and_values() -> None:
    imported = import_onnx(mlp())
    assert imported.names == ("x",)
    assert [n["name"] for n in imported.graph.inputs] == ["x", "params.b", "params.w"]
    constants = imported.graph.constants
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (got,) = evaluate(imported.graph, {"x": x, **constants})
    np.testing.assert_allclose(got, np.maximum(x @ constants["params.w"] + constants["params.b"], 0), rtol=1e-6)
    np.testing.assert_allclose(imported.fn(x)[0], got, rtol=1e-6)


def test_identifiers() -> None:
    assert identifiers(["gpu_0/data", "gpu_0.data", "1", "class", "params", ""]) == [
        "gpu_0_data", "gpu_0_data_", "x_1", "x_class", "params_", "x_",
    ]  # fmt: skip


def shape_arithmetic() -> onnx.ModelProto:
    """Flatten all but the batch the way exporters do: Shape, Gather, Concat, Reshape."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axes", "n1"),
        node("Concat", "n1 rest", "target", axis=0),
        node("Reshape", "x target", "flat"),
        node("Cast", "n", "nf", to=1),
        node("Div", "flat nf", "y"),
    ]
    stored = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    return model(nodes, [info("x", [2, 3, 4])], [info("y", [2, 12])], stored)


def test_shape_arithmetic_never_enters_the_program() -> None:
    imported = import_onnx(shape_arithmetic())
    assert {n.op for n in imported.graph.nodes()} <= {"input", "reshape", "div", "literal", "broadcast_in_dim"}
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(imported.fn(x)[0], x.reshape(2, 12) / 2)


def test_constants_written_as_nodes_are_weights() -> None:
    value = np.ones((3, 3), np.float32)
    nodes = [node("Constant", "", "w", value=numpy_helper.from_array(value)), node("MatMul", "x w", "y")]
    loaded = load_model(model(nodes, [info("x", (2, 3))], [info("y", (2, 3))]))
    assert list(loaded.params) == ["w"]


def test_a_weight_that_an_op_needs_now_becomes_part_of_the_program() -> None:
    scales = {"s": np.array([1, 1, 2, 2], np.float32)}
    resize = model([node("Resize", "x - s", "y")], [info("x", (1, 1, 2, 2))], [info("y", (1, 1, 4, 4))], scales)
    loaded = load_model(resize)
    assert not loaded.params
    assert loaded.outputs[0].shape == (1, 1, 4, 4)


def test_live_shapes_can_be_bound() -> None:
    nodes = [node("Reshape", "x s", "y")]
    live = model(nodes, [info("x", (2, 3)), info("s", (1,), np.int64)], [info("y", [None])])
    loaded = load_model(live, values={"s": np.array([6])})
    assert [i.name for i in loaded.inputs] == ["x"]
    assert loaded.outputs[0].shape == (6,)
    with pytest.raises(ArgumentError, match="'t', which is not an input"):
        load_model(live, values={"t": np.array([6])})


@pytest.mark.parametrize("wide", [False, True])
def test_integer_inputs_may_be_int32(wide: bool) -> None:
    table = {"table": np.arange(12, dtype=np.float32).reshape(4, 3)}
    take = model([node("Gather", "table ids", "y")], [info("ids", (2,), np.int64)], [info("y", (2, 3))], table)
    loaded = load_model(take)
    for dtype in (np.int32, np.int64):
        np.testing.assert_array_equal(loaded(np.array([3, -1], dtype))[0], table["table"][[3, -1]])
    with jax.enable_x64(wide):
        imported = import_model(loaded)
    assert imported.graph.inputs[0].dtype == "int64"
    assert "float64" not in {n.dtype for n in imported.graph.nodes()}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "int32", "uint32", "float32"])
def test_graphs_have_the_types_of_the_file(wide: bool, dtype: str) -> None:
    kind = np.dtype(dtype)
    named = [info("x", (2,), kind), info("n", (), np.int64)]
    twice = model(
        [node("Add", "x w", "y"), node("Shape", "x", "s"), node("Mul", "s n", "t")], named,
        [info("y", (2,), kind), info("t", (1,), np.int64)], {"w": np.array([1, 2], kind)},
    )  # fmt: skip
    with jax.enable_x64(wide):
        graph = import_model(load_model(twice)).graph
    assert [x.dtype for x in graph.inputs[:2]] == [dtype, "int64"]
    assert [x.dtype for x in graph.outputs] == [dtype, "int64"]


def test_results_have_the_types_of_the_file_without_x64(tmp_path: Path) -> None:
    twice = model([node("Add", "x x", "y")], [info("x", (2,), np.int64)], [info("y", (2,), np.int64)])
    fast = superopt.optimize(load_model(twice), budget="10steps", deterministic=True, store=False)
    fast.save(tmp_path / "twice.superopt")
    for run in (fast, superopt.load(tmp_path / "twice.superopt")):
        for x in (np.array([1, -(2**40)]), np.array([1, -3], np.int32), jnp.array([1, -3])):
            (y,) = run(x)
            assert y.dtype == np.int64
            np.testing.assert_array_equal(y, 2 * np.asarray(x, np.int64))
        (y,) = jax.jit(run)(jnp.array([2**30, -3]))
        np.testing.assert_array_equal(y, [2**31, -6])
        with jax.enable_x64(True):
            np.testing.assert_array_equal(jax.jit(run)(jnp.array([2**40, -3]))[0], [2**41, -6])
    with pytest.raises(ArgumentError, match="argument x is f32"):
        fast(np.array([1, 2], np.float32))
    large = np.array([1, 2**40])
    given = superopt.optimize(load_model(twice), large, budget="10steps", deterministic=True, store=False)
    np.testing.assert_array_equal(given(large)[0], 2 * large)


def test_double_models_take_double_arrays(tmp_path: Path) -> None:
    w = np.full((3, 3), 1 / 3)
    for stored in ({"w": w}, {}):
        product = [node("MatMul", "x w" if stored else "x x", "y")]
        double = model(product, [info("x", (3, 3), np.float64)], [info("y", (3, 3), np.float64)], stored)
        loaded = load_model(double)
        fast = superopt.optimize(loaded, budget="10steps", deterministic=True, store=False)
        x = np.random.default_rng(0).standard_normal((3, 3))
        again = superopt.load(fast.save(tmp_path / "double.superopt"))
        for call in (loaded, fast, again):
            (y,) = call(x)
            assert y.dtype == np.float64
            np.testing.assert_allclose(y, x @ (w if stored else x), rtol=1e-14)


def test_double_models_stay_double() -> None:
    stored = {"w": np.ones((3, 3), np.float64)}
    double = model(
        [node("MatMul", "x w", "y")], [info("x", (2, 3), np.float64)], [info("y", (2, 3), np.float64)], stored
    )
    assert load_model(double)(np.ones((2, 3)))[0].dtype == np.float64
    assert {n.dtype for n in import_onnx(double).graph.nodes()} == {"float64"}


def test_own_functions_and_their_attributes() -> None:
    leaky = node("LeakyRelu", "a", "b")
    leaky.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    own = helper.make_function("own", "Act", ["a"], ["b"], [leaky], [helper.make_opsetid("", 20)], attributes=["slope"])
    nodes = [node("Act", "x", "y", domain="own", slope=0.5)]
    loaded = load_model(model(nodes, [info("x", (2,))], [info("y", (2,))], functions=[own]))
    np.testing.assert_array_equal(loaded(np.array([-2, 2], np.float32))[0], [-1, 2])


def test_loops_become_scans_and_whiles() -> None:
    body = helper.make_graph(
        [node("Mul", "v two", "v2"), node("Identity", "go", "go2")], "body",
        [info("i", (), np.int64), info("go", (), bool), info("v", (2,))], [info("go2", (), bool), info("v2", (2,))],
    )  # fmt: skip
    stored = {"two": np.array(2, np.float32), "n": np.array(100)}
    counted = model([node("Loop", "n - x", "y", body=body)], [info("x", (2,))], [info("y", (2,))], stored)
    imported = import_onnx(counted)
    assert "scan" in {n.op for n in imported.graph.nodes()}
    live = model(
        [node("Loop", "k - x", "y", body=body)], [info("x", (2,)), info("k", (), np.int64)], [info("y", (2,))],
        {"two": stored["two"]},
    )  # fmt: skip
    (got,) = load_model(live)(np.ones(2, np.float32), np.array(5))
    np.testing.assert_array_equal(got, [32, 32])


def test_random_weights_follow_from_roles() -> None:
    loaded = load_model(light_model_path("shufflenet"))
    first, again, other = randomize_weights(loaded, 1), randomize_weights(loaded, 1), randomize_weights(loaded, 2)
    known = roles(loaded)
    assert len(known) == len(loaded.params)
    for name, array in first.params.items():
        np.testing.assert_array_equal(array, again.params[name])
        assert (array != other.params[name]).any()
        if known[name].op == "BatchNormalization" and known[name].position == 4:
            assert array.min() > 0
    (scores,) = first(*first.example_inputs())
    assert 1e-3 < np.max(scores) < 0.9


def test_other_weights_must_fit() -> None:
    loaded = load_model(mlp())
    doubled = loaded.with_params({name: 2 * array for name, array in loaded.params.items()})
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(doubled(x)[0], 2 * np.asarray(loaded(x)[0]), rtol=1e-6)
    with pytest.raises(ArgumentError, match="weight 'b'"):
        loaded.with_params({**loaded.params, "b": np.zeros(4, np.float32)})


def test_a_result_made_of_symbolic_sizes_is_an_array() -> None:
    nodes = [node("Relu", "x", "y"), node("Shape", "y", "s"), node("Size", "y", "n")]
    outputs = [info("y", ("N", "M")), info("s", (2,), np.int64), info("n", (), np.int64)]
    made = model(nodes, [info("x", ("N", "M"))], outputs)
    assert [one.name for one in load_symbolic(made).outputs] == ["y", "s", "n"]
    y, shape, size = load_model(made, dims={"N": 2, "M": 3})(-np.ones((2, 3), np.float32))
    assert (np.asarray(y).any(), np.asarray(shape).tolist(), int(size)) == (False, [2, 3], 6)


def test_integers_of_32_bits_take_the_direct_call_of_a_program_for_64(tmp_path: Path) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    inputs, outputs = [info("ids", (2,), np.int64)], [info("y", (2, 3))]
    take = model([node("Gather", "table ids", "y")], inputs, outputs, {"table": table})
    made = superopt.optimize(load_model(take), budget="10steps", deterministic=True, store=False)
    ids = jnp.array([1, 3], jnp.int32)
    for program in (made, superopt.load(made.save(tmp_path / "take.superopt"))):
        np.testing.assert_array_equal(program(ids)[0], table[[1, 3]])
        assert program.direct is not None
        np.testing.assert_array_equal(program.direct(ids)[0], table[[1, 3]])  # raises for types that it does not take


@pytest.mark.parametrize(
    ("shape", "value", "folded"),
    [
        (np.array([2, 3]), np.array([0.5], np.float32), True),
        (np.array([2, 3]), None, True),
        (np.array([2, 3], np.int32), None, False),
        (np.array(2), None, False),
        (np.array([[2, 3]]), None, False),
        (np.array([2, 3]), np.array([1]), False),
        (np.array([2, 3]), np.array([True]), False),
        (np.array([2, 3]), np.array([0.5, 0.5], np.float32), False),
    ],
)
def test_constants_of_floats_are_weights_that_take_no_memory(
    shape: np.ndarray, value: np.ndarray | None, folded: bool
) -> None:
    """An attribute that the definition of the op does not allow stays, and is refused where it is computed."""
    attrs: dict[str, Any] = {} if value is None else {"value": numpy_helper.from_array(value)}
    made, stored = helper.make_node("ConstantOfShape", ["shape"], ["y"], **attrs), {"shape": shape}
    assert _fold_constants([made], stored, None, None) == ([] if folded else [made])
    assert ("y" in stored) == folded
    if folded:
        assert stored["y"].shape == (2, 3)
        assert stored["y"].strides == (0, 0)
        assert set(stored["y"].ravel()) == {0.0 if value is None else 0.5}


@pytest.mark.parametrize(("size", "sizes"), [(6, (2, 2, 2)), (7, (3, 3, 1)), (5, (2, 2, 1)), (4, (2, 2, 0))])
def test_a_split_into_so_many_parts_ends_with_the_smallest(size: int, sizes: tuple[int, ...]) -> None:
    split = helper.make_node("Split", ["x"], ["a", "b", "c"], axis=0, num_outputs=3)
    outputs = [info(name, (n,)) for name, n in zip("abc", sizes, strict=True)]
    made = model([split], [info("x", (size,))], outputs, opset=18)
    x = np.arange(size, dtype=np.float32)
    found = load_model(made)(x)
    assert tuple(len(part) for part in found) == sizes
    np.testing.assert_array_equal(np.concatenate(found), x)
