"""The timing loop: samples are as long as asked, whatever the first calls of a program take."""

from __future__ import annotations

import pytest

from superopt.measure import loop


class _Clock:
    """A clock that calls advance."""

    def __init__(self, *seconds: float) -> None:
        self.now, self._first, self._last = 0.0, list(seconds[:-1]), seconds[-1]

    def perf_counter(self) -> float:
        return self.now

    def call(self) -> None:
        self.now += self._first.pop(0) if self._first else self._last


@pytest.mark.parametrize("first", [(), (0.5,), (0.004, 0.003, 0.003), (0.004,) * 8, (2e-4,) * 30])
def test_slow_first_calls_do_not_make_a_sample_short(monkeypatch: pytest.MonkeyPatch, first: tuple[float, ...]) -> None:
    clock = _Clock(*first, 1e-4)
    monkeypatch.setattr(loop, "time", clock)
    calls = loop.calls_for(clock.call, 6e-3)
    assert 5.9e-3 <= loop.seconds_of(clock.call, calls) * calls < 5 * 6e-3


def test_a_long_call_is_a_sample_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(0.02)
    monkeypatch.setattr(loop, "time", clock)
    assert loop.calls_for(clock.call, 6e-3) == 1
    assert clock.now == pytest.approx(0.04)


def test_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(0.0)
    monkeypatch.setattr(loop, "time", clock)
    assert loop.calls_for(clock.call, 6e-3) == loop.MAX_CALLS
