"""Work that is left behind, and a Ctrl-C that nothing swallows."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from superopt.machine.background import BackgroundCall, TimeOverError
from superopt.machine.interrupts import heard


def test_work_has_a_result_or_an_error() -> None:
    assert BackgroundCall(lambda: 3).result() == 3
    with pytest.raises(ZeroDivisionError):
        BackgroundCall(lambda: 1 // 0).result()


def test_work_is_left_behind_at_the_end_of_the_time() -> None:
    go = threading.Event()
    work = BackgroundCall(lambda: go.wait(60.0))
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


_ENDS = {
    "by itself": ("sys.exit(7)", 7),
    "by an error": ("raise ValueError", 1),
    "by Ctrl-C": ("raise KeyboardInterrupt", -signal.SIGINT),
    "after a Ctrl-C that was caught": ("interrupted()", 130),
    "with a status": ("end_with(5)", 5),
}


@pytest.mark.parametrize("how", _ENDS)
def test_work_that_goes_on_is_waited_for_at_the_end_unless_the_program_was_interrupted(how: str) -> None:
    """An interpreter that shuts down under a call into XLA aborts."""
    text, status = _ENDS[how]
    waits = how == "by itself"
    code = f"""
import atexit, os, signal, sys, threading, time
from superopt.machine.background import BackgroundCall, end_with
from superopt.machine.interrupts import heard
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(print, "others", flush=True)
def interrupted():
    try:
        with heard():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
    except KeyboardInterrupt:
        pass
BackgroundCall(lambda: time.sleep({1.0 if waits else 60.0}) or print("done", flush=True))
{text}
"""
    begin_s = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == status, ended.stderr
    assert ended.stdout.split() == (["done", "others"] if waits else ["others"])
    assert time.monotonic() - begin_s < 45.0


def test_work_of_python_alone_is_left_at_the_end() -> None:
    code = (
        "import time; from superopt.machine.background import BackgroundCall as Call;"
        "Call(lambda: time.sleep(60.0), native=False)"
    )
    begin_s = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code], timeout=50, check=False).returncode == 0
    assert time.monotonic() - begin_s < 45.0


_IN_A_FINALISER = """
import os, signal, time
from superopt.machine.background import BackgroundCall
from superopt.machine.interrupts import heard

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

begin = time.monotonic()
try:
    with heard():
        Dropped()
        BackgroundCall(lambda: time.sleep(8)).result()
except KeyboardInterrupt:
    print(time.monotonic() - begin, flush=True)
os._exit(0)
"""


def test_ctrl_c_in_a_finaliser_wakes_the_thread_that_waits() -> None:
    command = [sys.executable, "-c", _IN_A_FINALISER]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert float(ran.stdout) < 4.0
