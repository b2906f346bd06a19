"""Schedule primitives one by one: what they make of typical kernels, and each use that they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from superopt.errors import InputError
from superopt.ir.expr import subexpressions
from superopt.ir.graph import literal, make_input, mk
from superopt.ir.index import substitute
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph, reads
from superopt.kernels.loops.show import show_stages
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule import PRIMITIVES, split
from superopt.kernels.schedule.bijection import solve
from superopt.kernels.schedule.edit import parts
from superopt.kernels.schedule.layout import maps
from superopt.kernels.schedule.tensorizing import ContractionDecisions, decisions_of, pairs_of
from superopt.kernels.schedule.trace import Illegal, apply, attempt, trace
from tests.support.loop_executor import BadAccess, execute
from tests.support.schedule_cases import (
    arrays,
    convolution,
    matmul,
    pointwise,
    product,
    rows,
    same,
    softmax,
    total,
    two_stages,
)


def _kept(program: LoopProgram, steps: list[Any]) -> LoopProgram:
    """The scheduled program, of the same value in both ways of running it."""
    after = apply(program, steps)
    env = arrays(program)
    want = evaluate(program, env, wide=True)
    same(evaluate(after, env, wide=True), want, exact=False)
    same(execute(after, env), want, exact=False)
    return after


def _position(program: LoopProgram, stage: str, text: str) -> int:
    return [str(e) for e in parts(program.stage(stage))].index(text)


# ---- whole schedules


def test_softmax_by_rows() -> None:
    program = softmax(5, 7)
    after = _kept(program, [
        ["materialize", "out0", "reduce:0", "norm"],
        ["materialize", "norm", "reduce:1", "peak"],
        ["split", "out0", "o0", [2]],
        ["parallel", "out0", "o0_0"],
    ])  # fmt: skip
    assert [s.buffer for s in after.stages] == ["peak", "norm", "out0"]


def test_row_results_live_in_the_loop_over_rows() -> None:
    program = softmax(5, 7)
    exp = "exp(sub(x[o0,o1], max_{r0<7} x[o0,r0]))"
    after = _kept(program, [
        ["materialize", "out0", _position(program, "out0", exp), "e"],
        ["inline", "e"],
        ["materialize", "out0", _position(program, "out0", exp), "e"],
        ["parallel", "out0", "o0"],
        ["compute_at", "e", "out0", 1],
    ])  # fmt: skip
    assert show_stages(after).splitlines()[:3] == [
        "for o0<5 parallel",
        "  for e_1<7",
        "    e[0,e_1] = exp(sub(x[o0,e_1], max_{r0<7} x[o0,r0]))",
    ]


def test_a_matrix_product_in_blocks_with_its_epilogue() -> None:
    program = matmul(9, 12, 20, keep=True)
    after = _kept(program, [
        ["cache_read", "s0", "w", "packed"],
        ["transform_layout", "packed", [["split", 1, 8], ["permute", [1, 0, 2]]], "fill"],
        ["split", "s0", "o0", [4]],
        ["split", "s0", "o1", [8]],
        ["reorder", "s0", ["o1_0", "o0_0", "o0_1", "o1_1"]],
        ["reverse_compute_at", "out0"],
        ["parallel", "out0", "o1_0"],
        ["vectorize", "out0", "o1_1"],
        ["unroll", "out0", "o0_1"],
    ])  # fmt: skip
    assert [s.buffer for s in after.stages] == ["packed", "out0"]
    assert [(str(a.symbol), a.kind) for a in after.stage("out0").axes] == [
        ("o1_0", "parallel"), ("o0_0", "serial"), ("o0_1", "unroll"), ("o1_1", "vector"),
    ]  # fmt: skip


def test_a_sum_in_blocks_of_its_depth() -> None:
    program = matmul(6, 20, 10, keep=True)
    after = _kept(program, [
        ["split_reduction", "s0", 0, 0, [8]],
        ["decompose_reduction", "s0", [0], 0],
        ["split", "s0", "o1", [4]],
        ["parallel", "out0", "o0"],
    ])  # fmt: skip
    assert after.stage("s0").combine == "sum"
    assert show_stages(after).startswith(
        "for k0<3, o0<6, o1_0<3, o1_1<4 if 9-4*o1_0-o1_1>=0\n  s0[o0,4*o1_0+o1_1] sum= "
    )


def test_partial_sums_in_parallel() -> None:
    program = from_graph([total(make_input("x", (100,)), 0)])
    after = _kept(program, [
        ["split_reduction", "out0", 0, 0, [16]], ["rfactor", "out0", 0, [0], "part"], ["parallel", "part", "c0"],
    ])  # fmt: skip
    assert after.buffer("part").shape == (7,)


def test_sums_of_bfloat16_are_factored_in_float32() -> None:
    program = from_graph([total(make_input("x", (64,), "bfloat16"), 0)])
    after = apply(program, [["split_reduction", "out0", 0, 0, [8]], ["rfactor", "out0", 0, [0], "part"]])
    assert after.buffer("part").dtype == "float32"
    env = {"x": np.asarray([256, *[1] * 63]).astype(arrays(program)["x"].dtype)}
    assert float(evaluate(after, env)["out0"]) == float(evaluate(program, env)["out0"]) == 320


@pytest.mark.parametrize("stride", [1, 2])
def test_the_image_of_a_convolution_is_packed_with_its_padding(stride: int) -> None:
    program = convolution(5, 2, 3, stride)
    image = next(j for j, e in enumerate(parts(program.stages[0])) if e.kind == "load" and e.args[0] == "x")
    after = _kept(program, [["cache_read", "out0", image, "image"], ["cache_read", "out0", "w", "weights"]])
    assert after.buffer("image").shape == (7, 7, 2)
    assert reads(after.stage("out0")) == {"image", "weights"}
    assert not any("?" in line for line in show_stages(after).splitlines() if line.strip().startswith("weights"))


def test_a_part_keeps_the_guards_that_its_reads_need() -> None:
    a, b = make_input("a", (3, 4)), make_input("b", (2, 4))
    program = from_graph([mk("tanh", mk("concatenate", a, b, dimension=0))])
    after = _kept(program, [["materialize", "out0", _position(program, "out0", "b[o0-3,o1]"), "low"]])
    assert show_stages(after).splitlines()[1] == "  low[c0,c1] = [c0-3>=0] ? b[c0-3,c1] : 0"
    after = _kept(program, [["cache_read", "out0", _position(program, "out0", "b[o0-3,o1]"), "low"]])
    assert after.buffer("low").shape == (5, 4)


def test_taking_rows_by_number() -> None:
    t, i = make_input("t", (9, 6), frozen=True), make_input("i", (5, 1), "int32")
    taken = mk("gather", t, i, offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 6))
    program = from_graph([mk("exp", taken)], scratch={taken})
    load = next(j for j, e in enumerate(parts(program.stage("s0"))) if e.kind == "load" and e.args[0] == "t")
    _kept(program, [["inline", "s0"], ["split", "out0", "o0", [2]]])
    _kept(program, [["cache_read", "s0", load, "rows"], ["compute_at", "s0", "out0", 1]])
    _kept(program, [["cache_read", "s0", "i"], ["compute_at", "s0", "out0", 2]])


def test_neighbours_that_share_elements_compute_them_twice() -> None:
    program = two_stages(12, 9, 2)
    after = _kept(program, [["split", "out0", "o1", [3]], ["compute_at", "s0", "out0", 2]])
    assert after.buffer("s0").shape == (1, 5)
    wide = _kept(program, [["reorder", "out0", ["o1", "o0"]], ["compute_at", "s0", "out0", 1]])
    assert wide.buffer("s0").shape == (12, 3)


def test_blocks_keep_what_is_placed_inside() -> None:
    program = two_stages(6, 8, 1)
    _kept(program, [["split", "out0", "o1", [4]], ["compute_at", "s0", "out0", 2], ["blockize", "out0", 1]])
    _kept(program, [["split", "out0", "o1", [4]], ["compute_at", "s0", "out0", 1], ["blockize", "out0", 2]])
    _kept(program, [["compute_at", "s0", "out0", 1], ["cache_write", "out0"]])


def test_kinds_follow_into_placed_stages() -> None:
    after = _kept(
        two_stages(6, 8), [["compute_at", "s0", "out0", 1], ["parallel", "out0", "o0"], ["unroll", "s0", "s0_1"]]
    )
    assert [a.kind for a in after.stage("s0").axes] == ["parallel", "unroll"]
    assert [a.kind for a in _kept(after, [["unroll", "s0", "o0"]]).stage("out0").axes] == ["unroll", "serial"]


def test_knobs_are_set_and_taken_back() -> None:
    program = apply(pointwise(4), [["set_knob", "out0", "rows", 2], ["set_knob", "out0", "cache", "none"]])
    assert program.stage("out0").knobs == (("cache", "none"), ("rows", 2))
    assert apply(program, [["set_knob", "out0", "rows", None]]).stage("out0").knobs == (("cache", "none"),)


def test_the_executor_notices_what_the_oracle_cannot() -> None:
    x = make_input("x", (4,))
    program = split(from_graph([mk("exp", x)]), "out0", "o0", [3])
    unguarded = replace(program, stages=(replace(program.stages[0], guard=True),))
    with pytest.raises(BadAccess, match="x\\[4\\]"):
        execute(unguarded, arrays(program))


# ---- layouts and index maps


def test_layouts_and_their_inverses() -> None:
    shape, there, back = maps((5, 7), [["split", 1, 4], ["permute", [1, 0, 2]], ["fuse", 0], ["pad", 1, 5]])
    assert shape == [10, 5]
    seen = set()
    for i in range(5):
        for j in range(7):
            at = there([i, j])
            assert back(list(at)) == [i, j]
            assert all(0 <= int(k) < n for k, n in zip(at, shape, strict=True))
            seen.add(tuple(at))
    assert len(seen) == 35


@pytest.mark.parametrize("steps", [
    [["split", "out0", "o0", [4]], ["split", "out0", "o1", [2, 3]]],
    [["fuse", "out0", ["o0", "o1"]], ["split", "out0", "o0_o1", [4]]],
    [["split", "out0", "o0", [4]], ["fuse", "out0", ["o0_1", "o1"]]],
    [["pad", "out0", "o1", 4], ["fuse", "out0", ["o0", "o1"]]],
])  # fmt: skip
def test_axes_follow_from_the_element(steps: list[Any]) -> None:
    stage = apply(pointwise(10, 7), steps).stage("out0")
    for point in np.ndindex(*[a.extent for a in stage.axes]):
        at = {a.symbol: int(v) for a, v in zip(stage.axes, point, strict=True)}
        element = [substitute(x, dict(at)) for x in stage.index]
        if all(isinstance(x, int) and x < n for x, n in zip(element, (10, 7), strict=True)):
            found = solve(stage.index, list(at), element, (10, 7))
            assert found == at


# ---- traces as data


def test_traces_are_json() -> None:
    steps = trace([["split", "out0", "o0", [4]], ["set_knob", "out0", "a", None]])
    again = trace(json.loads(json.dumps(steps)))
    assert again == steps
    assert hash(again) == hash(steps)
    for wrong, message in (([["melt"]], "no step"), ([[]], "no step"), ([["split", 1.5]], "integers")):
        with pytest.raises(InputError, match=message):
            trace(wrong)


def test_an_illegal_step_is_data() -> None:
    found = attempt(pointwise(4), [["split", "out0", "o0", [2]], ["vectorize", "out0", "o0"]])
    assert isinstance(found, Illegal)
    assert (found.number, found.step) == (1, ("vectorize", "out0", "o0"))
    assert "no axis 'o0'" in found.message
    with pytest.raises(InputError, match="step 1"):
        apply(pointwise(4), [["split", "out0", "o0", [2]], ["vectorize", "out0", "o0"]])


def test_decisions_of_tiles_are_pairs() -> None:
    pairs = [["rows", [["o0", 14]]], ["vectors", 3], ["pack_a", "task"], ["columns_first", 0], ["depth", ["r0"]]]
    decisions = decisions_of(pairs)
    assert decisions == ContractionDecisions(
        rows=(("o0", 14),), vectors=3, pack_a="task", columns_first=False, depth=("r0",)
    )
    assert sorted(pairs_of(decisions)) == sorted(pairs)
    assert pairs_of(ContractionDecisions()) == []


# ---- illegal uses

MATMUL, SOFTMAX, TWO, POINTS = matmul(9, 12, 20, keep=True), softmax(5, 7), two_stages(6, 8, 1), pointwise(6, 5)
PARALLEL = [["parallel", "out0", "o0"]]
PLACED = [["compute_at", "s0", "out0", 1]]
TILED = [["tensorize", "out0", [["pack_b", "none"], ["rows", [["o0", 2]]]]]]
BLOCKS = [["split_reduction", "s0", 0, 0, [4]], ["decompose_reduction", "s0", [0], 0]]
X = make_input("x", (6, 5))
DIAGONAL = from_graph([mk("add", X, rows(total(mk("exp", X), 1), X))], scratch={mk("exp", X)})
REVERSED = from_graph([mk("slice", mk("exp", X), start_indices=(1, 0), limit_indices=(6, 5))], scratch={mk("exp", X)})
PADDED = from_graph(
    [mk("pad", mk("exp", X), literal(0.0), padding_config=((0, 2, 0), (0, 0, 0)))], scratch={mk("exp", X)}
)
HALF = from_graph([total(make_input("x", (6, 8), "bfloat16"), 1)])

ILLEGAL: list[tuple[LoopProgram, list[Any], list[Any], str]] = [
    (POINTS, [], ["split", "out1", "o0", [2]], "no stage 'out1'"),
    (POINTS, [], ["split", "out0", "o7", [2]], "no axis 'o7'"),
    (POINTS, [], ["split", "out0", "o0", [0]], "at least 1"),
    (POINTS, [], ["split", "out0", "o0", []], "at least 1"),
    (POINTS, [], ["split", "out0", "o0", 4], "factors cannot be 4"),
    (POINTS, [], ["split", "out0", "o0"], "takes 3 to 3 arguments"),
    (TWO, PLACED, ["split", "out0", "o0", [2]], "s0 is placed under its axis o0"),
    (TWO, PLACED, ["split", "s0", "o0", [2]], "belongs to out0"),
    (POINTS, [], ["fuse", "out0", ["o0"]], "two axes"),
    (POINTS, [], ["fuse", "out0", ["o1", "o0"]], "has the axes"),
    (POINTS, PARALLEL, ["fuse", "out0", ["o0", "o1"]], "several kinds"),
    (MATMUL, BLOCKS, ["fuse", "s0", ["k0", "o0"]], "accumulates over \\['k0'\\]"),
    (POINTS, [], ["reorder", "out0", ["o0", "o0"]], "repeated"),
    (POINTS, PARALLEL, ["reorder", "out0", ["o1", "o0"]], "not its outermost"),
    (TWO, PLACED, ["reorder", "out0", ["o1", "o0"]], "s0 is placed under"),
    (POINTS, [], ["parallel", "out0", "o1"], "not its outermost"),
    (MATMUL, BLOCKS, ["parallel", "s0", "k0"], "write the same elements"),
    (TWO, PLACED, ["parallel", "s0", "s0_1"], "parallel axes"),
    (POINTS, [], ["vectorize", "out0", "o0"], "not its innermost"),
    (POINTS, [], ["unroll", "out0", "o2"], "no axis"),
    (POINTS, [], ["pad", "out0", "o0", 0], "multiple of 0"),
    (TWO, PLACED, ["pad", "out0", "o0", 4], "s0 is placed under"),
    (POINTS, [], ["set_knob", "x", "a", 1], "no stage"),
    (POINTS, [], ["inline", "out0"], "must be kept"),
    (TWO, [["cache_write", "s0"], ["blockize", "s0_cache", 1]], ["inline", "s0_cache"], "are placed in it"),
    (MATMUL, BLOCKS, ["inline", "s0"], "do not follow from the element"),
    (POINTS, [], ["materialize", "out0", 7], "no 7"),
    (POINTS, [], ["materialize", "out0", "reduce:0"], "no 'reduce:0'"),
    (POINTS, [], ["materialize", "out0", "sum"], "names no part"),
    (POINTS, [], ["materialize", "out0", 1, "x"], "a buffer x already"),
    (POINTS, [], ["materialize", "out0", 1, "x[0]"], "cannot be the name"),
    (TWO, PLACED, ["materialize", "out0", 1], "local to out0"),
    (POINTS, [], ["cache_read", "out0", "y"], "no buffer 'y'"),
    (TWO, [], ["cache_read", "out0", "x"], "does not read it"),
    (TWO, PLACED, ["cache_read", "out0", "s0"], "local to out0 already"),
    (POINTS, [], ["cache_read", "out0", 0, "x"], "a buffer x already"),
    (TWO, PLACED, ["cache_write", "s0"], "placed inside out0"),
    (POINTS, [], ["cache_write", "out0", "x"], "a buffer x already"),
    (POINTS, [], ["compute_at", "out0", "out0", 0], "no phase that fills scratch"),
    (TWO, [], ["compute_at", "s0", "out0", 3], "has 2 axes, not 3"),
    (TWO, [["parallel", "out0", "o0"]], ["compute_at", "s0", "out0", 0], "outside parallel axes"),
    (DIAGONAL, [["materialize", "out0", "reduce:0", "t"]], ["compute_at", "s0", "out0", 1], "t reads it outside"),
    (TWO, [["transform_layout", "s0", [["split", 1, 3]], "keep"], ["transform_layout", "s0", [["pad", 0, 9]], "keep"]],
     ["compute_at", "s0", "out0", 1], "does not write every element"),
    (POINTS, [], ["reverse_compute_at", "out0"], "no scratch buffer"),
    (TWO, [], ["reverse_compute_at", "out0"], "at 2 indices"),
    (REVERSED, [], ["reverse_compute_at", "out0"], "no scratch buffer"),
    (MATMUL, BLOCKS, ["reverse_compute_at", "out0"], "accumulates"),
    (PADDED, [], ["reverse_compute_at", "out0"], "outside of 6 elements"),
    (POINTS, [], ["blockize", "out0", 3], "2 axes, not 3"),
    (POINTS, PARALLEL, ["blockize", "out0", 0], "outside parallel axes"),
    (MATMUL, BLOCKS, ["blockize", "s0", 1], "accumulates"),
    (POINTS, [], ["split_reduction", "out0", 0, 0, [2]], "0 such parts"),
    (SOFTMAX, [], ["split_reduction", "out0", 0, 1, [2]], "no number 1"),
    (SOFTMAX, [], ["split_reduction", "out0", 0, 0, [0]], "at least 1"),
    (SOFTMAX, [], ["pad_reduction", "out0", 0, 0, 0], "multiple of 0"),
    (SOFTMAX, [], ["reorder_reduction", "out0", 0, [0, 0]], "no permutation"),
    (SOFTMAX, [], ["rfactor", "out0", 0, [0]], "split the reduction|has the iterators"),
    (SOFTMAX, [], ["rfactor", "out0", 0, []], "has the iterators"),
    (SOFTMAX, [], ["decompose_reduction", "out0", [0], 0], "no reduction, but op"),
    (MATMUL, [], ["decompose_reduction", "s0", [1], 0], "the iterators are"),
    (MATMUL, [], ["decompose_reduction", "s0", [0], 3], "2 axes, not 3"),
    (HALF, [], ["decompose_reduction", "out0", [0], 0], "rounded to bfloat16"),
    (POINTS, [], ["transform_layout", "x", [["split", 0, 2]]], "the caller's"),
    (TWO, [], ["transform_layout", "s0", [["split", 2, 2]]], "does not fit"),
    (TWO, [], ["transform_layout", "s0", [["permute", [0, 0]]]], "does not fit"),
    (TWO, [], ["transform_layout", "s0", [["pad", 0, 2]]], "does not fit"),
    (TWO, [], ["transform_layout", "s0", [[]]], "does not fit"),
    (TWO, [], ["transform_layout", "s0", [["permute", ["o0", 1]]]], "does not fit"),
    (TWO, [], ["transform_layout", "s0", [["fuse", 0]], "melt"], "keep, new or fill"),
    (TWO, PLACED, ["transform_layout", "s0", [["fuse", 0]], "new"], "placed in another"),
    (POINTS, [], ["tensorize", "out0", []], "holds no contraction"),
    (POINTS, [], ["choose", "out0"], "no comparison of positions"),
    (POINTS, [], ["share", "out0", 99], "no 99"),
    (MATMUL, [], ["factor_out", "s0", 0], "every factor"),
    (POINTS, [], ["factor_out", "out0", 0], "such parts"),
    (POINTS, [], ["skip", "out0", 0], "inside no other stage"),
    (TWO, PLACED, ["skip", "s0", 0], "minus infinity"),
    (POINTS, [], ["widen", "out0"], "nothing in 16-bit floats"),
    (MATMUL, [], ["split_prefix", "s0", 0, 2], "no prefix"),
    (MATMUL, BLOCKS, ["tensorize", "s0", []], "holds no contraction"),
    (product(4, 5, 16), [], ["tensorize", "out0", [["speed", 9]]], "no decision"),
    (product(4, 5, 16), [], ["tensorize", "out0", [["rows", [["z", 2]]]]], "names? the axis 'z'"),
    (product(4, 5, 16), TILED, ["split", "out0", "o0m", [2]], "it is tensorized"),
    (product(4, 5, 16), TILED, ["split_reduction", "out0", 0, 0, [2]], "it is tensorized"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "before", "step", "message"), ILLEGAL, ids=[str(c[2]) for c in ILLEGAL])
def test_what_would_change_the_value_is_refused(
    program: LoopProgram, before: list[Any], step: list[Any], message: str
) -> None:
    legal = apply(program, before)
    with pytest.raises(InputError, match=message):
        apply(legal, [step])


def test_values_that_are_read_twice_at_every_step_are_widened_without_being_printed() -> None:
    squared = make_input("x", (6,), "bfloat16")
    for _ in range(60):  # printed it would be 2 ** 60 names long
        squared = mk("mul", squared, squared)
    program = apply(from_graph([squared]), [["widen", "out0"]])
    assert {e.dtype for e in subexpressions(program.stage("out0").value) if e.kind == "op"} == {"float32"}


def test_every_primitive_refuses_something() -> None:
    assert {case[2][0] for case in ILLEGAL} == set(PRIMITIVES)
