"""Sines and cosines of sums of angles: true equations are proved over the reals, and none that is false."""

from __future__ import annotations

import pytest

from rewrites.language.parse import parse
from verifier.rules.check import check
from verifier.verdict import PROVED, REFUTED, UNKNOWN

TRUE = {
    "cosine of a difference": "A[*b]  B[*b]\n  cos(A - B)  ==  cos(A) * cos(B) + sin(A) * sin(B)",
    "cosine of a sum": "A[*b]  B[*b]\n  cos(A + B)  ==  cos(A) * cos(B) - sin(A) * sin(B)",
    "sine of a difference": "A[*b]  B[*b]\n  sin(A - B)  ==  sin(A) * cos(B) - cos(A) * sin(B)",
    "sine of three angles": "A[*b]  B[*b]  C[*b]\n  sin(A + B + C)  ==  sin(A + B) * cos(C) + cos(A + B) * sin(C)",
    "of sums over an axis": "A[*b k]  B[*b]\n"
    "  cos(sum(A, k) - B)  ==  cos(sum(A, k)) * cos(B) + sin(sum(A, k)) * sin(B)",
    "of one angle": "A[*b]\n  cos(-A) + sin(-A)  ==  cos(A) - sin(A)",
    "of equal sums": "A[*b k]  B[*b k]\n  cos(sum(A, k) + sum(B, k))  ==  cos(sum(A + B, k))",
}
FALSE = {
    "a sign": "A[*b]  B[*b]\n  cos(A - B)  ==  cos(A) * cos(B) - sin(A) * sin(B)",
    "functions exchanged": "A[*b]  B[*b]\n  sin(A - B)  ==  cos(A) * cos(B) + sin(A) * sin(B)",
    "a sum of sines": "A[*b]  B[*b]\n  sin(A + B)  ==  sin(A) + sin(B)",
    "a product of angles": "A[*b]  B[*b]\n  cos(A * B)  ==  cos(A) * cos(B) - sin(A) * sin(B)",
}


@pytest.mark.parametrize("name", TRUE)
def test_true_equations_are_proved(name: str) -> None:
    verdict = check(parse(f"equation: {TRUE[name]}\n  mode proof", where="test"))
    assert verdict.status == PROVED, str(verdict)
    assert verdict.domain is not None
    assert verdict.domain.exactness == "real"


@pytest.mark.parametrize("name", FALSE)
def test_false_equations_are_refuted(name: str) -> None:
    assert check(parse(f"equation: {FALSE[name]}\n  mode proof", where="test")).status == REFUTED


def test_squares_are_not_known_to_add_up_to_one() -> None:
    text = "equation: A[*b]\n  square(cos(A)) + square(sin(A))  ==  A * 0 + 1\n  mode proof"
    assert check(parse(text, where="test")).status == UNKNOWN
