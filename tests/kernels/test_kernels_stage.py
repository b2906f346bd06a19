"""Loop programs from graphs: values, outputs that read one another, frozen parts, print, hash, well-formedness."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt.errors import ArgumentError, InputError
from superopt.ir import interp
from superopt.ir.expr import load
from superopt.ir.graph import Node, make_input, mk, topological
from superopt.ir.index import Symbol, iterator, symbol
from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import checked, from_graph
from superopt.kernels.loops.show import digest, show
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage
from superopt.kernels.schedule import cache_read, compute_at, set_knob, split, transform_layout
from tests.support import ir_cases
from tests.support.loop_executor import execute
from tests.support.schedule_cases import arrays, convolution, matmul, pointwise, product, same, softmax, two_stages


def _random_graphs(count: int) -> list[tuple[tuple[Node, ...], frozenset[Node]]]:
    rng = np.random.default_rng(11)
    found: list[tuple[tuple[Node, ...], frozenset[Node]]] = []
    while len(found) < count:
        graph = ir_cases.random_graph(rng, 7)
        nodes = topological(graph.outputs)
        if any(n.op in ("scan", "result") for n in nodes):  # no value at one index
            continue
        kept = frozenset(n for n in nodes if n.op not in ("input", "literal") and rng.random() < 0.3)
        found.append((graph.outputs, kept))
    return found


@pytest.mark.parametrize("case", range(12))
def test_a_program_computes_what_its_graph_does(case: int) -> None:
    outputs, kept = _random_graphs(12)[case]
    rng = np.random.default_rng(case)
    env = {n["name"]: ir_cases.array(n, rng, "tanh") for n in topological(outputs) if n.op == "input"}
    want = interp.evaluate(outputs, env, wide=True)
    for scratch in (frozenset[Node](), kept):
        program = from_graph(outputs, scratch=scratch)
        found = evaluate(program, env, wide=True)
        for x, y in zip(found.values(), want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)
        if all(np.prod(b.shape) <= 100 for b in program.buffers):
            same(execute(program, env), found, exact=False)


def test_stages_are_printed_as_loops() -> None:
    assert show(softmax(8, 4)) == (
        "kernel\n"
        "  input x: f32[8,4]\n"
        "  output out0: f32[8,4]\n"
        "for o0<8, o1<4\n"
        "  out0[o0,o1] = div(exp(sub(x[o0,o1], max_{r0<4} x[o0,r0])), "
        "sum_{r1<4} exp(sub(x[o0,r1], max_{r0<4} x[o0,r0])))"
    )
    x = make_input("x", (4,))
    long = mk("exp", mk("add", mk("tanh", mk("mul", x, x)), mk("tanh", mk("add", x, mk("neg", x)))))
    assert show(from_graph([mk("mul", long, mk("neg", long))])).splitlines()[-2:] == [
        "  out0[o0] = mul($1, neg($1))",
        "    $1 = exp(add(tanh(mul(x[o0], x[o0])), tanh(add(x[o0], neg(x[o0])))))",
    ]


def test_stop_nodes_are_inputs_and_outputs_may_be_read() -> None:
    x = make_input("x", (6, 5))
    e = mk("exp", x)
    s, t = mk("tanh", e), mk("reduce_sum", mk("tanh", e), axes=(1,))
    program = from_graph([t, s], stop={e, s}, frozen={"t0"})
    assert [(b.name, b.scope) for b in program.buffers] == [("t0", "frozen"), ("out0", "output"), ("out1", "output")]
    assert [str(stage.value) for stage in program.stages] == ["tanh(t0[o0,o1])", "sum_{r0<5} out1[o0,r0]"]
    env = {"t0": np.exp(arrays(pointwise(6, 5))["x"])}
    found = evaluate(program, env)
    np.testing.assert_array_equal(found["out1"], np.tanh(env["t0"]))
    np.testing.assert_allclose(found["out0"], np.tanh(env["t0"]).sum(1), rtol=1e-6)


def test_names_of_inputs_come_first() -> None:
    x, y = make_input("out0", (3,)), make_input("s0", (3,))
    e = mk("add", x, y)
    program = from_graph([mk("exp", e), e, x], scratch={e})
    assert [b.name for b in program.buffers] == ["out0", "s0", "out0_", "out1", "out2"]
    env = {"out0": np.ones(3, np.float32), "s0": np.zeros(3, np.float32)}
    assert evaluate(program, env)["out2"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "uint8", "bool"])
def test_values_have_the_dtypes_of_the_graph(dtype: str) -> None:
    x = make_input("x", (7, 3), dtype)
    node = mk("reduce_max", mk("max", x, x), axes=(0,))
    program = from_graph([node])
    env = arrays(program)
    (want,) = interp.evaluate([node], env)
    assert evaluate(program, env)["out0"].dtype == want.dtype
    np.testing.assert_array_equal(evaluate(program, env)["out0"].astype(float), want.astype(float))


def test_wide_evaluation_widens_reads() -> None:
    x = make_input("x", (4,), "bfloat16")
    program = from_graph([mk("sub", mk("add", x, mk("exp", x)), x)])
    env = {"x": np.asarray([200, 3, 1, 0]).astype(ir_cases.DTYPE["bfloat16"])}
    assert evaluate(program, env, wide=True)["out0"].dtype == np.float64
    np.testing.assert_allclose(evaluate(program, env, wide=True)["out0"][1:], np.exp([3.0, 1, 0]), rtol=1e-14)


def test_empty_results_and_reductions() -> None:
    x = make_input("x", (3, 0))
    program = from_graph([mk("reduce_max", x, axes=(1,)), mk("exp", x), mk("reshape", x, new_sizes=(0, 3))])
    found = evaluate(program, {"x": np.zeros((3, 0), np.float32)})
    assert found["out0"].tolist() == [-np.inf] * 3
    assert found["out1"].shape == (3, 0)
    assert found["out2"].shape == (0, 3)


SORT = {"primitive": "sort", "params_key": "s", "result_types": [((2,), "float32")]}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda: [mk("exp", make_input("x", (symbol("n", 1), 2)))], "concrete sizes"),
        (lambda: [mk("opaque", make_input("x", (2,)), **SORT)], "no value at one index"),
    ],
)
def test_graphs_that_are_no_loops_are_refused(outputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_graph(outputs())


def test_arguments_are_checked() -> None:
    program = pointwise(3)
    with pytest.raises(ArgumentError, match="no value"):
        evaluate(program, {})
    with pytest.raises(ArgumentError, match="shape"):
        evaluate(program, {"x": np.zeros(4, np.float32)})
    with pytest.raises(ArgumentError, match="int32"):
        evaluate(program, {"x": np.zeros(3, np.int32)})


def test_what_no_stage_writes_is_not_a_number() -> None:
    (it, i) = iterator("i", 2)
    program = pointwise(3)
    part = replace(program.stages[0], axes=(Loop(it),), index=(i,), value=load("x", [i], "float32"))
    found = evaluate(replace(program, stages=(part,)), {"x": np.ones(3, np.float32)})["out0"]
    assert found[:2].tolist() == [1, 1]
    assert np.isnan(found[2])
    beyond = replace(part, index=(i + 2,))
    with pytest.raises(InputError, match="writes at 2 to 3 of axis 0"):
        evaluate(replace(program, stages=(beyond,)), {"x": np.ones(3, np.float32)})


# ---- hash


def test_equal_content_has_equal_hashes() -> None:
    assert digest(softmax(8, 4)) == digest(replace(softmax(8, 4), name="other"))
    different = [
        softmax(8, 4), softmax(8, 5), softmax(8, 4, "float64"), pointwise(8, 4),
        split(softmax(8, 4), "out0", "o0", [2]),
        set_knob(softmax(8, 4), "out0", "accumulators", 4), matmul(8, 4, 4), matmul(8, 4, 4, frozen=frozenset()),
    ]  # fmt: skip
    assert len({digest(p) for p in different}) == len(different)


def test_hashes_are_those_of_other_processes() -> None:
    code = (
        "from superopt.ir.graph import make_input, mk; from superopt.kernels.loops.program import from_graph\n"
        "for j in range({n}): mk('exp', mk('tanh', make_input('y', (j + 1,))))\n"
        "t, i = make_input('t', (9, 4)), make_input('i', (5, 2), 'int32')\n"
        "attrs = dict(collapsed_slice_dims=(0, 1), start_index_map=(0, 1), slice_sizes=(1, 1))\n"
        "g = mk('gather', t, i, offset_dims=(), **attrs)\n"
        "from superopt.kernels.loops.show import digest; print(digest(from_graph([mk('add', g, g)])))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code.replace("{n}", str(n))], capture_output=True, text=True, check=True,
            cwd=Path(__file__).parents[2],
        ).stdout
        for n in (0, 50)
    ]  # fmt: skip
    assert found[0] == found[1]


# ---- the frozen part


def test_packed_weights_are_hoisted() -> None:
    program = cache_read(matmul(6, 8, 20), "out0", "w", "packed")
    program = transform_layout(program, "packed", [["split", 1, 16], ["permute", [1, 0, 2]]], "fill")
    prepare, hot = hoisted(program)
    assert prepare is not None
    assert [(b.name, b.scope) for b in prepare.buffers] == [("w", "frozen"), ("packed", "output")]
    assert [(b.name, b.scope) for b in hot.buffers] == [
        ("x", "input"), ("b", "frozen"), ("packed", "frozen"), ("out0", "output"),
    ]  # fmt: skip
    env = arrays(program)
    ready = evaluate(prepare, env)
    assert not ready["packed"][1, :, 4:].any()
    same(evaluate(hot, env | ready, wide=True), evaluate(matmul(6, 8, 20), env, wide=True), exact=False)


def test_a_chain_of_frozen_stages_is_hoisted_with_what_is_placed_inside() -> None:
    w = make_input("w", (6, 5), frozen=True)
    e = mk("exp", w)
    s = mk("tanh", mk("add", e, e))
    program = from_graph([mk("add", s, make_input("x", (6, 5)))], scratch={e, s})
    for p in (program, compute_at(program, "s0", "s1", 1)):
        prepare, hot = hoisted(p)
        assert prepare is not None
        assert [s.buffer for s in prepare.stages] == ["s0", "s1"]
        assert [b.name for b in hot.buffers] == ["x", "s1", "out0"]
        env = arrays(program)
        same(evaluate(hot, env | evaluate(prepare, env)), evaluate(program, env))


def test_nothing_is_hoisted_where_all_depends_on_the_call() -> None:
    program = two_stages(6, 5)
    assert hoisted(program) == (None, program)
    frozen = from_graph([mk("exp", make_input("w", (3,), frozen=True))])
    assert hoisted(frozen)[0] is None  # an output belongs to each call


# ---- well-formedness


def _with(program: LoopProgram, **changes: Any) -> LoopProgram:
    return replace(program, stages=(replace(program.stages[0], **changes), *program.stages[1:]))


I, J = Symbol("o0", 0, 5), Symbol("q", 0, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: replace(p, buffers=(*p.buffers, p.buffers[0])), "two buffers of one name"),
        (lambda p: replace(p, buffers=p.buffers[::-1]), "order of scope"),
        (lambda p: replace(p, stages=()), "its buffers to fill"),
        (lambda p: replace(p, stages=p.stages[::-1]), "written later"),
        (lambda p: _with(p, axes=(Loop(I), Loop(I))), "two axes of one name"),
        (lambda p: _with(p, axes=(Loop(I),)), "not axes of it"),
        (lambda p: _with(p, index=(0,)), "rank 1"),
        (lambda p: _with(p, axes=(*p.stages[0].axes, Loop(Symbol("n", 0)))), "no concrete range"),
        (lambda p: _with(p, value=load("x", [0, 0], "int32")), "writes int32"),
        (lambda p: _with(p, value=load("x", [0], "float32")), "reads x\\[0\\]"),
        (lambda p: _with(p, value=load("y", [0], "float32")), "no buffer"),
        (lambda p: _with(p, axes=(p.stages[0].axes[0], Loop(p.stages[0].axes[1].symbol, "parallel"))), "outermost"),
        (lambda p: _with(p, axes=(Loop(p.stages[0].axes[0].symbol, "vector"), p.stages[0].axes[1])), "innermost"),
        (lambda p: _with(p, at=("out0", 3)), "stands under 3 axes"),
        (lambda p: _with(p, at=("out0", 1)), "not local"),
        (lambda p: replace(p, buffers=(*p.buffers[:-1], Buffer("s0", (6, 5), "float32", "local"))), "phase of its own"),
    ],
)
def test_programs_that_are_not_well_formed_are_refused(make: Any, message: str) -> None:
    program = two_stages(6, 5)
    assert checked(program) is program
    with pytest.raises(InputError, match=message):
        checked(make(program))


def test_a_local_buffer_is_read_where_it_lives() -> None:
    program = compute_at(two_stages(6, 5, 1), "s0", "out0", 1)
    local = program.stages[0]
    outside = Stage("late", (), (), load("s0", [0, 0], "float32"))
    late = Buffer("late", (), "float32", "output")
    with pytest.raises(InputError, match="local to out0 under 1 axes"):
        checked(replace(program, buffers=(program.buffers[0], program.buffers[1], late, *program.buffers[2:]),
                        stages=(*program.stages, outside)))  # fmt: skip
    kinds = tuple([replace(a, kind="parallel") for a in program.stage("out0").axes])
    host = replace(program.stage("out0"), axes=kinds)
    inside = replace(local, axes=(kinds[0], *local.axes[1:]))
    with pytest.raises(InputError, match="outside parallel axes"):
        checked(replace(program, stages=(inside, host)))


def test_lookups_say_what_there_is() -> None:
    program = product(2, 3, 4)
    with pytest.raises(InputError, match="no buffer 'y'"):
        program.buffer("y")
    with pytest.raises(InputError, match="no stage 'x'"):
        program.stage("x")
    with pytest.raises(InputError, match="no axis 'k'"):
        program.stage("out0").axis("k")
    assert [b.name for b in compute_at(two_stages(6, 5), "s0", "out0", 1).pointers] == ["x", "out0"]
    assert convolution(6, 2, 4).stage("out0").knob("accumulators", 4) == 4
