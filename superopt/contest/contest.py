"""The contest: selects which of several programs is returned, each with the compiler options that suit it.

    choosing   Batches of rounds run until the fastest program is known, or half of the time is over.
    options    The fastest is timed with each compiler option that matters to it, then with all those that paid.
    final      The fastest is timed in fresh rounds with its default options and with the next best program.

The best of several noisy timings looks better than it is.  So the claims about the winner come from the final, whose
rounds did not choose it.  A program of kernels is returned where it is faster, and beyond doubt not slower than the
original and the plain candidate.  The plain candidate is returned where nothing is beyond doubt.  A program that XLA
computes has to be faster beyond the noise, as it brings nothing else.  Where there is only one program, or no time for
a final, the rounds that choose also supply the claims.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from superopt.backends.options import OptionChoice, choices_for, options_of
from superopt.candidates.candidate import Candidate
from superopt.candidates.ledger import Made, RunLedger
from superopt.contest.decide import decide
from superopt.contest.rounds import ORIGINAL, Rounds, Series
from superopt.machine.budget import WORTH
from superopt.machine.deadline import HALF
from superopt.machine.speedup import Speedup
from superopt.measure.result import ENOUGH_ROUNDS
from superopt.report.data import JudgedFinalist
from superopt.report.verdicts import options_lost


@dataclass(frozen=True, slots=True)
class OptionTrial:
    """Compiler options that were tried on a program, and the time with default options over the time with them."""

    choices: tuple[str, ...]
    by: str
    ratio: float


@dataclass(slots=True)
class Outcome:
    """Results of the rounds: the timings, and the entries in the order in which they may be returned.

    Attributes:
        entries: those given, then those with options.
        chosen, final: the rounds that choose the winner, and those that measure the best entries; may be the same.
        given: number of entries given.
        order: the entries that may be returned, the best first; where there is none, the original is.
        tried: program -> options tried on it.
        not_tried: option -> the reason why it was not tried.
        notes: messages for the reader of the report.
    """

    entries: Sequence[Candidate]
    chosen: Series
    final: Series
    given: int
    order: tuple[int, ...] = ()
    tried: dict[str, list[OptionTrial]] = field(default_factory=dict[str, list[OptionTrial]])
    not_tried: dict[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()

    @property
    def is_decided(self) -> bool:
        """Whether the rounds leave no doubt about the winner."""
        return self.final.is_decided

    def is_certain(self, number: int) -> bool:
        """Whether an entry took part in the last rounds and they leave no doubt about the winner."""
        return self.is_decided and bool(self.final.samples_s(number))

    @property
    def cause(self) -> str:
        """Why the original could not be timed; empty where it was."""
        return self.chosen.cause or self.final.cause

    @property
    def build_s(self) -> float:
        """The longest time that building a program took, in seconds."""
        return max(self.chosen.build_s, self.final.build_s)

    def ratio(self, number: int) -> Speedup | None:
        """The original's time over that of an entry; None where it failed."""
        return self._of(number).ratio(number)

    def noise_floor(self, number: int) -> float:
        """How far the two series of the original differ from each other, in the rounds of an entry."""
        return self._of(number).noise_floor

    def is_faster(self, number: int) -> bool:
        """Whether an entry is faster than the original beyond the noise."""
        ratio = self.ratio(number)
        return ratio is not None and ratio.exceeds(self.noise_floor(number))

    def samples_s(self, number: int, beside: int | None = None) -> tuple[float, ...]:
        """Seconds per call of an entry, or of the original, one per round; of `beside`'s rounds if given."""
        return self._of(number if beside is None else beside).samples_s(number)

    def median_ms(self, number: int, beside: int | None = None) -> float | None:
        """Median milliseconds of an entry, or of the original; limited to the rounds of `beside` if given."""
        seconds = self._of(number if beside is None else beside).median_s(number)
        return None if seconds is None else 1e3 * seconds

    def rows(self) -> tuple[JudgedFinalist, ...]:
        """The given entries for the report."""
        rows: list[JudgedFinalist] = []
        for i, entry in enumerate(self.entries[: self.given]):
            predicted_ms = None if entry.predicted_s is None else 1e3 * entry.predicted_s
            rows.append(JudgedFinalist(entry.name, predicted_ms, self.median_ms(i), self.ratio(i), self.failures(i)))
        return tuple(rows)

    def failures(self, number: int) -> str:
        """The reason why an entry has no time; empty where it has one."""
        return self.chosen.failures.get(number) or self.final.failures.get(number) or ""

    def tuning(self, number: int | None) -> dict[str, Any]:
        """Compiler options tried, and the gain from those of an entry, as plain data; None is the original."""
        if not self.tried:
            return {}
        entry = None if number is None else self.entries[number]
        gain = None
        if number is not None and (base := self.chosen.base_of(number)) is not None:
            gain = self._of(number).ratio(number, base)
        return {
            "choices": list(() if entry is None else entry.option_names),
            "gain": asdict(gain) if gain else None,
            "tried": {name: [asdict(t) for t in trials] for name, trials in self.tried.items()},
            "not_tried": self.not_tried,
        }

    def _of(self, number: int) -> Series:
        return self.final if self.final.samples_s(number) else self.chosen


def contest(
    rounds: Rounds,
    entries: Sequence[Candidate],
    say: Callable[[str], None] = lambda line: None,
    *,
    options: bool = True,
    ledger: RunLedger | None = None,
) -> Outcome:
    """Time the entries against the original until the rounds decide which to return, or the time is over.

    Compiler options are tried unless all rounds run in one process or results are to be exact, since options change
    rounding.  The ledger, in which the entries are, gets the rounds.
    """
    if ledger is None:
        ledger = RunLedger(rounds.request.seed)
        for entry in entries:
            ledger.add(Made(entry))
    return _Contest(rounds, list(entries), say, ledger).held(options and rounds.apart and not rounds.request.exact)


def duel(rounds: Rounds, entries: Sequence[Candidate]) -> Series:
    """Time batches of these entries with the original until the fastest is known, or the time is over."""
    held = _Contest(rounds, list(entries), lambda line: None, RunLedger())
    held.batches(held.chosen, range(len(entries)), 0.0)
    return held.chosen


@dataclass(slots=True)
class _Contest:
    """State of one contest: the entries, and the rounds so far."""

    rounds: Rounds
    entries: list[Candidate]
    say: Callable[[str], None]
    ledger: RunLedger
    outcome: Outcome = field(init=False)
    chosen: Series = field(init=False)  # the rounds that choose
    seen: set[bool] = field(default_factory=set[bool])  # processes in which programs were built: True is the second

    def __post_init__(self) -> None:
        self.chosen = Series(self.entries, self.rounds.request.seed)
        self.outcome = Outcome(self.entries, self.chosen, self.chosen, len(self.entries))

    def held(self, options: bool) -> Outcome:
        """Run the contest: choose, try options, and time the best once more."""
        said = self.outcome
        options = options and (not self.entries or any(_choices_of(entry)[0] for entry in self.entries))
        ranked, first = list(range(len(self.entries))), 0 if self.entries else ORIGINAL
        if len(self.entries) > 1 or options:
            self.batches(self.chosen, ranked, HALF * self.rounds.left_s)
            ranked = self.chosen.in_question
            first = next((i for i in ranked if self.chosen.gain(i) > 1.0), ORIGINAL)
        if options and not self.chosen.cause:
            first = self._with_options(first)
        if first != ORIGINAL and not self.chosen.cause:
            self._final(first, ranked)
        self._decided(first)
        for i, entry in enumerate(self.entries[: said.given]):
            self.say(f"{entry.name}: {said.ratio(i) or said.failures(i)}")
        said.notes = tuple(dict.fromkeys((*said.notes, *self.chosen.notes, *said.final.notes)))
        return said

    def _decided(self, first: int) -> None:
        """Take over the decision of the ledger, and say where options did not hold."""
        said, decision = self.outcome, decide(self.ledger)
        place = {id(entry): i for i, entry in enumerate(self.entries)}
        said.order = tuple(place[id(entry)] for entry in decision.order)
        if said.final is self.chosen:
            return
        if decision.whole:
            said.final = self.chosen.joined(said.final)
        if self.entries[first].options and not any(entry is self.entries[first] for entry in decision.held):
            said.notes += (options_lost(self.entries[first]),)

    def batches(self, series: Series, numbers: Sequence[int], spare_s: float, *, final: bool = False) -> None:
        """Time batches of these entries until the series settles, or no more than `spare_s` of the time is left.

        Batches of short programs alternate between two processes; a final begins with the one that did not choose.
        """
        for number in itertools.count(int(final and bool(self.chosen.timed))):
            numbers = [i for i in numbers if i not in series.failures]
            second = self._second(series, number, len(numbers))
            base = ORIGINAL if final else series.base
            others = [i for i in numbers if i != base]
            instead = None if base == ORIGINAL else self.entries[base]
            batch = self.rounds.timed([self.entries[i] for i in others], second=second, whole=final, base=instead)
            self.ledger.add(series.add(batch, others, int(second), base, final=final))
            self.seen.add(second)
            if not final:
                numbers = series.in_question
            elsewhere, second = second, self._second(series, number + 1, len(numbers))
            enough = series.is_decided and not (final and series.processes == 1 and second != elsewhere)
            last = number + 1 >= ENOUGH_ROUNDS and (self.rounds.left_s == math.inf or not self.rounds.apart)
            base = ORIGINAL if final else series.base
            count = len([i for i in numbers if i != base])
            expected_s = self.rounds.expected_s(count, series, built=second in self.seen, base=base)
            check_s = series.build_s if self.rounds.apart else 0.0  # the returned program is built again for its check
            if enough or series.cause or last or self.rounds.left_s - spare_s < expected_s + check_s:
                return

    def _second(self, series: Series, number: int, count: int) -> bool:
        """Whether this batch should run in the second process, and there is time to build programs there."""
        known = series if series.median_s(ORIGINAL) is not None else self.chosen
        if number % 2 == 0 or not known.is_short or not self.rounds.apart:
            return False
        return True in self.seen or self.rounds.expected_s(count, known, built=False) <= self.rounds.left_s

    def _with_options(self, first: int) -> int:
        """Number of the entry, or original, with the options that pay; `first` itself where none do."""
        base = self.rounds.subject.original if first == ORIGINAL else self.entries[first]
        choices, self.outcome.not_tried = _choices_of(base)
        each_s = self.rounds.expected_s(0, self.chosen, built=False)
        affordable = HALF * self.rounds.left_s / each_s - 1.0  # the program itself is timed again
        sets = [(choice,) for choice in choices[: int(min(len(choices), max(0.0, affordable)))]]
        if not sets:
            return first
        paid = self._tried(first, base, sets)
        alone = [choice for i in paid for choice in sets[i[0]]]
        if len(alone) > 1 and affordable > len(sets) + 2.0:
            paid += self._tried(first, base, [tuple(alone)])
        best = max(paid, key=lambda p: p[2], default=None)
        return first if best is None else best[1]

    def _tried(
        self, first: int, base: Candidate, sets: Sequence[tuple[OptionChoice, ...]]
    ) -> list[tuple[int, int, float]]:
        """Time an entry with sets of options; return place, number and ratio of those that surely pay."""
        begin = len(self.entries)
        for choices in sets:
            names = tuple(choice.name for choice in choices)
            self.entries.append(base.with_options(names, options_of(choices)))
            self.ledger.add(Made(self.entries[-1]))
        numbers = [*([] if first == ORIGINAL else [first]), *range(begin, len(self.entries))]
        self.ledger.add(self.chosen.add(self.rounds.timed([self.entries[i] for i in numbers]), numbers, 0))
        paid: list[tuple[int, int, float]] = []
        for place, number in enumerate(range(begin, len(self.entries))):
            ratio = self.chosen.ratio(number, first)
            sure = 0.0 if ratio is None else ratio.ratio if ratio.low > 1.0 or ratio.ratio < 1.0 else 1.0
            names = self.entries[number].option_names
            self.outcome.tried.setdefault(base.name, []).append(OptionTrial(names, "program", sure))
            self.say(f"{self.entries[number].name}: {sure:.2f}x")
            if sure > WORTH:
                paid.append((place, number, sure))
        return paid

    def _final(self, first: int, ranked: Sequence[int]) -> None:
        """Time the best entry in fresh rounds with those that it has to beat."""
        base = self.chosen.base_of(first)
        without = [] if base in (None, ORIGINAL) else [base]
        others = [i for i in ranked if i != first and i not in without][:1]
        plain = [i for i in self.chosen.timed if self.entries[i].plain]
        numbers = list(dict.fromkeys([first, *without, *others, *plain]))
        expected_s = self.chosen.build_s + self.rounds.expected_s(len(numbers), self.chosen, built=True)
        if self.chosen.timed and self.rounds.left_s < expected_s:
            return
        final = Series(self.entries, self.rounds.request.seed)
        self.batches(final, numbers, 0.0, final=True)
        self.outcome.final = final


def _choices_of(entry: Candidate) -> tuple[list[OptionChoice], dict[str, str]]:
    """The compiler options that may matter to the ops that XLA computes of a program, and why others do not."""
    ops = entry.by_xla
    return choices_for(ops) if ops else ([], {})
