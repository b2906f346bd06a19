"""Inverses and solutions in rules: true equations are proved over the reals, and none that is false."""

from __future__ import annotations

import pytest

from rewrites.language.parse import parse
from rewrites.language.term import Rule
from verifier.rules.check import check
from verifier.rules.prove import prove
from verifier.verdict import PROVED, REFUTED

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
    "reciprocals": "A[i k]\n  inverse(A, i, k)  ==  1 / A\n  if i == k",
}  # fmt: skip


def rule(text: str) -> Rule:
    return parse(f"equation: {text}\n  mode proof", where="test")


@pytest.mark.parametrize("name", TRUE)
def test_true_equations_are_proved(name: str) -> None:
    verdict = check(rule(TRUE[name]))
    assert verdict.status == PROVED, str(verdict)
    assert verdict.domain is not None
    assert (verdict.domain.exactness, verdict.domain.dtypes) == ("real", ("float",))
    assert {r for _, r in verdict.domain.ranks} <= {"any"}


@pytest.mark.parametrize("name", FALSE)
def test_false_equations_are_not_proved(name: str) -> None:
    assert prove(rule(FALSE[name])).status != PROVED


@pytest.mark.parametrize("name", ["another matrix", "the transpose", "scale of the matrix", "reciprocals"])
def test_false_equations_are_refuted(name: str) -> None:
    assert check(rule(FALSE[name])).status == REFUTED
