"""The workshop suite: jobs on a Ray cluster of one host against the same jobs in processes of this machine.

    equal       Kernels made and validated, candidates of schedules built, programs called: the same results from both.
    scaling     Jobs that sleep: those that four workers finish in the time in which one finishes one.
    driver      Jobs that do nothing: milliseconds of the driver's processors for each.
    recovered   Jobs that sleep on four workers, one of which is killed in the middle: all end with their results.

The cluster is one of four workers that this suite starts, without a dashboard and on the local interface alone.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superopt.arrays.bundles import scratch_folder
from superopt.ir.graph import Graph
from superopt.ir.program import original_program
from superopt.ir.text import print_graph
from superopt.kernels.choose.defaults import default_trace
from superopt.kernels.loops.program import from_graph
from superopt.lab.bench import Result, Say, table_with_summary, wanted
from superopt.measure import ran
from superopt.schedules.candidates import example_arrays, save_problem
from superopt.schedules.workload import workload
from superopt.workshop.cluster import RayExecutor, RayWorker
from superopt.workshop.job import Event, Failure, Job, JobKind, JobWorker
from superopt.workshop.process import ONE_KERNEL
from superopt.workshop.scheduler import LOCAL, Executor, Workers, sole_worker

WORKERS = 4
CLUSTER = {"num_cpus": WORKERS, "object_store_memory": 100 << 20}
"""Arguments of the cluster that the suite starts."""
OPERATORS = ("dot f32 64x96x32", "softmax f32 40x64", "dot s8 32x64x48", "conv f32 14x14x16 3x3x8")
_CANDIDATES = "superopt.schedules.candidates"
_SLEEPS, _SLEEP_S, _KILLED_S, _EMPTY = 32, 0.5, 1.0, 200
_COLUMNS = (("case", "case", ""), ("jobs", "jobs", "d"), ("seconds", "seconds", ".2f"), ("value", "value", ".3g"))


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Measure the cases on one cluster; `budget` is not used, since the work is fixed."""
    measures = {"equal": _equal, "scaling": _scaling, "driver": _driver, "recovered": _recovered}
    names = {"equal": "ray_equals_local", "scaling": "scaling_4", "driver": "driver_ms", "recovered": "recovered"}
    rows: list[dict[str, Any]] = []
    with RayExecutor("local", **CLUSTER) as cluster:
        for case in [name for name in measures if wanted(name, cases)]:
            begin = time.perf_counter()
            jobs, value = measures[case](cluster, seed)
            rows.append({"case": case, "jobs": jobs, "seconds": time.perf_counter() - begin, "value": value})
            say(f"{case}: {value:.3g}")
    summary = {names[row["case"]]: row["value"] for row in rows}
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def _equal(cluster: RayExecutor, seed: int) -> tuple[int, float]:
    """Number of jobs, and whether both executors give the same results."""
    with scratch_folder(1 << 20) as folder:
        here, there = (_results(executor, Path(folder), seed) for executor in (LOCAL, cluster))
    return len(here), float(here == there)


def _results(executor: Executor, folder: Path, seed: int) -> list[Any]:
    """Results that no clock decides: schedules of kernels made and validated, digests of code, values of programs."""
    graphs = [workload(text) for text in OPERATORS]
    jobs: list[Job] = []
    kinds: tuple[JobKind, ...] = ("make", "validate")
    for number, graph in enumerate(graphs):
        path = folder / f"{number}.json"
        path.write_text(json.dumps([print_graph(graph), None]), encoding="utf-8")
        for kind in kinds:
            jobs.append(Job(kind, f"superopt.make.making:{kind}", {"backend": "native"}, {"path": str(path)}))
    making = Workers(WORKERS, executor).workshop(ONE_KERNEL, inline=True, loads="superopt.make.making:load")
    with making as workshop:
        done = workshop.done(jobs)
    made = [done[n] if isinstance(done[n], Failure) else _timeless(done[n]) for n in range(len(jobs))]
    with sole_worker(executor) as worker:
        built = [_built(worker, graph, folder, seed) for graph in graphs]
        return [*made, *built, *(_called(worker, graph, seed) for graph in graphs)]


def _called(worker: JobWorker, graph: Graph, seed: int) -> list[bytes]:
    """Bytes of what an operator gives for random inputs, as XLA computes it in the worker."""
    program, values = original_program(graph), example_arrays(graph, seed)
    frozen = {node["name"]: values[node["name"]] for node in graph.inputs if node["frozen"]}
    (results,) = ran(program, [[values[node["name"]] for node in program.live_inputs]], frozen, worker=worker).results
    return [x.tobytes() for x in results]


def _built(worker: JobWorker, graph: Any, folder: Path, seed: int) -> list[Event]:
    """Events of the worker as it opens an operator and builds its default schedule."""
    path = folder / "problem"
    save_problem(path, graph, seed)
    trace = default_trace(from_graph(graph.outputs, name="kernel"), threads=1)
    data = {"graph": print_graph(graph), "threads": 1}
    opened = list(worker.request(Job("make", f"{_CANDIDATES}:open_graph", data, {"problem": str(path)})))
    built = worker.request(Job("make", f"{_CANDIDATES}:build_candidates", {"indices": [0], "traces": [trace]}))
    return _timeless([*opened, *built])


def _timeless(events: Any) -> list[Event]:
    """Events without the seconds that they took."""
    return [{key: x for key, x in event.items() if key not in ("seconds", "compile_s")} for event in events]


def _sleeps(count: int, seconds: float = _SLEEP_S) -> list[Job]:
    call = "superopt.lab.bench.sleeping:sleep"
    return [Job("make", call, {"seconds": seconds, "number": n}, portable=True) for n in range(count)]


def _scaling(cluster: RayExecutor, seed: int) -> tuple[int, float]:
    """Number of jobs, and the rate of four workers over that of one."""
    rates: list[float] = []
    for workers in (1, WORKERS):
        with Workers(workers, cluster).workshop(ONE_KERNEL) as workshop:
            workshop.done(_sleeps(2 * workers, 0.0))
            jobs = _sleeps(_SLEEPS * workers // WORKERS)
            begin = time.perf_counter()
            workshop.done(jobs)
            rates.append(len(jobs) / (time.perf_counter() - begin))
    return _SLEEPS, rates[1] / rates[0]


def _driver(cluster: RayExecutor, seed: int) -> tuple[int, float]:
    """Number of jobs, and milliseconds of processor time of this process for each."""
    with Workers(WORKERS, cluster).workshop(ONE_KERNEL) as workshop:
        workshop.done(_sleeps(2 * WORKERS, 0.0))
        begin = time.process_time()
        workshop.done(_sleeps(_EMPTY, 0.0))
        return _EMPTY, 1e3 * (time.process_time() - begin) / _EMPTY


def _recovered(cluster: RayExecutor, seed: int) -> tuple[int, float]:
    """Number of jobs, and whether all have their results although a worker was killed."""
    with Workers(WORKERS, cluster).workshop(ONE_KERNEL) as workshop:
        workshop.start()
        workshop.ready()
        victim = workshop.seats[seed % WORKERS].worker
        assert isinstance(victim, RayWorker)
        killing = threading.Timer(_KILLED_S, os.kill, (victim.pid(), signal.SIGKILL))
        killing.start()
        done = workshop.done(_sleeps(_SLEEPS))
        killing.join()
        lost = victim.started > 1
    right = all(done[n] == [{"event": "slept", "number": n}] for n in range(_SLEEPS))
    return _SLEEPS, float(right and lost)
