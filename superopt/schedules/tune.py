"""Search for the schedule of one operator: propose, build and time in workers, learn, repeat.

The default schedule is measured first and the search can only improve on it.  Each round takes the best measured
points, changes and crosses them, adds random ones, orders them by the model (`method="model"`; `evolutionary` takes
them in the order of their making, `random` ignores what was measured), builds the most promising in all workers at
once, and times them one worker after the other while nothing else runs.  Candidates whose code was seen before are not
timed again.  The best of many noisy timings looks better than it is, so the leaders are timed again, interleaved with
the default.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from superopt.ir.graph import Graph
from superopt.ir.text import print_graph
from superopt.kernels.defaults import default_trace
from superopt.kernels.program import from_graph
from superopt.kernels.schedule.trace import apply
from superopt.kernels.stage import LoopProgram
from superopt.measure.process import Limits, Worker, WorkerDiedError
from superopt.schedules.features import features
from superopt.schedules.model import Rows, ScheduleModel, fit
from superopt.schedules.records import Records
from superopt.schedules.space import Space, Trace, space_of
from superopt.store import Store

Method = Literal["model", "evolutionary", "random"]
_BATCH, _POOL, _PARENTS = 8, 256, 12
_RANDOM_SHARE = 0.25
_SAMPLE_S, _ROUNDS = 1e-3, 5
_FINAL, _FINAL_ROUNDS, _FINAL_SAMPLE_S = 4, 15, 4e-3
_FINAL_SHARE = 0.12
_SPREAD = 0.5  # how much a point is preferred for what the model does not know about it
_HOPELESS = 4.0  # a first call that takes this much longer than the best so far is timed once more and left
_LIMITS = Limits(silence_s=30.0, memory_bytes=6 << 30)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A measured schedule.

    Attributes:
        point: where it is in the space; None for the default schedule.
        seconds: the median of its samples.
    """

    trace: Trace
    point: dict[str, Any] | None
    digest: str
    seconds: float
    spills: int = 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search found.

    Attributes:
        program: scheduled as `trace` says.
        seconds, default_seconds: medians of the final, interleaved timing.
        candidates: how many were timed.
        candidates_per_s: built, checked and timed, per second of the search and core in use.
        compile_ms: of LLVM, median per candidate; 0 when all were compiled before.
        history: seconds of the candidates in order of timing.
        refused: reasons why candidates could not be built, with their numbers.
    """

    program: LoopProgram
    trace: Trace
    seconds: float
    default_seconds: float
    candidates: int
    candidates_per_s: float
    compile_ms: float
    space_size: int
    history: tuple[float, ...]
    refused: dict[str, int]


@dataclass(slots=True)
class _Search:
    """State of one search."""

    space: Space
    rng: random.Random
    method: Method
    earlier: Rows
    measured: list[Candidate] = field(default_factory=list[Candidate])
    seen: set[str] = field(default_factory=set[str])
    refused: dict[str, int] = field(default_factory=dict[str, int])
    compiled_s: list[float] = field(default_factory=list[float])

    def propose(self, count: int) -> list[dict[str, Any]]:
        """The next points to build."""
        fresh: dict[str, dict[str, Any]] = {}
        parents = sorted((c for c in self.measured if c.point is not None), key=lambda c: c.seconds)[:_PARENTS]
        wanted = count if self.method != "model" else _POOL
        for _ in range(8 * wanted):
            if len(fresh) >= wanted:
                break
            point = self._point(parents)
            key = json.dumps(point, sort_keys=True)
            if key not in self.seen:
                fresh.setdefault(key, point)
        chosen = list(fresh)
        if self.method == "model":
            chosen = self._ordered(fresh, count)
        self.seen.update(chosen)
        return [fresh[key] for key in chosen]

    def _point(self, parents: Sequence[Candidate]) -> dict[str, Any]:
        if self.method == "random" or not parents or self.rng.random() < _RANDOM_SHARE:
            return self.space.sample(self.rng)
        weights = [1.0 / (1 + k) for k in range(len(parents))]
        a, b = self.rng.choices(parents, weights, k=2)
        assert a.point is not None
        assert b.point is not None
        if self.rng.random() < 0.3:
            return self.space.mutate(self.space.cross(a.point, b.point, self.rng), self.rng, 1)
        return self.space.mutate(a.point, self.rng)

    def _ordered(self, fresh: dict[str, dict[str, Any]], count: int) -> list[str]:
        """The points that the model expects most of, and a few drawn at random."""
        keys = list(fresh)
        model = self.model()
        if model is None:
            return keys[:count]
        mean, spread = model.predict(np.stack([features(self.space, fresh[key]) for key in keys]))
        order = np.argsort(mean - _SPREAD * spread)
        best = [keys[i] for i in order[: max(1, count - count // 8)]]
        rest = [key for key in keys if key not in set(best)]
        return best + self.rng.sample(rest, min(len(rest), count - len(best)))

    def model(self) -> ScheduleModel | None:
        """Fitted to all that is known; None while nothing is."""
        rows = self.earlier.join(self.rows())
        return fit(rows, self.rng.randrange(1 << 30)) if len(rows) >= _BATCH else None

    def rows(self) -> Rows:
        """The measurements of this search."""
        own = [c for c in self.measured if c.point is not None]
        if not own:
            return Rows.empty()
        x = np.stack([features(self.space, c.point) for c in own if c.point is not None])
        y = np.log2([c.seconds for c in own]).astype(np.float32)
        return Rows(x, y, np.zeros(len(own), np.int32))


def tune(
    graph: Graph,
    budget_s: float,
    *,
    threads: int = 1,
    seed: int = 0,
    method: Method = "model",
    most: int = 1_000_000,
    workers: int = 1,
    processes: Sequence[Worker] = (),
    store: Store | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Tuned:
    """Search schedules for a graph that becomes one kernel.

    Args:
        graph: inputs marked as frozen are packed ahead of time.
        budget_s: wall time.
        threads: that run the kernel.
        seed: of proposals, inputs and order of timing.
        method: how candidates are proposed.
        most: stop after so many timed candidates.
        workers: processes that build; timing is done by one at a time.
        processes: running ones that build (see `builders`), in place of new ones.
        store: measurements of earlier searches are read from it, and those of this one are written to it.
        say: called with a line per round.

    Raises:
        InputError: the graph is no kernel.
    """
    begin = time.perf_counter()
    program = from_graph(graph.outputs, name="kernel")
    base: Trace = [list(step) for step in default_trace(program, threads=threads)]
    space = space_of(program, threads=threads)
    records = Records(store, graph, threads)
    search = _Search(space, random.Random(seed), method, records.rows() if method == "model" else Rows.empty())
    with ExitStack() as stack:
        own = processes or [stack.enter_context(worker) for worker in builders(workers)]
        pool = [_Builder(worker, graph, threads, seed) for worker in own]
        workers = len(pool)
        executor = stack.enter_context(ThreadPoolExecutor(workers))
        list(executor.map(_Builder.open, pool))
        started = time.perf_counter()
        first = _measure(search, pool, executor, [(base, None)], seed)
        default = first[0] if first else None
        end = begin + budget_s * (1 - _FINAL_SHARE)
        number = 0
        while time.perf_counter() < end and len(search.measured) < most:
            points = search.propose(min(_BATCH * workers, most - len(search.measured)))
            if not points:
                break
            number += 1
            _measure(search, pool, executor, [(space.trace(p), p) for p in points], seed + number)
            if search.measured:
                best = min(search.measured, key=lambda c: c.seconds)
                say(f"round {number}: {len(search.measured)} timed, best {1e6 * best.seconds:.4g} us")
        spent = time.perf_counter() - started
        winner, seconds, default_seconds = _final(search, default, pool[0], seed)
    records.add(search.measured, space)
    trace = winner.trace if winner is not None else base
    return Tuned(
        apply(program, trace), trace, seconds, default_seconds, len(search.measured),
        len(search.measured) / max(spent, 1e-9) / workers,
        1e3 * float(np.median(search.compiled_s or [0.0])), space.size,
        tuple(c.seconds for c in search.measured), search.refused,
    )  # fmt: skip


def builders(count: int) -> list[Worker]:
    """Processes that build candidates, to be used for several searches; the caller closes them."""
    return [Worker(_LIMITS, module="superopt.schedules.worker") for _ in range(count)]


class _Builder:
    """A worker with its session; opens it again after a death."""

    def __init__(self, worker: Worker, graph: Graph, threads: int, seed: int) -> None:
        self.worker = worker
        self.opening = {"request": "open", "graph": print_graph(graph), "threads": threads, "seed": seed}
        self.started = -1

    def open(self) -> None:
        """Start the worker and open the graph in it, where that has not been done."""
        if self.started != self.worker.started or not self.worker.alive:
            list(self.worker.request(self.opening))
            self.started = self.worker.started

    def ask(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a request to a worker that has the graph open."""
        self.open()
        return self.worker.request(message)

    def build(self, indices: Sequence[int], traces: Sequence[Trace]) -> dict[int, dict[str, Any]]:
        """Events by index; a candidate that killed the worker is `died`, those after it are built by a new one."""
        found: dict[int, dict[str, Any]] = {}
        left = dict(zip(indices, traces, strict=True))
        while left:
            current = None
            try:
                for event in self.ask({"request": "build", "indices": list(left), "traces": list(left.values())}):
                    current = event["index"]
                    if event["event"] != "begin":
                        found[current] = event
                        left.pop(current)
            except WorkerDiedError as error:
                lost = [i for i, event in found.items() if event["event"] == "built"]
                for i in lost:  # their code went with the process
                    found[i] = {"event": "lost"}
                if current is None or current not in left:
                    raise
                left.pop(current)
                found[current] = {"event": "died", "detail": str(error)}
        return found


def _measure(
    search: _Search,
    pool: Sequence[_Builder],
    executor: ThreadPoolExecutor,
    batch: Sequence[tuple[Trace, dict[str, Any] | None]],
    seed: int,
) -> list[Candidate]:
    """Build a batch in all workers, then time what is new, one worker after the other."""
    shares = [list(range(len(batch)))[k :: len(pool)] for k in range(len(pool))]
    jobs = [
        executor.submit(builder.build, share, [batch[i][0] for i in share])
        for builder, share in zip(pool, shares, strict=True)
        if share
    ]
    known = {c.digest for c in search.measured}
    added: list[Candidate] = []
    for builder, share, events in zip(pool, shares, [job.result() for job in jobs], strict=False):
        built: dict[str, int] = {}
        for i in share:
            event = events[i]
            if event["event"] == "built":
                if event["compile_s"] > 0:  # else the object was on disk
                    search.compiled_s.append(event["compile_s"])
                if event["digest"] not in known:
                    known.add(event["digest"])
                    built[event["digest"]] = i
            elif event["event"] != "lost":
                reason = f"{event['event']}: {event['detail']}".split("\n")[0][:160]
                search.refused[reason] = search.refused.get(reason, 0) + 1
        for digest, samples in _times(search, builder, list(built), _ROUNDS, _SAMPLE_S, seed).items():
            i = built[digest]
            trace, point = batch[i]
            added.append(Candidate(trace, point, digest, float(np.median(samples)), events[i]["spills"]))
    search.measured += added
    return added


def _times(
    search: _Search, builder: _Builder, digests: Sequence[str], rounds: int, sample_s: float, seed: int
) -> dict[str, list[float]]:
    if not digests:
        return {}
    best = min((c.seconds for c in search.measured), default=math.inf)
    request = {"request": "time", "digests": list(digests), "rounds": rounds, "sample_s": sample_s, "seed": seed}
    request["limit_s"] = min(1e9, _HOPELESS * best)
    try:
        return {event["digest"]: event["samples_s"] for event in builder.ask(request)}
    except WorkerDiedError as error:
        search.refused[f"died while timed: {error}"] = len(digests)
        return {}


def _final(
    search: _Search, default: Candidate | None, builder: _Builder, seed: int
) -> tuple[Candidate | None, float, float]:
    """The leaders and the default again, interleaved in fresh rounds: winner, its seconds, the default's."""
    leaders = sorted(search.measured, key=lambda c: c.seconds)[:_FINAL]
    if default is not None and default not in leaders:
        leaders.append(default)
    if not leaders:
        return None, math.nan, math.nan
    events = builder.build(range(len(leaders)), [c.trace for c in leaders])
    fit_for_it = [c for i, c in enumerate(leaders) if events[i]["event"] == "built"]
    times = _times(search, builder, [c.digest for c in fit_for_it], _FINAL_ROUNDS, _FINAL_SAMPLE_S, seed)
    if not times:
        return default, default.seconds if default else math.nan, default.seconds if default else math.nan
    middle = {c.digest: float(np.median(times[c.digest])) for c in fit_for_it if c.digest in times}
    winner = min((c for c in fit_for_it if c.digest in middle), key=lambda c: middle[c.digest])
    base = middle.get(default.digest, math.nan) if default is not None else math.nan
    return winner, middle[winner.digest], base
