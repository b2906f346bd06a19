"""Work that is left behind, and a Ctrl-C that nothing swallows."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from superopt.machine.aside import Aside, TimeOverError
from superopt.machine.interrupts import heard


def test_work_has_a_result_or_an_error() -> None:
    assert Aside(lambda: 3).result() == 3
    with pytest.raises(ZeroDivisionError):
        Aside(lambda: 1 // 0).result()


def test_work_is_left_behind_at_the_end_of_the_time() -> None:
    go = threading.Event()
    work = Aside(lambda: go.wait(60.0))
    begin_s = time.monotonic()
    with pytest.raises(TimeOverError):
        work.result(begin_s + 0.05)
    assert work.by(begin_s + 0.05) is None
    assert not work.done
    go.set()
    assert work.result() is True


@pytest.fixture
def collecting() -> Iterator[list[str]]:
    """A callback of the garbage collector during which Ctrl-C is pressed, once."""
    said: list[str] = []

    def callback(phase: str, _: dict[str, int]) -> None:
        if not said:
            said.append(phase)
            os.kill(os.getpid(), signal.SIGINT)

    gc.callbacks.append(callback)
    yield said
    gc.callbacks.remove(callback)


def test_an_interruption_of_the_garbage_collector_is_raised_after_it(collecting: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt), heard():  # noqa: PT012 (the signal comes while it waits)
        gc.collect()
        assert collecting
        threading.Event().wait(30.0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_user_stays() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with heard():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
