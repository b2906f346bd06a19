"""Speed of the e-graph: constructor calls, import and growth of networks.  Prints one JSON object.

python -m benchmarks.egraph
"""

from __future__ import annotations

import json
import time
from typing import Any

from rewrites.convert import import_graph
from rewrites.egraph import EGraph
from rewrites.grow import Limits, grow
from rewrites.library import load

NETWORKS = ("resnet50", "mobilenet_v2", "bert", "inception", "lstm", "linear_attention")


def constructor_calls_per_s(calls: int = 20_000) -> float:
    """Constructor calls per second on a mix of elementwise ops, products and slices under permutations."""
    eg = EGraph()
    x = eg.add("input", name="x", shape=(4, 4, 4), dtype="float32", frozen=False)
    numbers = (((2,), (0,)), ((0,), (1,)))
    start = time.perf_counter()
    before = eg.constructor_calls
    y = x
    while eg.constructor_calls - before < calls:
        y = eg.add("mul", eg.add("tanh", y), eg.transpose(x, (2, 0, 1)))
        z = eg.add("slice", y, start_indices=(0, 0, 0), limit_indices=(4, 4, 2), strides=None)
        z = eg.add("concatenate", z, z, dimension=2)
        y = eg.add("dot_general", z, y, dimension_numbers=numbers)
    return (eg.constructor_calls - before) / (time.perf_counter() - start)


def network(name: str) -> dict[str, Any]:
    """Import and growth of one network."""
    from superopt.bench import nets
    from superopt.frontends.jaxpr import import_function

    net = getattr(nets, name)()
    graph = import_function(net.fn, (net.params, *net.inputs), frozen=(0,)).graph
    start = time.perf_counter()
    eg = import_graph(graph)
    imported_s = time.perf_counter() - start
    report = grow(eg, load(), Limits(seconds=60.0))
    return {
        "case": name,
        "nodes": len(graph.nodes()),
        "import_s": imported_s,
        "enodes": report.enodes,
        "live_classes": report.live_classes,
        "components": report.components,
        "iterations": report.iterations,
        "growth_s": report.seconds,
        "stop": report.stop,
    }


def main() -> None:
    """Measure and print."""
    rows = [network(name) for name in NETWORKS]
    summary = {"constructor_calls_per_s": constructor_calls_per_s(), "max_growth_s": max(r["growth_s"] for r in rows)}
    print(json.dumps({"suite": "egraph", "rows": rows, "summary": summary}, indent=1))


if __name__ == "__main__":
    main()
