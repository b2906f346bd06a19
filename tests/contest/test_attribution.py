"""Measured gains of rules: as many variants are timed with the winner as half of the time affords."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.candidates.candidate import Candidate
from superopt.contest import attribution
from superopt.contest.attribution import measured_gains
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.program import original_program
from superopt.measure import Comparison, Timing
from superopt.measure.stats import paired_ratio
from superopt.workshop.job import Failure

PROGRAM = original_program(import_function(jnp.tanh, (np.ones((4, 4), np.float32),)).graph)
GAINS_MS = {"a": 3.0, "b": 2.0, "c": 1.0, "d": 0.5, "e": 0.25, "nothing": 0.0}
WINNER_S = 0.01
FACTORS = {"a": 3.0, "b": 2.0, "c": 1.5, "d": 1.25}
"""Rule -> the time without it, over the winner's."""


def steady(seconds: float) -> Timing:
    return Timing((seconds,) * 5, paired_ratio((WINNER_S,) * 5, (seconds,) * 5))


@pytest.mark.parametrize(
    ("left_s", "timed"),
    [(math.inf, ["a", "b", "c", "d"]), (8.0, ["a", "b", "c"]), (6.0, ["a", "b"]), (5.9, ["a"]), (2.0, []), (0.0, [])],
)
def test_gains_are_measured_as_far_as_there_is_time(
    left_s: float, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is expected to take a second; the winner is one of those that are built again."""
    names: list[list[str]] = []

    def batch(entries: Sequence[Candidate], *, whole: bool) -> Comparison:
        names.append([entry.name for entry in entries])
        rows = [
            Failure("crash", "it died") if entry.name.endswith("c") else steady(factor * WINNER_S)
            for entry, factor in zip(entries, (1.0, *FACTORS.values()), strict=False)
        ]
        return Comparison(steady(WINNER_S), tuple(rows), again_s=(WINNER_S,) * 5)

    rounds: Any = SimpleNamespace(
        left_s=left_s, expected_s=lambda *_, **__: 1.0, request=SimpleNamespace(seed=0), timed=batch
    )
    found: Any = SimpleNamespace(gains_ms=lambda _: GAINS_MS, program=lambda _: PROGRAM)
    winner: Any = SimpleNamespace(name="best")
    monkeypatch.setattr(attribution, "without", lambda _, form, rule: SimpleNamespace(name=f"{form.name} - {rule}"))
    gains = measured_gains(rounds, found, winner, {}, SimpleNamespace())  # type: ignore[arg-type]
    assert names == ([["best", *(f"best - {rule}" for rule in timed)]] if timed else [])
    assert list(gains) == [rule for rule in timed if rule != "c"], "what failed says nothing"
    for rule, gain in gains.items():
        assert gain.milliseconds == pytest.approx(1e3 * WINNER_S * (FACTORS[rule] - 1.0))
        assert gain.ratio.ratio == pytest.approx(FACTORS[rule])
