"""Comparisons as the stages of a run make them: with the original on its example inputs, and again on fresh rounds.

The best of several noisy timings looks better than it is, so what is claimed comes from fresh rounds after the choice.
Programs of less than a few milliseconds are timed in many short rounds, and half of the fresh rounds run in another
process, because such programs differ by ten percent between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.contest.checks import Builds
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported
from superopt.measure import (
    Comparison,
    ComparisonSettings,
    Timing,
    Tolerance,
    Tuned,
    Worker,
    as_called,
    compare,
    pooled,
)
from superopt.measure.result import ENOUGH_ROUNDS
from superopt.report.data import Measurement
from superopt.store import Store

SHORT_S = 3e-3  # programs of less are timed in more rounds and in two processes
_LEAST_S = 5.0  # of budget, for another process
_SHORT_ROUNDS, _SHORT_SAMPLE_S, _ROUNDS = 31, 0.006, 15
_TIMING = 0.3  # of the time left, that the rounds of one comparison may take


def rounds_of(short: bool, usual: int = _ROUNDS) -> dict[str, Any]:
    """How many rounds time a program, and how long their samples are at least where it is short."""
    return {"rounds": _SHORT_ROUNDS, "min_time_s": _SHORT_SAMPLE_S} if short else {"rounds": usual}


def measured(original: Timing, returned: Timing, noise_floor: float) -> Measurement:
    """What rounds of the original with the returned program say of it."""
    series = {"original": original, "returned": returned}
    return Measurement(
        before_ms=1e3 * original.median_s, after_ms=1e3 * returned.median_s, speedup=returned.ratio,
        noise_floor=noise_floor,
        samples_ms={name: tuple(1e3 * s for s in timing.samples_s) for name, timing in series.items()},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tools:
    """What the stages of one run work with.

    Attributes:
        worker: the process in which programs are compared.
        builds: what the checks of this process have built.
        store: of earlier results; None for none.
        say: is told a line at a time how far the run is.
    """

    worker: Worker
    builds: Builds
    store: Store | None = None
    say: Callable[[str], None] = lambda line: None


@dataclass(frozen=True, slots=True)
class Comparing:
    """What all comparisons of a stage share: the program, the request, the process in which they run."""

    imported: Imported
    request: Request
    worker: Worker

    @property
    def original(self) -> Tuned:
        """The original as its user calls it: what programs are compared with."""
        return as_called(self.imported.graph, closed=self.imported.closes_over)

    def within(self, seconds: float) -> float:
        """Seconds that something may take which could take so many: a part of the time left at most."""
        return self.request.budget.within(seconds, _TIMING)

    def compare(
        self, reference: Any, candidates: Sequence[Any], seconds: float, worker: Worker | None = None, **settings: Any
    ) -> Comparison:
        """Candidates against a reference in rounds of at most so many seconds, or a part of the time left."""
        tolerance = Tolerance(0.0, 0.0) if self.request.exact else Tolerance()
        settings = {"seed": self.request.seed, "budget_s": self.within(seconds), "tolerance": tolerance, **settings}
        live, frozen = self.imported.live_values, self.imported.frozen_values
        made = ComparisonSettings(**settings)
        return compare(reference, candidates, live, frozen, made, worker=worker or self.worker)

    def fresh(self, forms: Sequence[Any], seconds: float, short: bool) -> Comparison:
        """Fresh rounds of the original and of forms of one program; half of them in another process if it is short.

        There are no more rounds where the first find no form faster.
        """
        seed, settings = self.request.seed, {"prune": 0.0, "min_rounds": ENOUGH_ROUNDS, **rounds_of(short)}
        first = self.compare(self.original, forms, seconds, seed=seed + 1, **settings)
        whole_s = self.request.budget.seconds
        time_left = whole_s is None or whole_s >= _LEAST_S
        if not (short and first.isolated and time_left and any(first.faster(i) for i in range(len(forms)))):
            return first
        with Worker() as other:
            second = self.compare(self.original, forms, seconds, other, seed=seed + 3, check=False, **settings)
        return pooled(first, second, seed=seed)
