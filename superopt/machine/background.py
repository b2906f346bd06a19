"""Work on a thread of its own, which its caller may abandon.

Calls into XLA, LLVM and functions of users cannot be ended from outside.  On a thread of its own such a call blocks
nobody: the caller waits with a deadline, and Ctrl-C ends the wait.

An interpreter that shuts down ends each thread that takes its lock, and with code of XLA below on the stack that aborts
the process.  So the process waits for abandoned calls before it ends.  After Ctrl-C or an error it is ended there, with
the status that it would have had.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

from superopt.machine.interrupts import HEARD

T = TypeVar("T")
_WAIT_S = 3600.0  # the longest wait that locks know is some years, and they say so with an error
_SILENT_S, _OTHERS_S = 3.0, 0.3  # of waiting at the end; of what else is to be done there after Ctrl-C
_CUT = 130  # status, as shells have it, of a program that caught Ctrl-C and ends while calls go on
_LOG = logging.getLogger("superopt")
_RUNNING = set["BackgroundCall[Any]"]()


class TimeOverError(Exception):
    """The work had not ended by the deadline of the wait; it goes on."""


class BackgroundCall(Generic[T]):
    """Work that has begun on a thread of its own.

    Args:
        work: what is done there.
        native: it calls into compiled code that the end of the interpreter must not meet; Python and NumPy may be left.
    """

    def __init__(self, work: Callable[[], T], *, native: bool = True) -> None:
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Event()
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)  # the last one is called first: before libraries end what the work uses
        if native:
            _RUNNING.add(self)
        threading.Thread(target=self._run, name="superopt background call", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # it is raised where the result is asked for
            self._error = error
        finally:
            _RUNNING.discard(self)
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether the work has ended."""
        return self._done.is_set()

    def result(self, end_s: float = math.inf) -> T:
        """Return the result, waiting until this instant of `time.monotonic`; errors of the work are raised here.

        Raises:
            TimeOverError: it has not ended by then.
        """
        while not self._done.wait(max(0.0, min(_WAIT_S, end_s - time.monotonic()))):
            if time.monotonic() >= end_s:
                raise TimeOverError
        if self._error is not None:
            raise self._error
        return self._result[0]

    def by(self, end_s: float) -> T | None:
        """Return the result if there is one by this instant, else None; errors of the work are raised here."""
        try:
            return self.result(end_s)
        except TimeOverError:
            return None


def end_with(status: int) -> NoReturn:
    """End the process with this status, at once where work goes on that nobody waits for."""
    if _RUNNING:
        _end(lambda: os._exit(status))
    sys.exit(status)


def _at_exit() -> None:
    """Wait for what was left behind; after Ctrl-C or an error, end the process here."""
    gc.freeze()  # the interpreter's last collection walks over all that a search has made: a second for nothing
    raised: Any = None if hasattr(sys, "ps1") else getattr(sys, "last_type", None)  # by which the program ends
    if raised is not None and issubclass(raised, KeyboardInterrupt):  # to take the interpreter down takes longest
        _end(_interrupted)
    if not _RUNNING:
        return
    try:
        if raised is None and not HEARD.is_set():
            _waited()
            return
    except KeyboardInterrupt:
        _end(_interrupted)
    _end(lambda: os._exit(_CUT if raised is None else 1))


def _waited() -> None:
    end_s = time.monotonic() + _SILENT_S
    for work in tuple(_RUNNING):
        if work._done.wait(max(0.0, end_s - time.monotonic())):
            continue
        _LOG.warning("superopt: a call that was left behind has not ended; the process waits for it (Ctrl-C ends it)")
        work._done.wait()


def _end(process: Callable[[], None]) -> None:
    """End the process after the exit handlers that others registered, but not long after."""
    last = threading.Timer(_OTHERS_S, process)
    last.daemon = True
    last.start()
    atexit.unregister(_at_exit)
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage] (nothing public calls them)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    process()


def _interrupted() -> None:
    """End the process by SIGINT, as Python does after a Ctrl-C that nobody caught."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
