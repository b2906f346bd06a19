"""Choice of GPU schedules by a clock, the benchmark's checks, and scalar functions on blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from superopt.errors import SuperoptError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir import scalar
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.pallas import scalars, space
from superopt.kernels.pallas.lower import lower
from superopt.kernels.schedule.trace import apply
from superopt.lab.bench.pallas import suite
from superopt.lab.bench.pallas.suite import check, run, timed
from superopt.lab.bench.pallas.tune import tune
from superopt.lab.bench.programs.pallas_cases import CASES, PallasCase
from verifier.schedules.check import check_schedule
from verifier.verdict import PROVED

RNG = np.random.default_rng(0)


def softmax_program() -> tuple[LoopProgram, np.ndarray]:
    x = RNG.standard_normal((20, 300), dtype=np.float32)
    return from_graph(import_function(lambda x: jax.nn.softmax(x, -1), (x,)).graph.outputs), x


def preferring(number: int) -> Callable[[Sequence[Callable[[], Any]], int], list[list[float]]]:
    """A clock for which the candidate of this number in the first race is the fastest as long as it runs."""
    favourite: list[Callable[[], Any]] = []

    def clock(calls: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
        if not favourite:
            favourite.append(calls[number])
        return [[1.0 if call is favourite[0] else 2.0] * rounds for call in calls]

    return clock


def test_the_fastest_candidate_is_chosen() -> None:
    program, x = softmax_program()
    options = space.candidates(program, "out0")
    trace, trials = tune(program, [(x,), (x,)], interpret=True, clock=preferring(4), most=5)
    assert trace == options[4]
    assert {t.trace for t in trials} == set(options[:5])
    assert min(t.seconds for t in trials if t.seconds is not None) == 0.5  # of two runs in one call


def test_wrong_and_failing_candidates_drop_out(monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = softmax_program()
    good = space.candidates(program, "out0")[0]
    illegal = (*good, ("split", "out0", "o7", (4,)))
    half = (("parallel", "out0", "o0"), ("vectorize", "out0", "o1"))
    monkeypatch.setattr(space, "candidates", lambda *_: [good, illegal, half])
    trace, trials = tune(program, [(x,)], interpret=True, clock=preferring(0))
    assert trace == good
    assert [t.seconds is None for t in trials if t.trace == illegal] == [True]
    monkeypatch.setattr(space, "candidates", lambda *_: [illegal])
    with pytest.raises(SuperoptError, match="out0 runs"):
        tune(program, [(x,)], interpret=True, clock=preferring(0))


def test_programs_of_two_stages_are_tuned_one_after_the_other() -> None:
    x = RNG.standard_normal((20, 30), dtype=np.float32)
    graph = import_function(lambda x: jnp.exp(x).sum(-1), (x,)).graph
    scratch = {n for n in graph.nodes() if n.op == "exp"}
    program = from_graph(graph.outputs, scratch=scratch)
    trace, _ = tune(program, [(x,)], interpret=True, clock=preferring(1), most=2)
    (found,) = lower(apply(program, trace), interpret=True)(x)
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)).sum(-1), rtol=1e-5)
    assert {step[1] for step in trace} == {"s0", "out0"}


def test_the_benchmark_checks_schedules_against_float64() -> None:
    case = next(c for c in CASES if c.name.startswith("residual+layernorm"))
    found = check(case, 0, every=False)
    assert found["checked"] == 2
    assert found["wrong"] == []
    assert 0 < found["worst"] < 1e-6
    strict = PallasCase(case.name, case.kind, case.fn, case.shapes, case.small, tolerance=1e-12)
    assert len(check(strict, 0, every=False)["wrong"]) == 2


def test_a_case_is_timed_beside_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "LONG_S", 0.0)
    case = PallasCase("dot", "product", lambda x, w: x @ w, ((40, 32), (32, 24)), (), flops=2 * 40 * 32 * 24)
    row = timed(case, 0, rounds=2, most=1)
    assert row["error"] < 1e-5
    assert row["xla"] == pytest.approx(row["xla_us"] / row["ours_us"])
    assert row["tried"] == 1


def test_without_a_gpu_the_suite_checks_and_does_not_time() -> None:
    rows, summary, text = run(budget="1s", cases=["transpose"], seed=0, say=lambda _: None)
    assert summary == {"checked": 2, "wrong": 0}
    assert "nothing timed" in text
    assert [row["kind"] for row in rows] == ["pointwise"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_case_of_the_benchmark_has_schedules(case: PallasCase) -> None:
    kinds = [jax.ShapeDtypeStruct(s, jnp.dtype(case.dtype)) for s in case.shapes]
    program = from_graph(import_function(case.fn, tuple(kinds)).graph.outputs)
    traces = space.candidates(program, "out0", case.precision)
    assert len(traces) >= 3
    kind = space.kind(program, "out0")
    assert kind == case.kind or (case.name.startswith("dot bfloat16 1x") and kind == "reduction")
    assert apply(program, traces[0]).stages[0].axes[-1].kind == "vector"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_default_schedules_are_proved(case: PallasCase) -> None:
    kinds = [jax.ShapeDtypeStruct(s, jnp.dtype(case.dtype)) for s in case.shapes]
    program = from_graph(import_function(case.fn, tuple(kinds)).graph.outputs)
    assert check_schedule(program, space.scheduled(program)).status == PROVED


# ---- scalar functions

_REAL = np.array([-np.inf, -3.5, -2.5, -1.0, -0.5, -1e-3, 0.0, 1e-3, 0.5, 1.5, 2.0, 3.7, np.inf, np.nan], np.float32)
_WHOLE = np.array([-(2**31), -7, -1, 0, 1, 2, 5, 31, 32, 2**31 - 1], np.int32)
_INTEGER = {"and", "or", "xor", "not", "shift_left", "shift_right_logical", "shift_right_arithmetic",
            "population_count", "clz"}  # fmt: skip
_INEXACT = {"erf_inv", "nextafter"}
_NAMES = sorted(name for name in scalar.SCALARS.keys() - _INEXACT - {"select_n"} if scalars.has_code(name))


def operands(name: str) -> list[tuple[str, list[np.ndarray]]]:
    """Arguments for a scalar function, in each dtype that it is tried in."""
    kinds: list[tuple[str, np.ndarray]] = [] if name in _INTEGER else [("float32", _REAL)]
    if name in _INTEGER or name in ("div", "rem", "max", "min", "sign", "abs", "lt"):
        kinds.append(("int32", _WHOLE))
    return [(d, list(np.meshgrid(v, v)) if scalar.SCALARS[name].arity == 2 else [v]) for d, v in kinds]


@pytest.fixture(scope="module")
def computed() -> dict[str, list[np.ndarray]]:
    """All scalar functions on blocks, in one compilation."""
    args = {name: operands(name) for name in _NAMES}

    def call(given: dict[str, list[list[Any]]]) -> dict[str, list[Any]]:
        return {
            name: [scalars.apply(name, d, tuple(xs)) for (d, _), xs in zip(args[name], given[name], strict=True)]
            for name in _NAMES
        }

    found = jax.jit(call)({name: [xs for _, xs in args[name]] for name in _NAMES})
    return {name: [np.asarray(x) for x in values] for name, values in found.items()}


@pytest.mark.parametrize("name", _NAMES)
def test_scalar_functions_are_those_of_the_table(name: str, computed: dict[str, list[np.ndarray]]) -> None:
    for (dtype, args), found in zip(operands(name), computed[name], strict=True):
        with np.errstate(all="ignore"):
            wanted = scalar.apply(name, dtype, tuple(args), wide=dtype == "float32")
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-7)


def test_floats_become_integers_as_in_the_table() -> None:
    values = np.array([-np.inf, -3e9, -129.0, -1.5, 0.0, 2.9, 127.6, 300.0, 3e9, np.inf, np.nan], np.float32)
    for target in ("int8", "uint8", "int32", "bool"):
        wanted = scalar.convert(values, "float32", target)
        found = np.asarray(scalars.convert(jnp.asarray(values), "float32", target))
        np.testing.assert_array_equal(found, wanted, err_msg=target)
