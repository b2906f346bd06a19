"""Guards between a wrong program and its user: each of these tests is red when one of them is taken out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from superopt.backends.xla import build
from superopt.contest import checks
from superopt.contest.checks import (
    OriginalLostError,
    OriginalRuns,
    check,
    differs_from_original,
    is_short,
    takes_any_input,
)
from superopt.errors import ProgramError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.program import Program, original_program
from superopt.measure.compare import Ran
from superopt.workshop.job import Failure
from superopt.workshop.process import ProcessLimits, Worker

X = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)


def program(fn: Callable[..., Any], *args: Any) -> Program:
    return original_program(import_function(fn, args or (X,)).graph)


def refused(original: Callable[..., Any], other: Callable[..., Any], *args: Any, exact: bool = False) -> str:
    """Why a program is no substitute of another one; empty where it is."""
    given = args or (X,)
    return check(OriginalRuns.of(import_function(original, given), exact=exact), program(other, *given))[1]


def triple(x: jax.Array) -> jax.Array:
    return x * 3.0


def thrice(x: jax.Array) -> jax.Array:
    return x * np.nextafter(np.float32(3.0), np.float32(4.0))


def test_exact_results_agree_in_every_bit() -> None:
    """The two differ in the last bit of some results, which is rounding where results need not be exact."""
    assert refused(triple, triple, exact=True) == ""
    assert refused(triple, thrice) == ""
    assert "differs in the bits of" in refused(triple, thrice, exact=True)


@pytest.mark.parametrize(
    ("original", "other"),
    [
        (lambda x: x, lambda x: jnp.where(x == 0.0, 0.0, x)),  # of -0.0
        (lambda x: jnp.where(x > 1e29, 0.0, x), lambda x: x),  # of huge numbers
        (lambda x: jnp.where(jnp.isnan(x), 0.0, x), lambda x: x),
        (lambda x: x, lambda x: jnp.where(jnp.isinf(x), 0.0, x)),
    ],
)
def test_exact_results_agree_on_special_numbers(original: Callable[..., Any], other: Callable[..., Any]) -> None:
    assert "differs in the bits" in refused(original, other, np.tile(X, (16, 16)), exact=True)


def test_results_agree_on_the_example() -> None:
    assert "differs from the original's" in refused(triple, lambda x: x * 3.1)


def test_results_agree_on_inputs_that_the_user_did_not_give() -> None:
    zeros = np.zeros((3, 4), np.float32)
    assert "differs from the original's" in refused(triple, lambda x: x * 4.0, zeros)


def test_every_result_agrees() -> None:
    assert "differs from the original's" in refused(lambda x: (x, x + 1), lambda x: (x, x + 2))


@pytest.mark.parametrize("other", [lambda x: x * 1.5, lambda x: (x, x), lambda x: x[:2]])
def test_what_was_kept_gives_the_results_of_the_original(other: Callable[..., Any]) -> None:
    imported = import_function(lambda x: x, (X,))
    assert differs_from_original(imported, lambda x: [x]) == ""
    found = jax.tree_util.tree_leaves(other(X))
    assert differs_from_original(imported, lambda x: found)


def test_what_was_kept_gives_the_bits_of_the_original_where_they_are_to_be_exact() -> None:
    imported, near = import_function(lambda x: x, (X,)), np.nextafter(X, np.float32(2.0))
    assert differs_from_original(imported, lambda x: [near]) == ""
    assert "in its bits" in differs_from_original(imported, lambda x: [near], exact=True)
    wide = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    rounded = import_function(jax.nn.gelu, (wide,))  # built quickly, it has other last bits
    assert differs_from_original(rounded, build(original_program(rounded.graph)), exact=True) == ""


def slow(x: Any) -> Any:
    time.sleep(1.0)
    return np.asarray(x)


def test_an_original_that_is_not_done_in_the_time_is_left_and_nothing_is_compared_with_it() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jax.pure_callback(slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    runs = OriginalRuns.of(import_function(fn, (X,)))
    runs.end_s = time.monotonic() + 0.2
    with pytest.raises(OriginalLostError, match="left to end by itself"):
        _ = runs.wanted
    assert time.monotonic() < runs.end_s + 0.7
    assert not runs.has_run
    runs.begin().result()  # it leaves no thread behind for the tests that follow


@pytest.mark.parametrize("python", [False, True])
def test_an_original_without_an_end_is_lost_where_no_budget_ends_it(
    python: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the program called, which has no end either and cannot be ended here."""
    go = threading.Event()

    def waits(x: Any) -> Any:
        go.wait(60.0)
        return np.asarray(x)

    def called(x: jax.Array) -> jax.Array:
        return jax.pure_callback(waits, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def endless(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda y: y.sum() < jnp.inf, lambda y: y * 0.5, x)

    limits = ProcessLimits(silence_s=1.0 if python else 3.0)  # all the time the loop takes a processor
    monkeypatch.setattr(checks, "ProcessLimits", lambda: limits)
    imported = import_function(called if python else endless, (X,))
    with Worker() as worker:
        worker.ready()
        worker.limits = limits
        runs = OriginalRuns.of(imported, worker=worker)
        assert (runs.worker is None) == python
        monkeypatch.setattr(OriginalRuns, "candidate", None)
        with pytest.raises(OriginalLostError, match="left to end by itself" if python else "no answer within"):
            check(runs, original_program(imported.graph))
    go.set()
    if python:
        runs.begin().result()  # it leaves no thread behind for the tests that follow


@pytest.mark.parametrize("lost", [Failure("timeout", "too late"), Failure("crash", "SIGSEGV")])
def test_an_original_that_ends_its_process_is_lost(monkeypatch: pytest.MonkeyPatch, lost: Failure) -> None:
    monkeypatch.setattr(checks, "is_short", lambda graph: False)
    monkeypatch.setattr(checks, "ran", lambda *_, **__: Ran(lost=lost))
    with Worker() as worker, pytest.raises(OriginalLostError, match=lost.detail):
        _ = OriginalRuns.of(import_function(triple, (X,)), worker=worker).wanted


def test_what_the_original_raises_in_its_process_is_an_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "is_short", lambda graph: False)
    monkeypatch.setattr(checks, "ran", lambda *_, **__: Ran(raised=("ValueError", "it cannot")))
    with Worker() as worker, pytest.raises(ProgramError, match="as it is: ValueError: it cannot"):
        _ = OriginalRuns.of(import_function(triple, (X,)), worker=worker).wanted


def test_results_of_a_process_are_those_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "is_short", lambda graph: False)
    imported = import_function(lambda x, w: (x @ w, x.astype(jnp.bfloat16)), (X, np.ones((4, 2), np.float32)), frozen=1)
    with Worker() as worker:
        there = OriginalRuns.of(imported, worker=worker)
        assert there.worker is worker
        for (given, one), (also, two) in zip(there.wanted, OriginalRuns.of(imported).wanted, strict=True):
            for a, b in zip((*given, *one), (*also, *two), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=1e-6)
        assert there.build_s >= there.call_s > 0.0


@pytest.mark.parametrize(
    ("fn", "short"),
    [
        (triple, True),
        (lambda x: jax.lax.fori_loop(0, 10**7, lambda i, y: jnp.sin(y), x), False),
        (lambda x: jax.lax.while_loop(lambda y: y.sum() < 9.0, lambda y: y + 1.0, x), False),
        (lambda x: jax.pure_callback(slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x), False),
        (lambda x: jnp.ones((2000, 2000)) @ jnp.ones((2000, 2000)) + x.sum(), False),
    ],
)
def test_what_is_not_sure_to_be_short_is_not_called_here(fn: Callable[..., Any], short: bool) -> None:
    assert is_short(import_function(fn, (X,)).graph) == short


def test_calls_after_the_first_are_not_waited_for_longer_than_is_said() -> None:
    """What the check needs is there after the first call; the second one says that a call takes at least so long."""
    times = iter((0.0, 6.0))

    def slow(x: np.ndarray) -> np.ndarray:
        time.sleep(next(times))
        return np.asarray(x)

    def fn(x: jax.Array) -> jax.Array:
        return jax.pure_callback(slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x) * 2.0

    runs = OriginalRuns.of(import_function(fn, (X,)))
    runs.rest_s = 0.5
    begin_s = time.monotonic()
    ((_, (result,)),) = runs.wanted
    np.testing.assert_array_equal(result, 2.0 * X)
    assert runs.given_up
    assert 0.4 < runs.call_s < 5.5
    assert runs.wanted, "what was given up is not asked for again"
    assert time.monotonic() - begin_s < 5.5


@pytest.mark.parametrize(("window", "short"), [(3, True), (5001, False)])
def test_folds_over_wide_windows_run_where_they_can_be_ended(window: int, short: bool) -> None:
    def fn(x: jax.Array) -> jax.Array:
        pads = ((0, 0), (window // 2, window // 2))
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, window), (1, 1), pads)

    assert is_short(import_function(fn, (X,)).graph) == short


def test_half_precision_inside_is_the_precision_of_a_result_in_float32() -> None:
    """As in models that were converted to float16 and keep float32 at their ends."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 32)), jnp.float32)

    def result(x: jax.Array, kind: Any, off: float) -> jax.Array:
        return jnp.sin(x.astype(kind)).astype(jnp.float32) * (1 + off)

    half, far = jnp.float16, 2.0**-10  # the distance of two neighbours
    original, other, wrong, single = (
        import_function(lambda x, kind=kind, off=off: result(x, kind, off), (x,))
        for kind, off in ((half, 0.0), (half, far), (half, 64 * far), (jnp.float32, 0.0))
    )
    _, cause = check(OriginalRuns.of(original), original_program(other.graph))
    assert not cause
    for one, program in ((original, wrong), (single, other)):
        _, cause = check(OriginalRuns.of(one), original_program(program.graph))
        assert "differs from the original's" in cause


def test_random_inputs_have_the_spread_of_the_examples() -> None:
    """Of examples without a spread, or with one that is no number, it is one."""
    rng = np.random.default_rng(0)
    wide = (5.0 * rng.standard_normal(4000)).astype(np.float32)
    counts = np.arange(4000)
    for given, spread in ((wide, 5.0), (np.zeros(4000, np.float32), 1.0), (np.append(wide, np.float32("inf")), 1.0)):
        drawn, kept = checks._random_like([given, counts], 0)
        assert np.std(drawn) == pytest.approx(spread, rel=0.1)
        assert drawn.dtype == given.dtype
        assert kept is counts, "integers may be indices"


def test_a_program_is_built_once_for_its_check() -> None:
    runs, one = OriginalRuns.of(import_function(triple, (X,))), program(triple)
    built = runs.candidate(one)
    assert runs.candidate(one) is built
    assert runs.candidate(one, {"xla_cpu_use_fusion_emitters": False}) is not built
    assert runs.candidate(program(thrice)) is not runs.candidate(one)


@pytest.mark.parametrize(
    ("fn", "any_input"),
    [
        (triple, True),
        (lambda x: jax.lax.while_loop(lambda y: y.sum() < 9.0, lambda y: y + 1.0, x), False),
        (lambda x: jax.pure_callback(slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x), False),
    ],
)
def test_only_what_ends_whatever_it_is_given_is_called_on_random_inputs(
    fn: Callable[..., Any], any_input: bool
) -> None:
    imported = import_function(fn, (X,))
    assert takes_any_input(imported.graph) == any_input
    assert len(OriginalRuns.of(imported).inputs) == 1 + any_input


@pytest.mark.parametrize(("more", "short"), [(0, True), (1, False)])
def test_a_program_of_many_operations_is_not_called_here(more: int, short: bool) -> None:
    def fn(x: jax.Array) -> jax.Array:
        for _ in range(checks.SHORT_NODES - 1 + more):  # beside the input
            x = jnp.sin(x)
        return x

    assert is_short(import_function(fn, (X,)).graph) == short


@pytest.mark.parametrize(("most", "on_disk"), [(X.nbytes, True), (X.nbytes + 1, False)])
def test_weights_that_lie_on_disk_are_those_in_files(most: int, on_disk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = import_function(lambda w, x: w * x, (X, X), frozen=0)
    monkeypatch.setattr(checks, "ON_DISK_BYTES", most)
    assert not OriginalRuns.of(imported).on_disk
    monkeypatch.setattr(checks, "place_of", lambda _: "a file")
    assert OriginalRuns.of(imported).on_disk == on_disk
