"""Timing of callees with thread pools of their own: a sample waits until the process is at rest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from superopt.lab.bench import timing


class Clock:
    """Time that passes in sleeps and, a millisecond each, in calls; three threads run until `busy_until`."""

    def __init__(self, busy_until: float) -> None:
        self.now, self.busy_until = 0.0, busy_until

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 3 * min(self.now, self.busy_until)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def callee(self, starts: list[float]) -> Callable[[], None]:
        """A call whose pool runs for 50 ms after it."""

        def call() -> None:
            starts.append(self.now)
            self.now += 0.001
            self.busy_until = self.now + 0.05

        return call


def test_samples_start_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr(timing, "time", clock)
    starts: list[float] = []
    samples = timing.interleaved([clock.callee(starts)] * 2, rounds=3, sample_s=0.005, settle=True)
    assert samples == [[pytest.approx(0.001)] * 3] * 2
    # per sample three untimed calls and five timed ones, 50 ms after those before
    last = starts[-8 * 6 :]
    gaps = [b - a for a, b in pairwise(last)]
    assert [gap > 0.05 for gap in gaps] == [i % 8 == 7 for i in range(47)]


def test_threads_that_never_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(float("inf"))
    monkeypatch.setattr(timing, "time", clock)
    with pytest.raises(RuntimeError, match="still running"):
        timing.interleaved([lambda: None], rounds=1, sample_s=1e-6, settle=True)
