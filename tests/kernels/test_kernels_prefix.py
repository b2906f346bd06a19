"""Prefix folds in blocks: right, proved, and chosen where a call has more threads than rows."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.errors import InputError
from superopt.ir.graph import Node, literal, make_input, mk
from superopt.kernels.choose.defaults import default, default_trace
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.runtime.kernel import build
from superopt.kernels.schedule.trace import apply
from superopt.schedules.space import space_of
from verifier.schedules import check_schedule

needs_code = pytest.mark.skipif(not supported(), reason="no code is made for this processor")
CASES = [
    ("cumsum", (37,), 0, False, 8), ("cumsum", (3, 50), 1, True, 16), ("cummax", (2, 41), 1, False, 5),
    ("cummin", (2, 48), 1, True, 16), ("cumprod", (19, 6), 0, False, 4), ("cumsum", (1, 7), 1, False, 6),
]  # fmt: skip


def prefix(op: str, shape: tuple[int, ...], axis: int, reverse: bool, dtype: str = "float32") -> LoopProgram:
    """A map of a prefix of a map."""
    x = make_input("x", shape, dtype)
    return from_graph([mk("mul", mk(op, mk("abs", x), axis=axis, reverse=reverse), x)])


def values(program: LoopProgram) -> dict[str, np.ndarray]:
    buffer = program.buffer("x")
    x = np.random.default_rng(0).standard_normal(buffer.shape)
    return {"x": (8 * x if buffer.dtype == "int32" else x).astype(np.dtype(buffer.dtype))}


@needs_code
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_prefix_in_blocks(case: tuple[str, tuple[int, ...], int, bool, int], dtype: str) -> None:
    *form, block = case
    program = prefix(*form, dtype)  # type: ignore[arg-type]
    after = apply(program, [["split_prefix", "out0", 0, block]])
    inputs = values(program)
    expected = evaluate(program, inputs, wide=True)["out0"].astype(np.float64)
    np.testing.assert_allclose(evaluate(after, inputs, wide=True)["out0"], expected, rtol=1e-12)
    found = build(generate(after)).run(inputs, threads=2, guard=True)["out0"].astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-2 if dtype == "bfloat16" else 2e-5, atol=1e-5)
    assert check_schedule(program, after).proved


@needs_code
@pytest.mark.parametrize(("rows", "threads", "cut"), [(1, 4, True), (2, 4, True), (3, 4, False), (1, 1, False)])
def test_few_long_rows_are_cut_into_blocks_for_several_threads(rows: int, threads: int, cut: bool) -> None:
    program = prefix("cumsum", (rows, 50_001), 1, False)
    after = default(program, threads=threads)
    assert ("split_prefix" in {step[0] for step in default_trace(program, threads=threads)}) == cut
    assert (len(after.phases()) == 2) == cut
    inputs = values(program)
    tasks = generate(after).phases[-1].tasks
    assert not cut or tasks >= threads
    expected = np.cumsum(np.abs(inputs["x"].astype(np.float64)), 1) * inputs["x"]
    np.testing.assert_allclose(build(generate(after)).run(inputs, threads=threads)["out0"], expected, rtol=1e-4)
    space = space_of(program, threads=threads)
    assert apply(program, space.trace(space.start)) == after


def test_short_rows_stay_whole() -> None:
    assert len(default(prefix("cumsum", (1, 512), 1, False), threads=4).phases()) == 1


def _mean(x: Node) -> Node:
    return mk("reduce_sum", x, axes=(1,))


def test_what_is_no_prefix_is_refused() -> None:
    program = from_graph([_mean(make_input("x", (4, 9)))])
    with pytest.raises(InputError, match="no prefix"):
        apply(program, [["split_prefix", "out0", 0, 4]])
    for block in (0, 9):
        with pytest.raises(InputError, match=f"no blocks of {block}"):
            apply(prefix("cumsum", (9,), 0, False), [["split_prefix", "out0", 0, block]])


@needs_code
def test_a_loop_carries_no_prefix_under_guards_of_loops_inside_it() -> None:
    """An axis of one element is split into eight: a guard, whose iterator has no value around the carrying loop."""
    x = mk("pad", make_input("x", (1, 7)), literal(1.0, "float32"), padding_config=((0, 0, 0), (1, 0, 0)))
    program = from_graph([mk("cummin", x, axis=1, reverse=False)])
    steps = [["reorder", "out0", ["o1", "o0"]], ["split", "out0", "o0", [8]], ["vectorize", "out0", "o0_1"]]
    inputs = values(program)
    found = build(generate(apply(program, steps))).run(inputs, guard=True)["out0"]
    np.testing.assert_array_equal(found, evaluate(program, inputs)["out0"])
