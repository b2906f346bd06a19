"""Programs and kernels through the worker: text out, figures back."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from superopt.backends.xla import as_jitted
from superopt.candidates.candidate import original_candidate
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir import build
from superopt.ir.graph import Graph, literal, make_input, mk
from superopt.ir.program import Program, original_program, split
from superopt.ir.text import print_graph
from superopt.kernels.choose.specs import NATIVE
from superopt.measure import KernelTiming, Timing, compare, session, time_kernels
from superopt.measure.compare import ran, serialisable
from superopt.measure.kernels import XLA, KernelSettings, copies, kernel_events
from superopt.measure.numerics import Tolerance, output_errors
from superopt.measure.session import ComparisonSettings
from superopt.workshop.job import Failure, resolve
from superopt.workshop.process import Worker

X = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32)
B = np.random.default_rng(2).standard_normal(32).astype(np.float32)
QUICK = ComparisonSettings(3, 0.0005)


def graph(scale: float) -> Graph:
    """x W * scale + b with W frozen and b a constant of the program."""
    x, w = make_input("x", (32, 32)), make_input("w", (32, 32), frozen=True)
    b = make_input("b", (32,), frozen=True)
    scaled = mk("mul", w, build.fill(scale, (32, 32)))
    out = mk("add", build.dot(x, scaled, ((1,), (0,))), build.spread(b, (32, 32), 1))
    return Graph((x, w, b), (out,), {"b": B})


def folded(scale: float) -> Program:
    """The same with the scaled weights prepared."""
    whole = graph(scale)
    product = whole.outputs[0].inputs[0]
    return split(whole, (product.inputs[1], whole.inputs[2]))


def test_programs_with_frozen_values_and_constants() -> None:
    result = compare(original_program(graph(2.0)), [folded(2.0), folded(2.5)], [X], {"w": W}, QUICK)
    right, wrong = result.candidates
    assert isinstance(right, Timing)
    assert right.max_error < 1e-5
    assert isinstance(wrong, Failure)
    assert wrong.cause == "numerics"
    assert isinstance(result.reference, Timing)
    assert result.isolated


@pytest.mark.parametrize("isolate", [True, False])
def test_where_terms_cancel_candidates_are_judged_as_by_the_check_at_the_end(isolate: bool) -> None:
    rng = np.random.default_rng(3)
    half = rng.standard_normal(500).astype(np.float32)
    x, w = rng.permutation(np.concatenate([half, -half])), np.full(1000, 1.7, np.float32)

    def program(parts: int, off: float) -> tuple[Program, dict[str, Any]]:
        def fn(x: jax.Array, w: jax.Array) -> jax.Array:
            return sum((jnp.sum(x[k::parts] * w[k::parts]) for k in range(parts)), jnp.float32(off))

        imported = import_function(fn, (x, w), frozen=1)
        return original_program(imported.graph), imported.frozen_values

    settings = ComparisonSettings(3, 0.0005, isolate=isolate)
    (original, frozen), others = program(1, 0.0), [program(8, 0.0)[0], program(8, 1e-2)[0]]
    right, wrong = compare(original, others, [x], frozen, settings).candidates
    assert isinstance(right, Timing)
    assert not settings.tolerance.accepts(right.errors[0], "float32"), "by its result alone it would be refused"
    assert isinstance(wrong, Failure)
    assert wrong.cause == "numerics"
    to_be_exact = replace(settings, tolerance=Tolerance(0.0, 0.0))
    (other,) = compare(original, others[:1], [x], frozen, to_be_exact).candidates
    assert isinstance(other, Failure)


def test_the_original_is_compiled_as_its_user_compiles_it() -> None:
    closed, weights, x = jnp.linspace(0.0, 1.0, 12).reshape(3, 4), jnp.ones(4), jnp.full((3, 4), 2.0)

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return x * jnp.exp(closed) + w

    imported = import_function(fn, (x, weights), frozen=1)
    call = as_jitted(original_program(imported.graph), imported.frozen_values)
    (jitted,) = jax.make_jaxpr(call)(x).jaxpr.eqns
    assert [v.aval.shape for v in jitted.invars] == [(3, 4), (4,)], "what it closes over is no argument"
    np.testing.assert_allclose(call(x)[0], fn(x, weights), rtol=1e-6)
    result = compare(
        original_candidate(imported.graph, closed=True),
        [original_program(imported.graph)],
        [x],
        imported.frozen_values,
        ComparisonSettings(1),
    )
    assert isinstance(result.reference, Timing)
    assert isinstance(result.candidates[0], Timing)


def test_program_that_lacks_a_frozen_value_fails_as_data() -> None:
    result = compare(original_program(graph(2.0)), [folded(2.0)], [X], {}, QUICK)
    assert isinstance(result.reference, Failure)
    assert result.reference.cause == "build"


def test_opaque_programs_stay_in_the_process() -> None:
    from superopt.ir import opaque

    key = opaque.register("twice", ("twice",), lambda x: (x * 2.0,))
    x = make_input("x", (32, 32))
    node = mk("opaque", x, primitive="twice", params_key=key, result_types=(x.type,))
    program = Program(None, Graph((x,), (node,)))
    assert not serialisable(program)
    double = Program(None, Graph((x,), (mk("add", x, x),)))
    result = compare(program, [double], [X], settings=QUICK)
    assert not result.isolated
    assert result.notes
    assert isinstance(result.candidates[0], Timing)


def test_kernels_are_timed_and_faults_are_data() -> None:
    x = make_input("x", (64, 64))
    good = build.kernel(mk("exp", x))
    unlowered = build.kernel(
        mk("macro", x, rule="nothing", op="neg", attrs=())
    )  # the backend refuses a macro that nobody expands
    slow = build.kernel(build.dot(make_input("a", (256, 256)), make_input("b", (256, 256)), ((1,), (0,))))
    counted: list[int] = []
    found = time_kernels(
        [good, unlowered, slow],
        settings=KernelSettings(rounds=2, sample_s=0.0005),
        progress=lambda done, _: counted.append(done),
    )
    first, second, third = found
    assert isinstance(first, KernelTiming)
    assert first.seconds > 0
    assert len(first.rounds_s) == 2
    assert isinstance(second, Failure)
    assert second.cause == "build"
    assert "macro" in second.detail
    assert isinstance(third, KernelTiming)
    assert counted[-1] == 3


def test_spent_budget_leaves_kernels_out() -> None:
    kernels = [build.kernel(mk("mul", make_input("x", (n,)), build.fill(2.0, (n,)))) for n in range(8, 48)]
    with Worker(inline=True) as worker:
        found = time_kernels(kernels, budget_s=1e-6, worker=worker)
        assert worker.started == 0
    assert all(isinstance(f, Failure) and f.cause == "timeout" for f in found)


def test_literal_only_kernel_has_a_time() -> None:
    (timing,) = time_kernels(
        [build.kernel(build.spread(literal(1.0), (8, 8)))], settings=KernelSettings(rounds=1, sample_s=0.0005)
    )
    assert isinstance(timing, KernelTiming)
    assert timing.seconds == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("backend", [XLA, NATIVE])
def test_calls_take_turns_with_copies_of_frozen_operands(backend: str) -> None:
    x, w = make_input("x", (8,), "float32"), make_input("w", (8,), "float32", frozen=True)
    text = print_graph(Graph((x, w), (mk("add", x, w),)))

    def turns(footprint: int) -> int:
        settings = {"rounds": 1, "sample_s": 1e-4, "max_calls": 2, "footprint": footprint, "budget_s": 0.0}
        events = list(kernel_events([(0, text, {}, backend)], resolve, settings))
        assert events[-1]["seconds"] > 0
        return copies(32, footprint)

    assert [turns(n) for n in (0, 31, 96)] == [1, 1, 3]
    assert copies(32, 1 << 40) == 64


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_wide_inputs_are_wide_in_a_worker(dtype: str) -> None:
    x = make_input("x", (2,), dtype)
    program = original_program(Graph((x,), (mk("add", x, x),)))
    given = np.array([2**40 + 1, 1], dtype)
    with Worker() as worker:
        found = ran(program, [[given]], {}, worker=worker)
    np.testing.assert_array_equal(found.results[0][0], 2 * given)


def test_a_reference_that_is_known_is_not_called() -> None:
    """One call of each tells which of two programs is faster, if one takes twice as long."""
    called: list[str] = []

    def maker(name: str, seconds: float) -> session.Make:
        def call(x: jax.Array) -> tuple[jax.Array]:
            called.append(name)
            time.sleep(seconds)
            return (x,)

        return lambda: call

    settings = ComparisonSettings(4, 0.0, known_s=0.2)
    makers = {0: maker("fast", 0.01), 1: maker("level", 0.15), 2: maker("slow", 0.5)}
    events = list(session.compare_events(maker("original", 0.2), makers, [X], settings))
    assert "original" not in called
    assert [e["index"] for e in events if e["event"] == "failed"] == [1]
    rounds = [e["seconds"] for e in events if e["event"] == "round"]
    assert [r["-1"] for r in rounds] == [0.2] * 4
    assert len([r for r in rounds if "2" in r]) == session.PRUNE_ROUNDS
    level = list(session.compare_events(maker("original", 0.2), {0: makers[1]}, [X], settings))
    assert [e["index"] for e in level if e["event"] == "failed"] == [0, session.REFERENCE]


def test_a_program_with_other_results_is_wrong() -> None:
    for expected, got, wrong in (([X], [X], False), ([X], [X, X], True), ([X], [], True), ([], [X], True)):
        assert bool(session._wrong(output_errors(expected, got), expected, ComparisonSettings())) == wrong
