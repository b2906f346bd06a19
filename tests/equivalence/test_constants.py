"""Bounds of constant expressions: there is none where rounding could not be followed, and none that says nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from superopt.equivalence.constants import Constants, Enclosed, same
from superopt.ir.graph import Node, make_input, mk

A, B = (make_input(name, (3,), frozen=True) for name in "ab")
HALF = make_input("half", (3,), "float16", frozen=True)
WHOLE = make_input("whole", (3,), "int32", frozen=True)
LIVE = make_input("live", (3,))
VALUES: dict[str, Any] = {
    "a": np.float32([1.1, 2.2, 3.3]), "b": np.float32([1.0, 0.0, -1.0]), "half": np.float16([1, 2, 3]),
    "whole": np.int32([1, 2, 3]), "live": np.float32([1.0, 2.0, 3.0]),
}  # fmt: skip


def bounded(term: Node, **values: np.ndarray) -> Enclosed | None:
    return Constants({**VALUES, **values}).bounded(term)


def test_conversions_to_narrower_types_round() -> None:
    narrow, wide = (bounded(mk("convert_element_type", x, new_dtype=t)) for x, t in ((A, "float16"), (HALF, "float32")))
    assert wide is not None
    assert wide.error is None
    assert narrow is not None
    assert narrow.error is not None
    assert (narrow.error > 0).all()


@pytest.mark.parametrize(
    "term",
    [
        LIVE, mk("add", A, LIVE), mk("div", A, B), mk("sqrt", B), mk("rsqrt", mk("sub", A, A)), mk("exp", A),
        mk("convert_element_type", A, new_dtype="int32"), mk("convert_element_type", WHOLE, new_dtype="float32"),
        mk("gt", A, B), mk("select_n", mk("gt", A, B), A, B),
    ],
    ids=lambda term: term.op,
)  # fmt: skip
def test_terms_without_a_bound(term: Node) -> None:
    assert bounded(term) is None


ONE = VALUES["a"]
SQUARE = ONE * ONE


@pytest.mark.parametrize(
    ("term", "stored", "agree"),
    [
        (A, ONE, True), (A, np.nextafter(ONE, np.float32(9)), False), (A, ONE[None], False),
        (B, VALUES["b"], True), (B, VALUES["b"] * np.float32([1, -1, 1]), False), (mk("mul", A, A), SQUARE, True),
        (mk("mul", A, A), SQUARE * np.float32(1.000001), False), (mk("mul", A, A), SQUARE * np.nan, False),
    ],
)  # fmt: skip
def test_stored_tensors_lie_within_the_bound(term: Node, stored: np.ndarray, agree: bool) -> None:
    found = bounded(term)
    assert found is not None
    assert (same(stored.astype(np.float32), "float32", found) is not None) is agree


def test_integers_are_the_same_or_not() -> None:
    found = bounded(mk("add", WHOLE, WHOLE))
    assert found is not None
    assert same(np.int32([2, 4, 6]), "int32", found) == 0.0
    assert same(np.int32([2, 4, 7]), "int32", found) is None


def test_a_bound_that_is_large_beside_the_tensor_proves_nothing() -> None:
    cancels = mk("sub", mk("add", A, B), B)
    for large, agree in ((1.0, True), (1e7, False)):
        found = bounded(cancels, b=np.full(3, large, np.float32))
        assert found is not None
        assert (same(VALUES["a"], "float32", found) is not None) is agree
    endless = bounded(mk("mul", A, B), b=np.full(3, np.inf, np.float32))
    assert endless is not None
    assert same(np.full(3, np.inf, np.float32), "float32", endless) is None
