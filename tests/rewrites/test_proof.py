"""An e-graph with proofs: terms of classes, and the rule instances on which an equality rests."""

from __future__ import annotations

import numpy as np
import pytest

from rewrites.egraph.convert import import_into
from rewrites.egraph.perm import PERM_BITS
from rewrites.grow.growth import grow
from rewrites.grow.proof import ProvingEGraph
from rewrites.library import by_name
from superopt.ir.build import dot, tensor
from superopt.ir.graph import Graph, mk
from superopt.ir.interp import evaluate

RNG = np.random.default_rng(0)
A, B, V = tensor("a", 5, 6), tensor("b", 6, 7), tensor("v", 7, 1)
CHAIN = Graph((A, B, V), (dot(dot(A, B, ((1,), (0,))), V, ((1,), (0,))),))


@pytest.mark.parametrize("turned", [False, True])
def test_the_term_of_a_class_is_the_one_with_which_it_was_born(turned: bool) -> None:
    x, y = tensor("x", 4, 4), tensor("y", 4, 4)
    shared = mk("exp", mk("transpose", x, permutation=(1, 0)) if turned else x)
    graph = Graph((x, y), (mk("add", mk("mul", shared, y), mk("tanh", shared)), shared))
    eg = import_into(ProvingEGraph(), graph)
    given = {name: RNG.standard_normal((4, 4)).astype(np.float32) for name in "xy"}
    terms = Graph(graph.inputs, tuple(eg.term(ref) for ref in eg.roots))
    for found, wanted in zip(evaluate(terms, given), evaluate(graph, given), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_an_equality_rests_on_the_instances_that_lead_to_it() -> None:
    eg = import_into(ProvingEGraph(), CHAIN)
    before = eg.term(eg.roots[0])
    grow(eg, [by_name("dot-assoc")])
    assert eg.term(eg.roots[0]) == before, "whatever the class holds later"
    root = eg.find(eg.roots[0]) >> PERM_BITS
    found = {
        enode: {step.match.rule.name for step in eg.explain([*eg.selected(enode), (eg.roots[0] >> PERM_BITS, root)])}
        for enode in eg.enodes(root)
    }
    assert len(found) > 1
    for enode, rules in found.items():
        assert rules == (set() if eg.origin.get(enode) is None else {"dot-assoc"})
    assert eg.explain([(root, root)]) == []
    leaf = eg.find(next(iter(eg.inputs.values()))) >> PERM_BITS
    assert eg.explain([(root, leaf)]) == [], "they are not equal"
