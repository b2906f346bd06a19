"""Convolutions of 3 x 3 with bias, residual and relu: the form of Winograd as one kernel, the direct one, and XLA.

python -m superopt.lab.bench.winograd [--threads N]      default schedules, microseconds, least of interleaved rounds
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rewrites.build.terms import expand_macro
from rewrites.library import by_name
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.ir.program import frozen_cut, replace, split
from superopt.kernels.choose.defaults import default
from superopt.kernels.choose.partition import partition
from superopt.kernels.loops.program import from_graph
from superopt.schedules.native import kernel_calls

SIZES = ((1, 56, 64), (1, 28, 128), (1, 14, 256), (1, 7, 512), (4, 56, 64), (4, 28, 128), (4, 14, 256))
_ROUNDS, _SAMPLE_S = 25, 0.02


def block(x: Any, r: Any, w: Any, b: Any) -> Any:
    """A channels-last convolution with the ops that follow it in a residual network."""
    y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y + b + r)


def main() -> None:
    """Print one line for each size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    threads: int = parser.parse_args().threads
    for images, size, channels in SIZES:
        image, weights = (images, size, size, channels), (3, 3, channels, channels)
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(s, np.float32) for s in (image, image, weights, (channels,))]
        graph = import_function(block, arrays, {}, frozen=(2, 3)).graph
        calls = {"direct": _call(graph, threads), "winograd": _call(_winograd(graph), threads)}
        jitted, placed = jax.jit(block), jax.device_put(arrays)
        calls["XLA, its own threads"] = lambda jitted=jitted, placed=placed: jitted(*placed).block_until_ready()
        best = dict.fromkeys(calls, np.inf)
        for _ in range(_ROUNDS):
            for name, call in calls.items():
                end_s = time.perf_counter() + _SAMPLE_S
                while time.perf_counter() < end_s:
                    begin_s = time.perf_counter()
                    call()
                    best[name] = min(best[name], time.perf_counter() - begin_s)
        told = ", ".join(f"{name} {1e6 * seconds:.0f}" for name, seconds in best.items())
        print(f"{images}x{size}x{size}x{channels}: {told}", flush=True)


def _winograd(graph: Graph) -> Graph:
    """The graph with its convolution in Winograd's form, as one region whose weights are prepared."""
    conv = next(n for n in graph.nodes() if n.op == "conv_general_dilated")
    outputs = replace(graph.outputs, {conv: expand_macro(by_name("conv-winograd-square"), conv)})
    made = Graph(graph.inputs, outputs, graph.constants)
    (region,) = [r for r in partition(split(made, frozen_cut(made)).hot) if not r.is_free]
    return region.graph


def _call(graph: Graph, threads: int) -> Callable[[], Any]:
    program = from_graph(graph.outputs)
    rng = np.random.default_rng(0)
    arrays = {
        b.name: rng.standard_normal(b.shape, np.float32) for b in program.buffers if b.scope in ("input", "frozen")
    }
    return kernel_calls(default(program, threads=threads), arrays, threads)[1]


if __name__ == "__main__":
    main()
