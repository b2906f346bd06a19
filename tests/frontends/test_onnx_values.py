"""Values of ONNX operators on integers, at even sizes and over empty axes, and attributes that no operator can have."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.errors import InputError
from superopt.frontends.onnx.frontend import import_model, load_model
from superopt.frontends.onnx.ops.elementwise import quotient
from superopt.lab.bench.onnx.nodes import run_model
from superopt.lab.bench.onnx.types import TypeCase, named
from superopt.make.plain import in_regions, own_form
from tests.support.onnx_models import info, model, node


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


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_means_of_integers_are_exact_where_their_sum_overflows(dtype: Any) -> None:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    rows = [[high, high, high], [low, low, low], [high, 1, 1], [low, 0, 1], [high, low, 0], [7, 8, 2]]
    means = [abs(sum(row)) // 3 * (1 if sum(row) > 0 else -1) for row in rows]
    axis = {"a": np.array([1])}
    got = value("ReduceMean", np.array(rows, dtype), shape=(6,), stored=axis, keepdims=0)
    assert got.tolist() == means
    known = model([node("ReduceMean", "r a", "m", keepdims=0), node("Add", "x m", "y")], [info("x", (6,), dtype)],
                  [info("y", (6,), dtype)], {**axis, "r": np.array(rows, dtype)})  # fmt: skip
    assert np.asarray(load_model(known)(np.zeros(6, dtype))[0]).tolist() == means


def test_norms_of_integers_are_in_range_where_squares_are_not() -> None:
    x = np.array([[2**31 - 1, 0], [3, 4], [2**30 - 1, 2**30]], np.int32)
    got = value("ReduceL2", x, shape=(3,), stored={"a": np.array([1])}, keepdims=0)
    assert got.tolist() == [2**31 - 1, 5, 1518500249]
    logs = value("ReduceLogSum", x.astype(np.int64) << 32, shape=(3,), stored={"a": np.array([1])}, keepdims=0)
    assert logs.tolist() == [43, 24, 43]


def test_norms_of_doubles_are_computed_in_doubles() -> None:
    x = np.random.default_rng(0).standard_normal((2, 6))
    got = value("LayerNormalization", x, stored={"s": np.ones(6)})
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + np.float32(1e-5))
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_truth_values_are_scattered_by_or_and_and() -> None:
    x, places = np.array([True, False, True]), np.array([[0], [1], [2]])
    new = np.array([False, True, False])
    for reduction, wanted in (("add", x | new), ("mul", x & new)):
        names = [info("x", (3,), np.bool_), info("u", (3,), np.bool_)]
        scatter = node("ScatterND", "x i u", "y", reduction=reduction)
        one = model([scatter], names, [info("y", (3,), np.bool_)], {"i": places})
        assert np.asarray(load_model(one)(x, new)[0]).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("places", "is_block"),
    [
        (np.arange(2, 5)[:, None], True),  # as exporters write x[2:5] = u
        (np.arange(-3, 0)[:, None], True),
        (np.stack(np.meshgrid([1, 2], [0, 1, 2], indexing="ij"), -1), True),
        (np.stack(np.meshgrid([1, 2], [0, 1, 2], indexing="xy"), -1), False),
        (np.array([[2], [4], [3]]), False),
        (np.array([[[1], [2]]]), False),
        (np.array([[0, 1], [1, 2]]), False),
    ],
)
def test_a_block_that_is_set_is_no_opaque_scatter(places: np.ndarray, is_block: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 4, 3)).astype(np.float32)
    u = rng.standard_normal((*places.shape[:-1], *x.shape[places.shape[-1] :])).astype(np.float32)
    names = [info("x", x.shape), info("u", u.shape)]
    one = load_model(model([node("ScatterND", "x i u", "y")], names, [info("y", x.shape)], {"i": places}))
    wanted = x.copy()
    wanted[tuple(np.moveaxis(places, -1, 0))] = u
    np.testing.assert_array_equal(one(x, u)[0], wanted)
    assert bool(import_model(one).opaque_ops) != is_block


def test_powers_are_computed_in_a_type_that_holds_both() -> None:
    def power(base: Any, exponent: Any) -> list[Any]:
        names = [info("x", base.shape, base.dtype), info("e", exponent.shape, exponent.dtype)]
        one = model([node("Pow", "x e", "y")], names, [info("y", base.shape, base.dtype)])
        return np.asarray(load_model(one)(base, exponent)[0]).tolist()

    whole = np.array([2, 1, -1, -1, 3, -2, 10, 5], np.int64)
    exponents = np.array([-1, -3, -3, -2, 19, 31, 9, 0])
    assert power(whole, exponents) == [0, 1, -1, 1, 3**19, -(2**31), 10**9, 1]
    assert power(whole.astype(np.int32), exponents.astype(np.int32)) == [0, 1, -1, 1, 3**19, -(2**31), 10**9, 1]
    assert power(np.array([2**24 + 1, 7, 3], np.int32), np.array([1, 9, 0.5], np.float32)) == [2**24 + 1, 7**9, 1]
    assert power(np.array([-1, 2], np.float32), np.array([2**24 + 1, 3], np.int32)) == [-1.0, 8.0]
    np.testing.assert_allclose(power(np.float32([1000]), np.float64([12.3456789123])), [1.089022e37], rtol=1e-6)


def test_powers_of_integers_by_floats_are_whole() -> None:
    base = np.repeat(np.arange(2, 40, dtype=np.int64), 12)
    exponent = np.tile(np.arange(12, dtype=np.float32), 38)
    names = [info("x", base.shape, base.dtype), info("e", exponent.shape, exponent.dtype)]
    one = model([node("Pow", "x e", "y")], names, [info("y", base.shape, base.dtype)])
    wanted = [int(b) ** int(e) for b, e in zip(base, exponent, strict=True)]
    got = np.asarray(load_model(one)(base, exponent)[0]).tolist()
    assert [g for g, w in zip(got, wanted, strict=True) if w < 2**53] == [w for w in wanted if w < 2**53]


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


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_shrink_of_large_integers_is_exact(dtype: Any) -> None:
    high = np.iinfo(dtype).max
    x = np.array([high, high - 1, 2, 1], dtype)
    assert value("Shrink", x, lambd=1.5).tolist() == [high, high - 1, 2, 0]
    assert value("Shrink", x, lambd=1.5, bias=1.0).tolist() == [high - 1, high - 2, 1, 0]


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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_limits_that_are_left_out_are_the_ends_of_the_range(dtype: Any) -> None:
    x = np.array([np.inf, -np.inf, 1.0, np.nan], dtype)
    one = model([node("Clip", "x", "y", min=-1.0)], [info("x", (4,), dtype)], [info("y", (4,), dtype)], opset=7)
    largest = dtype(min(np.finfo(dtype).max, np.finfo(np.float32).max))
    np.testing.assert_array_equal(np.asarray(load_model(one)(x)[0]), np.array([largest, -1.0, 1.0, np.nan], dtype))


def test_dynamic_quantisation_of_nothing() -> None:
    y, scale, zero = run_model(dynamic((0, 3)), {"x": np.zeros((0, 3), np.float32)})[1]
    assert (y.shape, float(scale), int(zero)) == ((0, 3), 1.0, 0)


def dynamic(shape: tuple[int, ...]) -> onnx.ModelProto:
    outputs = [info("y", shape, np.uint8), info("s", ()), info("z", (), np.uint8)]
    return model([node("DynamicQuantizeLinear", "x", "y s z")], [info("x", shape)], outputs)


def test_differences_are_named_by_element() -> None:
    x = np.array([2, 3, 0, -1, 2], np.int32)
    y = np.array([31, 3, -1, -3, -1], np.int32)
    case = TypeCase("Pow", "int32", "", "test", model([], [], []), {"x": x, "y": y})
    good = np.array([0, 27, 0, -1, 0], np.int32)
    assert "range" in named(case, [good], [good + np.array([1, 0, 1, 0, 0], np.int32)])
    for place in (1, 3, 4):
        assert not named(case, [good], [good + (np.arange(5) == place).astype(np.int32)])


def test_sums_of_squares_are_named_where_they_overflow() -> None:
    x = np.array([[2**16, 0], [3, 4]], np.int32)
    nodes = [node("ReduceSumSquare", "x a", "y", keepdims=0)]
    one = model(nodes, [info("x", x.shape, np.int32)], [info("y", (2,), np.int32)], {})
    case = TypeCase("ReduceSumSquare", "int32", "", "test", one, {"x": x, "a": np.array([1])})
    good = np.array([0, 25], np.int32)
    assert named(case, [good], [np.array([2**31 - 1, 25], np.int32)])
    assert not named(case, [good], [np.array([2**31 - 1, 26], np.int32)])


def test_the_largest_of_a_window_with_nan_is_named_alone() -> None:
    x = np.array([[[np.nan, 1, 2, 3]]], np.float32)
    one = model([node("MaxPool", "x", "y", kernel_shape=[2])], [info("x", x.shape)], [info("y", (1, 1, 3))])
    case = TypeCase("MaxPool", "float32", "", "test", one, {"x": x})
    got = value("MaxPool", x, shape=(1, 1, 3), kernel_shape=[2])
    assert "NaN" in named(case, [got], [np.array([[[1, 2, 3]]], np.float32)])
    assert not named(case, [got], [np.array([[[1, 2, 4]]], np.float32)])


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("scale", [0.1, 0.05, 0.007])
def test_quantised_numbers_are_divided_by_their_scale(scale: float, stored: bool) -> None:
    """A product with the reciprocal is off by one near halves."""
    step, ends = np.float32(scale), ((np.arange(-120, 120) + 0.5) * scale).astype(np.float32)
    near = [ends]
    for way in (np.inf, -np.inf):
        at = ends
        for _ in range(8):
            at = np.nextafter(at, np.float32(way))
            near.append(at)
    x = np.concatenate(near)
    known = {"s": step} if stored else {}
    inputs = [info("x", x.shape), *([] if stored else [info("s", ())])]
    nodes = [node("QuantizeLinear", "x s z", "y")]
    one = load_model(model(nodes, inputs, [info("y", x.shape, np.int8)], {**known, "z": np.int8(0)}))
    given = (x,) if stored else (x, np.asarray(step))
    np.testing.assert_array_equal(one(*given)[0], np.rint(x / step).astype(np.int8))
    fast = superopt.optimize(one, *given, search=False, store=False)
    np.testing.assert_array_equal(fast(*given)[0], np.rint(x / step).astype(np.int8))


def test_dynamic_quantisation_divides() -> None:
    rng = np.random.default_rng(0)
    for _ in range(8):
        x = rng.uniform(-3, 5, 4096).astype(np.float32)
        one = model(
            [node("DynamicQuantizeLinear", "x", "y s z")], [info("x", x.shape)],
            [info("y", x.shape, np.uint8), info("s", ()), info("z", (), np.uint8)],
        )  # fmt: skip
        low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
        step = (high - low) / np.float32(255)
        zero = np.rint(-low / step)
        y, s, z = load_model(one)(x)
        assert (np.asarray(s), np.asarray(z)) == (step, zero)
        np.testing.assert_array_equal(y, np.clip(np.rint(x / step) + zero, 0, 255).astype(np.uint8))


def test_variance_is_that_around_the_mean() -> None:
    x = (1000 + np.random.default_rng(0).standard_normal((2, 3, 8, 8))).astype(np.float32)
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean((0, 2, 3), keepdims=True)) / wide.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(value("MeanVarianceNormalization", x), wanted, atol=2e-3)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_limits_of_boxes_are_numbers_or_lists_of_one(shape: Any) -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
    scores = np.array([[[0.9, 0.75, 0.6]]], np.float32)
    limits = {"m": np.full(shape, 3), "i": np.full(shape, 0.5, np.float32), "t": np.full(shape, 0, np.float32)}
    inputs = [info("b", boxes.shape), info("s", scores.shape)]
    one = model([node("NonMaxSuppression", "b s m i t", "y")], inputs, [info("y", (None, 3), np.int64)], limits)
    assert np.asarray(load_model(one)(boxes, scores)[0]).tolist() == [[0, 0, 0], [0, 0, 2]]


@pytest.mark.parametrize(("given", "chosen"), [("", 0), ("m", 2), ("m - t", 1), ("m i", 3)])
def test_limits_of_boxes_may_be_left_out(given: str, chosen: int) -> None:
    """As ONNX Runtime has it: no box without their number, none that overlap, those of any score."""
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
    scores = np.array([[[0.9, 0.75, -0.6]]], np.float32)
    limits = {"m": np.array(3), "i": np.array(0.9, np.float32), "t": np.array(0.1, np.float32)}
    inputs = [info("b", boxes.shape), info("s", scores.shape)]
    stored = {name: x for name, x in limits.items() if name in given}
    one = model([node("NonMaxSuppression", f"b s {given}", "y")], inputs, [info("y", (None, 3), np.int64)], stored)
    assert len(load_model(one)(boxes, scores)[0]) == chosen


@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("zeros", [False, True])
def test_products_of_bytes_are_exact_however_long_their_sums_are(kinds: Any, zeros: bool) -> None:
    k, (left, right) = 3000, kinds  # 3,000 products of up to 65,025: twelve times what float32 holds exactly
    a = np.full((2, k), np.iinfo(left).max, left)
    b = np.full((k, 3), np.iinfo(right).max, right)
    a[1], b[:, 1] = np.iinfo(left).min, np.arange(k) % 2
    stored = {"az": np.array(1, left), "bz": np.array(3, right)} if zeros else {}
    inputs = [info("a", a.shape, left), info("b", b.shape, right)]
    one = model([node("MatMulInteger", " ".join(["a b", *stored]), "y")], inputs, [info("y", (2, 3), np.int32)], stored)
    wanted = (a.astype(np.int64) - zeros) @ (b.astype(np.int64) - 3 * zeros)
    np.testing.assert_array_equal(np.asarray(load_model(one)(a, b)[0]), wanted)


@pytest.mark.parametrize("group", [1, 2])
def test_convolutions_of_bytes_are_exact_however_long_their_sums_are(group: int) -> None:
    rng = np.random.default_rng(0)
    x = np.where(rng.random((1, 160, 5, 5)) < 0.9, 255, 0).astype(np.uint8)
    w = np.where(rng.random((4, 160 // group, 3, 3)) < 0.9, 127, -128).astype(np.int8)
    zero = {"z": np.array(2, np.uint8)}
    inputs = [info("x", x.shape, np.uint8), info("w", w.shape, np.int8)]
    conv = node("ConvInteger", "x w z", "y", group=group)
    got = np.asarray(load_model(model([conv], inputs, [info("y", (1, 4, 3, 3), np.int32)], zero))(x, w)[0])
    wide, parts = x.astype(np.int64) - 2, np.split(w.astype(np.int64), group)
    each = 160 // group
    wanted = np.concatenate([
        np.stack([[np.sum(wide[0, g * each:(g + 1) * each, i:i + 3, j:j + 3] * f) for i in range(3) for j in range(3)]
                  for f in part]) for g, part in enumerate(parts)
    ])  # fmt: skip
    np.testing.assert_array_equal(got.reshape(4, 9), wanted)


def test_a_quantised_product_is_the_rounding_of_the_exact_one() -> None:
    """Where float32 decides it: no result is another integer, but next to the middle between two."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (64, 2048), dtype=np.uint8), rng.integers(-128, 128, (2048, 32), dtype=np.int8)
    stored = {"as": np.float32(0.02), "az": np.uint8(128), "bs": np.float32(0.01), "bz": np.int8(0),
              "ys": np.float32(0.7), "yz": np.uint8(120)}  # fmt: skip
    stored = {name: np.asarray(value) for name, value in stored.items()}
    inputs = [info("a", a.shape, np.uint8), info("b", b.shape, np.int8)]
    one = model([node("QLinearMatMul", "a as az b bs bz ys yz", "y")], inputs, [info("y", (64, 32), np.uint8)], stored)
    scale = np.float64(stored["as"]) * np.float64(stored["bs"]) / np.float64(stored["ys"])
    exact = ((a.astype(np.int64) - 128) @ b.astype(np.int64)) * scale
    wanted, decided = np.clip(np.round(exact) + 120, 0, 255), np.abs(np.abs(exact - np.floor(exact)) - 0.5) > 1e-4
    got = np.asarray(load_model(one)(a, b)[0]).astype(np.int64)
    assert decided.mean() > 0.99
    np.testing.assert_array_equal(got[decided], wanted[decided])
    assert np.max(np.abs(got - wanted)) <= 1


def _halves() -> Any:
    """Sums of halves beyond 65,504 between two nodes, a rounding that the model asks for, a branch, and a constant."""
    branch = model([node("Cast", "h", "out", to=10)], [], [info("out", (2,), np.float16)]).graph
    other = model([node("Add", "h one", "out")], [], [info("out", (2,), np.float16)]).graph
    nodes = [
        node("MatMul", "x w", "h"), node("Mul", "h small", "y"), node("Cast", "y", "r", to=10),
        node("If", "go", "b", then_branch=branch, else_branch=other), node("Mul", "b small", "z"),
    ]  # fmt: skip
    stored = {"w": np.full((4, 2), 200, np.float16), "small": np.float16(0.01), "one": np.float16(1)}
    half = [info(n, (2,), np.float16) for n in "yrz"]
    inputs = [info("x", (4,), np.float16), info("go", (), bool)]
    return model(nodes, inputs, half, {k: np.asarray(v) for k, v in stored.items()})


def test_float16_is_held_in_float32_between_nodes_where_that_is_asked() -> None:
    x = np.full(4, 100, np.float16)  # products of 80,000
    plain = load_model(_halves())(x, np.array(False))
    assert all(np.isinf(np.asarray(y, np.float32)).all() for y in plain)
    y, rounded, z = (np.asarray(v) for v in load_model(_halves(), singles=True)(x, np.array(False)))
    assert y.dtype == rounded.dtype == z.dtype == np.float16
    for found in (y, rounded, z):
        np.testing.assert_allclose(found.astype(np.float32), 800, rtol=1e-3)
    *_, cast = load_model(_halves(), singles=True)(x, np.array(True))
    assert np.isinf(np.asarray(cast, np.float32)).all(), "a model that rounds is taken at its word"


def test_models_that_quantise_in_a_branch_keep_float16() -> None:
    names, half = "h scale zero", [info("out", (2,), np.float16)]
    nodes = [node("QuantizeLinear", names, "q"), node("DequantizeLinear", "q scale zero", "out")]
    branch, other = (model(inner, [], half).graph for inner in (nodes, [node("Identity", "h", "out")]))
    split = node("If", "go", "y", then_branch=branch, else_branch=other)
    stored = {"scale": np.asarray(np.float16(0.5)), "zero": np.asarray(np.int8(0))}
    one = model([node("Mul", "x x", "h"), split], [info("x", (2,), np.float16), info("go", (), bool)],
                [info("y", (2,), np.float16)], stored)  # fmt: skip
    assert not load_model(one, singles=True).singles
    assert load_model(_halves(), singles=True).singles


def test_optimised_models_in_float16_are_those_and_verify_against_their_file(tmp_path: Path) -> None:
    path = tmp_path / "half.onnx"
    onnx.save(_halves(), path)
    x = np.full(4, 100, np.float16)
    made = superopt.optimize(path, x, np.array(False), budget="10steps", deterministic=True, store=False)
    np.testing.assert_allclose(np.asarray(made(x, np.array(False))[0], np.float32), 800, rtol=1e-3)
    assert any("float16 is computed in float32" in note for note in made.report.notes)
    assert made.validate(path).valid
    assert superopt.load(made.save(tmp_path / "half.superopt")).validate(path).valid


def test_layers_that_differ_in_their_scales_alone_have_one_kernel() -> None:
    nodes: list[Any] = []
    stored: dict[str, np.ndarray] = {"symmetric": np.asarray(np.int8(0))}
    for i in range(3):
        stored |= {
            f"s{i}": np.asarray(np.float32(0.1 + i)), f"z{i}": np.asarray(np.uint8(100 + i)),
            f"ws{i}": np.asarray(np.float32(0.01 + i)), f"w{i}": np.full((8, 8), i, np.int8),
        }  # fmt: skip
        nodes += [
            node("QuantizeLinear", f"x{i} s{i} z{i}", f"q{i}"), node("DequantizeLinear", f"q{i} s{i} z{i}", f"d{i}"),
            node("DequantizeLinear", f"w{i} ws{i} symmetric", f"r{i}"), node("MatMul", f"d{i} r{i}", f"x{i + 1}"),
        ]  # fmt: skip
    one = model(nodes, [info("x0", (4, 8), np.float32)], [info("x3", (4, 8), np.float32)], stored)
    made = import_model(load_model(one), np.ones((4, 8), np.float32))
    regions = in_regions("as it is", own_form(made.graph)).regions
    products = Counter(region.graph for region in regions if region.kind == "contraction")
    assert max(products.values()) >= 2, products
    assert not any("symmetric" in name for name in made.frozen_values), "a zero point of 0 is not read"
