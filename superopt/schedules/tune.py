"""Search for the schedule of one operator: propose, build and time in workers, learn, repeat.

The default schedule is measured first and the search can only improve on it.  Each round takes the best measured
points, changes and crosses them, and adds random ones.  With `strategy="model"` the model orders them; `evolutionary`
takes them in the order of their making, `random` ignores measurements.  The round builds the most promising points in
all workers at once, and times them one worker after the other while nothing else runs.  Candidates whose code was seen
before are not timed again; those that are clearly slower than the best are timed twice.

The best of many noisy timings looks better than it is.  So the leaders are timed again, interleaved with the default,
and then the fastest of them and the default in rounds of their own.  The default is returned unless it is slower there
beyond the noise.  A caller that has rounds of its own for these two gets the fastest of the leaders.

Workers start while the space is made and XLA computes the expected values.

The search is a record (`_Search`) and three functions over it: `_begun` measures the default schedule, `_step` makes a
round, `_done` tells when there are enough.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from superopt.arrays.bundles import scratch_folder
from superopt.errors import InputError
from superopt.ir.graph import Graph
from superopt.ir.text import print_graph
from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.trace import apply
from superopt.machine.deadline import Deadline, Stopwatch, process_s
from superopt.machine.facts import beyond_caches, last_cache_bytes
from superopt.measure.kernels import LARGEST_FOOTPRINT
from superopt.measure.result import ENOUGH_ROUNDS
from superopt.measure.stats import paired_ratio
from superopt.schedules.candidates import save_problem
from superopt.schedules.features import features
from superopt.schedules.model import Rows, forecast, prior
from superopt.schedules.records import MeasuredSchedule, Records
from superopt.schedules.space import ScheduleSpace, Steps, space_of
from superopt.store import Store
from superopt.workshop.job import LOST, Event, Job, JobWorker, WorkerDiedError
from superopt.workshop.process import ProcessLimits, ended_by_interrupts
from superopt.workshop.scheduler import Workers, again_where_lost

if TYPE_CHECKING:
    from jaxtyping import Float

Strategy = Literal["model", "evolutionary", "random"]
STRATEGIES: tuple[Strategy, ...] = ("model", "evolutionary", "random")
_BATCH = 6  # candidates of a round for each worker: 0.7 s, of which the order of the pool takes a tenth
_POOL = 48  # points that the model orders, in 75 ms: a candidate takes 115 (docs/benchmarks.md, `candidates_per_s`)
_PARENTS = 12  # points that are changed, drawn by 1 / rank: a thirteenth would be one in 40
_RANDOM_SHARE = 0.25  # of points are drawn anew, 12 of a pool, since the parents are alike after a few rounds
_SAMPLE_S, _ROUNDS, _EACH_S = 1e-3, ENOUGH_ROUNDS, 0.04  # of a candidate, and its seconds in all for slow ones
_FINAL, _FINAL_ROUNDS, _FINAL_SAMPLE_S = 5, 9, 3e-3  # leaders, timed beside the default: 0.16 s of samples
_DUEL_ROUNDS = 21  # of the best with the default, in samples as long: 0.13 s
_FINAL_SHARE = 0.15  # of the budget: both fit from 2 s on
_REST_S, _RESTED = 0.005, 0.3  # polling interval, and the processors that a resting process uses at most
_MOST_ROWS = 400  # measurements that the model is conditioned on
_SPREAD = 0.5  # weight of the model's uncertainty in the order of points (exploration)
_HOPELESS = 4.0  # a first call that takes this much longer than the best so far is timed once more and left
_SLOW = 1.4  # so is a candidate whose first two samples take this much longer
_JOBS = "superopt.schedules.candidates"
BUILDING = ProcessLimits(silence_s=30.0, memory_bytes=6 << 30)
"""Limits of a worker that builds candidates."""


@dataclass(frozen=True, slots=True)
class ScheduleSearch:
    """Settings of a schedule search.

    Attributes:
        budget_s: wall time.
        threads: number of threads that run the kernel.
        seed: seed of proposals, inputs and order of timing.
        strategy: how candidates are proposed.
        most: stop after so many timed candidates.
        workers: processes that build; timing is done by one at a time.
        weights: bytes of the frozen operands of the program that the operator is a part of; where the caches do not
            hold them, candidates find theirs in memory.
        judged: the caller compares the best with the default, so that the search need not.
    """

    budget_s: float
    threads: int = 1
    seed: int = 0
    strategy: Strategy = "model"
    most: int = 1_000_000
    workers: int = 1
    weights: int = 0
    judged: bool = False

    @property
    def footprint(self) -> int:
        """Bytes of frozen operands that calls go through in turn; 0 where all stay in the caches."""
        enough = min(2 * last_cache_bytes(), LARGEST_FOOTPRINT)  # beyond twice the cache more makes no difference
        return min(self.weights, enough) if beyond_caches(self.weights) else 0


@dataclass(frozen=True, slots=True)
class TunedSchedule:
    """The result of a schedule search.

    Attributes:
        program: the program scheduled by `trace`.
        seconds, default_seconds: medians of the final, interleaved timing.
        candidates: number of timed candidates.
        candidates_per_s: candidates built, checked and timed, per worker and second of the whole call. The call
            includes
            the start of the workers, XLA's values, proposals, duplicates, refusals and the final timing.
        compile_ms: median LLVM time per candidate; 0 when all were compiled before.
        history: the candidates in order of timing; the default schedule is the first.
        refused: reasons why candidates could not be built, with their numbers.
    """

    program: LoopProgram
    trace: Steps
    seconds: float
    default_seconds: float
    candidates: int
    candidates_per_s: float
    compile_ms: float
    space_size: int
    history: tuple[MeasuredSchedule, ...]
    refused: dict[str, int]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point to build, with its trace and its features."""

    point: dict[str, Any]
    trace: Steps
    x: Float[np.ndarray, " features"]


@dataclass(slots=True)
class _Search:
    """The state of a search between two rounds.

    Attributes:
        earlier: measurements of other operators.
        deadline: from then on no round begins.
        rounds: number of rounds made.
        default: the default schedule, once it is measured.
        measured: the candidates in order of timing.
        seen: traces that were proposed.
        refused: reasons why candidates could not be built, with their numbers.
        compiled_s: LLVM time of each candidate that was compiled.
        exhausted: whether there is nothing left to propose.
    """

    space: ScheduleSpace
    how: ScheduleSearch
    rng: random.Random
    earlier: Rows
    deadline: Deadline = field(default_factory=Deadline)
    rounds: int = 0
    default: MeasuredSchedule | None = None
    measured: list[MeasuredSchedule] = field(default_factory=list[MeasuredSchedule])
    seen: set[str] = field(default_factory=set[str])
    refused: dict[str, int] = field(default_factory=dict[str, int])
    compiled_s: list[float] = field(default_factory=list[float])
    exhausted: bool = False

    def refuse(self, why: str) -> None:
        """Count a candidate that could not be built."""
        reason = why.split("\n")[0][:160]
        self.refused[reason] = self.refused.get(reason, 0) + 1


def tune(
    graph: Graph,
    how: ScheduleSearch,
    *,
    processes: Sequence[JobWorker] = (),
    store: Store | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> TunedSchedule:
    """Search schedules for a graph that becomes one kernel.

    Args:
        graph: the operator; inputs marked as frozen are packed ahead of time.
        how: time, threads and strategy.
        processes: running ones that build (see `builders`), in place of new ones.
        store: measurements of earlier searches are read from it, and those of this one are written to it.
        say: called with a line per round.

    Raises:
        InputError: the graph is no kernel.
    """
    watch, deadline = Stopwatch(), Deadline.within(how.budget_s * (1 - _FINAL_SHARE))
    with ExitStack() as stack:
        own = processes or [stack.enter_context(worker) for worker in builders(Workers(how.workers))]
        executor = stack.enter_context(ThreadPoolExecutor(len(own)))
        stack.enter_context(ended_by_interrupts(own))
        started = [executor.submit(again_where_lost, worker.ready) for worker in own]
        program = from_graph(graph.outputs, name="kernel")
        space = space_of(program, threads=how.threads)
        size = sum(math.prod(b.shape) * ITEMSIZE_BYTES[b.dtype] for b in program.buffers)
        problem = Path(stack.enter_context(scratch_folder(size))) / "problem"
        save_problem(problem, graph, how.seed)
        records = Records(store, graph, how.threads)
        earlier = records.rows() if how.strategy == "model" else Rows.empty()
        for job in started:
            job.result()
        pool = _Pool(executor, [CandidateBuilder(worker, graph, how.threads, problem, how.footprint) for worker in own])
        search = _begun(_Search(space, how, random.Random(how.seed), earlier), pool)
        search.deadline = deadline
        while not _done(search):
            _step(search, pool)
            if search.measured and not search.exhausted:
                best = min(search.measured, key=lambda c: c.seconds)
                say(f"round {search.rounds}: {len(search.measured)} timed, best {1e6 * best.seconds:.4g} us")
        winner, seconds, default_seconds = _final(search, pool.builders[0], how.budget_s * _FINAL_SHARE)
    spent_s = watch.elapsed_s
    records.add(search.measured)
    trace = winner.trace if winner is not None else space.base
    return TunedSchedule(
        apply(program, trace), trace, seconds, default_seconds, candidates=len(search.measured),
        candidates_per_s=len(search.measured) / spent_s / len(own),
        compile_ms=1e3 * float(np.median(search.compiled_s or [0.0])), space_size=space.size,
        history=tuple(search.measured), refused=search.refused,
    )  # fmt: skip


# ---- rounds


def _begun(search: _Search, pool: _Pool) -> _Search:
    """Measure the default schedule, and return the search."""
    pool.open()
    start = search.space.start
    measured = _measure(search, pool, [_proposal(search, start, search.space.trace(start))])
    search.default = measured[0] if measured else None
    return search


def _done(search: _Search) -> bool:
    return search.exhausted or len(search.measured) >= search.how.most or search.deadline.is_over


def _step(search: _Search, pool: _Pool) -> None:
    """Make a round: propose, build, time; only propose where that uses up the time."""
    proposals = _proposed(search, min(_BATCH * len(pool.builders), search.how.most - len(search.measured)))
    search.exhausted = not proposals
    if proposals and not search.deadline.is_over:
        search.rounds += 1
        _measure(search, pool, proposals)


def _proposal(search: _Search, point: dict[str, Any], trace: Steps) -> Proposal:
    """Return a point with its trace and features."""
    space = search.space
    x = features(apply(space.unscheduled, trace), space.threads, search.how.footprint)
    return Proposal(point, trace, x)


def _proposed(search: _Search, count: int) -> list[Proposal]:
    """Return the next points to build; points of one trace are one."""
    fresh: dict[str, Proposal] = {}
    parents = sorted(search.measured, key=lambda c: c.seconds)[:_PARENTS]
    guided = search.how.strategy == "model"
    wanted = _POOL if guided else count
    misses = 0
    while len(fresh) < wanted and misses < 2 * wanted and not (fresh and search.deadline.is_over):
        point, key = _point(search, parents), ""
        try:
            trace = search.space.trace(point)
            key = json.dumps(trace)
            if key not in search.seen and key not in fresh:
                fresh[key] = _proposal(search, point, trace)
                continue
        except InputError as error:
            search.seen.add(key)
            search.refuse(f"refused: {error}")
        misses += 1
    keys = list(fresh)
    if guided and keys:
        known = prior()
        x = np.stack([fresh[key].x for key in keys])
        keys = [keys[i] for i in forecast(x, _rows(search.measured), search.earlier, known).batch(count, _SPREAD)]
    search.seen.update(keys)
    return [fresh[key] for key in keys]


def _point(search: _Search, parents: Sequence[MeasuredSchedule]) -> dict[str, Any]:
    space, rng = search.space, search.rng
    if search.how.strategy == "random" or not parents or rng.random() < _RANDOM_SHARE:
        return space.sample(rng)
    weights = [1.0 / (1 + k) for k in range(len(parents))]
    a, b = rng.choices(parents, weights, k=2)
    if rng.random() < 0.3:
        return space.mutate(space.cross(a.point, b.point, rng), rng, 1)
    return space.mutate(a.point, rng)


def _rows(measured: Sequence[MeasuredSchedule]) -> Rows:
    """Return the measurements of this search, at most the last of them."""
    own = measured[-_MOST_ROWS:]
    if not own:
        return Rows.empty()
    y = np.log2([c.seconds for c in own]).astype(np.float32)
    return Rows(np.stack([c.x for c in own]), y, np.zeros(len(own), np.int32))


# ---- processes that build


def builders(workers: Workers) -> list[JobWorker]:
    """Return workers that build candidates, for several searches; the caller closes them.

    Raises:
        InputError: no host has the processor and the versions of this machine, whose timings count.
    """
    return workers.lasting(BUILDING)


class CandidateBuilder:
    """A worker with its session; opens it again after a death."""

    def __init__(self, worker: JobWorker, graph: Graph, threads: int, problem: Path, footprint: int = 0) -> None:
        self.worker = worker
        data = {"graph": print_graph(graph), "threads": threads, "footprint": footprint}
        self.opening = Job("make", f"{_JOBS}:open_graph", data, {"problem": str(problem)})
        self.started = -1

    def open(self) -> None:
        """Start the worker and open the graph in it, where that has not been done."""
        if not self.is_open:
            again_where_lost(lambda: list(self.worker.request(self.opening)))
            self.started = self.worker.started

    @property
    def is_open(self) -> bool:
        """Whether the process runs in which the graph was opened."""
        return self.started == self.worker.started and self.worker.alive

    def time(self, data: Mapping[str, Any], traces: Sequence[Steps]) -> list[Event]:
        """Time candidates that the worker has built, of these traces; return the events of `time_candidates`.

        Where the worker is lost, the next one builds them anew.
        """

        def timed() -> list[Event]:
            if not self.is_open:
                self.build(range(len(traces)), traces, again=True)
            return list(self.worker.request(Job("time", f"{_JOBS}:time_candidates", data)))

        return again_where_lost(timed)

    def build(
        self, indices: Sequence[int], traces: Sequence[Steps], *, again: bool = False
    ) -> dict[int, dict[str, Any]]:
        """Return events by index.

        A candidate that kills the worker is `died`, and a new worker builds the rest.  Where the worker itself is lost,
        the next one builds all of them anew.
        """
        return again_where_lost(lambda: self._built(indices, traces, again))

    def _built(self, indices: Sequence[int], traces: Sequence[Steps], again: bool) -> dict[int, dict[str, Any]]:
        events: dict[int, dict[str, Any]] = {}
        left = dict(zip(indices, traces, strict=True))
        while left:
            current = None
            try:
                self.open()
                data = {"indices": list(left), "traces": list(left.values()), "again": again}
                for event in self.worker.request(Job("make", f"{_JOBS}:build_candidates", data)):
                    current = event["index"]
                    if event["event"] != "begin":
                        events[current] = event
                        left.pop(current)
            except WorkerDiedError as error:
                lost = [i for i, event in events.items() if event["event"] == "built"]
                for i in lost:  # their code went with the process
                    events[i] = {"event": "lost"}
                if current is None or current not in left or error.failure.cause == LOST:
                    raise
                left.pop(current)
                events[current] = {"event": "died", "detail": str(error)}
        return events


@dataclass(frozen=True, slots=True)
class _Pool:
    """The builders of a search, which work in parallel."""

    executor: ThreadPoolExecutor
    builders: Sequence[CandidateBuilder]

    def open(self) -> None:
        """Open the graph in all of them."""
        list(self.executor.map(CandidateBuilder.open, self.builders))

    def build(self, traces: Sequence[Steps]) -> list[tuple[CandidateBuilder, dict[int, dict[str, Any]]]]:
        """Return events by index, from each builder that had a share of the traces."""
        count = len(self.builders)
        shares = [(b, range(len(traces))[k::count]) for k, b in enumerate(self.builders) if k < len(traces)]
        jobs = [self.executor.submit(b.build, share, [traces[i] for i in share]) for b, share in shares]
        return [(b, job.result()) for (b, _), job in zip(shares, jobs, strict=True)]


def _measure(search: _Search, pool: _Pool, batch: Sequence[Proposal]) -> list[MeasuredSchedule]:
    """Build a batch in all workers, then time the new candidates, one worker after the other."""
    known = {c.digest for c in search.measured}
    added: list[MeasuredSchedule] = []
    for builder, events in pool.build([made.trace for made in batch]):
        built: dict[str, int] = {}
        for i, event in sorted(events.items()):
            if event["event"] == "built":
                if event["compile_s"] > 0:  # else the object was on disk
                    search.compiled_s.append(event["compile_s"])
                if event["digest"] not in known:
                    known.add(event["digest"])
                    built[event["digest"]] = i
            elif event["event"] not in ("lost", "known"):
                search.refuse(f"{event['event']}: {event['detail']}")
        for digest, samples in _times(search, builder, {d: batch[i].trace for d, i in built.items()}).items():
            made, spills = batch[built[digest]], events[built[digest]]["spills"]
            added.append(MeasuredSchedule(made.trace, made.point, made.x, digest, float(np.median(samples)), spills))
    search.measured += added
    return added


def _times(search: _Search, builder: CandidateBuilder, built: Mapping[str, Steps]) -> dict[str, list[float]]:
    """Return samples of new candidates, few of those that are clearly slower than the best."""
    best = min((c.seconds for c in search.measured), default=math.inf)
    limits = {"limit_s": min(1e9, _HOPELESS * best), "slow_s": min(1e9, _SLOW * best)}
    seed = search.how.seed + search.rounds
    request = {"rounds": _ROUNDS, "sample_s": _SAMPLE_S, "each_s": _EACH_S, "seed": seed, **limits}
    return _timed(search, builder, built, request)


def _timed(
    search: _Search, builder: CandidateBuilder, built: Mapping[str, Steps], how: dict[str, Any]
) -> dict[str, list[float]]:
    """Return samples by digest of candidates that the worker has built, given with their traces."""
    if not built:
        return {}
    if search.space.threads > 1:
        _rest()
    try:
        events = builder.time({"digests": list(built), **how}, list(built.values()))
        return {event["digest"]: event["samples_s"] for event in events}
    except WorkerDiedError as error:
        search.refused[f"died while timed: {error}"] = len(built)
        return {}


def _rest() -> None:
    """Wait until threads of this process that poll for work (those of NumPy's products) have gone to sleep."""
    for _ in range(40):
        wall, used = Stopwatch(), Stopwatch(process_s)
        time.sleep(_REST_S)
        if used.elapsed_s < _RESTED * wall.elapsed_s:
            return


def _final(search: _Search, builder: CandidateBuilder, budget_s: float) -> tuple[MeasuredSchedule | None, float, float]:
    """Return the winner, its seconds and the default's: the leaders timed again, then the best against the default."""
    default, seed = search.default, search.how.seed
    if not search.measured:
        return None, math.nan, math.nan
    ordered = sorted(search.measured, key=lambda c: c.seconds)
    if default is None:
        return ordered[0], ordered[0].seconds, math.nan
    leaders = [c for c in ordered if c is not default and c.seconds < _SLOW * ordered[0].seconds]
    most = int(budget_s / 2 / (ENOUGH_ROUNDS * max(ordered[0].seconds, _FINAL_SAMPLE_S)))
    leaders = leaders[: max(1, min(_FINAL, most))]
    times = dict[str, list[float]]()
    if len(leaders) > 1:
        times = _again(search, [*leaders, default], builder, seed, _FINAL_ROUNDS, budget_s / 2)
        leaders = sorted([c for c in leaders if c.digest in times], key=lambda c: np.median(times[c.digest]))
    if not leaders:
        return default, default.seconds, default.seconds
    best = leaders[0]
    if search.how.judged:
        fresh = {c.digest: float(np.median(times[c.digest])) for c in (best, default) if times.get(c.digest)}
        return best, fresh.get(best.digest, best.seconds), fresh.get(default.digest, default.seconds)
    times = _again(search, [best, default], builder, seed + 1, _DUEL_ROUNDS, budget_s / 2)
    mine, base = times.get(best.digest), times.get(default.digest)
    if not mine or not base:
        return default, default.seconds, default.seconds
    seconds, default_seconds = float(np.median(mine)), float(np.median(base))
    if paired_ratio(base, mine, seed=seed).low > 1:
        return best, seconds, default_seconds
    return default, default_seconds, default_seconds


def _again(
    search: _Search,
    candidates: Sequence[MeasuredSchedule],
    builder: CandidateBuilder,
    seed: int,
    rounds: int,
    budget_s: float,
) -> dict[str, list[float]]:
    """Return samples of candidates in fresh rounds, all of them in each, as many as there is time for."""
    events = builder.build(range(len(candidates)), [c.trace for c in candidates], again=True)
    built = {c.digest: c.trace for i, c in enumerate(candidates) if events[i]["event"] == "built"}
    a_round = sum(max(_FINAL_SAMPLE_S, c.seconds) for c in candidates)
    rounds = max(ENOUGH_ROUNDS, min(rounds, int(budget_s / a_round)))
    how = {"rounds": rounds, "sample_s": _FINAL_SAMPLE_S, "each_s": 1e9, "seed": seed, "limit_s": 1e9, "slow_s": 1e9}
    return _timed(search, builder, built, how)
