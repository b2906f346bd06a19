"""Kernels of regions, made in worker processes (`superopt.choose.trial_worker`), with the result for each.

A kernel that crashes, hangs or writes outside of its buffers fails there, where nobody is hurt; the process of the user
only ever runs kernels that have come through.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from costmodel.model.joint import Joint
from costmodel.model.objective import outside_of
from superopt.arrays.bundles import scratch_folder
from superopt.backends.protocol import Backend, for_device
from superopt.ir.counters import Cost
from superopt.ir.graph import Graph
from superopt.ir.text import print_graph
from superopt.kernels.choose.regions import Region, key_of
from superopt.kernels.schedule.trace import trace as frozen_trace
from superopt.machine.background import BackgroundCall, TimeOverError
from superopt.machine.deadline import Deadline
from superopt.machine.facts import usable_cores
from superopt.machine.speedup import Speedup
from superopt.measure import Worker
from superopt.measure.kernels import XLA
from superopt.measure.process import ONE_KERNEL, WorkerDiedError
from superopt.report.data import NativeKernel

_WAIT_S = 0.3  # as long as most kernels take
MOST_PROCESSES = 4  # that make kernels at once: one that has made some takes 0.28 GB
_MODULE = "superopt.choose.trial_worker"
Trace = tuple[Any, ...] | None


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
    trace: Trace = None
    xla_s: float | None = None
    own_s: float | None = None
    ratio: Speedup | None = None
    failure: str = ""
    candidates: int = 0
    searched: bool = False


class TrialPool:
    """The processes that make kernels, started when there is one to be made; a context manager.

    Attributes:
        backend: the backend that makes kernels; the one for the default device of JAX where none is given.
    """

    def __init__(self, processes: int | None = None, backend: Backend | None = None) -> None:
        self.backend = backend or for_device()
        count = processes or min(MOST_PROCESSES, usable_cores())
        self._stack = ExitStack()
        self._workers = [
            _Process(self._stack.enter_context(Worker(ONE_KERNEL, inline=True, module=_MODULE)), self.backend.name)
            for _ in range(count)
        ]
        self._starting: list[Future[None]] = []
        self._executor = self._stack.enter_context(ThreadPoolExecutor(count))

    @property
    def batch(self) -> int:
        """Number of regions that are made at a time."""
        return len(self._workers)

    @property
    def spent_s(self) -> float:
        """Processor time that all kernels took to make, whatever else computed meanwhile."""
        return sum(process.spent_s for process in self._workers)

    def start(self) -> None:
        """Start the processes, without waiting for them."""
        self._starting += [self._executor.submit(process.start) for process in self._workers]

    def ready(self, end_s: float = math.inf) -> bool:
        """Wait for the starting processes until this instant; return whether they have started."""
        left_s = None if end_s == math.inf else Deadline(end_s).left_s
        return not wait(self._starting, left_s).not_done

    def make_all(self, jobs: Sequence[tuple[Graph, Trace]], end_s: float = math.inf) -> list[Trace | str]:
        """Compile the kernel of each region and run it between guard bands; return its schedule, or why it failed.

        Objects lie where every process finds them, so a process takes the next region whenever it is free.  Jobs that
        have not ended at the instant `end_s` are ended.
        """
        if not self.ready(end_s):
            return ["its process had not started when the time was over"] * len(jobs)
        every = [_Job(number, *job, end_s=end_s) for number, job in enumerate(jobs)]
        found = self._done(every, self._workers, lambda: False)
        return [found[number] for number in range(len(jobs))]

    @contextmanager
    def meanwhile(
        self, regions: Sequence[Graph], made: Sequence[tuple[Graph, Trace]] = ()
    ) -> Iterator[dict[Graph, Trace | str]]:
        """Make as many of these kernels as there is time for while this process computes, leaving it a core.

        Then validate the machine code of those that were made; the verdicts are kept on disk.  The mapping that is
        yielded has, after the end of the block, the schedule of each kernel that was made, or why there is none.  Jobs
        begun by then are waited for, but not long.
        """
        found: dict[Graph, Trace | str] = {}
        jobs = [_Job(number, region, None) for number, region in enumerate(regions)]
        jobs += [_Job(len(jobs) + number, *one, "validate") for number, one in enumerate(made)]
        some = self._workers[: usable_cores() - 1] if jobs else []
        halted = threading.Event()
        making = BackgroundCall(lambda: self._done(jobs, some, halted.is_set))
        try:
            yield found
        finally:
            halted.set()
        with suppress(TimeOverError):  # a process that is still at it is waited for by the next that needs it
            told = making.result(Deadline.within(_WAIT_S).end_s)
            found |= {jobs[number].region: said for number, said in told.items() if number < len(regions)}

    def _done(
        self, jobs: Sequence[_Job], workers: Sequence[_Process], halted: Callable[[], bool]
    ) -> dict[int, Trace | str]:
        """Outcome of each job by its number, run side by side in these processes; none begins once `halted()`."""
        self.ready()
        left = iter(jobs)
        turn = threading.Lock()

        def drained(process: _Process) -> dict[int, Trace | str]:
            found: dict[int, Trace | str] = {}
            while True:
                with turn:
                    job = None if halted() else next(left, None)
                if job is None:
                    return found
                found[job.number] = process.do(job)

        found: dict[int, Trace | str] = {}
        for part in self._executor.map(drained, workers):
            found |= part
        return found

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for process in self._workers:
            process.worker.end()
        self._stack.close()

    def __enter__(self) -> TrialPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Job:
    number: int
    region: Graph
    trace: Trace
    request: Literal["make", "validate"] = "make"
    end_s: float = math.inf


@dataclass(slots=True)
class _Process:
    """A worker that makes a backend's kernels; `spent_s` is processor time of those that did not kill it."""

    worker: Worker
    backend: str
    spent_s: float = 0.0
    turn: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Have the process load its modules; if it dies of that it is started again when there is work."""
        with suppress(WorkerDiedError):
            self.worker.ready()

    def do(self, job: _Job) -> Trace | str:
        """The schedule of the kernel that was made or whose code was validated; else the reason why it failed."""
        with scratch_folder(0) as folder:
            path = Path(folder) / "job.json"
            path.write_text(json.dumps([print_graph(job.region), job.trace]), encoding="utf-8")
            request = {"request": job.request, "path": str(path), "backend": self.backend}
            try:
                with self.turn:
                    (event,) = self.worker.request(request, job.end_s)
            except WorkerDiedError as death:
                return str(death)
        if job.request == "make":
            self.spent_s += event["seconds"]
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
    graphs = list(dict.fromkeys(region.graph for region in regions))
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
    for graph, n in Counter(region.graph for region in regions).items():
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
