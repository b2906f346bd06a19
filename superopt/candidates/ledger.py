"""The ledger of one optimisation: everything that happened to its candidates, in order, as plain data.

    made       A candidate is there, with its kernels.
    proved     The schedules of its kernels are proved.
    validated  The machine code of its kernels is validated, or not.
    timed      Programs were timed in rounds with the original or another baseline.
    compared   Its results were compared with the original's.
    rejected   It is not returned, for a reason.
    chosen     It is returned, for a reason.

Events are only added.  Reasons are values of `ChoiceReason` with facts; `superopt.report.verdicts` makes sentences of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeVar

from superopt.candidates.candidate import Candidate
from superopt.candidates.evidence import UNMEASURED, Gain, JudgedFinalist, Measurement, NumericCheck

E = TypeVar("E", bound="LedgerEvent")
C = TypeVar("C", bound="CandidateEvent")


class ChoiceReason(Enum):
    """Why a candidate is returned, or is not."""

    KEPT_WHOLE = auto()
    NOTHING_TO_DO = auto()
    NO_TIME = auto()
    NOTHING_CHEAPER = auto()
    NOTHING_TO_TRY = auto()
    NONE_FASTER = auto()
    PLAIN_SLOWER = auto()
    ORIGINAL_LOST = auto()
    ORIGINAL_UNTIMED = auto()
    CHECK_LATE = auto()
    WRONG_RESULTS = auto()
    STAGE_LOST = auto()
    MEASURING_INTERRUPTED = auto()
    FASTER = auto()
    NOT_SLOWER = auto()
    FASTER_WITH_OPTIONS = auto()
    PREDICTED = auto()
    PLAIN_UNTIMED = auto()
    PLAIN_UNSEARCHED = auto()
    PLAIN_INTERRUPTED = auto()
    PLAIN_CONTEST_LOST = auto()
    PLAIN_CHOICE_LOST = auto()
    CODE_WRONG = auto()


@dataclass(frozen=True, slots=True)
class Why:
    """A reason with its facts.

    Attributes:
        cause: what failed, as the stage, process or check that failed tells it.
        stage: the stage that was lost.
        after_ms, before_ms: times of the candidate and of the original.
        count: number of kernels concerned.
    """

    reason: ChoiceReason
    cause: str = ""
    stage: str = ""
    after_ms: float = 0.0
    before_ms: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """Something that happened."""


@dataclass(frozen=True, slots=True)
class CandidateEvent(LedgerEvent):
    """Something that happened to a candidate."""

    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Made(CandidateEvent):
    """The candidate is there: its program, and those of its kernels that could be made."""


@dataclass(frozen=True, slots=True)
class Proved(CandidateEvent):
    """The schedules of so many kernels of the candidate are proved."""

    kernels: int


@dataclass(frozen=True, slots=True)
class Validated(CandidateEvent):
    """The machine code of the candidate's kernels was validated.

    Attributes:
        proved: number of distinct kernels whose code computes what their schedules say.
        unknown: reason -> number of kernels whose code was not validated for it.
        refuted: number of distinct kernels whose code is wrong.
    """

    proved: int
    unknown: Mapping[str, int] = field(default_factory=dict[str, int])
    refuted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(LedgerEvent):
    """One batch of rounds, in which candidates were timed interleaved with a baseline.

    Attributes:
        final: whether these rounds come after the choice, which they are to confirm.
        process: number of the process in which all of them ran.
        baseline: the candidate in the place of the original; None where that is the original itself.
        baseline_s: seconds of the baseline, one value per round; none where it failed.
        again_s: seconds of the original's second series; none where it has none.
        samples_s: seconds of each candidate, one value per round.
        failures: why others have no time.
        cause: why the baseline has no time.
        build_s, other_build_s: seconds of building the baseline, and the longest of building another program.
    """

    final: bool = False
    process: int = 0
    baseline: Candidate | None = None
    baseline_s: tuple[float, ...] = ()
    again_s: tuple[float, ...] = ()
    samples_s: tuple[tuple[Candidate, tuple[float, ...]], ...] = ()
    failures: tuple[tuple[Candidate, str], ...] = ()
    cause: str = ""
    build_s: float = 0.0
    other_build_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Compared(CandidateEvent):
    """The candidate's results were compared with the original's; `cause` says how they differ by more than rounding."""

    numerics: NumericCheck
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Rejected(CandidateEvent):
    """The candidate is not returned."""

    why: Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen(CandidateEvent):
    """The candidate is returned.

    Attributes:
        measured: measured times and speed-up; the predicted speed-up where the model alone chose.
        finalists: all candidates that were timed, for the report.
        listed: the candidate whose kernels the report lists: another one where the original is returned.
        gains: rule -> what the candidate was measured to gain by it.
        tuning: the compiler options that were tried, and what they gain.
        noisy: the rounds leave a doubt about which program is the fastest; the original is not kept then, and another
            program is marked, to be timed again when it is recalled.
        interrupted: the user ended the measuring; nothing more is to be begun, and the result is not kept.
    """

    why: Why
    measured: Measurement = UNMEASURED
    listed: Candidate | None = None
    finalists: tuple[JudgedFinalist, ...] = ()
    notes: tuple[str, ...] = ()
    gains: dict[str, Gain] = field(default_factory=dict[str, Gain])
    tuning: dict[str, Any] = field(default_factory=dict[str, Any])
    noisy: bool = False
    interrupted: bool = False

    @property
    def returns_original(self) -> bool:
        """Whether the program is the original, perhaps with compiler options."""
        return self.candidate.is_original

    @property
    def needs_check(self) -> bool:
        """Whether the program has to be compared with the original before it is returned."""
        return not self.candidate.is_original or bool(self.candidate.options)


class RunLedger:
    """The events of one optimisation, in order; events are added, never changed.

    Args:
        seed: seed of the statistics of its rounds.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._events: list[LedgerEvent] = []

    def add(self, event: LedgerEvent) -> None:
        """Append an event."""
        self._events.append(event)

    def __iter__(self) -> Iterator[LedgerEvent]:
        return iter(tuple(self._events))

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of a kind."""
        return [event for event in self if isinstance(event, kind)]

    def about(self, candidate: Candidate, kind: type[C]) -> list[C]:
        """Return the events of a kind that happened to a candidate."""
        return [event for event in self.of(kind) if event.candidate is candidate]

    @property
    def chosen(self) -> Chosen:
        """The last choice."""
        return self.of(Chosen)[-1]

    def numerics(self, candidate: Candidate) -> NumericCheck | None:
        """Return the differences of a candidate that passed its comparison; None for others."""
        compared = self.about(candidate, Compared)
        return compared[-1].numerics if compared and not compared[-1].cause else None
