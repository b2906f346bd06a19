"""One optimisation: its stages, their shared state, and the fallback where one of them fails or the time ends.

Every stage that begins with a returnable program in hand runs behind a barrier (`superopt.machine.barrier`).  When it
fails, that earlier program is returned, and the report says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from superopt.backends.xla import XlaExecutable
from superopt.candidates.candidate import Candidate, Provenance, original_candidate
from superopt.candidates.evidence import UNMEASURED, Measurement, of_original
from superopt.candidates.ledger import ChoiceReason, Chosen, Made, Proved, Rejected, RunLedger, Validated, Why
from superopt.certify.kernels import (
    MOST_IN_FIELD,
    MOST_VALIDATION_S,
    Refutation,
    ValidatedCode,
    code_s,
    validate_code,
)
from superopt.certify.library import ProvedLibrary, proved_library
from superopt.certify.plan import Plan, empty_plan
from superopt.choose.forms import apart_s, forms_of, own_regions, priced, that_differ
from superopt.choose.plain import KernelMaker, in_regions, own_form
from superopt.choose.trials import TrialPool
from superopt.contest.attribution import measured_gains
from superopt.contest.checks import Builds, OriginalLostError, of_the_program
from superopt.contest.choices import (
    as_xla_computes,
    by_prediction,
    compared,
    decided,
    given_back,
    original_returned,
    settled,
    undecided,
)
from superopt.contest.contest import Outcome, contest, duel
from superopt.contest.rounds import ORIGINAL, Rounds, Subject, least_s, rounds_fit
from superopt.errors import KernelDefectError, SuperoptError
from superopt.explain.summary import make_report
from superopt.explore.exploration import Begun, begin, explore
from superopt.explore.found import Exploration
from superopt.explore.request import Request
from superopt.explore.trace import make_plan
from superopt.frontends.jax.jaxpr import Imported
from superopt.ir.graph import Graph
from superopt.kernels.choose.choice import regions_of
from superopt.machine.aside import Aside, TimeOverError
from superopt.machine.barrier import Barrier
from superopt.machine.budget import LEAST_KERNELS_S, LEAST_S, PROGRAMS, WORTH, Budget
from superopt.machine.deadline import HALF, Deadline, Stopwatch, now_s
from superopt.measure import ComparisonSettings, Timing, Worker, compare
from superopt.measure.compare import serialisable
from superopt.pipeline.beside import peers_of
from superopt.report.data import NativeKernel, PeerTiming, Report, StageTime
from superopt.report.verdicts import ANSWERED, HURRIED, IN_DOUBT, UNPRICED, no_kernels, unproved, verdict
from superopt.returned.optimized import Optimized
from superopt.returned.remember import remember
from superopt.store import Store

Progress = Callable[[str], None]

FIRST = (KeyboardInterrupt,)  # ends a call that has no program yet
AFTER_S = 0.5  # after Ctrl-C, for what is left to do for the program at hand
_CONTEST = ("the plain candidate", "one program of the search")  # what a contest builds at least
_TWO = 1.0 - HALF * HALF  # of what is left, for a stage that has the half of the next one, too
_WRONG = "its machine code is wrong"


class Clock:
    """Measures wall time per stage, and prints progress lines."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.stages: list[StageTime] = []
        self._watch = Stopwatch()

    @property
    def begin_s(self) -> float:
        """The instant of the call."""
        return self._watch.begin_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call."""
        return self._watch.elapsed_s

    def say(self, line: str) -> None:
        if self.progress is not None:
            self.progress(line)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        watch = Stopwatch()
        try:
            yield
        finally:
            seconds = watch.elapsed_s
            self.stages.append(StageTime(name, seconds))
        self.say(f"{name}: {seconds:.1f} s")


@dataclass(frozen=True, slots=True)
class Tools:
    """The process that compares programs, the executables built here for checks, and the store, if any."""

    worker: Worker
    builds: Builds
    store: Store | None


@dataclass(slots=True)
class Run:
    """One optimisation: state that its stages share, and their results.

    Attributes:
        budget: the budget of the stages before the last; `request.deadline` is its end.
        model: the file of the model, where the program is one.
        whole: the deadline of the whole call; the stages before the last have a little less.
    """

    imported: Imported
    request: Request
    tools: Tools
    pool: TrialPool
    alone: Worker
    maker: KernelMaker | None
    clock: Clock
    barrier: Barrier
    budget: Budget
    whole: Deadline
    model: Path | None = None
    library: ProvedLibrary = field(default_factory=lambda: ProvedLibrary((), {}))
    found: Exploration | None = None
    ready: Candidate | None = None
    begun: Begun | None = None
    ledger: RunLedger = field(init=False)
    _interrupted_s: float = math.inf  # instant at which what was there by Ctrl-C began to be checked

    def __post_init__(self) -> None:
        self.ledger = RunLedger(self.request.seed)

    @property
    def deadline(self) -> Deadline:
        """The deadline of all stages before the last."""
        return self.request.deadline

    @property
    def builds(self) -> Builds:
        """The original and the executables that checks build in this process."""
        return self.tools.builds

    @property
    def kernels(self) -> bool:
        """Whether the budget, a maker and the backend allow our kernels."""
        wanted = bool(self.request.kernels_by) and self.budget.suffices_for_kernels
        return wanted and self.maker is not None and not self.pool.backend.unavailable()

    def timed_again(self, known: Optimized, key: str) -> Optimized | None:
        """Time an answer of the store anew whose speed was in doubt; None where the original is faster.

        Where the new rounds leave no doubt, the entry of the store loses its mark.
        """
        kept = Candidate(
            name="kept", program=known.program, kernels=known.kernels, options=known.report.compiler_options
        )  # fmt: skip
        request = self.request.within(Deadline.within(LEAST_S))
        subject = Subject.of(self.imported)
        builds_s = len(_CONTEST) * LEAST_KERNELS_S
        with Rounds(subject, request, self.tools.worker, apart=False, builds_s=builds_s) as rounds:
            series = duel(rounds, [kept])
        if series.is_slower(0):
            return None
        ratio, before_s, after_s = series.ratio(0), series.median_s(ORIGINAL), series.median_s(0)
        if ratio is None or before_s is None or after_s is None or not series.settled:
            return known
        measured = Measurement(
            before_ms=1e3 * before_s, after_ms=1e3 * after_s, speedup=ratio, noise_floor=series.noise_floor
        )
        notes = tuple(note for note in known.report.notes if note not in (IN_DOUBT, ANSWERED))
        known.report = replace(known.report, measured=measured, notes=notes)
        self.barrier.around("the entry in the store", lambda: remember(self.tools.store, key, known), None)
        known.report = replace(known.report, notes=(*notes, ANSWERED))
        return known

    def unsearched(self) -> Chosen:
        """The judgement without a search: the plain candidate, as soon as it is ready."""
        self.builds.end_s = self.deadline.end_s
        if not self.builds.on_disk:  # the check's reference values are computed while other processes make kernels
            self.builds.begin()
            Aside(lambda: self.builds.truth, native=False)
        with self.clock.stage("plain"):
            wanted = bool(self.request.kernels_by)
            plain = self._plain(Deadline(), wanted and not self.pool.backend.unavailable())
        if plain is None:
            return given_back(self.imported, self.barrier)
        if plain.changes_nothing:
            return original_returned(self.imported, ChoiceReason.NOTHING_TO_DO)
        judgement = Chosen(plain, why=Why(ChoiceReason.PLAIN_UNTIMED))
        if self.request.deterministic or self.request.keeps_plain:
            return self._checked(judgement)
        with self.clock.stage("contest"):
            timed = self.barrier.around(
                "the timing of the plain candidate",
                lambda: self._not_slower(plain, judgement),
                judgement,
                let=(OriginalLostError, *FIRST),
            )
        return self._checked(timed)

    def _not_slower(self, plain: Candidate, judgement: Chosen) -> Chosen:
        """The plain candidate with figures of a second of rounds; the original, if that is faster beyond doubt."""
        self.builds.rest_s = LEAST_S
        _ = self.builds.wanted
        request = self.request.within(Deadline.within(LEAST_S))
        builds_s = len(_CONTEST) * (self.builds.build_s + LEAST_KERNELS_S)  # a build may include the start of a process
        subject = Subject.of(self.imported)
        known_s = self._known_s(LEAST_S)
        with Rounds(subject, request, self.tools.worker, apart=False, builds_s=builds_s, known_s=known_s) as rounds:
            series = duel(rounds, [plain])
        ratio, before_s, after_s = series.ratio(0), series.median_s(ORIGINAL), series.median_s(0)
        if ratio is None or before_s is None or after_s is None:
            return judgement
        before_ms, after_ms = 1e3 * before_s, 1e3 * after_s
        if series.is_slower(0):
            return original_returned(
                self.imported, Why(ChoiceReason.PLAIN_SLOWER, after_ms=after_ms, before_ms=before_ms),
                measured=of_original(before_ms, series.noise_floor, series.samples_s(ORIGINAL)),
                listed=plain,
            )  # fmt: skip
        samples = {"original": ORIGINAL, "returned": 0}
        measured = Measurement(
            before_ms=before_ms, after_ms=after_ms, speedup=ratio, noise_floor=series.noise_floor,
            samples_ms={name: tuple(1e3 * s for s in series.samples_s(i)) for name, i in samples.items()},
        )  # fmt: skip
        return replace(judgement, why=Why(ChoiceReason.PLAIN_UNSEARCHED), measured=measured)

    def searched(self) -> Chosen:
        """The judgement with a search: the fastest of the plain candidate, the programs found, and the original."""
        self.builds.end_s = self.deadline.end_s
        if self.request.deterministic:
            self._prove()
            self._explore(self.deadline.reserve().share(_TWO))
            return self._predicted()
        made: list[Candidate] = []
        whole = self.deadline
        self.builds.begin()
        # else weights are not read for it while other processes are there
        yardstick = None if self.builds.on_disk else Aside(lambda: self.builds.truth, native=False)
        if self.kernels:
            making_until = whole.share()
            making = Aside(lambda: self._plain(making_until))
            if (
                self.budget.is_kept and whole.left_s >= LEAST_S
            ):  # this process has nothing to do while others start and make kernels
                self._prove()
                self._begin(whole)
            with self.clock.stage("plain"):  # what it has left to do
                plain = making.by(now_s()) if self._interrupted_early else making.result()
            if plain is not None and not plain.changes_nothing:
                self.ready = replace(plain, plain=True)
                made.append(self.ready)
            if self._interrupted_early:
                raise KeyboardInterrupt
        with self.clock.stage("original"):  # what the other two have left to do
            build_s = self._ran(whole)
            if yardstick is not None:
                yardstick.by(whole.share().end_s)
        code_s = self._code_s(made, whole)
        if self.kernels and whole.share().left_s < build_s:  # once more for the contest; programs in kernels are fast
            judgement = original_returned(self.imported, ChoiceReason.NO_TIME, notes=(HURRIED,))
            whole = self.deadline.reserve(code_s)
            if self.begun is not None:
                self._explore(whole.share(0.0))
                if self.found is not None:
                    self._in_kernels(made, whole.share(), 0.0, 0.0)
            return self._contested(made, judgement, whole, apart=False)
        known_s = self._known_s(self._for_rounds_s(whole))
        ahead = Aside(lambda: _built_in(self.tools.worker, self.imported, tuple(made), whole, known_s))
        if self.begun is None:
            self._prove()
        validating = self.maker.meanwhile(()) if self.kernels and self.maker else nullcontext()
        with self.clock.stage("ahead"), validating:
            again_s, rounds_s = self.barrier.around("programs built ahead", ahead.result, (0.0, 0.0), let=FIRST)
        build_s = min(build_s, again_s)  # both ran beside other work, the second with the start of its process
        limits = self.deadline.reserve(build_s + code_s)
        follow_s = len(_CONTEST) * build_s + rounds_s
        self._explore(limits.share(HALF if self.kernels else _TWO, follow_s), [g for form in made for g in form.chosen])
        judgement = original_returned(
            self.imported, ChoiceReason.NO_TIME if self.found is None else ChoiceReason.NONE_FASTER
        )
        if self.found is not None and self.kernels and not self._interrupted(judgement):
            code_s = self._code_s(made, whole)  # some of it was validated beside the search
            limits = self.deadline.reserve(build_s + code_s)
            self._in_kernels(made, limits, follow_s, build_s)
            if not self.barrier.interrupted:
                follow_s = (len(made) + 1) * build_s + rounds_s
                self._search_schedules(made, limits.share(reserve_s=follow_s).or_within(LEAST_KERNELS_S))
        if self.request.kernels_by and not self.kernels:
            why = (
                self.pool.backend.unavailable()
                or f"a budget of less than {LEAST_KERNELS_S:g} s leaves no time to try them"
            )
            judgement = replace(judgement, notes=(*judgement.notes, no_kernels(why)))
        if self.kernels and not self.pool.backend.version:
            judgement = replace(judgement, notes=(*judgement.notes, UNPRICED))
        return self._contested(made, judgement, limits)

    def _known_s(self, left_s: float) -> float:
        """Seconds of a call of the original if the fewest rounds with it exceed `left_s`; else 0."""
        call_s = self.builds.call_s
        return 0.0 if rounds_fit(call_s, left_s) and not self.builds.given_up else call_s

    def _for_rounds_s(self, limits: Deadline) -> float:
        return max(limits.left_s, HALF * LEAST_KERNELS_S)

    def _ran(self, whole: Deadline) -> float:
        """Seconds of the original's first call, the build included; waits until its results are there for the check.

        Raises:
            OriginalLostError: there are no results, or only one call fits in the time and there is no program to
                compare.
        """
        self.builds.rest_s = whole.share().left_s
        _ = self.builds.wanted
        call_s = self.builds.call_s
        if self.ready is None and self._known_s(self._for_rounds_s(whole)):
            more = "more than " if self.builds.given_up else ""
            raise OriginalLostError(f"a call of it takes {more}{call_s:.3g} s: the time does not suffice for comparing")
        return self.builds.build_s

    def chosen(self) -> Chosen:
        """The judgement to return; Ctrl-C raises while there is no plain candidate, and returns it from then on."""
        try:
            return self.searched() if self.request.searches else self.unsearched()
        except OriginalLostError as error:
            return original_returned(self.imported, Why(ChoiceReason.ORIGINAL_LOST, str(error)))
        except KeyboardInterrupt:
            if self.ready is None:
                raise
            self.barrier.interrupted = True
            return self._at_hand(original_returned(self.imported, ChoiceReason.SEARCH_INTERRUPTED))

    def at_hand_alone(self) -> Chosen:
        """The plain candidate if it is ready, else the original, after the choice between programs failed."""
        if self.ready is None:
            return given_back(self.imported, self.barrier)
        return self._checked(Chosen(self.ready, why=Why(ChoiceReason.PLAIN_CHOICE_LOST)))

    def _made(self, candidate: Candidate) -> Candidate:
        """The candidate, entered into the ledger; all kernels of one are proved."""
        if self.ledger.about(candidate, Made):
            return candidate
        self.ledger.add(Made(candidate))
        if candidate.kernels:
            self.ledger.add(Proved(candidate, len(candidate.kernels)))
        return candidate

    def _interrupted(self, judgement: Chosen) -> bool:
        """Whether Ctrl-C has ended one of the stages."""
        found = self.found is not None and self.found.interrupted
        return found or judgement.interrupted or self.barrier.interrupted

    def _plain(self, deadline: Deadline, kernels: bool = True) -> Candidate | None:
        form, maker = own_form(self.imported.graph), self.maker
        if not kernels or maker is None:
            return Candidate(name="own form", program=form, origin=Provenance.OWN_FORM)
        return self.barrier.around(
            "the plain candidate", lambda: maker.make(in_regions("own form", form), deadline), None, let=FIRST
        )

    def _prove(self) -> None:
        """Load the proved rules of the search; prove missing ones as far as their share of the time allows."""
        deadline = self.deadline.reserve().share() if self.budget.is_kept else Deadline()
        with self.clock.stage("rules"):
            self.library = self.barrier.around(
                "the library of rules",
                lambda: proved_library(self.tools.store, self.request.rules, self.request.numerics, deadline),
                self.library,
                let=(SuperoptError, *FIRST),
            )

    def _begin(self, whole: Deadline) -> None:
        """The first round of the search, by the models alone, in a part of the time."""
        request = self.request.within(whole.share(1.0 - _TWO))
        with self.clock.stage("first round"):
            self.begun = self.barrier.around(
                "the first round of the search",
                lambda: begin(self.imported.graph, self.library.rules, request, self.clock.say),
                None,
                let=FIRST,
            )

    @property
    def _interrupted_early(self) -> bool:
        return self.begun is not None and self.begun.interrupted

    def _explore(self, limits: Deadline, made: Sequence[Graph] = ()) -> None:
        """Search for programs in the time that is left, with the kernels of regions that are made by now."""
        if self.budget.is_kept and limits.left_s < LEAST_S and self.begun is None:
            self.clock.say("no time was left to search")
            return
        with self.clock.stage("explore"):
            self.found = self.barrier.around(
                "the search",
                lambda: explore(
                    self.imported.graph,
                    self.library.rules,
                    self.request.within(limits),
                    self.clock.say,
                    None if self.request.deterministic else self.alone,
                    made,
                    self.maker.meanwhile if self.kernels and self.maker and not self.request.deterministic else None,
                    self.begun,
                ),
                None,
            )

    def _in_kernels(self, made: list[Candidate], limits: Deadline, follow_s: float, build_s: float) -> None:
        """Predict the plain candidate, and make kernels of the search's best programs as far as there is time."""
        with self.clock.stage("forms"):
            self.barrier.around(
                "programs of the search in kernels", lambda: self._make_forms(made, limits, follow_s, build_s), None
            )

    def _make_forms(self, made: list[Candidate], whole: Deadline, follow_s: float, build_s: float) -> None:
        found, maker = self.found, self.maker
        assert found is not None
        assert maker is not None
        maker.model = found.model
        apart = apart_s(found, found.result.original)
        made[:] = [replace(form, apart_s=apart) for form in made]
        forms = forms_of(found)
        limits = whole.share(1.0 if _gains(maker, forms, made) else _TWO, follow_s)
        ready = self._whole(maker, forms, limits.share(_TWO))
        for form in self._distinguished(ready, made, limits)[:PROGRAMS]:
            if (len(made) + 2) * build_s > whole.left_s:
                self.clock.say(f"{form.name}: the time does not suffice to build it")
                continue
            done = maker.make(form, limits)  # regions that XLA was timed to compute faster are left out
            if not done.kernels and (finalist := found.finalist(form.finalist)) is not None:  # XLA has its own ways
                name, seconds = finalist.name, found.by_xla_s(finalist)
                done = Candidate(name=name, program=found.program(finalist), finalist=name, predicted_s=seconds)
            made.append(done)
        made[:] = [maker.predicted(form) if form.regions else form for form in made]

    def _whole(self, maker: KernelMaker, forms: Sequence[Candidate], limits: Deadline) -> list[Candidate]:
        """Make forms of kernels in worker processes, before any are timed; return those whose kernels are all made."""
        whole: list[Candidate] = []
        for form in forms:
            left_s, takes_s = limits.left_s, maker.seconds_for(form)
            if takes_s <= left_s:
                maker.make(form, limits)
            if not maker.has_made(form):
                self.clock.say(f"{form.name}: not made, it takes {takes_s:.1f} s and {left_s:.1f} are left")
            else:
                whole.append(form)
        return whole

    def _distinguished(
        self, forms: Sequence[Candidate], made: Sequence[Candidate], limits: Deadline
    ) -> list[Candidate]:
        """The forms worth building, once the regions that tell them apart are timed."""
        found = self.found
        assert found is not None
        model = found.model
        if found.timer is not None and model.own is not None and forms:
            programs = [own_regions(model, form) for form in (*forms, *made)]
            timed = found.timer.distinguish(programs, limits.share().or_within(LEAST_KERNELS_S))
            self.clock.say(f"{timed} regions timed in which {len(programs)} forms differ")
        return that_differ(model, priced(model, forms), made)

    def _search_schedules(self, made: list[Candidate], deadline: Deadline) -> None:
        """Search schedules for the program that is fastest by prediction; append it if that makes it faster."""
        maker = self.maker
        priced = [form for form in made if form.predicted_s is not None and form.kernels]
        if maker is None or not priced or HALF * deadline.left_s < LEAST_S:  # half of it, processes start
            return
        best = min(priced, key=lambda form: form.predicted_s or 0.0)
        with self.clock.stage("schedules"):
            done = self.barrier.around(
                "the search of schedules",
                lambda: maker.searched(best, deadline, self.tools.worker, self.request.seed),
                None,
            )
        made += [] if done is None else [done]

    def _predicted(self) -> Chosen:
        """The cheapest of the search's programs by the model that passes the check; nothing is measured."""
        found = self.found
        if found is None and not self.barrier.lost:
            return self._checked(original_returned(self.imported, ChoiceReason.NO_TIME))
        if found is None:
            return self._checked(given_back(self.imported, self.barrier))
        chosen = self.barrier.around("the choice by the model", lambda: by_prediction(found), None)
        if chosen is None:
            return self._checked(given_back(self.imported, self.barrier))
        return self._first(chosen, original_returned(self.imported, ChoiceReason.NOTHING_CHEAPER))

    def _contested(
        self, made: Sequence[Candidate], judgement: Chosen, limits: Deadline, *, apart: bool = True
    ) -> Chosen:
        """The fastest program that passes the check: one in kernels, or else one that XLA computes."""
        found = self.found
        if self._interrupted(judgement):
            return self._at_hand(judgement)
        if not made and found is None:
            return self._checked(judgement)
        with self.clock.stage("contest"):
            self._end(self.pool, self.alone)
            held = self.barrier.around("the contest", lambda: self._held(made, judgement, limits, apart), None)
        if held is None:
            return self._at_hand(judgement)
        return self._first(*held)

    def _held(
        self, made: Sequence[Candidate], judgement: Chosen, limits: Deadline, apart: bool
    ) -> tuple[list[Chosen], Chosen]:
        """Judgements of the contest on the programs that may be returned, the best first, and on the original."""
        found, request = self.found, self.request.within(limits)
        entries = as_xla_computes(found) if found is not None and not made else made
        entries = [self._made(entry) for entry in entries]
        where, known_s = self.tools.worker, self._known_s(self._for_rounds_s(limits))
        with Rounds(Subject.of(self.imported), request, where, apart, known_s=known_s) as rounds:
            said = contest(rounds, entries, self.clock.say, ledger=self.ledger)
        chosen = [decided(said, number, judgement) for number in said.order]
        first = chosen[0].candidate if chosen else None
        if first is not None and first.finalist and not first.kernels:
            with_gains = self.barrier.around("measured gains", lambda: self._with_gains(chosen[0], said, request), None)
            chosen[0] = with_gains or chosen[0]
        return chosen, undecided(self.imported, said, judgement)

    def _with_gains(self, winner: Chosen, said: Outcome, request: Request) -> Chosen:
        """The judgement of a program that XLA computes, with measured gains of its most important rules."""
        found = self.found
        assert found is not None
        finalist = found.finalist(winner.candidate.finalist)
        assert finalist is not None
        self.clock.say("timing the winner without its most important rules")
        try:
            with Rounds(Subject.of(self.imported), request, self.tools.worker) as rounds:
                gains = measured_gains(rounds, found, finalist, winner.candidate.options, said.final)
        except KeyboardInterrupt:
            return replace(winner, interrupted=True)
        return replace(winner, gains=gains)

    def _first(self, chosen: Sequence[Chosen], otherwise: Chosen) -> Chosen:
        """The first of these that passes the check, or else `otherwise`."""
        for winner in chosen:
            checked = self._checked(winner)
            if not checked.returns_original or winner.returns_original:
                return checked
            if not self.ledger.about(winner.candidate, Rejected):
                self.ledger.add(Rejected(winner.candidate, checked.why))
        return self._checked(otherwise)

    def _at_hand(self, judgement: Chosen) -> Chosen:
        """The best fallback where the search was cut off: the plain candidate, a prediction, or this judgement."""
        cut = self._interrupted(judgement)
        if self.ready is not None:
            why = Why(ChoiceReason.PLAIN_INTERRUPTED if cut else ChoiceReason.PLAIN_CONTEST_LOST)
            return self._checked(Chosen(self.ready, why=why, notes=judgement.notes, interrupted=cut))
        if self.found is not None and self.found.interrupted:
            return replace(self._predicted(), interrupted=True)
        if cut:
            judgement = original_returned(self.imported, ChoiceReason.MEASURING_INTERRUPTED, notes=judgement.notes)
        return self._checked(replace(judgement, interrupted=cut))

    def _end(self, *processes: Worker | TrialPool) -> None:
        """End processes that are done, before the next stage needs memory for the weights."""
        for one in processes:
            self.barrier.around("the end of processes", one.close, None)

    def _checked(self, judgement: Chosen) -> Chosen:
        """The judgement after the check that was put off; nothing is measured after it."""
        self._made(judgement.candidate)
        halted = Event()
        interrupted = self._interrupted(judgement)
        if interrupted:
            halted.set()
            self._interrupted_s = min(self._interrupted_s, now_s())
        with self.clock.stage("check"):
            self._end(self.pool, self.alone)
            if self.builds.has_run:
                self._end(self.tools.worker)
            code_end_s = self._code_end_s()
            validated = Aside(lambda: _validated(judgement, code_end_s, halted.is_set))
            checked = self._settled(judgement, interrupted)
            if checked is None or not checked.candidate.kernels:
                halted.set()
                return checked or given_back(self.imported, self.barrier)
            code_end_s = self._interrupted_s + AFTER_S if interrupted else math.inf
            code = self.barrier.around("the validation of machine code", lambda: validated.by(code_end_s), None)
            halted.set()
            if code is not None and code.refuted:
                checked = self._settled(self._without(judgement, code.refuted), interrupted)
        if checked is None or code is None:
            return checked or given_back(self.imported, self.barrier)
        self.clock.say(f"machine code of {code.proved} of {code.count} kinds of kernels validated")
        refuted = len(set(code.refuted.values()))
        self.ledger.add(Validated(checked.candidate, code.proved, code.unknown, refuted))
        return checked

    def _settled(self, judgement: Chosen, interrupted: bool) -> Chosen | None:
        """The judgement after its check; returns the original if the program's or its own calls do not end in time."""
        if not judgement.needs_check:
            return judgement
        calls_s = 4.0 * (self.builds.build_s + self.builds.call_s)
        end_s = (
            self._interrupted_s + AFTER_S
            if interrupted
            else max(self.builds.end_s, now_s() + MOST_VALIDATION_S + calls_s)
        )
        self.builds.end_s = min(self.builds.end_s, end_s)

        def check() -> Chosen:
            try:
                found = Aside(lambda: compared(judgement.candidate, self.builds)).result(end_s)
            except OriginalLostError as error:
                why = Why(ChoiceReason.ORIGINAL_LOST, str(error))
            except TimeOverError:
                why = Why(ChoiceReason.CHECK_LATE)
            else:
                self.ledger.add(found)
                after = settled(self.imported, judgement, found)
                if found.cause:
                    self.ledger.add(Rejected(found.candidate, after.why))
                return after
            return original_returned(self.imported, why, notes=judgement.notes, interrupted=interrupted)

        return self.barrier.around("the check", check, None)

    def _code_s(self, made: Sequence[Candidate], whole: Deadline) -> float:
        """Seconds reserved for validating machine code: the plain candidate's estimate, at most half of the rest."""
        every = [(form.program.hot, form.kernels) for form in made]
        takes_s = self.barrier.around(
            "the time of validation", lambda: sum(code_s(*one) for one in every), 0.0, let=FIRST
        )
        return min(takes_s, HALF * whole.share().left_s)

    def _code_end_s(self) -> float:
        """The instant at which the validation of machine code, which runs beside the check, has to end."""
        if not self.request.searches:  # it is to be quick, whatever the budget
            return Deadline.within(HALF * self.clock.elapsed_s).end_s
        return self.deadline.at_most(MOST_VALIDATION_S).end_s

    def _without(self, judgement: Chosen, refuted: Mapping[int, Refutation]) -> Chosen:
        """The judgement with regions of refuted machine code left to XLA; each refutation is reported as a defect."""
        for one in dict.fromkeys(refuted.values()):
            self.barrier.around(f"the code of the kernel {one.kernel}", lambda one=one: _defect(one), None)
        candidate = judgement.candidate
        gone = [kernel for number, kernel in enumerate(candidate.kernels) if number in refuted]
        kept = tuple(kernel for number, kernel in enumerate(candidate.kernels) if number not in refuted)
        if self.maker is not None:
            self.maker.refuse(regions_of(candidate.program.hot, gone), _WRONG)
        return replace(
            judgement, candidate=replace(candidate, kernels=kept), measured=UNMEASURED,
            why=Why(ChoiceReason.CODE_WRONG, count=len(gone)),
        )  # fmt: skip

    def finished(self, name: str, judgement: Chosen, key: str) -> Optimized:
        """The returned program, built, with its plan and its report; the original where it cannot be built."""
        with self.clock.stage("build"):
            executable = self.barrier.around(
                "the chosen program", lambda: Aside(lambda: self._built(judgement)).result(), None
            )
            if executable is None:
                judgement = given_back(self.imported, self.barrier)
            with of_the_program():
                executable = executable or self._built(judgement)
                if self.imported.whole:  # on a thread of its own: the compiler hears no Ctrl-C
                    Aside(lambda: executable.compile(*self.imported.live_values)).by(self.deadline.end_s)
            if judgement.returns_original and not (self.imported.whole or self.barrier.interrupted):
                with suppress(OriginalLostError):
                    _ = self.builds.wanted
        with self.clock.stage("plan"):
            plan = self.barrier.around("the plan", lambda: self._plan(judgement), None)
        if self.library.unproved:
            judgement = replace(judgement, notes=(*judgement.notes, unproved(self.library.unproved)))
        self.barrier.hurried = judgement.returns_original and self.whole.is_over
        self.ledger.add(judgement)
        with self.clock.stage("explain"):
            memory = {
                "frozen_bytes": executable.frozen_bytes,
                "prepared_bytes": executable.prepared_bytes,
                "added_bytes": executable.added_bytes,
            }
            report = self.barrier.around(
                "the report",
                lambda: make_report(
                    name, self.imported, self.found, self.ledger, self.library, self.request, self.barrier, self._rows
                ),
                Report(
                    program=name, verdict=verdict(judgement.candidate, judgement.why),
                    measured=Measurement(speedup=judgement.measured.speedup),
                    original_returned=judgement.returns_original,
                ),
            )  # fmt: skip
        with self.clock.stage("beside"):
            peers = self.barrier.around("the comparison with other runtimes", lambda: self._beside(executable), ())
        report = replace(report, memory=memory, stages=tuple(self.clock.stages), peers=peers)
        candidate = judgement.candidate
        result = Optimized(self.imported, candidate.program, executable, report, plan, candidate.kernels)
        hurried = self.request.searches and self.found is None and judgement.returns_original
        lost = judgement.noisy and judgement.returns_original
        refused = bool(self.ledger.of(Rejected)) and judgement.returns_original
        if not (judgement.interrupted or lost or hurried or refused or self.barrier.lost):
            store, left_out, noisy = self.tools.store, self.library.unproved, judgement.noisy
            self.barrier.around(
                "the entry in the store", lambda: remember(store, key, result, left_out, in_doubt=noisy), None
            )
        notes = (*report.notes, *self.barrier.notes)
        result.report = replace(report, lost=dict(self.barrier.lost), notes=notes)
        return result

    def _beside(self, executable: XlaExecutable) -> tuple[PeerTiming, ...]:
        """Timings of the returned program beside other runtimes; none where nothing may be measured any more."""
        if self.request.deterministic or self.barrier.interrupted or self.imported.whole:
            return ()
        left_s = self.whole.left_s if self.request.searches else math.inf
        return peers_of(self.model, self.imported, executable, left_s, self.request.seed)

    def _built(self, judgement: Chosen) -> XlaExecutable:
        candidate = judgement.candidate
        return self.builds.candidate(candidate.program, candidate.options, candidate.kernels)

    def _rows(self, candidate: Candidate) -> tuple[NativeKernel, ...]:
        return () if self.maker is None else self.maker.rows(candidate)

    def _plan(self, judgement: Chosen) -> Plan:
        winner = None if self.found is None else self.found.finalist(judgement.candidate.finalist)
        if winner is None or self.found is None:
            return empty_plan(self.imported.graph, self.request.numerics)
        return make_plan(self.found, winner, self.library.rules, self.request.numerics)


def _validated(judgement: Chosen, end_s: float, halted: Callable[[], bool]) -> ValidatedCode:
    """The verdicts of validation on the machine code of the program's kernels."""
    most_s = Deadline(end_s).left_s
    candidate = judgement.candidate
    return validate_code(candidate.program.hot, candidate.kernels, most_s, MOST_IN_FIELD, halted)


def _gains(maker: KernelMaker, forms: Sequence[Candidate], made: Sequence[Candidate]) -> bool:
    """Whether a form is predicted to beat all programs made by more than a schedule search is likely to bring."""
    least_s = min([maker.predicted(form).predicted_s or math.inf for form in made if form.kernels], default=math.inf)
    return any(WORTH * form.predicted_s < least_s for form in forms if form.predicted_s is not None)


def _defect(what: Refutation) -> None:
    raise KernelDefectError(str(what))


def _built_in(
    worker: Worker, imported: Imported, entries: Sequence[Candidate], whole: Deadline, known_s: float
) -> tuple[float, float]:
    """Have the comparing worker build the original, then these programs; it keeps those that are slow to build.

    The original is neither built nor called where a call of it is known to take too long for rounds (`known_s`).

    Returns:
        Build seconds of the last program, since one in kernels builds in a fraction of the original's time; and seconds
        of the fewest rounds of a contest.
    """
    called = original_candidate(imported.graph, closed=imported.closes_over)
    if not serialisable(called.program):
        return 0.0, 0.0
    live, frozen = imported.live_values, imported.frozen_values
    settings = ComparisonSettings(1, 0.0, end_s=whole.end_s, known_s=known_s)
    found = compare(called, entries, live, frozen, settings, worker=worker)
    built = [one for one in (found.reference, *found.candidates) if isinstance(one, Timing)]
    original_s = 0.0 if known_s or not built else built[0].samples_s[-1]
    return (built[-1].build_s, least_s(original_s, built[-1].samples_s[-1])) if built else (0.0, 0.0)
