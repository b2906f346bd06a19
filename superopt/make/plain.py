"""Programs whose every region is one of our kernels with its default schedule; the plain candidate is the first.

    own form      Computations that depend on frozen inputs alone are moved to the prepare part.
    images        They are laid out channels last where there are any.
    partition     Every region of the program becomes one kernel.
    default       Each kernel has the schedule that this machine's defaults give it, proved.

Nothing is searched and nothing is timed.  The plain candidate is ready in seconds; it is the baseline that a minute of
search has to beat.  Worker processes compile the kernels and run each once between guard bands of memory, the largest
first; the schedules of those that pass are proved meanwhile.  A kernel that fails gets the next plainer default.  A
region that no default can make, or for which there is no time, is left to XLA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace

from costmodel.model.joint import Joint
from costmodel.model.objective import Roofline
from costmodel.model.weights_file import uncalibrated
from superopt.backends.mixed import prepared_bytes
from superopt.backends.protocol import default_trace
from superopt.candidates.candidate import Candidate, Provenance
from superopt.certify.kernels import was_validated
from superopt.errors import InputError
from superopt.ir.graph import Graph, Node
from superopt.ir.program import Program, frozen_cut, split
from superopt.kernels.choose.partition import cost_of, partition_program, worthwhile
from superopt.kernels.choose.regions import Region, runs_of
from superopt.kernels.choose.relayout import channels_last
from superopt.kernels.choose.specs import KernelSpec, regions_of, specs_of
from superopt.machine.background import BackgroundCall
from superopt.machine.deadline import Deadline, Stopwatch, thread_s
from superopt.machine.facts import usable_cores
from superopt.make.schedules import ScheduleStage, proved
from superopt.make.trials import OptionalTrace, Trial, TrialPool, report_rows
from superopt.report.data import NativeKernel
from superopt.store import Store
from superopt.workshop.job import JobWorker
from superopt.workshop.scheduler import LOCAL, Executor

_ROUGH = Roofline(uncalibrated(), "uncalibrated")  # orders regions before anything is known of them


@dataclass(frozen=True, slots=True)
class _Taken:
    """Processor time of kernels with so many operations in all: to make them in workers, and to prove them here."""

    operations: int = 0
    made_s: float = 0.0
    proved_s: float = 0.0

    def and_more(self, operations: int, made_s: float, proved_s: float) -> _Taken:
        """The sums after further kernels."""
        return _Taken(self.operations + operations, self.made_s + made_s, self.proved_s + proved_s)

    def seconds(self, operations: int, processes: int, here: bool = True) -> float:
        """Estimated seconds to make kernels of `operations` ops in so many worker processes, proofs included.

        Processes of this machine share its cores with the proofs.
        """
        cores = usable_cores() if here else processes + 1
        each_s = max(self.made_s / min(processes, cores), self.proved_s, (self.made_s + self.proved_s) / cores)
        return operations * each_s / max(1, self.operations)


class KernelMaker:
    """Makes the kernels of programs, each distinct region once.

    Attributes:
        backend: compiles the kernels, in the processes of the pool.
        model: predicts times of regions, once it knows our kernels; regions that XLA computes faster are left to XLA.

    Args:
        known: a model for the report's predictions where there is no search, which would bring its own.
        executor: source of the workers that search schedules.
    """

    def __init__(
        self,
        pool: TrialPool,
        store: Store | None = None,
        max_prepared_bytes: int | None = None,
        progress: Callable[[str], None] = lambda line: None,
        known: Joint | None = None,
        executor: Executor = LOCAL,
    ) -> None:
        self._executor = executor
        self._pool, self._store, self._progress = pool, store, progress
        self.backend, self._known = pool.backend, known
        self._most_bytes = max_prepared_bytes
        self._made: dict[Graph, Trial] = {}
        self._searched: dict[str, dict[Graph, Trial]] = {}  # by the program whose schedules were searched
        self.model: Joint | None = None
        self._taken = _Taken()
        self._written = set[Graph]()  # regions whose code is on disk beside those that were made

    def make(self, form: Candidate, deadline: Deadline | None = None) -> Candidate:
        """The program with those of its regions as kernels that the model prefers and that can be made in the time."""
        mine = self.own(form.regions)
        self._compile(mine, deadline or Deadline())
        usable = {r: t.trace for r in mine if (t := self._made.get(r.graph)) is not None and not t.failure}
        chosen = [(region, usable[region]) for region in worthwhile(form.program.hot, usable)]
        kernels = specs_of(form.program.hot, chosen, self.backend.name)
        if not fits(form.name, form.program, kernels, self._most_bytes, self._progress):
            kernels = ()
        return self.predicted(replace(form, kernels=kernels))

    def predicted(self, form: Candidate) -> Candidate:
        """The program with its predicted time, if there is a model."""
        if self.model is None:
            return form
        seconds = self.model.program_s(form.runs, form.chosen, form.apart_s)
        return replace(form, predicted_s=seconds)

    def rows(self, form: Candidate, priced: bool = True) -> tuple[NativeKernel, ...]:
        """The regions of a program for the report, with the model's prices if requested."""
        rows = {**self._made, **self._searched.get(form.form, {})}
        for region in form.regions:
            if region.graph not in rows:
                rows[region.graph] = _made(region, self._why_not(region))
        model = (self.model or self._known) if priced else None
        return report_rows(form.regions, form.chosen, rows, self.backend.name, model)

    def refuse(self, regions: Sequence[Region], cause: str) -> None:
        """Mark the kernels of some regions as unusable."""
        for region in regions:
            made = self._made.get(region.graph) or _made(region, cause)
            self._made[region.graph] = replace(made, failure=cause)
            for searched in self._searched.values():
                searched.pop(region.graph, None)

    def _why_not(self, region: Region) -> str:
        """The reason why a region has no kernel."""
        if self.own([region]):
            return "not made: the time does not suffice"
        if not self.backend.can_run(region.graph):
            return f"{self.backend.name} has no code for it"
        return "no kernel of it could be timed" if self.model and self.model.refused(region.graph) else "faster there"

    def searched(self, form: Candidate, deadline: Deadline, worker: JobWorker, seed: int) -> Candidate | None:
        """The program with searched schedules where these beat the defaults; None where no searched one does.

        Args:
            worker: the process in which kernels are timed.
        """
        if not self.backend.tuner:
            return None
        regions = regions_of(form.program.hot, form.kernels)
        pairs = zip(regions, form.kernels, strict=True)
        made = {r.graph: Trial(str(r), r.kind, cost_of(r), kernel.trace) for r, kernel in pairs}
        stage = ScheduleStage(self._pool, worker, seed, self._store, self._progress, executor=self._executor)
        tried = stage.searched(regions, made, self._seconds(list(made)), deadline)
        if not any(trial.searched for trial in tried.values()):
            return None
        kernels = tuple(
            replace(kernel, trace=tried[region.graph].trace) if tried[region.graph].searched else kernel
            for kernel, region in zip(form.kernels, regions, strict=True)
        )
        if not fits(form.name, form.program, kernels, self._most_bytes, self._progress):
            return None
        searched = replace(form, name=f"{form.name}, schedules searched", kernels=kernels, plain=False, searched=True)
        self._searched[searched.name] = tried
        return self.predicted(searched)

    def _seconds(self, graphs: Sequence[Graph]) -> dict[Graph, float]:
        """Predicted seconds per run of each region; a rough roofline where there is no model of our kernels yet."""
        priced = self.model is not None and self.model.own is not None
        prices = self.model.by_backend(graphs)[self.model.own_name] if self.model and priced else _ROUGH.price(graphs)
        return dict(zip(graphs, prices.tolist(), strict=True))

    def own(self, regions: Sequence[Region]) -> list[Region]:
        """The regions that are to become our kernels."""
        if self.model is None or self.model.own is None:
            return [region for region in regions if self.backend.can_run(region.graph)]
        return [region for region in regions if self.model.is_own(region.graph)]

    def has_made(self, form: Candidate) -> bool:
        """Whether no kernel of a program is left to make."""
        return not self._left(form)

    def seconds_for(self, form: Candidate) -> float:
        """Estimated seconds to make the kernels of a program: processor time per op as of the kernels made so far.

        Processor time is the measure because the plain candidate's kernels are made beside XLA's build of the original
        and take twice as long by the clock.  Those of later forms have the cores to themselves.  The cost of a kernel
        grows with its ops: that of Winograd has sixty and takes ten times as long as the convolution.  Code of kernels
        that were timed, or made during the search, is read from disk in a tenth of that time, which is not counted.
        """
        model, left = self.model, [region for region in self._left(form) if region.graph not in self._written]
        fresh = [region for region in left if model is None or not model.was_made(region.graph)]
        operations = sum(len(region.nodes) for region in fresh)
        return self._taken.seconds(operations, self._pool.batch, self._pool.is_here)

    @contextmanager
    def meanwhile(self, regions: Sequence[Graph]) -> Iterator[None]:
        """Compile regions in the workers while this process computes, the slowest to compile first.

        Then validate the machine code of kernels already made, as is done for the returned program in the end.
        """
        fresh = [g for g in dict.fromkeys(regions) if g not in self._made and g not in self._written]
        usable = [(graph, trial.trace) for graph, trial in self._made.items() if not trial.failure]
        made = [(graph, trace) for graph, trace in usable if not was_validated(self.backend, graph, trace)]
        with self._pool.meanwhile(fresh, made) as outcomes:
            yield
        self._written |= {graph for graph, said in outcomes.items() if not isinstance(said, str)}
        if outcomes:
            self._progress(f"{len(outcomes)} of {len(fresh)} kernels made beside the search")

    def _left(self, form: Candidate) -> list[Region]:
        """The regions whose kernels are still to be made, each once."""
        return list(
            {region.graph: region for region in self.own(form.regions) if region.graph not in self._made}.values()
        )

    def _compile(self, regions: Sequence[Region], deadline: Deadline) -> None:
        """Make the missing kernels, a batch at a time; prove the schedules of one batch while the next is made."""
        count = runs_of(region for region in regions if region.graph not in self._made)
        example = {region.graph: region for region in regions if region.graph in count}
        seconds = self._seconds(list(count))
        order = [example[g] for g in sorted(count, key=lambda g: -count[g] * seconds[g])]
        self._pool.start()
        if not self._pool.ready(deadline.end_s):  # the start of processes is not a time of kernels
            self._progress("no kernels made: their processes had not started when the time was over")
            return
        watch, done, spent_s, proof_s = Stopwatch(), 0, self._pool.spent_s, 0.0
        waiting: dict[Graph, Trial] = {}
        while done < len(order):
            size = max(self._pool.batch, done)  # the clock is looked at whenever twice as much is done
            if done:
                each_s = max(1e-9, watch.elapsed_s / done)
                size = min(size, int(min(len(order), deadline.left_s / each_s)))
            batch = order[done : done + size]
            if not batch:
                break
            jobs = [(region.graph, None) for region in batch]
            making = BackgroundCall(lambda jobs=jobs: self._pool.make_all(jobs, deadline.end_s))
            proof_s += self._prove(waiting)
            waiting = {r.graph: _made(r, outcome) for r, outcome in zip(batch, making.result(), strict=True)}
            done += len(batch)
        proof_s += self._prove(waiting)
        operations = sum(len(region.nodes) for region in order[:done])
        self._taken = self._taken.and_more(operations, self._pool.spent_s - spent_s, proof_s)
        for region in order[:done]:
            if self._made[region.graph].failure and not deadline.is_over:
                self._made[region.graph] = self._plainer(region, self._made[region.graph], deadline)
        if order:
            self._progress(f"{done} of {len(order)} kernels made in {watch.elapsed_s:.1f} s")

    def _prove(self, made: Mapping[Graph, Trial]) -> float:
        """Record kernels, those with proved schedules as usable; return the processor time of the proofs."""
        watch = Stopwatch(thread_s)
        self._made |= proved(self.backend, made, self._store, self._progress)
        return watch.elapsed_s

    def _plainer(self, region: Region, failed: Trial, deadline: Deadline) -> Trial:
        """The kernel with the next plainer default that can be made and is proved; the failed one if there is none.

        None is begun, and what is begun is ended, at the deadline.
        """
        try:
            refused = failed.trace or default_trace(self.backend, region.graph)
            for trace in self.backend.default_traces(region.graph):
                if trace != refused and not deadline.is_over:
                    (outcome,) = self._pool.make_all([(region.graph, trace)], deadline.end_s)
                    made = {region.graph: _made(region, outcome)}
                    trial = proved(self.backend, made, self._store, self._progress)[region.graph]
                    if not trial.failure:
                        return trial
        except InputError:  # no schedule has code here
            pass
        return failed


def fits(
    name: str, program: Program, specs: Sequence[KernelSpec], most_bytes: int | None, say: Callable[[str], None]
) -> bool:
    """Whether the prepared and packed tensors of a program with these kernels keep within the limit."""
    kept = most_bytes is None or not specs or prepared_bytes(program, specs) <= most_bytes
    if not kept:
        say(f"{name}: what kernels pack is more than max_prepared_bytes allows")
    return kept


def own_form(graph: Graph) -> Program:
    """The program as it is, with computations on frozen inputs alone moved to the prepare part."""
    return split(graph, frozen_cut(graph))


def in_regions(name: str, program: Program) -> Candidate:
    """The program with its images channels last, cut into the regions that move or compute anything; no kernel yet."""
    form = Candidate(name=name, program=program, origin=Provenance.OWN_FORM)
    return cut(form, *(channels_last(program) or (program, frozenset[Node]())))


def cut(form: Candidate, program: Program, stored: Set[Node]) -> Candidate:
    """The form with this program, cut into regions at the stored nodes and wherever a cut is unavoidable.

    The regions of bodies of control flow are among them.
    """
    return replace(form, program=program, regions=partition_program(program.hot, stored))


def _made(region: Region, found: OptionalTrace | str) -> Trial:
    name, kind, cost = str(region), region.kind, cost_of(region)
    return Trial(name, kind, cost, failure=found) if isinstance(found, str) else Trial(name, kind, cost, found)
