"""Random schedules of random programs: the value stays, and every step reads and writes only what it may."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superopt.ir.expr import subexpressions
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.show import digest, show
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule import PRIMITIVES
from superopt.kernels.schedule.trace import Illegal, apply, attempt, trace
from tests.support import schedule_random
from tests.support.loop_executor import execute
from tests.support.schedule_cases import arrays, product, same

STEPS = 7
OWN = ("tensorize", "choose", "skip", "factor_out")  # need what random programs seldom have; see test_kernels_chains.py
SEEDS = st.integers(0, 2**32 - 1)
QUICK = settings(derandomize=True, deadline=None, database=None, max_examples=120)


def _scheduled(program: LoopProgram, rng: np.random.Generator) -> tuple[LoopProgram, list[schedule_random.Step]]:
    """The program after random legal steps."""
    taken: list[schedule_random.Step] = []
    now = program
    for _ in range(STEPS):
        step = schedule_random.step(rng, now)
        after = attempt(now, [step])
        if isinstance(after, LoopProgram):
            now = after
            taken.append(step)
    return now, taken


def _reassociates(program: LoopProgram) -> bool:
    """Is there a sum of floats, whose order of additions a schedule may change?"""
    every = [e for s in program.stages for e in subexpressions(s.value)]
    return any(e.kind == "reduce" and e.args[0] == "sum" and "float" in e.dtype for e in every)


@QUICK
@given(SEEDS)
def test_random_schedules_keep_the_value(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = schedule_random.program(rng)
    scheduled, taken = _scheduled(program, rng)
    env = arrays(program, seed)
    same(evaluate(scheduled, env, wide=True), evaluate(program, env, wide=True), exact=False)
    if not _reassociates(program) and all(step[0] != "widen" for step in taken):
        same(evaluate(scheduled, env), evaluate(program, env))
    replayed = apply(program, trace(json.loads(json.dumps(trace(taken)))))
    assert digest(replayed) == digest(scheduled)
    assert show(replayed) == show(scheduled)


@QUICK
@given(SEEDS)
def test_scheduled_programs_read_only_what_is_written(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = schedule_random.program(rng)
    scheduled, _ = _scheduled(program, rng)
    if sum(int(np.prod([a.extent for a in s.axes])) for s in scheduled.stages) <= 2000:
        env = arrays(program, seed)
        same(execute(scheduled, env), evaluate(program, env, wide=True), exact=False)


@pytest.mark.parametrize("most", [4, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [p for p in PRIMITIVES if p not in OWN])
def test_each_primitive_keeps_the_value(name: str, most: int) -> None:
    rng = np.random.default_rng(len(name))
    legal = 0
    for _ in range(1500):
        program = schedule_random.program(rng)
        if rng.random() < 0.5:
            program, _ = _scheduled(program, rng)
        if name in ("rfactor", "reorder_reduction"):  # more than one iterator
            split = attempt(program, [schedule_random.step(rng, program, "split_reduction")])
            program = split if isinstance(split, LoopProgram) else program
        step = schedule_random.step(rng, program, name)
        after = attempt(program, [step])
        if isinstance(after, Illegal):
            continue
        env = arrays(program, legal)
        want = evaluate(program, env, wide=True)
        same(evaluate(after, env, wide=True), want, exact=False)
        if sum(int(np.prod([a.extent for a in s.axes])) for s in after.stages) <= 300:
            same(execute(after, env), want, exact=False)
        legal += 1
        if legal == most:
            return
    pytest.fail(f"only {legal} legal uses of {name}")


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 17), (13, 16, 40), (8, 3, 64)])
def test_register_tiles_keep_the_value(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    program = product(*shape)
    env = arrays(program)
    want = evaluate(program, env, wide=True)
    legal = 0
    for _ in range(12):
        step = ("tensorize", "out0", schedule_random.tile(rng, ["o0"]))
        after = attempt(program, [step])
        if isinstance(after, LoopProgram):
            same(evaluate(after, env, wide=True), want, exact=False)
            legal += 1
    assert legal >= 2 or 1 in shape


def test_traces_replay_on_other_shapes() -> None:
    steps = [
        ["cache_read", "out0", "w", "packed"],
        ["transform_layout", "packed", [["split", 1, 16], ["permute", [1, 0, 2]]], "fill"],
        ["split", "out0", "o1", [16]],
        ["split", "out0", "o0", [4]],
        ["reorder", "out0", ["o1_0", "o0_0", "o0_1", "o1_1"]],
        ["parallel", "out0", "o1_0"],
        ["vectorize", "out0", "o1_1"],
        ["split_reduction", "out0", 0, 0, [8]],
    ]
    for shape in ((16, 32, 64), (5, 7, 11), (1, 2, 1), (33, 8, 17)):
        program = product(*shape)
        after = apply(program, steps)
        env = arrays(program)
        same(evaluate(after, env, wide=True), evaluate(program, env, wide=True), exact=False)
    stuck = attempt(product(4, 1, 4), steps)  # a sum of one term is no sum
    assert isinstance(stuck, Illegal)
    assert stuck.number == 7
    assert "0 such parts" in stuck.message
