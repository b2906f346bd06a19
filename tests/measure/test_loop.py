"""The timing loop: samples are as long as asked, whatever the first calls of a program take."""

from __future__ import annotations

import pytest

from superopt.measure import kernels, loop


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


@pytest.mark.parametrize(("footprint", "label_s"), [(0, 1e-4), (1 << 50, 3e-4)])
def test_weights_from_memory_are_labelled_by_the_usual_round(
    monkeypatch: pytest.MonkeyPatch, footprint: int, label_s: float
) -> None:
    settings = kernels.KernelSettings(rounds=3, sample_s=1e-5, footprint=footprint)
    clock = _Clock(*[1e-4] * 4, 3e-4)  # two that count calls, and those of the first round
    monkeypatch.setattr(loop, "time", clock)
    *_, found = kernels._time_chunk({0: clock.call}, lambda: None, settings, 0, float("inf"))
    assert found["seconds"] == pytest.approx(label_s)
