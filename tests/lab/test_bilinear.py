"""Bilinear algorithms: what the search finds computes convolutions, and the rules written from it prove."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from rewrites.language.parse import parse
from rewrites.language.show import rule_key
from rewrites.library import by_name
from superopt.lab.discovery.bilinear import Algorithm, algorithms, one_axis, terms, two_axes
from verifier.rules.check import check


@pytest.mark.parametrize(("m", "r"), [(2, 3), (3, 3), (4, 3), (2, 5)])
def test_algorithms_compute_convolutions(m: int, r: int) -> None:
    rng = np.random.default_rng(m)
    for found in algorithms(m, r, count=3):
        d, g = rng.integers(-9, 10, m + r - 1), rng.integers(-9, 10, r)
        products = [
            Fraction(int(np.dot(u, g)), scale) * int(np.dot(b, d))
            for (u, scale), b in zip(found.taps, found.data, strict=True)
        ]
        assert len(products) == m + r - 1
        got = [sum(w * p for w, p in zip(row, products, strict=True)) for row in found.outputs]
        assert got == [int(np.dot(d[k : k + r], g)) for k in range(m)]


def test_terms_are_constant_along_diagonals() -> None:
    for a, u in terms(3, 3, 2):
        matrix = np.outer(a, u)
        assert np.linalg.matrix_rank(matrix) == 1
        assert all(matrix[k, j] == matrix[k + 1, j - 1] for k in range(2) for j in (1, 2))


def test_the_smallest_is_the_one_of_the_library() -> None:
    (found,) = algorithms(2, 3)
    assert sorted(found.data) == sorted([(1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1)])
    assert by_name("conv-winograd").lhs == parse(one_axis(found, "found")).lhs


@pytest.mark.parametrize("write", [one_axis, two_axes])
def test_written_rules_prove(write: Callable[[Algorithm, str], str]) -> None:
    (found,) = algorithms(2, 3)
    text = write(found, "found")
    assert check(parse(text)).proved
    flipped = text.replace("at(W, s(2))", "-at(W, s(2))", 1)
    assert check(parse(flipped)).status == "REFUTED"


def test_the_rule_of_the_library_is_what_the_search_writes() -> None:
    (found,) = algorithms(4, 5)
    assert rule_key(parse(one_axis(found, "conv-apart-4-5"))) == rule_key(by_name("conv-apart-4-5"))
