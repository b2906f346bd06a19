"""Every op has every facet; a missing one fails here by name."""

from __future__ import annotations

import importlib.util
import zlib

import numpy as np
import pytest

from superopt.errors import InputError
from superopt.ir.check import check_graph
from superopt.ir.counters import graph_cost
from superopt.ir.expr import block
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import TABLE, canonical, result_types
from superopt.ir.text import parse_graph, print_graph
from tests.support import ir_cases

LEAVES = ("input", "literal")
WITHOUT_VALUE = ("input", "literal", "scan", "while", "cond", "opaque", "result")


def _graph(op: str) -> Graph:
    rng = np.random.default_rng(zlib.crc32(op.encode()) + 2)
    node = ir_cases.samples(op, rng, 1)[0]
    return Graph(tuple(n for n in topological([node]) if n.op == "input"), _single(node))


def _single(node: Node) -> tuple[Node, ...]:
    from superopt.ir.graph import mk

    return (node,) if len(node.types) == 1 else tuple(mk("result", node, index=j) for j in range(len(node.types)))


def type_rule(op: str) -> None:
    graph = _graph(op)
    check_graph(graph)
    for node in graph.nodes():
        assert result_types(node.op, node.inputs, node.attrs) == node.types
        assert repr(canonical(node.op, node.attrs)) == repr(node.attrs)


def denotation(op: str) -> None:
    assert (TABLE[op].at is None) == (op in WITHOUT_VALUE)
    if op not in WITHOUT_VALUE:
        (node,) = _graph(op).outputs
        iterators, expr = block(node)
        assert len(iterators) == len(node.shape)
        assert expr.dtype == node.dtype


def interpreter(op: str) -> None:
    graph = _graph(op)
    rng = np.random.default_rng(0)
    env = {n["name"]: ir_cases.array(n, rng, op) for n in graph.inputs}
    if op == "opaque":
        with pytest.raises(InputError, match="opaque"):
            evaluate(graph, env)
        return
    for value, node in zip(evaluate(graph, env), graph.outputs, strict=True):
        assert (value.shape, str(value.dtype)) == (node.shape, node.dtype)


def counter(op: str) -> None:
    cost = graph_cost(_graph(op))
    assert cost.flops >= 0
    assert cost.read_bytes >= 0
    if op not in (*LEAVES, "result"):
        assert cost.write_bytes >= sum(0 in n.shape for n in _graph(op).outputs) * 0


def text(op: str) -> None:
    graph = _graph(op)
    again = parse_graph(print_graph(graph))
    assert again.inputs == graph.inputs
    assert again.outputs == graph.outputs


def xla_lowering(op: str) -> None:
    if importlib.util.find_spec("superopt.backends.xla") is None:
        pytest.fail("superopt/backends/xla.py is gone")
    from superopt.backends import xla

    assert op in xla.LOWER or op in xla._CONTROL or op in ("input", "macro")  # macros are expanded before lowering


FACETS = [type_rule, denotation, interpreter, counter, text, xla_lowering]


@pytest.mark.parametrize("facet", FACETS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("op", list(TABLE))
def test_facet(op: str, facet: object) -> None:
    facet(op)
