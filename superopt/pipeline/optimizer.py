"""The pipeline, readable from top to bottom.

    import -> plain candidate: every region of the program a kernel of our own, nothing searched
    -> e-graph grown by proved rules -> search over selections, priced by XLA and by kernels of our own
    -> its best programs in kernels, and schedules searched for the best of all
    -> contest of all of these and the original -> winner, checked

Where there are to be no kernels, the search's programs are judged as XLA computes them.  Without the search the plain
candidate is returned, checked against the original as a compiler would.  With it, what is returned is the fastest of
all in rounds with the original; nothing is returned that is slower than the plain candidate or the original.
Everything that was found, timed and left out goes into the report.

Every stage behind which there is a program already runs behind a barrier (`superopt.machine.barrier`): when one fails,
what was there before it is returned, and the report says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

import jax
import numpy as np

from costmodel.model.load import load_objective
from costmodel.model.objective import Objective
from rewrites.language.term import Rule
from superopt.backends.protocol import Backend, backend_of, for_device
from superopt.backends.xla import XlaExecutable, card_model
from superopt.certify.library import ProvedLibrary, given_rules, proved_library
from superopt.certify.plan import Plan, empty_plan
from superopt.choose.forms import apart_s, forms_of, own_regions, priced, that_differ
from superopt.choose.plain import KernelMaker, KernelProgram, candidate_of, in_kernels, in_regions, own_form
from superopt.choose.trials import TrialPool
from superopt.contest.attribution import measured_gains
from superopt.contest.checks import Builds, of_the_program
from superopt.contest.contest import Outcome, contest
from superopt.contest.judgement import (
    Candidate,
    Judgement,
    as_xla_computes,
    by_prediction,
    decided,
    given_back,
    original_returned,
    settled,
    undecided,
)
from superopt.contest.rounds import Entry, Rounds, Subject
from superopt.errors import ArgumentError, InputError, SuperoptError, UsageError, told
from superopt.explain.summary import make_report
from superopt.explore.exploration import explore
from superopt.explore.found import Exploration
from superopt.explore.request import Request
from superopt.explore.trace import make_plan
from superopt.files.reading import shown
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.graph import Graph
from superopt.machine.barrier import Barrier
from superopt.machine.budget import HALF, LEAST_KERNELS_S, LEAST_S, PROGRAMS, SearchBudget, parse_budget
from superopt.machine.extras import need
from superopt.measure import ComparisonSettings, Timing, Worker, as_called, compare
from superopt.measure.compare import serialisable
from superopt.measure.kernels import XLA
from superopt.measure.process import ONE_KERNEL
from superopt.pipeline.weights import Shelf
from superopt.report.data import Measurement, Report, StageTime
from superopt.returned.optimized import Optimized
from superopt.returned.remember import recall, remember, run_key
from superopt.store import Store
from verifier.verdict import EXACTNESS

if TYPE_CHECKING:
    from superopt.frontends.onnx.frontend import OnnxModel

Progress = Callable[[str], None]
P = ParamSpec("P")
R = TypeVar("R")

_FIRST = (KeyboardInterrupt,)  # ends a call that has no program yet
_CONTEST = ("the plain candidate", "one program of the search")  # what a contest builds at least
_TWO = 1.0 - HALF * HALF  # of what is left, for a stage that has the half of the next one, too
_HURRIED = "builds are too slow for the budget: nothing was searched, and the contest is of what the check takes"


class OptimizeOptions(TypedDict, total=False):
    """Options of `optimize` that `superopt.jit` takes, too."""

    frozen: int | str | Iterable[int | str] | None
    budget: str | float
    seed: int
    deterministic: bool
    store: bool | str | Path
    rules: Sequence[Rule] | None
    objective: Objective | None
    max_prepared_bytes: int | None
    numerics: str
    kernels: bool | str
    search: bool
    progress: Progress | None


class CallOptions(OptimizeOptions, total=False):
    """Options of `optimize`."""

    kwargs: Mapping[str, Any] | None
    dims: Mapping[str, int] | None
    data_root: str | Path | None


@overload
def optimize(
    fn: str | Path | OnnxModel, *args: Any, **options: Unpack[CallOptions]
) -> Optimized[..., tuple[jax.Array, ...]]: ...
@overload
def optimize(fn: Callable[P, R], *args: Any, **options: Unpack[CallOptions]) -> Optimized[P, R]: ...
def optimize(
    fn: Callable[..., Any] | str | Path | OnnxModel,
    *args: Any,
    frozen: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    budget: str | float = "60s",
    seed: int = 0,
    deterministic: bool = False,
    dims: Mapping[str, int] | None = None,
    store: bool | str | Path = True,
    rules: Sequence[Rule] | None = None,
    objective: Objective | None = None,
    max_prepared_bytes: int | None = None,
    numerics: str = "real",
    kernels: bool | str = True,
    search: bool = True,
    data_root: str | Path | None = None,
    progress: Progress | None = None,
) -> Optimized:
    """Optimise a JAX function on example arguments, or an ONNX model.

    Args:
        fn: a function that `jax.jit` accepts, the path of an ONNX model, or a loaded model.
        args: example arguments (any pytrees); for a model they may be left out and are then random.
        frozen: positions or names of arguments that do not change between calls (weights).
        kwargs: example keyword arguments of the function.
        budget: time for the call: seconds, "30s", "2min", or "5000steps" (same result anywhere).  Of less than five
            seconds, what cannot be cut may take it beyond: proofs of rules that are in no store, builds.
        seed: of the search, of random inputs and of the timing order.
        deterministic: let the performance model alone decide; nothing is measured.
        dims: sizes of the symbolic dimensions of a model that example arguments do not say.
        store: whether to answer from and write to the store of earlier results, or the path of another store.
        rules: rewrite rules in place of the library; each must be proved.
        objective: performance model in place of the calibrated ones, that of our kernels included.
        max_prepared_bytes: refuse programs whose prepared weights are larger.
        numerics: which rules may be used: `real` (equal over the reals), `exact` (results agree with the original's in
            every bit; NaN is NaN) or `range` (also rules that may overflow where the original does not).
        kernels: try kernels of our own in place of XLA's, made by the backend for the default device of JAX or by the
            one of this name; not with numerics `exact`, since they round otherwise, and not with `deterministic`,
            since they are chosen by measuring.
        search: False returns the plain candidate as soon as it is ready, whatever the budget: the program's own form,
            every region a kernel with its default schedule, compared with the original but not timed.
        data_root: a folder inside which symbolic links to the external data of a model are followed.
        progress: called with one line per stage.

    Raises:
        UsageError: a budget that is not positive, options that do not go together.
        ArgumentError: arguments that are not arrays, or do not fit.
        ModelFileError: a model that cannot be read.
        VerificationError: a rule that is not proved.
    """
    if numerics not in EXACTNESS:
        raise UsageError(f"numerics {numerics!r} is none of {', '.join(EXACTNESS)}")
    backend = _backend(kernels)
    backend = backend if numerics != "exact" and not (deterministic and search) else None
    limits = replace(parse_budget(budget), kernels=backend is not None)
    _check_options(seed, objective, store, kwargs, max_prepared_bytes, progress)
    given = given_rules(rules)
    clock = _Clock(progress)
    barrier = Barrier()
    with ExitStack() as stack:
        shelf = stack.enter_context(Shelf())
        with clock.stage("import"):
            imported, name = _import(fn, args, kwargs, frozen, dims, seed, shelf, data_root)
        if any(isinstance(x, jax.ShapeDtypeStruct) for x in imported.examples):
            imported = _with_examples(imported, seed)
        archive = barrier.around("the store", lambda: _open_store(store), None, let=_FIRST)
        if archive is not None:
            stack.callback(barrier.around, "the end of the store", archive.close, None)
        with clock.stage("model"):
            request = Request(
                limits, seed=seed, numerics=numerics, deterministic=deterministic, searches=search, rules=given,
                max_prepared_bytes=max_prepared_bytes, kernels_by="" if backend is None else backend.name,
            )  # fmt: skip
            own = None
            if backend is not None and limits.tries_kernels and objective is None:
                own = barrier.around("the model of kernels of our own", lambda: _priced(backend), None, let=_FIRST)
            objective = objective or barrier.around(
                "the performance model", lambda: card_model() or load_objective(archive, progress=clock.say),
                request.objective,
                let=_FIRST,
            )  # fmt: skip
            request = replace(request, objective=objective, own=own)
        key = barrier.around("the key of the call in the store", lambda: run_key(imported, request), "", let=_FIRST)
        known = barrier.around("an answer from the store", lambda: recall(archive, key, imported), None, let=_FIRST)
        if known is not None:
            clock.say("answered from the store")
            return known
        asked = imported
        imported = barrier.around("the file of the weights", lambda: shelf.imported(asked), asked)
        worker, pool = Worker(), TrialPool(backend=backend)
        kernels_alone = Worker(ONE_KERNEL, inline=True)
        stack.callback(barrier.around, "the end of processes", worker.close, None)
        stack.callback(barrier.around, "the end of processes", kernels_alone.close, None)
        stack.callback(barrier.around, "the end of processes", pool.close, None)
        maker = barrier.around(
            "the maker of kernels", lambda: KernelMaker(pool, archive, max_prepared_bytes, clock.say), None, let=_FIRST
        )
        tools = _Tools(worker, Builds.of(imported, seed, request.exact), archive)
        run = _Run(imported, request, tools, pool, kernels_alone, maker, clock, barrier)
        if imported.whole:  # there is nothing to choose, and its effects are not to be had before it is called
            return run.finished(name, original_returned(imported, f"it is kept whole, since {imported.whole}"), key)
        work = run.searched if search else run.unsearched
        judgement = barrier.around("the choice of a program", work, None, let=(SuperoptError, *_FIRST))
        return run.finished(name, judgement or run.at_hand_alone(), key)


@dataclass(frozen=True, slots=True)
class _Tools:
    """The process in which programs are compared, what this one has built for its checks, and the store, if any."""

    worker: Worker
    builds: Builds
    store: Store | None


@dataclass(slots=True)
class _Run:
    """One optimisation: what its stages share, and what they found."""

    imported: Imported
    request: Request
    tools: _Tools
    pool: TrialPool
    alone: Worker
    maker: KernelMaker | None
    clock: _Clock
    barrier: Barrier
    library: ProvedLibrary = field(default_factory=lambda: ProvedLibrary((), {}))
    found: Exploration | None = None
    ready: Judgement | None = None

    @property
    def limits(self) -> SearchBudget:
        """What the whole call may take."""
        return self.request.budget

    @property
    def builds(self) -> Builds:
        """What the check builds in this process."""
        return self.tools.builds

    @property
    def kernels(self) -> bool:
        """Is there time for kernels of our own?"""
        return self.limits.tries_kernels and self.maker is not None and not self.pool.backend.unavailable()

    def unsearched(self) -> Judgement:
        """The plain candidate, as soon as it is ready."""
        with ThreadPoolExecutor(2) as beside:  # what the check compares with, while other processes make kernels
            if not self.builds.on_disk:
                beside.submit(lambda: self.builds.wanted)
                beside.submit(lambda: self.builds.truth)
            plain = self._plain(math.inf, self.limits.kernels and not self.pool.backend.unavailable())
        if plain is None:
            return given_back(self.imported, self.barrier)
        if plain.same_as_original:
            return original_returned(self.imported, "nothing can be done ahead, and no region can be a kernel")
        verdict = f"plain program returned, {len(plain.choices)} of its kernels are our own; nothing was timed"
        return self._checked(in_kernels(plain, verdict))

    def searched(self) -> Judgement:
        """The fastest of the plain candidate, what the search finds, and the original."""
        if self.request.deterministic:
            self._prove()
            self._explore(self.limits.after(self.clock.elapsed_s).until(time.monotonic()).stage(share=_TWO))
            return self._predicted()
        made: list[KernelProgram] = []
        whole = self.limits.until(self.clock.begin_s)
        with ThreadPoolExecutor(2) as beside:
            ran = beside.submit(self._ran)
            if not self.builds.on_disk:  # else they are not read for it while other processes are there
                beside.submit(lambda: self.builds.truth)
            if self.kernels:
                plain = self._plain(whole.stage().left_s)
                if plain is not None and not plain.same_as_original:
                    made.append(plain)
                    self.ready = candidate_of(plain)[1]
            build_s = ran.result()
        if self.kernels and whole.stage().left_s < build_s:  # once more for the contest; programs in kernels are fast
            judgement = original_returned(self.imported, "the time does not suffice for a search", notes=(_HURRIED,))
            return self._contested(made, judgement, whole, self.builds)
        with ThreadPoolExecutor(1) as beside:
            ahead = beside.submit(
                _built_in, self.tools.worker, self.imported, [candidate_of(plain)[0] for plain in made]
            )
            self._prove()
            again_s = self.barrier.around("programs built ahead", ahead.result, 0.0, let=_FIRST)
            build_s = min(build_s, again_s)  # all beside other work, the second with the start of its process
        limits = self.limits.after(self.clock.elapsed_s + build_s).until(time.monotonic())
        follow_s = len(_CONTEST) * build_s
        self._explore(limits.stage(follow_s, HALF if self.kernels else _TWO), [g for form in made for g in form.chosen])
        cause = "the time does not suffice for a search" if self.found is None else "nothing faster was found"
        judgement = original_returned(self.imported, cause, build_s=build_s)
        if self.found is not None and self.kernels and not self._interrupted(judgement):
            self._in_kernels(made, limits.stage(follow_s, _TWO), build_s, limits.end_s)
            if not self.barrier.interrupted:
                self._search_schedules(made, limits.part_s((len(made) + 1) * build_s))
        if self.limits.kernels and not self.kernels:
            why = (
                self.pool.backend.unavailable()
                or f"a budget of less than {LEAST_KERNELS_S:g} s leaves no time to try them"
            )
            judgement = replace(judgement, notes=(*judgement.notes, f"no kernels of our own: {why}"))
        return self._contested(made, judgement, limits, self.tools.worker)

    def _ran(self) -> float:
        """Have the original built here, where the check will need it, and run; seconds that it took."""
        begin = time.monotonic()
        _ = self.builds.wanted
        return time.monotonic() - begin

    def at_hand_alone(self) -> Judgement:
        """The plain candidate if it is ready, else the original, after the choice between programs was lost."""
        if self.ready is None:
            return given_back(self.imported, self.barrier)
        return self._checked(
            replace(self.ready, verdict="plain program returned; the choice failed, nothing was timed")
        )

    def _interrupted(self, judgement: Judgement) -> bool:
        """Has Ctrl-C ended one of the stages?"""
        found = self.found is not None and self.found.interrupted
        return found or judgement.interrupted or self.barrier.interrupted

    def _plain(self, budget_s: float, kernels: bool = True) -> KernelProgram | None:
        with self.clock.stage("plain"):
            form = own_form(self.imported.graph)
            maker = self.maker
            if not kernels or maker is None:
                return KernelProgram("own form", form)
            return self.barrier.around(
                "the plain candidate", lambda: maker.make(in_regions("own form", form), budget_s), None, let=_FIRST
            )

    def _prove(self) -> None:
        """The rules of the search; of those that are in no store as many as can be proved in their part of the time."""
        left_s = self.limits.after(self.clock.elapsed_s).seconds
        end_s = time.monotonic() + HALF * left_s if self.limits.is_kept and left_s is not None else math.inf
        with self.clock.stage("rules"):
            self.library = self.barrier.around(
                "the library of rules",
                lambda: proved_library(self.tools.store, self.request.rules, self.request.numerics, end_s),
                self.library,
                let=(SuperoptError, *_FIRST),
            )

    def _explore(self, limits: SearchBudget, made: Sequence[Graph] = ()) -> None:
        """What the search finds, where there is time left for it, and kernels of these regions made by now."""
        if self.limits.is_kept and limits.left_s < LEAST_S:
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
                ),
                None,
            )

    def _in_kernels(self, made: list[KernelProgram], limits: SearchBudget, build_s: float, contest_s: float) -> None:
        """The plain candidate, predicted, and the search's best programs in kernels that can be made in the time."""
        with self.clock.stage("forms"):
            self.barrier.around(
                "programs of the search in kernels", lambda: self._make_forms(made, limits, build_s, contest_s), None
            )

    def _make_forms(self, made: list[KernelProgram], limits: SearchBudget, build_s: float, contest_s: float) -> None:
        found, maker = self.found, self.maker
        assert found is not None
        assert maker is not None
        maker.model = found.model
        apart = apart_s(found, found.result.original)
        made[:] = [replace(form, apart_s=apart) for form in made]
        ready = self._whole(maker, forms_of(found), limits.stage(share=_TWO))
        for form in self._distinguished(ready, made, limits)[:PROGRAMS]:
            if (len(made) + 2) * build_s > contest_s - time.monotonic():
                self.clock.say(f"{form.name}: the time does not suffice to build it")
                continue
            done = maker.make(form, limits.left_s)  # without what was timed to be faster by XLA
            if not done.choices and (finalist := form.finalist) is not None:  # XLA has its own ways
                seconds = found.by_xla_s(finalist)
                done = KernelProgram(finalist.name, found.program(finalist), finalist, predicted_s=seconds)
            made.append(done)
        made[:] = [maker.told(form) if form.regions else form for form in made]

    def _whole(self, maker: KernelMaker, forms: Sequence[KernelProgram], limits: SearchBudget) -> list[KernelProgram]:
        """The forms all of whose kernels can be made in the time, by processes side by side, before one times them."""
        whole: list[KernelProgram] = []
        for form in forms:
            left_s = limits.left_s
            if maker.seconds_for(form) <= left_s:
                maker.make(form, left_s)
            if maker.seconds_for(form) > 0.0:
                self.clock.say(f"{form.name}: the time does not suffice to make it")
            else:
                whole.append(form)
        return whole

    def _distinguished(
        self, forms: Sequence[KernelProgram], made: Sequence[KernelProgram], limits: SearchBudget
    ) -> list[KernelProgram]:
        """The forms worth building, after what tells them apart was timed."""
        found = self.found
        assert found is not None
        model = found.model
        if found.timer is not None and model.own is not None and forms:
            programs = [own_regions(model, form) for form in (*forms, *made)]
            timed = found.timer.distinguish(programs, limits.part_s())
            self.clock.say(f"{timed} regions timed in which {len(programs)} forms differ")
        return that_differ(model, priced(model, forms), made)

    def _search_schedules(self, made: list[KernelProgram], seconds: float) -> None:
        """The program that is fastest by prediction, with schedules that a search found to be faster."""
        maker = self.maker
        priced = [form for form in made if form.predicted_s is not None and form.choices]
        if maker is None or not priced or HALF * seconds < LEAST_S:  # half of it, processes start
            return
        best = min(priced, key=lambda form: form.predicted_s or 0.0)
        with self.clock.stage("schedules"):
            done = self.barrier.around(
                "the search of schedules",
                lambda: maker.searched(best, seconds, self.tools.worker, self.request.seed),
                None,
            )
        made += [] if done is None else [done]

    def _predicted(self) -> Judgement:
        """What the model finds the cheapest of the search's programs that pass the check; nothing is measured."""
        found = self.found
        if found is None:
            return self._checked(given_back(self.imported, self.barrier))
        chosen = self.barrier.around("the choice by the model", lambda: by_prediction(found), None)
        if chosen is None:
            return self._checked(given_back(self.imported, self.barrier))
        return self._first(chosen, original_returned(self.imported, "the model finds nothing cheaper"))

    def _contested(
        self, made: Sequence[KernelProgram], judgement: Judgement, limits: SearchBudget, where: Worker | Builds
    ) -> Judgement:
        """The fastest program that passes the check: of those in kernels, or else of those that XLA computes."""
        found = self.found
        if self._interrupted(judgement):
            return self._at_hand(judgement)
        if not made and found is None:
            return self._checked(judgement)
        self._end(self.pool, self.alone)
        with self.clock.stage("contest"):
            held = self.barrier.around("the contest", lambda: self._held(made, judgement, limits, where), None)
        if held is None:
            return self._at_hand(judgement)
        return self._first(*held)

    def _held(
        self, made: Sequence[KernelProgram], judgement: Judgement, limits: SearchBudget, where: Worker | Builds
    ) -> tuple[list[Judgement], Judgement]:
        """What the contest says of the programs that may be returned, the best first, and of the original."""
        found, request = self.found, self.request.within(limits)
        candidates: list[Candidate] = [candidate_of(form) for form in made]
        if not made and found is not None:
            candidates = as_xla_computes(found)
        said = contest(self.imported, [entry for entry, _ in candidates], request, where, self.clock.say)
        chosen = [decided(said, number, candidates, judgement) for number in said.order]
        if chosen and found is not None and chosen[0].winner is not None and not chosen[0].kernels:
            first = chosen[0]
            with_gains = self.barrier.around("measured gains", lambda: self._with_gains(first, said, request), None)
            chosen[0] = with_gains or first
        return chosen, undecided(self.imported, said, candidates, judgement)

    def _with_gains(self, winner: Judgement, said: Outcome, request: Request) -> Judgement:
        """A program that XLA computes, with what its most important rules bring, measured."""
        found, finalist = self.found, winner.winner
        assert found is not None
        assert finalist is not None
        self.clock.say("timing the winner without its most important rules")
        try:
            with Rounds(Subject.of(self.imported), request, self.tools.worker) as rounds:
                gains = measured_gains(rounds, found, finalist, winner.options, said.final)
        except KeyboardInterrupt:
            return replace(winner, interrupted=True)
        return replace(winner, gains=gains)

    def _first(self, chosen: Sequence[Judgement], otherwise: Judgement) -> Judgement:
        """The first of these that passes the check, or the original."""
        refused: list[str] = []
        for winner in chosen:
            checked = self._checked(winner)
            if not checked.returns_original or winner.returns_original:
                return replace(checked, notes=(*checked.notes, *refused))
            name = winner.implementation.get("form") or (winner.winner.name if winner.winner else "the program")
            refused.append(f"{name}: {checked.verdict}")
        return self._checked(replace(otherwise, notes=(*otherwise.notes, *refused)))

    def _at_hand(self, judgement: Judgement) -> Judgement:
        """What is returned where the search was cut off: the plain candidate, a prediction, or what there was."""
        cut = self._interrupted(judgement)
        if self.ready is not None:
            what = "the search was interrupted" if cut else "the contest failed"
            verdict = f"plain program returned; {what} and nothing was timed"
            return self._checked(replace(self.ready, verdict=verdict, notes=judgement.notes, interrupted=cut))
        if self.found is not None and self.found.interrupted:
            return replace(self._predicted(), interrupted=True)
        if cut:
            judgement = original_returned(self.imported, "measuring was interrupted", notes=judgement.notes)
        return self._checked(replace(judgement, interrupted=cut))

    def _end(self, *processes: Worker | TrialPool) -> None:
        """End processes that have nothing more to do, before what comes next takes memory for the weights."""
        for one in processes:
            self.barrier.around("the end of processes", one.close, None)

    def _checked(self, judgement: Judgement) -> Judgement:
        """The judgement after the check that was left for last; nothing is measured after it."""
        self._end(self.pool, self.alone, self.tools.worker)
        with self.clock.stage("check"):
            checked = self.barrier.around("the check", lambda: settled(self.imported, judgement, self.builds), None)
        return checked or given_back(self.imported, self.barrier)

    def finished(self, name: str, judgement: Judgement, key: str) -> Optimized:
        """The judgement's program, built, with its plan and its report; the original where it cannot be built."""
        with self.clock.stage("build"):
            executable = self.barrier.around("the chosen program", lambda: self._built(judgement), None)
            if executable is None:
                judgement = given_back(self.imported, self.barrier)
            with of_the_program():
                executable = executable or self._built(judgement)
                if self.imported.whole:
                    executable.compile(*self.imported.live_values)
            if judgement.returns_original and not (self.imported.whole or self.barrier.interrupted):
                self.builds.run()
        with self.clock.stage("plan"):
            plan = self.barrier.around("the plan", lambda: self._plan(judgement), None)
        if self.library.unproved:
            note = f"{self.library.unproved} rules were not proved in the time, and not used"
            judgement = replace(judgement, notes=(*judgement.notes, note))
        with self.clock.stage("explain"):
            memory = {
                "frozen_bytes": executable.frozen_bytes,
                "prepared_bytes": executable.prepared_bytes,
                "added_bytes": executable.added_bytes,
            }
            report = self.barrier.around(
                "the report",
                lambda: make_report(
                    name, self.imported, self.found, judgement, self.library, self.request, memory, self.barrier,
                ),
                Report(
                    program=name, verdict=judgement.verdict, measured=Measurement(speedup=judgement.measured.speedup),
                    original_returned=judgement.returns_original,
                ),
            )  # fmt: skip
        report = replace(report, stages=tuple(self.clock.stages))
        result = Optimized(self.imported, judgement.program, executable, report, plan, judgement.kernels)
        hurried = self.request.searches and self.found is None and judgement.returns_original
        if not (judgement.interrupted or judgement.noisy or hurried or self.barrier.lost):
            store, unproved = self.tools.store, self.library.unproved
            self.barrier.around("the entry in the store", lambda: remember(store, key, result, unproved), None)
        notes = (*report.notes, *self.barrier.notes)
        result.report = replace(report, lost=dict(self.barrier.lost), notes=notes)
        return result

    def _built(self, judgement: Judgement) -> XlaExecutable:
        return self.builds.candidate(judgement.program, judgement.options, judgement.kernels)

    def _plan(self, judgement: Judgement) -> Plan:
        if judgement.winner is None or self.found is None:
            return empty_plan(self.imported.graph, self.request.numerics)
        return make_plan(self.found, judgement.winner, self.library.rules, self.request.numerics)


def _backend(kernels: bool | str) -> Backend | None:
    """Who makes kernels, if any are wanted.

    Raises:
        UsageError: there is no backend of the name.
    """
    if not isinstance(kernels, str):
        return for_device() if kernels else None
    try:
        if kernels == XLA:
            raise InputError("XLA computes what is no kernel of ours")
        return backend_of(kernels)
    except InputError as error:
        raise UsageError(str(error.args[0]), hint="kernels is True, False or the name of a backend") from error


def _priced(backend: Backend) -> Backend | None:
    """The backend where the search can price its kernels and this process runs them."""
    return backend if not backend.unavailable() and backend.version else None


def _built_in(worker: Worker, imported: Imported, entries: Sequence[Entry]) -> float:
    """Have the worker of the comparisons build the original, then these programs, which it keeps if they are slow.

    Returns:
        Seconds of the last one that was built: programs in kernels are built in a fraction of the original's time.
    """
    called = as_called(imported.graph, closed=imported.closes_over)
    if not serialisable(called.program):
        return 0.0
    live, frozen = imported.live_values, imported.frozen_values
    settings = ComparisonSettings(1, 0.0)
    found = compare(called, [entry.candidate for entry in entries], live, frozen, settings, worker=worker)
    built = [one.build_s for one in (found.reference, *found.candidates) if isinstance(one, Timing)]
    return built[-1] if built else 0.0


def _import(
    fn: Callable[..., Any] | str | Path | OnnxModel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    frozen: Any,
    dims: Mapping[str, int] | None,
    seed: int,
    shelf: Shelf,
    data_root: str | Path | None = None,
) -> tuple[Imported, str]:
    if isinstance(fn, str | Path) or type(fn).__name__ == "OnnxModel":
        if kwargs or not _is_empty(frozen):
            raise UsageError(
                "an ONNX model takes neither keyword arguments nor frozen=",
                hint="pass its inputs in order; its initializers are frozen anyway",
            )
        onnx = _onnx()
        if isinstance(fn, onnx.OnnxModel):
            if dims or data_root is not None:
                raise UsageError("this model is loaded already", hint="give the option to load_model, or give its path")
            return onnx.import_model(shelf.model(fn), *args, seed=seed), fn.name
        assert isinstance(fn, str | Path)
        placed = shelf.model(onnx.load_model(fn, dims=dims, data_root=data_root, own=False, like=args))
        return onnx.import_model(placed, *args, seed=seed), Path(fn).name
    if not callable(fn):
        raise ArgumentError(f"a {type(fn).__name__} is neither a function nor a path", hint="pass f itself, not f(x)")
    if data_root is not None:
        raise UsageError("data_root is for ONNX models that are files")
    if dims:
        raise UsageError("dims is for ONNX models", hint="the shapes of a function are those of its example arguments")
    return import_function(fn, args, kwargs, frozen=frozen), getattr(fn, "__name__", type(fn).__name__)


def _onnx():
    need("onnx", "an ONNX model")
    from superopt.frontends.onnx import frontend  # late: an optional dependency

    return frontend


def _is_empty(frozen: Any) -> bool:
    return isinstance(frozen, tuple | list | set | frozenset) and not frozen


def _with_examples(imported: Imported, seed: int) -> Imported:
    """Random values where only a type was given."""
    rng = np.random.default_rng(seed)

    def value(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return x
        if np.issubdtype(x.dtype, np.integer) or x.dtype == bool:
            return np.zeros(x.shape, x.dtype)
        return rng.standard_normal(x.shape).astype(x.dtype)

    try:
        return replace(imported, examples=tuple(map(value, imported.examples)))
    except MemoryError as error:
        raise ArgumentError(f"example values for the arguments do not fit into memory: {error}") from error


def _check_options(seed: Any, objective: Any, store: Any, kwargs: Any, max_prepared_bytes: Any, progress: Any) -> None:
    """Options of other types than `optimize` states, before anything depends on them.

    Raises:
        UsageError: there is one.
    """
    whole = "a whole number of at least 0"
    wrong = {
        "seed": (seed, _is_count(seed), whole),
        "objective": (objective, objective is None or callable(getattr(objective, "price", None)), "an Objective"),
        "store": (store, isinstance(store, bool | str | Path), "True, False or the path of a file"),
        "kwargs": (kwargs, kwargs is None or isinstance(kwargs, Mapping), "a mapping of keyword arguments"),
        "max_prepared_bytes": (max_prepared_bytes, max_prepared_bytes is None or _is_count(max_prepared_bytes), whole),
        "progress": (progress, progress is None or callable(progress), "a function of a line"),
    }
    for name, (value, right, what) in wrong.items():
        if not right:
            raise UsageError(f"{name} is {shown(value)}", hint=f"it has to be {what}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 0


def _open_store(store: bool | str | Path) -> Store | None:
    if store is False:
        return None
    return Store() if store is True else Store(store)


class _Clock:
    """Wall time per stage, and the lines that a terminal shows."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.stages: list[StageTime] = []
        self.begin_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call."""
        return time.monotonic() - self.begin_s

    def say(self, line: str) -> None:
        if self.progress is not None:
            self.progress(line)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.stages.append(StageTime(name, seconds))
        self.say(f"{name}: {seconds:.1f} s")


def optimize_target(target: str, *, random_weights: bool = False, seed: int = 0, **options: Any) -> Optimized:
    """Optimise what the command line names: an ONNX file, or `FILE.py:NAME`, a maker of (function, arguments).

    `NAME()` returns a function and a tuple of example arguments, and may return the frozen positions as a third value.

    Raises:
        UsageError: the target is neither.
        ModelFileError: the model cannot be read.
    """
    path, colon, maker = target.rpartition(":")
    if target.endswith(".py"):
        raise UsageError(
            f"{target} names no function", hint=f"write {target}:NAME; NAME() returns (function, arguments)"
        )
    if colon and path.endswith(".py"):
        if random_weights:
            raise UsageError("random weights are for ONNX models", hint="NAME() can return random arguments")
        fn, args, frozen = _made_by(Path(path), maker)
        return optimize(fn, *args, frozen=frozen, seed=seed, **options)
    if random_weights:
        onnx = _onnx()
        loading = {name: options.pop(name, None) for name in ("dims", "data_root")}
        model = onnx.randomize_weights(onnx.load_model(target, **loading), seed)
        return optimize(model, seed=seed, **options)
    return optimize(target, seed=seed, **options)


def _made_by(path: Path, maker: str) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
    import runpy  # late: only programs given as a file

    if not path.is_file():
        raise ArgumentError(f"there is no file {path}", hint="write FILE.py:NAME")
    hint = "NAME() returns (function, arguments)"
    try:
        names = runpy.run_path(str(path))
        if not callable(names.get(maker)):
            raise ArgumentError(f"{path} defines no function {maker!r}", hint=hint)
        made = names[maker]()
    except SuperoptError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises is told in one line, with its place
        raise ArgumentError(f"{path} cannot be run: {told(error, str(path))}", hint=hint) from error
    if (
        not isinstance(made, tuple)
        or len(made) not in (2, 3)
        or not callable(made[0])
        or not isinstance(made[1], tuple | list)
    ):
        raise ArgumentError(
            f"{maker}() gives something else than (function, arguments) or (function, arguments, frozen positions)",
            hint="arguments is a tuple of example arguments",
        )
    return made[0], tuple(made[1]), made[2] if len(made) == 3 else ()
