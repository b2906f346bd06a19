"""Matching and building at sites: attributes carried, dtypes, scalars, several roots, preferences, macros, counters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from rewrites.build.arrange import BuildError, arrange, place_beside
from rewrites.build.target import IRTarget
from rewrites.build.terms import build, expand_macro
from rewrites.egraph.graph import EGraph
from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.library import by_name
from rewrites.match.matching import Match, MatchStats, matches, partners
from rewrites.match.space import IRSpace
from superopt.errors import RuleError
from superopt.ir.graph import Node, literal, mk, topological
from tests.support.rules_numeric import (
    NCHW,
    NHWC,
    arrays_of,
    conv,
    dot,
    egraph,
    error,
    node_of_ref,
    spread,
    values,
    var,
)


def site(rule: Rule, *roots: Node, **options: Any) -> tuple[EGraph, list[Match]]:
    """The e-graph of these roots and all matches there."""
    eg = egraph(*roots)
    return eg, list(matches(rule, eg, *eg.roots, **options))


# -- carried attributes and dtypes


def test_products_carry_precision_and_accumulation_type() -> None:
    rule = by_name("dot-assoc")
    a, b, c = var("a", 6, 5, dtype="float32"), var("b", 5, 4, dtype="float32"), var("c", 4, 3, dtype="float32")
    exact: dict[str, Any] = {"precision": "highest", "preferred_element_type": "float32"}
    eg, ms = site(rule, dot(dot(a, b, **exact), c, **exact))
    (new,) = {build(m, eg)[0] for m in ms}
    ops = [n for n in topological(node_of_ref(eg, new)) if n.op == "dot_general"]
    assert len(ops) == 2
    assert all(n["precision"] == "highest" and n["preferred_element_type"] == "float32" for n in ops)


def test_products_that_disagree_do_not_match() -> None:
    rule = by_name("dot-assoc")
    a, b, c = var("a", 3, 4), var("b", 4, 5), var("c", 5, 6)
    stats = MatchStats()
    _, ms = site(rule, dot(dot(a, b, precision="highest"), c), stats=stats)
    assert not ms
    assert stats.misses["dot-assoc", "carried attributes disagree"] == 1


def test_accumulation_in_another_dtype_does_not_match() -> None:
    a, b, c = (var(n, 4, 4, dtype="bfloat16") for n in "abc")
    wide: dict[str, Any] = {"preferred_element_type": "float32"}
    _, ms = site(by_name("dot-factor"), mk("add", dot(a, c, **wide), dot(b, c, **wide)))
    assert not ms
    _, ms = site(by_name("dot-factor"), mk("add", dot(a, c), dot(b, c)))
    assert ms
    assert ms[0].dtype == "bfloat16"


def test_dtypes_are_those_asked_for() -> None:
    rule = by_name("mul-assoc")
    a, b, c = (var(n, 4, dtype="int32") for n in "abc")
    root = mk("mul", mk("mul", a, b), c)
    assert not site(rule, root)[1]
    assert site(rule, root, dtypes=("int32",))[1]


def test_literals_have_the_dtype_of_the_site() -> None:
    eg, ms = site(
        parse("unit: A[*a]\n  exp(A)  ==  exp(A) * exp(A - A + 0.5) / exp(0.5)"),
        mk("exp", var("a", 3, dtype="float16")),
    )
    (m,) = ms
    node = build(m, IRTarget2(eg))[0]
    assert node.dtype == "float16"
    assert all(n.dtype == "float16" for n in topological([node]))


class IRTarget2(IRTarget):
    """IR nodes from matches on an e-graph: references are turned into nodes where they enter."""

    def __init__(self, eg: EGraph) -> None:
        self.eg = eg

    def _node(self, value: object) -> Node:
        return value if isinstance(value, Node) else node_of_ref(self.eg, value)[0]  # type: ignore[arg-type]

    def mk(self, op: str, /, *children: object, **attrs: object) -> Node:
        return super().mk(op, *[self._node(c) for c in children], **attrs)

    def transpose(self, value: object, perm: Sequence[int], /) -> Node:
        return super().transpose(self._node(value), perm)

    def shape(self, value: object, /) -> tuple[int, ...]:
        return super().shape(self._node(value))

    def dtype(self, value: object, /) -> str:
        return super().dtype(self._node(value))


def test_predicates_that_are_numbers_do_not_match() -> None:
    a, b = var("a", 3), var("b", 3)
    assert not site(by_name("select-ew"), mk("select_n", var("p", 3, dtype="int32"), mk("exp", a), mk("exp", b)))[1]


def test_predicates_are_bool() -> None:
    rule = by_name("select-ew")
    p, a, b = var("p", 3, dtype="bool"), var("a", 3), var("b", 3)
    eg, ms = site(rule, mk("select_n", p, mk("exp", a), mk("exp", b)))
    assert len(ms) == 1
    assert eg.dtype(build(ms[0], eg)[0]) == "float64"


# -- scalars, literals, attributes of elementwise ops


@pytest.mark.parametrize(("value", "count"), [(2.0, 1), (3.0, 0), (-2.0, 0), (math.nan, 0)])
def test_a_literal_matches_its_own_value_alone(value: float, count: int) -> None:
    root = mk("mul", var("a", 3), spread(literal(value, "float64"), (3,)))
    assert len(site(parse("twice: A[*a]\n  A * 2  ==  A + A"), root)[1]) == count


@pytest.mark.parametrize(("second", "count"), [("exp", 1), ("tanh", 0)])
def test_one_name_of_a_function_is_one_function(second: str, count: int) -> None:
    root = mk("select_n", var("p", 3, dtype="bool"), mk("exp", var("a", 3)), mk(second, var("b", 3)))
    assert len(site(by_name("select-ew"), root)[1]) == count


def test_partners_are_searched_in_an_e_graph_alone() -> None:
    rule = by_name("dot-merge")
    a, b = var("a", 3, 4), var("b", 4, 5)
    with pytest.raises(RuleError, match="searched in an e-graph only"):
        list(matches(rule, IRSpace((dot(a, b),)), dot(a, b)))


def test_layouts_of_other_labels_are_not_arranged() -> None:
    x = var("x", 3, 4)
    assert arrange(IRTarget(), (x, (((0, 3),), ((1, 4),))), (((1, 4),), ((0, 3),)))[0].shape == (4, 3)
    with pytest.raises(BuildError, match="cannot arrange"):
        arrange(IRTarget(), (x, (((0, 3),), ((1, 4),))), (((0, 3),), ((2, 4),)))


def test_an_axis_stands_beside_those_of_its_labels_or_where_there_is_none() -> None:
    lay = (((0, 3),), (), ((1, 4), (2, 5)), ())
    assert [place_beside(lay, labels) for labels in ({0}, {2}, {7, 1}, {7})] == [0, 2, 2, 3]
    assert place_beside((((0, 3),),), {7}) is None


@pytest.mark.parametrize("value", [0.5, -math.inf])
def test_scalars_stand_for_their_broadcast(value: float) -> None:
    a, b = var("a", 3, 4), var("b", 3, 4)
    half = spread(literal(value, "float64"), (3, 4))
    root = mk("mul", mk("add", a, b), half)
    eg, ms = site(parse("d: A[*a]  B[*a]  S[*a]\n  (A + B) * S  ==  A * S + B * S"), root)
    assert ms
    arrays = arrays_of(root)
    for m in ms:
        assert error(values([root], arrays), values(node_of_ref(eg, build(m, eg)[0]), arrays)) < 1e-12


def test_scalar_scale_moves_into_a_single_axis_role() -> None:
    x, w = var("x", 1, 3, 5, 5), var("w", 4, 3, 3, 3, frozen=True)
    root = mk("mul", conv(x, w), spread(literal(0.25, "float64"), (1, 4, 5, 5)))
    eg, ms = site(by_name("conv-scale"), root)
    assert len(ms) == 1
    arrays = arrays_of(root)
    assert error(values([root], arrays), values(node_of_ref(eg, build(ms[0], eg)[0]), arrays)) < 1e-12


def test_literal_patterns_compare_values() -> None:
    rule = parse("relu: A[*a]\n  maximum(A, 0)  ==  where(gt(A, 0), A, 0)")
    a = var("a", 3)
    assert site(rule, mk("max", a, spread(literal(0.0, "float64"), (3,))))[1]
    assert not site(rule, mk("max", a, spread(literal(1.0, "float64"), (3,))))[1]
    assert not site(rule, mk("max", a, var("b", 3)))[1]


def test_attributes_of_elementwise_ops_are_compared() -> None:
    rule = parse("cube: A[*a]\n  A ** 3  ==  A * A * A")
    a = var("a", 3)
    assert site(rule, mk("integer_pow", a, y=3))[1]
    assert not site(rule, mk("integer_pow", a, y=2))[1]


def test_meta_variables_stand_for_one_op_with_its_attributes() -> None:
    rule = by_name("ew2-concat")
    a, b = var("a", 2), var("b", 3)
    joined = mk("concatenate", a, b, dimension=0)
    eg, ms = site(by_name("ew1-concat"), mk("integer_pow", joined, y=3))
    assert ms[0].metas["f"] == ("integer_pow", (("y", 3),))
    assert eg.shape(build(ms[0], eg)[0]) == (5,)
    assert rule.metas == {"f": 2}


def test_long_concatenations_match_as_first_and_rest() -> None:
    parts = [var(n, k, 2) for n, k in (("a", 1), ("b", 2), ("c", 3))]
    root = mk("exp", mk("concatenate", *parts, dimension=0))
    eg, ms = site(by_name("ew1-concat"), root)
    assert len(ms) == 1
    arrays = arrays_of(root)
    assert error(values([root], arrays), values(node_of_ref(eg, build(ms[0], eg)[0]), arrays)) < 1e-12


@pytest.mark.parametrize(
    ("text", "root"),
    [
        (
            "s: A[*a n]\n  slice(exp(A), n(s, e))  ==  exp(slice(A, n(s, e)))",
            mk("slice", mk("reshape", mk("exp", var("a", 2, 3)), new_sizes=(6,)), start_indices=(1,),
               limit_indices=(4,), strides=(1,)),
        ),
        (
            "c: A[*a n]  B[*a n2]\n  concat(exp(A), exp(B), n)  ==  exp(concat(A, B, n))",
            mk("concatenate", *[mk("reshape", mk("exp", var(x, 2, 3)), new_sizes=(6,)) for x in "ab"], dimension=0),
        ),
    ],
    ids=["slice", "concatenation"],
)  # fmt: skip
def test_ops_that_act_on_part_of_a_merged_axis_do_not_match(text: str, root: Node) -> None:
    stats = MatchStats()
    rule = parse(text)
    assert not site(rule, root, stats=stats)[1]
    assert stats.misses[rule.name, "an op acts on part of a merged axis"]


def test_a_tensor_that_is_read_twice_has_its_axes_at_the_same_places() -> None:
    rule = parse("t: A[*a n]  B[*a n]\n  A * B + A  ==  A * (B + 1)")
    a, b = var("a", 3, 3), var("b", 3, 3)
    turned = mk("transpose", a, permutation=(1, 0))
    assert site(rule, mk("add", mk("mul", a, b), a))[1]
    assert not site(rule, mk("add", mk("mul", a, b), turned))[1]


# -- several roots, preferences, counters


def test_partners_are_found_among_readers_of_the_shared_operand() -> None:
    rule = by_name("dot-merge")
    x = var("x", 4, 6)
    ws = [var(f"w{i}", 6, 3 + i, frozen=True) for i in range(3)]
    stored = var("t", 5, 6, frozen=True)  # the other way round
    heads = mk("reshape", x, new_sizes=(2, 2, 6))  # read through a reshape
    roots = [*[dot(x, w) for w in ws], dot(x, stored, 1, 1), dot(heads, ws[0], 2, 0), dot(var("y", 4, 6), ws[1])]
    eg = egraph(*roots)
    others = {o for (o,) in partners(rule, eg, eg.roots[0])}
    assert {eg.find_class(r) for r in eg.roots[1:4]} <= {eg.find_class(o) for o in others}
    assert eg.find_class(eg.roots[5]) not in {eg.find_class(o) for o in others}
    arrays = arrays_of(*roots)
    ms = list(matches(rule, eg, eg.roots[0]))
    assert len(ms) >= 3
    for m in ms:
        left = values(node_of_ref(eg, *[r for r, _ in m.roots]), arrays)
        assert error(left, values(node_of_ref(eg, *build(m, eg)), arrays)) < 1e-9


def test_preferences_read_frozenness_sizes_and_readers() -> None:
    text = "r: A[*b *m *k]  B[*b *k n]  S[n]\n  dot(A, B, k) * S  ==  dot(A, B * S, k)\n  prefer "
    a, b, s = var("a", 2, 3), var("b", 3, 4, frozen=True), var("s", 4, frozen=True)
    product = dot(a, b)
    root = mk("mul", product, spread(s, (2, 4), 1))
    for condition, holds in {
        "frozen(B) and frozen(S)": True, "frozen(A)": False, "live(A), frozen(S)": True, "live(B) or n <= 4": True,
        "live(B)": False,
        "prod(k) <= 2": False, "not frozen(A)": True, "n < 4": False, "single(dot(A, B, k))": True, "single(A)": True,
    }.items():  # fmt: skip
        rule = parse(text + condition)
        assert bool(site(rule, root)[1]) is holds, condition
        assert site(rule, root, prefer=False)[1]
    both = egraph(root, mk("exp", product))
    single = parse(text + "single(dot(A, B, k))")
    assert not list(matches(single, both, both.roots[0]))


def test_near_misses_are_counted_with_reasons() -> None:
    stats = MatchStats()
    a, b, c = var("a", 7, 3, 4), var("b", 4, 5), var("c", 7, 5, 6)
    root = mk("dot_general", dot(a, b, 2, 0), c, dimension_numbers=(((2,), (1,)), ((0,), (0,))))
    _, ms = site(by_name("dot-assoc"), root, stats=stats)
    assert not ms  # an axis in A and C but not in B has no role
    assert stats.misses["dot-assoc", "an axis has no role"] == 1
    site(by_name("dot-assoc"), mk("exp", a), stats=stats)
    assert stats.attempts["dot-assoc"] == 2
    assert stats.structural["dot-assoc"] == 1


def test_free_parameters_are_tried_where_conditions_hold() -> None:
    rule = parse(
        "blocked: q in 2|4|8  A[*a n]  extra o i\n"
        "  cumsum(A, n)  ==  merge(cumsum(S, i) + (cumsum(T, o) - T), o, i, n)\n"
        "  with S = split(A, n, o, i(q))\n  with T = sum(S, i)\n  if n % q == 0, q < n"
    )
    root = mk("cumsum", var("x", 3, 8), axis=1)
    eg, ms = site(rule, root)
    assert [m.env.params["q"] for m in ms] == [2, 4]
    arrays = arrays_of(root)
    for m in ms:
        assert error(values([root], arrays), values(node_of_ref(eg, build(m, eg)[0]), arrays)) < 1e-12
    assert not site(rule, mk("cumsum", var("x", 3, 8), axis=1, reverse=True))[1]


# -- building


def test_building_wrong_types_fails() -> None:
    wrong = parse("w: A[*a]  extra *k\n  sum(bcast(A, k), k)  ==  A")
    a = var("a", 3)
    _, ms = site(wrong, mk("reduce_sum", spread(a, (3, 4), 0), axes=(1,)))
    assert ms  # the types agree: it is the proof that refuses this rule
    short = parse("s: A[*a n]\n  slice(exp(A), n(s, e))  ==  exp(slice(A, n(s, e - 1)))")
    eg, ms = site(short, mk("slice", mk("exp", a), start_indices=(0,), limit_indices=(2,), strides=(1,)))
    with pytest.raises(BuildError, match="the root is"):
        build(ms[0], eg)


def test_lay_vanishes_in_the_egraph_and_orders_the_ir() -> None:
    rule = parse(
        "nhwc: X[*b c *s]  W[o c *s2]\n  conv(X, W, c, s(t, p, q, u, d))\n"
        "    == lay(conv(lay(X, b, s, c), lay(W, s, c, o), c, s(t, p, q, u, d)), b, s, o)"
    )
    node = conv(var("x", 2, 3, 5, 5), var("w", 4, 3, 3, 3))
    eg, ms = site(rule, node)
    assert {eg.find(build(m, eg)[0]) for m in ms} == {eg.find(eg.roots[0])}
    new = expand_macro(rule, node)
    (inner,) = [n for n in topological([new]) if n.op == "conv_general_dilated"]
    assert inner["dimension_numbers"] == NHWC
    assert new.op == "transpose"
    arrays = arrays_of(node)
    assert error(values([node], arrays), values([new], arrays)) < 1e-9


@pytest.mark.parametrize(
    ("name", "node", "forbidden"),
    [
        ("depthwise-shifts", conv(var("x", 1, 6, 6, 8), var("w", 3, 3, 1, 8), NHWC, 8), {"transpose"}),
        ("depthwise-shifts", conv(var("x", 1, 8, 6, 6), var("w", 8, 1, 3, 3), NCHW, 8, 2), {"transpose"}),
        ("conv-shifted-dots", conv(var("x", 1, 6, 6, 8), var("w", 3, 3, 8, 5), NHWC), {"transpose"}),
        ("conv-shifted-dots", conv(var("x", 1, 8, 6, 6), var("w", 5, 8, 3, 3)), {"transpose"}),
        ("conv-shifted-dots", conv(var("x", 2, 6, 6, 8), var("w", 3, 3, 2, 12), NHWC, 4, 2), set()),
        ("wmax-shifts", mk("reduce_window_max", var("x", 1, 7, 7, 4), window_dimensions=(1, 3, 3, 1),
                           window_strides=(1, 2, 2, 1), padding=((0, 0), (1, 1), (1, 1), (0, 0))),
         {"transpose", "reshape"}),
        ("dot-unrolled", dot(var("x", 5, 3), var("w", 4, 3), 1, 1), {"transpose", "dot_general"}),
        ("depthwise-shifts", conv(mk("transpose", var("x", 6, 6, 8, 1), permutation=(3, 0, 1, 2)),
                                  var("w", 3, 3, 1, 8), NHWC, 8), set()),
    ],
)  # fmt: skip
def test_macros_expand_in_physical_layouts(name: str, node: Node, forbidden: set[str]) -> None:
    new = expand_macro(by_name(name), node)
    assert new.type == node.type
    assert not forbidden & {n.op for n in topological([new])}
    assert node.op not in {n.op for n in topological([new])} - set(forbidden)
    arrays = arrays_of(node)
    assert error(values([node], arrays), values([new], arrays)) < 1e-9


def test_macro_of_another_op_is_refused() -> None:
    with pytest.raises(BuildError, match="does not match"):
        expand_macro(by_name("depthwise-shifts"), conv(var("x", 1, 4, 6, 6), var("w", 5, 4, 3, 3)))
