"""Mutants of true statements: nothing that is proved may differ at tiny sizes.

The graph of the right side is changed in one place (an operation, a number, an axis, an order of operands) and given to
the prover alone.  What it proves is evaluated at several sizes: a proved mutant must be another way to say the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from superopt.errors import SuperoptError
from superopt.ir.graph import Graph, Node, literal, mk, topological
from superopt.ir.index import Poly, Symbol
from superopt.ir.interp import evaluate
from superopt.ir.resize import resize
from tests.support.sampling import sampled
from tests.support.statement_cases import CASES
from verifier.equal.equality import Proof, Stop
from verifier.rules.refute import first_difference
from verifier.statements.prove import Pair, prove_pair, unsupported_ops
from verifier.statements.refute import make_values, tiny_sizes
from verifier.statements.statement import make_statement, traced_pair

SWAPS = {
    "add": ("sub", "mul", "max"), "sub": ("add", "mul"), "mul": ("add", "max"), "div": ("mul",), "max": ("min", "add"),
    "min": ("max",), "exp": ("neg", "tanh"), "log": ("neg",), "reduce_sum": ("reduce_max",),
    "reduce_max": ("reduce_sum", "reduce_min"), "reduce_min": ("reduce_max",), "lt": ("le",), "le": ("lt",),
    "ge": ("gt",), "gt": ("ge",), "rsqrt": ("sqrt",), "and": ("or",), "or": ("and",), "cumsum": ("cummax",),
}  # fmt: skip


def shifted(value: Any, rng: random.Random) -> Any:
    """One integer inside an attribute changed by one, or two of them exchanged."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int | Poly):
        return value + rng.choice((-1, 1))
    if isinstance(value, tuple) and value:
        at = rng.randrange(len(value))
        if rng.random() < 0.5 and len(value) > 1:
            other = rng.randrange(len(value))
            items = list(value)
            items[at], items[other] = items[other], items[at]
            return tuple(items)
        return (*value[:at], shifted(value[at], rng), *value[at + 1 :])
    return value


def mutants(graph: Graph, rng: random.Random, tries: int) -> Iterator[Graph]:
    """Graphs of the same output types that differ in one node."""
    nodes = [n for n in graph.nodes() if n.op != "input"]
    types = [x.types for x in graph.outputs]
    for _ in range(tries if nodes else 0):
        victim = rng.choice(nodes)
        try:
            changed = mutated(victim, rng)
            made: dict[Node, Node] = {}
            for node in topological((*graph.inputs, *graph.outputs)):
                if node is victim:
                    made[node] = rebuilt(changed, made)
                else:
                    made[node] = mk(node.op, *(made[x] for x in node.inputs), **dict(node.attrs))
        except (SuperoptError, ValueError, ZeroDivisionError, TypeError):
            continue
        outputs = tuple(made[x] for x in graph.outputs)
        if [x.types for x in outputs] == types and outputs != graph.outputs:
            yield Graph(graph.inputs, outputs, graph.constants)


def rebuilt(changed: tuple[str, list[Node], dict[str, Any]], made: dict[Node, Node]) -> Node:
    op, inputs, attrs = changed
    if op == "literal":
        return literal(attrs["value"], attrs["dtype"])
    return mk(op, *(made[x] for x in inputs), **attrs)


def mutated(node: Node, rng: random.Random) -> tuple[str, list[Node], dict[str, Any]]:
    op, inputs, attrs = node.op, list(node.inputs), dict(node.attrs)
    kind = rng.randrange(3)
    if op == "literal":
        return op, inputs, {**attrs, "value": attrs["value"] + 1 if node.dtype != "bool" else not attrs["value"]}
    if kind == 0 and op in SWAPS:
        return rng.choice(SWAPS[op]), inputs, attrs
    if kind == 1 and len(inputs) > 1:
        return op, rng.sample(inputs, len(inputs)), attrs
    if attrs:
        name = rng.choice(sorted(attrs))
        return op, inputs, {**attrs, name: shifted(attrs[name], rng)}
    return op, [inputs[-1]] * len(inputs), attrs


def differs(left: Graph, right: Graph, specs: Any, lowest: int) -> bool:
    """Do two graphs differ at some tiny sizes, where the first is a number?"""
    for _, sizes in zip(range(5), tiny_sizes(specs, max(lowest, 1)), strict=False):
        at = {Symbol(name, lowest): n for name, n in sizes.items()}
        try:
            sides = [resize(g, at) for g in (left, right)]
        except SuperoptError:
            return True
        for attempt in range(3):
            values = make_values(sides[0].inputs, specs.names, attempt)
            results = [evaluate(g, values, wide=True) for g in sides]
            for a, b in zip(*results, strict=True):
                at_index = first_difference(np.asarray(a), np.asarray(b), True, 1e-6)
                if at_index is not None and np.isfinite(np.asarray(b, np.float64)[at_index]):
                    return True
    return False


@pytest.mark.parametrize("part", sampled(range(4), lambda n, _: n == 0))
def test_no_mutant_is_proved_and_false(part: int) -> None:
    rng = random.Random(part)
    cases = [c for c in CASES if c[5] == "PROVED" and "block" not in c[0] and c[0] not in ("lstm-step", "strassen")]
    tried, proved = 0, 0
    for name, left, right, specs, constraints, _ in cases[part::4]:
        pair, _ = traced_pair(make_statement(name, left, right, specs, {}, constraints))
        if pair.traced is None or any(unsupported_ops(t.graph) for t in pair.traced):
            continue
        a, b = (t.graph for t in pair.traced)
        for _, wrong in zip(range(PER_CASE), mutants(b, rng, 12), strict=False):
            tried += 1
            try:
                prove_pair(Pair(a, wrong, pair.specs.sizes, pair.lowest, pair.specs.premises), Proof())
            except Stop:
                continue
            proved += 1
            assert not differs(a, wrong, pair.specs, pair.lowest), name
    assert tried >= 20
    assert proved < tried


PER_CASE = 2
