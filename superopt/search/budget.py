"""Budgets of a search: seconds, steps, or both.

A step is one proposal.  A budget of steps alone makes the search deterministic: the same e-graph, objective and seed
give the same result on every machine.  With seconds, progress is the larger of the two fractions spent.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from superopt.errors import InputError

CHECK_EVERY = 16


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a search; None means unlimited, but one of the two must be given.

    Raises:
        InputError: neither is given, or one is not positive.
    """

    seconds: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.steps is None:
            raise InputError("a search budget needs seconds or steps")
        if (self.seconds is not None and not self.seconds > 0) or (self.steps is not None and self.steps <= 0):
            raise InputError(f"a search budget must be positive, got seconds={self.seconds}, steps={self.steps}")


class Meter:
    """Counts how much of a budget, or of a share of one, is spent."""

    def __init__(self, budget: Budget, parent: Meter | None = None) -> None:
        self.budget = budget
        self.parent = parent
        self.started_s = time.perf_counter()
        self.steps = 0

    def step(self, count: int = 1) -> None:
        """Count proposals."""
        self.steps += count
        if self.parent is not None:
            self.parent.step(count)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started_s

    @property
    def left_s(self) -> float | None:
        """Seconds that are left; None where they are not limited."""
        return None if self.budget.seconds is None else max(0.0, self.budget.seconds - self.elapsed_s)

    @property
    def is_late(self) -> bool:
        """Whether the time of the meter is over."""
        return self.left_s == 0.0

    def spent(self) -> float:
        """Fraction of the budget that is spent, 1 or more when it is used up."""
        part = 0.0
        if self.budget.steps is not None:
            part = self.steps / self.budget.steps
        if self.budget.seconds is not None:
            part = max(part, self.elapsed_s / self.budget.seconds)
        return part

    def exhausted(self) -> bool:
        """Whether the budget is used up (this share or the whole)."""
        return self.spent() >= 1.0 or (self.parent is not None and self.parent.exhausted())

    def share(self, fraction: float, most_steps: int | None = None) -> Meter:
        """A meter over a fraction of the whole budget, and at most some steps; its steps count here as well."""
        whole = self.budget
        seconds = None if whole.seconds is None else max(1e-3, whole.seconds * fraction)
        steps = None if whole.steps is None else max(1, int(whole.steps * fraction))
        if most_steps is not None:
            steps = most_steps if steps is None else min(steps, most_steps)
        return Meter(Budget(seconds, steps), self)
