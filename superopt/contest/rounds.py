"""Rounds of timings of programs against the original, and the statistics over all of them.

One batch of rounds times programs interleaved with the original, which takes part twice.  Batches add up to a series.
Programs are compared only in rounds that all of them took part in.  Times of a program of less than a few milliseconds
differ by ten percent between processes; so its batches alternate between two processes, and the interval covers the
ratios of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from superopt.candidates.candidate import Candidate, original_candidate
from superopt.candidates.evidence import Measurement
from superopt.candidates.ledger import Timed
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported
from superopt.machine.budget import LEAST_KERNELS_S, WORTH
from superopt.machine.deadline import HALF, Deadline
from superopt.machine.speedup import Speedup
from superopt.measure import Comparison, ComparisonSettings, Timing, Tolerance, compare
from superopt.measure.numerics import computed_in
from superopt.measure.programs import SLOW_S
from superopt.measure.result import ENOUGH_ROUNDS
from superopt.measure.stats import paired_ratio
from superopt.workshop.job import Failure, JobWorker
from superopt.workshop.process import Worker

SHORT_S = 3e-3  # shorter programs differ by a tenth between processes, longer ones by less than `WORTH`
ROUNDS = 31  # rounds of a batch: times that swing by 7 % per round are then known to 3 %, which is `WORTH`
SAMPLE_S = 6e-3  # seconds of a round: the first call after another program takes 2.2 times the later, the fifth 1.1
ORIGINAL = -1
"""The number of the original among the entries."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The original as its user calls it, with its live inputs and frozen values: the baseline of all timings."""

    original: Candidate
    live: Sequence[Any]
    frozen: Mapping[str, Any]

    @classmethod
    def of(cls, imported: Imported) -> Subject:
        """The subject of an imported function with its example inputs."""
        original = original_candidate(imported.graph, closed=imported.closes_over)
        return cls(original, imported.live_values, imported.frozen_values)


@dataclass(slots=True)
class Rounds:
    """Times programs with the original in one or two processes; a context manager, which ends the second process.

    Attributes:
        where: the process in which programs are built and timed.
        apart: short programs are timed in a second process as well.
        other: that second process, ended with the rounds.
        builds_s: seconds that builds may take beyond the end of the rounds.
        known_s: seconds that a call of the original took earlier, where it is too long for rounds; else 0.
    """

    subject: Subject
    request: Request
    where: JobWorker
    apart: bool = True
    builds_s: float = 0.0
    known_s: float = 0.0
    other: JobWorker = field(default_factory=Worker)  # starts on first use
    _batches: int = 0
    _seen: dict[int, Candidate] = field(default_factory=dict[int, Candidate])
    _kinds: tuple[str, ...] = field(init=False)  # of the original's outputs

    def __post_init__(self) -> None:
        self._kinds = computed_in(self.subject.original.program.hot)

    def __enter__(self) -> Rounds:
        return self

    def __exit__(self, *_: object) -> None:
        self.other.close()

    @property
    def left_s(self) -> float:
        """Seconds until the end of the stage; infinite where it has none."""
        return self.request.deadline.left_s

    def timed(
        self, entries: Sequence[Candidate], *, second: bool = False, whole: bool = False, base: Candidate | None = None
    ) -> Comparison:
        """Time one batch of these entries with the original, or with another program in its place.

        Entries are left out if they would not be built within half of the time left.  The first one, and those that
        were built before, always take part.

        Args:
            second: run in the second process.
            whole: keep programs in all rounds, even those twice as slow as the original.
            base: the entry that takes the place of the original.
        """
        left_s = self.left_s
        known = all(id(entry) in self._seen for entry in entries)
        self._seen |= {id(entry): entry for entry in entries}
        self._batches += 1
        settings = ComparisonSettings(
            rounds=ROUNDS, min_time_s=SAMPLE_S, seed=self.request.seed + self._batches, min_rounds=ENOUGH_ROUNDS,
            budget_s=min(ROUNDS * SAMPLE_S * (len(entries) + 2), max(SAMPLE_S, left_s)),
            builds_s=0.0 if known else max(SAMPLE_S, HALF * left_s),
            tolerance=Tolerance(0.0, 0.0) if self.request.exact else Tolerance(),
            known_s=self.known_s if base is None else 0.0, kinds=self._kinds,
        )  # fmt: skip
        settings = replace(settings, prune=0.0) if whole else settings
        if base is not None:  # they were compared with the original; twice the tolerance may lie between two of them
            settings = replace(settings, check=False)
        end = Deadline.within(max(left_s, HALF * LEAST_KERNELS_S) + self.builds_s)
        settings = replace(settings, end_s=end.end_s)
        first = base or self.subject.original
        return compare(
            first, entries, self.subject.live, self.subject.frozen, settings,
            worker=self.other if second else self.where,
        )  # fmt: skip

    def expected_s(self, count: int, series: Series, *, built: bool, base: int = ORIGINAL) -> float:
        """Estimated seconds of a batch of `count` entries, from a series; `built` programs need no build."""
        base_s = 0.0 if base == ORIGINAL and self.known_s else series.median_s(base) or 0.0
        rounds_s = max(ROUNDS * SAMPLE_S, ENOUGH_ROUNDS * base_s) * (count + 2)
        return rounds_s + sum(
            n * s for n, s in ((1, series.original_build_s), (count, series.build_s)) if not built or s < SLOW_S
        )


def least_s(original_s: float, other_s: float) -> float:
    """Seconds of the fewest rounds that compare two programs, counting both the choice and the final."""
    return 2.0 * ENOUGH_ROUNDS * 2.0 * (original_s + other_s)


def rounds_fit(call_s: float, left_s: float) -> bool:
    """Whether the fewest useful rounds of an original, in which it takes part twice, end in the time."""
    return _CALLS * call_s <= left_s


_CALLS = 2 * ENOUGH_ROUNDS + 2  # calls of the original in the fewest rounds, and those before them
_FROM_ONE = HALF**-0.5  # factor by which one call may be off: a candidate at half the time is faster all the same


_Batch = tuple[int, dict[int, tuple[float, ...]], tuple[float, ...]]  # process, seconds by entry, the original again


class Series:
    """The rounds of several batches.

    Attributes:
        cause: the reason why the original could not be timed.
        original_build_s: seconds of building the original.
        build_s: longest time of building another program; of one with kernels, a fraction of that.
        failures: reasons why entries have no time.
        notes: messages of the comparisons.
    """

    def __init__(self, entries: Sequence[Candidate], seed: int) -> None:
        self.entries, self.seed = entries, seed
        self.cause = ""
        self.original_build_s = self.build_s = 0.0
        self.failures: dict[int, str] = {}
        self.notes: tuple[str, ...] = ()
        self._batches: list[_Batch] = []
        self._known: dict[tuple[int, int], Speedup] = {}

    def add(
        self, comparison: Comparison, numbers: Sequence[int], process: int, base: int = ORIGINAL, *, final: bool = False
    ) -> Timed:
        """Add a batch of entries that this process timed against `base`; return it for the ledger."""
        self.notes = tuple(dict.fromkeys((*self.notes, *comparison.notes)))
        event = self._event(comparison, numbers, process, base, final)
        self.take(event)
        return event

    def _event(self, comparison: Comparison, numbers: Sequence[int], process: int, base: int, final: bool) -> Timed:
        reference, entries = comparison.reference, [self.entries[i] for i in numbers]
        baseline = None if base == ORIGINAL else self.entries[base]
        if isinstance(reference, Failure):
            lost = f"{reference.cause}: {reference.detail}"
            others = () if baseline is not None else tuple((entry, "") for entry in entries)
            return Timed(final=final, process=process, baseline=baseline, failures=others, cause=lost)
        rows = list(zip(entries, comparison.candidates, strict=True))
        timed = [(entry, row) for entry, row in rows if isinstance(row, Timing)]
        return Timed(
            final=final, process=process, baseline=baseline, baseline_s=reference.samples_s,
            again_s=comparison.again_s if baseline is None else (),
            samples_s=tuple((entry, row.samples_s) for entry, row in timed),
            failures=tuple((e, f"{row.cause}: {row.detail}") for e, row in rows if isinstance(row, Failure)),
            build_s=reference.build_s, other_build_s=max((row.build_s for _, row in timed), default=0.0),
        )  # fmt: skip

    def take(self, event: Timed) -> None:
        """Add a batch of the ledger."""
        number = {id(entry): i for i, entry in enumerate(self.entries)}
        self._known.clear()
        base = ORIGINAL if event.baseline is None else number[id(event.baseline)]
        if event.cause:
            if base != ORIGINAL:
                self.failures[base] = event.cause
            elif not self._batches:
                self.cause, why = event.cause, f"the original could not be timed ({event.cause})"
                self.failures |= {number[id(entry)]: why for entry, _ in event.failures}
            return
        if base == ORIGINAL:
            self.original_build_s = max(self.original_build_s, event.build_s)
        self.build_s = max(self.build_s, event.other_build_s)
        self.failures |= {number[id(entry)]: why for entry, why in event.failures}
        samples = {base: event.baseline_s} | {number[id(entry)]: s for entry, s in event.samples_s}
        self._batches.append((event.process, samples, event.again_s))

    def joined(self, other: Series) -> Series:
        """A series with the rounds of both."""
        found = Series(self.entries, self.seed)
        found.failures = {**self.failures, **other.failures}
        found._batches = [*self._batches, *other._batches]
        return found

    @property
    def processes(self) -> int:
        """Number of processes that the batches are from."""
        return len({process for process, _, _ in self._batches})

    @property
    def timed(self) -> list[int]:
        """The entries that were timed and have not failed."""
        found = dict.fromkeys(i for _, samples, _ in self._batches for i in samples if i != ORIGINAL)
        return [i for i in found if i not in self.failures]

    def samples_s(self, number: int) -> tuple[float, ...]:
        """Seconds of an entry, one value per round."""
        return tuple(s for _, samples, _ in self._batches for s in samples.get(number, ()))

    def median_s(self, number: int) -> float | None:
        """Median seconds of an entry; None where it was not timed."""
        samples = sorted(self.samples_s(number))
        return samples[len(samples) // 2] if samples else None

    @property
    def is_short(self) -> bool:
        """Whether the fastest program takes less than a few milliseconds; False before the first batch."""
        return min(self.median_s(i) or SHORT_S for i in (ORIGINAL, *self.timed)) < SHORT_S

    def ratio(self, number: int, base: int = ORIGINAL) -> Speedup | None:
        """The time of `base` over that of an entry, in the rounds of both; None where there are none."""
        if number in self.failures or base in self.failures:
            return None
        if (base, number) not in self._known:
            pairs = [(p, s[base], s[number]) for p, s, _ in self._batches if base in s and number in s]
            if not pairs:
                return None
            ratio = _paired(pairs, self.seed)
            if base == ORIGINAL and not self._has_again:
                ratio = Speedup(ratio.ratio, ratio.low / _FROM_ONE, ratio.high * _FROM_ONE)
            self._known[base, number] = ratio
        return self._known[base, number]

    @property
    def _has_again(self) -> bool:
        """Whether the original took part in rounds, in place of one call before them."""
        return any(again for _, _, again in self._batches)

    def measured(self, number: int) -> Measurement | None:
        """The times and the speed-up of an entry, without samples; None where it or the original was not timed."""
        ratio, before_s, after_s = self.ratio(number), self.median_s(ORIGINAL), self.median_s(number)
        if ratio is None or before_s is None or after_s is None:
            return None
        return Measurement(
            before_ms=1e3 * before_s, after_ms=1e3 * after_s, speedup=ratio, noise_floor=self.noise_floor
        )

    @property
    def noise_floor(self) -> float:
        """How far the two series of the original differ from each other: the noise of a ratio."""
        if self._batches and not self._has_again:
            return _FROM_ONE - 1.0
        pairs = [(p, again, s[ORIGINAL]) for p, s, again in self._batches if again]
        return _paired(pairs, self.seed).noise if pairs else float("inf")

    def gain(self, number: int) -> float:
        """The ratio by which entries are ordered; published speed-ups have an interval (`ratio`).

        Short programs are ordered by the first quartile of their times.  For phases of a tenth of a second or more, two
        threads share a core while another core is idle; the medians of equal programs then differ by a factor.
        """
        if self.is_short and self.ratio(number) is not None:
            usual_s, other_s = (sorted(self.samples_s(i)) for i in (ORIGINAL, number))
            return usual_s[len(usual_s) // 4] / other_s[len(other_s) // 4]
        ratio = self.ratio(number)
        if ratio is None:
            return 0.0
        beside = [next(iter(s)) for _, s, _ in self._batches if ORIGINAL not in s]
        if not beside or (over := self.ratio(number, beside[0])) is None or (base := self.ratio(beside[0])) is None:
            return ratio.ratio
        return base.ratio * over.ratio

    def base_of(self, number: int) -> int | None:
        """The number of the entry that is the same with default options; None where an entry has default options."""
        base = self.entries[number].base
        if base is None or base.is_original:
            return None if base is None else ORIGINAL
        return next(i for i, entry in enumerate(self.entries) if entry is base)

    @property
    def base(self) -> int:
        """The entry that others are timed with next: the original, or the plain candidate where the original is known.

        An original that takes three times as long, and takes part twice, leaves five rounds in the time of twenty.
        """
        ranked = self.ranked
        plain = next((i for i in ranked if self.entries[i].plain), None)
        known = plain is not None and not self.is_short and self._is_known(plain) and self._is_known(ranked[0])
        return plain if known and plain is not None and len(ranked) > 1 else ORIGINAL

    def _is_known(self, number: int) -> bool:
        """Whether an entry is faster than the original beyond doubt, and known within a factor of two."""
        ratio = self.ratio(number)
        return ratio is not None and ratio.low > 1.0 and not self._is_wide(ratio)

    def _is_wide(self, ratio: Speedup) -> bool:
        """Whether rounds leave a ratio within more than a factor of two; one call of the original is no more exact."""
        return self._has_again and ratio.high > 2.0 * ratio.low

    def is_slower(self, number: int) -> bool:
        """Whether an entry is slower than the original beyond doubt; at twice the time, few rounds suffice."""
        ratio = self.ratio(number)
        if ratio is None:
            return False
        return ratio.high < (1.0 / WORTH if len(self.samples_s(number)) >= ENOUGH_ROUNDS else HALF)

    def may_be_returned(self, number: int) -> bool:
        """Whether an entry is fast enough: a program of kernels surely not slower, one of XLA faster beyond the noise.

        The plain candidate loses only to evidence: it is returned where the rounds, noisy or not, show it faster.
        """
        ratio, base = self.ratio(number), self.base_of(number)
        if ratio is None:
            return False
        if base not in (None, ORIGINAL):
            over = self.ratio(number, base)
            if over is None or over.low <= 1.0:
                return False
        if self.entries[number].plain:
            return ratio.ratio > 1.0
        if self.entries[number].kernels:
            return ratio.low > 1.0 / WORTH and ratio.ratio > 1.0
        return ratio.exceeds(self.noise_floor) and len(self.samples_s(number)) >= ENOUGH_ROUNDS

    @property
    def order(self) -> list[int]:
        """The entries that may be returned, the best first."""
        return self.preferred(list(filter(self.may_be_returned, self.ranked)))

    def preferred(self, ranked: Sequence[int]) -> list[int]:
        """These entries, with the plain candidate moved before all that are not faster than it beyond doubt."""
        plain = next((i for i in ranked if self.entries[i].plain), None)
        if plain is None:
            return list(ranked)
        before = ranked[: ranked.index(plain)]
        surely = [i for i in before if (ratio := self.ratio(i, plain)) is not None and ratio.low > 1.0]
        return [*surely, plain, *(i for i in ranked if i != plain and i not in surely)]

    @property
    def ranked(self) -> list[int]:
        """The entries that were timed, the fastest first."""
        return self.by_gain(self.timed)

    def by_gain(self, numbers: Sequence[int]) -> list[int]:
        """These entries, the fastest first; equal ones by name, whatever the order in which they were given."""
        return sorted(numbers, key=lambda i: (-self.gain(i), self.entries[i].name))

    @property
    def in_question(self) -> list[int]:
        """The entries that may be the fastest: all that are not slower than the first beyond doubt."""
        ranked = self.ranked
        slower = {i for i in ranked[1:] if (r := self.ratio(i, ranked[0])) is not None and r.high < 1.0}
        return [i for i in ranked if i not in slower]

    @property
    def is_decided(self) -> bool:
        """Whether the rounds tell how the fastest entry compares with the original and with the next entry.

        An interval from twice to four times as fast is too wide to count.  Programs of ten microseconds were once
        measured 19.1 times as fast [5.3, 25.4] beside other work, and were 1.5 times.
        """
        ranked = self.ranked
        if not ranked:
            return True
        first = self.ratio(ranked[0])
        if first is None or not _says(first) or self._is_wide(first):
            return False
        if len(ranked) == 1 or first.ratio <= 1.0:
            return True
        next_best = self.ratio(ranked[0], ranked[1])
        return next_best is None or _says(next_best)


def _paired(pairs: Sequence[tuple[int, Sequence[float], Sequence[float]]], seed: int) -> Speedup:
    """The ratio over all rounds; its interval covers the ratio of each process."""
    of_process: dict[int, tuple[list[float], list[float]]] = {}
    for process, first, second in pairs:
        base, other = of_process.setdefault(process, ([], []))
        count = min(len(first), len(second))  # the shorter series was pruned as far slower
        base += first[:count]
        other += second[:count]
    bases, others = [s for b, _ in of_process.values() for s in b], [s for _, o in of_process.values() for s in o]
    whole = paired_ratio(bases, others, seed=seed)
    if len(of_process) == 1:
        return whole
    each = [paired_ratio(base, other, seed=seed).ratio for base, other in of_process.values()]
    return Speedup(whole.ratio, min(whole.low, *each), max(whole.high, *each))


def _says(ratio: Speedup) -> bool:
    """Whether the ratio is decided: one of the two is faster, or they are equal within the margin that matters."""
    return ratio.low > 1.0 or ratio.high < 1.0 or (ratio.low > 1.0 / WORTH and ratio.high < WORTH)
