"""Growth: modes of rules, hidden forms, limits, the index of what changed."""

from __future__ import annotations

import numpy as np
import pytest

from rewrites.build.terms import expand_macro
from rewrites.egraph.convert import import_graph
from rewrites.egraph.graph import EGraph
from rewrites.egraph.perm import PERM_BITS
from rewrites.grow import growth
from rewrites.grow.growth import GrowthLimits, grow
from rewrites.language.parse import parse_many
from rewrites.language.term import Rule
from rewrites.library import by_name, load
from rewrites.match import sites
from superopt.ir.graph import Graph, Node, make_input, mk
from superopt.ir.interp import evaluate
from superopt.machine.deadline import Deadline
from tests.support.egraph_checks import check_invariants, check_values
from tests.support.egraph_programs import PROGRAMS, dense, inputs_of, product, program


def _ops(eg: EGraph, ref: int) -> set[str]:
    return {eg.op_of(node) for node in eg.enodes(eg.find_class(ref))}


# ---- modes


@pytest.mark.parametrize(("dtype", "applied"), [("float32", True), ("bfloat16", False), ("float16", False)])
def test_products_of_half_types_are_not_rounded_before_they_are_added_up(dtype: str, applied: bool) -> None:
    a, b = make_input("a", (3, 5), dtype), make_input("b", (3, 5), dtype)
    numbers = (((1,), (1,)), ((0,), (0,)))
    root = mk("dot_general", a, b, dimension_numbers=numbers, preferred_element_type=dtype)
    rules = [by_name("sum-in-place-of-dot"), by_name("dot-unrolled")]
    report = grow(import_graph(Graph((a, b), (root,))), rules)
    assert [bool(report.rules[rule.name].unions) for rule in rules] == [applied, applied]


def test_siblings_become_slices_of_oneproduct() -> None:
    x = make_input("x", (6, 4))
    outs = tuple(dense(x, f"w{i}", size) for i, size in enumerate((3, 5, 2)))
    graph = Graph(inputs_of(*outs), outs)
    eg = import_graph(graph)
    report = grow(eg, [by_name("dot-merge")])
    assert report.stop == "saturated"
    sources = [
        {eg.find_class(node[1]) for node in eg.enodes(eg.find_class(root)) if eg.op_of(node) == "slice"}
        for root in eg.roots
    ]
    (product,) = set.union(*sources)
    assert all(source == {product} for source in sources)
    assert eg.shape(product << PERM_BITS) in ((6, 10), (10, 6))
    origins = {eg.origin[n] for root in eg.roots for n in eg.enodes(eg.find_class(root)) if n in eg.origin}
    assert len(origins) == 1, "the members are one rule instance"
    assert len(next(iter(origins)).roots) == 3
    check_invariants(eg)
    check_values(eg, graph, 0)
    size = eg.enode_count
    assert grow(eg, [by_name("dot-merge")]).enodes[-1] == size, "merged products are not merged again"


def test_siblings_of_two_windows_are_two_merges() -> None:
    x = make_input("x", (1, 3, 6, 6))
    outs: list[Node] = []
    for i, (size, window) in enumerate(((2, 1), (4, 3), (3, 1), (2, 3))):
        w = make_input(f"w{i}", (size, 3, window, window), frozen=True)
        pad = (window - 1) // 2
        outs.append(
            mk(
                "conv_general_dilated", x, w, window_strides=(1, 1), padding=((pad, pad),) * 2,
                dimension_numbers=((0, 1, 2, 3),) * 3,
            )
        )  # fmt: skip
    graph = Graph(inputs_of(*outs), tuple(outs))
    eg = import_graph(graph)
    grow(eg, [by_name("conv-merge")])
    origins = {
        origin.roots
        for root in eg.roots
        for node in eg.enodes(eg.find_class(root))
        if (origin := eg.origin.get(node)) is not None
    }
    first, second = eg.roots[0::2], eg.roots[1::2]
    assert {frozenset(map(eg.find_class, roots)) for roots in origins} == {
        frozenset(map(eg.find_class, first)),
        frozenset(map(eg.find_class, second)),
    }
    check_values(eg, graph, 0)


def test_a_product_and_its_scaled_self_are_no_siblings() -> None:
    x, s = make_input("x", (6, 4)), make_input("s", (3,), frozen=True)
    y = dense(x, "w", 3)
    scaled = mk("mul", y, mk("broadcast_in_dim", s, shape=(6, 3), broadcast_dimensions=(1,)))
    eg = import_graph(Graph(inputs_of(scaled), (y, scaled)))
    report = grow(eg, [by_name("dot-scale-in"), by_name("dot-merge")])
    assert "dot_general" in _ops(eg, eg.roots[1])
    assert report.rules["dot-merge"].unions == 0


def test_live_weights_are_not_merged() -> None:
    x, a, b = (make_input(name, (4, 4)) for name in "xab")
    eg = import_graph(Graph((x, a, b), (product(x, a), product(x, b))))
    assert grow(eg, [by_name("dot-merge")]).rules["dot-merge"].unions == 0


def test_a_macro_is_one_enode_that_expands_to_the_same_value() -> None:
    graph = program("depthwise")
    eg = import_graph(graph)
    report = grow(eg, [by_name("depthwise-shifts")])
    assert report.rules["depthwise-shifts"].unions == 1
    assert eg.enode_count == report.enodes[0] + 1
    (node,) = [n for cls in eg.classes() for n in eg.enodes(cls) if eg.op_of(n) == "macro"]
    cls = eg.ref_of(node) >> PERM_BITS
    assert _ops(eg, cls << PERM_BITS) == {"conv_general_dilated", "macro"}
    x, w = make_input("x", (1, 4, 6, 6)), make_input("w", (4, 1, 3, 3), frozen=True)
    conv = mk("conv_general_dilated", x, w, **dict(eg.values_of(node)["attrs"]))
    expanded = expand_macro(by_name("depthwise-shifts"), conv)
    rng = np.random.default_rng(0)
    values = {n["name"]: rng.standard_normal(n.shape).astype(np.float32) for n in (x, w)}
    got, want = evaluate([expanded, conv], values)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_dangerous_rules_fire_only_at_the_named_classes() -> None:
    x, y, z = (make_input(name, (3,)) for name in "xyz")
    one = mk("add", mk("add", x, y), z)
    two = mk("exp", mk("add", mk("add", z, y), x))
    eg = import_graph(Graph((x, y, z), (one, two)))
    rule = by_name("add-assoc")
    assert rule.mode == "near"
    assert grow(eg, [rule]).rules[rule.name].attempts == 0
    report = grow(eg, [rule], near=[eg.find_class(eg.roots[0])])
    assert report.rules[rule.name].unions >= 1
    changed = {eg.find_class(root) for _, _, origin in eg.unions if origin is not None for root in origin.roots}
    assert changed == {eg.find_class(eg.roots[0])}


# ---- forms that differ only in frozen operands


WAYS = """
minus: A[*a]  B[*a]
  A - B  ==  A + (-B)
  prefer frozen(B)

scale-of-difference: A[*a]  B[*a]  S[*a]
  (A - B) * S  ==  A * S - B * S
  prefer frozen(B) and frozen(S)
"""


def test_one_form_per_live_operand_stays_listed() -> None:
    """(x - m) s + b has several forms x s + (frozen); one of them is enough."""
    x = make_input("x", (6, 4))
    y: Node = x
    for op, name in (("sub", "m"), ("mul", "s"), ("add", "b")):
        vector = make_input(name, (4,), frozen=True)
        y = mk(op, y, mk("broadcast_in_dim", vector, shape=(6, 4), broadcast_dimensions=(1,)))
    graph = Graph(inputs_of(y), (y,))
    eg = import_graph(graph)
    report = grow(eg, [*load(), *parse_many(WAYS, "ways")])
    assert report.hidden >= 1
    root = eg.find_class(eg.roots[0])
    scaled = [n for n in eg.enodes(root) if n in eg.origin]
    live = [tuple(eg.find_class(c) for c in n[1:] if not eg.frozen(c)) for n in scaled]
    assert len(set(live)) == len(live)
    assert any(n not in eg.origin for n in eg.enodes(root)), "the program's own form is kept"
    check_invariants(eg)
    check_values(eg, graph, 0)


def test_a_hidden_form_is_still_found_and_survives_unions() -> None:
    eg = EGraph()
    x = eg.add("input", name="x", shape=(3,), dtype="float32", frozen=False)
    a, b = (eg.add("input", name=name, shape=(3,), dtype="float32", frozen=True) for name in "ab")
    first, second = eg.add("add", x, a), eg.add("add", x, b)
    eg.union(first, second)
    eg.rebuild()
    node = eg.enodes(eg.find_class(first))[1]
    eg.hide(node)
    assert len(eg.enodes(eg.find_class(first))) == 1
    assert eg.find(eg.add("add", x, b)) == eg.find(first)
    assert eg.find(eg.add("add", x, a)) == eg.find(first)
    eg.union(a, b)  # the hidden form and the listed one become the same
    eg.rebuild()
    assert len(eg.enodes(eg.find_class(first))) == 1
    check_invariants(eg)


# ---- the loop


EXPLODING = """
associate: A[*a]  B[*a]  C[*a]
  (A + B) + C  ==  A + (B + C)
"""


def _sum(terms: int) -> Graph:
    inputs = [make_input(f"x{i}", (2,)) for i in range(terms)]
    total = inputs[0]
    for x in inputs[1:]:
        total = mk("add", total, x)
    return Graph(tuple(inputs), (total,))


def _rules(text: str) -> tuple[Rule, ...]:
    return parse_many(text, "test")


@pytest.mark.parametrize(
    ("limits", "seconds", "stop"),
    [
        (GrowthLimits(enodes=300), 20.0, "enodes"),
        (GrowthLimits(enodes=10**6, per_rule=10**6), 0.2, "seconds"),
        (GrowthLimits(iterations=2), 20.0, "iterations"),
        (GrowthLimits(matches=50), 20.0, "matches"),
    ],
)
def test_growth_stops_at_a_limit_and_stays_consistent(limits: GrowthLimits, seconds: float, stop: str) -> None:
    graph = _sum(9)
    eg = import_graph(graph)
    report = grow(eg, _rules(EXPLODING), limits, deadline=Deadline.within(seconds))
    assert report.stop == stop
    assert report.seconds < seconds + 1.0
    assert eg.enode_count <= limits.enodes
    check_invariants(eg)
    if stop != "seconds":
        check_values(eg, graph, 0)
    x = eg.add("sin", eg.roots[0])
    assert eg.shape(x) == (2,), "the limits end with the growth"


def test_caps_per_class_and_per_rule_are_counted() -> None:
    eg = import_graph(_sum(7))
    report = grow(eg, _rules(EXPLODING), GrowthLimits(per_class=3))
    assert report.class_caps > 0
    # congruence may still unite classes below the cap
    eg = import_graph(_sum(7))
    report = grow(eg, _rules(EXPLODING), GrowthLimits(per_rule=5, iterations=3))
    assert report.rules["associate"].capped > 0


def test_the_index_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matching only where something changed reaches the same e-graph as matching everywhere."""
    for name in PROGRAMS:
        graph = program(name)
        sizes: list[tuple[int, int]] = []
        for everywhere in (False, True):
            with monkeypatch.context() as patch:
                if everywhere:
                    patch.setattr(sites, "affected", lambda eg, changed, most: dict.fromkeys(eg.classes(), 0))
                eg = import_graph(graph)
                report = grow(eg, load())
                sizes.append((eg.enode_count, eg.class_count))
                if not everywhere:
                    assert report.enodes[-1] == report.enodes[-2], f"{name}: the confirming pass found something"
        assert sizes[0] == sizes[1], name


def test_classes_that_turn_frozen_are_matched_again() -> None:
    """A rule that waits for a frozen operand fires when another rule shows that the operand is frozen."""
    x, w = make_input("x", (3,)), make_input("w", (3,), frozen=True)
    hidden = mk("sub", mk("add", x, w), x)
    y = mk("div", make_input("z", (3,)), hidden)
    rules = _rules(
        """
late: A[*a]  B[*a]
  (A + B) - A  ==  B

reciprocal: A[*a]  B[*a]
  A / B  ==  A * (1 / B)
  prefer frozen(B)
"""
    )
    eg = import_graph(Graph(inputs_of(y), (y,)))
    report = grow(eg, rules)
    assert report.rules["reciprocal"].unions == 1
    assert "mul" in _ops(eg, eg.roots[0])


def test_rules_that_state_normal_forms_are_left_to_the_constructors() -> None:
    laws = [rule for rule in load() if growth.is_law(rule)]
    assert len(laws) >= 20
    eg = import_graph(_sum(3))
    assert not grow(eg, laws).rules


def test_components_of_the_class_graph() -> None:
    eg = EGraph()
    x, y = (eg.add("input", name=name, shape=(2,), dtype="float32", frozen=False) for name in "xy")
    a, b = eg.add("sin", x), eg.add("cos", y)
    assert sites.components(eg) == []
    eg.union(a, y)
    eg.union(b, x)
    eg.rebuild()
    assert sites.components(eg) == [sorted({eg.find_class(x), eg.find_class(y)})]


def test_growth_is_deterministic() -> None:
    made: list[list[object]] = []
    for _ in range(2):
        eg = import_graph(program("gates"))
        grow(eg, load(), near=eg.classes())
        made.append([(node, eg.op_of(node), eg.attrs_of(node)) for cls in eg.classes() for node in eg.enodes(cls)])
    assert made[0] == made[1]


def test_what_nothing_used_is_matched_once_it_is_used() -> None:
    x = make_input("x", (3,))
    eg = import_graph(Graph((x,), (mk("exp", x),)))
    rules = _rules(
        """
doubled: A[*a]
  A + A  ==  2.0 * A
"""
    )
    ref = eg.roots[0]
    (node,) = eg.enodes(eg.find_class(ref))
    aside = eg.add("neg", eg.add("add", node[1], node[1]))
    assert not grow(eg, rules).rules["doubled"].unions
    eg.union(ref, aside)
    eg.rebuild()
    assert grow(eg, rules, near=()).rules["doubled"].unions
