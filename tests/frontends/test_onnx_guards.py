"""Each limit and check of ONNX files and of what runs on the host refuses what it is there for."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from superopt.errors import ArgumentError, InputError, ModelFileError, SuperoptError
from superopt.files.reading import FileLimits
from superopt.foreign import onnx_calls
from superopt.frontends.onnx import data as onnx_data
from superopt.frontends.onnx import eval as onnx_eval
from superopt.frontends.onnx import host as onnx_host
from superopt.frontends.onnx import read as onnx_read
from superopt.frontends.onnx.frontend import import_onnx, load_model
from tests.frontends.test_onnx_hostile import calling
from tests.support.onnx_models import info, mlp, model, node

JOIN = model([node("StringConcat", "s s", "t")], [info("s", (1,), object)], [info("t", (1,), object)])


def refused(source: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        load_model(source)


def test_files_of_2_gib_are_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "m.onnx", "wb") as file:
        file.truncate(2**31)
    refused(tmp_path / "m.onnx", "at most 2 GiB")


def test_nodes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_read, "MAX_NODES", 2)
    refused(mlp(), "has 3 nodes")


@pytest.mark.parametrize(("name", "shown"), [("mnist", "mnist"), ("", "model")])
def test_a_model_in_memory_is_called_by_the_name_of_its_graph(
    monkeypatch: pytest.MonkeyPatch, name: str, shown: str
) -> None:
    monkeypatch.setattr(onnx_read, "MAX_NODES", 2)
    named = mlp()
    named.graph.name = name
    refused(named, f"{shown} has 3 nodes")


def test_bodies_and_functions_are_nested_so_deep() -> None:
    refused(calling(60, 1), "nested more than 40 deep")


def test_functions_are_evaluated_so_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_eval, "MAX_FUNCTION_DEPTH", 2)
    refused(calling(4, 1), "functions are nested more than 2 deep")


def test_names_are_text() -> None:
    damaged = mlp().SerializeToString().replace(b"\n\x01x", b"\n\x01\xff").replace(b"\x0a\x01h", b"\x0a\x01\xff")
    refused(damaged, r"is not text|truncated")


def test_tensors_in_segments_are_refused() -> None:
    changed = mlp()
    changed.graph.initializer[0].segment.begin = 0
    refused(changed, "stored in segments")


def sparse(place: int) -> onnx.ModelProto:
    """A sum with a sparse weight whose one value stands at this place."""
    one = model([node("Add", "x w", "y")], [info("x", (8,))], [info("y", (8,))])
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    indices = numpy_helper.from_array(np.array([place]), "i")
    one.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8]))
    return one


def test_sparse_tensors_are_small_and_inside_of_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_model(sparse(7))(np.zeros(8, np.float32))[0][7] == 1
    for place in (8, -1):
        refused(sparse(place), "do not fit dims")
    monkeypatch.setattr(onnx_data, "MAX_DENSE_BYTES", 31)
    refused(sparse(7), "too large to be made dense")


def test_known_results_of_the_host_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_host, "MAX_RESULT_BYTES", 31)
    with pytest.raises(InputError, match="too large"):
        onnx_host._plain(np.zeros(8, np.float32), node("Unique", "x", "y"))


def test_sizes_are_not_negative() -> None:
    sized = [node("Sub", "a b", "n"), node("ConstantOfShape", "n", "z"), node("Add", "x z", "y")]
    known = {"a": np.array([1]), "b": np.array([3])}
    refused(model(sized, [info("x", (1,))], [info("y", None)], known), "negative size")


def part(**changed: Any) -> dict[str, Any]:
    """A part on the host as a file has it."""
    data = base64.b64encode(JOIN.SerializeToString()).decode()
    return {"model": data, "places": [[True, 0]], "reads": [0], "takes": 1, **changed}


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"reads": [0, 0]}, "reads other values"), ({"reads": [1]}, "reads"), ({"places": [[True, 1]]}, "place"),
        ({"places": [[False, 1]]}, "place"), ({"places": [3]}, "a place that is none"), ({"takes": 9}, "takes"),
        ({"model": base64.b64encode(b"\xff\xff").decode()}, "is refused"),
    ],
)  # fmt: skip
def test_parts_on_the_host_are_checked(changed: dict[str, Any], match: str) -> None:
    assert onnx_calls.read_part(part(), 1)([np.array(["a"], object)])[0].tolist() == ["aa"]
    with pytest.raises(InputError, match=match):
        onnx_calls.read_part(part(**changed), 1)


def test_parts_on_the_host_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_calls, "LIMITS", FileLimits(nodes=2))
    assert onnx_calls.refusal(JOIN.SerializeToString()) == "it has more than 2 parts"
    monkeypatch.setattr(onnx_calls, "MOST_BYTES", 8)
    with pytest.raises(InputError, match="larger than 8 bytes"):
        onnx_calls.read_part(part(), 1)


def test_calls_of_the_host_give_what_they_say() -> None:
    doubled = model([node("Concat", "x x", "y", axis=0)], [info("x", (2,))], [info("y", (4,))]).SerializeToString()
    x = np.ones(2, np.float32)
    assert onnx_calls._checked(doubled, (((4,), "float32"),), [x])[0].shape == (4,)
    for wrong in (((3,), "float32"), ((4,), "int32")):
        with pytest.raises(InputError, match="the host gave"):
            onnx_calls._checked(doubled, (wrong,), [x])
    with pytest.raises(ModelFileError):
        load_model(doubled[:20])


X, Y = [info("x", [2])], [info("y", [2])]
RELU = [node("Relu", "x", "y")]


def shapeless() -> Any:
    found = model(RELU, X, Y)
    found.graph.input[0].type.tensor_type.ClearField("shape")
    return found


def sequence() -> Any:
    found = model([node("SequenceAt", "x i", "y")], X, Y, {"i": np.int64(0)})
    element = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    found.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(element))
    return found


def loop(*more: str) -> Any:
    """A loop whose body takes two values, and these beside the one that it carries."""
    values = [info("n", [], np.int64), info("go", [], bool), info("v", [2]), *(info(name, [2]) for name in more)]
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Relu", "v", "w")], "body", values, [info("on", [], bool), info("w", [2])]
    )
    return model([node("Loop", "trips - x", "y", body=body)], X, Y, {"trips": np.int64(2)})


MODELS: dict[str, tuple[Any, str]] = {
    "complex": (model(RELU, [info("x", [2], np.complex64)], Y), "element type complex64 is not supported"),
    "sequence": (sequence(), "is not a tensor"),
    "shape": (shapeless(), "has no shape"),
    "sequence for a tensor": (
        model([node("SequenceConstruct", "x x", "s"), node("Relu", "s", "y")], X, Y), "does not accept a sequence"
    ),
    "absent": (model([node("Add", "x -", "y")], X, Y), "lacks its input"),
    "body": (loop("u"), "a body takes 4 values and is given 3"),
    "attribute": (
        model([node("BiasGelu", "x b", "y", domain="com.microsoft", odd=1)], X, Y, {"b": np.ones(2, np.float32)}),
        "'odd' is not supported",
    ),
    "operands": (
        model([node("DynamicQuantizeMatMul", "x x x x x x", "y", domain="com.microsoft")], X, Y),
        "takes 5 operands, and is given 6",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_graphs_beyond_the_definitions_are_refused(name: str) -> None:
    source, match = MODELS[name]
    with pytest.raises(SuperoptError, match=match):
        import_onnx(source)


def test_values_of_no_input_are_refused() -> None:
    with pytest.raises(ArgumentError, match="a value is given for 'z', which is not an input"):
        load_model(model(RELU, X, Y), values={"z": np.ones(2, np.float32)})


def test_weights_of_another_type_are_refused() -> None:
    read = load_model(mlp())
    params = {name: np.asarray(value) for name, value in read.params.items()}
    assert read.with_params(params).params.keys() == params.keys()
    for wrong in ({}, {**params, "b": params["b"][:2]}, {**params, "b": params["b"].astype(np.float64)}):
        with pytest.raises(ArgumentError, match=r"weight '.*' needs float32"):
            read.with_params(wrong)


def test_an_operator_has_one_implementation() -> None:
    with pytest.raises(ValueError, match="Relu has two implementations"):
        onnx_eval.op("Relu")(lambda call, x: x)
