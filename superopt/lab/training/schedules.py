"""Labels of schedules: how long regions of the training programs take under many points of their schedule spaces.

    sampled      The default schedule, points drawn uniformly and points a few decisions away from the default,
                 until `DISTINCT` of them have code of their own.
    exhaustive   Every tenth region: all points of a small space; else all options of the register tile and of as many
                 further decisions as there is room for, the others as by default.  Their minimum is known.
    cold         Regions of frozen operands, sampled once more while calls take turns with copies of these that are
                 together `FOOTPRINT`, as the weights of a large program lie.

The points of a region are built, checked against XLA's values and timed in interleaved rounds in one worker, so that
ratios within a region hold.  While one region is timed, others are built on the other cores.  Regions come in a fixed
shuffled order, so that a slice is a sample of all; an interrupted run resumes where it was.  For the noise floor some
regions are visited a second time at the end of a run: one in `AGAIN_EVERY`, and every second exhaustive set.  The
second minimum of a set bounds the gain that a choice can show.  A row names its region by the key of
`regions.jsonl.gz`, with the text.  Labels of another kind of machine are in a file of their own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.features.stages import estimate_s, stage_rows
from superopt.arrays.bundles import scratch_folder
from superopt.errors import InputError, SuperoptError
from superopt.ir.program import frozen_bytes, type_bytes
from superopt.ir.text import parse_graph
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.trace import apply
from superopt.lab import Say
from superopt.lab.training import corpus, regions
from superopt.lab.training.collect import LabelFile, Row
from superopt.lab.training.tasks import read_lines
from superopt.machine.facts import usable_cores
from superopt.schedules.candidates import save_problem
from superopt.schedules.space import ScheduleSpace, Steps, space_of
from superopt.schedules.tune import BUILDING, CandidateBuilder
from superopt.workshop.job import LOST, Failure, WorkerDiedError
from superopt.workshop.scheduler import LOCAL, Executor, Seat, Workers

SHIPPED = corpus.SHIPPED.with_name("schedules.jsonl.gz")
LEAST_S, MOST_S = 8e-6, 2e-3  # range of the time of the region's default schedule, as it is on file
DISTINCT, TRIES = 30, 60  # codes of a region, and points tried for them
EVERY, SMALL, EXHAUSTIVE = 10, 336, 150  # one region in so many is exhaustive; points of a small space, of others
AGAIN_EVERY = 25
WRITE_EVERY_S = 120.0
TIMING = {"rounds": 6, "sample_s": 1e-3, "each_s": 0.05, "seed": 0, "limit_s": 0.1, "slow_s": 1e9, "peak": 3}
PEAK = -1  # key among trace numbers for independent multiply-adds in the same rounds, which show the clock
FOOTPRINT = 64 << 20  # frozen operands that calls take turns with: twice the last cache of the labelling machines
HOPELESS = 16.0  # factor over the default's estimate beyond which a schedule, maybe of seconds, is not timed
_FIRST = ("tile", "block", "pack_b", "pack_a", "unroll")  # decisions that an exhaustive set spans, in this order


@dataclass(frozen=True, slots=True)
class _Visit:
    """A region to label: its row, its number in the order, and bytes of frozen operands that calls take turns with."""

    row: Row
    number: int
    threads: int
    footprint: int

    @property
    def exhaustive(self) -> bool:
        return self.number % EVERY == 0 and not self.footprint

    @property
    def again(self) -> bool:
        return self.number % (2 * EVERY) == 0 if self.exhaustive else self.number % AGAIN_EVERY == 1

    @property
    def name(self) -> str:
        return f"{self.row['key']} {self.threads}{' cold' if self.footprint else ''}"


def collect(
    out: Path, budget_s: float, threads: int, say: Say, exhaustive: bool = False, executor: Executor = LOCAL
) -> dict[str, Any]:
    """Time schedules of regions that are not in the file yet until the budget ends; return figures of the file.

    Args:
        out: the file.
        budget_s: no further region begins after it.
        threads: threads that run a kernel.
        say: called with one line now and then.
        exhaustive: only regions that are timed exhaustively.
        executor: source of the workers, as many a host as have the cores for it.

    Raises:
        InputError: the file has labels of another machine.
    """
    end = time.monotonic() + budget_s
    labels = LabelFile.read(out)
    labels.stamp(timing=TIMING)
    known = {_Visit(row, 0, row["threads"], row.get("footprint", 0)).name for row in labels.rows} | {*labels.failed}
    visits = (v for v in _visits(order(), threads) if v.name not in known and (v.exhaustive or not exhaustive))
    written, again = time.monotonic(), list[tuple[_Visit, Row]]()
    with Workers(max(1, usable_cores() // threads), executor).workshop(BUILDING) as workshop:
        locks = {seat.host: threading.Lock() for seat in workshop.seats}
        some = itertools.takewhile(lambda _: time.monotonic() < end, visits)
        for visit, made in workshop.dialogues("make", some, lambda seat, v: _labelled(v, _Bench(seat, locks))):
            if isinstance(made, Failure):
                continue
            if isinstance(made, str):
                labels.failed[visit.name] = made
                continue
            labels.rows.append(made)
            if visit.again:
                again.append((visit, made))
            if time.monotonic() > written + WRITE_EVERY_S:
                labels.write()
                written = time.monotonic()
                say(f"{sum(len(r['points']) for r in labels.rows)} labels of {len(labels.rows)} regions")
        for (_, made), visited in workshop.dialogues(
            "make", again, lambda seat, x: _visited(x[0], [p[0] for p in x[1]["points"]], _Bench(seat, locks))
        ):
            if isinstance(visited, Failure):
                continue
            made["peak_again_s"] = visited.pop(PEAK, [None])[0]
            for k, point in enumerate(made["points"]):
                point += [visited[k][0]] if k in visited else []
    labels.write()
    return summary(labels)


@dataclass(frozen=True, slots=True)
class _Bench:
    """A worker, and for each host the lock that it takes while it times."""

    seat: Seat
    locks: Mapping[str, threading.Lock]


def shipped() -> list[Path]:
    """The files that ship, one for each machine; the first is the one against which weights are evaluated."""
    return sorted(SHIPPED.parent.glob(SHIPPED.name.replace(".", "*.", 1)), key=lambda path: path != SHIPPED)


def order() -> list[Row]:
    """The regions, shuffled by their texts alone."""
    rows = [row for row in read_lines(regions.SHIPPED)[1:] if LEAST_S <= row["own_s"] <= MOST_S]
    return sorted(rows, key=lambda r: hashlib.sha256(f"schedules {r['key']}".encode()).digest())


def _visits(listed: Sequence[Row], threads: int) -> Iterator[_Visit]:
    """Regions in their order; those with large frozen operands also cold."""
    for number, row in enumerate(listed):
        yield _Visit(row, number, threads, 0)
        if frozen_bytes(parse_graph(row["text"])) >= regions.LEAST_FROZEN:
            yield _Visit(row, number, threads, FOOTPRINT)


def summary(labels: LabelFile) -> dict[str, Any]:
    """Figures of a file of labels."""
    points = [p for row in labels.rows for p in row["points"]]
    again = [abs(p[3] / p[1] - 1) for p in points if len(p) > 3 and p[1] >= 2e-5]
    best = [min(p[1] for p in row["points"]) / row["points"][0][1] for row in labels.rows if row["exhaustive"]]
    return {
        "labels": len(points), "regions": len({row["key"] for row in labels.rows}), "failed": len(labels.failed),
        "cold": sum(len(row["points"]) for row in labels.rows if row.get("footprint")),
        "exhaustive": len(best), "families": len({row["family"] for row in labels.rows}),
        "noise_floor_mean_long": float(np.mean(again)) if again else None,
        "best_over_default_geomean": float(np.exp(np.mean(np.log(best)))) if best else None,
    }  # fmt: skip


def _labelled(visit: _Visit, bench: _Bench) -> Row | str:
    """A row of the file, whose first point is the default schedule; or the reason why there is none."""
    row = visit.row
    try:
        program = from_graph(parse_graph(row["text"]).outputs, name="kernel")
        space = space_of(program, threads=visit.threads)
        points = every(space) if visit.exhaustive else drawn(space, random.Random(row["key"]))
        traces = _traces(points, space, program, visit.footprint)
        timings = _timed(visit, traces, bench, math.inf if visit.exhaustive else DISTINCT)
    except (SuperoptError, WorkerDiedError) as error:
        if isinstance(error, WorkerDiedError) and error.failure.cause == LOST:
            raise
        return f"{type(error).__name__}: {error}"[:200]
    peak_s = timings.pop(PEAK, [None])[0]
    timed = [[traces[k], *timings[k]] for k in sorted(timings)]
    if 0 not in timings:
        return "the default schedule was not timed"
    return {
        "key": row["key"], "family": row["family"], "program": row["program"], "threads": visit.threads,
        "exhaustive": visit.exhaustive, "space": space.size, "points": timed, "peak_s": peak_s,
    } | ({"footprint": visit.footprint} if visit.footprint else {})  # fmt: skip


def _visited(visit: _Visit, traces: Sequence[Steps], bench: _Bench) -> dict[int, list[Any]]:
    """As `_timed`; empty where the worker died."""
    try:
        return _timed(visit, traces, bench)
    except (SuperoptError, WorkerDiedError):
        return {}


def every(space: ScheduleSpace) -> Iterator[dict[str, Any]]:
    """The default point, and all points of the set that is timed exhaustively."""
    yield space.start
    names = list(space.decisions)
    if space.size > SMALL:
        ranked = sorted(names, key=lambda n: _FIRST.index(k) if (k := n.partition(".")[2]) in _FIRST else len(_FIRST))
        names, size = [], 1
        for name in ranked:
            options = len(space.decisions[name].options)
            if options > 1 and size * options <= EXHAUSTIVE:
                names, size = [*names, name], size * options
    for values in itertools.product(*[space.decisions[name].options for name in names]):
        yield space.start | dict(zip(names, values, strict=True))


def drawn(space: ScheduleSpace, rng: random.Random) -> Iterator[dict[str, Any]]:
    """The default point, then points drawn uniformly and from near the default, in turn."""
    yield space.start
    for k in range(TRIES):
        yield space.sample(rng) if k % 2 else space.mutate(space.start, rng, 3)


def _traces(
    points: Iterator[dict[str, Any]], space: ScheduleSpace, program: LoopProgram, footprint: int = 0
) -> list[Steps]:
    """The distinct traces of points that can be applied and are promising."""
    traces: dict[str, Steps] = {}
    most_s = math.inf
    for point in points:
        try:
            trace = space.trace(point)
            key = json.dumps(trace)
            if key in traces:
                continue
            estimate = estimate_s(stage_rows(apply(program, trace), space.threads, weights=footprint))
        except InputError:
            continue
        if not traces:
            most_s = HOPELESS * estimate
        if estimate <= most_s:
            traces[key] = trace
    return list(traces.values())


def _timed(visit: _Visit, traces: Sequence[Steps], bench: _Bench, most: float = math.inf) -> dict[int, list[Any]]:
    """Seconds and spills of the traces with code of their own, at most `most`, by number; under `PEAK`, the clock."""
    graph = parse_graph(visit.row["text"])
    size = int(sum(type_bytes(n.type) for n in (*graph.inputs, *graph.outputs)))
    with scratch_folder(size) as folder:
        problem = Path(folder) / "problem"
        save_problem(problem, graph, 0)
        builder = CandidateBuilder(bench.seat.worker, graph, visit.threads, problem, visit.footprint)
        builder.open()
        built: dict[str, tuple[int, int]] = {}
        first = 0
        while first < len(traces) and len(built) < most:
            some = range(first, min(first + max(4, int(1.3 * min(DISTINCT, most - len(built)))), len(traces)))
            first = some.stop
            for k, event in builder.build(some, [traces[k] for k in some]).items():
                if event["event"] == "built":
                    built.setdefault(event["digest"], (k, event["spills"]))
        kept = dict(itertools.islice(built.items(), None if most == math.inf else int(most)))
        samples: dict[int, list[Any]] = {}
        peaks: list[float] = []
        with bench.locks[bench.seat.host]:
            timed = [traces[k] for k, _ in kept.values()]
            events = builder.time({"digests": list(kept), **TIMING}, timed) if kept else []
        for event in events:
            seconds = float(f"{sorted(event['samples_s'])[:2][-1]:.4g}")  # the least but one: pauses fall on few
            if event["digest"] in kept:
                k, spills = kept[event["digest"]]
                samples[k] = [seconds, spills]
            else:
                peaks.append(seconds)
        return samples | ({PEAK: [float(f"{np.mean(peaks):.5g}")]} if peaks else {})
