"""Deadlines: when work ends, and how its time is shared out. No stage reads a clock but through this module.

A call has one deadline.  A stage gets a `share` of the time left after the known later stages (`reserve_s`), and the
time that it leaves goes to the others.  Long steps are cut to the time left.  A step that cannot end in time, judged by
equal earlier steps, is not begun.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

HALF = 0.5  # share of the time left after known later stages that a stage may take; the rest goes to the others


def now_s() -> float:
    """Return the instant by the clock of all deadlines, in seconds."""
    return time.monotonic()


def thread_s() -> float:
    """Return the processor time of this thread, in seconds."""
    return time.thread_time()


def process_s() -> float:
    """Return the processor time of this process, in seconds."""
    return time.process_time()


@dataclass(frozen=True, slots=True)
class Deadline:
    """Limits of a piece of work: the instant at which it ends, and the steps of a search.

    Attributes:
        end_s: instant of the end (`now_s`); infinite where no clock ends the work.
        steps: most proposals of a search; None where they are not limited.
        floor_s: seconds that `reserve` leaves in any case.
    """

    end_s: float = math.inf
    steps: int | None = None
    floor_s: float = 1e-3

    @classmethod
    def within(cls, seconds: float | None, steps: int | None = None) -> Deadline:
        """Return the deadline so many seconds from now; without seconds no clock ends the work."""
        return cls(math.inf if seconds is None else now_s() + seconds, steps)

    @property
    def is_timed(self) -> bool:
        """Whether a clock ends the work."""
        return self.end_s < math.inf

    @property
    def left_s(self) -> float:
        """Seconds until the end; infinite where no clock ends the work."""
        return max(0.0, self.end_s - now_s()) if self.is_timed else math.inf

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self.left_s <= 0.0

    def share(self, part: float = HALF, reserve_s: float = 0.0) -> Deadline:
        """Return the deadline of a stage that gets a part of the time left after the known later stages."""
        if not self.is_timed:
            return self
        return replace(self, end_s=now_s() + part * max(0.0, self.left_s - reserve_s))

    def reserve(self, seconds: float = 0.0) -> Deadline:
        """Return the deadline earlier by so many seconds, but not nearer than the floor."""
        return replace(self, end_s=max(now_s() + self.floor_s, self.end_s - seconds)) if self.is_timed else self

    def or_within(self, seconds: float) -> Deadline:
        """Return this deadline, or the one so many seconds from now where no clock ends the work."""
        return self if self.is_timed else replace(self, end_s=now_s() + seconds)

    def at_least(self, seconds: float) -> Deadline:
        """Return the later one of this deadline and that so many seconds from now."""
        return replace(self, end_s=max(self.end_s, now_s() + seconds))

    def at_most(self, seconds: float) -> Deadline:
        """Return the earlier one of this deadline and that so many seconds from now."""
        return replace(self, end_s=min(self.end_s, now_s() + seconds))


class Stopwatch:
    """Measures seconds since it was made.

    Attributes:
        begin_s: reading of its clock then.

    Args:
        clock: what is read; the clock of deadlines where none is given.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or now_s
        self.begin_s = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return self._clock() - self.begin_s
