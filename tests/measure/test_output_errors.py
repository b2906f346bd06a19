"""What counts as the same results: shapes, types, numbers and what is no number."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from superopt.frontends.jax.jaxpr import import_function
from superopt.measure.numerics import QUANTISED, Tolerance, computed_in, output_errors
from superopt.measure.session import ComparisonSettings, _wrong

ONES = np.ones(4, np.float32)
ODD = np.array([1.0, np.inf, np.nan, 2.0], np.float32)


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ([ONES], []), ([ONES], [ONES, ONES]), ([ONES], [ONES[:3]]), ([ONES], [ONES.astype(np.float64)]),
        ([ODD], [np.array([1, np.inf, 3, 2], np.float32)]), ([ODD], [np.array([1, -np.inf, np.nan, 2], np.float32)]),
        ([ONES], [np.array([1, 1, 1, np.nan], np.float32)]), ([np.zeros(4, np.float32)], [ONES * np.float32(1e-9)]),
        ([np.arange(4)], [np.array([0, 1, 2, 4])]), ([ONES > 0], [ONES < 0]),
        ([np.array(["a"])], [np.array(["b"])]), ([ONES + 1j * ONES], [ONES - 1j * ONES]),
        ([ONES, ONES], [ONES, ONES + np.float32(0.01)]), ([ODD], [ODD + np.float32(0.01)]),
    ],
)  # fmt: skip
def test_other_results_are_told_apart(reference: list[np.ndarray], candidate: list[np.ndarray]) -> None:
    errors = output_errors(reference, candidate)
    types = [str(x.dtype) for x in reference]
    assert not all(Tolerance().accepts(e, t) for e, t in zip(errors, types, strict=False)) or len(errors) != len(types)
    assert _wrong(errors, reference, ComparisonSettings())


@pytest.mark.parametrize(
    "same",
    [ONES, ODD, np.full(4, np.nan, np.float32), np.zeros(0, np.float32), np.zeros(4, np.float32), np.arange(4),
     ONES > 0, np.array(["a"]), ONES + 1j * ONES],
)  # fmt: skip
def test_a_result_is_like_itself(same: np.ndarray) -> None:
    (error,) = output_errors([same], [same.copy()])
    assert (error.normwise, error.elementwise) == (0.0, 0.0)
    assert not _wrong((error,), [same], ComparisonSettings())


def test_complex_numbers_are_compared_by_their_parts() -> None:
    (error,) = output_errors([ONES + 1j * ONES], [ONES + 1j * (ONES + np.float32(1e-6))])
    assert 0 < error.normwise < 1e-5
    assert Tolerance().accepts(error, "float32")


def test_errors_are_relative_to_all_and_to_each() -> None:
    (error,) = output_errors([ONES], [ONES + np.array([0, 0, 0, 1e-2], np.float32)])
    assert math.isclose(error.normwise, 5e-3, rel_tol=1e-4)
    assert math.isclose(error.elementwise, 1e-2, rel_tol=1e-4)
    (odd,) = output_errors([ODD], [ODD + np.array([0, 0, 0, 1e-2], np.float32)])
    assert math.isclose(odd.normwise, 1e-2 / math.sqrt(5), rel_tol=1e-3)


def _halves(x: Any) -> tuple[Any, Any, Any, Any]:
    half = jnp.tanh(x.astype(jnp.float16))
    return x * 2.0, half.astype(jnp.float32).sum(-1), x[::-1].astype(jnp.bfloat16), half.argmax()


def test_outputs_are_as_exact_as_the_coarsest_type_on_the_way_to_them() -> None:
    graph = import_function(_halves, (jnp.ones((4, 8)),)).graph
    assert computed_in(graph) == ("float32", "float16", "bfloat16", "int32")


def test_a_body_in_half_precision_makes_results_of_half_precision() -> None:
    def loop(x: Any) -> Any:
        step = lambda c, _: (jnp.tanh(c.astype(jnp.float16)).astype(jnp.float32), None)  # noqa: E731
        return jax.lax.scan(step, x, None, 3)[0]

    def with_both_results(x: Any) -> Any:
        last, steps = jax.lax.scan(lambda c, _: (jnp.tanh(c), c), loop(x), None, 3)
        return last, steps.sum(0)

    assert computed_in(import_function(loop, (jnp.ones(8),)).graph) == ("float16",)
    assert computed_in(import_function(with_both_results, (jnp.ones(8),)).graph) == ("float16", "float16")


def test_half_weights_that_are_only_moved_and_widened_round_nothing() -> None:
    weights = jnp.ones((4, 8), jnp.float16)
    graph = import_function(lambda w, x: x @ w.T.astype(jnp.float32), (weights, jnp.ones(8))).graph
    assert computed_in(graph) == ("float32",)


def test_floats_in_8_bits_make_results_of_8_bits() -> None:
    def quantised(x: Any) -> tuple[Any, Any]:
        bins = jnp.clip(jnp.round(x * 10), -128, 127).astype(jnp.int32).astype(jnp.int8)
        return bins, bins.astype(jnp.float32) * 0.1

    assert computed_in(import_function(quantised, (jnp.ones(8),)).graph) == ("float32", QUANTISED)
    again = import_function(lambda x: quantised(quantised(x)[1])[0], (jnp.ones(8),)).graph
    assert computed_in(again) == (QUANTISED,)
    cut = import_function(lambda x: x.astype(jnp.int8), (jnp.ones(8),)).graph
    assert computed_in(cut) == ("int8",), "what is cut off has no nearest integers"
    stored = import_function(lambda w, x: x * w.astype(jnp.float32), (jnp.ones(8, jnp.int8), jnp.ones(8))).graph
    assert computed_in(stored) == ("float32",), "weights that come in 8 bits are exact"


@pytest.mark.parametrize(
    ("dtype", "gap", "same"),
    [("complex64", 1e-6, True), ("complex64", 1e-2, False), ("complex128", 1e-12, True), ("complex128", 1e-6, False)],
)
def test_complex_results_have_the_tolerance_of_their_parts(dtype: str, gap: float, same: bool) -> None:
    x = np.array([1 + 2j, -3 + 0.5j], dtype)
    (error,) = output_errors([x], [x * (1 + gap)])
    assert Tolerance().accepts(error, dtype) is same
