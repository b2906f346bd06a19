"""Quantised results: near the middle between two integers either is right, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from superopt.contest.checks import OriginalRuns, check
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.frontends.onnx.frontend import import_onnx
from superopt.ir.interp import evaluate
from superopt.ir.program import original_program
from superopt.measure import Timing, compare
from superopt.measure.rounding import unrounded
from superopt.measure.session import ComparisonSettings
from superopt.workshop.job import Failure
from tests.support.onnx_models import info, model, node

W = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)


def quantised(scale: float = 0.1, zero: int = 3, dtype: Any = np.uint8, **stored: np.ndarray) -> Imported:
    """A product that is quantised, and then transposed."""
    weights = {"w": W, "s": np.asarray(scale, np.float32), "z": np.asarray(zero, dtype), **stored}
    nodes = [node("MatMul", "x w", "h"), node("QuantizeLinear", "h s z", "q"), node("Transpose", "q", "y")]
    return import_onnx(model(nodes, [info("x", X.shape)], [info("y", (48, 32), dtype)], weights), X)


def ties(x: np.ndarray, w: np.ndarray, scale: float) -> np.ndarray:
    """The same weights, with the first column so that its first product is the middle between two integers."""
    moved, exact = w.copy(), x.astype(np.float64) @ w.astype(np.float64)
    middle = (np.floor(exact[0, 0] / scale) + 0.5) * scale
    moved[0, 0] += (middle - exact[0, 0]) / x[0, 0]
    return moved


def summed_backwards(scale: float = 0.1, zero: int = 3, off: float = 0.0) -> Callable[..., Any]:
    """The quantised product, by sums in another order."""

    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        h = (x[:, ::-1] @ w[::-1]) / np.float32(scale)
        return (jnp.clip(jnp.round(h + np.float32(off)) + zero, 0, 255)).astype(jnp.int32).astype(jnp.uint8).T

    return f


def other(original: Imported, f: Callable[..., Any], w: np.ndarray) -> Any:
    return original_program(import_function(lambda x: f(x, w), (X,)).graph)


def test_a_value_is_found_before_it_is_rounded_moved_and_limited() -> None:
    for dtype, zeros in ((np.uint8, 3), (np.int8, np.arange(48, dtype=np.int8) - 9)):
        scales = np.full(np.shape(zeros), 0.1, np.float32)
        imported = quantised(dtype=dtype, s=scales, z=np.asarray(zeros, dtype))
        frozen = imported.frozen_values
        (before,) = evaluate(unrounded(imported.graph), {"x": X, **frozen}, wide=True)
        (after,) = evaluate(imported.graph, {"x": X, **frozen}, wide=True)
        assert before.dtype == np.float64
        assert not np.array_equal(before, after)
        np.testing.assert_array_equal(np.rint(before), after)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.astype(jnp.int8),
        lambda x: (jnp.round(x) + jnp.round(2 * x)).astype(jnp.int8),
        lambda x: (jnp.round(x) * 2).astype(jnp.int8),
        lambda x: (jnp.round(x) + 0.3).astype(jnp.int8),
        lambda x: (jnp.round(x) > 1).astype(jnp.int8),
        lambda x: jnp.round(x).astype(bool).astype(jnp.int8),
        lambda x: jnp.argmax(jnp.round(x), -1),
        lambda x: jnp.round(x),
    ],
)
def test_other_results_are_not_values_before_a_rounding(f: Callable[..., Any]) -> None:
    graph = import_function(f, (X,)).graph
    assert unrounded(graph).outputs == graph.outputs


def judged(original: Imported, program: Any) -> tuple[str, str]:
    """Why a program is refused, at the end and in rounds; empty texts where it is not."""
    at_the_end = check(OriginalRuns.of(original), program)[1]
    settings = ComparisonSettings(rounds=3, min_time_s=0.0005, isolate=False)
    reference = original_program(original.graph)
    (found,) = compare(reference, [program], [X], original.frozen_values, settings).candidates
    assert isinstance(found, Timing | Failure)
    return at_the_end, found.detail if isinstance(found, Failure) else ""


def test_near_the_middle_between_two_integers_either_is_right() -> None:
    w = ties(X, W, 0.1)
    original = quantised(w=w)
    for off in (-1e-5, 1e-5):  # in one of them the product is another integer
        assert judged(original, other(original, summed_backwards(off=off), w)) == ("", "")


@pytest.mark.parametrize("wrong", [{"scale": 0.101}, {"zero": 4}, {"zero": 2}, {"off": 0.05}, {"off": 0.5}])
def test_other_quantised_results_are_wrong(wrong: Any) -> None:
    original = quantised()
    at_the_end, in_rounds = judged(original, other(original, summed_backwards(**wrong), W))
    assert "values differ" in at_the_end
    assert "values differ" in in_rounds
