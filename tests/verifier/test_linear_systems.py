"""Inverses and solutions in rules: true equations are proved over the reals, and none that is false."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.library import by_name
from tests.support.sampling import one_in, ops_of, sampled
from verifier.rules.check import check
from verifier.rules.prove import prove
from verifier.verdict import PROVED, REFUTED

LOW_RANK = """U[*b i r]  V[*b r k]  B[*b i *n]  {given}  extra s
  solve(where(eq(iota(i), iota(k)), {scale}, 0) + dot(U, V, r), B, i, k)  ==  {right}
  with X = ren(B, i, k)
  with Z = ren(ren(U, r, s), i, k)
  if i == k{where}"""
INNER = "dot(Z, solve(diag(bcast({scale}, r), r, s) + dot(V, Z, k), dot(V, X, k), r, s), s)"


def low_rank(right: str, *, given: str = "S[*b]", scale: str = "S", where: str = ", r < i") -> str:
    """An equation for the solution with a scaled identity and a product of low rank."""
    return LOW_RANK.format(given=given, scale=scale, where=where, right=right.format(inner=INNER.format(scale=scale)))


SUM_OF_INVERSES = "P[*b i k]  Q[*b i k]  B[*b k *n]  extra j\n  solve(inverse(P, i, k) + inverse(Q, i, k), B, k, i)"
TRUE = {
    "order of a product": "A[*b i k]  B[*b i *m n]  C[*b n *p]\n"
    "  dot(solve(A, B, i, k), C, n)  ==  solve(A, dot(B, C, n), i, k)",
    "a product is a solution": "A[*b i k]  B[*b i *n]\n  dot(inverse(A, i, k), B, i)  ==  solve(A, B, i, k)",
    "identity": "A[i k]  extra n\n"
    "  solve(A, where(eq(iota(i), iota(n)), 1, 0), i, k)  ==  ren(inverse(A, i, k), i, n)\n  if i == n",
    "sum": "A[*b i k]  B[*b i *n]  C[*b i *n]\n"
    "  solve(A, B, i, k) + solve(A, C, i, k)  ==  solve(A, B + C, i, k)",
    "scale": "A[*b i k]  B[*b i *n]  S[*n]\n  solve(A, B * S, i, k)  ==  solve(A, B, i, k) * S",
    "columns joined": "A[*b i k]  B[*b i *p n]  C[*b i *p n2]\n"
    "  solve(A, concat(B, C, n), i, k)  ==  concat(solve(A, B, i, k), solve(A, C, i, k), n)",
    "columns selected": "A[*b i k]  B[*b i *n]\n"
    "  solve(A, slice(B, n(s, e, t)), i, k)  ==  slice(solve(A, B, i, k), n(s, e, t))",
    "transposed": "A[*b i k]  B[*b i *n]  C[*b k *m]\n"
    "  dot(C, solve(A, B, i, k), k)  ==  dot(solve(A, C, k, i), B, i)",
    "of a product of matrices": "A[c i j]  B[c j k]\n"
    "  inverse(dot(A, B, j), i, k)  ==  inverse(sum(bcast(A, k) * bcast(B, i), j), i, k)",
    "of a diagonal, which is its own transpose": "A[i k]  B[i n]\n"
    "  solve(where(eq(iota(i), iota(k)), A, 0), B, i, k)  ==  solve(where(eq(iota(k), iota(i)), A, 0), B, i, k)",
    "of a diagonal": "D[*b i]  extra k\n"
    "  inverse(where(eq(iota(i), iota(k)), D, 0), i, k)  ==  where(eq(iota(i), iota(k)), 1 / D, 0)\n  if i == k",
    "with a diagonal": "D[*b i]  E[*b i]  B[*b i *n]  extra k\n"
    "  solve(where(eq(iota(i), iota(k)), D + E, 0), B, i, k)  ==  ren(B / (E + D), i, k)\n  if i == k",
    "of a Kronecker product": "A[*b i k]  B[*b j l]\n"
    "  inverse(A * B, i, j, k, l)  ==  inverse(A, i, k) * inverse(B, j, l)\n  if i == k, j == l",
    "of equal blocks": "A[i k]  extra j l\n"
    "  inverse(where(eq(iota(j), iota(l)), A, 0), i, j, k, l)  ==  where(eq(iota(j), iota(l)), inverse(A, i, k), 0)\n"
    "  if i == k, j == l",
    "of its own product": "A[*b i k]  B[*b k *n]\n  solve(A, dot(A, B, k), i, k)  ==  B",
    "times its matrix": "A[*b i k]  B[*b i *n]\n  dot(A, solve(A, B, i, k), k)  ==  B",
    "inverse times matrix": "A[i k]  extra j\n"
    "  dot(inverse(A, i, k), ren(A, k, j), i)  ==  diag(bcast(1, k), k, j)\n  if i == k",
    "of an inverse": "A[*b i k]\n  inverse(inverse(A, i, k), k, i)  ==  A",
    "with an inverse": "A[*b i k]  B[*b k *n]\n  solve(inverse(A, i, k), B, k, i)  ==  dot(A, B, k)",
    "identity and low rank": low_rank("X - {inner}", given="", scale="1", where=""),
    "scaled identity and low rank": low_rank("(X - {inner}) / S"),
    "with a sum of inverses": f"{SUM_OF_INVERSES}\n"
    "    == dot(ren(P, k, j), solve(ren(P, k, j) + ren(Q, k, j), dot(Q, B, k), i, j), j)\n  if i == k",
    "with a Kronecker product": "A[*b i k]  B[*b j l]  Y[*b i j *n]\n"
    "  solve(A * B, Y, i, j, k, l)  ==  solve(A, solve(B, Y, j, l), i, k)\n  if i == k, j == l",
}  # fmt: skip
FALSE = {
    "another matrix": "A[i k]  C[i k]  B[i n]\n  solve(A + C, B, i, k)  ==  solve(A, B, i, k)",
    "the transpose": "A[i k]  extra j\n"
    "  inverse(A, i, k)  ==  ren(ren(ren(inverse(A, i, k), i, j), k, i), j, k)\n  if i == k",
    "right sides exchanged": "A[i k]  B[i n]  C[n i]\n"
    "  dot(solve(A, B, i, k), C, n)  ==  dot(solve(A, C, i, k), B, n)",
    "sum of matrices": "A[i k]  C[i k]  B[i n]\n  solve(A, B, i, k) + solve(C, B, i, k)  ==  solve(A + C, B, i, k)",
    "scale of the matrix": "A[i k]  B[i n]  S[]\n  solve(A * S, B, i, k)  ==  solve(A, B, i, k) * S",
    "product in place of an inverse": "A[i k]  B[i n]\n  solve(A, B, i, k)  ==  dot(A, B, i)",
    "the matrix itself": "A[i k]\n  inverse(A, i, k)  ==  A\n  if i == k",
    "its diagonal alone": "A[i k]  B[i n]\n  solve(A, B, i, k)  ==  solve(where(eq(iota(i), iota(k)), A, 0), B, i, k)",
    "another diagonal": "A[i k]  B[i n]\n"
    "  solve(A, B, i, k)  ==  solve(where(eq(iota(i), iota(k)), A + 1, A), B, i, k)",
    "rows reversed": "A[i k]\n  inverse(rev(A, i), i, k)  ==  inverse(A, i, k)",
    "rows of the batch reversed": "A[b i k]  B[b i]\n  solve(A, B, i, k)  ==  solve(rev(A, b), B, i, k)",
    "sum over the batch": "A[b i k]\n  sum(inverse(A, i, k), b)  ==  inverse(sum(A, b), i, k)",
    "elementwise product": "A[i k]  B[i n]  C[i n]\n"
    "  solve(A, B, i, k) * solve(A, C, i, k)  ==  solve(A, B * C, i, k)",
    "entries chosen": "A[i k]  P[i k]\n  where(P, inverse(A, i, k), 0)  ==  inverse(where(P, A, 0), i, k)\n  if i == k",
    "a larger matrix without an inverse": "A[i k]\n"
    "  inverse(A, i, k)  ==  slice(inverse(pad(A, 0, i(0, 1), k(0, 1)), i, k), i(0, i), k(0, k))",
    "no inverse on the left": "A[i k]\n  A * 0  ==  inverse(A, i, k) * 0\n  if i == k",
    "a diagonal without an inverse": "D[*b i]  extra k\n"
    "  where(eq(iota(i), iota(k)), 1 / D, 0)  ==  inverse(where(eq(iota(i), iota(k)), D, 0), i, k)\n  if i == k",
    "a triangle as its diagonal": "D[*b i]  extra k\n"
    "  inverse(where(le(iota(i), iota(k)), D, 0), i, k)  ==  where(eq(iota(i), iota(k)), 1 / D, 0)\n  if i == k",
    "a diagonal among ones": "D[*b i]  extra k\n"
    "  inverse(where(eq(iota(i), iota(k)), D, 1), i, k)  ==  where(eq(iota(i), iota(k)), 1 / D, 1)\n  if i == k",
    "a diagonal reversed": "D[i]  extra k\n"
    "  inverse(where(eq(iota(i), iota(k)), rev(D, i), 0), i, k)  ==  where(eq(iota(i), iota(k)), 1 / D, 0)\n"
    "  if i == k",
    "a Kronecker sum": "A[*b i k]  B[*b j l]\n"
    "  inverse(A + B, i, j, k, l)  ==  inverse(A, i, k) + inverse(B, j, l)\n  if i == k, j == l",
    "one factor of a Kronecker product": "A[*b i k]  B[*b j l]\n"
    "  inverse(A * B, i, j, k, l)  ==  inverse(A, i, k) * B\n  if i == k, j == l",
    "factors that share an axis": "A[*b i k j]  B[*b j l]\n"
    "  inverse(A * B, i, j, k, l)  ==  bcast(inverse(sum(A, j), i, k), j) * inverse(B, j, l)\n  if i == k, j == l",
    "a Kronecker product and ones": "A[*b i k]  B[*b j l]\n"
    "  inverse(A * B + 1, i, j, k, l)  ==  inverse(A, i, k) * inverse(B, j, l) + 1\n  if i == k, j == l",
    "positions as factors": "A[i k]  B[j l]\n"
    "  inverse(A * B * bcast(iota(j), l), i, j, k, l)  ==  inverse(A * bcast(iota(i), k), i, k) * inverse(B, j, l)\n"
    "  if i == k, j == l",
    "factors exchanged": "A[*b i k]  B[*b j l]\n"
    "  inverse(A * B, i, j, l, k)  ==  inverse(A, i, k) * inverse(B, j, l)\n  if i == k, j == l",
    "of a product with another matrix": "A[*b i k]  C[*b i k]  B[*b k *n]\n  solve(A, dot(C, B, k), i, k)  ==  B",
    "of the transposed product": "A[i k]  B[i n]\n"
    "  solve(A, ren(dot(A, B, i), k, i), i, k)  ==  ren(B, i, k)\n  if i == k",
    "twice the right side": "A[i k]  B[k n]\n  solve(A, dot(A, B, k), i, k)  ==  B * 2",
    "a matrix that may have no inverse": "A[i k]  B[k n]  C[i n]\n"
    "  solve(A, C, i, k) * 0 + B  ==  B + 0 * solve(A * A, dot(A * A, B, k), i, k)",
    "low rank with another sign": low_rank("(X + {inner}) / S"),
    "low rank without the scale": low_rank("X - {inner}"),
    "low rank with a scale that may be zero": low_rank("(X - {inner}) / S", where=""),
    "low rank and a diagonal that may be zero": "U[i r]  V[r k]  B[i *n]  D[i]  extra s\n"
    "  solve(where(eq(iota(i), iota(k)), D, 0) + dot(U, V, r), B, i, k)\n"
    "    == X - dot(Z, solve(diag(bcast(1, r), r, s) + dot(V, Z, k), dot(V, X, k), r, s), s)\n"
    "  with X = ren(B / D, i, k)\n  with Z = ren(ren(U / D, r, s), i, k)\n  if i == k, r < i",
    "a sum of inverses in another order": f"{SUM_OF_INVERSES}\n"
    "    == dot(ren(P, k, j), solve(ren(P, k, j) + ren(Q, k, j), dot(P, B, k), i, j), j)\n  if i == k",
    "summands that may have no inverse": "P[i k]  Q[i k]  B[i *n]\n  solve(P + Q, B, i, k)\n"
    "    == solve(P, B, i, k) - solve(P, dot(Q, solve(P + Q, B, i, k), k), i, k)",
    "factors that may have no inverse": "P[i r]  Q[r k]  B[i *n]\n"
    "  solve(dot(P, Q, r), B, i, k)  ==  solve(Q, solve(P, B, i, r), r, k)\n  if i == r, r == k",
    "reciprocals": "A[i k]\n  inverse(A, i, k)  ==  1 / A\n  if i == k",
}  # fmt: skip


def rule(text: str) -> Rule:
    return parse(f"equation: {text}\n  mode proof", where="test")


def ops(name: str) -> set[Hashable]:
    return ops_of(rule((TRUE | FALSE)[name]))


@pytest.mark.parametrize("name", sampled(TRUE, one_in(3, ops)))
def test_true_equations_are_proved(name: str) -> None:
    verdict = check(rule(TRUE[name]))
    assert verdict.status == PROVED, str(verdict)
    assert verdict.domain is not None
    assert (verdict.domain.exactness, verdict.domain.dtypes) == ("real", ("float",))
    assert {r for _, r in verdict.domain.ranks} <= {"any"}


@pytest.mark.parametrize("name", sampled(FALSE, one_in(3, ops)))
def test_false_equations_are_not_proved(name: str) -> None:
    assert prove(rule(FALSE[name])).status != PROVED


@pytest.mark.parametrize(
    "name",
    [
        "another matrix",
        "the transpose",
        "scale of the matrix",
        "twice the right side",
        "low rank with another sign",
        "low rank without the scale",
        "a sum of inverses in another order",
        "reciprocals",
    ],
)
def test_false_equations_are_refuted(name: str) -> None:
    assert check(rule(FALSE[name])).status == REFUTED


def test_a_diagonal_without_zeros_is_a_premise_that_the_verdict_states() -> None:
    verdict = check(by_name("solution-with-diagonal-and-low-rank"))
    assert verdict.domain is not None
    assert verdict.domain.exactness == "range"
    assert "given: ne(D, 0)" in verdict.domain.assumptions
    assert check(rule(FALSE["low rank and a diagonal that may be zero"])).status == REFUTED


def test_a_scale_of_low_rank_is_no_premise() -> None:
    verdict = check(by_name("solution-with-low-rank"))
    assert verdict.domain is not None
    assert verdict.domain.exactness == "real"
    assert not any("given" in text or "not zero" in text for text in verdict.domain.assumptions)
