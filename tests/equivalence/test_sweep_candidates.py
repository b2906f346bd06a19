"""Which values and numbers of two programs are taken for candidates: near ones of one kind, and reciprocals."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from superopt.equivalence.sweep import _apart, reciprocals
from superopt.ir.graph import Graph, literal, make_input, mk

ODD = np.array([1.0, np.inf, np.nan, -np.inf])


@pytest.mark.parametrize(
    ("have", "value", "apart"),
    [
        (ODD, ODD, 0.0), (ODD, np.array([1.0, np.inf, 2.0, -np.inf]), math.inf), (ODD, -ODD, math.inf),
        (np.ones(4), np.array([1.0, np.nan, 1.0, 1.0]), math.inf), (np.ones(4), np.full(4, 3.0), 1.0),
        (np.arange(3), np.arange(3), 0.0), (np.arange(3), np.arange(3) + 1, math.inf),
    ],
)  # fmt: skip
def test_values_of_another_kind_are_infinitely_far(have: np.ndarray, value: np.ndarray, apart: float) -> None:
    assert _apart(have, value) == apart


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (literal(0.7, "float32"), literal(float(np.float32(1) / np.float32(0.7)), "float32"), True),
        (literal(0.7, "float32"), literal(1.43, "float32"), False),
        (literal(2.0, "float32"), literal(0.5, "float64"), False),
        (literal(0.0, "float32"), literal(math.inf, "float32"), False),
    ],
)  # fmt: skip
def test_reciprocals_are_finite_numbers_of_one_type(one: Any, other: Any, found: bool) -> None:
    x, y = make_input("x", (), one.dtype), make_input("x", (), other.dtype)
    pair: Any = SimpleNamespace(left=Graph((x,), (mk("div", x, one),)), right=Graph((y,), (mk("mul", y, other),)))
    assert bool(reciprocals(pair).images) == found
