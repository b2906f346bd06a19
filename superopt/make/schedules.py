"""Schedules searched for the regions of a program that take longest, in the stage's time.

The largest regions come first, and each gets time in proportion to its share of the program's time; only as many are
searched as can get enough time to find something.  A schedule that the search finds faster than the default one is
proved, and run between guard bands of memory.  Then it is timed in rounds with the default one and with XLA's version
(`superopt.contest`).  Where it fails there, or is not faster beyond doubt, the default schedule stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from superopt.arrays.bundles import random_values
from superopt.backends.mixed import whole_kernel
from superopt.backends.protocol import Backend
from superopt.candidates.candidate import Candidate, original_candidate
from superopt.contest.contest import duel
from superopt.contest.rounds import ORIGINAL, Rounds, Series, Subject
from superopt.errors import InputError
from superopt.explore.request import Request
from superopt.ir.graph import Graph
from superopt.ir.program import frozen_bytes, original_program
from superopt.kernels.choose.regions import Region, runs_of
from superopt.kernels.schedule.trace import trace as frozen_trace
from superopt.machine.budget import LEAST_S, WORTH
from superopt.machine.deadline import Deadline
from superopt.machine.facts import usable_cores
from superopt.make.trials import OptionalTrace, Trial, TrialPool
from superopt.schedules.tune import ScheduleSearch, TunedSchedule, builders
from superopt.store import Store
from superopt.workshop.job import JobWorker, WorkerDiedError, resolve
from superopt.workshop.process import MOST_PROCESSES, ended_by_interrupts
from superopt.workshop.scheduler import LOCAL, Executor, Workers, again_where_lost
from verifier.schedules.ledger import ScheduleLedger


@dataclass(frozen=True, slots=True)
class ScheduleStage:
    """Context of a search of schedules: processes, seed, store and limits.

    Attributes:
        pool: processes that make kernels.
        worker: the process that times them.
        most: largest number of candidates to time for a region.
        executor: source of the workers that build and time candidates.
    """

    pool: TrialPool
    worker: JobWorker
    seed: int = 0
    store: Store | None = None
    say: Callable[[str], None] = lambda line: None
    most: int = 1_000_000
    executor: Executor = LOCAL

    def searched(
        self, regions: Sequence[Region], made: Mapping[Graph, Trial], seconds: Mapping[Graph, float], deadline: Deadline
    ) -> dict[Graph, Trial]:
        """The kernels of a program, with a searched schedule where that is faster than the default one.

        Args:
            regions: regions of the program.
            made: their kernels.
            seconds: estimated seconds of one run of each.
            deadline: the end of the stage, the start of processes included.
        """
        kernels = dict(made)
        example = {r.graph: r for r in regions}
        weights = sum(frozen_bytes(r.graph) for r in regions)
        cost = {g: n * seconds[g] for g, n in runs_of(regions).items() if g in made}
        with ExitStack() as stack:
            every = builders(Workers(min(MOST_PROCESSES, usable_cores()), self.executor))
            processes = [stack.enter_context(worker) for worker in every]
            with ThreadPoolExecutor(len(processes)) as executor, ended_by_interrupts(processes):
                list(executor.map(lambda worker: again_where_lost(worker.ready), processes))
            count = int(deadline.left_s / LEAST_S)
            order = sorted(cost, key=lambda g: -cost[g])[:count]
            for place, graph in enumerate(order):
                left_s = deadline.left_s
                if left_s < LEAST_S:
                    break
                share = cost[graph] / max(sum(cost[g] for g in order[place:]), 1e-12)
                how = ScheduleSearch(
                    max(LEAST_S, share * left_s), usable_cores(), seed=self.seed, most=self.most, weights=weights,
                    judged=True,
                )  # fmt: skip
                try:
                    kernels[graph] = self._tuned(example[graph], kernels[graph], how, processes, deadline)
                except (InputError, WorkerDiedError) as error:
                    self.say(f"{kernels[graph].name}: no search of schedules: {error}")
        return kernels

    def _tuned(
        self, region: Region, default: Trial, how: ScheduleSearch, processes: Sequence[JobWorker], deadline: Deadline
    ) -> Trial:
        """The kernel of a region with the schedule that a search of its own finds, else the default one."""
        tune = resolve(self.pool.backend.tuner)
        tuned: TunedSchedule = tune(region.graph, how, processes=processes, store=self.store)
        default = replace(default, candidates=tuned.candidates)
        self.say(
            f"{default.name}: {tuned.candidates} schedules, {1e6 * tuned.seconds:.4g} us;"
            f" the default one {1e6 * tuned.default_seconds:.4g} us"
        )
        if WORTH * tuned.seconds < tuned.default_seconds:
            return self._better(region, default, frozen_trace(tuned.trace), deadline)
        return default

    def _better(self, region: Region, default: Trial, trace: tuple[object, ...], deadline: Deadline) -> Trial:
        """The kernel with a searched schedule where it is proved and faster, else the default one."""
        if not self.pool.backend.prove(region.graph, trace, ScheduleLedger(self.store)).proved:
            return default
        if isinstance(self.pool.make_all([(region.graph, trace)])[0], str):
            return default
        series = self._timed(region.graph, (default.trace, trace), deadline)
        over = series.ratio(1, 0)
        if over is None or over.low <= 1.0:
            return default
        return replace(
            default, trace=trace, searched=True, xla_s=series.median_s(ORIGINAL), own_s=series.median_s(1),
            ratio=series.ratio(1),
        )  # fmt: skip

    def _timed(self, graph: Graph, traces: Sequence[OptionalTrace], deadline: Deadline) -> Series:
        """Rounds of a region with these schedules and of XLA's version, on positive values."""
        program = original_program(graph)
        drawn = random_values({n["name"]: (n.shape, n.dtype) for n in graph.inputs}, self.seed)
        values = {name: x if x.dtype.kind in "biu" else np.abs(x) for name, x in drawn.items()}
        frozen = {n["name"]: values[n["name"]] for n in graph.inputs if n["frozen"]}
        live = [values[n["name"]] for n in program.live_inputs]
        entries = [
            Candidate(
                name=name, program=program, kernels=(whole_kernel(program, graph, trace, self.pool.backend.name),)
            )
            for name, trace in zip(("default", "searched"), traces, strict=True)
        ]
        request = Request(deadline, seed=self.seed)
        subject = Subject(original_candidate(graph), live, frozen)
        with Rounds(subject, request, self.worker, apart=False) as rounds:
            return duel(rounds, entries)


def proved(
    backend: Backend, tried: Mapping[Graph, Trial], store: Store | None, say: Callable[[str], None]
) -> dict[Graph, Trial]:
    """The trials; those of kernels whose schedules are not proved as failed."""
    ledger, verdicts = ScheduleLedger(store), dict(tried)
    for graph, trial in tried.items():
        if not trial.failure:
            verdict = backend.prove(graph, trial.trace, ledger)
            if not verdict.proved:
                say(f"{trial.name}: its schedule is {verdict.status}")
                cause = f"its schedule is {verdict.status}: {verdict.cause}"
                verdicts[graph] = replace(trial, failure=cause[:200])
    return verdicts
