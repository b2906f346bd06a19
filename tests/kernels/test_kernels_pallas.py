"""Pallas kernels: interpreted values against the reference, and Triton code for every one of them, without a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from superopt.errors import UnsupportedKernel
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.interp import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.pallas import space
from superopt.kernels.pallas.lower import lower, phases
from superopt.kernels.schedule.trace import apply, trace
from superopt.lab.bench.pallas.ptx import lowered, modules, triton_text
from superopt.lab.bench.programs.pallas_cases import CASES as CASES_TIMED
from tests.support.pallas_runs import inputs, run
from tests.support.sampling import one_in, sampled

Array = Any
BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def built(fn: Callable[..., Any], args: tuple[Array, ...]) -> tuple[LoopProgram, Mapping[str, Array], list[Array]]:
    """The loop program of a function, its arguments by name, and its results in float64."""
    graph = import_function(fn, args).graph
    arrays = {n["name"]: a for n, a in zip(graph.inputs, args, strict=False)} | dict(graph.constants)
    return from_graph(graph.outputs), arrays, list(evaluate(graph.outputs, arrays, wide=True))


def triton(program: LoopProgram, arrays: Mapping[str, Array]) -> str:
    """The module with the program's kernels as Triton code."""
    return lowered(lower(program, interpret=False), *inputs(program, arrays)).as_text()


def check(program: LoopProgram, arrays: Mapping[str, Array], wanted: list[Array], tolerance: float = 2e-6) -> None:
    for found, expected in zip(run(program, arrays), wanted, strict=True):
        scale = float(np.abs(expected).max()) + 1e-30
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=tolerance * scale)
    assert "xla.gpu.triton" in triton(program, arrays)


def attention(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / np.float32(np.sqrt(q.shape[-1]))
    if causal:
        s = jnp.where(jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool)), s, -jnp.inf)
    p = jax.nn.softmax(s, -1).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v, preferred_element_type=jnp.float32).astype(q.dtype)


def layer_norm(x: Array, g: Array, b: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * g + b


def conv(x: Array, w: Array) -> Array:
    return lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def pool(x: Array) -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


ints = functools.partial(RNG.integers, dtype=np.int8)
CASES: dict[str, tuple[str, Callable[..., Any], tuple[Array, ...], float]] = {
    "dense": ("product", lambda x, w, b: jax.nn.gelu(x @ w + b), (normal(70, 50), normal(50, 90), normal(90)), 2e-6),
    "tiny": ("product", jnp.matmul, (normal(4, 5), normal(5, 7)), 2e-6),
    "batched": ("product", lambda x, w: jnp.einsum("bmk,bkn->bmn", x, w), (normal(2, 40, 5), normal(2, 5, 30)), 2e-6),
    "merged rows": ("product", lambda x, w: x @ w, (normal(3, 20, 50), normal(50, 40)), 2e-6),
    "bfloat16": ("product", jnp.matmul, (normal(33, 64, dtype=BF16), normal(64, 48, dtype=BF16)), 5e-3),
    "int8": ("product", lambda x, w: jnp.dot(x, w, preferred_element_type=jnp.int32),
             (ints(-99, 99, (40, 70)), ints(-99, 99, (70, 40))), 0),
    "convolution": ("product", conv, (normal(1, 9, 8, 20), normal(3, 3, 20, 24)), 2e-6),
    "one row": ("reduction", lambda x, w: x @ w, (normal(1, 300), normal(300, 70)), 2e-6),
    "attention": ("attention", attention, (normal(1, 50, 2, 24), normal(1, 60, 2, 24), normal(1, 60, 2, 24)), 2e-6),
    "causal": ("attention", functools.partial(attention, causal=True),
               tuple(normal(1, 90, 2, 16, dtype=BF16) for _ in range(3)), 5e-3),
    "attention, values first": ("attention", lambda q, k, v: attention(q, k, v).transpose(0, 2, 3, 1),
                                tuple(normal(1, 90, 2, 16) for _ in range(3)), 2e-6),
    "activation": ("pointwise", lambda x, b: jax.nn.gelu(x + b, approximate=False),
                   (normal(13, 130), normal(130)), 2e-6),
    "transpose": ("pointwise", lambda x: x.T + 1, (normal(40, 70),), 2e-6),
    "heads": ("pointwise", lambda x: x.reshape(12, 8, 16).transpose(1, 0, 2), (normal(12, 128),), 0),
    "embedding": ("pointwise", lambda t, i: t[i] * 2, (normal(50, 24), ints(0, 50, (9,)).astype(np.int32)), 0),
    "softmax": ("rows", lambda x: jax.nn.softmax(x, -1), (normal(13, 100),), 2e-6),
    "softmax of columns": ("rows", lambda x: jax.nn.softmax(x, 0), (normal(40, 33),), 2e-6),
    "long rows": ("rows", lambda x: jax.nn.log_softmax(x, -1), (normal(2, 9000),), 2e-6),
    "layer norm": ("rows", layer_norm, (normal(9, 77), normal(77), normal(77)), 2e-6),
    "rms norm": ("rows", lambda x, g: x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g,
                 (normal(5, 64), normal(64)), 2e-6),
    "row sums": ("reduction", lambda x: x.sum(-1), (normal(33, 70),), 2e-6),
    "column maxima": ("reduction", lambda x: x.max(0), (normal(33, 70),), 0),
    "products": ("reduction", lambda x: jnp.prod(x, -1), (normal(6, 40),), 2e-6),
    "pooling": ("reduction", pool, (normal(1, 9, 9, 16),), 0),
    "running sum": ("reduction", lambda x: jnp.cumsum(x, -1), (normal(6, 40),), 2e-6),
}  # fmt: skip


@pytest.mark.parametrize("name", sampled(CASES, one_in(3, lambda name: [CASES[name][0]])))
def test_default_schedules(name: str) -> None:
    kind, fn, args, tolerance = CASES[name]
    program, arrays, wanted = built(fn, args)
    assert space.kind(program, "out0") == kind
    check(space.scheduled(program), arrays, wanted, tolerance)


@pytest.mark.parametrize("name", ["dense", "layer norm", "activation"])
def test_the_space_has_other_schedules_that_are_right(name: str) -> None:
    _, fn, args, tolerance = CASES[name]
    program, arrays, wanted = built(fn, args)
    traces = space.candidates(program, "out0")
    assert len(set(traces)) == len(traces) > 2
    check(apply(program, traces[-1]), arrays, wanted, tolerance)


def test_block_sizes_are_decisions_of_the_trace() -> None:
    program, arrays, wanted = built(jnp.matmul, (normal(70, 50), normal(50, 90)))
    steps = [["split", "out0", "o0", [16]], ["split", "out0", "o1", [32]]]
    steps += [["reorder", "out0", ["o1_0", "o0_0", "o0_1", "o1_1"]], ["parallel", "out0", "o1_0"]]
    steps += [["parallel", "out0", "o0_0"], ["unroll", "out0", "o0_1"], ["vectorize", "out0", "o1_1"]]
    steps += [["set_knob", "out0", "warps", 2], ["set_knob", "out0", "depth", 16]]
    scheduled = apply(program, trace(steps))
    check(scheduled, arrays, wanted)
    text = triton(scheduled, arrays)
    assert "grid_x = 15 : i32" in text  # 70/16 by 90/32, rounded up
    assert "num_warps = 2 : i32" in text


@pytest.mark.parametrize("rows", [0, 5])
def test_few_blocks_are_cut_along_the_sum(rows: int) -> None:
    x = normal(rows, 5000) if rows else normal(5000)
    program, arrays, wanted = built(lambda x, w: jax.nn.relu(x @ w), (x, normal(5000, 210)))
    default = space.default(program)
    assert [step[0] for step in default[:2]] == ["split_reduction", "rfactor"]
    scheduled = apply(program, default)
    assert [len(p.stages) for p in phases(scheduled)] == [1, 1]
    check(scheduled, arrays, wanted)


def test_a_pass_over_keys_loads_queries_once() -> None:
    name = "attention causal bfloat16 4x1024x16x64"
    case = next(c for c in CASES_TIMED if c.name == name)
    _, ((code, warps, _),) = modules(case)[0]
    before, loop = triton_text(code).split("scf.for", 1)
    assert warps == 4
    assert before.count("tt.load") == 1
    assert loop.split("scf.yield")[0].count("tt.load") == 2
    assert loop.count("tt.dot") == 2


def test_rows_of_a_product_may_be_several_axes_of_a_block() -> None:
    program, arrays, wanted = built(conv, (normal(1, 5, 9, 16), normal(3, 3, 16, 20)))
    steps = [["split", "out0", "o1", [2]], ["reorder", "out0", ["o0", "o1_0", "o1_1", "o2", "o3"]]]
    steps += [["parallel", "out0", "o0"], ["parallel", "out0", "o1_0"]]
    steps += [["unroll", "out0", "o1_1"], ["unroll", "out0", "o2"], ["vectorize", "out0", "o3"]]
    check(apply(program, trace(steps)), arrays, wanted)


def test_queries_are_cut_into_blocks_wherever_they_lie_in_the_result() -> None:
    _, fn, _, _ = CASES["attention, values first"]
    program, _, _ = built(fn, tuple(normal(1, 512, 2, 16) for _ in range(3)))
    for steps in space.candidates(program, "out0"):
        (queries,) = [s for s in apply(program, steps).stage("out0").axes if s.kind == "vector"]
        assert queries.extent <= 128


def test_attention_in_one_pass_and_in_three_agree() -> None:
    program, arrays, wanted = built(attention, tuple(normal(1, 40, 1, 16) for _ in range(3)))
    once = space.scheduled(program)
    check(once, arrays, wanted)
    check(apply(once, trace([["set_knob", "out0", "online", 0]])), arrays, wanted)


def test_a_causal_mask_ends_the_pass_over_keys() -> None:
    program, arrays, _ = built(functools.partial(attention, causal=True), tuple(normal(1, 96, 1, 16) for _ in range(3)))
    steps = [["split", "out0", "o1", [16]], ["reorder", "out0", ["o0", "o2", "o1_0", "o1_1", "o3"]]]
    steps += [["parallel", "out0", a] for a in ("o0", "o2", "o1_0")]
    steps += [["unroll", "out0", "o1_1"], ["vectorize", "out0", "o3"], ["set_knob", "out0", "depth", 32]]
    values = arrays["v"].copy()
    values[0, 64:] = np.nan  # what is not read does no harm
    (found,) = run(apply(program, trace(steps)), {**arrays, "v": values})
    assert np.isfinite(found[0, :64]).all()
    assert np.isnan(found[0, 64:]).all()


def test_rows_without_any_key_are_nan() -> None:
    def fn(q: Array, k: Array, v: Array) -> Array:
        mask = np.arange(20)[:, None] + 8 >= np.arange(36)[None] + 16
        return jax.nn.softmax(jnp.where(mask, q @ k, -jnp.inf), -1) @ v

    program, arrays, wanted = built(fn, (normal(20, 16), normal(16, 36), normal(36, 16)))
    (found,) = run(space.scheduled(program), arrays)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted[0]))
    assert np.isnan(found[:8]).all()
    np.testing.assert_allclose(found[8:], wanted[0][8:], atol=1e-5)


def test_outputs_over_one_grid_are_one_kernel() -> None:
    def fn(x: Array) -> Any:
        mean = x.mean(-1)
        return x - mean[:, None], mean, x.max(-1)

    program, arrays, wanted = built(fn, (normal(30, 50),))
    steps: list[list[Any]] = []
    for name in ("out0", "out1", "out2"):
        steps += [["parallel", name, "o0"]]
    steps += [["vectorize", "out0", "o1"]]
    scheduled = apply(program, trace(steps))
    assert [len(p.stages) for p in phases(scheduled)] == [3]
    check(scheduled, arrays, wanted)
    assert len(phases(program)) == 3


def test_stages_that_read_each_other_are_kernels_in_order() -> None:
    x = normal(30, 50)
    graph = import_function(lambda x: jnp.exp(x).sum(-1), (x,)).graph
    exp = next(n for n in graph.nodes() if n.op == "exp")
    program = from_graph(graph.outputs, scratch={exp})
    scheduled = space.scheduled(program)
    assert len(phases(scheduled)) == 2
    check(scheduled, {"x": x}, list(evaluate(graph.outputs, {"x": x}, wide=True)))


def test_placement_is_dissolved() -> None:
    x = normal(12, 20)
    graph = import_function(lambda x: jnp.exp(x) + jnp.exp(x) * 2, (x,)).graph
    exp = next(n for n in graph.nodes() if n.op == "exp")
    program = from_graph(graph.outputs, scratch={exp})
    steps = [["parallel", "out0", "o0"], ["compute_at", "s0", "out0", 1], ["vectorize", "out0", "o1"]]
    placed = apply(program, trace(steps))
    assert placed.buffer("s0").scope == "local"
    check(placed, {"x": x}, list(evaluate(graph.outputs, {"x": x}, wide=True)))


@pytest.mark.parametrize("kind", ["serial", "unroll"])
def test_stages_that_accumulate(kind: str) -> None:
    program, arrays, wanted = built(lambda x: x.max(-1), (normal(9, 50),))
    steps: list[list[Any]] = [["split_reduction", "out0", 0, 0, [16]], ["decompose_reduction", "out0", [0], 1]]
    steps += [["parallel", "out0", "o0"]] + ([["unroll", "out0", "k0"]] if kind == "unroll" else [])
    scheduled = apply(program, trace(steps))
    check(scheduled, arrays, wanted, 0)
    (stage,) = scheduled.stages
    shared = replace(stage, axes=tuple(replace(a, kind="parallel") for a in stage.axes))
    with pytest.raises(UnsupportedKernel, match="one element"):
        lower(replace(scheduled, stages=(shared,)))


def test_blocks_wider_than_an_axis_leave_its_neighbours_alone() -> None:
    program, arrays, wanted = built(lambda x: jnp.exp(x), (normal(5, 100),))
    steps = [["fuse", "out0", ["o0", "o1"]], ["split", "out0", "o0_o1", [100]]]
    steps += [["parallel", "out0", "o0_o1_0"], ["vectorize", "out0", "o0_o1_1"]]  # 100 lanes of 128
    check(apply(program, trace(steps)), arrays, wanted)


def test_maxima_keep_nan() -> None:
    x = normal(3, 20)
    x[1, 4] = np.nan
    program, arrays, _ = built(lambda x: (x.max(-1), jnp.maximum(x, 0)), (x,))
    most, least = run(space.scheduled(program), arrays)
    assert np.isnan(most).tolist() == [False, True, False]
    assert np.isnan(least).sum() == 1


def test_empty_results() -> None:
    program, arrays, _ = built(lambda x: jnp.exp(x), (normal(0, 20),))
    (found,) = run(program, arrays)
    assert found.shape == (0, 20)


def test_what_has_no_code_is_refused() -> None:
    program, _, _ = built(lambda x: lax.lgamma(x), (normal(4),))
    with pytest.raises(UnsupportedKernel, match="lgamma"):
        lower(program, interpret=True)(normal(4))
    wide, _, _ = built(lambda x: x + 1, (normal(4),))
    with pytest.raises(UnsupportedKernel, match="x64"):
        lower(LoopProgram("wide", tuple(_double(b) for b in wide.buffers), wide.stages))


def _double(buffer: Any) -> Any:
    return type(buffer)(buffer.name, buffer.shape, "float64", buffer.scope)
