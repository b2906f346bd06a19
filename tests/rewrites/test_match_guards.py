"""Guards of matching: graphs that look like a left side, and are none, or are one in fewer ways than it seems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rewrites.build.target import IRTarget
from rewrites.build.terms import build
from rewrites.egraph.graph import EGraph
from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.library import by_name
from rewrites.match.bind import Sorted, bindings, sort_labels
from rewrites.match.matching import Match, MatchStats, matches
from rewrites.match.space import IRSpace
from rewrites.match.walk import Walk, WalkState, patterns_of
from superopt.ir.graph import Node, literal, mk, topological
from tests.support.rules_numeric import NCHW, arrays_of, dot, egraph, error, node_of_ref, spread, values, var

A, B = var("a", 3), var("b", 3)


def found(rule: Rule, *roots: Node, stats: MatchStats | None = None, **options: Any) -> list[Match]:
    """All matches at these roots; every right side is built and compared."""
    eg = egraph(*roots)
    out = list(matches(rule, eg, *eg.roots, stats=stats, **options))
    check(eg, out, roots)
    return out


def check(eg: EGraph, out: list[Match], roots: tuple[Node, ...]) -> None:
    arrays = arrays_of(*roots)
    for m in out:
        left = values(node_of_ref(eg, *[ref for ref, _ in m.roots]), arrays)
        assert error(left, values(node_of_ref(eg, *build(m, eg)), arrays)) < 1e-9


def reasons(rule: Rule, *roots: Node) -> set[str]:
    """The reasons for which a rule does not match."""
    stats = MatchStats()
    assert not found(rule, *roots, stats=stats)
    return {reason for _, reason in stats.misses}


def cut(x: Node, start: int, end: int, step: int = 1) -> Node:
    return mk("slice", x, start_indices=(start,), limit_indices=(end,), strides=(step,))


# -- attributes


def test_numbers_of_a_rule_are_those_of_the_op() -> None:
    rule = parse("first: A[*a n]\n  slice(exp(A), n(0, 2))  ==  exp(slice(A, n(0, 2)))")
    x = mk("exp", var("x", 4))
    assert len(found(rule, cut(x, 0, 2))) == 1
    assert reasons(rule, cut(x, 1, 3)) == {"an attribute has another value"}
    assert reasons(rule, cut(x, 0, 3, 2)) == {"an attribute has another value"}


def test_a_number_that_is_computed_is_that_of_the_op() -> None:
    rule = parse("rest: A[*a n]\n  slice(exp(A), n(s, n))  ==  exp(slice(A, n(s, n)))")
    x = mk("exp", var("x", 4))
    assert len(found(rule, cut(x, 1, 4))) == 1
    assert reasons(rule, cut(x, 1, 3)) == {"an attribute has another value"}


def test_one_attribute_has_one_value() -> None:
    rule = parse("both: A[*a n]  B[*a n]\n  slice(A, n(s, e)) * slice(B, n(s, e))  ==  slice(A * B, n(s, e))")
    a, b = var("a", 4), var("b", 4)
    assert found(rule, mk("mul", cut(a, 1, 3), cut(b, 1, 3)))
    assert reasons(rule, mk("mul", cut(a, 1, 3), cut(b, 2, 4))) == {"attribute s differs between ops"}


def test_an_axis_that_is_sliced_is_there() -> None:
    rule = parse("s: A[*a n]\n  slice(exp(A), n(s, e))  ==  exp(slice(A, n(s, e)))")
    x = mk("exp", var("x", 3, 4))
    whole = {"start_indices": (0, 0), "limit_indices": (3, 4), "strides": (1, 1)}
    assert len(found(rule, mk("slice", x, **{**whole, "limit_indices": (3, 2)}))) == 1


def test_a_window_on_an_axis_that_the_rule_leaves_alone() -> None:
    rule = parse("s: A[*a n]\n  slice(exp(A), n(s, e))  ==  exp(slice(A, n(s, e)))")
    two = mk("slice", mk("exp", var("x", 3, 4)), start_indices=(1, 1), limit_indices=(3, 3), strides=(1, 1))
    assert not found(rule, two)


def test_directions_of_prefixes_are_compared() -> None:
    rule = parse("c: A[*a n]\n  cumsum(-A, n)  ==  -cumsum(A, n)")
    x = mk("neg", var("x", 4))
    assert found(rule, mk("cumsum", x, axis=0, reverse=False))
    assert not found(rule, mk("cumsum", x, axis=0, reverse=True))


def test_an_axis_without_a_role_stays_beside_prefixes() -> None:
    root = mk("cumsum", mk("neg", var("x", 4, 1)), axis=0, reverse=False)
    (match,) = matches(parse("c: A[n]\n  cumsum(-A, n)  ==  -cumsum(A, n)"), IRSpace((root,)), root)
    assert [node.op for node in topological(build(match, IRTarget()))] == ["input", "cumsum", "neg"]


# -- operands


@pytest.mark.parametrize(("op", "count"), [("sub", 0), ("add", 1)])
def test_operands_change_places_only_where_the_op_commutes(op: str, count: int) -> None:
    rule = parse(
        "s: A[*a]  B[*a]\n  exp(A) OP sin(B)  ==  exp(A) OP sin(B)".replace("OP", {"sub": "-", "add": "+"}[op])
    )
    root = mk(op, mk("sin", var("b", 3)), mk("exp", var("a", 3)))
    assert len(found(rule, root)) == count


@pytest.mark.parametrize(
    ("text", "root", "orders"),
    [
        ("exp(A) - sin(B)  ==  exp(A) - sin(B)", mk("sub", mk("sin", B), mk("exp", A)), []),
        ("exp(A) + sin(B)  ==  exp(A) + sin(B)", mk("add", mk("sin", B), mk("exp", A)), [(1, 0)]),
        ("exp(A) + B  ==  exp(A) + B", mk("add", mk("exp", A), mk("exp", B)), [(0, 1), (1, 0)]),
        ("A ** 3 + B  ==  B + A ** 3", mk("add", mk("integer_pow", A, y=2), B), []),
        ("A ** 3  ==  A * A * A", mk("integer_pow", A, y=2), []),
        ("A ** 3  ==  A * A * A", mk("integer_pow", A, y=3), [(0,)]),
    ],
)
def test_each_way_to_compute_a_tensor_has_its_own_orders_of_operands(
    text: str, root: Node, orders: list[tuple[int, ...]]
) -> None:
    """A class of an e-graph may hold one way that matches beside one that does not."""
    tensors = "A[*a]  B[*a]" if "B" in text else "A[*a]"
    (pattern,) = patterns_of(parse(f"r: {tensors}\n  {text}"))
    space = IRSpace((root,))
    (way,) = space.alternatives(root)[root.op]
    assert list(pattern.orders(space, way)) == orders


def test_a_function_of_two_of_a_rule_keeps_its_operands_where_it_must() -> None:
    rule = parse("m: f/2  A[*a]  B[*a]\n  f(exp(A), sin(B))  ==  f(exp(A), sin(B))")
    a, b = mk("exp", var("a", 3)), mk("sin", var("b", 3))
    assert found(rule, mk("max", b, a))
    assert found(rule, mk("atan2", a, b))
    assert not found(rule, mk("atan2", b, a))


@pytest.mark.parametrize(("zero", "count"), [(0.0, 1), (-0.0, 0)])
def test_zeros_of_both_signs_are_different_literals(zero: float, count: int) -> None:
    """x - 0 is x in every bit; x - -0 is 0 where x is -0."""
    x, whole = var("x", 3), spread(literal(zero, "float64"), (3,))
    root = mk("sub", x, whole)
    assert len(list(matches(parse("minus: A[*a]\n  A - 0  ==  A"), IRSpace((root,)), root))) == count
    assert len(found(parse("over: A[*a]\n  exp(A) / 0  ==  exp(A) / 0"), mk("div", mk("exp", x), whole))) == count


def test_predicates_and_numbers_are_different_literals() -> None:
    rule = parse("one: A[*a]\n  A * 1  ==  A")
    assert not list(matches(rule, IRSpace(), mk("and", var("p", 3, dtype="bool"), spread(literal(True, "bool"), (3,)))))


@pytest.mark.parametrize(("other", "count"), [("float64", 1), ("float32", 0)])
def test_a_rule_holds_for_one_type_of_floats_at_a_time(other: str, count: int) -> None:
    rule = parse("w: A[*a]  B[*a]  C[*a]\n  where(lt(A, B), C, exp(C))  ==  where(lt(B, A), C, exp(C))")
    a, b, c = var("a", 3), var("b", 3), var("c", 3, dtype=other)
    root = mk("select_n", mk("lt", a, b), mk("exp", c), c)
    assert len(list(matches(rule, IRSpace((root,)), root))) == count


def test_a_tensor_without_axes_is_a_scalar() -> None:
    rule = parse("s: A[*a]  S[]\n  exp(A) * S  ==  S * exp(A)")
    x, y = mk("exp", var("x", 3)), var("y", 3)
    assert found(rule, mk("mul", x, spread(var("s"), (3,))))
    assert not found(rule, mk("mul", x, y))


# -- axes


def test_axes_that_do_not_nest() -> None:
    """One axis has one size here and another there, where it is also two axes."""
    pair = mk("reshape", mk("exp", var("y", 2, 2)), new_sizes=(4,))
    other = parse("p: A[*a n]  C[*a n2]\n  slice(A, n(s, e)) * exp(C)  ==  exp(C) * slice(A, n(s, e))")
    assert reasons(other, mk("mul", cut(var("x", 6), 1, 5), pair)) == {"axes do not nest"}
    joined = parse("c: A[*a n]  B[*a n2]\n  concat(exp(A), B, n)  ==  concat(exp(A), B, n)")
    assert reasons(joined, mk("concatenate", pair, var("x", 5), dimension=0)) == {"axes do not nest"}


@pytest.mark.parametrize(("sizes", "count"), [((6,), 1), ((3, 2), 0), ((2, 1, 3), 1)])
def test_reshapes_are_seen_through_where_axes_nest(sizes: tuple[int, ...], count: int) -> None:
    rule = parse("e: A[*a]\n  exp(sin(A))  ==  exp(sin(A))")
    root = mk("exp", mk("reshape", mk("sin", var("x", 2, 3)), new_sizes=sizes))
    assert len(list(matches(rule, IRSpace((root,)), root))) == count


@pytest.mark.parametrize(("dtype", "count"), [("int32", 1), ("int8", 0), ("float32", 0)])
def test_positions_are_integers_that_hold_every_position(dtype: str, count: int) -> None:
    rule = by_name("product-with-triangle")
    rows, columns = (mk("iota", dtype=dtype, shape=(4, 4), dimension=d) for d in (0, 1))
    ones, none = (spread(literal(n, "float64"), (4, 4)) for n in (1.0, 0.0))
    root = dot(mk("select_n", mk("ge", rows, columns), none, ones), var("x", 4))
    assert len(found(rule, root, prefer=False)) == count


def test_windows_with_holes_are_not_said_by_rules() -> None:
    x = var("x", 1, 7, 7, 4)
    for hole, count in ((1, 1), (2, 0)):
        root = mk(
            "reduce_window_max", x, window_dimensions=(1, 3, 3, 1), window_strides=(1, 1, 1, 1),
            padding=((0, 0),) * 4, window_dilation=(1, hole, hole, 1),
        )  # fmt: skip
        assert bool(found(by_name("wmax-shifts"), root, prefer=False)) == bool(count)


def test_groups_of_batches_are_not_said_by_rules() -> None:
    x, w = var("x", 4, 3, 4, 4), var("w", 4, 3, 1, 1)
    attrs = {"window_strides": (1, 1), "padding": ((0, 0),) * 2, "dimension_numbers": NCHW}
    rule = by_name("conv-pointwise")
    assert found(rule, mk("conv_general_dilated", x, w, **attrs), prefer=False)
    assert not found(rule, mk("conv_general_dilated", x, w, **attrs, batch_group_count=2), prefer=False)


# -- the last checks of a binding


def bound(rule: Rule, root: Node, **wrong: Any) -> list[object]:
    """Bindings of a rule at a node, where facts of the walk are replaced."""
    space = IRSpace((root,))
    s = WalkState()
    lay = tuple([((s.labels.fresh(), n),) for n in space.shape(root)])
    (end,) = Walk(rule, space, strict=True).solve(((patterns_of(rule)[0], root, lay, True, 0), ()), s)
    walk = sort_labels(rule, [lay], end)
    assert isinstance(walk, Sorted)
    return list(bindings(rule, replace(walk, **{k: change(walk) for k, change in wrong.items()}), end))


def test_shapes_of_names_are_those_of_tensors() -> None:
    rule = parse("r: A[*a n]  B[*a n2]\n  exp(A) * B  ==  B * exp(A)")
    root = mk("mul", mk("exp", var("a", 3)), var("b", 3))
    assert not isinstance(bound(rule, root)[0], str)
    longer = bound(rule, root, roots=lambda walk: [((((walk.roots[0][0][0][0]), 4),),)])
    assert set(longer) == {"the named shape is not the physical shape"}
    other = bound(rule, root, sizes=lambda walk: {**walk.sizes, "B": dict.fromkeys(walk.sizes["B"], 4)})
    assert "the left side is not well formed here" in other
    assert all(isinstance(x, str) for x in other)
    once = parse("r: A[*a n]  B[*a n]\n  exp(A) * B  ==  B * exp(A)")
    differs = bound(once, root, sizes=lambda walk: {**walk.sizes, "B": dict.fromkeys(walk.sizes["B"], 4)})
    assert set(differs) == {"size n differs between tensors", "size a differs between tensors"}


# -- several roots


def test_parts_of_a_role_have_the_same_axes() -> None:
    rule = by_name("dot-merge")
    x = var("x", 5, 6)
    assert not reasons_of_pair(rule, dot(x, var("q", 6, 2, 3), 1, 0), dot(x, var("k", 6, 2, 4), 1, 0))
    assert reasons_of_pair(rule, dot(x, var("q", 6, 2, 3), 1, 0), dot(x, var("k", 6, 3, 4, 5), 1, 0))


def reasons_of_pair(rule: Rule, *roots: Node) -> set[str]:
    stats = MatchStats()
    out = found(rule, *roots, stats=stats, prefer=False)
    return set() if out else {reason for _, reason in stats.misses}
