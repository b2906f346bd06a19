"""The judgement over finalists: build, check, time against the original, and time the winner again.

The best of several noisy timings looks better than it is, so the ratio that is reported comes from fresh rounds
after the choice.  A program is returned in place of the original only when the interval of that ratio lies above 1 and
the ratio above the noise floor.

Programs of less than a few milliseconds are built in tenths of a second and called hundreds of times in one, so more
is asked of them: those of the first comparison that are close to the best are timed again in many short rounds, and
half of the fresh rounds run in another process, because such programs differ by ten percent between processes.

Options of the compiler are part of what is chosen: they are tried on the best finalist and, unless that is far ahead,
on the original, which may be returned with other options.  The same fresh rounds time the program with the default
options, so that the report says what they brought.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from superopt.contest.attribution import Gain, measured_gains
from superopt.contest.checks import Builds, check
from superopt.contest.comparing import SHORT_S, Comparing, Tools, measured, rounds_of
from superopt.contest.judgement import Judgement
from superopt.contest.tuning import WORTH, OptionTrial, Tuning, tune
from superopt.explore.found import Exploration
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported
from superopt.ir.program import Program, original_program
from superopt.ir.text import print_graph
from superopt.machine.budget import SearchBudget
from superopt.machine.speedup import Speedup, predicted_speedup
from superopt.measure import Comparison, Failure, Timing, Tuned
from superopt.measure.result import ENOUGH_ROUNDS
from superopt.measure.stats import paired_ratio
from superopt.report.data import JudgedFinalist, Measurement, of_original
from superopt.search.search import Finalist as Candidate

_TRIES = 3
_CLOSE, _MOST_CLOSE = 1.35, 6  # the finalists that are timed again: within this of the best, so many
_BUILDS = 0.6  # of the time left, for builds of finalists
_CHECK = 2.0  # what the check takes, in terms of the longest build: there both are built once more
_FAR_AHEAD = 1.5  # beyond this the original does not catch up by options of the compiler


def judge(imported: Imported, found: Exploration, request: Request, tools: Tools, *, tuning: bool = True) -> Judgement:
    """Choose between the finalists and the original, each with the options of the compiler that suit it.

    Where results are to be exact, no options of the compiler are tried, since they change rounding.
    """
    original = original_program(imported.graph)
    tuning = tuning and not request.exact
    if request.deterministic or found.interrupted:
        return _by_prediction(found, original, tools.builds)
    if not found.finalists and not tuning:
        return Judgement(original, None, "the original was returned: the search found nothing cheaper")
    court = _Court(found, original, Comparing(imported, request, tools.worker), tools)
    try:
        return court.judge(tuning)
    except KeyboardInterrupt:
        return Judgement(original, None, "the original was returned: measuring was interrupted", interrupted=True)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A program with options that looks faster than the original, by this factor."""

    name: str
    program: Program
    finalist: Candidate | None
    ratio: float
    tuning: Tuning


@dataclass(slots=True)
class _Court:
    """One judgement: what all comparisons share, and what is learned on the way."""

    found: Exploration
    original: Program
    rounds: Comparing
    tools: Tools
    notes: list[str] = field(default_factory=list[str])
    tried: dict[str, list[OptionTrial]] = field(default_factory=dict[str, list[OptionTrial]])
    out: dict[str, str] = field(default_factory=dict[str, str])
    build_s: float = 0.0

    @property
    def limits(self) -> SearchBudget:
        """What the judgement may take."""
        return self.rounds.request.budget

    def judge(self, tuning: bool) -> Judgement:
        """Compare, tune the best, then confirm the best few on fresh rounds until one holds."""
        candidates = self.found.finalists
        programs = [self.found.program(f) for f in candidates]
        short = self.found.result.original.predicted_s < SHORT_S
        settings: dict[str, Any] = {**rounds_of(short), "rounds": 15 if short else 9}
        builds_s = self.limits.within(math.inf, _BUILDS) if self.limits.left_s < math.inf else 0.0
        comparison = self._compare(programs, 0.5 if short else 0.6, builds_s=builds_s, **settings)
        rows = _rows(candidates, comparison)
        self.notes += comparison.notes
        timed = [t for t in (comparison.reference, *comparison.candidates) if isinstance(t, Timing)]
        self.build_s = max((t.build_s for t in timed), default=0.0)
        reference = comparison.reference
        if isinstance(reference, Failure):
            cause = f"{reference.cause}: {reference.detail}"
            verdict = f"the original was returned: it could not be timed ({cause})"
            return Judgement(self.original, None, verdict, finalists=rows)
        entries = [
            _Entry(f.name, p, f, _order(reference, c), Tuning())
            for f, p, c in zip(candidates, programs, comparison.candidates, strict=True)
            if isinstance(c, Timing)
        ]
        entries = self._again(sorted(entries, key=lambda e: -e.ratio), reference)
        if tuning and self.limits.left_s > _CHECK * self.build_s:
            entries = self._tuned(entries, comparison)
        for number, entry in enumerate(entries[:_TRIES]):
            if number and self.limits.left_s <= 0.0:
                self.notes.append(f"no time was left to confirm {entry.name}")
                break
            judgement, hopeless = self._confirmed(entry, rows, _is_short(reference))
            if judgement is not None:
                return judgement
            if hopeless:
                break
        what = "no candidate measured faster beyond the noise floor" if entries else "the search found nothing cheaper"
        return Judgement(
            self.original,
            None,
            f"the original was returned: {what}",
            measured=of_original(1e3 * reference.median_s, comparison.noise_floor, reference.samples_s),
            finalists=rows,
            notes=tuple(self.notes),
            tuning=self._tuning_figures(None, None),
            build_s=self.build_s,
        )

    def _again(self, entries: list[_Entry], reference: Timing) -> list[_Entry]:
        """The entries with those that are close to the best in the order of many short rounds."""
        close = [e for e in entries[:_MOST_CLOSE] if e.ratio * _CLOSE > entries[0].ratio]
        if len(close) < 2 or not _is_short(reference):
            return entries
        again = self._compare(
            [e.program for e in close], 0.3, prune=0.0, check=False, seed=self.rounds.request.seed + 2,
            min_rounds=ENOUGH_ROUNDS, **rounds_of(True),
        )  # fmt: skip
        if isinstance(again.reference, Failure):
            return entries
        timed = zip(close, again.candidates, strict=True)
        renewed = [replace(e, ratio=_order(again.reference, c)) for e, c in timed if isinstance(c, Timing)]
        return [*sorted(renewed, key=lambda e: -e.ratio), *entries[len(close) :]]

    def _compare(self, programs: Sequence[Program], share: float, **settings: Any) -> Comparison:
        """Programs against the original, in a share of the time for measuring."""
        seconds = share * self.limits.measure_seconds
        return self.rounds.compare(self.rounds.original, programs, seconds, **settings)

    def _tuned(self, entries: list[_Entry], comparison: Comparison) -> list[_Entry]:
        """The entries, the best of them and perhaps the original with the options that suit them, best first."""
        build_s = {f.name: c.build_s for f, c in _timed(self.found.finalists, comparison)}
        assert isinstance(comparison.reference, Timing)
        share = 1.0
        if entries:
            best = entries[0]
            assert best.finalist is not None
            share = 0.6 if best.ratio < _FAR_AHEAD else 1.0
            tuning = self._tune(best.name, best.program, best.finalist, build_s[best.name], share)
            if tuning.options:
                entries = [replace(best, ratio=best.ratio * tuning.ratio, tuning=tuning), *entries[1:]]
            share = 1.0 - share
        if share > 0.0:
            own = self.found.result.original
            tuning = self._tune("original", self.original, own, comparison.reference.build_s, share)
            if tuning.options:
                entries.append(_Entry("original", self.original, None, tuning.ratio, tuning))
        return sorted(entries, key=lambda e: -e.ratio)

    def _tune(self, name: str, program: Program, finalist: Candidate, build_s: float, share: float) -> Tuning:
        budget_s = self.rounds.within(share * self.limits.tuning_seconds)
        tuning = tune(self.rounds, program, finalist.kernels, self.found.expand, build_s=build_s, budget_s=budget_s)
        for trial in tuning.trials:
            self.tools.say(f"{name} with {' + '.join(trial.choices)}: {trial.ratio:.2f}x by {trial.by}")
        self.tried[name] = list(tuning.trials)
        self.out = dict(tuning.out)
        return tuning

    def _confirmed(self, entry: _Entry, rows: tuple[JudgedFinalist, ...], short: bool) -> tuple[Judgement | None, bool]:
        """What an entry amounts to on fresh rounds, and when to nothing, whether the rest need not be tried."""
        self.tools.say(f"confirming {entry.name}: {entry.ratio:.2f}x")
        options, program = entry.tuning.options, entry.program
        forms: list[Any] = [Tuned(program, options), program] if options else [program]
        if entry.finalist is None:
            forms = forms[:1]
        again = self.rounds.fresh(forms, 0.4 * self.limits.measure_seconds, short)
        outcomes = again.candidates
        plain = outcomes[-1] if entry.finalist is not None else again.reference
        gain = _gain(plain, outcomes[0], self.rounds.request.seed) if options else None
        dropped = options and (gain is None or gain.ratio < 1.0 or (entry.finalist is None and gain.ratio < WORTH))
        best = len(forms) - 1 if dropped else 0
        timing = outcomes[best]
        if dropped:
            self.notes.append(f"{entry.name} with {' + '.join(entry.tuning.choices)} did not hold on fresh rounds")
            if entry.finalist is None:
                return None, False
            options, gain = {}, None
        if not (isinstance(timing, Timing) and isinstance(again.reference, Timing) and again.faster(best)):
            return None, isinstance(timing, Timing) and timing.ratio.ratio < 1.0
        numerics, cause = check(self.tools.builds, program, options)
        if cause:
            self.notes.append(f"{entry.name} was refused: {cause}")
            return None, False
        gains: dict[str, Gain] = {}
        interrupted = False
        if entry.finalist is not None and self.limits.left_s > 0.0:
            self.tools.say("timing the winner without its most important rules")
            try:
                gains = measured_gains(self.rounds, self.found, entry.finalist, Tuned(program, options), timing.build_s)
            except KeyboardInterrupt:
                interrupted = True
        return Judgement(
            program,
            entry.finalist,
            "faster program returned" if entry.finalist is not None else "original returned with compiler options",
            measured=measured(again.reference, timing, again.noise_floor),
            numerics=numerics,
            finalists=rows,
            notes=tuple(self.notes),
            after_text=print_graph(program.hot),
            gains=gains,
            options=dict(options),
            tuning=self._tuning_figures(entry.tuning.choices if options else None, gain),
            build_s=self.build_s,
            interrupted=interrupted,
        ), False

    def _tuning_figures(self, choices: Sequence[str] | None, gain: Speedup | None) -> dict[str, Any]:
        """What was tried and what the chosen options brought, as plain data for the report."""
        if not self.tried:
            return {}
        return {
            "choices": list(choices or ()),
            "gain": asdict(gain) if gain else None,
            "tried": {name: [asdict(t) for t in trials] for name, trials in self.tried.items()},
            "not_tried": self.out,
        }


def _order(reference: Timing, candidate: Timing) -> float:
    """The ratio by which candidates are ordered; what is claimed is measured afterwards.

    Short programs are ordered by the first quartile of their times: in phases of a tenth of a second or more two
    threads share a core while another is idle, and the medians of equal programs then differ by a factor.
    """
    if not _is_short(reference):
        return candidate.ratio.ratio
    usual_s, other_s = (sorted(t.samples_s)[len(t.samples_s) // 4] for t in (reference, candidate))
    return usual_s / other_s


def _is_short(reference: Timing) -> bool:
    return reference.median_s < SHORT_S


def _gain(plain: Timing | Failure, tuned: Timing | Failure, seed: int) -> Speedup | None:
    """Time with the default options over time with others, paired by round."""
    if not (isinstance(plain, Timing) and isinstance(tuned, Timing)):
        return None
    return paired_ratio(plain.samples_s, tuned.samples_s, seed=seed)


def _timed(candidates: Sequence[Candidate], comparison: Comparison) -> list[tuple[Candidate, Timing]]:
    pairs = zip(candidates, comparison.candidates, strict=True)
    return [(candidate, outcome) for candidate, outcome in pairs if isinstance(outcome, Timing)]


def _by_prediction(found: Exploration, original: Program, builds: Builds) -> Judgement:
    """The model's own choice, checked but not timed: the same on every machine."""
    best = found.result.best
    if best not in found.finalists:
        return Judgement(original, None, "the original was returned: the model finds nothing cheaper")
    before, refused = found.result.original.predicted_s, list[str]()
    cheaper = [f for f in found.finalists if f.predicted_s < before] if builds.exact else [best]
    for chosen in sorted(cheaper, key=lambda f: f.predicted_s):
        ratio = before / chosen.predicted_s if chosen.predicted_s > 0 else 1.0
        program = found.program(chosen)
        numerics, cause = check(builds, program)
        if cause:
            refused.append(f"{chosen.name} was refused: {cause}")
            continue
        return Judgement(
            program,
            chosen,
            "program chosen by the performance model; times are predictions, nothing was measured",
            measured=Measurement(speedup=predicted_speedup(ratio)),
            numerics=numerics,
            finalists=tuple(JudgedFinalist(f.name, 1e3 * f.predicted_s, None, None) for f in found.finalists),
            notes=tuple(refused),
            after_text=print_graph(program.hot),
        )
    why = refused[0].partition(": ")[2] if refused else "the model finds nothing cheaper"
    return Judgement(original, None, f"the original was returned: {why}", notes=tuple(refused))


def _rows(candidates: tuple[Candidate, ...], comparison: Comparison) -> tuple[JudgedFinalist, ...]:
    rows: list[JudgedFinalist] = []
    for finalist, outcome in zip(candidates, comparison.candidates, strict=True):
        if isinstance(outcome, Failure):
            text = f"{outcome.cause}: {outcome.detail}"
            rows.append(JudgedFinalist(finalist.name, 1e3 * finalist.predicted_s, None, None, text))
        else:
            rows.append(
                JudgedFinalist(finalist.name, 1e3 * finalist.predicted_s, 1e3 * outcome.median_s, outcome.ratio)
            )
    return tuple(rows)
