"""A sample of the random kernels; `python -m superopt.lab.fuzz.kernels` runs as many as are asked for."""

from __future__ import annotations

import pytest

from superopt.errors import UnsupportedKernel
from superopt.kernels.emit.generate import generate
from superopt.kernels.emit.options import STRICT
from superopt.kernels.llvm import cpu
from superopt.lab.fuzz import kernels as fuzz

pytestmark = pytest.mark.skipif(not cpu.supported(), reason="no code is generated for this processor")


def test_random_kernels() -> None:
    """In a process of their own: a wrong kernel can end it."""
    results = dict(fuzz.results(first=100, cases=30))
    assert sorted(results) == list(range(100, 130))
    assert {s: r for s, r in results.items() if r not in ("ok", "skipped")} == {}
    assert list(results.values()).count("ok") >= 20


def test_wrong_kernels_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that drops the last step of every loop bound fails most cases with a reduction."""
    from superopt.kernels.emit import lower

    kept = lower.extent
    monkeypatch.setattr(lower, "extent", lambda it: max(1, kept(it) - 1))
    results = [fuzz.check(seed) for seed in range(40, 60)]
    assert sum(r.startswith("wrong") for r in results) >= 2


def test_roundings_that_a_schedule_leaves_out_are_no_fault() -> None:
    """Case 60032: `widen` under the strict licence."""
    assert fuzz.check(60032) == "ok"


def test_operands_under_conditions_that_are_not_linear_have_a_default() -> None:
    """Case 112152: the order of a copy's coordinates was asked for, and there is none."""
    assert fuzz.check(112152) == "ok"


def test_the_extreme_of_a_constant_is_not_computed() -> None:
    """Case 71177: LLVM aborts where a choice between two constants becomes a vector (`APInt::insertBits`)."""
    assert dict(fuzz.results(first=71177, cases=1)) == {71177: "ok"}


def test_a_run_counts_and_ends_in_time() -> None:
    found = fuzz.run(0.0, seed=100)
    assert (found.kernels + found.refused, found.wrong, found.crashes, found.hangs) == (1, 0, 0, 0)
    assert fuzz.run(60.0, seed=100, count=3).failures == ()


def test_a_failure_comes_with_a_command_that_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "results", lambda *_: iter([(7, "ok"), (8, "wrong: out0"), (9, "died: status -11")]))
    found = fuzz.run(60.0)
    assert (found.kernels, found.wrong, found.crashes, found.hangs) == (3, 1, 1, 0)
    assert [f.reproducer.split()[-1] for f in found.failures] == ["8", "9"]


@pytest.mark.parametrize("seed", [9303647, 9601729])
def test_roots_and_signs_of_rounding_errors_are_no_fault(seed: int) -> None:
    """`sqrt(tanh(s - max(s)))`, whose sums the two sides add in other orders; `sign` of a sum that is almost zero."""
    assert fuzz.check(seed) == "ok"


def test_positions_of_equal_values_that_the_reference_rounds_apart_are_no_fault() -> None:
    """Case 10003007: a reflected row holds an element twice, once by a stored sum and once by one in place."""
    assert fuzz.check(10003007) == "ok"


def test_masked_bytes_are_counted_lane_by_lane() -> None:
    """Case 9304329: 685 masked reads of 32 bytes, each a branch per lane without AVX-512, took LLVM over a minute."""
    made = fuzz.case(9304329)
    assert made is not None
    with pytest.raises(UnsupportedKernel):
        generate(made.scheduled, cpu.restricted(cpu.host(), 256), STRICT)


@pytest.mark.parametrize("seed", [9600400, 9602625])
def test_reductions_under_guards_are_written_for_every_point_of_the_guard(seed: int) -> None:
    """A reduction that does not vary along an unrolled axis, under a guard that does, was known at its first point."""
    assert fuzz.check(seed) == "ok"
