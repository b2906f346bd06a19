"""Speed-ups: what is a gain, what is beyond the noise, and how they are told and kept."""

from __future__ import annotations

import json
import math

import pytest

from superopt.machine.speedup import UNTIMED, Speedup, predicted_speedup, read_speedup


@pytest.mark.parametrize(
    ("speedup", "noise"),
    [(Speedup(1.0, 0.9, 1.05), 0.1), (Speedup(1.0, 0.98, 1.05), 0.05), (Speedup(1.2, 1.1, 1.25), 0.25),
     (Speedup(0.8, 0.75, 0.9), 0.25), (Speedup(1.0, 1.0, 1.0), 0.0)],
)  # fmt: skip
def test_noise_is_the_farther_end_of_the_interval(speedup: Speedup, noise: float) -> None:
    assert speedup.noise == pytest.approx(noise)


@pytest.mark.parametrize(
    ("speedup", "gain", "exceeds"),
    [(Speedup(1.2, 1.1, 1.3), True, True), (Speedup(1.05, 1.01, 1.1), True, False),
     (Speedup(1.2, 0.99, 1.3), False, False), (Speedup(1.2, 1.0, 1.3), False, False),
     (Speedup(1.1, 1.05, 1.3), True, False), (predicted_speedup(2.0), False, False), (UNTIMED, False, False)],
)  # fmt: skip
def test_a_gain_is_above_one_over_the_whole_interval_and_beyond_the_noise(
    speedup: Speedup, gain: bool, exceeds: bool
) -> None:
    assert (speedup.is_gain, speedup.exceeds(0.1)) == (gain, exceeds)


@pytest.mark.parametrize("speedup", [Speedup(1.5, 1.25, math.inf), predicted_speedup(2.0), UNTIMED])
def test_speedups_are_kept_with_their_basis(speedup: Speedup) -> None:
    again = read_speedup(json.loads(json.dumps(speedup.to_json(), allow_nan=False)))
    assert (again.ratio, again.basis) == (speedup.ratio, speedup.basis)
    assert math.isnan(again.high)
    assert again.low == speedup.low or (math.isnan(again.low) and math.isnan(speedup.low))
    assert ("predicted" in str(speedup)) == (speedup.basis == "predicted")
    assert ("[" in str(speedup)) == (speedup.basis == "measured")
