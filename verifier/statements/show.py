"""What people and certificates see of a statement: its key, and a counterexample with a test to paste."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.frontends.symbolic.graphs import Traced
from superopt.ir.graph import Graph, topological
from superopt.ir.text import print_graph
from verifier.rules.snippet import body, identifier, written
from verifier.statements.refute import StatementDifference
from verifier.verdict import Counterexample

if TYPE_CHECKING:
    from verifier.statements.statement import Statement


def statement_key(statement: Statement, traced: tuple[Traced, Traced] | None) -> str:
    """Hash of both graphs over symbolic sizes and of the premises; empty where there are no such graphs."""
    if traced is None:
        return ""
    text = [f"{p} >= 0" for p in statement.specs.premises]
    for side in traced:
        order = topological((*side.graph.inputs, *side.graph.outputs))
        number = {node: i for i, node in enumerate(order)}
        text += [f"{n.op}{n.attrs}({[number[x] for x in n.inputs]})" for n in order]
        text.append(f"{[number[x] for x in side.graph.outputs]} {side.tree}")
        text += [f"{name}: {array.tobytes().hex()}" for name, array in sorted(side.graph.constants.items())]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:32]


def counterexample(statement: Statement, found: StatementDifference) -> Counterexample:
    """A difference as a counterexample."""
    left, right = found.results
    at = found.index
    return Counterexample(
        inputs={k: np.asarray(v).tolist() for k, v in found.values.items()},
        shapes={k: tuple(v.shape) for k, v in found.values.items()},
        choices={k: str(v) for k, v in found.sizes.items()},
        root=found.output,
        index=at,
        left="a result" if at is None else str(left[at]),
        right=found.cause if at is None else str(right[at]),
        graphs=(_text(found.graphs[0]), _text(found.graphs[1])),
        seed=0,
        undefined=found.undefined,
        results=tuple(None if x is None else np.asarray(x).tolist() for x in (left, right)),  # pyright: ignore[reportArgumentType]
        code=_test(statement, found),
    )


def _text(graph: Graph | None) -> str:
    return "" if graph is None else print_graph(graph)


def _test(statement: Statement, found: StatementDifference) -> str:
    left, right = found.graphs
    if left is None:
        return ""
    values: dict[str, Any] = dict(found.values)
    for x in left.inputs:
        if x["name"] not in left.constants:
            values.setdefault(x["name"], np.zeros([int(str(n)) for n in x.shape], x.dtype))
    try:
        sides = [_body(graph, found.output, found.cause) for graph in (left, right)]
    except (KeyError, IndexError):  # an operation without a written form, or another number of outputs
        return ""
    names = {name: identifier(name) for name in values}
    return written(statement.name, names, values, sides[0], sides[1], found.cause)


def _body(graph: Graph | None, output: int, cause: str) -> list[str]:
    if graph is None:
        return [f"    raise ValueError({cause!r})"]
    if graph.constants:
        raise KeyError("an array that the function closes over")
    return body({x: identifier(x["name"]) for x in graph.inputs}, graph.outputs[output])
