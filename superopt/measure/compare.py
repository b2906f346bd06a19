"""`compare`: checks candidates against a reference program and times them in a worker.

Programs travel to the worker as text, their arrays in a mapped file; arrays that lie in a file already travel as its
path and offset.  When the worker dies, the candidate it was busy with is out, and a new worker starts over with the
rest, so that all figures of one comparison come from one process.  Opaque operations travel as modules.  Programs with
one that has no module (callbacks into Python) exist only in the process that imported them.  They are compared there,
without protection, and a note of the comparison states it.
"""

from __future__ import annotations

import functools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from superopt.arrays import bundles as arrays
from superopt.arrays import placing
from superopt.candidates.candidate import Candidate
from superopt.ir import opaque
from superopt.ir.program import Program
from superopt.ir.text import print_graph
from superopt.machine.background import BackgroundCall
from superopt.machine.speedup import Speedup
from superopt.measure.conditioning import Exact
from superopt.measure.exact import exact_results_of
from superopt.measure.numerics import computed_in
from superopt.measure.result import Comparison, EntryPoint, Timing
from superopt.measure.session import AGAIN, REFERENCE, ComparisonSettings, compare_events
from superopt.measure.stats import paired_ratio
from superopt.workshop.job import (
    FILES,
    LOST,
    MOST_LOSSES,
    Event,
    Failure,
    Job,
    JobWorker,
    OutputError,
    WorkerDiedError,
    resolve,
)
from superopt.workshop.process import Worker
from superopt.workshop.scheduler import again_where_lost

BACKEND = "superopt.backends.xla:build"
CLOSED = "superopt.backends.xla:as_jitted"  # builds programs whose closed-over arrays are constants
KERNELS = "superopt.backends.mixed:build"  # builds programs with kernels of other backends in them
COMPARES, CALLS = "compare_programs", "call_program"  # jobs of `superopt.measure.programs`
LEFT_BEHIND = "a call had not ended when the time was over, and is left to end by itself: it is of the calling process"
Timeable = Candidate | Program | EntryPoint | Callable[..., Any]


def compare(
    reference: Timeable,
    candidates: Sequence[Timeable],
    inputs: Sequence[Any],
    frozen: Mapping[str, Any] | None = None,
    settings: ComparisonSettings | None = None,
    *,
    worker: JobWorker | None = None,
    backend: str = BACKEND,
) -> Comparison:
    """Check candidates against a reference and time them interleaved with it.

    Args:
        reference: the baseline; also timed against itself for the noise floor.
        candidates: candidates, or bare programs, without macros (expand them first), entry points, or functions, which
            need settings with `isolate=False`.
        inputs: the live inputs in call order.
        frozen: values of the frozen inputs by name, but for those that come with a program.
        settings: rounds, their length, seed, checks.
        worker: a running worker; one is started for this call without it.
        backend: `module:function` that builds a program from frozen values.
    """
    settings = settings or ComparisonSettings()
    if not settings.kinds and isinstance(reference, Program | Candidate):
        settings = replace(settings, kinds=computed_in(_program(reference).hot))
    seed = settings.seed
    frozen = dict(frozen or {})
    programs = [reference, *candidates]
    bound = any(not serialisable(_program(p)) for p in programs if isinstance(p, Program | Candidate))
    if bound or not settings.isolate:
        notes = ("timed in the calling process: the program holds operations of that process",) if bound else ()
        record = _Record(len(candidates))
        makers = [_local_maker(p, frozen, backend) for p in programs]
        exact: Exact = lambda change: None  # noqa: E731
        if isinstance(reference, Program | Candidate):
            exact = functools.partial(exact_results_of, _program(reference), inputs, frozen)
        left = record.absorb_aside(
            compare_events(makers[0], dict(enumerate(makers[1:])), inputs, settings, exact), settings.end_s
        )
        notes = (*notes, LEFT_BEHIND) if left else notes
        return record.comparison(seed, isolated=False, notes=notes)
    with arrays.scratch_folder(_nbytes((*inputs, *frozen.values()))) as folder:
        job = _job(reference, candidates, inputs, frozen, settings, backend, Path(folder))
        if worker is not None:
            return _with_worker(worker, job, len(candidates), seed, settings.end_s)
        with Worker() as own:
            return _with_worker(own, job, len(candidates), seed, settings.end_s)


@dataclass(slots=True)
class Ran:
    """Results of calls of a program, as many as completed.

    Attributes:
        results: results of each call, in order.
        seconds: duration of each; the first one includes the build.
        raised: class and message of the exception that the program raised.
        lost: how the worker process ended, or that the time was over.
    """

    results: list[list[np.ndarray]] = field(default_factory=list[list[np.ndarray]])
    seconds: list[float] = field(default_factory=list[float])
    raised: tuple[str, str] | None = None
    lost: Failure | None = None


def ran(
    program: Timeable,
    inputs: Sequence[Sequence[Any]],
    frozen: Mapping[str, Any],
    *,
    worker: JobWorker,
    end_s: float = math.inf,
    take: Callable[[list[np.ndarray], float], object] = lambda results, seconds: None,
) -> Ran:
    """Call a program, built once, on several lists of inputs in a worker.

    Args:
        program: one that can leave this process (`serialisable`).
        inputs: live inputs of each call.
        frozen: values of the frozen inputs by name.
        worker: the process to run in; it keeps a program that was slow to build.
        end_s: instant of `time.monotonic` at which the worker is killed.
        take: called with the results of each call and its seconds as soon as they are there.
    """
    result = Ran()
    every = [x for given in inputs for x in given]
    with arrays.scratch_folder(_nbytes((*every, *frozen.values()))) as name:
        job = _job(program, (), every, frozen, ComparisonSettings(), BACKEND, Path(name), call=CALLS)
        keys = iter(job.data["inputs"])
        lists = [[next(keys) for _ in given] for given in inputs]

        def rest() -> None:
            """Call it on the inputs without results."""
            left = replace(job, data={**job.data, "inputs": lists[len(result.results) :]})
            for event in worker.request(left, end_s):
                if event["event"] == "failed":
                    result.raised = (event["cause"], event["detail"])
                    continue
                at, *_ = event[FILES]
                result.results.append([np.array(x) for x in arrays.load(Path(name) / at).values()])
                result.seconds.append(event["seconds"])
                take(result.results[-1], result.seconds[-1])

        try:
            again_where_lost(rest)
        except WorkerDiedError as death:
            result.lost = death.failure
    return result


def _nbytes(values: Sequence[Any]) -> int:
    """Bytes of the arrays that lie in no file."""
    return sum(np.asarray(x).nbytes for x in values if placing.place_of(x) is None)


def pooled(first: Comparison, second: Comparison, *, seed: int = 0) -> Comparison:
    """Two comparisons of the same programs, from different processes, as one.

    The ratio is that of all rounds; its interval covers those of both, since some differences (where code and arrays
    lie, which core runs what) show only between processes.  A program that failed in either has failed.
    """
    references = (first.reference, second.reference)
    pairs = zip(first.candidates, second.candidates, strict=True)
    lost = next((r for r in references if isinstance(r, Failure)), None)
    if lost is not None:
        return Comparison(lost, tuple(lost for _ in first.candidates), first.isolated, first.notes)
    one, two = first.reference, second.reference
    assert isinstance(one, Timing)
    assert isinstance(two, Timing)
    floor = Speedup(1.0, min(one.ratio.low, two.ratio.low), max(one.ratio.high, two.ratio.high))
    reference = replace(one, samples_s=one.samples_s + two.samples_s, ratio=floor)
    timings: list[Timing | Failure] = []
    for a, b in pairs:
        if isinstance(a, Failure) or isinstance(b, Failure):
            timings.append(a if isinstance(a, Failure) else b)
            continue
        n, m = len(a.samples_s), len(b.samples_s)
        base = one.samples_s[:n] + two.samples_s[:m]
        middle = paired_ratio(base, a.samples_s + b.samples_s, seed=seed).ratio
        ratio = Speedup(middle, min(a.ratio.low, b.ratio.low), max(a.ratio.high, b.ratio.high))
        timings.append(replace(a, samples_s=a.samples_s + b.samples_s, ratio=ratio))
    return Comparison(reference, tuple(timings), first.isolated, first.notes)


def serialisable(program: Program) -> bool:
    """Whether the program can leave this process: every opaque operation in it or in its bodies has a module."""
    return opaque.carry(program.graphs) is not None


class _Record:
    """Collects the events of one attempt of a comparison."""

    def __init__(self, count: int, failures: dict[int, Failure] | None = None) -> None:
        self.count = count
        self.failures: dict[int, Failure] = failures if failures is not None else {}
        self.ready: dict[int, Event] = {}
        self.samples: dict[int, list[float]] = {}
        self.pruned: set[int] = set()
        self.busy_with = REFERENCE

    def absorb(self, events: Iterator[Event]) -> None:
        for event in events:
            kind = event["event"]
            if kind == "begin":
                self.busy_with = event["index"]
            elif kind == "ready":
                self.ready[event["index"]] = event
            elif kind == "failed":
                errors = tuple(OutputError(**e) for e in event["errors"])
                self.failures[event["index"]] = Failure(event["cause"], event["detail"], errors)
            elif kind == "round":
                for index, seconds in event["seconds"].items():
                    self.samples.setdefault(int(index), []).append(seconds)
            elif kind == "pruned":
                self.pruned.add(event["index"])

    def absorb_aside(self, events: Iterator[Event], end_s: float) -> bool:
        """Absorb events of programs that run in this process; return whether one was left behind at the end."""
        told: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        halted = threading.Event()

        def run() -> None:
            try:
                for event in events:
                    told.put(event)
                    if halted.is_set():
                        return
            finally:
                told.put(None)

        work = BackgroundCall(run)
        try:
            while True:
                left_s = None if end_s == math.inf else max(0.0, end_s - time.monotonic())
                event = told.get(timeout=left_s)
                if event is None:
                    work.result()
                    return False
                self.absorb(iter((event,)))
        except queue.Empty:
            return True
        finally:
            halted.set()

    def comparison(self, seed: int, *, isolated: bool, notes: tuple[str, ...] = ()) -> Comparison:
        reference: Timing | Failure
        if REFERENCE in self.failures or REFERENCE not in self.samples:
            reference = self.failures.get(REFERENCE) or Failure("run", "no round was completed")
            lost = Failure("run", f"nothing to compare with: the reference failed ({reference.cause})")
            return Comparison(reference, tuple(self.failures.get(i, lost) for i in range(self.count)), isolated, notes)
        base, again = self.samples[REFERENCE], self.samples.get(AGAIN, [])
        itself = paired_ratio(again, base, seed=seed) if again else Speedup(1.0, 0.0, math.inf)
        reference = self._timing(REFERENCE, itself)
        results: list[Timing | Failure] = []
        for i in range(self.count):
            if i in self.failures:
                results.append(self.failures[i])
            elif i in self.samples:
                results.append(self._timing(i, paired_ratio(base, self.samples[i], seed=seed)))
            else:
                results.append(Failure("run", "no round was completed"))
        return Comparison(reference, tuple(results), isolated, notes, tuple(again))

    def _timing(self, index: int, ratio: Speedup) -> Timing:
        ready = self.ready[index]
        errors = tuple(OutputError(**e) for e in ready["errors"])
        samples = tuple(self.samples[index])
        return Timing(samples, ratio, errors, ready["build_s"], ready["calls"], index in self.pruned)


def _with_worker(worker: JobWorker, job: Job, count: int, seed: int, end_s: float = math.inf) -> Comparison:
    failures: dict[int, Failure] = {}
    losses = 0
    while True:
        record = _Record(count, failures)
        wanted = {i: spec for i, spec in job.data["candidates"].items() if int(i) not in failures}
        try:
            record.absorb(worker.request(replace(job, data={**job.data, "candidates": wanted}), end_s))
        except WorkerDiedError as death:
            if time.monotonic() >= end_s:  # no candidate is to blame; the timings so far count
                return record.comparison(seed, isolated=True, notes=(death.failure.detail,))
            lost = death.failure.cause == LOST
            losses += lost
            if lost and losses < MOST_LOSSES:
                continue
            blamed = REFERENCE if lost else record.busy_with
            failures[blamed] = death.failure
            if blamed == REFERENCE:
                return record.comparison(seed, isolated=True)
            continue
        return record.comparison(seed, isolated=True)


def _job(
    reference: Timeable,
    candidates: Sequence[Timeable],
    inputs: Sequence[Any],
    frozen: Mapping[str, Any],
    settings: ComparisonSettings,
    backend: str,
    folder: Path,
    *,
    call: str = COMPARES,
) -> Job:
    """Return a comparison as a job; arrays that it needs are written into the folder, files of placed ones go along."""
    bundle: dict[str, np.ndarray] = {}
    placed: dict[str, tuple[Any, ...]] = {}
    files: dict[str, str] = {}  # path of a file of placed arrays -> its name in the data
    keys: dict[int, str] = {}

    def key_of(value: Any) -> str:
        if id(value) not in keys:
            key = keys[id(value)] = f"a{len(keys)}"
            place = placing.place_of(value)
            if place is None:
                bundle[key] = np.asarray(value)
            else:
                placed[key] = (files.setdefault(place[0], f"placed {len(files)}"), *place[1:])
        return keys[id(value)]

    data = {
        "placed": placed,
        "inputs": [key_of(x) for x in inputs],
        "frozen": {name: key_of(x) for name, x in frozen.items()},
        "settings": asdict(settings),
        "backend": backend,
        "reference": _spec(reference, key_of),
        "candidates": {str(i): _spec(c, key_of) for i, c in enumerate(candidates)},
    }
    arrays.save(folder / "arrays", bundle)
    paths = {"arrays": str(folder / "arrays")} | {name: path for path, name in files.items()}
    return Job("compare", f"superopt.measure.programs:{call}", data, paths, str(folder))


def _spec(candidate: Timeable, key_of: Callable[[Any], str]) -> dict[str, Any]:
    if isinstance(candidate, EntryPoint):
        return asdict(candidate)
    if not isinstance(candidate, Program | Candidate):
        raise TypeError("a function cannot leave its process: isolate=False compares it here")
    program = _program(candidate)
    from superopt.foreign.modules import carried  # late: loads jax, which this process may not need

    prepare = program.prepare
    constants = {} if prepare is None else {name: key_of(value) for name, value in prepare.constants.items()}
    return {
        "hot": print_graph(program.hot),
        "prepare": None if prepare is None else print_graph(prepare),
        "constants": constants,
        "modules": carried(program.graphs),
        "given": _given(candidate),
        "backend": _backend(candidate),
    }


def _program(candidate: Program | Candidate) -> Program:
    return candidate.program if isinstance(candidate, Candidate) else candidate


def _given(candidate: Program | Candidate) -> dict[str, Any]:
    """Compiler options and kernels of a program, as arguments of the backend that are not empty."""
    if not isinstance(candidate, Candidate):
        return {}
    options = {"options": dict(candidate.options)} if candidate.options else {}
    return options | ({"kernels": [kernel.to_json() for kernel in candidate.kernels]} if candidate.kernels else {})


def _backend(candidate: Program | Candidate) -> str:
    """The backend function that builds a candidate; empty for the one of the whole comparison."""
    if not isinstance(candidate, Candidate):
        return ""
    return CLOSED if candidate.closed else KERNELS if candidate.kernels else ""


def _local_maker(candidate: Timeable, frozen: Mapping[str, Any], backend: str) -> Callable[[], Callable[..., Any]]:
    if isinstance(candidate, EntryPoint):
        return lambda: resolve(candidate.target, candidate.path)(frozen)
    if not isinstance(candidate, Program | Candidate):
        return lambda: candidate
    given = _given(candidate)
    program = _program(candidate)
    return lambda: resolve(_backend(candidate) or backend)(program, frozen, **given)
