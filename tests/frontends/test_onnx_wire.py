"""Large tensors of an ONNX file are read from its bytes, without a message that holds them, with the values of one."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt.errors import ModelFileError
from superopt.frontends.onnx import wire as onnx_wire
from superopt.frontends.onnx.frontend import load_model
from superopt.frontends.onnx.wire import LEAST_BYTES, lean

SIDE = 256  # a matrix of 256 kB


def matrix(number: int, kind: type = np.float32) -> np.ndarray:
    return np.random.default_rng(number).standard_normal((SIDE, SIDE)).astype(kind)


def chain(*weights: TensorProto | onnx.NodeProto, name: str = "g") -> onnx.ModelProto:
    """A sum of the input and of all weights: initializers, and nodes that give one."""
    nodes, stored, at = [], [], "x"
    for i, weight in enumerate(weights):
        if isinstance(weight, TensorProto):
            stored.append(weight)
            read = weight.name
        else:
            nodes.append(weight)
            read = weight.output[0]
        nodes += [
            helper.make_node("Cast", [read], [f"c{i}"], to=TensorProto.FLOAT),
            helper.make_node("Add", [at, f"c{i}"], [f"y{i}"]),
        ]
        at = f"y{i}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [SIDE, SIDE]) for n in ("x", at)]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def typed(name: str, kind: int, array: np.ndarray) -> TensorProto:
    """A tensor whose values are in the field of its type."""
    return helper.make_tensor(name, kind, array.shape, array.ravel())


def every_kind() -> onnx.ModelProto:
    return chain(
        numpy_helper.from_array(matrix(0), "raw"),
        typed("floats", TensorProto.FLOAT, matrix(1)),
        typed("doubles", TensorProto.DOUBLE, matrix(2, np.float64)),
        numpy_helper.from_array(matrix(3, ml_dtypes.bfloat16), "halves"),
        typed("integers", TensorProto.INT32, np.arange(SIDE * SIDE, dtype=np.int32).reshape(SIDE, SIDE)),
        helper.make_node("Constant", [], ["node"], value=numpy_helper.from_array(matrix(4))),
        numpy_helper.from_array(matrix(5)[:1], "small"),
        helper.make_tensor("nibbles", TensorProto.INT4, (SIDE, 4 * SIDE), bytes(range(256)) * (SIDE * 2), raw=True),
    )


def kinds_of_place(model: onnx.ModelProto) -> dict[str, bool]:
    """Whether each stored tensor is without its bytes."""
    constants = [(n.output[0], n.attribute[0].t) for n in model.graph.node if n.op_type == "Constant"]
    named = [(t.name, t) for t in model.graph.initializer] + constants
    return {name: t.data_location == TensorProto.EXTERNAL for name, t in named}


def test_large_tensors_stay_in_the_file(tmp_path: Path) -> None:
    model = every_kind()
    del model.graph.initializer[-1]  # 4-bit numbers of another shape, which nothing can add
    del model.graph.node[-2:]
    model.graph.output[0].name = model.graph.node[-1].output[0]
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    told = load_model(model).params
    for loaded in (load_model(path), load_model(path.read_bytes()), load_model(path, own=False)):
        assert loaded.params.keys() == told.keys()
        for name, array in told.items():
            assert loaded.params[name].dtype == array.dtype
            np.testing.assert_array_equal(loaded.params[name], array, err_msg=name)
    x = matrix(6)
    np.testing.assert_array_equal(load_model(path, own=False)(x)[0], load_model(model)(x)[0])


def test_the_message_is_without_the_bytes_of_large_tensors() -> None:
    data = every_kind().SerializeToString()
    message, name = lean(memoryview(data))
    assert name
    assert len(message) < len(data) / 2
    found = onnx.ModelProto.FromString(bytes(message))
    assert kinds_of_place(found) == {
        "raw": True, "floats": True, "doubles": True, "halves": True, "integers": False, "node": True, "small": False,
        "nibbles": True,
    }  # fmt: skip
    assert lean(memoryview(data))[1] != name
    tensor = found.graph.initializer[0]
    entries = {e.key: e.value for e in tensor.external_data}
    at = int(entries["offset"])
    assert data[at : at + int(entries["length"])] == matrix(0).tobytes()
    assert (tensor.name, list(tensor.dims), tensor.data_type) == ("raw", [SIDE, SIDE], TensorProto.FLOAT)


def test_nibbles_are_decoded(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.INT4, (SIDE, SIDE * 2), bytes(range(256)) * SIDE, raw=True)
    model = chain(weight)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[1].dim_value = 2 * SIDE
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    told, found = load_model(model).params["w"], load_model(tmp_path / "m.onnx").params["w"]
    assert found.dtype == told.dtype
    np.testing.assert_array_equal(found, told)


def test_weights_of_a_loaded_model_do_not_follow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(chain(numpy_helper.from_array(matrix(0), "w")).SerializeToString())
    loaded = load_model(path)
    path.write_bytes(bytes(path.stat().st_size))
    np.testing.assert_array_equal(loaded.params["w"], matrix(0))


def _twice(tensor: TensorProto) -> bytes:
    """A message says the last value of a field that is there twice."""
    other = TensorProto(raw_data=matrix(9).tobytes())
    return other.SerializeToString() + tensor.SerializeToString()


def test_what_is_not_of_the_usual_form_is_left_to_the_parser() -> None:
    tensor = numpy_helper.from_array(matrix(0), "w")
    model = chain(tensor)
    doubled = _twice(tensor)
    plain = tensor.SerializeToString()
    data = model.SerializeToString()
    body = model.graph.SerializeToString().replace(onnx_wire._with_length(5, plain), onnx_wire._with_length(5, doubled))
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    rest.ClearField("graph")
    odd = rest.SerializeToString() + onnx_wire._with_length(7, body)
    assert lean(memoryview(odd))[1] == ""
    np.testing.assert_array_equal(load_model(odd).params["w"], matrix(0))
    both = helper.make_tensor("w", TensorProto.FLOAT, (SIDE, SIDE), matrix(0).tobytes(), raw=True)
    both.external_data.add(key="location", value="elsewhere")
    both.data_location = TensorProto.EXTERNAL
    assert lean(memoryview(chain(both).SerializeToString()))[1] == ""
    for cut in (1, 100, LEAST_BYTES, len(data) - 20):
        assert lean(memoryview(data[:-cut]))[1] == ""
        with pytest.raises(ModelFileError, match="truncated"):
            load_model(data[:-cut])
    assert lean(memoryview(b"\x3b" * LEAST_BYTES))[1] == ""  # a group: no message of this kind has them
    assert lean(memoryview(data))[1]
    assert lean(memoryview(data), 5)[1] == ""


def test_sizes_of_large_tensors_are_checked() -> None:
    tensor = numpy_helper.from_array(matrix(0), "w")
    tensor.dims[0] += 1
    with pytest.raises(
        ModelFileError, match=r"initializer 'w' of shape \[257, 256\] needs 263168 bytes and has 262144"
    ):
        load_model(chain(tensor).SerializeToString())
    text = TensorProto(name="w", data_type=TensorProto.STRING, dims=[SIDE], raw_data=bytes(LEAST_BYTES))
    with pytest.raises(ModelFileError):
        load_model(chain(text).SerializeToString())
