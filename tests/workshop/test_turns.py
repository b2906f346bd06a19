"""A job that times holds its host alone, across the drivers that send jobs there."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import pytest

from superopt.workshop.job import WorkerDiedError
from superopt.workshop.turns import turn


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def held(alone: bool, spans: list[tuple[bool, float, float]], seconds: float = 0.05) -> None:
    with turn(alone, math.inf):
        begin = time.monotonic()
        time.sleep(seconds)
        spans.append((alone, begin, time.monotonic()))


def overlap(one: tuple[bool, float, float], other: tuple[bool, float, float]) -> bool:
    return max(one[1], other[1]) < min(one[2], other[2])


def test_nothing_runs_beside_a_turn_alone() -> None:
    spans: list[tuple[bool, float, float]] = []
    threads = [threading.Thread(target=held, args=(n % 3 == 0, spans)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(spans) == 12
    pairs = [(a, b) for n, a in enumerate(spans) for b in spans[:n] if overlap(a, b)]
    assert not any(a[0] or b[0] for a, b in pairs)


def test_turns_that_need_not_be_alone_overlap() -> None:
    with turn(False, math.inf), turn(False, time.monotonic()):
        pass


def test_who_waits_to_be_alone_is_not_overtaken() -> None:
    spans: list[tuple[bool, float, float]] = []
    with turn(False, math.inf):
        waiting = threading.Thread(target=held, args=(True, spans))
        waiting.start()
        time.sleep(0.2)
        with pytest.raises(WorkerDiedError), turn(False, time.monotonic()):
            pass
    waiting.join()
    assert len(spans) == 1


def test_a_host_that_is_not_free_in_time_is_a_timeout() -> None:
    with turn(True, math.inf), pytest.raises(WorkerDiedError) as late, turn(True, time.monotonic() + 0.05):
        pass
    assert late.value.failure.cause == "timeout"
