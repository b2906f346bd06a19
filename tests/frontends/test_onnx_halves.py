"""Numbers of half precision: an operator computes with them in single precision and rounds once."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.equivalence.models import compare_models
from superopt.frontends.onnx.frontend import load_model
from tests.support.onnx_models import info, model, node
from tests.support.sampling import sampled
from verifier.verdict import REFUTED

HALVES = [np.float16, jnp.bfloat16]
LARGE = np.linspace(200, 300, 2 * 4 * 64 * 64).reshape(2, 4, 64, 64)
ROWS = np.linspace(-7, 90, 4 * 300).reshape(4, 300)
FLAT = np.full((4, 70000), 0.999)
C = np.array([1.5, 0.3, -2, 1])
CASES: dict[str, tuple[str, list[Any], dict[str, Any], dict[str, Any]]] = {
    "GlobalAveragePool": ("GlobalAveragePool", [LARGE], {}, {}),
    "GlobalLpPool": ("GlobalLpPool", [LARGE], {}, {}),
    "AveragePool": ("AveragePool", [LARGE], {"kernel_shape": [32, 32]}, {}),
    "AveragePool padded": ("AveragePool", [LARGE], {"kernel_shape": [33, 33], "pads": [5] * 4}, {}),
    "LpPool": ("LpPool", [LARGE], {"kernel_shape": [32, 32]}, {}),
    "ReduceMean": ("ReduceMean", [FLAT], {}, {"axes": np.array([1])}),
    "ReduceSum": ("ReduceSum", [ROWS], {}, {"axes": np.array([1])}),
    "ReduceL1": ("ReduceL1", [ROWS], {}, {"axes": np.array([1])}),
    "ReduceL2": ("ReduceL2", [LARGE], {}, {"axes": np.array([1])}),
    "ReduceLogSum": ("ReduceLogSum", [LARGE], {}, {"axes": np.array([2])}),
    "ReduceLogSumExp": ("ReduceLogSumExp", [ROWS], {}, {"axes": np.array([1])}),
    "ReduceSumSquare": ("ReduceSumSquare", [ROWS[:, :5]], {}, {"axes": np.array([1])}),
    "ReduceProd": ("ReduceProd", [ROWS[:, :4] / 9], {}, {"axes": np.array([1])}),
    "CumSum": ("CumSum", [ROWS], {}, {"axis": np.array(1)}),
    "InstanceNormalization": ("InstanceNormalization", [LARGE, C, C], {}, {}),
    "GroupNormalization": ("GroupNormalization", [LARGE, C, C], {"num_groups": 2}, {}),
    "LayerNormalization": ("LayerNormalization", [ROWS * 30, ROWS[0], ROWS[1]], {}, {}),
    "BatchNormalization": ("BatchNormalization", [LARGE, C, C, 100 * C, abs(C)], {}, {}),
    "LpNormalization": ("LpNormalization", [LARGE], {"axis": 1}, {}),
    "LpNormalization of sums": ("LpNormalization", [ROWS * 9], {"axis": 1, "p": 1}, {}),
    "MeanVarianceNormalization": ("MeanVarianceNormalization", [LARGE], {}, {}),
    "LRN": ("LRN", [LARGE], {"size": 3, "alpha": 1.0}, {}),
    "Softmax": ("Softmax", [ROWS / 30], {}, {}),
    "LogSoftmax": ("LogSoftmax", [ROWS], {}, {}),
    "Softplus": ("Softplus", [ROWS / 9], {}, {}),
    "Mish": ("Mish", [ROWS / 9], {}, {}),
    "Gelu": ("Gelu", [ROWS / 9], {"approximate": "tanh"}, {}),
    "Mean": ("Mean", [LARGE * 200, LARGE * 200], {}, {}),
    "Sum": ("Sum", [LARGE * 200, LARGE * 200, -LARGE * 200], {}, {}),
    "Pow": ("Pow", [abs(ROWS) / 9], {}, {"e": np.array(2.5)}),
    "Gemm": ("Gemm", [LARGE[0, 0], LARGE[0, 1], -LARGE[0, 2] * 200], {"alpha": 0.02}, {}),
    "Conv": ("Conv", [LARGE[:, :, :4, :4], LARGE[:, :, :2, :2] / 50, -abs(C[:2]) * 20000], {}, {}),
    "ConvTranspose": ("ConvTranspose", [LARGE[:, :, :4, :4], LARGE[0, :, None, :2, :2] / 12, -C[:1] * 20000], {}, {}),
    "Einsum": ("Einsum", [ROWS, ROWS, ROWS / 9999], {"equation": "ij,kj,kj->i"}, {}),
    "ScatterND": ("ScatterND", [C], {"reduction": "add"}, {"i": np.zeros((300, 1), int), "u": ROWS[2]}),
    "Resize": ("Resize", [LARGE[:, :, :4, :4]], {"mode": "cubic"}, {"-": None, "s": np.array([1, 1, 2, 2.0])}),
    "Attention": ("Attention", [LARGE[:, :, :4, :32]] * 3, {"scale": 1e-4}, {}),
    "RMSNormalization": ("RMSNormalization", [ROWS * 9, ROWS[0]], {}, {}),
    "NegativeLogLikelihoodLoss": ("NegativeLogLikelihoodLoss", [ROWS * 90], {}, {"t": np.array([0, 299, 5, 298])}),
}  # fmt: skip


def made(case: str, kind: Any) -> tuple[Any, list[np.ndarray]]:
    op, arrays, attrs, stored = CASES[case]
    known = {n: v.astype(kind) if v.dtype == float and n != "s" else v for n, v in stored.items() if v is not None}
    known |= {"s": known["s"].astype(np.float32)} if "s" in known else {}
    names = [f"x{i}" for i in range(len(arrays))]
    text = " ".join((*names, *stored))
    taken = [info(n, a.shape, kind) for n, a in zip(names, arrays, strict=True)]
    one = model([node(op, text, "y", **attrs)], taken, [info("y", None, kind)], known, opset=23)
    return one, [a.astype(kind) for a in arrays]


BOTH = [(case, kind) for case in CASES for kind in HALVES]


@pytest.mark.parametrize(("case", "kind"), sampled(BOTH, lambda n, _: n % 4 in (0, 3)))
def test_halves_are_computed_with_in_single_precision_and_rounded_once(case: str, kind: Any) -> None:
    half, arrays = made(case, kind)
    single, _ = made(case, np.float32)
    (got,) = load_model(half)(*arrays)
    (wanted,) = load_model(single)(*(a.astype(np.float32) for a in arrays))
    rounded = np.asarray(wanted).astype(kind)
    assert got.dtype == kind
    assert np.isfinite(rounded.astype(np.float32)).all()
    a, b = np.asarray(got).view(np.int16).astype(int), rounded.view(np.int16).astype(int)
    assert abs(a - b).max() <= 1  # constants of the file are halves in one model alone


@pytest.mark.parametrize("kind", HALVES)
def test_what_is_true_of_halves_is_not_refuted(kind: Any) -> None:
    def of(*nodes: Any) -> Any:
        return model(list(nodes), [info("x", (1, 2, 256, 256), kind)], [info("y", (1, 2, 1, 1), kind)],
                     {"a": np.array([2, 3])}, opset=21)  # fmt: skip

    pooled = of(node("GlobalAveragePool", "x", "y"))
    (y,) = load_model(pooled)(np.ones((1, 2, 256, 256), kind))
    np.testing.assert_array_equal(np.asarray(y).astype(float), np.ones((1, 2, 1, 1)))
    assert compare_models(pooled, of(node("ReduceMean", "x a", "y"))).status != REFUTED
