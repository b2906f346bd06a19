"""Values of ONNX operators on integers, at even sizes and over empty axes, and attributes that no operator can have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from superopt.bench.onnx_types import check, difference, named, reference, typed_cases
from superopt.errors import InputError
from superopt.frontends.onnx import load_model
from superopt.frontends.onnx_ops.elementwise import quotient
from tests.onnx_models import info, model, node


def value(op: str, *arrays: np.ndarray, shape: Any = None, stored: Any = None, **attrs: Any) -> np.ndarray:
    """What the model of one node gives for these inputs."""
    names = [f"x{i}" for i in range(len(arrays))]
    inputs = [info(n, a.shape, a.dtype) for n, a in zip(names, arrays, strict=True)]
    out = info("y", shape if shape is not None else arrays[0].shape, arrays[0].dtype)
    one = model([node(op, " ".join([*names, *(stored or {})]), "y", **attrs)], inputs, [out], stored or {})
    return np.asarray(load_model(one)(*arrays)[0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integer_means_truncate(dtype: Any) -> None:
    x = np.array([[-15, -16], [7, 8]], dtype)
    np.testing.assert_array_equal(value("ReduceMean", x, shape=(2, 1), stored={"a": np.array([1])}), [[-15], [7]])


def test_the_mean_of_no_integers_is_0() -> None:
    x = np.zeros((0, 3), np.int32)
    got = value("ReduceMean", x, shape=(3,), stored={"a": np.array([0])}, keepdims=0)
    np.testing.assert_array_equal(got, [0, 0, 0])


def test_known_integers_are_divided_towards_zero() -> None:
    least = np.iinfo(np.int64).min
    a, b = np.array([least, -7, 7, -8, 5]), np.array([2, 2, -2, 2, 3])
    np.testing.assert_array_equal(quotient(np, a, b), [least // 2, -3, -3, -4, 1])


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64])
def test_shrink_of_integers_takes_fractions(dtype: Any) -> None:
    x = np.array([0, 1, 2, 3, 4], dtype)
    np.testing.assert_array_equal(value("Shrink", x, lambd=1.5, bias=0.5), [0, 0, 1, 2, 3])


def test_gemm_of_integers_is_scaled_by_fractions() -> None:
    a, b = np.array([[1, 2], [3, -5]], np.int32), np.eye(2, dtype=np.int32)
    np.testing.assert_array_equal(value("Gemm", a, b, alpha=0.5), [[0, 1], [1, -2]])
    c = np.array([[4, 4], [4, 4]], np.int32)
    np.testing.assert_array_equal(value("Gemm", a, b, c, alpha=0.5, beta=0.25), [[1, 2], [2, -1]])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_local_response_normalisation_sums_as_defined(size: int) -> None:
    # ONNX's reference evaluator takes the number of images for that of channels: the definition is written out here
    x = np.random.default_rng(0).standard_normal((2, 6, 3, 3)).astype(np.float32)
    total = np.zeros_like(x)
    for c in range(6):
        low, high = max(0, c - (size - 1) // 2), min(5, c - (-(size - 1) // 2))
        total[:, c] = (x[:, low : high + 1] ** 2).sum(1)
    wanted = x / (1 + 0.5 / size * total) ** 0.75
    np.testing.assert_allclose(value("LRN", x, size=size, alpha=0.5), wanted, rtol=1e-6)


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "a stride of 0": ("Conv", {"strides": [0, 0]}),
    "a negative dilation": ("Conv", {"dilations": [-1, 1]}),
    "no group": ("Conv", {"group": 0}),
    "a negative pad": ("Conv", {"pads": [-1, 0, 0, 0]}),
    "an immense stride": ("Conv", {"strides": [2**40, 1]}),
    "a pool of stride 0": ("MaxPool", {"kernel_shape": [1, 1], "strides": [0, 1]}),
    "an empty window": ("AveragePool", {"kernel_shape": [0, 1]}),
    "a block of 0": ("DepthToSpace", {"blocksize": 0}),
    "no channels to sum": ("LRN", {"size": 0}),
    "a norm of order 0": ("GlobalLpPool", {"p": 0}),
}


@pytest.mark.parametrize("name", BAD)
def test_attributes_out_of_range(name: str) -> None:
    op, attrs = BAD[name]
    x = np.ones((1, 4, 4, 4), np.float32)
    stored = {"w": np.ones((4, 4, 1, 1), np.float32)} if op == "Conv" else {}
    with pytest.raises(InputError, match=list(attrs)[-1]):
        value(op, x, stored=stored, **attrs)


def test_the_suite_of_types_compares() -> None:
    rows = [check(case, False) for case in typed_cases(["Abs-int8", "Shrink-uint8"])]
    assert {r.status for r in rows} == {"ok"}
    assert {(r.op, r.dtype) for r in rows} == {("Abs", "int8"), ("Shrink", "uint8")}


def test_the_suite_of_types_sees_a_difference() -> None:
    case = next(c for c in typed_cases(["Abs-float32"]) if c.values == "test")
    wanted = reference(case.model, case.inputs)[0]
    assert not difference(wanted, wanted)
    assert "for" in difference(wanted + 1, wanted)
    assert "shape" in difference(wanted[:1], wanted)
    assert "float64" in difference(wanted.astype(np.float64), wanted)
    assert not named("Abs", "int8", "test")
