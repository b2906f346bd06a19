"""The search of schedules inside the pipeline; what a dying process takes with it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.backends import native
from superopt.backends.native import Native
from superopt.candidates.candidate import Candidate
from superopt.certify.kernels import prove_kernels
from superopt.contest.rounds import ORIGINAL, Series
from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.kernels.choose.partition import cost_of, partition
from superopt.kernels.choose.regions import Region
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.loops.program import from_graph
from superopt.machine.deadline import Deadline
from superopt.machine.speedup import UNTIMED
from superopt.make import schedules as kernel_search
from superopt.make.plain import KernelMaker
from superopt.make.schedules import ScheduleStage
from superopt.make.trials import OptionalTrace, Trial, TrialPool
from superopt.measure import Comparison, Timing
from superopt.schedules import tune as tuning
from superopt.schedules.space import space_of
from superopt.workshop.job import Failure, Job, WorkerDiedError
from superopt.workshop.process import Worker
from tests.support.stages import own_kernels

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")


class Pool(TrialPool):
    """Kernels that are made at once."""

    def __init__(self) -> None:
        super().__init__(processes=1)

    def start(self) -> None:
        """No processes."""

    def make_all(
        self, jobs: Sequence[tuple[Graph, OptionalTrace]], end_s: float = math.inf
    ) -> list[OptionalTrace | str]:
        return [native.default_trace(g) if trace is None else trace for g, trace in jobs]


def cut(fn: Any, *args: Any) -> tuple[Region, ...]:
    return partition(import_function(fn, args).graph)


def two_layers(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w) @ w) @ v


def inputs(seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple((0.3 * rng.standard_normal(s)).astype(np.float32) for s in ((24, 32), (32, 32), (32, 40)))


def another_trace(graph: Graph) -> Any:
    """A schedule that is proved and not the default one."""
    space, rng = space_of(from_graph(graph.outputs), threads=1), random.Random(0)
    for _ in range(50):
        trace = stage_trace(space.trace(space.sample(rng)))
        if trace != native.default_trace(graph) and Native().prove(graph, trace).proved:
            return trace
    raise AssertionError("the space holds one schedule")


def stage_trace(steps: Any) -> Any:
    return kernel_search.frozen_trace(steps)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> dict[Graph, Any]:
    """A search that finds at once, for every graph, another schedule that takes half the time."""
    found: dict[Graph, Any] = {}

    def tune(graph: Graph, how: tuning.ScheduleSearch, **_: Any) -> tuning.TunedSchedule:
        found[graph] = another_trace(graph)
        program = from_graph(graph.outputs)
        return tuning.TunedSchedule(program, list(found[graph]), 1e-5, 2e-5, 7, 1.0, 1.0, 100, (), {})

    monkeypatch.setattr(kernel_search, "resolve", {Native.tuner: tune}.__getitem__)
    monkeypatch.setattr(Worker, "ready", lambda worker: None)
    return found


def rounds_in_which(searched_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a region XLA's version takes 100 us, the default schedule 40 us, and the searched one this."""

    def duel(rounds: Any, entries: Sequence[Candidate]) -> Series:
        series = Series(entries, 0)
        times = [Timing(tuple(s * (1.0 + 1e-3 * (k % 2)) for k in range(9)), UNTIMED) for s in (1e-4, 4e-5, searched_s)]
        series.add(Comparison(times[0], tuple(times[1:]), again_s=times[0].samples_s), (0, 1), 0)
        return series

    monkeypatch.setattr(kernel_search, "duel", duel)


@pytest.fixture(scope="module")
def made() -> Candidate:
    def fn(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y / jnp.sum(jnp.abs(y), -1, keepdims=True)

    return own_kernels(import_function(fn, inputs()[:2]))


def test_a_searched_schedule_gets_into_the_program(
    made: Candidate, tuned: dict[Graph, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds_in_which(2e-5, monkeypatch)
    maker = KernelMaker(Pool())
    form = maker.searched(made, Deadline.within(30.0), Worker(), 0)
    assert form is not None
    rows = maker.rows(form)
    assert all(row.xla_ms and row.own_ms and row.ratio for row in rows)
    assert {choice.trace for choice in form.kernels} == set(tuned.values())
    assert {row.schedule for row in rows} == {"best of 7 searched"}
    assert prove_kernels(form.program.hot, form.kernels) == (2, "")


@pytest.mark.parametrize("change", ["slower in the trial", "not proved", "no time"])
def test_the_default_schedule_stays_otherwise(
    made: Candidate, tuned: dict[Graph, Any], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    real, slow = Native.prove, change == "slower in the trial"

    def doubting(self: Native, graph: Graph, trace: Any, ledger: Any = None) -> Any:
        verdict = real(self, graph, trace, ledger)
        return replace(verdict, status="UNKNOWN") if trace in tuned.values() and change == "not proved" else verdict

    monkeypatch.setattr(Native, "prove", doubting)
    rounds_in_which(6e-5 if slow else 2e-5, monkeypatch)
    deadline = Deadline.within(0.5 if change == "no time" else 30.0)
    assert KernelMaker(Pool()).searched(made, deadline, Worker(), 0) is None


def own_tuner(graph: Graph, how: tuning.ScheduleSearch, **_: Any) -> tuning.TunedSchedule:
    """Fail: the search that a backend of its own names."""
    raise InputError("asked")


def test_schedules_are_searched_by_the_function_that_the_backend_names(
    made: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that said that it searches had schedules of the native one tried on its kernels."""
    monkeypatch.setattr(Worker, "ready", lambda worker: None)
    said: list[str] = []
    pool = Pool()
    pool.backend = type("Other", (Native,), {"tuner": f"{__name__}:own_tuner"})()
    maker = KernelMaker(pool, progress=said.append)
    assert maker.searched(made, Deadline.within(30.0), Worker(), 0) is None
    assert len(said) == len(made.kernels)
    assert all(line.endswith(" asked") for line in said)


def test_the_search_itself_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_search, "MOST_PROCESSES", 1)
    (region,) = cut(lambda x, w: jnp.tanh(x @ w), *inputs()[:2])
    lines: list[str] = []
    default = Trial(str(region), region.kind, cost_of(region), native.default_trace(region.graph))
    made, seconds = {region.graph: default}, {region.graph: 1e-5}
    with TrialPool(processes=1) as pool, Worker() as worker:
        stage = ScheduleStage(pool, worker, say=lines.append, most=4)
        trial = stage.searched([region], made, seconds, Deadline.within(60.0))[region.graph]
    assert trial.candidates == 4
    assert "4 schedules" in lines[-1]
    assert trial.searched or trial.trace == default.trace
    assert Native().prove(region.graph, trial.trace).proved


def test_schedules_are_timed_with_each_other_and_with_xla_where_values_have_to_be_positive() -> None:
    def fn(x: Any, v: Any) -> Any:
        return jnp.sum(jnp.maximum(x / jnp.sqrt(v + 1e-5), 0.0), -1)

    x = inputs()[0]
    (region,) = cut(fn, x, np.abs(x[:, :1]))
    default, other = native.default_trace(region.graph), another_trace(region.graph)
    with TrialPool(processes=1) as pool, Worker() as worker:
        assert pool.make_all([(region.graph, other)]) == [other]
        series = ScheduleStage(pool, worker)._timed(region.graph, (default, other), Deadline.within(60.0))
    assert series.failures == {}
    assert series.processes == 1
    assert all(series.median_s(i) for i in (ORIGINAL, 0, 1))
    assert series.ratio(1, 0) is not None


class Dying:
    """A process that dies while it builds one of the jobs."""

    def __init__(self, deadly: int) -> None:
        self.deadly, self.requests = deadly, 0

    def request(self, job: Job, end_s: float = math.inf) -> Iterator[dict[str, Any]]:
        _, trace = json.loads(Path(job.files["path"]).read_text(encoding="utf-8"))
        self.requests += 1
        if self.requests - 1 == self.deadly:
            raise WorkerDiedError(Failure("crash", "SIGSEGV"))
        yield {"event": "built", "seconds": 0.1, "trace": trace or []}

    def end(self) -> None:
        pass


def test_a_kernel_that_kills_its_process_takes_no_other_with_it() -> None:
    regions = cut(two_layers, *inputs())
    worker: Any = Dying(1)
    with TrialPool(processes=1) as pool:
        pool._workshop.seats[0].worker = worker
        assert pool.make_all([(regions[0].graph, None)] * 3) == [(), "crash: SIGSEGV", ()]
        assert worker.requests == 3
        assert pool.spent_s == pytest.approx(0.2)
