"""Work on a thread of its own, which its caller may leave behind.

Calls into XLA, LLVM and functions of users cannot be ended from outside.  On a thread of its own such a call keeps
nobody: who waits for it waits to an instant, and Ctrl-C ends the wait.  The thread ends with its work or with the
process, whichever is first.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_WAIT_S = 3600.0  # the longest wait that locks know is some years, and they say so with an error


class TimeOverError(Exception):
    """The work had not ended at the instant to which it was waited for; it goes on."""


class Aside(Generic[T]):
    """Work that has begun on a thread of its own."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Event()
        threading.Thread(target=self._run, name="superopt aside", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # it is raised where the result is asked for
            self._error = error
        finally:
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    def result(self, end_s: float = math.inf) -> T:
        """The result, waited for to this instant of `time.monotonic`; errors of the work are raised here.

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
        """The result, if there is one by this instant; errors of the work are raised here."""
        try:
            return self.result(end_s)
        except TimeOverError:
            return None
