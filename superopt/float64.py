"""How far a program and its original are from a float64 evaluation of the original.

The original graph with every 16- and 32-bit float type widened is lowered like any other; its results are the yardstick
for both programs.  Wide convolutions are slow, so graphs beyond a limit of work are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from superopt.backends.xla import build, to_jax
from superopt.ir.counters import graph_cost
from superopt.ir.graph import Graph, Node, mk, topological
from superopt.ir.program import Program, original_program
from superopt.measure.numerics import output_errors

WIDENED = ("float16", "bfloat16", "float32")
LIMIT_FLOPS = 1.5e10


def widened(graph: Graph) -> Graph | None:
    """The graph over float64, or None when it holds ops whose types are fixed (control flow, opaque)."""
    done: dict[Node, Node] = {}
    for node in topological((*graph.inputs, *graph.outputs)):
        if node.op in ("opaque", "scan", "while", "cond"):
            return None
        attrs = {name: _wide(name, value) for name, value in node.attrs}
        done[node] = mk(node.op, *[done[x] for x in node.inputs], **attrs)
    constants = {k: v.astype(np.float64) if str(v.dtype) in WIDENED else v for k, v in graph.constants.items()}
    return Graph(tuple(done[x] for x in graph.inputs), tuple(done[x] for x in graph.outputs), constants)


def _wide(name: str, value: Any) -> Any:
    if name in ("dtype", "new_dtype", "preferred_element_type") and value in WIDENED:
        return "float64"
    return value


def errors_against_float64(
    graph: Graph, program: Program, live: Sequence[Any], frozen: Mapping[str, Any]
) -> tuple[float, float] | None:
    """Largest normwise relative error of the original and of `program`, or None where no wide evaluation is made."""
    if graph_cost(graph).flops > LIMIT_FLOPS:
        return None
    wide = widened(graph)
    if wide is None:
        return None
    values = {**graph.constants, **frozen}
    arguments = iter(live)
    arrays = [values[n["name"]] if n["frozen"] else next(arguments) for n in graph.inputs]
    truth = [np.asarray(x) for x in to_jax(wide)(*[_as_wide(x) for x in arrays])]
    errors: list[float] = []
    for candidate in (original_program(graph), program):
        results = [np.asarray(x) for x in build(candidate, frozen)(*live)]
        results = [r.astype(t.dtype) for r, t in zip(results, truth, strict=True)]
        errors.append(max((e.normwise for e in output_errors(truth, results)), default=0.0))
    return errors[0], errors[1]


def _as_wide(x: Any) -> np.ndarray:
    array = np.asarray(x)
    return array.astype(np.float64) if str(array.dtype) in WIDENED else array
