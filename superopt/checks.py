"""Whether a program computes what its original does, and how far both are from a float64 evaluation.

Both run on the example inputs and on random ones of the same spread.  The original graph
with every 16- and 32-bit float type widened is lowered like any other; its results are the yardstick for both programs.
Wide convolutions are slow, so graphs beyond a limit of work are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from superopt.backends.xla import build, to_jax
from superopt.ir.counters import graph_cost
from superopt.ir.graph import Graph, Node, mk, topological
from superopt.ir.program import Program, original_program
from superopt.measure.numerics import Tolerance, output_errors
from superopt.result import NumericCheck

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


def check(
    graph: Graph, program: Program, live: Sequence[Any], frozen: Mapping[str, Any], seed: int
) -> tuple[NumericCheck, str]:
    """Run a program and its original on the example inputs and on random ones.

    Returns:
        The differences, and why the program cannot be accepted (an empty string when it can).
    """
    original, candidate = build(original_program(graph), frozen), build(program, frozen)
    worst, cause = 0.0, ""
    for inputs in (live, _random_like(live, seed)):
        want, got = _arrays(original(*inputs)), _arrays(candidate(*inputs))
        errors = output_errors(want, got)
        worst = max([worst, *(e.normwise for e in errors)])
        for error, array in zip(errors, want, strict=False):
            if not Tolerance().accepts(error, str(array.dtype)):
                cause = cause or f"an output differs from the original's by {error.normwise:.1e}"
    truth = _truth(graph, live, frozen)
    if truth is None:
        return NumericCheck(worst), cause
    apart: list[float] = []
    for executable in (original, candidate):
        results = [r.astype(t.dtype) for r, t in zip(_arrays(executable(*live)), truth, strict=True)]
        apart.append(max((e.normwise for e in output_errors(truth, results)), default=0.0))
    return NumericCheck(worst, apart[0], apart[1]), cause


def _truth(graph: Graph, live: Sequence[Any], frozen: Mapping[str, Any]) -> list[np.ndarray] | None:
    """Results over float64, or None where they are not computed."""
    if graph_cost(graph).flops > LIMIT_FLOPS:
        return None
    wide = widened(graph)
    if wide is None:
        return None
    values = {**graph.constants, **frozen}
    arguments = iter(live)
    arrays = [values[n["name"]] if n["frozen"] else next(arguments) for n in graph.inputs]
    return _arrays(to_jax(wide)(*[_as_wide(x) for x in arrays]))


def _arrays(results: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(x) for x in results]


def _random_like(live: Sequence[Any], seed: int) -> list[Any]:
    """Normal values of the examples' spread in place of floats; integers stay, since they may be indices."""
    rng = np.random.default_rng(seed)
    values: list[Any] = []
    for x in live:
        array = np.asarray(x)
        if str(array.dtype) in (*WIDENED, "float64"):
            spread = float(np.std(array.astype(np.float64))) if array.size else 0.0
            scale = spread if 0.0 < spread < float("inf") else 1.0
            values.append((scale * rng.standard_normal(array.shape)).astype(array.dtype))
        else:
            values.append(x)
    return values


def _as_wide(x: Any) -> np.ndarray:
    array = np.asarray(x)
    return array.astype(np.float64) if str(array.dtype) in WIDENED else array
