"""Every op has every facet; a missing one fails here by name.

What an op is to JAX, XLA, the rule language, the e-graph, the cost model and our kernels is read from its entry: a new
entry that one of them cannot read is named here.
"""

from __future__ import annotations

import zlib

import jax
import numpy as np
import pytest

from costmodel.features.counts import INDEX, unit
from costmodel.features.node_rows import OPCODES, opcode, row
from rewrites.egraph.convert import import_graph
from rewrites.language import names
from superopt.backends.lower import LOWER, dtype_of
from superopt.backends.xla import _CONTROL, to_jax
from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.check import check_graph
from superopt.ir.counters import graph_cost
from superopt.ir.expr import block
from superopt.ir.graph import Graph, Node, mk, topological
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import TABLE, canonical, result_types
from superopt.ir.text import parse_graph, print_graph
from superopt.kernels.choose.defaults import default
from superopt.kernels.choose.partition import partition
from superopt.kernels.emit.generate import generate
from superopt.kernels.loops.program import from_graph
from tests.support import ir_cases

LEAVES = ("input", "literal")
WITHOUT_VALUE = ("input", "literal", "scan", "while", "cond", "opaque", "result")
WRITTEN_OTHERWISE = {"regroup"}  # in JAX, a transpose and a reshape


def _graph(op: str) -> Graph:
    return _graphs(op, 1)[0]


def _graphs(op: str, count: int) -> list[Graph]:
    nodes = ir_cases.samples(op, np.random.default_rng(zlib.crc32(op.encode()) + 2), count)
    return [Graph(tuple(n for n in topological([x]) if n.op == "input"), _single(x)) for x in nodes[:count]]


def _single(node: Node) -> tuple[Node, ...]:
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
    assert op in LOWER or op in _CONTROL or op in ("input", "macro")  # macros are expanded before lowering


def jax_import(op: str) -> None:
    """A function that XLA runs for the op is imported as the op, or as others that stand for it; never opaque."""
    if op in (*LEAVES, "opaque", "macro", "barrier"):  # not equations; a barrier is of our own making
        return
    found = set[str]()
    for graph in _graphs(op, 10):  # some change nothing, and are no equation
        args = [jax.ShapeDtypeStruct(n.shape, dtype_of(n["dtype"])) for n in graph.inputs]
        with jax.enable_x64():
            found |= {n.op for n in import_function(to_jax(graph), args).graph.nodes()}
    assert "opaque" not in found
    assert op in found or op in WRITTEN_OTHERWISE


def rule_language(op: str) -> None:
    if TABLE[op].family == "elementwise":
        assert op in names.ELEMENTWISE
        assert names.TEXT_NAME.get(op, op) in names.IN_TEXT or op in ("select_n", "convert_element_type")


def egraph(op: str) -> None:
    """An op goes into the e-graph and comes out as what it was, or as its normal form."""
    if op in LEAVES or op == "macro":
        return
    graph = _graph(op)
    eg = import_graph(graph)
    assert [eg.shape(ref) for ref in eg.roots] == [n.shape for n in graph.outputs]


def cost_features(op: str) -> None:
    node = _graph(op).outputs[0]
    assert OPCODES[opcode(node)] == node.op
    assert np.isfinite(row(node)).all()
    if TABLE[op].family == "elementwise":
        assert unit(node).feature in INDEX


def kernel(op: str) -> None:
    """A kernel of the op alone is built, or the partition leaves the op to XLA."""
    graph = _graph(op)
    for region in partition(graph):
        generate(default(from_graph(region.graph.outputs)))


FACETS = [
    type_rule, denotation, interpreter, counter, text, xla_lowering, jax_import, rule_language, egraph, cost_features,
    kernel,
]  # fmt: skip


@pytest.mark.parametrize("facet", FACETS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("op", list(TABLE))
def test_facet(op: str, facet: object) -> None:
    facet(op)
