"""Two ONNX models compared: pairs that are equal, pairs that are not, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from superopt.commands.main import cli
from superopt.equivalence.constants import Constants, Enclosed, same
from superopt.equivalence.models import compare_models
from superopt.equivalence.sharing import share
from superopt.equivalence.verdict import compare_graphs
from superopt.errors import ArgumentError, InputError, UsageError
from superopt.ir.graph import Graph, make_input, mk
from superopt.lab.bench.onnx.networks import network
from superopt.lab.bench.pairs import FAULTS, MODELS, faulty, pair
from tests.support.onnx_models import info, model, node
from tests.support.pasted import executed
from tests.support.sampling import sampled
from verifier.verdict import PROVED, REFUTED

LINEAR = {"w": np.arange(12, dtype=np.float32).reshape(3, 4) / 7}


def graph(make: Any, shapes: dict[str, tuple[int, ...]], stored: dict[str, np.ndarray] | None = None) -> Graph:
    """A graph of live inputs and stored tensors."""
    stored = stored or {}
    live = {name: make_input(name, shape) for name, shape in shapes.items()}
    kept = {name: make_input(name, x.shape, str(x.dtype), frozen=True) for name, x in stored.items()}
    return Graph((*live.values(), *kept.values()), (make(**live, **kept),), stored)


def dot(x: Any, w: Any, i: int = 1, j: int = 0) -> Any:
    return mk("dot_general", x, w, dimension_numbers=(((i,), (j,)), ((), ())))


def scaled(x: Any, s: Any) -> Any:
    return mk("mul", x, mk("broadcast_in_dim", s, shape=x.shape, broadcast_dimensions=(len(x.shape) - 1,)))


S = np.array([0.3, 1.7, -2.1, 0.9], np.float32)
BEFORE = graph(lambda x, w, s: scaled(dot(x, w), s), {"x": (2, 3)}, {**LINEAR, "s": S})


def folded(w: np.ndarray) -> Graph:
    return graph(lambda x, w: dot(x, w), {"x": (2, 3)}, {"w": w})


def test_a_scale_that_was_folded_is_an_assumption_with_its_distance() -> None:
    found = compare_graphs(BEFORE, folded(LINEAR["w"] * S))
    assert found.status == PROVED
    assert found.exactness == "real"
    assert len(found.folded) == 1
    assert "is mul(w, " in found.folded[0]
    assert 0 < found.apart < 2**-22
    assert "assuming 1 stored tensors" in str(found)


@pytest.mark.parametrize("ulps", [16, 64, 1 << 12])
def test_a_folded_tensor_beyond_rounding_is_not_proved(ulps: int) -> None:
    wrong = (LINEAR["w"] * S).copy()
    wrong[1, 2] *= 1 + ulps * 2.0**-24
    assert compare_graphs(BEFORE, folded(wrong)).status != PROVED


def test_a_stored_transpose_is_equal_bit_by_bit() -> None:
    one = graph(lambda x, w: dot(x, w), {"x": (2, 3)}, LINEAR)
    two = graph(lambda x, w: dot(x, w, 1, 1), {"x": (2, 3)}, {"w": np.ascontiguousarray(LINEAR["w"].T)})
    found = compare_graphs(one, two)
    assert found.status == PROVED
    assert found.apart == 0.0


def test_a_difference_comes_with_inputs() -> None:
    one = graph(lambda x, y: mk("sub", x, y), {"x": (2, 3), "y": (2, 3)})
    two = graph(lambda x, y: mk("sub", y, x), {"x": (2, 3), "y": (2, 3)})
    found = compare_graphs(one, two)
    assert found.status == REFUTED
    assert found.outputs[0].difference is not None
    assert "sub" in found.differs
    assert "inputs(" in found.code


def test_cancellation_says_nothing() -> None:
    """A bound that cancellation makes large is no licence for another tensor."""
    big = np.full((3, 4), 1e6, np.float32) + np.arange(12, dtype=np.float32).reshape(3, 4)
    stored = {"w": LINEAR["w"], "m": big, "n": big + 1}
    one = graph(lambda x, w, m, n: dot(x, mk("mul", w, mk("sub", m, n))), {"x": (2, 3)}, stored)
    two = folded(LINEAR["w"] * np.float32(-1.03))
    assert compare_graphs(one, two).status != PROVED
    lost = Enclosed(np.ones(3), np.full(3, 0.5))
    assert same(np.full(3, 1.2, np.float32), "float32", lost) is None


def test_bounds_hold_for_evaluations_in_float32() -> None:
    rng = np.random.default_rng(0)
    arrays = {k: rng.standard_normal((50, 60)).astype(np.float32) for k in "ab"}
    arrays["v"] = rng.uniform(0.5, 2.0, (50, 60)).astype(np.float32)
    a, b, v = (make_input(k, (50, 60), frozen=True) for k in "abv")
    term = mk("sub", a, mk("mul", b, mk("rsqrt", mk("add", v, v))))
    found = Constants(arrays).bounded(term)
    single = arrays["a"] - arrays["b"] * (np.float32(1) / np.sqrt(arrays["v"] + arrays["v"]))
    assert found is not None
    assert found.error is not None
    assert (np.abs(single - found.value) <= found.error).all()
    assert found.error.max() < 1e-5
    assert Constants(arrays).bounded(mk("exp", a)) is None


def test_stored_tensors_of_one_value_are_numbers() -> None:
    one = graph(lambda x, s: scaled(x, s), {"x": (2, 4)}, {"s": np.ones(4, np.float32)})
    two = graph(lambda x: x, {"x": (2, 4)})
    assert compare_graphs(one, two).exactness == "exact"
    assert compare_graphs(one, two).status == PROVED
    assert not share(one, two).arrays


def test_a_transpose_of_a_square_result_is_not_that_result() -> None:
    one = graph(lambda x, y: mk("add", x, y), {"x": (3, 3), "y": (3, 3)})
    two = graph(lambda x, y: mk("transpose", mk("add", y, x), permutation=(1, 0)), {"x": (3, 3), "y": (3, 3)})
    assert compare_graphs(one, two).status == REFUTED
    assert compare_graphs(two, one).status == REFUTED
    again = graph(lambda x, y: mk("add", y, x), {"x": (3, 3), "y": (3, 3)})
    assert compare_graphs(one, again).status == PROVED


def along(x: Any, v: Any) -> Any:
    return mk("broadcast_in_dim", v, shape=x.shape, broadcast_dimensions=(len(x.shape) - 1,))


def test_a_scale_behind_a_bias_is_folded_into_a_flattened_product() -> None:
    def before(x: Any, w: Any, b: Any, s: Any) -> Any:
        y = dot(x, w, 2)
        return mk("mul", mk("add", y, along(y, b)), along(y, s))

    def after(x: Any, w: Any, b: Any) -> Any:
        y = dot(mk("reshape", x, new_sizes=(10, 3)), w)
        return mk("reshape", mk("add", y, along(y, b)), new_sizes=(2, 5, 4))

    one = graph(before, {"x": (2, 5, 3)}, {**LINEAR, "b": S * S, "s": S})
    two = graph(after, {"x": (2, 5, 3)}, {"w": LINEAR["w"] * S, "b": S * S * S})
    assert compare_graphs(one, two).status == PROVED
    wrong = graph(after, {"x": (2, 5, 3)}, {"w": LINEAR["w"] * S, "b": S * S})
    assert compare_graphs(one, wrong).status == REFUTED


PACKED = {k: np.random.default_rng(i).standard_normal((3, 4)).astype(np.float32) for i, k in enumerate("wv")}


def apart(x: Any, w: Any, v: Any, b: Any, c: Any) -> Any:
    one, two = dot(x, w), dot(x, v)
    return mk("mul", mk("add", one, along(one, b)), mk("tanh", mk("add", two, along(two, c))))


def packed(second: int) -> Any:
    def program(x: Any, w: Any, b: Any) -> Any:
        y = dot(x, w)
        y = mk("add", y, along(y, b))
        one, two = (mk("slice", y, start_indices=(0, i), limit_indices=(2, i + 4)) for i in (0, second))
        return mk("mul", one, mk("tanh", two))

    return program


def test_products_packed_into_one_are_proved_by_their_slices() -> None:
    one = graph(apart, {"x": (2, 3)}, {**PACKED, "b": S, "c": S * S})
    joined = {"w": np.concatenate([*PACKED.values()], 1), "b": np.concatenate([S, S * S])}
    assert compare_graphs(one, graph(packed(4), {"x": (2, 3)}, joined)).status == PROVED
    assert compare_graphs(one, graph(packed(3), {"x": (2, 3)}, joined)).status == REFUTED


def test_a_result_that_others_read_is_proved_of_itself() -> None:
    x, v = make_input("x", (2, 3)), make_input("v", (2, 3))
    one, two = mk("div", x, mk("sqrt", v)), mk("mul", x, mk("rsqrt", v))
    first = Graph((x, v), (one, mk("tanh", one)))
    second = Graph((x, v), (two, mk("tanh", two)))
    assert [o.status for o in compare_graphs(first, second).outputs] == [PROVED, PROVED]


# ---- models


@pytest.mark.parametrize("name", MODELS)
def test_models_and_what_optimisers_make_of_them(name: str, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{side}.onnx") for side in "ab"]
    for path, one in zip(paths, pair(name, 0), strict=True):
        onnx.save(one, path)
    found = compare_models(*paths)
    assert found.status == PROVED, str(found)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_not_proved(fault: str) -> None:
    made = next(filter(None, (faulty(name, fault, 3) for name in MODELS)))
    assert compare_models(*made).status == REFUTED


def test_the_command_prints_verdicts(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{side}.onnx") for side in "ab"]
    made = faulty("convnet", "operands", 0) or faulty("attention", "operands", 0)
    assert made is not None
    for path, one in zip(paths, made, strict=True):
        onnx.save(one, path)
    found = CliRunner().invoke(cli, ["verify", *paths, "--json"])
    assert found.exit_code == 3
    data = json.loads(found.stdout)
    assert data["status"] == REFUTED
    assert data["outputs"][0]["difference"] is not None
    scope = executed(data["code"])
    assert not np.allclose(scope["x"], scope["y"], rtol=1e-5)


def test_symbolic_sizes_are_those_that_the_verdict_names() -> None:
    model = network("tabular", 0)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    for found in (compare_models(model, model), compare_models(model, model, dims={"batch": 3})):
        assert found.status == PROVED
        assert found.sizes == "for all sizes batch"
    with pytest.raises(ArgumentError, match="other"):
        compare_models(model, model, dims={"other": 3})


@pytest.mark.parametrize(("name", "op"), sampled([("mixer", "Erf"), ("resnet", "Relu")], lambda n, _: n == 1))
def test_the_first_operation_that_differs_is_named(name: str, op: str) -> None:
    """Another function in place of the second of its kind: what stands before it is proved, and it is named."""
    first = network(name, 0)
    second = network(name, 0)
    [n for n in second.graph.node if n.op_type == op][1].op_type = "Tanh"
    found = compare_models(first, second)
    assert found.status == REFUTED
    assert found.differs.startswith("tanh ")


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    path = str(tmp_path / "a.onnx")
    onnx.save(pair("convnet", 0)[0], path)
    run = CliRunner().invoke
    assert run(cli, ["verify", path, str(tmp_path / "none.onnx")]).exit_code == 2
    assert run(cli, ["verify", path]).exit_code == 1
    with pytest.raises(InputError, match="arguments"):
        compare_models(path, pair("attention", 0)[0])
    with pytest.raises(UsageError):
        compare_graphs(BEFORE, BEFORE, numerics="none")
    two = Graph(BEFORE.inputs, (*BEFORE.outputs, *BEFORE.outputs), BEFORE.constants)
    found = compare_graphs(BEFORE, two)
    assert found.status == REFUTED
    assert "the second 2" in found.outputs[0].cause


def test_an_input_that_nothing_reads_may_be_dropped(tmp_path: Path) -> None:
    paths: list[str] = []
    for number, (inputs, op) in enumerate(((("x", "spare", "y"), "Sub"), (("x", "y"), "Sub"), (("x", "y"), "Add"))):
        infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in (*inputs, "z")]
        nodes = [onnx.helper.make_node(op, ["x", "y"], ["z"])]
        graph = onnx.helper.make_graph(nodes, "g", infos[:-1], infos[-1:])
        made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        paths.append(str(tmp_path / f"{number}.onnx"))
        onnx.save(made, paths[-1])
    found = compare_models(paths[0], paths[1])
    assert found.status == PROVED
    assert "without spare, which only one takes" in str(found).splitlines()[0]
    wrong = compare_models(paths[2], paths[0])
    assert wrong.status == REFUTED
    names = executed(wrong.code)
    assert names["x"][0, 0] != names["y"][0, 0]


def test_what_is_not_proved_is_named_as_in_the_file() -> None:
    def model(last: str) -> onnx.ModelProto:
        nodes = [
            onnx.helper.make_node("Add", ["x", "x"], ["a"], name="first"),
            onnx.helper.make_node("Softmax", ["a"], ["b"], name="middle"),
            onnx.helper.make_node(last, ["b"], ["y"]),
        ]
        info = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xy"]
        made = onnx.helper.make_graph(nodes, "g", info[:1], info[1:])
        return onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)])

    plain, other = model("Sinh"), model("Sinh")
    assert "Cosh node producing 'y'" in compare_models(plain, model("Cosh")).differs
    other.graph.node[1].op_type = "LogSoftmax"
    assert "in node 'middle' (LogSoftmax)" in compare_models(plain, other).differs
    assert compare_models(plain, plain).differs == ""


def _of_integers(*nodes: onnx.NodeProto, size: int | str = 4, kind: Any = np.int64) -> onnx.ModelProto:
    stored = {"c": np.array([2**20], kind)}
    return model(nodes, [info("i", [size], kind)], [info("y", [size], kind)], stored)


@pytest.mark.parametrize("size", [4, "n"])
@pytest.mark.parametrize(
    ("kind", "narrow"),
    [(np.int64, np.int32), (np.uint64, np.uint32), (np.int64, np.float32), (np.float64, np.float32)],
)
def test_wide_numbers_do_not_survive_narrow_types(kind: Any, narrow: Any, size: int | str) -> None:
    wide, thin = (onnx.helper.np_dtype_to_tensor_dtype(np.dtype(x)) for x in (kind, narrow))
    there = _of_integers(node("Cast", "i", "h", to=thin), node("Cast", "h", "y", to=wide), size=size, kind=kind)
    same = _of_integers(node("Identity", "i", "y"), size=size, kind=kind)
    assert compare_models(there, same).status != PROVED
    assert compare_models(same, same).status == PROVED


def test_products_of_64_bit_integers_wrap_there() -> None:
    there = _of_integers(node("Mul", "i c", "h"), node("Div", "h c", "y"))
    assert compare_models(there, _of_integers(node("Identity", "i", "y"))).status != PROVED
