"""Progress of a search towards its deadline: the larger of the fractions of its time and of its steps that are spent.

A step is one proposal.  A deadline of steps alone makes the search deterministic: the same e-graph, objective and seed
give the same result on every machine.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.errors import InputError
from superopt.machine.deadline import Deadline, Stopwatch

CHECK_EVERY = 16  # proposals between two looks at the clock
_LEAST_S = 1e-3  # of a share: a search of it makes a step at all


class Meter:
    """Counts how much of the time and the steps until a deadline, or of a share of them, is spent.

    Attributes:
        seconds: whole time from the start to the deadline; None where no clock ends the search.
        most: whole number of steps; None where they are not limited.
        steps: steps so far.

    Raises:
        InputError: neither is limited, or no step is allowed.
    """

    def __init__(self, deadline: Deadline, parent: Meter | None = None) -> None:
        self.seconds = max(_LEAST_S, deadline.left_s) if deadline.is_timed else None
        self.most, self.parent = deadline.steps, parent
        if self.seconds is None and self.most is None:
            raise InputError("a search needs a deadline or a number of steps")
        if self.most is not None and self.most <= 0:
            raise InputError(f"a search needs a positive number of steps, got {self.most}")
        self._watch = Stopwatch()
        self.steps = 0

    def step(self, count: int = 1) -> None:
        """Count proposals."""
        self.steps += count
        if self.parent is not None:
            self.parent.step(count)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._watch.elapsed_s

    @property
    def is_late(self) -> bool:
        """Whether the time of the meter is over."""
        return self.seconds is not None and self.elapsed_s >= self.seconds

    def spent(self) -> float:
        """Fraction of the whole that is spent, 1 or more when it is used up."""
        part = 0.0 if self.most is None else self.steps / self.most
        return part if self.seconds is None else max(part, self.elapsed_s / self.seconds)

    def exhausted(self) -> bool:
        """Whether the whole is used up (this share or that of the parent)."""
        return self.spent() >= 1.0 or (self.parent is not None and self.parent.exhausted())

    def share(self, fraction: float, most_steps: int | None = None) -> Meter:
        """A meter over a fraction of the whole, and at most some steps; its steps count here as well."""
        return Meter(self.part(fraction, most_steps), self)

    def part(self, fraction: float, most_steps: int | None = None) -> Deadline:
        """The deadline of a fraction of the whole that begins now, and of at most some steps."""
        steps = None if self.most is None else max(1, int(self.most * fraction))
        if most_steps is not None:
            steps = most_steps if steps is None else min(steps, most_steps)
        return Deadline.within(None if self.seconds is None else max(_LEAST_S, self.seconds * fraction), steps)

    def until(self, fraction: float) -> Deadline:
        """The deadline at which a fraction of the time is over; no number of steps limits it."""
        return Deadline.within(None if self.seconds is None else max(0.0, fraction * self.seconds - self.elapsed_s))

    @property
    def for_prices(self) -> Deadline:
        """The deadline of a batch of prices: half of the time left, so that the moves that wait for them are tried."""
        return self.rest.share()

    @property
    def rest(self) -> Deadline:
        """The deadline of the time that is left, here and in the parent; no number of steps limits it."""
        own = self.until(1.0)
        return own if self.parent is None else replace(own, end_s=min(own.end_s, self.parent.rest.end_s))
