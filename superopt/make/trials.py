"""Kernels of regions, made in worker processes (`superopt.make.making`), with the result for each.

A kernel that crashes, hangs or writes outside of its buffers fails there, where nobody is hurt; the process of the user
only ever runs kernels that have come through.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from costmodel.model.joint import Joint
from costmodel.model.objective import outside_of
from superopt.arrays.bundles import scratch_folder
from superopt.backends.made import take_over
from superopt.backends.protocol import Backend, for_device
from superopt.backends.protocol import OptionalTrace as OptionalTrace
from superopt.ir.counters import Cost
from superopt.ir.graph import Graph
from superopt.ir.text import print_graph
from superopt.kernels.choose.regions import Region, key_of, runs_of
from superopt.kernels.schedule.trace import trace as frozen_trace
from superopt.machine.background import BackgroundCall, TimeOverError
from superopt.machine.deadline import Deadline
from superopt.machine.facts import usable_cores
from superopt.machine.speedup import Speedup
from superopt.measure.kernels import XLA
from superopt.report.data import NativeKernel
from superopt.workshop.job import FILES, Event, Failure, Job, JobKind
from superopt.workshop.process import MOST_PROCESSES, ONE_KERNEL
from superopt.workshop.scheduler import LOCAL, Executor, Workshop, alike

_WAIT_S = 0.3  # as long as most kernels take
_JOBS = "superopt.make.making"
_Wanted = tuple[JobKind, Graph, OptionalTrace]


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of making a region's kernel, and of timing it.

    Attributes:
        name: ops and types of the region.
        kind: contraction, window, rows, map or movement.
        cost: operations and bytes of one run.
        trace: the schedule; None for the default one.
        xla_s: seconds of XLA's version of the region; None where nothing was timed.
        own_s: seconds of our kernel; None where nothing was timed.
        ratio: XLA's time over the kernel's, with its interval; None where there is none.
        failure: the reason why there is no timing, or why the kernel cannot be used.
        candidates: number of schedules that a search timed.
        searched: whether the schedule is one that the search found.
    """

    name: str
    kind: str
    cost: Cost
    trace: OptionalTrace = None
    xla_s: float | None = None
    own_s: float | None = None
    ratio: Speedup | None = None
    failure: str = ""
    candidates: int = 0
    searched: bool = False


class TrialPool:
    """The processes that make kernels, started when there is one to be made; a context manager.

    Those of other machines hand over what they make: objects, and verdicts on them, are stored here and shared.

    Attributes:
        backend: the backend that makes kernels; the one for the default device of JAX where none is given.
        spent_s: processor time that all kernels took to make, whatever else computed meanwhile.
    """

    def __init__(
        self, processes: int | None = None, backend: Backend | None = None, executor: Executor = LOCAL
    ) -> None:
        self.backend = backend or for_device()
        count = processes or min(MOST_PROCESSES, usable_cores())
        self._executor = executor
        self._workshop = Workshop(alike(executor.seats(count, ONE_KERNEL, inline=True, loads=f"{_JOBS}:load")))
        self.spent_s = 0.0

    @property
    def batch(self) -> int:
        """Number of regions that are made at a time."""
        return len(self._workshop.seats)

    @property
    def is_here(self) -> bool:
        """Whether the processes are of this machine, and so take cores from this one."""
        return self._workshop.is_here

    def start(self) -> None:
        """Start the processes, without waiting for them."""
        self._workshop.start()

    def ready(self, end_s: float = math.inf) -> bool:
        """Wait for the starting processes until this instant; return whether they have started."""
        return self._workshop.ready(end_s)

    def make_all(
        self, regions: Sequence[tuple[Graph, OptionalTrace]], end_s: float = math.inf
    ) -> list[OptionalTrace | str]:
        """Compile the kernel of each region and run it between guard bands; return its schedule, or why it failed.

        Objects lie where every process finds them, so a process takes the next region whenever it is free.  Kernels
        that are not made at the instant `end_s` are given up.
        """
        if not self.ready(end_s):
            return ["its process had not started when the time was over"] * len(regions)
        done = self._done([("make", *one) for one in regions], end_s)
        self._count(done.values())
        return [_outcome(done[n]) for n in range(len(regions))]

    @contextmanager
    def meanwhile(
        self, regions: Sequence[Graph], made: Sequence[tuple[Graph, OptionalTrace]] = ()
    ) -> Iterator[dict[Graph, OptionalTrace | str]]:
        """Make as many of these kernels as there is time for while this process computes, leaving it a core here.

        Then validate the machine code of those that were made; the verdicts are kept on disk.  The mapping that is
        yielded has, after the end of the block, the schedule of each kernel that was made, or why there is none.  Jobs
        begun by then are waited for, but not long.
        """
        outcomes: dict[Graph, OptionalTrace | str] = {}
        halted = threading.Event()
        wanted: list[_Wanted] = []
        for region in regions:
            wanted.append(("make", region, None))
        for region, trace in made:
            wanted.append(("validate", region, trace))

        def work() -> dict[int, list[Event] | Failure]:
            most = usable_cores() - 1 if self.is_here else self.batch
            return self._done(wanted, halted=halted.is_set, most=most) if wanted and most else {}

        making = BackgroundCall(work)
        try:
            yield outcomes
        finally:
            halted.set()
        with suppress(TimeOverError):  # a process that is still at it is waited for by the next that needs it
            done = making.result(Deadline.within(_WAIT_S).end_s)
            kernels = {n: result for n, result in done.items() if n < len(regions)}
            self._count(kernels.values())
            outcomes |= {regions[n]: _outcome(result) for n, result in kernels.items()}

    def _done(
        self,
        wanted: Sequence[_Wanted],
        end_s: float = math.inf,
        *,
        halted: Callable[[], bool] = lambda: False,
        most: int | None = None,
    ) -> dict[int, list[Event] | Failure]:
        """Do jobs, as `Workshop.done` does; store what they hand over, and share it with other hosts."""
        with scratch_folder(0) as folder, scratch_folder(0) as into:
            jobs = [self._job(*one, folder, into, n) for n, one in enumerate(wanted)]
            done = self._workshop.done(jobs, end_s, halted=halted, most=most)
            ended = [result[0] for result in done.values() if not isinstance(result, Failure)]
            files = {name: (Path(into) / name).read_bytes() for event in ended for name in event.get(FILES, ())}
        if files:
            take_over(files)
            self._executor.share(f"{_JOBS}:take", files)
        return done

    def _job(self, kind: JobKind, region: Graph, trace: OptionalTrace, folder: str, into: str, number: int) -> Job:
        """The job that makes or validates the kernel of a region, described in a file of the folder."""
        path = Path(folder) / f"{number}.json"
        path.write_text(json.dumps([print_graph(region), trace]), encoding="utf-8")
        return Job(kind, f"{_JOBS}:{kind}", {"backend": self.backend.name}, {"path": str(path)}, into)

    def _count(self, results: Iterable[list[Event] | Failure]) -> None:
        self.spent_s += sum(result[0]["seconds"] for result in results if not isinstance(result, Failure))

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        self._workshop.close()

    def __enter__(self) -> TrialPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _outcome(result: list[Event] | Failure) -> OptionalTrace | str:
    """The schedule of the kernel that was made or whose code was validated; else the reason why it failed."""
    if isinstance(result, Failure):
        return f"{result.cause}: {result.detail}"
    (event,) = result
    return frozen_trace(event["trace"]) if event["event"] == "built" else event["detail"]


def report_rows(
    regions: Sequence[Region],
    chosen: Collection[Graph],
    tried: Mapping[Graph, Trial],
    backend: str,
    model: Joint | None = None,
) -> tuple[NativeKernel, ...]:
    """The regions of a form for the report, equal ones together, those that take longest first.

    Args:
        regions: all regions of the form.
        chosen: those that are kernels.
        tried: results of making and timing them.
        backend: name of the backend that makes kernels.
        model: prices them.
    """
    rows: list[NativeKernel] = []
    runs = runs_of(regions)
    graphs = list(runs)
    known = {} if model is None or not graphs else model.by_backend(graphs, timed=False)
    predicted_ms = {
        name: {g: 1e3 * s for g, s in zip(graphs, seconds.tolist(), strict=True) if s < math.inf}
        for name, seconds in known.items()
    }
    unlike = None if model is None or model.own is None or not graphs else outside_of(model.own.model, graphs)
    outside = {} if unlike is None else dict(zip(graphs, unlike.tolist(), strict=True))
    timed_ms = {
        name: {g: 1e3 * s for g in graphs if (s := timed.seconds.get(g.outputs[0], math.inf)) < math.inf}
        for name, timed in ({} if model is None else model.models).items()
    }
    for graph, n in runs.items():
        trial = tried.get(graph)
        if trial is None:
            continue
        rows.append(
            NativeKernel(
                name=trial.name,
                kind=trial.kind,
                count=n,
                used=graph in chosen,
                backend=backend,
                xla_ms=None if trial.xla_s is None else 1e3 * trial.xla_s,
                own_ms=None if trial.own_s is None else 1e3 * trial.own_s,
                ratio=trial.ratio,
                flops=trial.cost.flops,
                failure=trial.failure,
                schedule=_schedule(trial),
                predicted_ms=predicted_ms.get(backend, {}).get(graph),
                timed_ms=timed_ms.get(backend, {}).get(graph),
                by_xla_ms=predicted_ms.get(XLA, {}).get(graph),
                by_xla_timed_ms=timed_ms.get(XLA, {}).get(graph),
                outside=outside.get(graph),
                key=key_of(graph),
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.count * (r.xla_ms or r.by_xla_timed_ms or r.by_xla_ms or 0.0)))


def _schedule(trial: Trial) -> str:
    """How the schedule of a kernel was found, in words."""
    if trial.searched:
        return f"best of {trial.candidates} searched"
    return f"default, none of {trial.candidates} searched is better" if trial.candidates else "default"
