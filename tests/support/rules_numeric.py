"""Small graphs, and comparing them numerically, for the rule tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rewrites.build.target import IRTarget
from rewrites.build.terms import build
from rewrites.egraph.convert import import_graph
from rewrites.egraph.graph import EGraph, Ref
from rewrites.language.term import Rule
from rewrites.lift.generate import Instance
from rewrites.match.matching import Match, matches
from rewrites.match.space import IRSpace
from superopt.ir.graph import Graph, Node, make_input, mk, topological
from superopt.ir.interp import evaluate
from tests.support.oracles import extract_any

Arrays = Mapping[str, np.ndarray]
NCHW = ((0, 1, 2, 3),) * 3
NHWC = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))


def var(name: str, *shape: int, dtype: str = "float64", frozen: bool = False) -> Node:
    return make_input(name, shape, dtype, frozen=frozen)


def dot(a: Node, b: Node, lc: int = 1, rc: int = 0, **attrs: Any) -> Node:
    return mk("dot_general", a, b, dimension_numbers=(((lc,), (rc,)), ((), ())), **attrs)


def conv(x: Node, w: Node, dims: object = NCHW, groups: int = 1, stride: int = 1, pad: int = 1) -> Node:
    return mk(
        "conv_general_dilated", x, w, window_strides=(stride,) * 2, padding=((pad, pad),) * 2,
        dimension_numbers=dims, feature_group_count=groups,
    )  # fmt: skip


def frozen_conv(x: Node, name: str, outputs: int, groups: int = 1) -> Node:
    """A padded 3x3 convolution by a frozen kernel."""
    return conv(x, var(name, outputs, int(x.shape[1]) // groups, 3, 3, frozen=True), groups=groups)


def spread(x: Node, shape: tuple[int, ...], *dims: int) -> Node:
    return mk("broadcast_in_dim", x, shape=shape, broadcast_dimensions=dims)


def egraph(*roots: Node) -> EGraph:
    return import_graph(Graph(tuple(n for n in topological(roots) if n.op == "input"), roots))


def values(roots: Sequence[Node], arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Values of nodes."""
    inputs = tuple(n for n in topological(roots) if n.op == "input")
    graph = Graph(inputs, tuple(roots))
    return tuple(np.asarray(v) for v in evaluate(graph, {n["name"]: arrays[n["name"]] for n in inputs}))


def error(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
    """Largest relative difference; equal infinities and NaNs count as equal."""
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        if x.dtype == bool:
            worst = max(worst, float(np.any(x != y)))
            continue
        with np.errstate(all="ignore"):
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            worst = max(worst, float(np.max(np.where(same, 0, np.abs(x - y) / (1 + np.abs(x))), initial=0)))
    return worst


def egraph_of(instance: Instance) -> EGraph:
    """The e-graph of an instance's left side."""
    return import_graph(Graph(tuple(instance.inputs.values()), instance.lhs))


def node_of_ref(eg: EGraph, *refs: Ref) -> list[Node]:
    """IR nodes of references: the oldest e-node of every class."""
    memo: dict[int, Node] = {}
    return [extract_any(eg, ref, lambda c: eg.enodes(c)[0], memo) for ref in refs]


def check_egraph(rule: Rule, instance: Instance, arrays: Arrays) -> tuple[int, float]:
    """Matches on the e-graph of the left side, and the worst error of the right sides built there."""
    eg = egraph_of(instance)
    found = list(matches(rule, eg, *eg.roots, prefer=False, dtypes=("float64",)))
    worst = 0.0
    for m in found:
        left = values(node_of_ref(eg, *[ref for ref, _ in m.roots]), arrays)
        worst = max(worst, error(left, values(node_of_ref(eg, *build(m, eg)), arrays)))
    return len(found), worst


def check_ir(rule: Rule, instance: Instance, arrays: Arrays) -> tuple[int, float]:
    """Matches on the nodes of the left side, and the worst error of the right sides built."""
    found: list[Match] = list(matches(rule, IRSpace(instance.lhs), *instance.lhs, prefer=False, dtypes=("float64",)))
    worst = 0.0
    for m in found:
        left = values([node for node, _ in m.roots], arrays)
        worst = max(worst, error(left, values(build(m, IRTarget()), arrays)))
    return len(found), worst


def arrays_of(*roots: Node) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        n["name"]: np.asarray(rng.standard_normal([int(str(k)) for k in n.shape]) + 2.5, n.dtype)
        for n in topological(roots)
        if n.op == "input"
    }
