"""Progress of a running optimisation: one line of status on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from superopt.candidates.ledger import RunLedger, Timed
from superopt.machine.deadline import Deadline
from superopt.report.figures import ratio, seconds
from superopt.report.text import clean

_REFRESHES = 2.0  # a second: more would disturb what is timed


class StatusLine:
    """The stage, the best candidate so far and the time left, as one line that rich draws anew.

    It is a function of progress lines, of which it shows the last one.
    """

    def __init__(self) -> None:
        self._stage = self._last = ""
        self._ledger, self._deadline = RunLedger(), Deadline()
        self._spinner = Spinner("dots")

    def __call__(self, line: str) -> None:
        """Take the last line of progress."""
        self._last = line

    def watch(self, ledger: RunLedger, deadline: Deadline) -> None:
        """Show what is in this ledger, and the time until this deadline."""
        self._ledger, self._deadline = ledger, deadline

    def begins(self, stage: str) -> None:
        """Show that a stage begins."""
        self._stage = stage

    def __rich__(self) -> Spinner:
        self._spinner.update(text=Text(f"{self}", no_wrap=True, overflow="ellipsis"))
        return self._spinner

    def __str__(self) -> str:
        left_s = self._deadline.left_s
        left = f"{seconds(left_s)} left" if math.isfinite(left_s) else ""
        return " · ".join(filter(None, (self._stage, best_line(self._ledger), left, clean(self._last))))


def best_line(ledger: RunLedger) -> str:
    """Return the best gain over the original that was timed so far; empty where nothing was."""
    gains = [
        statistics.median(one.baseline_s) / statistics.median(samples)
        for one in ledger.of(Timed)
        if one.baseline is None and one.baseline_s
        for _, samples in one.samples_s
        if samples
    ]
    return f"best so far {ratio(max(gains))}" if gains else "nothing timed yet"


@contextmanager
def watching(plain: Callable[[str], None], quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function of progress lines: a status line on a terminal; `plain` elsewhere, and where it is `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield plain
        return
    status = StatusLine()
    with Live(status, console=Console(stderr=True), refresh_per_second=_REFRESHES, transient=True):
        yield status
