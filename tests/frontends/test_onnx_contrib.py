"""Operators of ONNX Runtime's quantiser and fusions: their values follow from what they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from superopt.errors import InputError
from superopt.frontends.onnx.eval import TABLE
from superopt.frontends.onnx.frontend import load_model
from superopt.frontends.onnx.ops.contrib import MS
from superopt.lab.bench.onnx.contrib import contrib_cases, model_of
from tests.support.onnx_models import info, model, node

U8, I8, F32 = np.uint8, np.int8, np.float32


def run(op: str, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
    """The first output of a node of `com.microsoft`."""
    return np.asarray(load_model(model_of(op, list(arrays), **attrs))(*arrays)[0])


def one(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(value, dtype)


def test_quantised_sums_and_products_round_once() -> None:
    a, b = np.array([130, 128, 0, 255], U8), np.array([126, 138, 0, 255], U8)
    scales = (one(0.5), one(128, U8))
    added = run("QLinearAdd", a, *scales, b, *scales, *scales)
    np.testing.assert_array_equal(added, [128, 138, 0, 255])
    product = run("QLinearMul", a, *scales, b, *scales, one(1.0), one(100, U8))
    np.testing.assert_array_equal(product, [99, 100, 255, 255])


def test_a_quantised_product_with_and_without_output_scale() -> None:
    a, b = np.array([[3, 5]], U8), np.array([[2, -1], [1, 4]], I8)
    operands = (a, one(0.5), one(1, U8), b, one(0.25), one(0, I8))
    np.testing.assert_array_equal(run("QGemm", *operands), [[1.0, 1.75]])
    bias = np.array([8, 0], np.int32)
    np.testing.assert_array_equal(run("QGemm", *operands, bias, one(0.5), one(10, U8)), [[14, 14]])


def test_four_bit_products() -> None:
    a = np.eye(4, 32, dtype=np.float32)
    packed = np.full((2, 1, 16), 0xA3, U8)  # 3, then 10
    scales = np.array([[1.0], [2.0]], np.float32)
    got = run("MatMulNBits", a, packed, scales, K=32, N=2, bits=4, block_size=32)
    np.testing.assert_array_equal(got, [[-5, -10], [2, 4], [-5, -10], [2, 4]])


def test_attention_sees_what_the_mask_says() -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((1, 3, 4), (4, 12), (12,)))
    mask = np.array([[1, 1, 0]], np.int32)
    q, k, v = np.split(x[0] @ w + b, 3, axis=-1)
    scores = q @ k.T / 2
    scores[:, 2] -= 10000
    weights = np.exp(scores - scores.max(1, keepdims=True))
    wanted = weights / weights.sum(1, keepdims=True) @ v
    np.testing.assert_allclose(run("Attention", x, w, b, mask, num_heads=1)[0], wanted, rtol=1e-5, atol=1e-6)


def test_every_case_converts() -> None:
    loaded = 0
    for op, _, made, inputs in contrib_cases():
        if op == "ExpandDims":
            continue  # its axis is to be given
        assert len(load_model(made).inputs) == len(inputs)
        loaded += 1
    assert loaded > 50


def test_attributes_that_are_not_known_are_refused() -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(InputError, match="'speed'"):
        run("Gelu", x, speed=2)
    with pytest.raises(InputError, match="wrong kind"):
        run("QuickGelu", x, alpha="much")


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("QLinearAdd", (U8, F32, U8, U8)),
        ("QLinearAdd", (U8, F32, U8, U8, F32, U8)),
        ("QLinearAdd", (U8, None, U8, U8, F32, U8, F32, U8)),
        ("QLinearAdd", (U8, F32, U8, U8, F32, U8, F32, U8, U8)),
        ("QLinearSigmoid", (U8, F32, U8)),
        ("QLinearSigmoid", (U8, F32, U8, None, U8)),
        ("QGemm", (U8, F32, U8, I8)),
        ("QAttention", (U8, I8, F32, F32)),
        ("MatMulIntegerToFloat", (U8, I8, F32)),
        ("EmbedLayerNormalization", (I8, I8, F32)),
        ("Gelu", (F32, F32)),
        ("BiasGelu", (F32,)),
        ("BiasGelu", (F32, None)),
    ],
)
def test_operands_that_are_missing_or_too_many_are_refused(op: str, operands: tuple[Any, ...]) -> None:
    arrays = [None if kind is None else np.ones((2, 2), kind) for kind in operands]
    given = [a for a in arrays if a is not None]
    with pytest.raises(InputError, match=op):  # the message says which node it is
        load_model(model_of(op, arrays))(*given)


def test_an_activation_whose_numbers_are_not_given_has_its_own() -> None:
    x, w = np.float32([[-1.0, 2.0]]), np.eye(2, dtype=np.float32)
    y = run("FusedGemm", x, w, activation="Elu")
    np.testing.assert_allclose(y, [[np.expm1(-1.0), 2.0]], rtol=1e-6)
    y = run("FusedGemm", x, w, activation="LeakyRelu", activation_alpha=0.5)
    np.testing.assert_allclose(y, [[-0.5, 2.0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "domain", "grids"),
    [
        ("QuantizeLinear", "", {1, 2}),
        ("DequantizeLinear", MS, {1, 2}),
        ("MatMulInteger", "", {2, 3}),
        ("QLinearConv", "", {1, 2, 4, 5, 6, 7}),
        ("QGemm", MS, {1, 2, 4, 5, 7, 8}),
        ("QLinearWhere", MS, {2, 3, 5, 6, 7, 8}),
        ("QAttention", MS, {3, 4, 6, 7}),
        ("MatMul", "", set()),
    ],
)
def test_scales_and_zero_points_are_weights(op: str, domain: str, grids: set[int]) -> None:
    """Layers that differ in them alone have one kernel."""
    assert TABLE[domain, op].grids == grids


def test_a_scale_of_an_operator_of_another_domain_is_a_weight() -> None:
    scale = np.array(0.5, np.float32)
    read = node("DequantizeLinear", "x s", "y", domain=MS)
    loaded = load_model(model([read], [info("x", (2,), np.uint8)], [info("y", (2,))], {"s": scale}))
    assert set(loaded.params) == {"s"}


def test_a_recurrence_of_bytes_rounds_inputs_once_and_its_state_at_each_step() -> None:
    rng = np.random.default_rng(3)
    x, bias = rng.standard_normal((4, 2, 3)).astype(F32), rng.standard_normal((1, 16)).astype(F32)
    w, r = (rng.integers(-99, 99, (1, n, 8)).astype(I8) for n in (3, 2))
    h, c = np.full((2, 2), 0.3, F32), np.full((2, 2), -0.2, F32)
    scale, zero = np.array([0.02], F32), np.array([5], I8)
    arrays = (x, w, r, bias, None, h[None], c[None], None, scale, zero, scale, zero)
    given = [a for a in arrays if a is not None]
    model = model_of("DynamicQuantizeLSTM", list(arrays), hidden_size=2, outputs=3)
    outputs, last, _ = (np.asarray(a) for a in load_model(model)(*given))

    def rounded(a: np.ndarray) -> np.ndarray:
        low, high = min(a.min(), 0), max(a.max(), 0)
        step = np.float32((high - low) / 255)
        middle = np.rint(-low / step)
        return (np.clip(np.rint(a / step) + middle, 0, 255) - middle) * step

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    real_w, real_r = (scale * (a[0].astype(F32) - zero) for a in (w, r))
    gates = rounded(x) @ real_w + bias[0, :8] + bias[0, 8:]
    for t in range(4):
        i, o, f, g = np.split(gates[t] + rounded(h) @ real_r, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(outputs[t, 0], h, atol=1e-5)
    np.testing.assert_allclose(last[0], h, atol=1e-5)
