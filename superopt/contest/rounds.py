"""Programs that were built against each other and the original: rounds are added until they say something.

Every batch of rounds times all programs interleaved with the original; the rounds of all batches are one sample.  A
program of less than a few milliseconds differs by ten percent between processes, so batches alternate between two, and
the interval covers what each of them says.  A comparison that noise has spoiled is not decided by: more batches follow
while there is time.  The winner is the program with the best ratio of those that are not slower than the original
beyond doubt; it is the original where no program is faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from superopt.backends.xla import XlaExecutable
from superopt.contest.checks import Builds
from superopt.contest.comparing import SHORT_S, rounds_of
from superopt.contest.judgement import Judgement, original_returned
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported
from superopt.ir.program import Program
from superopt.kernels.choose.choice import Choice
from superopt.machine.speedup import Speedup
from superopt.measure import Comparison, ComparisonSettings, Failure, Tuned, Worker, as_called, compare
from superopt.measure.result import ENOUGH_ROUNDS
from superopt.measure.stats import paired_ratio
from superopt.report.data import JudgedFinalist, Measurement, of_original

LEAST = 0.97  # what the interval of a returned program lies above
LEVEL = 1.04  # ends of an interval of two programs between which there is nothing to choose
_ROUNDS = 9
_MOST_BATCHES, _USUAL_BATCHES = 12, 3  # more rounds shrink an interval little; of budgets in steps, which have no end
_BATCH = 0.35  # of the time left, that the rounds of one batch may take


@dataclass(frozen=True, slots=True)
class Entry:
    """A program that may be returned, with what it is built with; `predicted_s` by the model, if asked."""

    name: str
    program: Program
    kernels: tuple[Choice, ...] = ()
    options: Mapping[str, bool | str] = field(default_factory=dict[str, bool | str])
    predicted_s: float | None = None

    @property
    def candidate(self) -> Program | Tuned:
        """What is built and timed."""
        if not (self.kernels or self.options):
            return self.program
        return Tuned(self.program, self.options, tuple(c.to_json() for c in self.kernels))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the rounds said.

    Attributes:
        order: the entries that may be returned, the fastest first; where there is none, the original is.
        ratios: of each entry, the original's time over its time; None where it failed.
        failures: of each entry, empty where it ran.
        reference_s, samples_s: seconds per call, one value per round, of the original and of each entry.
        noise_floor: how far the original is from itself.
        settled: the rounds leave no doubt about the winner.
        build_s: what building a program took at most.
        cause: why the original could not be timed.
    """

    order: tuple[int, ...]
    ratios: tuple[Speedup | None, ...]
    failures: tuple[str, ...]
    reference_s: tuple[float, ...] = ()
    samples_s: tuple[tuple[float, ...], ...] = ()
    noise_floor: float = float("inf")
    settled: bool = False
    build_s: float = 0.0
    cause: str = ""

    def is_faster(self, number: int) -> bool:
        """Is an entry faster than the original beyond the noise?"""
        ratio = self.ratios[number]
        return ratio is not None and ratio.exceeds(self.noise_floor)

    def median_ms(self, number: int | None) -> float | None:
        """Milliseconds of an entry, or of the original."""
        samples = self.reference_s if number is None else self.samples_s[number]
        return 1e3 * sorted(samples)[len(samples) // 2] if samples else None

    def rows(self, entries: Sequence[Entry]) -> tuple[JudgedFinalist, ...]:
        """The entries for the report."""
        rows: list[JudgedFinalist] = []
        for i, (entry, ratio, failure) in enumerate(zip(entries, self.ratios, self.failures, strict=True)):
            predicted_ms = None if entry.predicted_s is None else 1e3 * entry.predicted_s
            rows.append(JudgedFinalist(entry.name, predicted_ms, self.median_ms(i), ratio, failure))
        return tuple(rows)


Candidate = tuple[Entry, Judgement]


def contest(
    imported: Imported,
    entries: Sequence[Entry],
    request: Request,
    where: Worker | Builds,
    progress: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Time the entries against the original until the rounds say which to return, or the time is over.

    They are built and timed in processes of their own, of which one is given; or in this one, as its checks built them.
    """
    live, frozen, limits = imported.live_values, imported.frozen_values, request.budget
    series = _Series(len(entries), request.seed)
    original: Tuned | XlaExecutable
    if isinstance(where, Builds):
        original = where.original
        candidates = [where.candidate(x.program, x.options, x.kernels) for x in entries]
    else:
        original = as_called(imported.graph, closed=imported.closes_over)
        candidates = [x.candidate for x in entries]
    with Worker() as other:  # which starts when it is asked
        for number in range(_MOST_BATCHES if limits.end_s < math.inf else _USUAL_BATCHES):
            second = series.is_short and number % 2 == 1 and not isinstance(where, Builds)
            active = series.active
            begin = time.monotonic()
            comparison = compare(
                original, [candidates[i] for i in active], live, frozen,
                ComparisonSettings(
                    seed=request.seed + 20 + number, prune=0.0, min_rounds=ENOUGH_ROUNDS,
                    budget_s=limits.within(10.0, _BATCH), check=number <= 1, **rounds_of(series.is_short, _ROUNDS),
                ),
                worker=None if isinstance(where, Builds) else other if second else where,
                isolate=not isinstance(where, Builds),
            )  # fmt: skip
            series.add(comparison, active, int(second))
            batch_s = time.monotonic() - begin - series.build_s * (number <= 1)
            enough = series.settled and (not series.is_short or number > 0)
            if enough or series.cause or not series.active or limits.left_s < max(0.1, batch_s):
                break
    for entry, ratio, failure in zip(entries, series.ratios, series.failures, strict=True):
        progress(f"{entry.name}: {ratio or failure}")
    return series.outcome


def decided(said: Outcome, number: int, entries: Sequence[Candidate], judged: Judgement) -> Judgement:
    """The judgement of one entry with what the contest says of it, and what was tried beside it."""
    own = entries[number][1]
    verdict = own.verdict
    if not said.is_faster(number):
        verdict = (
            f"{len(own.kernels)} kernels of our own returned; not slower than the original, nor faster beyond the noise"
        )
    samples = {"original": said.reference_s, "returned": said.samples_s[number]}
    others = {e.name: said.samples_s[i] for i, (e, _) in enumerate(entries) if i != number and said.samples_s[i]}
    ratio = said.ratios[number]
    assert ratio is not None
    measured = Measurement(
        before_ms=said.median_ms(None), after_ms=said.median_ms(number), speedup=ratio, noise_floor=said.noise_floor,
        samples_ms={name: tuple(1e3 * s for s in series) for name, series in (samples | others).items()},
    )  # fmt: skip
    notes = tuple(dict.fromkeys((*judged.notes, *own.notes, *_doubt(said))))
    return replace(
        own, verdict=verdict, measured=measured, notes=notes, predicted_s=entries[number][0].predicted_s,
        finalists=(*judged.finalists, *said.rows([e for e, _ in entries])),
        tuning=judged.tuning, build_s=max(own.build_s, said.build_s), noisy=not said.settled,
    )  # fmt: skip


def undecided(imported: Imported, said: Outcome, entries: Sequence[Candidate], judged: Judgement) -> Judgement:
    """The original, since the contest found nothing faster, with what was tried."""
    cause = f"it could not be timed ({said.cause})" if said.cause else "no candidate measured faster"
    return original_returned(
        imported, cause, measured=of_original(said.median_ms(None), said.noise_floor, said.reference_s),
        finalists=(*judged.finalists, *said.rows([e for e, _ in entries])), notes=(*judged.notes, *_doubt(said)),
        tuning=judged.tuning,
        native=tuple(replace(row, used=False) for row in (judged.native or entries[0][1].native)),
        build_s=said.build_s, noisy=not said.settled,
    )  # fmt: skip


def _doubt(said: Outcome) -> tuple[str, ...]:
    if said.settled:
        return ()
    return ("the machine was too noisy to tell in the time which program is the fastest: this result is not kept",)


class _Series:
    """The rounds of all batches."""

    def __init__(self, count: int, seed: int) -> None:
        self.seed = seed
        self.cause = ""
        self.build_s = 0.0
        self.failures = [""] * count
        self.ratios: list[Speedup | None] = [None] * count
        self.floor: Speedup | None = None
        self._batches: list[tuple[int, tuple[float, ...], tuple[float, ...], dict[int, tuple[float, ...]]]] = []

    @property
    def active(self) -> list[int]:
        """Entries that have not failed."""
        return [i for i, failure in enumerate(self.failures) if not failure]

    @property
    def is_short(self) -> bool:
        """Is the original a program of less than a few milliseconds?  False before the first batch."""
        return bool(self._batches) and sorted(self.reference_s)[len(self.reference_s) // 2] < SHORT_S

    @property
    def reference_s(self) -> tuple[float, ...]:
        """Seconds of the original, all rounds."""
        return tuple(s for _, reference, _, _ in self._batches for s in reference)

    def samples_s(self, number: int) -> tuple[float, ...]:
        """Seconds of an entry, all rounds."""
        return tuple(s for *_, samples in self._batches for s in samples.get(number, ()))

    def add(self, comparison: Comparison, active: Sequence[int], process: int) -> None:
        """A batch that was timed in this process."""
        reference = comparison.reference
        if isinstance(reference, Failure):
            if not self._batches:
                self.cause = f"{reference.cause}: {reference.detail}"
                self.failures = [f or f"the original could not be timed ({self.cause})" for f in self.failures]
            return
        samples: dict[int, tuple[float, ...]] = {}
        for i, outcome in zip(active, comparison.candidates, strict=True):
            if isinstance(outcome, Failure):
                self.failures[i], self.ratios[i] = f"{outcome.cause}: {outcome.detail}", None
            else:
                samples[i] = outcome.samples_s
                self.build_s = max(self.build_s, outcome.build_s)
        self.build_s = max(self.build_s, reference.build_s)
        self._batches.append((process, reference.samples_s, comparison.again_s, samples))
        self.floor = self._ratio(lambda batch: (batch[2], batch[1]))
        for i in self.active:
            self.ratios[i] = self._ratio(lambda batch, i=i: (batch[1], batch[3][i]))

    def _ratio(self, pair: Callable[[Any], tuple[Sequence[float], Sequence[float]]]) -> Speedup:
        """The ratio of all rounds; its interval covers the ratio that each process gives."""
        of_process: dict[int, tuple[list[float], list[float]]] = {}
        for batch in self._batches:
            first, second = pair(batch)
            base, other = of_process.setdefault(batch[0], ([], []))
            base += first
            other += second
        bases, others = [s for b, _ in of_process.values() for s in b], [s for _, o in of_process.values() for s in o]
        whole = paired_ratio(bases, others, seed=self.seed)
        if len(of_process) == 1:
            return whole
        each = [paired_ratio(base, other, seed=self.seed).ratio for base, other in of_process.values()]
        return Speedup(whole.ratio, min(whole.low, *each), max(whole.high, *each))

    @property
    def order(self) -> list[int]:
        """The entries that may be returned, the fastest first."""
        timed = [(i, r) for i in self.active if (r := self.ratios[i]) is not None]
        return sorted((i for i, r in timed if r.low > LEAST and r.ratio > 1.0), key=lambda i: -self._of(i).ratio)

    def _of(self, number: int) -> Speedup:
        ratio = self.ratios[number]
        assert ratio is not None
        return ratio

    @property
    def settled(self) -> bool:
        """Do the rounds say how the fastest entry compares with the original, and with the next one?"""
        active = sorted(self.active, key=lambda i: -self._of(i).ratio)
        if not active or not _says(self._of(active[0])):
            return not active
        if len(active) == 1 or self._of(active[0]).ratio <= 1.0:
            return True
        one, two = active[:2]
        return _says(self._ratio(lambda batch: (batch[3][two], batch[3][one])))

    @property
    def outcome(self) -> Outcome:
        """What is to be returned."""
        return Outcome(
            order=tuple(self.order),
            ratios=tuple(self.ratios),
            failures=tuple(self.failures),
            reference_s=self.reference_s,
            samples_s=tuple(self.samples_s(i) for i in range(len(self.failures))),
            noise_floor=math.inf if self.floor is None else self.floor.noise,
            settled=self.settled,
            build_s=self.build_s,
            cause=self.cause,
        )


def _says(ratio: Speedup) -> bool:
    """Is one of the two faster, or are they level?"""
    return ratio.low > 1.0 or ratio.high < 1.0 or ratio.high / ratio.low < LEVEL
