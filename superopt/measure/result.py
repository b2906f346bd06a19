"""Results of measurements as plain data, with every raw sample kept.

A `Speedup` is reference time over candidate time, so above 1 is faster.  A claim of speed-up needs the whole interval
above 1 by more than the noise floor, which is the same statistic computed on the reference against itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from superopt.machine.speedup import Speedup
from superopt.workshop.job import Failure, OutputError

ENOUGH_ROUNDS = 5  # the fewest that all fall on one side by chance less often than once in twenty: 2 ** -5


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A candidate given as code: `package.module:function`, imported in the worker only.

    The function receives the frozen arrays by name and returns a callable from live arrays to a tuple of arrays.

    Attributes:
        target: `package.module:function`.
        path: a folder to put in front of the import path, or None.
    """

    target: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """One program, timed.

    Attributes:
        samples_s: seconds per call, one value per round.
        ratio: paired by round against the reference.
        errors: per output against the reference.
        build_s: seconds to build, compile and prepare.
        calls: calls averaged in one sample.
        pruned: dropped early because it was far slower than the reference.
    """

    samples_s: tuple[float, ...]
    ratio: Speedup
    errors: tuple[OutputError, ...] = ()
    build_s: float = 0.0
    calls: int = 1
    pruned: bool = False

    @property
    def median_s(self) -> float:
        """Median seconds per call."""
        ordered = sorted(self.samples_s)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

    @property
    def max_error(self) -> float:
        """Largest normwise relative error over the outputs."""
        return max((e.normwise for e in self.errors), default=0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidates against a reference.

    Attributes:
        reference: the reference's own timing; its ratio is the A/A ratio (the reference against itself).
        candidates: one entry per candidate, in order.
        isolated: False when the programs had to be timed in the calling process.
        notes: messages for the reader (programs timed in process, rounds cut short).
        again_s: seconds per call of the reference's second series, one value per round.
    """

    reference: Timing | Failure
    candidates: tuple[Timing | Failure, ...]
    isolated: bool = True
    notes: tuple[str, ...] = field(default=())
    again_s: tuple[float, ...] = ()

    @property
    def noise_floor(self) -> float:
        """How far the reference differs from itself: the A/A interval's farthest end, relative (0.02 = 2 %)."""
        return float("inf") if isinstance(self.reference, Failure) else self.reference.ratio.noise

    def best(self) -> int | None:
        """Index of the candidate with the best ratio, or None when none has a timing."""
        timed = [(c.ratio.ratio, -i) for i, c in enumerate(self.candidates) if isinstance(c, Timing)]
        return -max(timed)[1] if timed else None

    def faster(self, index: int) -> bool:
        """Whether the candidate is faster beyond doubt: interval above 1, ratio above the noise floor.

        Fewer than `ENOUGH_ROUNDS` rounds never suffice: the interval of one round is a point.
        """
        candidate = self.candidates[index]
        if isinstance(candidate, Failure) or len(candidate.samples_s) < ENOUGH_ROUNDS:
            return False
        return candidate.ratio.exceeds(self.noise_floor)
