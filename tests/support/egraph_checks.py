"""What every e-graph must satisfy, choices of e-nodes to evaluate, and other terms of equal value."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from rewrites.egraph.graph import EGraph, ENode
from rewrites.egraph.perm import PERM_BITS, PERM_MASK
from superopt.ir.graph import Graph, Node
from superopt.ir.interp import evaluate
from tests.support.egraph_random import arrays
from tests.support.oracles import extract_any

Rng = random.Random


def check_invariants(eg: EGraph) -> None:
    """The e-graph is canonical and congruent: every e-node once, parents complete, children roots."""
    listed: dict[ENode, int] = {}
    for cls in eg.classes():
        for node in eg.enodes(cls):
            assert node not in listed, "an e-node stands in two classes"
            listed[node] = cls
            assert eg.ref_of(node) >> PERM_BITS == cls
    unlisted = 0
    for node, ref in eg._hashcons.items():
        canonical, p = eg.canonical(node)
        assert canonical == node
        assert p == 0, "a stored e-node is not canonical"
        cls = eg.find(ref) >> PERM_BITS
        if node in eg._hidden or any(eg.find(child) >> PERM_BITS == cls for child in node[1:]):
            assert node not in listed
            unlisted += 1
        else:
            assert listed[node] == cls
        for child in node[1:]:
            assert eg.find(child) == child
            assert node in eg.parents(child >> PERM_BITS), "a child does not know its parent"
    assert len(listed) + unlisted == len(eg._hashcons)
    assert eg._hidden <= eg._hashcons.keys()
    for cls in eg.classes():
        assert eg.enodes(cls), "an empty class"
        for node in eg.parents(cls):
            assert any(child >> PERM_BITS == cls for child in node[1:])
        expected = any(eg._is_frozen(node, eg._ops[node[0]]) for node in eg.enodes(cls))
        assert eg.frozen(cls << PERM_BITS) == expected, "the frozen analysis is out of date"


def acyclic_choice(eg: EGraph, rng: Rng) -> dict[int, ENode]:
    """A random choice of e-nodes without cycles: classes become ready in random order."""
    choice: dict[int, ENode] = {}
    waiting = eg.classes()
    while waiting:
        rng.shuffle(waiting)
        left: list[int] = []
        for cls in waiting:
            ready = [n for n in eg.enodes(cls) if all(eg.find_class(c) in choice for c in n[1:])]
            if ready:
                choice[cls] = rng.choice(ready)
            else:
                left.append(cls)
        assert len(left) < len(waiting), "a class without a finite term"
        waiting = left
    return choice


def every_enode(eg: EGraph, rng: Rng) -> list[tuple[int, ENode, Node, Node]]:
    """For each e-node the node of its class by some choice, and the node of the class through that e-node."""
    choice = acyclic_choice(eg, rng)
    memo: dict[int, Node] = {}
    out: list[tuple[int, ENode, Node, Node]] = []
    for cls in eg.classes():
        extract_any(eg, cls << PERM_BITS, choice.__getitem__, memo)
    for cls in eg.classes():
        base = memo[cls]
        for node in eg.enodes(cls):
            if node != choice[cls]:
                through = dict(memo)
                del through[cls]
                forced: Any = {**choice, cls: node}
                out.append((cls, node, base, extract_any(eg, cls << PERM_BITS, forced.__getitem__, through)))
    return out


def natural(ref: int) -> int:
    """The class of a reference as a reference."""
    return ref & ~PERM_MASK


def import_over(eg: EGraph, graph: Graph, inputs: dict[str, int]) -> dict[Node, int]:
    """References to the nodes of a program over given references for its inputs."""
    refs: dict[Node, int] = {node: inputs[node["name"]] for node in graph.inputs}
    for node in graph.nodes():
        if node not in refs:
            refs[node] = eg.add_node(node.op, [refs[x] for x in node.inputs], node.attrs)
    return refs


def variant(eg: EGraph, ref: int, rng: Rng) -> int:
    """Another term with the same value, whose class may have another order of axes; inserted without normal forms."""
    shape = eg.shape(ref)
    rank = len(shape)
    if not rank or rng.random() < 0.2:
        return eg.insert("max", (), (ref, ref))
    # times ones along some batch axes: these come first in the natural order of a product
    batch = rng.sample(range(rank), rng.randint(1, rank))
    sizes = tuple(shape[a] for a in batch)
    ones = eg.add(
        "broadcast_in_dim", eg.add("literal", value=1.0, dtype="float32"), shape=sizes, broadcast_dimensions=()
    )
    axes = tuple(range(len(batch)))
    numbers = (((), ()), (tuple(batch), axes))
    product = eg.add("dot_general", ref, ones, dimension_numbers=numbers)
    order = [*batch, *[a for a in range(rank) if a not in batch]]
    return eg.transpose(product, [order.index(a) for a in range(rank)])


def check_values(eg: EGraph, graph: Graph, seed: int, tolerance: float = 2e-4) -> int:
    """Compare every e-node with its class and the roots with the program; how many e-nodes were compared."""
    rng = random.Random(seed)
    values = arrays(graph, seed)
    items = every_enode(eg, rng)
    found = evaluate([node for _, _, *both in items for node in both], values, wide=True)
    for (cls, enode, _, _), want, got in zip(items, found[::2], found[1::2], strict=True):
        context = f"class {cls}, {eg.op_of(enode)} {eg.attrs_of(enode)} by {eg.origin.get(enode)}"
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True, err_msg=context)
    choice = acyclic_choice(eg, rng)
    roots = [extract_any(eg, root, choice.__getitem__) for root in eg.roots]
    for got, want in zip(evaluate(roots, values, wide=True), evaluate(graph, values, wide=True), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    return len(items)
