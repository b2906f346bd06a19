"""Whole graphs: after rewriting with the library, every e-node has the value of its class."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rewrites.build.terms import build
from rewrites.egraph.convert import node_of
from rewrites.egraph.graph import EGraph
from rewrites.egraph.perm import PERM_BITS, perm_of
from rewrites.library import load
from rewrites.match.matching import matches
from superopt.ir.graph import Node, literal, make_input, mk
from tests.support.rules_numeric import arrays_of, conv, dot, egraph, error, spread, values, var


def attention() -> Node:
    x = var("x", 6, 8)
    names = ("q", "k", "v")
    q, k, v = (
        mk("transpose", mk("reshape", dot(x, var(n, 8, 8, frozen=True)), new_sizes=(6, 2, 4)), permutation=(1, 0, 2))
        for n in names
    )
    scores = mk("dot_general", q, k, dimension_numbers=(((2,), (2,)), ((0,), (0,))))
    scores = mk("mul", scores, spread(literal(0.5, "float64"), (2, 6, 6)))
    e = mk("exp", mk("sub", scores, spread(mk("reduce_max", scores, axes=(2,)), (2, 6, 6), 0, 1)))
    p = mk("div", e, spread(mk("reduce_sum", e, axes=(2,)), (2, 6, 6), 0, 1))
    out = mk("dot_general", p, v, dimension_numbers=(((2,), (1,)), ((0,), (0,))))
    out = mk("reshape", mk("transpose", out, permutation=(1, 0, 2)), new_sizes=(6, 8))
    return mk("add", x, dot(out, var("o", 8, 8, frozen=True)))


def bottleneck() -> Node:
    def norm(y: Node, name: str) -> Node:
        def vector(kind: str) -> Node:
            return spread(var(f"{kind}{name}", y.shape[1], frozen=True), y.shape, 1)

        y = mk("add", mk("mul", mk("sub", y, vector("m")), vector("s")), vector("b"))
        return mk("max", y, spread(literal(0.0, "float64"), y.shape))

    x = var("x", 1, 4, 6, 6)
    y = norm(conv(x, var("w1", 8, 4, 1, 1, frozen=True), pad=0), "1")
    y = norm(conv(y, var("w2", 8, 1, 3, 3, frozen=True), groups=8), "2")
    y = norm(conv(y, var("w3", 4, 8, 1, 1, frozen=True), pad=0), "3")
    y = mk("add", x, y)
    return mk("reduce_window_max", y, window_dimensions=(1, 1, 3, 3), window_strides=(1, 1, 2, 2),
              padding=((0, 0), (0, 0), (1, 1), (1, 1)))  # fmt: skip


@pytest.mark.parametrize("make", [attention, bottleneck])
def test_every_enode_equals_its_class_after_rewriting(make: Callable[[], Node]) -> None:
    """Two rounds of the library; every e-node is then evaluated on the values of its child classes."""
    root = make()
    eg = egraph(root)
    rules = [r for r in load() if r.mode in ("saturate", "merge")]
    hits = 0
    for _ in range(2):
        found = []
        for cls in eg.classes():
            ops = {eg.op_of(e) for e in eg.enodes(cls)}
            for rule in rules:
                if rule.heads & ops:
                    found += list(matches(rule, eg, cls << PERM_BITS))
        for m in found:
            for (old, _), new in zip(m.roots, build(m, eg), strict=True):
                hits += eg.union(old, new)
        eg.rebuild()
    assert hits > 5
    arrays = arrays_of(root)
    check_all_enodes(eg, arrays)


def check_all_enodes(eg: EGraph, arrays: dict[str, np.ndarray]) -> None:
    """Evaluate every e-node on the values of its child classes."""
    known: dict[int, np.ndarray] = {}
    todo = {cls: list(eg.enodes(cls)) for cls in eg.classes()}

    def evaluate(cls: int, enode: tuple[int, ...]) -> np.ndarray:
        leaves, env = [], dict(arrays)
        for i, child in enumerate(enode[1:]):
            ref = eg.find(child)
            value = extract_value(ref, known[ref >> PERM_BITS])
            leaves.append(make_input(f"@{i}", value.shape, eg.dtype(ref)))
            env[f"@{i}"] = value
        node = node_of(eg, enode, leaves)
        (value,) = values([node], env)
        own = eg.perm_from(enode, cls << PERM_BITS)
        return value if not own else np.transpose(value, perm_of(own, value.ndim))

    def extract_value(ref: int, value: np.ndarray) -> np.ndarray:
        p = ref & ((1 << PERM_BITS) - 1)
        return np.transpose(value, perm_of(p, value.ndim)) if p else value

    progress = True
    checked = 0
    while todo and progress:
        progress = False
        for cls in list(todo):
            for enode in list(todo[cls]):
                if any(eg.find(c) >> PERM_BITS not in known for c in enode[1:]):
                    continue
                value = evaluate(cls, enode)
                todo[cls].remove(enode)
                progress = True
                checked += 1
                if cls in known:
                    assert error([known[cls]], [value]) < 1e-7, (eg.op_of(enode), eg.attrs_of(enode))
                else:
                    known[cls] = value
            if not todo[cls]:
                del todo[cls]
    assert not todo
    assert checked == sum(len(eg.enodes(c)) for c in eg.classes())
