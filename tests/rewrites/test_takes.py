"""Rows of batches of tables, and diagonals: what is true is proved, matched and built, what is nearly true is not."""

from __future__ import annotations

import numpy as np
import pytest

from rewrites.build.target import IRTarget
from rewrites.build.terms import build
from rewrites.language.parse import parse
from rewrites.match.matching import matches
from rewrites.match.space import IRSpace
from superopt.errors import RuleError
from superopt.ir.graph import Node, mk
from tests.support.rules_numeric import arrays_of, error, values, var
from verifier.record.ledger import verify_rules

TRUE = {
    "rows of rows": "T[*c n]  I[*c *b]  S[*c *b]\n  take(T, I, n) * S  ==  S * take(T, I, n)",
    "rows of a batch of tables": "T[*c n *d]  I[*c *b]\n  exp(take(T, I, n))  ==  take(exp(T), I, n)",
    "diagonal and mask": "A[*b i j]\n  take(A, iota(i), j)  ==  sum(where(eq(iota(i), iota(j)), A, 0), j)\n  if i == j",
    "either axis": "A[*b i j]\n  take(A, iota(i), j)  ==  ren(take(A, iota(j), i), j, i)\n  if i == j",
    "diagonal above": """A[*b i j]
  take(slice(A, j(1, j)), iota(i), j)  ==  take(pad(A, 0, j(-1, 0)), iota(i), j)
  if j == i + 1""",
    "segments of a product": """U[*b *d *k]  I[*b]  W[*d *k *m]  extra n
  segsum(dot(U, W, k), I, n)  ==  dot(segsum(U, I, n), W, k)""",
    "segments of a sum": """U[*b *d]  V[*b *d]  I[*b]  extra n
  segsum(U + V, I, n)  ==  segsum(U, I, n) + segsum(V, I, n)""",
    "maximum up to an entry": """A[*a n]
  slice(cummax(A, n), n(s, e))  ==  unit(max(slice(A, n(0, e)), n), n)
  if e == s + 1""",
}
FALSE = {
    "lengths that differ": "A[*b i j]\n  take(A, iota(i), j)  ==  sum(where(eq(iota(i), iota(j)), A, 0), j)",
    "another diagonal": """A[*b i j]
  take(slice(A, j(1, j)), iota(i), j)  ==  sum(where(eq(iota(i), iota(j)), A, 0), j)
  if j == i + 1""",
    "tables in place of each other": """T[n *k]  U[r *k *m]  I[*b]  J[*b]
  dot(take(T, I, n), take(U, J, r), k)  ==  take(take(dot(T, U, k), J, n), I, r)""",
    "rows read several times or never": "T[n *d]  I[b]\n  sum(take(T, I, n), b)  ==  sum(T, n)\n  if b == n",
    "scales of entries in place of those of rows": """T[n *d]  I[c b]  S[c]
  take(T, I, n) * S  ==  take(T * ren(S, c, n), I, n)
  if c == n""",
    "a bias that is added once": """U[*b *d]  C[*d]  I[*b]  extra n
  segsum(U + C, I, n)  ==  segsum(U, I, n) + C""",
    "segments by other segments": """U[*b *k]  V[*b *k]  I[*b]  J[*b]  extra n
  segsum(U, I, n) + segsum(V, J, n)  ==  segsum(U + V, I, n)""",
    "segments of squares": """U[*b *d]  I[*b]  extra n
  segsum(square(U), I, n)  ==  square(segsum(U, I, n))""",
    "scales of rows that leave their segment": """U[*b *d]  I[*b]  S[*b]  extra n
  segsum(U * S, I, n)  ==  segsum(U, I, n) * segsum(S, I, n)""",
    "all rows": "U[*b *d]  I[*b]  extra n\n  sum(segsum(U, I, n), n)  ==  sum(U, b)",
    "maximum before an entry": """A[*a n]
  slice(cummax(A, n), n(s, e))  ==  unit(max(slice(A, n(0, s)), n), n)
  if e == s + 1, s >= 1""",
    "diagonal of a sum over the other axis": """A[*b i j]
  sum(where(eq(iota(i), iota(j)), A, 0), i, j)  ==  sum(take(A, iota(i), j) * count(i), i)
  if i == j""",
}


@pytest.mark.parametrize("name", TRUE)
def test_what_is_true_is_proved(name: str) -> None:
    (verdict,) = verify_rules([parse(f"x: {TRUE[name]}\n")])
    assert verdict.status == "PROVED"


@pytest.mark.parametrize("name", FALSE)
def test_what_is_nearly_true_is_refuted(name: str) -> None:
    (verdict,) = verify_rules([parse(f"x: {FALSE[name]}\n")])
    assert verdict.status == "REFUTED"


def test_indices_lack_the_role_along_which_they_index() -> None:
    with pytest.raises(RuleError, match="indices have the role n"):
        parse("x: T[n *d]  I[n]\n  take(T, I, n)  ==  take(T, I, n) + 0\n")


def test_positions_are_indices_or_compared() -> None:
    with pytest.raises(RuleError, match="iota cannot be matched"):
        parse("x: T[n *d]  I[*b]\n  take(T * iota(n), I, n)  ==  take(iota(n) * T, I, n)\n")


def batched(mode: str = "clip") -> Node:
    """Rows 2, 1, 0, ... of a batch of tables, the batch last."""
    table, rows = var("t", 4, 3, 2), var("i", 2, 5, dtype="int32")
    return mk(
        "gather", table, mk("reshape", rows, new_sizes=(2, 5, 1)), offset_dims=(2,), collapsed_slice_dims=(0,),
        start_index_map=(0,), operand_batching_dims=(2,), start_indices_batching_dims=(0,), slice_sizes=(1, 3, 1),
        mode=mode,
    )  # fmt: skip


def test_a_batch_of_tables_is_matched_and_built() -> None:
    rule = parse("x: f/1  T[*c n *d]  I[*c *b]\n  f(take(T, I, n))  ==  take(f(T), I, n)\n")
    root = mk("exp", batched())
    (match,) = matches(rule, IRSpace((root,)), root, dtypes=("float64",))
    arrays = arrays_of(root) | {"i": np.array([[0, 1, 2, 3, 3], [9, -1, 0, 1, 2]], np.int32)}
    built = build(match, IRTarget())
    assert [node.op for node in built] != ["exp"]
    assert error(values([root], arrays), values(built, arrays)) == 0
    filled = mk("exp", batched("fill"))
    assert not list(matches(rule, IRSpace((filled,)), filled, dtypes=("float64",)))
