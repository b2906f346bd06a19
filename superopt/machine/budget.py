"""Budgets as users write them: seconds, "30s", "2min", "1h", or "5000steps".

Seconds are the wall time of the whole call, shared by all its stages.  Steps bound the search alone and make it
deterministic; measuring then takes its usual rounds.

Every stage has a deadline (`stage`): it may take half of the time left after the known later stages, and the time it
leaves goes to the others.  Long steps are cut to the time left.  A step that cannot end in time, judged by equal
earlier steps, is not begun.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, replace

from superopt.errors import UsageError

_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
WORTH = 1.03  # a difference of two times: the best of four equal programs looks 1.6 % faster (`bench --suite aa`)
HALF = 0.5  # share of the time left after known later stages that a stage may take; the rest goes to the others
PROGRAMS = 4  # programs of the search to build: in 17 contests (suite `joint`) the fastest was within 1.10 of the first
LEAST_KERNELS_S = 5.0  # less is too short for kernels: their processes take 2 s to start, and half is the search's
LEAST_S = 1.0  # a search of less finds nothing: saturation alone takes half of it


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """Seconds for everything, or steps for the search.

    Attributes:
        kernels: whether a part of the seconds is for kernels of our own.
        end_s: deadline of the stage, an instant of `time.monotonic`.
    """

    seconds: float | None
    steps: int | None
    kernels: bool = False
    end_s: float = math.inf

    def after(self, spent_s: float) -> SearchBudget:
        """Return the budget after so many seconds are spent; at least half of a small budget remains."""
        if self.seconds is None:
            return self
        least_s = 1e-3 if self.is_kept else HALF * self.seconds
        return replace(self, seconds=max(least_s, self.seconds - spent_s))

    @property
    def is_kept(self) -> bool:
        """Whether the budget is a hard limit: nothing is begun that could end after it, proofs of rules included."""
        return self.seconds is not None and self.seconds >= LEAST_KERNELS_S

    def until(self, begin_s: float, share: float = 1.0) -> SearchBudget:
        """Return the budget of a stage that ends when this share of the seconds is over."""
        return self if self.seconds is None else replace(self, end_s=begin_s + share * self.seconds)

    def stage(self, follow_s: float = 0.0, share: float = HALF) -> SearchBudget:
        """Return the budget of a stage that may take a share of the time left after the known later stages."""
        if self.end_s == math.inf:
            return self
        return replace(self, end_s=time.monotonic() + share * max(0.0, self.left_s - follow_s))

    def part_s(self, follow_s: float = 0.0) -> float:
        """Return seconds for work without a deadline: a stage's share, or a few if the budget has no clock."""
        return min(self.stage(follow_s).left_s, LEAST_KERNELS_S if self.end_s == math.inf else math.inf)

    @property
    def tries_kernels(self) -> bool:
        """Whether the budget has a part for kernels of our own, and time for them."""
        return self.kernels and (self.seconds is None or self.seconds >= LEAST_KERNELS_S)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline of the stage; infinite where it has none."""
        return max(0.0, self.end_s - time.monotonic()) if self.end_s < math.inf else math.inf


def parse_budget(budget: str | float) -> SearchBudget:
    """Parse a budget that the user wrote.

    Raises:
        UsageError: not a budget, or not positive.
    """
    hint = 'write seconds, "30s", "2min" or "5000steps"'
    if isinstance(budget, bool) or not isinstance(budget, str | int | float):
        raise UsageError(f"a budget cannot be a {type(budget).__name__}", hint=hint)
    text = str(budget).strip().lower()
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e-?\d+)?)\s*([a-z]*)", text)
    if found is None:
        raise UsageError(f"{budget!r} is not a positive budget", hint=hint)
    amount, unit = float(found[1]), found[2] or "s"
    if amount <= 0 or not math.isfinite(amount):
        raise UsageError(f"a budget must be positive, got {budget!r}", hint=hint)
    if unit in ("step", "steps"):
        return SearchBudget(None, max(1, int(amount)))
    if unit not in _UNITS:
        raise UsageError(f"{budget!r} has an unknown unit", hint=hint)
    return SearchBudget(amount * _UNITS[unit], None)
