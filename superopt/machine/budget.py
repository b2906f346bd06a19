"""Budgets as users write them: seconds, "30s", "2min", "1h", or "5000steps".

Seconds are the wall time of the whole call, shared by all its stages (`superopt.machine.deadline`).  Steps bound the
search alone and make it deterministic; measuring then takes its usual rounds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from superopt.errors import UsageError
from superopt.machine.deadline import HALF, Deadline

_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
WORTH = 1.03  # a difference of two times: the best of four equal programs looks 1.6 % faster (`bench --suite aa`)
PROGRAMS = 4  # programs of the search to build: in 17 contests (suite `joint`) the fastest was within 1.10 of the first
LEAST_KERNELS_S = 5.0  # less is too short for kernels: their processes take 2 s to start, and half is the search's
LEAST_S = 1.0  # a search of less finds nothing: saturation alone takes half of it


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds for everything, or steps for the search."""

    seconds: float | None
    steps: int | None

    @property
    def is_kept(self) -> bool:
        """Whether the budget is a hard limit: nothing is begun that could end after it, proofs of rules included."""
        return self.seconds is not None and self.seconds >= LEAST_KERNELS_S

    @property
    def suffices_for_kernels(self) -> bool:
        """Whether there is time for kernels of our own."""
        return self.seconds is None or self.seconds >= LEAST_KERNELS_S

    def less(self, seconds: float) -> Budget:
        """Return the budget without so many of its seconds; at least half of a small one remains."""
        return self if self.seconds is None else replace(self, seconds=max(self._floor_s, self.seconds - seconds))

    def deadline(self, begin_s: float) -> Deadline:
        """Return the deadline of a call that began at this instant."""
        end_s = math.inf if self.seconds is None else begin_s + self.seconds
        return Deadline(end_s, self.steps, self._floor_s)

    @property
    def _floor_s(self) -> float:
        return 1e-3 if self.is_kept or self.seconds is None else HALF * self.seconds


def parse_budget(budget: str | float) -> Budget:
    """Parse a budget that the user wrote.

    Raises:
        UsageError: not a budget, or not positive.
    """
    hint = 'write seconds, "30s", "2min" or "5000steps"'
    if isinstance(budget, bool) or not isinstance(budget, str | int | float):
        raise UsageError(f"a budget cannot be a {type(budget).__name__}", hint=hint)
    text = str(budget).strip().lower()
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e-?\d+)?)\s*([a-z]*)", text)
    if match is None:
        raise UsageError(f"{budget!r} is not a positive budget", hint=hint)
    amount, unit = float(match[1]), match[2] or "s"
    if amount <= 0 or not math.isfinite(amount):
        raise UsageError(f"a budget must be positive, got {budget!r}", hint=hint)
    if unit in ("step", "steps"):
        return Budget(None, max(1, int(amount)))
    if unit not in _UNITS:
        raise UsageError(f"{budget!r} has an unknown unit", hint=hint)
    return Budget(amount * _UNITS[unit], None)
