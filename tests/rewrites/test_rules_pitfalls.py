"""Named regressions: the mistakes that matching modulo layout invites."""

from __future__ import annotations

import numpy as np
import pytest

from rewrites.build.terms import build
from rewrites.egraph.convert import import_graph
from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.library import by_name
from rewrites.match.matching import Match, matches
from superopt.errors import RuleError
from superopt.ir.graph import Graph, Node, mk, topological
from tests.support.rules_numeric import conv, dot, error, node_of_ref, values, var


def found(rule: Rule, *roots: Node, seed: int = 0) -> list[Match]:
    """All matches at these roots; every right side is built and compared."""
    inputs = tuple(n for n in topological(roots) if n.op == "input")
    eg = import_graph(Graph(inputs, roots))
    rng = np.random.default_rng(seed)
    arrays = {n["name"]: rng.standard_normal(n.shape) for n in inputs}
    out = list(matches(rule, eg, *eg.roots, prefer=False))
    for m in out:
        left = values(node_of_ref(eg, *[ref for ref, _ in m.roots]), arrays)
        assert error(left, values(node_of_ref(eg, *build(m, eg)), arrays)) < 1e-9
    return out


def test_unification_never_reads_a_diagonal() -> None:
    """a @ b = b @ a holds for a[m m] read as a diagonal: two axes of one tensor must keep distinct labels."""
    rows = parse("rows: A[*m *k]\n  dot(A, A, k)  ==  sum(A * A, k)")
    x = var("x", 3, 3)
    assert not found(rows, dot(x, x, 1, 0))  # the axes of x would be one
    assert not found(rows, dot(x, x, 1, 1))  # the two free axes would be one
    assert found(rows, mk("dot_general", x, x, dimension_numbers=(((1,), (1,)), ((0,), (0,)))))
    with pytest.raises(RuleError, match="holds a role twice"):
        parse("bad: A[m m2]\n  exp(A) == exp(A)")


def test_padded_axis_of_size_one_is_not_absent() -> None:
    """A spatial axis of size 1 with padding is a window like any other."""
    rule = by_name("conv-pointwise")
    x, w = var("x", 1, 3, 1, 1), var("w", 4, 3, 1, 1)
    assert found(rule, conv(x, w, pad=0))
    assert not found(rule, conv(x, w, pad=1))
    shifts = by_name("depthwise-shifts")
    assert found(shifts, conv(var("x", 1, 3, 1, 1), var("w", 3, 1, 3, 3), groups=3, pad=1))


def test_unconnected_axes_do_not_become_a_batch() -> None:
    """A row and a column of size 1 must not be paired into a batch axis."""
    rule = by_name("dot-merge")
    x = var("x", 4, 6)
    for m in found(rule, dot(x, var("u", 6, 1), 1, 0), dot(x, var("v", 6, 1), 1, 0)):
        assert not m.env.labels["b"]
    assert found(rule, dot(x, var("u", 6), 1, 0), dot(x, var("v", 6), 1, 0))  # the merged axis does not exist yet


def test_merge_of_heads_pairs_parts_by_size() -> None:
    """Free axes of two products are tied by the rule alone: sizes decide, then order."""
    rule = by_name("dot-merge")
    x = var("x", 5, 6)
    found_axes = {
        tuple(m.env.tok[t, label] for t in ("n", "n2") for label in m.env.labels["n"])
        for m in found(rule, dot(x, var("q", 6, 2, 3), 1, 0), dot(x, var("k", 6, 2, 4), 1, 0))
    }
    assert found_axes == {(3, 4)}  # p pairs the axes of size 2


def test_window_is_not_a_shared_axis() -> None:
    """A spatial axis sits in image, kernel and result, as a feature group does; only the op's mark tells them apart."""
    x, w = var("x", 2, 3, 3, 3), var("w", 3, 1, 3, 3)
    (m,) = found(by_name("depthwise-shifts"), conv(x, w, groups=3, pad=1))
    assert len(m.env.labels["s"]) == 2
    assert len(m.env.labels["g"]) == 1


def test_empty_slices_are_kept_apart() -> None:
    """slice of slice is false at empty inner slices without its condition: the condition is checked at the site."""
    rule = parse(
        "slice-slice: A[*a *n]\n"
        "  slice(exp(slice(A, n(s, e, t))), n(x, y, z))  ==  exp(slice(A, n(s + t * x, min(e, s + t * y), t * z)))\n"
        "  if x < y"
    )
    x = mk("exp", mk("slice", var("x", 9), start_indices=(1,), limit_indices=(8,), strides=(2,)))
    inner = {"limit_indices": (3,), "strides": (1,)}
    assert found(rule, mk("slice", x, start_indices=(1,), **inner))
    assert not found(rule, mk("slice", x, start_indices=(3,), **inner))


def test_keepdims_broadcasts_are_views() -> None:
    """Softmax with keepdims: a broadcast that only adds axes of size 1 is a reshape."""
    rule = parse("normalise: X[*b *k]\n  exp(X) / sum(exp(X), k)  ==  exp(X) * (1 / sum(exp(X), k))")
    e = mk("exp", var("x", 4, 5))
    kept = mk("broadcast_in_dim", mk("reduce_sum", e, axes=(1,)), shape=(4, 1), broadcast_dimensions=(0,))
    spread = mk("broadcast_in_dim", kept, shape=(4, 5), broadcast_dimensions=(0, 1))
    assert found(rule, mk("div", e, spread))


def test_rank_zero_does_not_match_everything() -> None:
    """With no axes a reduction is the identity; its pattern must still find a reduction."""
    rule = by_name("sum-sum")
    assert not found(rule, mk("exp", var("x", 3)))
    assert not found(rule, mk("reduce_sum", var("x", 3, 4), axes=(0,)))


def test_transposed_merged_and_grouped_axes_match() -> None:
    """Layouts that differ only by transposes and clean reshapes are one tensor."""
    x, w = var("x", 6, 4), var("w", 8, 6)
    heads = mk("reshape", x, new_sizes=(2, 3, 4))
    weights = mk("reshape", mk("transpose", w, permutation=(1, 0)), new_sizes=(2, 3, 8))
    product = mk("dot_general", heads, weights, dimension_numbers=(((0, 1), (0, 1)), ((), ())))
    scaled = mk("dot_general", mk("mul", heads, mk("broadcast_in_dim", var("s", 4), shape=(2, 3, 4),
                broadcast_dimensions=(2,))), weights, dimension_numbers=(((0, 1), (0, 1)), ((), ())))  # fmt: skip
    assert found(by_name("dot-unrolled"), dot(x, w, 0, 1))
    assert found(by_name("dot-scale-out"), scaled)
    assert not found(by_name("dot-scale-out"), product)


def test_same_variable_must_be_the_same_tensor() -> None:
    x, y = var("x", 3, 4), var("y", 3, 4)
    rule = parse("common: A[*a]  B[*a]  C[*a]\n  exp(A * C) + exp(B * C)  ==  exp(B * C) + exp(A * C)")
    left = mk("exp", mk("mul", x, y))
    assert found(rule, mk("add", left, mk("exp", mk("mul", y, y))))
    other = mk("exp", mk("mul", var("u", 3, 4), var("v", 3, 4)))
    assert not found(rule, mk("add", left, other))


def test_transposed_operand_is_not_the_same_tensor() -> None:
    """C and its transpose share a class; their axes must not be identified."""
    x = var("x", 4, 4)
    rule = parse("twice: A[*a]\n  exp(A) + A  ==  A + exp(A)")
    assert found(rule, mk("add", mk("exp", x), x))
    assert not found(rule, mk("add", mk("exp", x), mk("transpose", x, permutation=(1, 0))))
