"""Kernels of our own in the chosen program: which regions, and whether the whole program is faster with them.

    partition -> every region tried against XLA's version of it -> regions cut and joined -> schedules searched
              -> programs with the winners, and with more of them, compared with the current one
              -> kernels in doubt left out and taken in, one after the other -> the best confirmed on fresh rounds

Several forms of the program are tried (`superopt.choose.forms`).  A kernel first runs in a worker process; only those
that came through there with XLA's values, and whose schedules are proved, are built in the process of the user.  What a
region takes alone says little about the program (caches are cold there, and XLA fuses what lies between kernels), so
it only says what to put together; programs are chosen by timing them.  The program with kernels replaces the
judgement's only when the fresh rounds show it faster, beyond the noise, than both the original and what the judgement
chose; before a judgement the original stands for that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from superopt.backends.native import unavailable
from superopt.choose.forms import ProgramForm, forms_of
from superopt.choose.partitions import search_partition
from superopt.choose.plain import fits
from superopt.choose.schedules import LEAST_S, proved, search_schedules
from superopt.choose.trials import WORTH, Trial, TrialPool, estimate, make_likely, report_rows, try_regions, with_likely
from superopt.contest.checks import check
from superopt.contest.comparing import SHORT_S, Comparing, Tools, measured, rounds_of
from superopt.contest.judgement import Judgement
from superopt.explore.found import Exploration
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported
from superopt.ir.graph import Graph
from superopt.ir.program import Program
from superopt.ir.text import print_graph
from superopt.kernels.choose.choice import Choice, choices_of, regions_of
from superopt.machine.budget import LEAST_KERNELS_S, SearchBudget
from superopt.measure import Comparison, Failure, Timing, Tuned
from superopt.measure.result import ENOUGH_ROUNDS
from superopt.measure.stats import paired_ratio
from superopt.report.data import NativeKernel

_SAMPLES, _TRIALS, _PARTITIONS, _SCHEDULES = 0.15, 0.5, 0.6, 0.7  # of the stage's time, when these steps end
_IN_FULL = 0.7  # when trials of the best form end: what is not tried then takes what regions of its kind say
_FEW = 8  # regions of a form that are tried before forms are compared
_KNOWN = 0.2  # of a form's estimated time must be tried before it is compared with others
_ALL = 1.5  # the kernels of regions that were not tried are made until then
_LEAST_MAKING = 0.5  # what they may take in any case: a program whose kernels are half XLA's is not worth confirming
_REFINED = 1.0  # kernels in doubt are tried in the program until then
_MOST_FORMS, _CLOSE, _MOST_PROGRAMS = 3, 1.3, 6  # in the first comparison; forms within this of the best by the trials
_EVEN, _LEAST = 0.85, 0.5  # beside others, a kernel as fast as XLA may pay; those slower than the second are not used
_DOUBT, _MOST_DOUBTS = 1.25, 4  # kernels that gain less than this alone are in doubt, so many of them are tried
_GIVEN_UP, _BETTER = 0.97, 1.01  # nothing slower is confirmed; what leaving a kernel out, or taking one in, must bring
_CONFIRM, _CHECK = 2.5, 1.5  # what building and confirming a program takes, in terms of the longest build; without it
_Chosen = tuple[Choice, ...]


def implement(
    imported: Imported, found: Exploration, judgement: Judgement, request: Request, tools: Tools, pool: TrialPool
) -> Judgement:
    """The judgement with kernels in the program where that is faster; else as it was, with what was tried."""
    reason, limits = unavailable(), request.budget
    if limits.seconds is not None and limits.seconds < LEAST_KERNELS_S:
        reason = f"a budget of less than {LEAST_KERNELS_S:g} s leaves no time to try them"
    if not reason and limits.left_s < _CONFIRM * judgement.build_s:
        reason = "stages before left no time to build a program with them"
    if reason:
        return replace(judgement, notes=(*judgement.notes, f"no kernels of our own: {reason}"))
    rounds = Comparing(imported, replace(request, seed=request.seed + 5), tools.worker)
    try:
        return _Stage(found, judgement, request, rounds, tools, pool, time.monotonic()).run()
    except KeyboardInterrupt:
        return replace(judgement, notes=(*judgement.notes, "trying kernels was interrupted"), interrupted=True)


@dataclass(frozen=True, slots=True)
class _Stage:
    """What all steps share."""

    found: Exploration
    judgement: Judgement
    request: Request
    rounds: Comparing
    tools: Tools
    pool: TrialPool
    begin_s: float

    @property
    def limits(self) -> SearchBudget:
        """What the stage may take."""
        return self.request.budget

    def run(self) -> Judgement:
        """Try regions, then programs."""
        self.pool.start()
        forms = forms_of(self.found, self.judgement)
        if not forms:
            return self.judgement
        tried = self._tried(forms)
        order = sorted(forms, key=lambda form: self._expected_s(form, tried))
        best = order[0]
        tried = self._made(best, tried)
        if (left_s := self._left_s(_PARTITIONS)) > 0.0:
            other, tried = search_partition(best, tried, self.pool, budget_s=left_s, progress=self.tools.say)
            order = order if other is best else [other, *order]
        regions = list(dict.fromkeys((*best.regions, *order[0].regions)))
        if (left_s := self._left_s(_SCHEDULES)) > LEAST_S:
            tried = search_schedules(
                regions, tried, self.pool, budget_s=left_s, seed=self.request.seed, store=self.tools.store,
                progress=self.tools.say,
            )  # fmt: skip
        expected = {form.name: self._expected_s(form, tried) for form in order}
        order = sorted(order, key=lambda form: expected[form.name])[:_MOST_FORMS]
        near = [form for form in order if expected[form.name] < _CLOSE * expected[order[0].name]]
        for form in near:
            tried = self._made(form, tried)
        tried = proved(tried, self.tools.store, self.tools.say, _LEAST)
        entries: dict[tuple[str, _Chosen], tuple[ProgramForm, _Chosen]] = {}
        for least in (_EVEN, WORTH, _LEAST):  # of every form the likeliest first
            for form in near:
                chosen = self._chosen(form, tried, least)
                if chosen and self._fits(form, chosen):
                    entries.setdefault((form.name, chosen), (form, chosen))
        if not entries:
            return self._without(
                forms, tried, "no kernel was faster than XLA's" if tried else "no time was left for one"
            )
        return self._best(list(entries.values())[:_MOST_PROGRAMS], forms, tried)

    def _left_s(self, share: float) -> float:
        """Seconds until this share of the stage's time is over, or nothing but confirming a program fits in."""
        share_s = self.begin_s + share * self.limits.kernel_seconds - time.monotonic()
        return min(share_s, self.limits.left_s - _CONFIRM * self.judgement.build_s)

    def _tried(self, forms: Sequence[ProgramForm]) -> dict[Graph, Trial]:
        """Trials: of every form a few regions that take longest, then all of the forms that promise most by these."""
        tried: dict[Graph, Trial] = {}
        sampled: list[ProgramForm] = []
        for form in forms:
            if not sampled or self._left_s(_SAMPLES) > 0.0:
                sampled.append(form)
                tried = self._try(form, tried, len(forms) > 1)
        expected = {form.name: self._expected_s(form, tried) for form in sampled}
        order = sorted(sampled, key=lambda form: expected[form.name])
        tried = self._try(order[0], tried, until=_IN_FULL)
        for form in order[1:]:
            if self._left_s(_TRIALS) > 0.0 and expected[form.name] < _CLOSE * expected[order[0].name]:
                tried = self._try(form, tried)
        return tried

    def _builds_s(self) -> float:
        """Seconds for building programs to compare, so that one can be confirmed afterwards; 0: no limit."""
        left_s = self.limits.left_s
        return 0.0 if left_s == math.inf else max(1e-3, left_s - _CHECK * self.judgement.build_s)

    def _try(
        self, form: ProgramForm, tried: Mapping[Graph, Trial], few: bool = False, until: float = _TRIALS
    ) -> dict[Graph, Trial]:
        return try_regions(
            form.regions, self.pool, budget_s=self._left_s(until), most=_FEW if few else None,
            known=tried, progress=self.tools.say,
        )  # fmt: skip

    def _made(self, form: ProgramForm, tried: Mapping[Graph, Trial]) -> dict[Graph, Trial]:
        """The trials with what they say of regions that were not tried, whose kernels are made."""
        budget_s = max(self._left_s(_ALL), _LEAST_MAKING * self.limits.kernel_seconds)
        likely = with_likely(form.regions, tried)
        return make_likely(form.regions, likely, self.pool, _LEAST, budget_s=budget_s, progress=self.tools.say)

    def _chosen(self, form: ProgramForm, tried: dict[Graph, Trial], least: float) -> _Chosen:
        """The regions whose kernels are faster than XLA by at least this factor."""
        if not any(r.graph in tried and tried[r.graph].wins for r in form.regions):
            return ()
        won = [(r, tried[r.graph]) for r in form.regions if r.graph in tried and tried[r.graph].gain > least]
        return choices_of(form.program.hot, [(r, t.trace) for r, t in won])

    def _expected_s(self, form: ProgramForm, tried: Mapping[Graph, Trial]) -> float:
        """Seconds of the regions of a form, each as a kernel or by XLA; of untried ones the estimate, to the scale.

        Infinite where too little was tried: the few regions that other forms have too say nothing.
        """
        rough = [(estimate(r), trial.seconds if (trial := tried.get(r.graph)) else None) for r in form.regions]
        total_s, known_s = sum(e for e, _ in rough), sum(e for e, s in rough if s is not None)
        if known_s <= _KNOWN * total_s:
            return math.inf
        return sum(s for _, s in rough if s is not None) * total_s / known_s

    def _fits(self, form: ProgramForm, choices: Sequence[Choice]) -> bool:
        return fits(form.name, form.program, choices, self.request.max_prepared_bytes, self.tools.say)

    def _best(
        self, entries: Sequence[tuple[ProgramForm, _Chosen]], forms: Sequence[ProgramForm], tried: dict[Graph, Trial]
    ) -> Judgement:
        """The best of several programs, with kernels in doubt left out or taken in, if fresh rounds confirm it."""
        (form, choices), builds_s = entries[0], self._builds_s()
        if builds_s and builds_s < 2.0 * self.judgement.build_s:
            entries = entries[:1]  # no two can be built (faster than the original alone): the likeliest is confirmed
        if len(entries) > 1:
            programs = [self._tuned(form.program, choices) for form, choices in entries]
            first = self._compare(self._current(), programs, 0.2, builds_s=builds_s)
            order = [(c.ratio.ratio, -i) for i, c in enumerate(first.candidates) if isinstance(c, Timing)]
            for (other, chosen), outcome in zip(entries, first.candidates, strict=True):
                said = f"{outcome.cause}: {outcome.detail}" if isinstance(outcome, Failure) else str(outcome.ratio)
                self.tools.say(f"{len(chosen)} of {len(other.regions)} regions as kernels, {other.name}: {said}")
            if not order:
                lost = next(c for c in first.candidates if isinstance(c, Failure))
                return self._without(forms, tried, f"{lost.cause}: {lost.detail}")
            form, choices = entries[-max(order)[1]]
            if max(order)[0] < _GIVEN_UP:
                return self._surest(form, choices, forms, tried, "the program was not faster with them")
        if self._left_s(_REFINED) > self.judgement.build_s:
            choices = self._refined(form, choices, tried)
        found = self._confirmed(form, choices, tried)
        return self._surest(form, choices, forms, tried, found) if isinstance(found, str) else found

    def _surest(
        self, form: ProgramForm, lost: _Chosen, forms: Sequence[ProgramForm], tried: dict[Graph, Trial], cause: str
    ) -> Judgement:
        """The program with those kernels alone that gain much, after it was not faster with more of them."""
        choices = self._chosen(form, tried, _DOUBT)
        left_s = self.limits.left_s - _CHECK * self.judgement.build_s
        if choices and len(choices) < len(lost) and left_s > self.judgement.build_s:
            found = self._confirmed(form, choices, tried)
            if not isinstance(found, str):
                return found
            cause = f"{cause}; with {len(choices)} of them: {found}"
        return self._without(forms, tried, cause)

    def _refined(self, form: ProgramForm, choices: _Chosen, tried: Mapping[Graph, Trial]) -> _Chosen:
        """The choices without, or with, those kernels in doubt for which the program is faster so."""
        used = {c.root for c in choices}
        place = {r.root: choices_of(form.program.hot, [(r, None)])[0].root for r in form.regions}
        doubts: dict[Graph, float] = {}
        for region in form.regions:
            trial = tried.get(region.graph)
            if trial is not None and _LEAST < trial.gain < _DOUBT and trial.own_s and trial.xla_s:
                doubts[region.graph] = doubts.get(region.graph, 0.0) + max(trial.own_s, trial.xla_s)
        variants: list[_Chosen] = []
        for graph in sorted(doubts, key=lambda g: -doubts[g])[:_MOST_DOUBTS]:
            regions = [r for r in form.regions if r.graph == graph]
            roots = {place[r.root] for r in regions}
            if roots & used:
                variant = tuple(c for c in choices if c.root not in roots)
            else:
                variant = (*choices, *choices_of(form.program.hot, [(r, tried[graph].trace) for r in regions]))
            if variant and self._fits(form, variant):
                variants.append(variant)
        if not variants:
            return choices
        result = self._compare(
            self._tuned(form.program, choices), [self._tuned(form.program, v) for v in variants], 0.15,
            prune=1.3, builds_s=self._builds_s(),
        )  # fmt: skip
        kept = set(choices)
        for variant, outcome in zip(variants, result.candidates, strict=True):
            if isinstance(outcome, Timing) and outcome.ratio.low > 1.0 and outcome.ratio.ratio > _BETTER:
                self.tools.say(f"{len(choices)} -> {len(variant)} kernels: {outcome.ratio}")
                kept = (kept | set(variant)) - (set(choices) - set(variant))
        return tuple(sorted(kept, key=lambda c: c.root)) if kept else choices

    def _confirmed(self, form: ProgramForm, choices: _Chosen, tried: dict[Graph, Trial]) -> Judgement | str:
        """What is said of the program with these kernels after fresh rounds and a check; or why it is not returned."""
        self.tools.say(f"confirming {len(choices)} kernels in the form: {form.name}")
        judged = self.judgement
        candidate = self._tuned(form.program, choices)
        fresh = self.rounds.fresh([candidate, self._current()], 0.2 * self.limits.kernel_seconds, self._is_short())
        with_kernels, before = (*fresh.candidates, fresh.reference)[:2]
        if not (isinstance(with_kernels, Timing) and isinstance(before, Timing)):
            lost = with_kernels if isinstance(with_kernels, Failure) else before
            assert isinstance(lost, Failure)
            return f"{lost.cause}: {lost.detail}"
        gain = paired_ratio(before.samples_s, with_kernels.samples_s, seed=self.request.seed)
        if not (fresh.faster(0) and gain.exceeds(fresh.noise_floor)):
            return f"on fresh rounds the program was {gain} as fast with them"
        numerics, cause = check(self.tools.builds, form.program, judged.options, choices)
        if cause:
            return cause
        assert isinstance(fresh.reference, Timing)
        rows = self._rows(form, choices, tried)
        return replace(
            judged,
            program=form.program,
            winner=form.finalist,
            verdict=f"faster program returned, {len(choices)} of its kernels are our own",
            measured=measured(fresh.reference, with_kernels, fresh.noise_floor, {"without kernels": before}),
            numerics=numerics,
            after_text=print_graph(form.program.hot),
            gains=judged.gains if form.name.startswith("returned") else {},
            kernels=choices,
            native=rows,
            unchecked=False,
            implementation={
                "form": form.name,
                "gain": asdict(gain),
                "regions": len(form.regions),
                "kernels": len(choices),
            },
        )

    def _without(self, forms: Sequence[ProgramForm], tried: dict[Graph, Trial], cause: str) -> Judgement:
        note = f"no kernels of our own are used: {cause}"
        return replace(
            self.judgement,
            notes=(*self.judgement.notes, note),
            native=self._rows(forms[0], (), tried),
            implementation={"form": None, "gain": None, "regions": len(forms[0].regions), "kernels": 0},
        )

    def _rows(
        self, form: ProgramForm, choices: Sequence[Choice], tried: dict[Graph, Trial]
    ) -> tuple[NativeKernel, ...]:
        chosen = {region.graph for region in regions_of(form.program.hot, choices)}
        return report_rows(form.regions, chosen, tried)

    def _current(self) -> Any:
        judged = self.judgement
        return Tuned(judged.program, judged.options) if judged.options else judged.program

    def _tuned(self, program: Program, choices: Sequence[Choice]) -> Tuned:
        return Tuned(program, self.judgement.options, tuple(c.to_json() for c in choices))

    def _compare(self, reference: Any, candidates: Sequence[Any], share: float, **settings: Any) -> Comparison:
        """Programs in a share of the time for kernels."""
        settings = {**rounds_of(self._is_short()), "min_rounds": ENOUGH_ROUNDS, **settings}
        return self.rounds.compare(reference, candidates, share * self.limits.kernel_seconds, **settings)

    def _is_short(self) -> bool:
        before_ms = self.judgement.measured.before_ms
        return (self.found.result.original.predicted_s if before_ms is None else 1e-3 * before_ms) < SHORT_S
