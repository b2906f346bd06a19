"""What counts as the same results: shapes, types, numbers and what is no number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from superopt.measure.numerics import Tolerance, output_errors
from superopt.measure.session import _wrong

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
    assert _wrong(errors, reference, Tolerance())


@pytest.mark.parametrize(
    "same",
    [ONES, ODD, np.full(4, np.nan, np.float32), np.zeros(0, np.float32), np.zeros(4, np.float32), np.arange(4),
     ONES > 0, np.array(["a"]), ONES + 1j * ONES],
)  # fmt: skip
def test_a_result_is_like_itself(same: np.ndarray) -> None:
    (error,) = output_errors([same], [same.copy()])
    assert (error.normwise, error.elementwise) == (0.0, 0.0)
    assert not _wrong((error,), [same], Tolerance())


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
