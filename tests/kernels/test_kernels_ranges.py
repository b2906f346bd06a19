"""Decisions outside of their ranges are refused where a trace is read and by the verifier; all others are right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import import_function
from superopt.kernels.choose.defaults import default_trace
from superopt.kernels.choose.partition import partition
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm.cpu import host, supported
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.ranges import DECISIONS, KNOBS
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.runtime.kernel import build
from superopt.kernels.schedule.tensorizing import ContractionDecisions
from superopt.kernels.schedule.trace import apply, attempt, trace
from tests.support import contraction_cases as cases
from verifier.schedules import check_schedule

pytestmark = pytest.mark.skipif(not supported(), reason="no kernels are made for this processor")

STRANGE = (-5, -1, 0, 1, 3, 1 << 33, 1 << 62)
BAD = {
    "vectors": 0, "rows": -1, "accumulators": 0, "window": -1, "cache": "nowhere", "keep": "most", "cut": 2,
    "transpose": -1, "lane": 7, "rows_per_task": -1, "tasks": 0, "block": -5, "prefetch": -1, "depth": 0, "limit": 0,
    "warps": 0, "stages": 0, "online": -1, "precision": "fp8", "unroll": -1, "pad_a": -1, "split": 0, "streams": 0,
}  # fmt: skip


def program_of(fn: Any, *shapes: tuple[int, ...]) -> LoopProgram:
    (region,) = partition(import_function(fn, [jnp.zeros(s, jnp.float32) for s in shapes]).graph)
    return from_graph(region.graph.outputs)


def depthwise(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(
        x, w, (1, 1), [(1, 1)] * 2, dimension_numbers=("NHWC", "OIHW", "NCHW"), feature_group_count=x.shape[-1]
    )


PRODUCT = from_graph([cases.finished(cases.matmul(30, 33, 40))])
ROWS = program_of(lambda x: jax.nn.softmax(x, -1), (12, 40))
MAP = program_of(lambda x: jnp.exp(x) * 2, (6, 5, 4))
TRACES: dict[str, tuple[LoopProgram, list[list[Any]]]] = {
    "tile": (PRODUCT, [["tensorize", "out0", [
        ["rows", [["o0", 4]]], ["vectors", 2], ["unroll", 2], ["block", 16], ["tasks", [["o0", 8], ["o1", 1]]],
        ["pack_a", "phase"], ["pad_a", 3], ["prefetch", 4],
    ]]]),
    "split sum": (PRODUCT, [["tensorize", "out0", [["rows", [["o0", 4]]], ["split", 2]]]]),
    "streams": (PRODUCT, [["tensorize", "out0", [["vectors", 1], ["streams", 1]]]]),
    "loops": (PRODUCT, [
        ["split", "out0", "o0", [4]], ["pad", "out0", "o1", 16], ["reorder", "out0", ["o0_0", "o0_1", "o1"]],
        ["split_reduction", "out0", 0, 0, [8]], ["parallel", "out0", "o0_0"], ["set_knob", "out0", "vectors", 2],
    ]),
    "sums": (PRODUCT, [
        ["pad_reduction", "out0", 0, 0, 16], ["split_reduction", "out0", 0, 0, [8]], ["rfactor", "out0", 0, [0]],
    ]),
    "accumulated": (from_graph([cases.matmul(9, 10, 12)]), [["decompose_reduction", "out0", [0], 1]]),
    "rows": (ROWS, [
        ["materialize", "out0", "reduce:0", "top"], ["compute_at", "top", "out0", 1],
        ["set_knob", "out0", "rows", 2], ["set_knob", "out0", "accumulators", 2],
    ]),
    "fused": (MAP, [
        ["fuse", "out0", ["o0", "o1"]], ["split", "out0", "o0_o1", [10]], ["unroll", "out0", "o0_o1_1"],
        ["vectorize", "out0", "o2"],
    ]),
    "blocked": (MAP, [["split", "out0", "o0", [2]], ["blockize", "out0", 1, "block"]]),
    "written": (PRODUCT, [
        ["cache_write", "out0", "held"], ["split", "held", "o0", [4]], ["reverse_compute_at", "out0"],
    ]),
    "reordered sum": (PRODUCT, [
        ["split_reduction", "out0", 0, 0, [8]], ["reorder_reduction", "out0", 0, [1, 0]],
    ]),
    "inlined": (ROWS, [["materialize", "out0", "reduce:0", "top"], ["split", "top", "c0", [4]], ["inline", "top"]]),
    "copy": (program_of(depthwise, (1, 6, 6, 20), (20, 1, 3, 3)), [
        ["cache_read", "out0", "x0", "x0_along"],
        ["transform_layout", "x0_along", [["permute", [0, 1, 3, 2]], ["pad", 3, 8], ["split", 2, 4]], "new"],
    ]),
    "prefix": (program_of(lambda x: jnp.cumsum(x, 1), (3, 50)), [["split_prefix", "out0", 0, 16]]),
}  # fmt: skip


def attention() -> tuple[LoopProgram, list[list[Any]]]:
    program = program_of(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), *[(1, 16, 1, 16)] * 3)
    return program, [list(step) for step in default_trace(program, host(), 2)]


def mutants(steps: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Every integer of a trace replaced by strange ones, one at a time."""
    for j, x in enumerate(steps):
        if isinstance(x, list | tuple):
            yield from ((p, [*steps[:j], y, *steps[j + 1 :]]) for p, y in mutants(x, (*path, j)))
        elif isinstance(x, int):
            for value in STRANGE:
                if value != x:
                    yield (*path, j, value), [*steps[:j], value, *steps[j + 1 :]]


def arrays_of(program: LoopProgram) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {b.name: rng.standard_normal(b.shape, np.float32) for b in program.buffers if b.scope in ("input", "frozen")}


@pytest.mark.parametrize("name", [*TRACES, "attention"])
def test_whatever_integer_is_changed_the_trace_is_refused_or_right(name: str) -> None:
    program, steps = TRACES.get(name) or attention()
    assert isinstance(attempt(program, steps), LoopProgram)
    arrays = arrays_of(program)
    exact = evaluate(program, arrays, wide=True)["out0"]
    seen, refused = set[str](), 0
    for path, mutant in mutants(steps):
        try:
            scheduled = apply(program, mutant)
            code = generate(scheduled)
        except InputError:
            refused += 1
            continue
        text = code.module.text()
        if text not in seen:
            seen.add(text)
            got = build(code, pipeline="none").run(arrays, guard=True)["out0"]
            np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-4, err_msg=f"{path}: {mutant}")
    assert refused


@pytest.mark.parametrize("knob", KNOBS)
def test_a_knob_outside_of_its_range_is_refused_by_traces_and_by_the_verifier(knob: str) -> None:
    with pytest.raises(InputError, match=knob):
        apply(PRODUCT, [["set_knob", "out0", knob, BAD[knob]]])
    (stage,) = PRODUCT.stages
    forged = replace(PRODUCT, stages=(replace(stage, knobs=((knob, BAD[knob]),)),))
    verdict = check_schedule(PRODUCT, forged)
    assert not verdict.proved
    assert knob in str(verdict)


@pytest.mark.parametrize("field", [f for f in DECISIONS if f not in ("rows", "tasks")])
def test_a_decision_of_a_tile_outside_of_its_range_is_refused(field: str) -> None:
    assert hasattr(ContractionDecisions(), field)
    with pytest.raises(InputError, match=field):
        apply(PRODUCT, [["tensorize", "out0", [[field, BAD[field]]]]])


def test_an_unknown_knob_is_refused() -> None:
    with pytest.raises(InputError, match="no knob"):
        apply(PRODUCT, [["set_knob", "out0", "speed", 9]])


def test_a_schedule_that_does_far_more_is_refused_by_traces_and_by_the_verifier() -> None:
    with pytest.raises(InputError, match="iterations"):
        apply(PRODUCT, [["pad", "out0", "o0", 1 << 38]])
    with pytest.raises(InputError, match="integers"):
        trace([["pad", "out0", "o0", 1 << 62]])
    wide = attempt(PRODUCT, [["pad", "out0", "o0", 1 << 20]])
    assert not isinstance(wide, LoopProgram)
