"""Regions of a program tried as kernels of our own, each by itself, in worker processes.

XLA's version of a region is the reference and the kernel is the candidate; both are built in all processes at once,
checked, and timed interleaved, in one process at a time (`superopt.choose.trial_worker`).  A kernel that crashes,
hangs or computes something else fails there, where nobody is hurt; the process of the user only ever runs kernels that
have come through.  Equal regions are tried once, those that matter most first, as many as the time allows.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.model.joint import Joint
from superopt.arrays.bundles import scratch_folder
from superopt.backends.protocol import Backend, for_device
from superopt.ir.counters import Cost
from superopt.ir.graph import Graph
from superopt.ir.text import print_graph
from superopt.kernels.choose.partition import cost_of, work
from superopt.kernels.choose.regions import Region
from superopt.kernels.schedule.trace import trace as frozen_trace
from superopt.machine.facts import usable_cores
from superopt.machine.speedup import Speedup
from superopt.measure import Worker
from superopt.measure.kernels import XLA
from superopt.measure.process import ProcessLimits, WorkerDiedError
from superopt.measure.stats import paired_ratio
from superopt.report.data import NativeKernel

_ROUNDS, _SAMPLE_S, _TIMING_S = 9, 0.002, 0.1
_FLOPS, _BYTES = 1.5e11, 2e10  # per second; orders regions before anything is known of them
_MOST_PROCESSES, _BATCH = 4, 5  # regions of a batch, per process: what is built before the clock is looked at
_LIMITS = ProcessLimits(silence_s=60.0)
_MODULE = "superopt.choose.trial_worker"
Trace = tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a region.

    Attributes:
        name: its ops and types.
        kind: contraction, window, rows, map or movement.
        cost: of one run.
        trace: the schedule; None for the default one.
        xla_s: seconds of XLA's version of the region; None where nothing was timed.
        own_s: seconds of the kernel.
        ratio: of the two, with its interval; None where there is none.
        failure: why there is no timing, or why the kernel cannot be used.
        candidates: schedules that a search timed.
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

    @property
    def gain(self) -> float:
        """XLA's time over the kernel's by the fastest samples of both; 0 for a kernel that cannot be used."""
        return 0.0 if self.xla_s is None or self.own_s is None or self.failure else self.xla_s / self.own_s


class TrialPool:
    """The processes that try regions, started at the first trial; a context manager.

    Attributes:
        seed: of the values that kernels are checked and timed with.
        backend: that makes kernels; the one for the default device of JAX where none is given.
    """

    def __init__(self, seed: int = 0, processes: int | None = None, backend: Backend | None = None) -> None:
        self.seed, self.backend = seed, backend or for_device()
        count = processes or min(_MOST_PROCESSES, usable_cores())
        self._stack = ExitStack()
        self._workers = [
            _Process(self._stack.enter_context(Worker(_LIMITS, inline=True, module=_MODULE)), self.backend.name)
            for _ in range(count)
        ]
        self._home: dict[Graph, _Process] = {}
        self._starting: list[Future[None]] = []
        self._executor = self._stack.enter_context(ThreadPoolExecutor(count))

    @property
    def batch(self) -> int:
        """How many regions are best tried at a time."""
        return _BATCH * len(self._workers)

    def start(self) -> None:
        """Start the processes, without waiting for them."""
        self._starting += [self._executor.submit(process.start) for process in self._workers]

    def try_all(self, jobs: Sequence[tuple[Region, Trace]]) -> list[Trial]:
        """Each region with a schedule, the default one for None, against XLA."""
        found: dict[int, Trial] = {}
        for process, share, traces in self._built(jobs):
            timings = process.time([i for i, trace in traces.items() if not isinstance(trace, str)])
            for job in share:
                found[job.number] = _trial(job.region, traces[job.number], timings.get(job.number))
        return [found[number] for number in range(len(jobs))]

    def make_all(self, jobs: Sequence[tuple[Region, Trace]]) -> list[Trace | str]:
        """Compile the kernel of each region and run it between bands; its schedule, or why there is none.

        Objects lie where every process finds them, so a process takes the next region whenever it is free.
        """
        wait(self._starting)
        left = iter([_Job(number, region, trace) for number, (region, trace) in enumerate(jobs)])
        turn = threading.Lock()

        def drained(process: _Process) -> dict[int, Any]:
            found: dict[int, Any] = {}
            while True:
                with turn:
                    job = next(left, None)
                if job is None:
                    return found
                found |= process.build([job], self.seed, "make")

        found: dict[int, Any] = {}
        for part in self._executor.map(drained, self._workers):
            found |= part
        return [found[number] for number in range(len(jobs))]

    def _built(self, jobs: Sequence[tuple[Region, Trace]]) -> list[tuple[_Process, list[_Job], dict[int, Any]]]:
        """The jobs of every process, and what became of them."""
        wait(self._starting)
        shares: dict[int, list[_Job]] = {k: [] for k in range(len(self._workers))}
        for number, (region, trace) in enumerate(jobs):
            shares[self._place(region.graph, shares)].append(_Job(number, region, trace))
        pairs = [(self._workers[k], share) for k, share in shares.items() if share]
        built = self._executor.map(lambda pair: pair[0].build(pair[1], self.seed), pairs)
        return [(process, share, traces) for (process, share), traces in zip(pairs, built, strict=True)]

    def _place(self, graph: Graph, shares: Mapping[int, Sequence[_Job]]) -> int:
        """The process that knows the region, else the one with least to do."""
        known = self._home.get(graph)
        if known is None:
            known = self._home[graph] = self._workers[min(shares, key=lambda k: len(shares[k]))]
        return self._workers.index(known)

    def close(self) -> None:
        """End the processes."""
        self._stack.close()

    def __enter__(self) -> TrialPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Job:
    number: int
    region: Region
    trace: Trace


@dataclass(slots=True)
class _Process:
    """A worker that builds and times kernels of a backend."""

    worker: Worker
    backend: str

    def start(self) -> None:
        """Have the process load what it needs; one that dies of it is started again when there is work."""
        with suppress(WorkerDiedError):
            self.worker.ready()

    def build(self, jobs: Sequence[_Job], seed: int, way: str = "build") -> dict[int, Any]:
        """By number the schedule of what was built, and of what was not, why (a text).

        What a dying process had built goes with it and is built again, without the job that killed it.
        """
        found: dict[int, Any] = {}
        while True:
            left = [job for job in jobs if not isinstance(found.get(job.number), str)]
            rows = [[job.number, print_graph(job.region.graph), job.trace] for job in left]
            busy = -1
            with scratch_folder(0) as folder:
                path = Path(folder) / "jobs.json"
                path.write_text(json.dumps(rows), encoding="utf-8")
                request = {"request": way, "path": str(path), "seed": seed, "backend": self.backend}
                try:
                    for event in self.worker.request(request):
                        busy = event["index"]
                        if event["event"] != "begin":
                            built = event["event"] == "built"
                            found[busy] = frozen_trace(event["trace"]) if built else event["detail"]
                    return found
                except WorkerDiedError as death:
                    if busy < 0:  # it did not even start
                        return {job.number: str(death) for job in jobs}
                    found[busy] = str(death)

    def time(self, numbers: Sequence[int]) -> dict[int, Any]:
        """By number the samples of what was built, or why there are none."""
        found: dict[int, Any] = {}
        busy = -1
        request = {
            "request": "time", "indices": list(numbers), "rounds": _ROUNDS, "sample_s": _SAMPLE_S, "budget_s": _TIMING_S
        }  # fmt: skip
        try:
            for event in self.worker.request(request) if numbers else ():
                busy = event["index"]
                if event["event"] == "timed":
                    found[busy] = event["xla_s"], event["own_s"]
        except WorkerDiedError as death:
            found[busy] = str(death)
        return found


def _trial(region: Region, trace: Any, timing: Any) -> Trial:
    name, kind, cost = str(region), region.kind, cost_of(region)
    if isinstance(trace, str):
        return Trial(name, kind, cost, failure=trace)
    if timing is None or isinstance(timing, str):
        return Trial(name, kind, cost, trace, failure=timing or "not timed: another kernel ended the process")
    xla, own = timing
    return Trial(name, kind, cost, trace, min(xla), min(own), paired_ratio(xla, own))


def estimate(region: Region) -> float:
    """Seconds by a rough roofline, to order regions."""
    cost = cost_of(region)
    return max(work(cost) / _FLOPS, (cost.read_bytes + cost.write_bytes) / _BYTES)


def try_regions(
    regions: Sequence[Region],
    pool: TrialPool,
    *,
    budget_s: float,
    most: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[Graph, Trial]:
    """Try every distinct region against XLA, those that say most first; those beyond the budget are left out.

    Args:
        most: leave out all but so many.
    """
    found: dict[Graph, Trial] = {}
    weight: dict[Graph, float] = {}
    example: dict[Graph, Region] = {}
    for region in regions:
        weight[region.graph] = weight.get(region.graph, 0.0) + estimate(region)
        example[region.graph] = region
    order = sorted(weight, key=lambda g: -weight[g])[:most]
    start = begin = time.monotonic()
    last_s = 0.0
    for batch in _batches(order, pool.batch):
        begin, before = time.monotonic(), begin
        last_s = (begin - before) / pool.batch * len(batch)
        if begin - start + last_s > budget_s:
            break
        for graph, trial in zip(batch, pool.try_all([(example[g], None) for g in batch]), strict=True):
            found[graph] = trial
            progress(f"{trial.name}: {trial.failure or f'{trial.gain:.2f}x'}")
    return found


def _batches(order: Sequence[Graph], size: int) -> Iterator[Sequence[Graph]]:
    for first in range(0, len(order), size):
        yield order[first : first + size]


def report_rows(
    regions: Sequence[Region], chosen: Mapping[Graph, str], tried: Mapping[Graph, Trial], model: Joint | None = None
) -> tuple[NativeKernel, ...]:
    """The regions of a form for the report, equal ones together, those that take longest first.

    Args:
        regions: of the form.
        chosen: those that are kernels -> the backend of each.
        tried: what is known of them.
        model: prices them.
    """
    rows: list[NativeKernel] = []
    graphs = list(dict.fromkeys(region.graph for region in regions))
    prices = {} if model is None or not graphs else model.by_backend(graphs)
    predicted_ms = {
        name: {g: 1e3 * s for g, s in zip(graphs, price.tolist(), strict=True) if s < math.inf}
        for name, price in prices.items()
    }
    own = "" if model is None else model.own_name
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
                backend=chosen.get(graph, XLA),
                xla_ms=None if trial.xla_s is None else 1e3 * trial.xla_s,
                own_ms=None if trial.own_s is None else 1e3 * trial.own_s,
                ratio=trial.ratio,
                flops=trial.cost.flops,
                failure=trial.failure,
                schedule=_schedule(trial),
                predicted_ms=predicted_ms.get(own, {}).get(graph),
                by_xla_ms=predicted_ms.get(XLA, {}).get(graph),
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.count * (r.xla_ms or r.by_xla_ms or 0.0)))


def _schedule(trial: Trial) -> str:
    """Where the schedule of a kernel comes from."""
    if trial.searched:
        return f"best of {trial.candidates} searched"
    return f"default, none of {trial.candidates} searched is better" if trial.candidates else "default"
