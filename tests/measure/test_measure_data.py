"""Numbers of measuring: errors of outputs, paired ratios, arrays between processes."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from superopt.arrays import bundles as arrays
from superopt.machine.speedup import Speedup
from superopt.measure import Comparison, Timing, Tolerance, output_errors, pooled
from superopt.measure.stats import paired_ratio
from superopt.workshop.job import Failure

RNG = np.random.default_rng(0)


def test_error_figures() -> None:
    r = np.array([1.0, -2.0, 0.0, 4.0], np.float32)
    c = r + np.array([0.0, 0.0, 0.01, 0.0], np.float32)
    (error,) = output_errors([r], [c])
    rms = math.sqrt(21 / 4)
    assert error.normwise == pytest.approx(0.01 / math.sqrt(21), rel=1e-5)
    assert error.elementwise == pytest.approx(0.01 / rms, rel=1e-5)
    assert not Tolerance().accepts(error, "float32")
    assert Tolerance().accepts(error, "bfloat16")


@pytest.mark.parametrize(
    ("r", "c", "equal"),
    [
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.array([True]), np.array([False]), False),
        (np.array([np.nan, np.inf, 1.0]), np.array([np.nan, np.inf, 1.0]), True),
        (np.array([np.nan, 1.0]), np.array([0.0, 1.0]), False),
        (np.array([np.inf]), np.array([-np.inf]), False),
        (np.zeros(3), np.zeros(3), True),
        (np.zeros(3), np.array([0, 0, 1e-30]), False),
        (np.zeros((2, 3)), np.zeros((3, 2)), False),
        (np.zeros(2, np.float32), np.zeros(2, np.float64), False),
        (np.zeros(0), np.zeros(0), True),
        (np.array([1 + 2j]), np.array([1 + 2j]), True),
    ],
)
def test_special_values(r: np.ndarray, c: np.ndarray, equal: bool) -> None:
    (error,) = output_errors([r], [c])
    assert (error.normwise == 0.0) == equal
    assert math.isinf(error.normwise) != equal


def test_missing_output_is_an_infinite_error() -> None:
    assert math.isinf(output_errors([np.zeros(1)], [])[0].normwise)


def test_one_wrong_element_among_many_is_seen() -> None:
    r = RNG.standard_normal(1_000_000).astype(np.float32)
    c = r.copy()
    c[17] += 0.05
    (error,) = output_errors([r], [c])
    assert error.normwise < 1e-4 < 0.02 < error.elementwise
    assert not Tolerance().accepts(error, "float32")


def test_pairing_cancels_a_drifting_machine() -> None:
    drift = np.exp(RNG.normal(0, 1, 25))
    reference, candidate = 2.0 * drift, 1.0 * drift * np.exp(RNG.normal(0, 0.01, 25))
    ratio = paired_ratio(list(reference), list(candidate))
    assert ratio.low <= ratio.ratio <= ratio.high
    assert ratio.low > 1.97
    assert ratio.high < 2.04  # unpaired, the drift alone is a factor of e


def test_equal_programs_are_rarely_called_faster() -> None:
    claims = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        a, again, b = (1.0 + 0.2 * rng.exponential(size=15) for _ in range(3))
        reference = Timing(tuple(a), paired_ratio(list(again), list(a)))
        candidate = Timing(tuple(b), paired_ratio(list(a), list(b)))
        claims += Comparison(reference, (candidate,)).faster(0)
    assert claims <= 10


def test_ratio_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        paired_ratio([], [1.0])
    with pytest.raises(ValueError, match="positive"):
        paired_ratio([0.0], [1.0])


def test_best_prefers_the_fastest_and_skips_failures() -> None:
    fast, slow = (Timing((1.0,) * 5, Speedup(x, x, x)) for x in (2.0, 0.5))
    comparison = Comparison(Timing((1.0,), Speedup(1.0, 0.9, 1.05)), (slow, Failure("crash", ""), fast))
    assert comparison.best() == 2
    assert comparison.faster(2)
    assert not comparison.faster(0)
    assert not comparison.faster(1)
    assert comparison.noise_floor == pytest.approx(0.1)


def test_a_few_rounds_are_no_evidence() -> None:
    once = Timing((0.5,), Speedup(2.0, 2.0, 2.0))  # one round: the interval is a point
    assert not Comparison(Timing((1.0,), Speedup(1.0, 1.0, 1.0)), (once,)).faster(0)


def test_arrays_survive_the_trip(tmp_path: Path) -> None:
    given = {
        "a": RNG.standard_normal((3, 4)).astype(np.float32),
        "b": np.arange(5, dtype=np.int8),
        "half": np.array([1.5, -2.0], ml_dtypes.bfloat16),
        "scalar": np.float64(3.0),
        "flags": np.array([True, False]),
        "none": np.zeros((0, 3), np.float32),
        "turned": np.arange(6.0).reshape(2, 3).T,
    }
    arrays.save(tmp_path / "bundle", given)
    found = arrays.load(tmp_path / "bundle")
    assert found.keys() == given.keys()
    for name, value in given.items():
        assert found[name].dtype == np.asarray(value).dtype
        np.testing.assert_array_equal(found[name], value)


def _compared(speed: float, noise: float, *, lost: Failure | None = None) -> Comparison:
    base = tuple(1.0 + 0.01 * RNG.random(9))
    reference = Timing(base, Speedup(1.0, 1.0 - noise, 1.0 + noise))
    samples = tuple(b / speed for b in base)
    other = Timing(samples, paired_ratio(base, samples))
    return Comparison(reference, (other if lost is None else lost, other))


def test_what_holds_in_one_process_only_is_not_claimed() -> None:
    both = pooled(_compared(1.4, 0.01), _compared(1.1, 0.05))
    first = both.candidates[0]
    assert isinstance(first, Timing)
    assert len(first.samples_s) == 18
    assert first.ratio.low <= 1.1 < first.ratio.ratio < 1.4 <= first.ratio.high + 1e-9
    assert both.noise_floor == pytest.approx(0.05)
    assert both.faster(0)
    assert not pooled(_compared(1.4, 0.01), _compared(0.97, 0.01)).faster(0)
    crash = Failure("crash", "SIGSEGV")
    one_lost = pooled(_compared(1.4, 0.01), _compared(1.4, 0.01, lost=crash))
    assert one_lost.candidates[0] is crash
    assert isinstance(one_lost.candidates[1], Timing)
    dead = Comparison(crash, (crash, crash))
    assert pooled(dead, _compared(1.4, 0.01)).reference is pooled(_compared(1.4, 0.01), dead).reference is crash


def test_random_values_have_the_types_and_ranges_asked_for() -> None:
    types = {"x": ((3, 50), "float32"), "n": ((200,), "int8"), "u": ((200,), "uint8"), "b": ((64,), "bool")}
    values = arrays.random_values({**types, "h": ((4,), "bfloat16")}, 0, signed=(-5, 5))
    assert {name: (value.shape, str(value.dtype)) for name, value in values.items()} == {
        **types,
        "h": ((4,), "bfloat16"),
    }
    assert values["x"].min() < 0 < values["x"].max()
    assert (values["n"].min(), values["n"].max()) == (-5, 4)
    assert (values["u"].min(), values["u"].max()) == (0, 7)
    assert 0 < values["b"].sum() < 64
    again = arrays.random_values(types, 0, signed=(-5, 5))
    assert all(np.array_equal(values[name], again[name]) for name in types)
