"""Searches inside the stage of kernels: schedules, partitions, kernels in doubt; what a dying process takes with it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.backends import native
from superopt.backends.native import Native
from superopt.certify.kernels import prove_kernels
from superopt.choose import schedules as kernel_search
from superopt.choose.plain import KernelMaker, KernelProgram
from superopt.choose.schedules import search_schedules
from superopt.choose.trials import Trace, Trial, TrialPool, _Job, _Process, try_regions
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.kernels.choose.choice import NATIVE
from superopt.kernels.choose.partition import cost_of, partition
from superopt.kernels.choose.regions import Region
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.loops.program import from_graph
from superopt.machine.speedup import Speedup
from superopt.measure import Failure
from superopt.measure.process import WorkerDiedError
from superopt.schedules import tune as tuning
from superopt.schedules.space import space_of
from tests.support.stages import own_kernels

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
Seconds = Callable[[Region, Trace], float]


class Pool(TrialPool):
    """Trials that take what the test says, XLA's version always 100 us."""

    def __init__(self, seconds: Seconds) -> None:
        super().__init__(processes=1)
        self.seconds, self.asked = seconds, list[Region]()

    def start(self) -> None:
        """No processes."""

    def try_all(self, jobs: Sequence[tuple[Region, Trace]]) -> list[Trial]:
        self.asked += [region for region, _ in jobs]
        found: list[Trial] = []
        for region, trace in jobs:
            given = native.default_trace(region.graph) if trace is None else trace
            own_s = self.seconds(region, trace)
            ratio = Speedup(1e-4 / own_s, 1e-4 / own_s, 1e-4 / own_s)
            found.append(Trial(str(region), region.kind, cost_of(region), given, 1e-4, own_s, ratio))
        return found


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

    monkeypatch.setattr(kernel_search, "tune", tune)
    monkeypatch.setattr(kernel_search.Worker, "ready", lambda worker: None)
    return found


@pytest.fixture(scope="module")
def made() -> KernelProgram:
    def fn(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y / jnp.sum(jnp.abs(y), -1, keepdims=True)

    return own_kernels(import_function(fn, inputs()[:2]))


def test_a_searched_schedule_gets_into_the_program(made: KernelProgram, tuned: dict[Graph, Any]) -> None:
    pool = Pool(lambda region, trace: 2e-5 if trace in tuned.values() else 4e-5)
    form = KernelMaker(pool).searched(made, 30.0, 0)
    assert form is not None
    assert {choice.trace for choice in form.choices} == set(tuned.values())
    assert {row.schedule for row in form.rows} == {"best of 7 searched"}
    assert prove_kernels(form.program.hot, form.choices) == (2, "")


@pytest.mark.parametrize("change", ["slower in the trial", "not proved", "no time"])
def test_the_default_schedule_stays_otherwise(
    made: KernelProgram, tuned: dict[Graph, Any], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    real, slow = Native.prove, change == "slower in the trial"

    def doubting(self: Native, graph: Graph, trace: Any, ledger: Any = None) -> Any:
        verdict = real(self, graph, trace, ledger)
        return replace(verdict, status="UNKNOWN") if trace in tuned.values() and change == "not proved" else verdict

    monkeypatch.setattr(Native, "prove", doubting)
    pool = Pool(lambda region, trace: (6e-5 if slow else 2e-5) if trace in tuned.values() else 4e-5)
    assert KernelMaker(pool).searched(made, 0.5 if change == "no time" else 30.0, 0) is None


def test_the_search_itself_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_search, "_BUILDERS", 1)
    regions = cut(lambda x, w: jnp.tanh(x @ w), *inputs()[:2])
    (region,) = regions
    lines: list[str] = []
    with TrialPool(processes=1) as pool:
        tried = try_regions(regions, pool, budget_s=60.0)
        trial = search_schedules(regions, tried, pool, budget_s=60.0, most=4, progress=lines.append)[region.graph]
    assert trial.candidates == 4
    assert "4 schedules" in lines[-1]
    assert trial.searched or trial.trace == tried[region.graph].trace
    assert Native().prove(region.graph, trial.trace).proved
    assert trial.gain > 0.0


def test_regions_that_need_positive_values_are_tried_on_those() -> None:
    def fn(x: Any, v: Any) -> Any:
        return jnp.sum(jnp.maximum(x / jnp.sqrt(v + 1e-5), 0.0), -1)

    x = inputs()[0]
    regions = cut(fn, x, np.abs(x[:, :1]))
    with TrialPool(processes=1) as pool:
        (trial,) = try_regions(regions, pool, budget_s=60.0).values()
    assert trial.failure == ""
    assert trial.own_s


class Dying:
    """A process that dies while it builds one of the jobs."""

    def __init__(self, deadly: int) -> None:
        self.deadly, self.requests = deadly, list[list[int]]()

    def request(self, message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        jobs = json.loads(Path(message["path"]).read_text(encoding="utf-8"))
        self.requests.append([number for number, _, _ in jobs])
        for number, _, _ in jobs:
            yield {"event": "begin", "index": number}
            if number == self.deadly:
                raise WorkerDiedError(Failure("crash", "SIGSEGV"))
            yield {"event": "built", "index": number, "trace": []}


def test_a_kernel_that_kills_its_process_takes_no_other_with_it() -> None:
    regions = cut(two_layers, *inputs())
    worker: Any = Dying(1)
    jobs = [_Job(number, regions[0], None) for number in range(3)]
    assert _Process(worker, NATIVE).build(jobs, 0) == {0: (), 1: "crash: SIGSEGV", 2: ()}
    assert worker.requests == [[0, 1, 2], [0, 2]]
