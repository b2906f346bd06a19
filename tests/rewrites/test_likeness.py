"""Classes that look alike to a pattern are matched once, and nothing is missed by that."""

from __future__ import annotations

from typing import Any

import pytest

from rewrites.egraph.convert import import_graph
from rewrites.egraph.perm import PERM_BITS
from rewrites.grow import growth
from rewrites.grow.growth import grow
from rewrites.language.parse import parse
from rewrites.library import load
from rewrites.match import walk
from rewrites.match.likeness import Likeness, names_once
from rewrites.match.matching import matches, may_match
from rewrites.match.space import space_of
from rewrites.match.walk import Walk
from superopt.ir.graph import Graph, Node, make_input, mk
from tests.support.egraph_programs import PROGRAMS, program

TWICE = """
double: A[*a]  B[*a]
  (A + B) + A  ==  A + A + B
"""
ASSOCIATE = """
associate: A[*a]  B[*a]  C[*a]
  (A + B) + C  ==  A + (B + C)
"""
DEEP = """
deep: A[*a]  B[*a]  C[*a]  D[*a]
  (A + B) + ((C + D) + (A + A))  ==  A + A + A + B + C + D
"""
ONCE = """
turned: A[*a]  B[*a]
  A + B  ==  B + A
"""


def _stack(layers: int) -> Graph:
    x = h = make_input("x", (4, 8))
    inputs = [x]
    for i in range(layers):
        w, b = make_input(f"w{i}", (8, 8), frozen=True), make_input(f"b{i}", (8,), frozen=True)
        inputs += [w, b]
        h = mk("tanh", mk("add", _product(h, w), mk("broadcast_in_dim", b, shape=(4, 8), broadcast_dimensions=(1,))))
    return Graph(tuple(inputs), (h,))


def test_layers_that_are_equal_look_alike() -> None:
    eg = import_graph(_stack(6))
    likeness, space = Likeness(), space_of(eg)
    products = [ref >> PERM_BITS for ref in eg.roots]
    numbers: list[int] = []
    cls = products[0]
    for _ in range(5):
        numbers.append(likeness.of(space, cls, 2))
        tanh = next(iter(eg.enodes(cls)))
        add = next(iter(eg.enodes(eg.find(tanh[1]) >> PERM_BITS)))
        kids = [eg.find(r) >> PERM_BITS for r in add[1:]]
        dot = next(k for k in kids if any(eg.op_of(n) == "dot_general" for n in eg.enodes(k)))
        node = next(iter(eg.enodes(dot)))
        cls = next(c for c in (eg.find(r) >> PERM_BITS for r in node[1:]) if not eg.frozen(c << PERM_BITS))
    assert len(set(numbers)) == 1, "the layers differ in nothing but their weights"
    assert likeness.of(space, cls, 2) != numbers[0], "the first layer's operand is an input"


def test_equal_layers_cost_the_attempts_of_one() -> None:
    rules = load()
    structural: list[int] = []
    for layers in (4, 8):
        report = grow(import_graph(_stack(layers)), rules)
        structural.append(sum(c.structure - c.matches for c in report.rules.values()))
    assert structural[1] <= structural[0], "attempts that fail do not grow with the layers"


@pytest.mark.parametrize("name", PROGRAMS)
def test_growth_finds_as_much_without_likeness(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = load()
    sizes: list[tuple[int, int]] = []
    for once in (names_once, lambda rule: False):
        with monkeypatch.context() as patch:
            patch.setattr(growth, "names_once", once)
            eg = import_graph(program(name))
            grow(eg, rules)
            sizes.append((eg.enode_count, eg.class_count))
    assert sizes[0] == sizes[1]


def test_a_rule_that_names_a_tensor_twice_is_matched_everywhere() -> None:
    assert not names_once(parse(TWICE))
    assert names_once(parse(ONCE))


def test_a_walk_ends_after_a_number_of_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a class of many equal sums, a pattern that none of them fits tries any number without it."""
    (rule,) = [parse(DEEP)]
    total = make_input("x0", (2,))
    for i in range(1, 7):
        total = mk("add", total, make_input(f"x{i}", (2,)))
    eg = import_graph(Graph(tuple(make_input(f"x{i}", (2,)) for i in range(7)), (total,)))
    grow(eg, [parse(ASSOCIATE), parse(ONCE)])
    tried: list[int] = []
    kept = Walk._alternative

    def counted(self: Walk, *given: Any) -> Any:
        tried.append(self.steps)
        return kept(self, *given)

    monkeypatch.setattr(Walk, "_alternative", counted)
    monkeypatch.setattr(walk, "OPS_PER_WALK", 100)
    assert list(matches(rule, eg, eg.roots[0])) == []
    assert max(tried) >= 100, "there was more to try"
    assert len(tried) < 1_000


def test_a_broadcast_over_axes_that_a_condition_asks_for_must_be_there() -> None:
    (rule,) = [rule for rule in load() if rule.name == "product-of-outer-sum"]
    a, w = make_input("a", (4, 8)), make_input("w", (8, 8))
    b = make_input("b", (4, 8))
    eg = import_graph(Graph((a, b, w), (_product(mk("add", a, b), w),)))
    assert not may_match(rule, space_of(eg), eg.roots[0] >> PERM_BITS)


def _product(x: Node, w: Node) -> Node:
    return mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ())), precision=None,
              preferred_element_type="float32")  # fmt: skip
