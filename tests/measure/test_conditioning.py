"""Results in which all that is left is rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from superopt.measure.conditioning import Neighbours, differ_by_rounding
from superopt.measure.numerics import QUANTISED

NEAR_ZERO = np.linspace(-3, 3, 77, dtype=np.float32)
EQUAL = np.full((4, 29), 3, np.float32)


def total(x: Any) -> Any:
    return np.sum(x)


def variance(x: Any) -> Any:
    return np.var(x, axis=1)


@pytest.mark.parametrize(("fn", "x", "rounding"), [(total, NEAR_ZERO, 3e-6), (variance, EQUAL, 1e-13)])
def test_what_is_left_where_terms_cancel_is_rounding(fn: Callable[[Any], Any], x: np.ndarray, rounding: float) -> None:
    def judged(error: float) -> bool:
        want = np.asarray(fn(x.astype(np.float64)), np.float32)
        got = (want + error).astype(np.float32)
        return differ_by_rounding(Neighbours(lambda change: [np.asarray(fn(change(x)))]), ["float32"], [want], [got])

    assert judged(rounding)
    assert not judged(1e4 * rounding)
    assert not judged(np.nan)


def test_other_numbers_types_and_shapes_are_no_rounding() -> None:
    x = np.arange(1, 9, dtype=np.float32)

    def judged(got: np.ndarray) -> bool:
        return differ_by_rounding(Neighbours(lambda change: [2 * change(x)]), ["float32"], [2 * x], [got])

    assert judged(2 * x)
    assert not judged(2 * x * np.float32(1.001))
    assert not judged((2 * x).astype(np.float64))
    assert not judged(2 * x[:4])
    assert not differ_by_rounding(Neighbours(lambda change: None), ["float32"], [2 * x], [3 * x])
    n = np.arange(3)
    assert not differ_by_rounding(Neighbours(lambda change: [change(n)]), ["int64"], [n], [n + 1])


def test_results_of_many_quantised_steps_may_be_as_far_from_the_exact_ones_as_the_original() -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(500)
    jumps = [0.07 * rng.standard_normal(500) for _ in range(3)]
    original = (exact + jumps[0]).astype(np.float32)

    def judged(error: np.ndarray, kind: str) -> bool:
        got = (exact + error).astype(np.float32)
        return differ_by_rounding(Neighbours(lambda change: [exact]), [kind], [original], [got])

    assert judged(jumps[1], QUANTISED)
    assert not judged(2 * jumps[2], QUANTISED)
    assert not judged(np.full(500, np.nan), QUANTISED)
    assert not judged(jumps[1], "bfloat16")
