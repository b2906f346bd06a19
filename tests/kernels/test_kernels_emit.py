"""The generator: every op of the table, and what the code of typical kernels looks like, against the oracle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from superopt.errors import UnsupportedKernel
from superopt.ir import program as programs
from superopt.ir.graph import Node, literal, make_input, mk, topological
from superopt.ir.ops.table import LINEAR, TABLE
from superopt.ir.scalar import SCALARS
from superopt.ir.types import Size
from superopt.kernels import schedule
from superopt.kernels.emit import generate as generator
from superopt.kernels.emit.generate import generate
from superopt.kernels.emit.options import DEFAULT, STRICT, Licence
from superopt.kernels.llvm import cpu
from superopt.kernels.llvm import module as llvm_module
from superopt.kernels.llvm.module import Module
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.math.table import has_code
from superopt.kernels.runtime.kernel import build
from superopt.lab.fuzz.kernels import check, is_exact
from superopt.machine.facts import taken
from tests.support import ir_cases
from tests.support.machines import AVX2, AVX512

pytestmark = pytest.mark.skipif(not cpu.supported(), reason="no code is generated for this processor")
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-12}
OPS = [op for op in TABLE if TABLE[op].at is not None and op != "macro"]


@pytest.fixture(autouse=True)
def _objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def run(
    program: LoopProgram, arrays: dict[str, np.ndarray], licence: Licence = DEFAULT, bits: int = 512
) -> dict[str, np.ndarray]:
    code = generate(program, cpu.restricted(cpu.host(), bits), licence)
    return build(code, pipeline="none").run(arrays, guard=True)


def text_of(program: LoopProgram, bits: int = 512) -> str:
    return generate(program, cpu.restricted(cpu.host(), bits)).module.text()


def random_arrays(program: LoopProgram, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    kinds = {b.name: b for b in program.buffers if b.scope in ("input", "frozen")}
    return {n: rng.standard_normal(b.shape).astype(np.dtype(b.dtype)) for n, b in kinds.items()}


def agree(program: LoopProgram, like: LoopProgram | None = None, tolerance: float = 1e-5, bits: int = 512) -> None:
    arrays = random_arrays(program)
    got, want = run(program, arrays, bits=bits), evaluate(like or program, arrays, wide=True)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=tolerance, atol=tolerance * max(1, np.abs(value).max()))


def bc(x: Node, shape: Sequence[Size], dims: Sequence[int]) -> Node:
    return mk("broadcast_in_dim", x, shape=tuple(shape), broadcast_dimensions=tuple(dims))


def softmax(x: Node) -> Node:
    s, last = x.shape, len(x.shape) - 1
    rows = tuple(range(last))
    e = mk("exp", mk("sub", x, bc(mk("reduce_max", x, axes=(last,)), s, rows)))
    return mk("div", e, bc(mk("reduce_sum", e, axes=(last,)), s, rows))


# ---- every op


@pytest.mark.parametrize("bits", [512, 256])
def test_every_op(bits: int) -> None:
    """Two samples of each op, with special values; exact ones have the interpreter's bits under the strict licence."""
    rng = np.random.default_rng(bits)
    cases: dict[bool, list[tuple[Node, dict[str, np.ndarray]]]] = {True: [], False: []}
    for op in [op for op in OPS if op not in LINEAR and (op not in SCALARS or has_code(op))]:
        found = [n for n in ir_cases.samples(op, rng) if 0 not in n.shape]
        for node in [found[int(j)] for j in rng.choice(len(found), min(2, len(found)), replace=False)]:
            case = node, ir_cases.values(node, rng)
            cases[is_exact(from_graph([node]))].append(case)
    assert min(len(cases[True]), len(cases[False])) > 50
    for strict, group in cases.items():
        for j in range(0, len(group), 40):
            _check_together(group[j : j + 40], strict, bits)


def _check_together(part: list[tuple[Node, dict[str, np.ndarray]]], strict: bool, bits: int) -> None:
    """Many nodes as one program, so that LLVM is called once."""
    roots, arrays = [], {}
    for j, (node, values) in enumerate(part):
        names = {x: make_input(f"{x['name']}{j}", x.shape, x.dtype) for x in topological([node]) if x.op == "input"}
        roots += programs.replace([node], dict(names))
        arrays |= {f"{name}{j}": value for name, value in values.items()}
    program = from_graph(roots)
    arrays = {b.name: arrays[b.name] for b in program.buffers if b.scope == "input"}
    got = run(program, arrays, STRICT if strict else DEFAULT, bits)
    want = evaluate(program, arrays)
    for j, (node, _) in enumerate(part):
        a, b = got[f"out{j}"], want[f"out{j}"]
        if strict or a.dtype.kind in "biu":
            same = (a == b) | ((a != a) & (b != b))
            assert np.all(same), f"{node}: {a[~same]} instead of {b[~same]}"
            continue
        t = TOLERANCE[str(a.dtype)]
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=t, atol=t, err_msg=str(node))


def test_strict_licence() -> None:
    """Polynomials are refused, and a product and a sum are two roundings."""
    x, y = make_input("x", (100,)), make_input("y", (100,))
    with pytest.raises(UnsupportedKernel, match="exp"):
        generate(from_graph([mk("exp", x)]), licence=STRICT)
    program = from_graph([mk("add", mk("mul", x, y), mk("div", x, bc(literal(3.0), (100,), ())))])
    arrays = random_arrays(program)
    np.testing.assert_array_equal(run(program, arrays, STRICT)["out0"], evaluate(program, arrays)["out0"])
    assert "llvm.fma" in text_of(program)
    assert "fdiv" not in text_of(program)


def test_nan_in_extrema() -> None:
    x = make_input("x", (5, 40))
    program = from_graph([mk("reduce_max", x, axes=(1,)), mk("argmax", x, axes=(1,))])
    array = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    array[1, 7] = array[3, 39] = np.nan
    got, want = run(program, {"x": array}), evaluate(program, {"x": array})
    np.testing.assert_array_equal(got["out0"], want["out0"])
    np.testing.assert_array_equal(got["out1"], want["out1"])


# ---- what the code looks like


@pytest.mark.parametrize("shape", [(37, 53), (8, 128), (3, 1), (1, 7), (4, 5, 33)])
@pytest.mark.parametrize("cache", ["none", "scratch", "output"])
def test_softmax_phases(shape: tuple[int, ...], cache: str) -> None:
    """Three phases of a row; with a row cache each exponential is computed once."""
    program = from_graph([softmax(make_input("x", shape))])
    program = schedule.set_knob(program, "out0", "cache", cache)
    agree(program)
    if shape == (8, 128):  # loops without tails
        single = schedule.set_knob(schedule.set_knob(program, "out0", "vectors", 1), "out0", "rows", 1)
        rounds = len(re.findall("0x3FF71547", text_of(single)))
        assert rounds == {"none": 5, "scratch": 4, "output": 4}[cache]  # 4 accumulators, and the last phase


def test_transposes_stay_in_registers() -> None:
    program = from_graph([mk("transpose", make_input("x", (64, 48)), permutation=(1, 0))])
    assert "gather" not in text_of(program)
    agree(program)
    agree(from_graph([mk("transpose", make_input("x", (37, 41)), permutation=(1, 0))]))
    assert "gather" in text_of(schedule.set_knob(program, "out0", "transpose", 0))


def test_strided_loads_are_shuffles() -> None:
    x = make_input("x", (4, 130))
    for step in (2, 3):
        y = mk("slice", x, start_indices=(0, 1), limit_indices=(4, 130), strides=(1, step))
        program = from_graph([y])
        assert "gather" not in text_of(program).split("masked")[0]
        agree(program)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_prefixes_run(axis: int, reverse: bool) -> None:
    """A prefix sum is one pass: no loop inside the loop over its end."""
    program = from_graph([mk("cumsum", make_input("x", (40, 70)), axis=axis, reverse=reverse)])
    agree(program)
    agree(from_graph([mk("cummax", make_input("x", (7, 5, 33)), axis=2, reverse=reverse)]))


def test_ranges_that_end_before_they_begin() -> None:
    """The last suffix of a concatenation has nothing of its first piece: no step, not a part of one."""
    x = mk("concatenate", make_input("x", (17,)), make_input("y", (4,)), dimension=0)
    suffixes = mk("broadcast_in_dim", mk("cummax", x, axis=0, reverse=True), shape=(21, 5), broadcast_dimensions=(0,))
    program = from_graph([mk("reduce_sum", mk("mul", suffixes, make_input("z", (21, 5))), axes=[0])])
    agree(program)
    agree(replace(program, stages=(replace(program.stages[0], knobs=(("window", 9),)),)))
    with taken(AVX512):
        code = text_of(program)
    assert code.count("phi i64") <= 4


def test_windows_are_written_out_where_registers_hold_more_than_a_step() -> None:
    x, w = make_input("x", (1, 20, 20, 16)), make_input("w", (5, 5, 1, 16))
    y = mk(
        "conv_general_dilated", x, w, window_strides=(1, 1), padding=((0, 0), (0, 0)), feature_group_count=16,
        dimension_numbers=((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)),
    )  # fmt: skip
    agree(from_graph([y]))
    sizes = {}
    for machine in (AVX512, AVX2):
        with taken(machine):
            sizes[machine.cpu] = len(text_of(from_graph([y])))
    assert sizes["znver4"] > 3 * sizes["znver3"], sizes


def test_a_window_of_sigmoids_is_a_loop() -> None:
    """49 steps for eight vectors, written out, took four seconds to compile."""
    x = make_input("x", (7, 7, 1280))
    program = from_graph([mk("reduce_sum", mk("logistic", x), axes=(0, 1))])
    with taken(AVX512):
        assert len(text_of(program)) < 100_000
    agree(from_graph([mk("reduce_sum", mk("logistic", make_input("x", (7, 7, 40))), axes=(0, 1))]))


def test_interiors_have_no_guards() -> None:
    """A window over the inside of an image chooses nothing; its borders bound loops."""
    x, w = make_input("x", (1, 20, 20, 16)), make_input("w", (3, 3, 1, 16))
    y = mk(
        "conv_general_dilated", x, w, window_strides=(1, 1), padding=((1, 1), (1, 1)), feature_group_count=16,
        dimension_numbers=((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)),
    )  # fmt: skip
    program = from_graph([y])
    agree(program)
    assert not re.search(r"select <", text_of(program))
    assert re.search(r"select <", text_of(schedule.set_knob(program, "out0", "cut", 0)))


def test_heads_are_moved_whole() -> None:
    x = mk("reshape", make_input("x", (33, 48)), new_sizes=(33, 3, 16))
    program = from_graph([mk("transpose", x, permutation=(1, 0, 2))])
    agree(program)
    code = text_of(program)
    assert "gather" not in code
    assert code.count("udiv") == 1  # of the number of a task


def test_narrow_vectors() -> None:
    """For AVX2 nothing is wider than 256 bits."""
    program = from_graph([softmax(make_input("x", (9, 40)))])
    agree(program, bits=256)
    assert "<16 x float>" not in text_of(program, 256)
    assert "<8 x float>" in text_of(program, 256)


def test_sixteen_bits() -> None:
    """Under the strict licence every function rounds, as in the interpreter."""
    for dtype in ("bfloat16", "float16"):
        x, y = make_input("x", (50,), dtype), make_input("y", (50,), dtype)
        program = from_graph([mk("sub", mk("mul", mk("add", x, y), x), mk("neg", y))])
        rng = np.random.default_rng(1)
        arrays = {n: ir_cases.array(v, rng, "mul") for n, v in (("x", x), ("y", y))}
        got, want = run(program, arrays, STRICT)["out0"], evaluate(program, arrays)["out0"]
        np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


# ---- scheduled stages


def test_a_stage_that_is_parallel_runs_along_a_lane_too() -> None:
    made = schedule.parallel(from_graph([mk("exp", make_input("x", (8, 64)))]), "out0", "o0")
    assert "x float>" in text_of(made)


def test_register_tile_of_a_plain_nest() -> None:
    """Unrolled rows and lane vectors share one loop over the reduction."""
    a, b = make_input("a", (24, 30)), make_input("b", (30, 64))
    plain = from_graph([mk("dot_general", a, b, dimension_numbers=(((1,), (0,)), ((), ())))])
    made = schedule.split(plain, "out0", "o0", [4])
    made = schedule.reorder(made, "out0", ["o0_0", "o0_1", "o1"])
    made = schedule.unroll(made, "out0", "o0_1")
    made = schedule.parallel(made, "out0", "o0_0")
    made = schedule.vectorize(made, "out0", "o1")
    made = schedule.set_knob(made, "out0", "window", 0)
    agree(made, plain)
    assert max(len(re.findall(r"phi <", b)) for b in text_of(made).split("phi i64")) == 16


def test_placed_stages() -> None:
    """A stage computed inside another fills a buffer on the stack of the task."""
    x = make_input("x", (20, 33))
    y = mk("exp", x)
    plain = from_graph([softmax(y)], scratch=frozenset([y]))
    for count in (0, 1):
        made = schedule.compute_at(plain, "s0", "out0", count)
        agree(made, plain)
        assert len(generate(made).phases) == 1


@pytest.mark.parametrize("place", [0, 1, 2])
def test_accumulation(place: int) -> None:
    a, b = make_input("a", (7, 30)), make_input("b", (30, 40))
    plain = from_graph([mk("dot_general", a, b, dimension_numbers=(((1,), (0,)), ((), ())))])
    agree(schedule.decompose_reduction(plain, "out0", [0], place), plain)


def test_inexact_splits() -> None:
    plain = from_graph([mk("tanh", make_input("x", (13, 50)))])
    for axis, by in (("o0", 4), ("o1", 16), ("o1", 7)):
        agree(schedule.split(plain, "out0", axis, [by]), plain)


def test_tasks_are_independent() -> None:
    """Tasks in any order give the same result, whatever the rows of a task."""
    program = schedule.set_knob(from_graph([softmax(make_input("x", (50, 40)))]), "out0", "rows", 1)
    arrays = random_arrays(program)
    want = run(program, arrays)["out0"]
    for rows in (1, 7, 50):
        made = schedule.set_knob(program, "out0", "rows_per_task", rows)
        code = generate(made)
        assert code.phases[0].tasks == -(-50 // rows)
        kernel = build(replace(code), pipeline="none")
        np.testing.assert_array_equal(kernel.run(arrays, threads=2)["out0"], want)


def test_large_expressions_are_refused() -> None:
    x = make_input("x", (4,))
    for _ in range(12_000):
        x = mk("neg", mk("tanh", x))
    with pytest.raises(UnsupportedKernel, match="nodes"):
        generate(from_graph([x]))


def test_code_without_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule under which reductions are repeated at very many points is an error, not minutes of compiling."""
    program = from_graph([mk("reduce_sum", mk("exp", make_input("x", (64, 40))), axes=[1])])
    agree(program)
    monkeypatch.setattr(llvm_module, "MOST_VALUES", 50)
    generator._generated.cache_clear()
    with pytest.raises(UnsupportedKernel, match="instructions"):
        text_of(program)


def test_gathers_of_bytes_are_refused_where_they_are_very_many() -> None:
    """LLVM makes a branch for every lane of them: a loop over 44 rows, written out, was minutes of compiling."""
    f = Module(cpu.host()).function("f", [("ptr", "p")])
    f.gather("<16 x i32>", "%p")
    assert f.written == 1
    for _ in range(70):
        f.gather("<64 x i8>", "%p")
    with pytest.raises(UnsupportedKernel, match="instructions"):
        [f.gather("<64 x i8>", "%p") for _ in range(30)]
    assert check(100012).startswith("refused")


@pytest.mark.parametrize("window", [0, 64])
def test_an_argmax_finds_sums_that_it_computes_again(window: int) -> None:
    """Elements and their maximum are rounded alike, in whichever loops they are."""
    x, y = make_input("x", (33,)), make_input("y", (33, 37))
    rows = mk("broadcast_in_dim", x, shape=(33, 37), broadcast_dimensions=(0,))
    program = from_graph([mk("argmax", mk("reduce_sum", mk("mul", rows, y), axes=[0]), axes=[0])])
    (stage,) = program.stages
    for knobs in ((("window", window),), (("window", window), ("accumulators", 1))):
        agree(replace(program, stages=(replace(stage, knobs=knobs),)))
    agree(schedule.decompose_reduction(program, "out0", [0], 0))
