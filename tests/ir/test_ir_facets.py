"""Every op has every facet; a missing one fails here by name.

What an op is to JAX, XLA, the rule language, the e-graph, the cost model and our kernels is read from its entry: a new
entry that one of them cannot read is named here.
"""

from __future__ import annotations

import zlib
from functools import partial
from math import prod
from typing import Any

import jax
import numpy as np
import pytest

from costmodel.features import steps
from costmodel.features.counts import INDEX, root, unit
from costmodel.features.node_rows import OPCODES, opcode, row
from costmodel.features.steps import HEAVY
from rewrites.egraph.convert import import_graph, transposed
from rewrites.language import names
from rewrites.language.parse import parse
from rewrites.language.term import PHYSICAL, REDUCERS, physical
from rewrites.language.term import term as term_of
from rewrites.lift.lifting import Unliftable, lift
from rewrites.match.flow import OpSite, flow
from rewrites.match.labels import Labels
from superopt.backends.lower import LOWER, dtype_of
from superopt.backends.xla import _CONTROL, to_jax
from superopt.errors import InputError, ShapeError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.check import check_graph
from superopt.ir.counters import graph_cost
from superopt.ir.expr import block
from superopt.ir.graph import Graph, Node, literal, make_input, mk, topological
from superopt.ir.interp import evaluate
from superopt.ir.ops.axes import Along
from superopt.ir.ops.reduction import ARG, CUMULATIVE, REDUCE, WINDOW
from superopt.ir.ops.table import ELEMENTWISE, PRODUCTS, TABLE, canonical, result_types
from superopt.ir.text import parse_graph, print_graph
from superopt.kernels.choose.defaults import default
from superopt.kernels.choose.partition import partition
from superopt.kernels.emit.generate import generate
from superopt.kernels.loops.program import from_graph
from superopt.search.emit import build
from superopt.search.layout import wanted
from superopt.search.snapshot import Forms
from tests.support import ir_cases, ir_examples
from verifier.programs.elements import ElementLabels
from verifier.rules.snippet import body

X = make_input("x", (3, 4))
NORMAL: dict[str, list[tuple[Node, Node]]] = {
    "transpose": [(mk("transpose", mk("transpose", X, permutation=(1, 0)), permutation=(1, 0)), X)],
    "broadcast_in_dim": [(mk("broadcast_in_dim", X, shape=(3, 4), broadcast_dimensions=(0, 1)), X)],
    "reshape": [(mk("reshape", mk("reshape", X, new_sizes=(12,)), new_sizes=(3, 4)), X)],
    "regroup": [(mk("regroup", X, groups=(((1,), (4,)), ((0,), (3,)))), mk("transpose", X, permutation=(1, 0)))],
    "iota": [(
        mk("iota", shape=(3, 4), dimension=1),
        mk("broadcast_in_dim", mk("iota", shape=(4,), dimension=0), shape=(3, 4), broadcast_dimensions=(1,)),
    )],
    "slice": [(mk("slice", X, start_indices=(0, 0), limit_indices=(3, 4)), X)],
    "concatenate": [(mk("concatenate", X, dimension=1), X)],
    "pad": [(mk("pad", X, literal(0.0), padding_config=((0, 0, 0), (0, 0, 0))), X)],
    "rev": [(mk("rev", mk("rev", X, dimensions=(1,)), dimensions=(1,)), X)],
    **{op: [(mk(op, x, axes=()), x)] for op, x in ((op, ir_examples.concrete(op).inputs[0]) for op in REDUCE)},
}  # fmt: skip
LEAVES = ("input", "literal")
WITHOUT_AXES = (*LEAVES, "scan", "while", "cond", "opaque", "result", "macro")
ATTRIBUTES = 20  # in a row of features, what stands in front is common to all ops
IMPLIED = {"broadcast_in_dim", "reshape", "regroup"}  # in rule texts, names of axes say these
NAMED_IN_RULES = {
    *ELEMENTWISE, *WINDOW, *CUMULATIVE, *PHYSICAL.values(), *(f"reduce_{kind}" for kind in REDUCERS),
    "regroup", "reshape",
}  # fmt: skip
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
    for graph in _graphs(op, 4):
        check_graph(graph)
        for node in graph.nodes():
            assert result_types(node.op, node.inputs, node.attrs) == node.types
            assert repr(canonical(node.op, node.attrs)) == repr(node.attrs)


def dtypes(op: str) -> None:
    """An elementwise op with attributes takes the dtypes that JAX takes."""
    if TABLE[op].family != "elementwise" or not TABLE[op].attrs:
        return
    (node,) = ir_examples.symbolic(op).outputs
    lower = partial(LOWER[op], node)
    for dtype in ("float32", "int32", "bool"):
        x = make_input("x", (2,), dtype)
        try:
            jax.eval_shape(lower, jax.ShapeDtypeStruct((2,), dtype))
        except TypeError:
            with pytest.raises(ShapeError):
                mk(op, x, **dict(node.attrs))
        else:
            mk(op, x, **dict(node.attrs))


def denotation(op: str) -> None:
    assert (TABLE[op].at is None) == (op in WITHOUT_VALUE)
    if op in ir_examples.WITHOUT_LOOPS:
        with pytest.raises(InputError, match="loop"):
            block(_graph(op).outputs[0])
    elif op not in WITHOUT_VALUE:
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
        assert op != "literal" or value.item() == node["value"]


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


def _nodes(op: str, count: int = 12) -> list[Node]:
    return ir_cases.samples(op, np.random.default_rng(zlib.crc32(op.encode()) + 3), count)[:60]


def _arrays(node: Node) -> dict[str, np.ndarray]:
    return ir_cases.values(node, np.random.default_rng(zlib.crc32(node.op.encode())))


def _rank(node: Node) -> int:
    return len(node.shape)


def _turned(node: Node, rng: np.random.Generator) -> tuple[Node, Node]:
    """The same value twice: of operands that lie in other orders, and of the node itself in the order that follows."""
    rule = TABLE[node.op].axes
    assert rule is not None, f"{node.op} does not say how axes flow"
    attrs = dict(node.attrs)
    orders = rule.takes(attrs, [tuple(rng.permutation(_rank(x)).tolist()) for x in node.inputs])
    laid = rule.laid(attrs, orders)
    operands = [transposed(node.inputs[k], orders[k]) for k in laid.operands]
    return mk(node.op, *operands, **laid.attrs), transposed(node, laid.order)


def axes(op: str) -> None:
    """Attributes for operands in other orders give the same value, in the order that the entry says."""
    if op in WITHOUT_AXES:
        assert TABLE[op].axes is None
        return
    rng = np.random.default_rng(zlib.crc32(op.encode()))
    for node in _nodes(op):
        have, want = evaluate(_turned(node, rng), _arrays(node))
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5, err_msg=repr(node))
        exchanged = TABLE[op].axes.commuted(dict(node.attrs), [_rank(x) for x in node.inputs])
        if exchanged is not None:
            attrs, order = exchanged
            have, want = evaluate((mk(op, *node.inputs[::-1], **attrs), transposed(node, order)), _arrays(node))
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


def atoms(op: str) -> None:
    """Where nothing acts along an axis, a result at one place of it depends on operands there alone."""
    if op in WITHOUT_AXES:
        return
    rng = np.random.default_rng(zlib.crc32(op.encode()))
    for node in _nodes(op, 40):
        shapes = [x.shape for x in node.inputs]
        flow = TABLE[op].axes.flow(dict(node.attrs), shapes, node.shape)
        assert sum(run.axes for run in flow.result) == _rank(node)
        singles = [] if flow.regroups else [d for d, own in enumerate(flow.axes) if len(own) == 1]
        free = [d for d in singles if flow.axes[d][0] not in flow.acts and node.shape[d]]
        if not (flow.complete and free and all(all(shape) for shape in shapes)):
            continue
        d = int(rng.choice(free))
        at = int(rng.integers(node.shape[d]))
        env, other = _arrays(node), {}
        for x, own in zip(node.inputs, flow.operands, strict=True):
            axis = own.index(flow.axes[d]) if flow.axes[d] in own and x.shape else None
            if x.op == "input" and axis is not None:
                value = ir_cases.array(x, rng, op)
                place = (slice(None),) * axis + (at,)
                value[place] = env[x["name"]][place]
                other[x["name"]] = value
        have, want = evaluate((node,), env | other)[0], evaluate((node,), env)[0]
        assert np.take(have, at, d).tobytes() == np.take(want, at, d).tobytes(), node


def egraph(op: str) -> None:
    """An op goes into the e-graph and comes out as what it was, or as its normal form."""
    if op in LEAVES or op == "macro":
        return
    graph = _graph(op)
    eg = import_graph(graph)
    assert [eg.shape(ref) for ref in eg.roots] == [n.shape for n in graph.outputs]


def _macro(node: Node) -> Node:
    return mk("macro", *node.inputs, rule="r", op=node.op, attrs=node.attrs)


def canonical_form(op: str) -> None:
    """Terms that differ only in the order of axes are one e-node, for a macro as for the op that it lowers."""
    if op == "reshape" or (
        op in WITHOUT_AXES and op != "macro"
    ):  # a reshape cannot see through orders: it is a regroup
        return
    rng = np.random.default_rng(zlib.crc32(op.encode()))
    for node in _nodes("dot_general" if op == "macro" else op):
        one, other = _turned(node, rng)
        if op == "macro":
            order = None if other is node else other["permutation"]
            one, other = _macro(one), _macro(node)
            other = other if order is None else transposed(other, order)
        eg = import_graph(Graph(tuple(n for n in topological([one, other]) if n.op == "input"), (one, other)))
        assert eg.roots[0] == eg.roots[1], f"{one} and {other} are two"


def normal_form(op: str) -> None:
    """Applications that a constructor of the e-graph writes in another way."""
    for one, other in NORMAL.get(op, ()):
        eg = import_graph(Graph(tuple(n for n in topological([one, other]) if n.op == "input"), (one, other)))
        assert eg.roots[0] == eg.roots[1], f"{one} is {other}"


def layouts(op: str) -> None:
    """An option of the search is emitted in any order, and nothing is moved where operands lie as it wants them."""
    if op in (*WITHOUT_AXES, "transpose", "reshape"):  # the last two are no e-nodes
        return
    rng = np.random.default_rng(zlib.crc32(op.encode()))
    forms = Forms()
    for node in _nodes(op):
        kinds = [tuple(x.shape) for x in node.inputs], [x.dtype for x in node.inputs]
        form = forms.intern(op, node.attrs, *map(tuple, kinds), (None,) * len(node.inputs), node.type)
        d = tuple(rng.permutation(_rank(node)).tolist())
        orders = wanted(form, d, (None,) * len(node.inputs))
        made = build(form, d, orders, [transposed(x, o) for x, o in zip(node.inputs, orders, strict=True)])
        have, want = evaluate((made, transposed(node, d)), _arrays(node))
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5, err_msg=repr(node))
        if TABLE[op].axes.follows and TABLE[op].family != "contraction" and op != "regroup":
            assert made.op == op, f"{node} in the order {d} is {made}"


def matching(op: str) -> None:
    """Ops that patterns can name have layouts of operands for a layout of the result."""
    if op not in NAMED_IN_RULES:
        return
    found = False
    for node in _nodes(op, 60):
        labels, shapes = Labels(), [tuple(x.shape) for x in node.inputs]
        lay = tuple([((labels.fresh(), n),) for n in node.shape])
        flowed = flow(op, OpSite(dict(node.attrs), shapes, tuple(node.shape)), lay, labels)
        if flowed is not None:
            found = True
            for own, shape in zip(flowed[0], shapes, strict=True):
                assert not shape or [prod([n for _, n in axis]) for axis in own] == list(shape)
    assert found


def lifted(op: str) -> None:
    """An op of the rule language is printed as a rule from graphs, and read again."""
    if op not in NAMED_IN_RULES or TABLE[op].family == "elementwise" or op in IMPLIED:
        return
    graph = ir_examples.symbolic(op)
    if op == "iota":  # rules match it; a graph's own is refused, whatever its rank
        for node in (*graph.outputs, mk("iota", shape=(ir_examples.M,), dimension=0)):
            with pytest.raises(Unliftable):
                lift("r", Graph((), (node,)), Graph((), (node,)), ir_examples.SIZES)
        assert op in physical(term_of("iota", over=("n",)), {})
        return
    text = lift("r", graph, graph, ir_examples.SIZES).text()
    (term,) = parse(text).lhs
    assert parse(text).rhs == (term,)
    assert op in physical(term, {})


def labels(op: str) -> None:
    """Element labels, by which whole programs are validated, do not depend on the order of axes."""
    if op in (*WITHOUT_AXES, *ir_examples.OPAQUE):
        return
    rng = np.random.default_rng(zlib.crc32(op.encode()))
    for node in _nodes(op):
        one, other = map(ElementLabels(b"key").of, _turned(node, rng))
        assert np.array_equal(one, other), node
    for pair in NORMAL.get(op, ()):
        one, other = map(ElementLabels(b"key").of, pair)
        assert np.array_equal(one, other), pair


def written(op: str) -> None:
    """A counterexample is written with the op as a line of JAX that gives the same value."""
    if (TABLE[op].family == "elementwise" and not TABLE[op].attrs) or op in (*WITHOUT_AXES, *ir_examples.UNWRITTEN):
        return
    graph = ir_examples.concrete(op)
    (node,) = graph.outputs
    called = {x: str(x["name"]) for x in graph.inputs}
    text = "\n".join([f"def made({', '.join(called.values())}):", *body(called, node)])
    scope: dict[str, Any] = {"jnp": jax.numpy, "lax": jax.lax}
    exec(text, scope)
    env = _arrays(node)
    np.testing.assert_allclose(scope["made"](**env), evaluate((node,), env)[0], rtol=1e-4, atol=1e-4, err_msg=text)


def cost_features(op: str) -> None:
    (node, *_) = [n for n in _graph(op).nodes() if n.op == op] or _graph(op).inputs
    assert OPCODES[opcode(node)] == node.op == op
    assert np.isfinite(row(node)).all()
    if TABLE[op].family == "elementwise":
        assert unit(node).feature in INDEX
    if TABLE[op].attrs and op not in (*WITHOUT_AXES, *ir_examples.COMMON_ROW):
        (node,) = ir_examples.concrete(op).outputs
        assert row(node)[ATTRIBUTES:].any(), "attributes are no features"


def cost_reading(op: str) -> None:
    """The reading of operands that a kernel is priced by follows from the flow of axes."""
    if op in WITHOUT_AXES or not TABLE[op].attrs or op in HEAVY - PRODUCTS:
        return
    (node,) = ir_examples.concrete(op).outputs
    rule = TABLE[op].axes
    found = rule.flow(dict(node.attrs), [x.shape for x in node.inputs], node.shape)
    below = {own for operand in found.operands for own in operand}
    want = (
        steps.PLAIN if TABLE[op].family == "elementwise"
        else steps.MOVED if found.regroups or not node.inputs
        else steps.PICKED if rule.data is not None
        else steps.SPREAD if not below.issuperset(found.axes) or op in PRODUCTS
        else steps.REDUCED if not below.issubset(found.axes)
        else steps.JOINED if any(act.kind is Along.JOIN for act in found.acts.values())
        else steps.PADDED if any(not x.shape for x in node.inputs)
        else steps.MOVED
    )  # fmt: skip
    assert steps.Kind(0, node).reads == want
    if want == steps.REDUCED:
        kind = "arg" if op in ARG else "sum" if REDUCE[op] in ("sum", "prod") else "max"
        assert f"reduce_{kind}_minor" in root(node).counts


def kernel(op: str) -> None:
    """A kernel of the op alone is built, or the partition leaves the op to XLA."""
    graph = _graph(op)
    for region in partition(graph):
        generate(default(from_graph(region.graph.outputs)))


FACETS = [
    type_rule, dtypes, denotation, interpreter, counter, text, axes, atoms, xla_lowering, jax_import, rule_language,
    egraph, canonical_form, normal_form, layouts, matching, lifted, labels, written, cost_features, cost_reading,
    kernel,
]  # fmt: skip


@pytest.mark.parametrize("facet", FACETS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("op", list(TABLE))
def test_facet(op: str, facet: object) -> None:
    facet(op)
