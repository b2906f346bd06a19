"""Bad and hostile ONNX files: each is refused with its typed error, at once, and nothing is written."""

from __future__ import annotations

import os
import pickle
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from superopt.errors import (
    ArgumentError,
    ExternalDataError,
    InputError,
    ModelFileError,
    SuperoptError,
    UnsupportedOpsetError,
)
from superopt.frontends.onnx import read as onnx_read
from superopt.frontends.onnx.frontend import StaticValueError, UnsupportedOpError, load_model
from tests.support.onnx_models import info, mlp, model, node


def refused(kind: type[SuperoptError], source: object, match: str, **options: object) -> SuperoptError:
    """The error of loading; one line and a hint line at most, within ten seconds."""
    start = time.perf_counter()
    with pytest.raises(kind, match=match) as caught:
        load_model(source, **options)  # type: ignore[arg-type]
    assert time.perf_counter() - start < 10
    assert len(str(caught.value).splitlines()) <= 2
    assert caught.value.exit_status == 2
    return caught.value


FILES: dict[str, tuple[bytes, str]] = {
    "empty.onnx": (b"", "is empty"),
    "text.onnx": (b"hello, this is not a model at all", "truncated or not an ONNX model"),
    "html.onnx": (b"<html>not found</html>", "XML or HTML"),
    "pickled.onnx": (pickle.dumps([1, 2]), "a pickle"),
    "torch.pt": (b"PK\x03\x04rest", "not an ONNX model"),
    "zip.onnx": (b"PK\x03\x04rest", "zip archive"),
    "pointer.onnx": (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
    "noise.onnx": (bytes(np.random.default_rng(0).integers(0, 256, 4096, np.uint8)), "truncated or not"),
    "nothing.onnx": (onnx.ModelProto(ir_version=8).SerializeToString(), "holds no graph"),
    "truncated.onnx": (mlp().SerializeToString()[:-20], "truncated or not"),
    "half.onnx": (mlp().SerializeToString()[:60], "truncated or not"),
}


@pytest.mark.parametrize("name", FILES)
def test_not_a_model(name: str, tmp_path: Path) -> None:
    data, match = FILES[name]
    (tmp_path / name).write_bytes(data)
    error = refused(ModelFileError, tmp_path / name, match)
    assert name in str(error)
    assert os.listdir(tmp_path) == [name]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    refused(ModelFileError, tmp_path / "absent.onnx", "does not exist")
    refused(ModelFileError, tmp_path, "is a folder")
    refused(ModelFileError, "/dev/null", "is not a plain file")


def test_no_pickle_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "weights.pkl"
    path.write_bytes(pickle.dumps({"w": 1}))
    assert "export to ONNX" in refused(ModelFileError, path, "not an ONNX model").hint


@pytest.mark.parametrize("opset", [1, 6, 999])
def test_unknown_opset(opset: int) -> None:
    changed = mlp()
    changed.opset_import[0].version = opset
    refused(UnsupportedOpsetError, changed, f"opset {opset}")


def test_no_opset_and_new_ir_version() -> None:
    changed = mlp()
    del changed.opset_import[:]
    refused(UnsupportedOpsetError, changed, "does not say")
    newer = mlp()
    newer.ir_version = 1000
    refused(ModelFileError, newer, "IR version 1000")


def external(folder: Path, location: str, *, offset: int = 0, length: int | None = None) -> Path:
    """`mlp` whose weight `w` (48 bytes) is in another file."""
    changed = mlp()
    tensor = changed.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset)} | ({} if length is None else {"length": str(length)})
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(changed.SerializeToString())
    return path


def test_external_data_is_read(tmp_path: Path) -> None:
    path = external(tmp_path, "data/w.bin", offset=16)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(bytes(16) + np.arange(12, dtype=np.float32).tobytes())
    loaded = load_model(path)
    np.testing.assert_array_equal(loaded.params["w"], np.arange(12, dtype=np.float32).reshape(4, 3))
    assert isinstance(loaded.params["w"].base, np.memmap | np.ndarray)


def test_strings_are_no_bytes(tmp_path: Path) -> None:
    inline, outside = mlp(), onnx.load(external(tmp_path, "w.bin"), load_external_data=False)
    inline.graph.initializer[0].raw_data = bytes(96)
    (tmp_path / "w.bin").write_bytes(bytes(96))
    for strings in (inline, outside):
        strings.graph.initializer[0].data_type = TensorProto.STRING
        (tmp_path / "model.onnx").write_bytes(strings.SerializeToString())
        refused(ModelFileError, tmp_path / "model.onnx", "cannot be decoded")


@pytest.mark.parametrize(
    "location", ["../secret", "a/../../secret", "/etc/passwd", "C:/x", "..\\x", "", "x\0y", "file:x"]
)
def test_external_data_outside_the_folder(location: str, tmp_path: Path) -> None:
    refused(ExternalDataError, external(tmp_path, location), "leaves the folder")


def test_external_data_that_is_missing_or_short(tmp_path: Path) -> None:
    refused(ExternalDataError, external(tmp_path, "absent.bin"), "missing")
    (tmp_path / "w.bin").write_bytes(bytes(40))
    refused(ExternalDataError, external(tmp_path, "w.bin"), "which has 40")
    refused(ExternalDataError, external(tmp_path, "w.bin", length=40), "states a length of 40")
    refused(ExternalDataError, external(tmp_path, "w.bin", offset=-8), "negative offset")
    refused(ExternalDataError, external(tmp_path, "w.bin", offset=2**62), "which has 40")
    (tmp_path / "folder").mkdir()
    refused(ExternalDataError, external(tmp_path, "folder"), "not a plain file")


def test_external_data_through_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(bytes(48))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "soft").symlink_to(outside / "secret")
    (folder / "way").symlink_to(outside)
    os.link(outside / "secret", folder / "hard")
    refused(ExternalDataError, external(folder, "soft"), "symbolic link")
    refused(ExternalDataError, external(folder, "way/secret"), "symbolic link")
    refused(ExternalDataError, external(folder, "hard"), "hard link")


def test_external_data_of_a_model_without_folder(tmp_path: Path) -> None:
    refused(ExternalDataError, external(tmp_path, "w.bin").read_bytes(), "not read from a folder")


@pytest.mark.parametrize(
    ("dims", "match"),
    [([-4], "negative"), ([2**40, 2**40], "GiB"), ([2**62, 2**62, 0], "GiB"), ([4, 4], "needs 64 bytes and has 48")],
)
def test_stored_dims_that_do_not_fit(dims: list[int], match: str) -> None:
    changed = mlp()
    del changed.graph.initializer[0].dims[:]
    changed.graph.initializer[0].dims.extend(dims)
    refused(ModelFileError, changed, match)


def test_stored_values_that_do_not_fit() -> None:
    changed = mlp()
    tensor = changed.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0] * 5)
    refused(ModelFileError, changed, "needs 12 stored values and has 5")
    tensor.data_type = 999
    refused(InputError, changed, "element type 999")


def _duplicate_value() -> onnx.ModelProto:
    changed = mlp()
    changed.graph.node[1].output[0] = "h"
    return changed


def _cycle() -> onnx.ModelProto:
    changed = mlp()
    changed.graph.node[0].input[0] = "y"
    return changed


def _undefined() -> onnx.ModelProto:
    changed = mlp()
    changed.graph.node[0].input[0] = "ghost"
    return changed


def _no_output() -> onnx.ModelProto:
    changed = mlp()
    changed.graph.output[0].name = "ghost"
    return changed


def _two_inputs() -> onnx.ModelProto:
    changed = mlp()
    changed.graph.input.append(changed.graph.input[0])
    return changed


def _stored_twice() -> onnx.ModelProto:
    changed = mlp()
    changed.graph.initializer.append(changed.graph.initializer[0])
    return changed


def _shadowed() -> onnx.ModelProto:
    changed = mlp()
    changed.graph.node[0].output[0] = "w"
    return changed


STRUCTURE: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "duplicate value": (_duplicate_value, "'h' is produced twice"),
    "cycle": (_cycle, "cycle"),
    "undefined": (_undefined, "'ghost', which nothing produces"),
    "no output": (_no_output, "output 'ghost' is not produced"),
    "two inputs": (_two_inputs, "declared twice"),
    "stored twice": (_stored_twice, "stored twice"),
    "shadowed": (_shadowed, "is an input too"),
}


@pytest.mark.parametrize("case", STRUCTURE)
def test_broken_structure(case: str) -> None:
    make, match = STRUCTURE[case]
    refused(ModelFileError, make(), match)


def test_nodes_out_of_order_are_sorted() -> None:
    changed = mlp()
    nodes = list(changed.graph.node)[::-1]
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(load_model(changed)(x)[0], load_model(mlp())(x)[0])


def unary(op: str, shape: tuple[int, ...] = (2, 3), **attrs: object) -> onnx.ModelProto:
    return model([node(op, "x", "y", **attrs)], [info("x", shape)], [info("y", [None])])


def test_operators_that_cannot_be_run() -> None:
    refused(UnsupportedOpError, unary("NoSuchOp"), "NoSuchOp.*opset 20")
    refused(UnsupportedOpError, unary("NonMaxSuppressionX"), "is not an operator")
    refused(InputError, unary("Relu", domain="com.acme"), "com.acme.Relu.*another maker")
    shaped = model([node("Reshape", "x s", "y")], [info("x", [4]), info("s", [1], np.int64)], [info("y", [4])])
    refused(StaticValueError, shaped, "must be known at conversion")
    refused(InputError, unary("Relu", slope=1.0), "no attribute 'slope'")
    refused(InputError, unary("Transpose", perm=1), "of the wrong kind")
    refused(InputError, unary("Cast"), "lacks the attribute 'to'")
    refused(InputError, unary("MatMul"), "has 1 inputs")
    wide = model([node("MatMul", "x x", "y")], [info("x", (2, 3))], [info("y", (2, 3))])
    refused(InputError, wide, r"MatMul.*float32\[2, 3\], float32\[2, 3\]")


def test_dims() -> None:
    symbolic = mlp("batch")
    assert "dims={'batch': 1}" in refused(ArgumentError, symbolic, "symbolic").hint
    for size in (0, -1, 2.5, True):
        refused(ArgumentError, symbolic, "positive integer", dims={"batch": size})
    refused(ArgumentError, mlp(), "not a dimension", dims={"batch": 2})
    refused(ModelFileError, symbolic, "GiB", dims={"batch": 2**60})
    assert load_model(symbolic, dims={"batch": 5}).outputs[0].shape == (5, 3)
    negative = mlp(-4)
    refused(ModelFileError, negative, "negative dimension")
    unnamed = mlp(None)  # type: ignore[arg-type]
    refused(ArgumentError, unnamed, "symbolic", dims={})
    assert load_model(unnamed, dims={"x:0": 7}).inputs[0].shape == (7, 4)


def test_arguments_give_symbolic_dimensions() -> None:
    example = np.zeros((6, 4), np.float32)
    for name in ("batch", None):
        symbolic = mlp(name)  # type: ignore[arg-type]
        assert load_model(symbolic, like=[example]).outputs[0].shape == (6, 3)
        assert load_model(symbolic, like=[example[0]], dims={"batch" if name else "x:0": 2}).inputs[0].shape == (2, 4)
    refused(ArgumentError, mlp("batch"), "symbolic", like=[example[:0]])


def test_constant_bombs() -> None:
    shape = {"s": np.array([2**20, 2**20], np.int64)}
    filled = model([node("ConstantOfShape", "s", "y")], [], [info("y", [None, None])], shape)
    refused(ModelFileError, filled, "GiB")
    grown = model([node("Expand", "x s", "y")], [info("x", (1,))], [info("y", [None, None])], shape)
    refused(InputError, grown, "too large")
    ends = {"a": np.array(0), "b": np.array(2**50), "c": np.array(1)}
    refused(InputError, model([node("Range", "a b c", "y")], [], [info("y", [None], np.int64)], ends), "too large")
    square = {"r": np.arange(60000).reshape(-1, 1), "t": np.arange(60000).reshape(1, -1)}
    outer = model([node("Mul", "r t", "y")], [], [info("y", [None, None], np.int64)], square)
    assert load_model(outer).outputs[0].shape == (60000, 60000)  # left to the program, nothing is allocated here


def test_functions_that_expand_without_bound() -> None:
    def function(name: str, callee: str) -> onnx.FunctionProto:
        nodes = [node(callee, "x", "a", domain="f"), node(callee, "a", "y", domain="f")]
        return helper.make_function("f", name, ["x"], ["y"], nodes, [helper.make_opsetid("f", 1)])

    chain = [function(f"f{i}", f"f{i + 1}") for i in range(39)]
    leaf = helper.make_function("f", "f39", ["x"], ["y"], [node("Relu", "x", "y")], [helper.make_opsetid("", 20)])
    call = [node("f0", "x", "y", domain="f")]
    bomb = model(call, [info("x", (2,))], [info("y", (2,))], functions=[*chain, leaf])
    refused(ModelFileError, bomb, "more than")
    loop = model(call, [info("x", (2,))], [info("y", (2,))], functions=[function("f0", "f0")])
    refused(ModelFileError, loop, "calls itself")


def test_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_read, "MAX_NODES", 2)
    refused(ModelFileError, mlp(), "3 nodes")


def test_deep_subgraphs() -> None:
    body = helper.make_graph([node("Relu", "x", "y")], "leaf", [], [info("y", (2,))])
    for _ in range(45):
        inner = node("If", "c", "y", then_branch=body, else_branch=body)
        body = helper.make_graph([inner], "body", [], [info("y", (2,))])
        if body.ByteSize() > 2**14:
            break
    nest = helper.make_graph([node("Relu", "x", "y")], "leaf", [], [info("y", (2,))])
    flat = helper.make_graph([node("Neg", "x", "y")], "flat", [], [info("y", (2,))])
    for _ in range(30):
        nest = helper.make_graph(
            [node("If", "c", "y", then_branch=nest, else_branch=flat)], "nest", [], [info("y", (2,))]
        )
    deep = model(list(nest.node), [info("x", (2,)), info("c", (), bool)], [info("y", (2,))])
    assert load_model(deep).outputs[0].shape == (2,)
    wide = model(list(body.node), [info("x", (2,)), info("c", (), bool)], [info("y", (2,))])
    assert load_model(wide).outputs[0].shape == (2,)


def test_wrong_arguments() -> None:
    loaded = load_model(mlp())
    good = np.ones((2, 4), np.float32)
    for arguments, match in (
        ((), "takes 1 inputs, got 0"),
        ((good, good), "got 2"),
        ((good[:, :3],), r"needs float32\[2, 4\], got float32\[2, 3\]"),
        ((good.astype(np.float64),), "got float64"),
        (("text",), "not an array of numbers"),
    ):
        with pytest.raises(ArgumentError, match=match):
            loaded(*arguments)


def test_flipped_bytes_give_typed_errors() -> None:
    rng = random.Random(0)
    data = mlp("n").SerializeToString()
    codes: list[str] = []
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(rng.choice([1, 1, 2])):
            changed[rng.randrange(len(changed))] = rng.choice([0, 1, 2, 7, 127, 128, 255, rng.randrange(256)])
        try:
            load_model(bytes(changed), dims={"n": 2})
            codes.append("loaded")
        except SuperoptError as error:
            codes.append(error.code[:3])
    assert set(codes) == {"loaded", "SO2"}
