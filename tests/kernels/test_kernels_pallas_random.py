"""Random sizes, blocks and steps: interpreted Pallas kernels against the reference in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from superopt.ir.graph import Node, literal, make_input, mk
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.trace import apply, trace
from tests.support.pallas_runs import run

SIZES = st.sampled_from([1, 2, 3, 7, 16, 17, 31, 33])
BLOCKS = st.sampled_from([1, 2, 4, 6, 16])


def spread(x: Node, shape: tuple[int, ...], *axes: int) -> Node:
    return mk("broadcast_in_dim", x, shape=shape, broadcast_dimensions=axes)


def tiled(program: LoopProgram, blocks: list[int], serial: bool, knobs: dict[str, Any]) -> LoopProgram:
    """Blocks of every axis of the only stage; their loops are the grid, or the last of them inside a program."""
    steps: list[list[Any]] = []
    axes = [a.symbol.name for a in program.stages[0].axes]
    for axis, block in zip(axes, blocks, strict=True):
        steps.append(["split", "out0", axis, [block]])
    outer, inner = [f"{a}_0" for a in axes], [f"{a}_1" for a in axes]
    steps.append(["reorder", "out0", outer + inner])
    steps += [["parallel", "out0", a] for a in (outer[:-1] if serial else outer)]
    steps += [["unroll", "out0", a] for a in inner[:-1]] + [["vectorize", "out0", inner[-1]]]
    steps += [["set_knob", "out0", name, value] for name, value in knobs.items()]
    return apply(program, trace(steps))


def check(program: LoopProgram, scheduled: LoopProgram, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {b.name: rng.standard_normal(b.shape, dtype=np.float32) for b in program.buffers if b.scope == "input"}
    wanted = evaluate(program, arrays, wide=True)["out0"]
    (found,) = run(scheduled, arrays)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(wanted).max(initial=0))))


@settings(max_examples=6, deadline=None, derandomize=True)
@given(m=SIZES, n=SIZES, k=SIZES, a=BLOCKS, b=BLOCKS, swapped=st.booleans(), depth=st.sampled_from([16, 32]))
def test_products(m: int, n: int, k: int, a: int, b: int, swapped: bool, depth: int) -> None:
    x, w = make_input("x", (k, m) if swapped else (m, k)), make_input("w", (k, n))
    y = mk("dot_general", x, w, dimension_numbers=(((0,) if swapped else (1,), (0,)), ((), ())))
    program = from_graph(
        [mk("max", mk("add", y, spread(make_input("b", (n,)), (m, n), 1)), spread(literal(0.0), (m, n)))]
    )
    check(program, tiled(program, [a, b], False, {"depth": depth}), m * n + k)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(m=SIZES, n=SIZES, a=BLOCKS, b=BLOCKS, serial=st.booleans(), limit=st.sampled_from([4, 64, 4096]))
def test_rows_that_are_reduced_and_mapped(m: int, n: int, a: int, b: int, serial: bool, limit: int) -> None:
    x = make_input("x", (m, n))
    e = mk("exp", mk("sub", x, spread(mk("reduce_max", x, axes=(1,)), (m, n), 0)))
    program = from_graph([mk("div", e, spread(mk("reduce_sum", e, axes=(1,)), (m, n), 0))])
    check(program, tiled(program, [a, b], serial, {"limit": limit}), m * n)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(m=SIZES, n=SIZES, k=SIZES, a=BLOCKS, depth=st.sampled_from([16, 32]), online=st.sampled_from([0, 1]))
def test_attention(m: int, n: int, k: int, a: int, depth: int, online: int) -> None:
    q, keys, values = make_input("q", (m, 16)), make_input("k", (n, 16)), make_input("v", (n, k))
    s = mk("dot_general", q, keys, dimension_numbers=(((1,), (1,)), ((), ())))
    e = mk("exp", mk("sub", s, spread(mk("reduce_max", s, axes=(1,)), (m, n), 0)))
    p = mk("div", e, spread(mk("reduce_sum", e, axes=(1,)), (m, n), 0))
    program = from_graph([mk("dot_general", p, values, dimension_numbers=(((1,), (0,)), ((), ())))])
    check(program, tiled(program, [a, max(k, 1)], False, {"depth": depth, "online": online}), m * n + k)
