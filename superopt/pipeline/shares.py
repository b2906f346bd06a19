"""Splits the budget of a function over the argument types it is optimised for, and reports long optimisations."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from superopt.machine.budget import LEAST_KERNELS_S, LEAST_S, parse_budget
from superopt.machine.deadline import HALF, Stopwatch

DEFAULT_BUDGET = "60s"
SILENT_MS = 3000
_LOG = logging.getLogger("superopt")


class Shares:
    """A budget of which each type gets half of what those before it left, or as much as kernels need.

    A share does not depend on the time that was in fact taken, so that the store can answer the same calls of another
    process.  A budget of steps is given to each type in full.

    Args:
        budget: as `superopt.optimize` takes it.

    Raises:
        UsageError: it is no budget.
    """

    def __init__(self, budget: str | float) -> None:
        parse_budget(budget)
        self._budget, self._given_s, self._spent_s = budget, 0.0, 0.0

    def next(self) -> str | float | None:
        """The budget for another type; None where too little is left."""
        whole_s = parse_budget(self._budget).seconds
        if whole_s is None:
            return self._budget
        left_s = whole_s - self._given_s
        share_s = max(HALF * left_s, min(left_s, LEAST_KERNELS_S))
        if self._given_s and (share_s < LEAST_S or self._spent_s > whole_s):
            return None
        self._given_s += share_s
        return share_s

    @contextmanager
    def spending(self, what: str, share: str | float) -> Iterator[None]:
        """Count the time of the block against the budget, and print a line if it is long."""
        end = f", for {share:.3g} s at most" if isinstance(share, float) else ""
        line = threading.Timer(SILENT_MS / 1000, _LOG.warning, (f"superopt.jit: optimising {what}{end}",))
        line.daemon = True
        line.start()
        watch = Stopwatch()
        try:
            yield
        finally:
            line.cancel()
            self._spent_s += watch.elapsed_s
