"""Budgets as users write them: seconds, "30s", "2min", "1h", or "5000steps".

Seconds are shared by growth, search and measuring.  Steps bound the search alone and make it deterministic; measuring
then takes its usual rounds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from superopt.errors import UsageError

_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """Seconds for everything, or steps for the search.

    Attributes:
        kernels: a part of the seconds is for kernels of our own.
    """

    seconds: float | None
    steps: int | None
    kernels: bool = False

    @property
    def search_seconds(self) -> float | None:
        """The part of the seconds that the search may take."""
        return None if self.seconds is None else min(12.0, 0.3 * self.seconds)

    @property
    def measure_seconds(self) -> float:
        """The part of the seconds that timing may take, builds not counted."""
        return 20.0 if self.seconds is None else min(40.0, max(1.0, (0.25 if self.kernels else 0.35) * self.seconds))

    @property
    def tuning_seconds(self) -> float:
        """The part of the seconds that trying options of the compiler may take, builds included."""
        return 15.0 if self.seconds is None else min(15.0, (0.1 if self.kernels else 0.25) * self.seconds)

    @property
    def kernel_seconds(self) -> float:
        """The part of the seconds that trying kernels of our own may take, builds included."""
        return 20.0 if self.seconds is None else min(120.0, 0.35 * self.seconds)


def parse_budget(budget: str | float) -> SearchBudget:
    """A budget from what the user wrote.

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
