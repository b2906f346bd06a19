"""Programs of others compared for all sizes: ONNX models and StableHLO modules whose inputs have symbolic sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from jax import export
from onnx import TensorProto, helper, numpy_helper

from superopt.commands.main import cli
from superopt.equivalence import symbolic
from superopt.equivalence.models import compare_models
from superopt.equivalence.modules import compare_modules
from superopt.errors import InputError
from tests.support.pasted import executed
from verifier.verdict import PROVED, REFUTED, UNKNOWN

FLOAT = TensorProto.FLOAT
node = helper.make_node
W = np.arange(32, dtype=np.float32).reshape(8, 4) / 7 - 2


def model(nodes: list[Any], shapes: dict[str, list[Any]], rank: int, stored: dict[str, Any], kind: int = FLOAT) -> Any:
    """A model with the result `out` of a rank."""
    inputs = [helper.make_tensor_value_info(k, FLOAT, v) for k, v in shapes.items()]
    results = [helper.make_tensor_value_info("out", kind, [f"o{i}" for i in range(rank)])]
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()]
    graph = helper.make_graph(nodes, "g", inputs, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


ATTENTION = [
    node("Transpose", ["q"], ["qt"], perm=[0, 2, 1, 3]), node("Transpose", ["q"], ["kt"], perm=[0, 2, 3, 1]),
    node("MatMul", ["qt", "kt"], ["scores"]), node("Softmax", ["scores"], ["p"], axis=-1),
    node("MatMul", ["p", "qt"], ["o"]), node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
]  # fmt: skip


def exported(last: str = "Add", heads: int = 2) -> Any:
    """Attention with its shapes computed by nodes, as exporters write it."""
    nodes = [
        node("MatMul", ["x", "w"], ["y"]), node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"], axis=0), node("Gather", ["s", "one"], ["t"], axis=0),
        node("Unsqueeze", ["b", "axes"], ["b1"]), node("Unsqueeze", ["t", "axes"], ["t1"]),
        node("Concat", ["b1", "t1", "heads", "width"], ["split"], axis=0), node("Reshape", ["y", "split"], ["q"]),
        *ATTENTION,
        node("Concat", ["b1", "t1", "four"], ["joined"], axis=0), node("Reshape", ["ot", "joined"], ["z"]),
        node(last, ["z", "y"], ["out"]),
    ]  # fmt: skip
    stored = {"w": W, "zero": np.int64(0), "one": np.int64(1), "axes": [0], "heads": [heads], "width": [4 // heads]}
    return model(nodes, {"x": ["batch", "seq", 8]}, 3, {**stored, "four": [4]})


def simplified(batch: Any = "N", seq: Any = "L") -> Any:
    """The same with reshapes that copy sizes, under other names."""
    nodes = [
        node("MatMul", ["x", "w"], ["y"]), node("Reshape", ["y", "split"], ["q"]), *ATTENTION,
        node("Reshape", ["ot", "joined"], ["z"]), node("Add", ["y", "z"], ["out"]),
    ]  # fmt: skip
    return model(nodes, {"x": [batch, seq, 8]}, 3, {"w": W, "split": [0, 0, 2, 2], "joined": [0, 0, -1]})


def test_shapes_that_nodes_compute() -> None:
    found = compare_models(exported(), simplified())
    assert found.status == PROVED, str(found)
    assert "for all sizes batch, seq" in str(found).splitlines()[0]
    assert "assuming sizes that a program computes are in the range of their integers" in str(found)


@pytest.mark.parametrize("wrong", [exported("Sub"), exported(heads=4)])
def test_a_wrong_one_is_refuted_with_arrays(wrong: Any, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{name}.onnx") for name in "ab"]
    for path, made in zip(paths, (wrong, simplified()), strict=True):
        onnx.save(made, path)
    found = compare_models(*paths)
    assert found.status == REFUTED
    names = executed(found.code)
    assert names["x"].shape == names["y"].shape
    assert not np.allclose(names["x"], names["y"], rtol=1e-9)


def test_the_command_names_the_sizes(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{op}.onnx") for op in ("Neg", "Abs")]
    for path, op in zip(paths, ("Neg", "Abs"), strict=True):
        onnx.save(model([node(op, ["x"], ["out"])], {"x": ["batch", "seq", 8]}, 3, {}), path)
    told = CliRunner().invoke(cli, ["verify", *paths])
    assert told.exit_code == 3
    assert "for all sizes batch, seq" in told.output.splitlines()[0]


def test_one_that_was_made_for_a_size() -> None:
    with pytest.raises(InputError, match=r"float32\[batch, seq, 8\] in the first model and float32\[2, L, 8\]"):
        compare_models(exported(), simplified(batch=2))
    found = compare_models(exported(), simplified(batch=2), dims={"batch": 2})
    assert found.status == PROVED
    assert "for all sizes seq (batch = 2; nothing is said of others)" in str(found).splitlines()[0]


def many(layers: int, wrong: int = -1, folded: bool = False) -> Any:
    """Layers with a scale each, which may be folded into the products."""
    rng = np.random.default_rng(0)
    nodes, stored, x = list[Any](), dict[str, Any](), "x"
    for i in range(layers):
        w, s = rng.standard_normal((8, 8)).astype(np.float32) / 3, rng.uniform(0.5, 2, 8).astype(np.float32)
        if folded:
            stored[f"w{i}"] = w * s
            nodes.append(node("MatMul", [x, f"w{i}"], [f"z{i}"]))
        else:
            stored |= {f"w{i}": w, f"s{i}": s}
            nodes += [node("MatMul", [x, f"w{i}"], [f"y{i}"]), node("Mul", [f"y{i}", f"s{i}"], [f"z{i}"])]
        nodes.append(node("Tanh" if i != wrong else "Sigmoid", [f"z{i}"], [f"a{i}"]))
        nodes.append(node("Add", [f"a{i}", x] if folded else [x, f"a{i}"], [f"x{i}"]))
        x = f"x{i}"
    return model([*nodes, node("Identity", [x], ["out"])], {"x": ["batch", 8]}, 2, stored)


def test_many_layers_are_proved_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = 3
    monkeypatch.setattr(symbolic, "MOST", 5 * layers)  # operations that are one question to the prover
    found = compare_models(many(layers), many(layers, folded=True))
    assert found.status == PROVED, str(found)
    assert found.sizes == "for all sizes batch"
    assert found.exactness == "real"
    assert len(found.folded) == layers
    assert 0 < found.apart < 2**-22
    wrong = compare_models(many(layers), many(layers, wrong=layers - 1, folded=True))
    assert wrong.status == REFUTED
    assert wrong.differs.startswith("logistic f32[batch,8]")


SIZES = {"x": ["n", 4]}
SLICE = [node("Slice", ["x", "a", "far", "ax"], ["out"])]
FIRST = node("Shape", ["x"], ["s"], end=1)
PIECES: dict[str, tuple[list[Any], dict[str, list[Any]], int, dict[str, Any]]] = {
    "slice to the end": (SLICE, SIZES, 2, {"a": [1], "far": [2**63 - 1], "ax": [0]}),
    "slice from the end": (SLICE, SIZES, 2, {"a": [-1], "far": [2**63 - 1], "ax": [0]}),
    "last row": ([node("Gather", ["x", "i"], ["out"])], SIZES, 1, {"i": np.int64(-1)}),
    "expand": ([node("Shape", ["x"], ["s"]), node("Expand", ["c", "s"], ["e"]), node("Mul", ["e", "x"], ["out"])],
               SIZES, 2, {"c": np.ones((1, 4), np.float32)}),
    "range": ([FIRST, node("Squeeze", ["s"], ["n"]), node("Range", ["z", "n", "one"], ["out"])],
              SIZES, 1, {"z": np.int64(0), "one": np.int64(1)}),
    "zeros": ([node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["z"]), node("Sub", ["x", "z"], ["out"])],
              SIZES, 2, {}),
    "count": ([node("Size", ["x"], ["s"]), node("Cast", ["s"], ["f"], to=FLOAT), node("Div", ["x", "f"], ["out"])],
              SIZES, 2, {}),
    "halves": ([FIRST, node("Div", ["s", "two"], ["h"]), node("Concat", ["h", "rest"], ["t"], axis=0),
                node("Reshape", ["x", "t"], ["out"])], {"x": ["2*n", 4], "y": ["n"]}, 3, {"two": [2], "rest": [2, 4]}),
    "mean": ([node("ReduceMean", ["x"], ["out"], axes=[0])], SIZES, 2, {}),
    "flatten": ([node("Flatten", ["x"], ["out"])], {"x": ["n", 2, 3]}, 2, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PIECES)
def test_operators_at_symbolic_sizes(name: str) -> None:
    """The trace at symbolic sizes is, at small ones, the trace at these, else it would be open."""
    nodes, shapes, rank, stored = PIECES[name]
    made = model(nodes, shapes, rank, stored, TensorProto.INT64 if name == "range" else FLOAT)
    found = compare_models(made, made)
    assert found.status == PROVED, str(found)
    assert "for all sizes n" in found.sizes


def test_what_symbolic_sizes_cannot_say_is_open() -> None:
    """The number of steps of a loop is a size: at given sizes it is known."""
    recurrent = node("RNN", ["x", "w", "r"], ["", "out"], hidden_size=2)
    stored = {"w": np.ones((1, 2, 4), np.float32), "r": np.ones((1, 2, 2), np.float32)}
    made = model([recurrent], {"x": ["t", 3, 4]}, 3, stored)
    found = compare_models(made, made)
    assert found.status in (PROVED, UNKNOWN), str(found)
    given = compare_models(made, made, dims={"t": 2})
    assert given.status == PROVED, str(given)


def reshaped(shape: list[Any], *wanted: int | str, allow: int = 0) -> Any:
    """A reshape to sizes that nodes compute: a text is the axis whose size is meant; the last axis summed up."""
    pieces = [
        node("Gather", ["s", f"i{k}"], [f"d{k}"], axis=0)
        if isinstance(w, str)
        else node("Identity", [f"i{k}"], [f"d{k}"])
        for k, w in enumerate(wanted)
    ]
    nodes = [
        node("Shape", ["x"], ["s"]), *pieces, node("Concat", [f"d{k}" for k in range(len(wanted))], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["r"], allowzero=allow), node("ReduceSum", ["r", "last"], ["out"], keepdims=0),
    ]  # fmt: skip
    return model(
        nodes, {"x": shape}, len(wanted) - 1, {"last": [-1], **{f"i{k}": [int(w)] for k, w in enumerate(wanted)}}
    )


def test_a_reshape_to_an_empty_axis_that_is_copied() -> None:
    """0 copies a size: where that is the size of its own place it says nothing, else another shape comes out."""
    same = compare_models(reshaped(["n", 6], "0", 3, 2), reshaped(["n", 6], "0", 3, 2, allow=1))
    assert same.status == PROVED, str(same)
    assert not any("at least 1" in text for text in same.assumptions)
    moved = compare_models(reshaped([3, "n", "n"], "1", 3, "2"), reshaped([3, "n", "n"], "1", 3, "2", allow=1))
    assert moved.status != PROVED
    left = compare_models(reshaped(["n", 6], "0", -1), reshaped(["n", 6], "0", 6))
    assert left.status == PROVED, str(left)
    assert any("at least 1" in text for text in left.assumptions)  # -1 beside a size of 0 is no size


def gelu(op: str, number: float) -> Any:
    nodes = [node(op, ["x", "c"], ["a"]), node("Erf", ["a"], ["e"]), node("Add", ["e", "one"], ["p"]),
             node("Mul", ["x", "p"], ["q"]), node("Mul", ["q", "half"], ["out"])]  # fmt: skip
    stored = {"c": np.float32(number), "one": np.float32(1), "half": np.float32(0.5)}
    return model(nodes, {"x": ["batch", 8]}, 2, stored)


def test_a_quotient_is_a_product_with_the_rounded_reciprocal() -> None:
    """That one number is the other's reciprocal is an assumption, as of stored tensors that are folded."""
    found = compare_models(gelu("Div", 2**0.5), gelu("Mul", 2**-0.5))
    assert found.status == PROVED, str(found)
    assert found.exactness == "real"
    assert 0 < found.apart < 2**-22
    assert "0.70710677 is 1 / 1.4142135" in found.folded[0]
    assert compare_models(gelu("Div", 2**0.5), gelu("Mul", 2**-0.5), numerics="exact").status != PROVED


def test_a_layer_norm_by_either_variance() -> None:
    """The mean is a value that both have, and the variances are equal because it is the mean."""

    def norm(one: bool) -> Any:
        square = [node("Mul", ["z", "z"], ["zz"]), node("ReduceMean", ["zz"], ["v"], axes=[-1])]
        other = [node("Mul", ["h", "h"], ["hh"]), node("ReduceMean", ["hh"], ["w"], axes=[-1]),
                 node("Mul", ["m", "m"], ["mm"]), node("Sub", ["w", "mm"], ["v"])]  # fmt: skip
        nodes = [
            node("Tanh", ["x"], ["h"]), node("ReduceMean", ["h"], ["m"], axes=[-1]), node("Sub", ["h", "m"], ["z"]),
            *(square if one else other), node("Add", ["v", "eps"], ["e"]), node("Sqrt", ["e"], ["r"]),
            node("Div", ["z", "r"], ["out"]),
        ]  # fmt: skip
        return model(nodes, {"x": ["batch", 8]}, 2, {"eps": np.float32(1e-5)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symbolic, "MOST", 0)
        found = compare_models(norm(True), norm(False))
    assert found.status == PROVED, str(found)
    assert "cut" not in str(found)


def test_another_number_is_another_function() -> None:
    near = compare_models(gelu("Div", 2**0.5), gelu("Mul", 0.70710683))
    assert near.status == UNKNOWN
    assert near.differs.startswith("mul f32[batch,8] ("), near.differs
    assert "it has the constants 0.7071068, that one has 1.4142135" in near.differs
    assert compare_models(gelu("Div", 2**0.5), gelu("Mul", 0.7071)).status == REFUTED


# ---- StableHLO


def module(fn: Any, *shapes: str, dtype: Any = jnp.float32) -> bytes:
    scope = export.SymbolicScope()
    args = [jax.ShapeDtypeStruct(export.symbolic_shape(s, scope=scope), dtype) for s in shapes]
    return export.export(jax.jit(fn), platforms=["cpu"])(*args).mlir_module().encode()


MODULES: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "dense": (lambda x: jnp.tanh(x @ W + 1).T, lambda x: jnp.tanh(1 + W.T @ x.T), ("b, 8",)),
    "two arguments": (lambda x, y: jax.nn.softmax(x * y), lambda x, y: jax.nn.softmax(y * x - 3), ("b, n", "n")),
    "reshape": (lambda x: x.reshape(-1, 6).sum(1), lambda x: x.sum((1, 2)), ("b, 2, 3",)),
    "mean": (lambda x: x.mean(0), lambda x: x.sum(0) / x.shape[0], ("b, 2",)),
    "positions": (lambda x: x * jnp.arange(x.shape[0]), lambda x: jnp.arange(x.shape[0]) * x, ("b",)),
    "even": (lambda x: x.reshape(-1, 2).sum(1), lambda x: x[::2] + x[1::2], ("2*b",)),
    "slices": (lambda x: x[1:] - x[:-1], lambda x: -(x[:-1] - x[1:]), ("b",)),
    "pad": (lambda x: jnp.pad(x, ((1, 2), (0, 0))).sum(0), lambda x: x.sum(0), ("b, 2",)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_open_sizes(name: str) -> None:
    one, two, shapes = MODULES[name]
    first = module(one, *shapes)
    assert b"?" in first
    found = compare_modules(first, module(two, *shapes))
    assert found.status == PROVED, str(found)
    assert f"for all sizes {'arg0_0_' if name == 'even' else 'b'}" in found.sizes


def test_a_wrong_module_is_refuted_with_arrays(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{name}.mlir") for name in "ab"]
    for path, fn in zip(paths, (lambda x: x.mean(0), lambda x: x.sum(0) / (x.shape[0] + 1)), strict=True):
        Path(path).write_bytes(module(fn, "b, 2"))
    told = CliRunner().invoke(cli, ["verify", *paths])
    assert told.exit_code == 3, told.output
    assert "for all sizes b" in told.output.splitlines()[0]
    found = compare_modules(*paths)
    assert found.status == REFUTED
    names = executed(found.code)
    assert not np.allclose(names["x"], names["y"], rtol=1e-9)


def test_modules_that_leave_different_sizes_open() -> None:
    with pytest.raises(InputError, match="different arguments"):
        compare_modules(module(lambda x: x, "b, 2"), module(lambda x: x, "b, n"))
