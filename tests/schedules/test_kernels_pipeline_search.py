"""Searches inside the stage of kernels: schedules, partitions, kernels in doubt; what a dying process takes with it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.backends import native
from superopt.certify.kernels import prove_kernel, prove_kernels
from superopt.choose import implement as stage
from superopt.choose import schedules as kernel_search
from superopt.choose.forms import ProgramForm
from superopt.choose.partitions import changes_of, search_partition
from superopt.choose.schedules import search_schedules
from superopt.choose.trials import Trace, Trial, TrialPool, _Job, _Process, try_regions
from superopt.contest import comparing
from superopt.contest.judgement import Judgement
from superopt.explore.exploration import explore
from superopt.explore.found import Exploration
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.graph import Graph
from superopt.ir.program import original_program
from superopt.kernels.choose.choice import choices_of, read_choice, regions_of
from superopt.kernels.choose.partition import cost_of, partition
from superopt.kernels.choose.regions import Region
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.loops.program import from_graph
from superopt.machine.speedup import Speedup
from superopt.measure import Comparison, Failure, Timing, Tuned
from superopt.measure.process import WorkerDiedError
from superopt.report.data import of_original
from superopt.schedules import tune as tuning
from superopt.schedules.space import space_of
from tests.support.stages import implemented, steps

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


def form_of(fn: Any, *args: Any) -> tuple[Imported, ProgramForm]:
    imported = import_function(fn, args)
    program = original_program(imported.graph)
    return imported, ProgramForm("own form", program, None, partition(program.hot))


def same_values(imported: Imported, form: ProgramForm, *args: Any) -> None:
    """The regions of a form, as kernels, compute what the function does, and are proved."""
    choices = choices_of(form.program.hot, [(r, None) for r in form.regions])
    assert prove_kernels(form.program.hot, choices)[1] == ""
    got = native.build(form.program, {}, kernels=choices)(*args)
    want = imported.fn(*args)
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def two_layers(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w) @ w) @ v


def inputs(seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple((0.3 * rng.standard_normal(s)).astype(np.float32) for s in ((24, 32), (32, 32), (32, 40)))


def test_an_epilogue_is_cut_off_at_all_equal_places_where_that_is_faster() -> None:
    imported, form = form_of(two_layers, *inputs())
    assert [r.kind for r in form.regions] == ["contraction"] * 3

    def seconds(region: Region, trace: Trace) -> float:
        ops = {n.op for n in region.nodes}
        return 9e-5 if {"tanh", "dot_general"} <= ops else 2e-5

    with Pool(seconds) as pool:
        tried = try_regions(form.regions, pool, budget_s=60.0)
        best, tried = search_partition(form, tried, pool, budget_s=60.0)
    assert best.name == "own form, other regions"
    assert sorted(r.kind for r in best.regions) == ["contraction"] * 3 + ["map"] * 2
    assert all(r.graph in tried for r in best.regions)
    same_values(imported, best, *inputs())


def test_a_value_is_computed_by_its_readers_where_that_is_faster() -> None:
    def fn(x: Any) -> Any:
        y = jnp.exp(x)
        return jnp.sum(y, 0), jnp.sum(y, 1)

    x = inputs()[0]
    imported, form = form_of(fn, x)
    assert [r.kind for r in form.regions] == ["map", "rows", "rows"]
    with Pool(lambda region, _: 3e-5) as pool:
        tried = try_regions(form.regions, pool, budget_s=60.0)
        best, _ = search_partition(form, tried, pool, budget_s=60.0)
    assert [r.kind for r in best.regions] == ["rows", "rows"]
    same_values(imported, best, x)


def test_the_partition_stays_where_nothing_else_is_faster() -> None:
    _, form = form_of(two_layers, *inputs())
    with Pool(lambda region, _: 5e-5) as pool:
        tried = try_regions(form.regions, pool, budget_s=60.0)
        before = len(pool.asked)
        best, after = search_partition(form, tried, pool, budget_s=60.0)
        assert len(pool.asked) > before
        assert best is form
        assert all(after[r.graph] == tried[r.graph] for r in form.regions)
        asked = len(pool.asked)
        assert search_partition(form, tried, pool, budget_s=0.0)[0] is form
        assert len(pool.asked) == asked


def test_products_are_not_joined_to_what_a_kernel_cannot_hold() -> None:
    def fn(x: Any, w: Any, v: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y @ v, jnp.sum(y, 1)

    _, form = form_of(fn, *inputs())
    with Pool(lambda region, _: 5e-5) as pool:
        tried = try_regions(form.regions, pool, budget_s=60.0)
    names = [change.name for change in changes_of(form, tried)]
    assert names
    assert all(name.startswith("cut after dot_general") for name in names)


def test_a_trial_measured_slower_the_second_time_changes_nothing() -> None:
    _, form = form_of(two_layers, *inputs())
    seen: dict[Graph, int] = {}

    def seconds(region: Region, trace: Trace) -> float:
        seen[region.graph] = seen.get(region.graph, 0) + 1
        fused = {"tanh", "dot_general"} <= {n.op for n in region.nodes}
        return 9e-5 if fused and seen[region.graph] == 1 else 3e-5

    with Pool(seconds) as pool:
        tried = try_regions(form.regions, pool, budget_s=60.0)
        assert search_partition(form, tried, pool, budget_s=60.0)[0] is form
    assert max(seen.values()) == 2


def another_trace(graph: Graph) -> Any:
    """A schedule that is proved and not the default one."""
    space, rng = space_of(from_graph(graph.outputs), threads=1), random.Random(0)
    for _ in range(50):
        trace = stage_trace(space.trace(space.sample(rng)))
        if trace != native.default_trace(graph) and prove_kernel(graph, trace).proved:
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
def found() -> tuple[Imported, Exploration]:
    def fn(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y / jnp.sum(jnp.abs(y), -1, keepdims=True)

    imported = import_function(fn, inputs()[:2])
    return imported, explore(imported.graph, (), steps(1))


def judged(imported: Imported) -> Judgement:
    return Judgement(original_program(imported.graph), None, "the original was returned", of_original(1.0))


def compared(seconds: Callable[[Tuned], float]) -> Any:
    """In place of `compare`: programs take what the test says, those without kernels 1 ms."""

    def timing(candidate: Any) -> Timing:
        s = seconds(candidate) if getattr(candidate, "kernels", ()) else 1e-3
        return Timing(tuple(s * (1 + 1e-3 * (k % 3)) for k in range(9)), Speedup(1.0, 1.0, 1.0))

    def compare(reference: Any, candidates: Sequence[Any], *_: Any, **__: Any) -> Comparison:
        base = timing(reference)
        times = [timing(c) for c in candidates]
        ratios = [base.samples_s[0] / t.samples_s[0] for t in times]
        return Comparison(
            base, tuple(replace(t, ratio=Speedup(r, 0.99 * r, 1.01 * r)) for t, r in zip(times, ratios, strict=True))
        )

    return compare


def test_a_searched_schedule_gets_into_the_program(
    found: tuple[Imported, Exploration], tuned: dict[Graph, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(lambda region, trace: 2e-5 if trace in tuned.values() else 4e-5)
    monkeypatch.setattr(comparing, "compare", compared(lambda program: 4e-4))
    imported, exploration = found
    judgement = implemented(imported, exploration, judged(imported), "30s", pool)
    assert {choice.trace for choice in judgement.kernels} == set(tuned.values())
    assert {row.schedule for row in judgement.native} == {"best of 7 searched"}
    assert judgement.implementation["kernels"] == 2
    assert prove_kernels(judgement.program.hot, judgement.kernels) == (2, "")


@pytest.mark.parametrize(
    ("change", "schedule"),
    [("slower in the trial", "default, none of 7"), ("not proved", "default, none of 7"), ("no time", "default")],
)
def test_the_default_schedule_stays_otherwise(
    found: tuple[Imported, Exploration],
    tuned: dict[Graph, Any],
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    schedule: str,
) -> None:
    from superopt.certify import kernels

    real, slow = kernels.prove_kernel, change == "slower in the trial"

    def doubting(graph: Graph, trace: Any, ledger: Any = None) -> Any:
        verdict = real(graph, trace, ledger)
        return replace(verdict, status="UNKNOWN") if trace in tuned.values() and change == "not proved" else verdict

    monkeypatch.setattr("superopt.choose.schedules.prove_kernel", doubting)
    pool = Pool(lambda region, trace: (6e-5 if slow else 2e-5) if trace in tuned.values() else 4e-5)
    monkeypatch.setattr(comparing, "compare", compared(lambda program: 4e-4))
    imported, exploration = found
    budget = "6s" if change == "no time" else "30s"
    judgement = implemented(imported, exploration, judged(imported), budget, pool)
    traces = {native.default_trace(r.graph) for r in regions_of(judgement.program.hot, judgement.kernels)}
    assert {choice.trace for choice in judgement.kernels} == traces
    assert all(row.schedule.startswith(schedule) for row in judgement.native)


def test_the_search_itself_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_search, "_BUILDERS", 1)
    _, form = form_of(lambda x, w: jnp.tanh(x @ w), *inputs()[:2])
    (region,) = form.regions
    lines: list[str] = []
    with TrialPool(processes=1) as pool:
        tried = try_regions(form.regions, pool, budget_s=60.0)
        trial = search_schedules(form.regions, tried, pool, budget_s=60.0, most=4, progress=lines.append)[region.graph]
    assert trial.candidates == 4
    assert "4 schedules" in lines[-1]
    assert trial.searched or trial.trace == tried[region.graph].trace
    assert prove_kernel(region.graph, trial.trace).proved
    assert trial.gain > 0.0


def test_kernels_in_doubt_are_decided_in_the_program(
    found: tuple[Imported, Exploration], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported, exploration = found

    def program_s(tuned: Tuned) -> float:
        kinds = {regions_of(tuned.program.hot, [read_choice(c)])[0].kind for c in tuned.kernels}
        return 3e-4 if kinds == {"rows"} else 4e-4

    pool = Pool(lambda r, _: 9e-5 if r.kind == "contraction" else 2e-5)
    monkeypatch.setattr(comparing, "compare", compared(program_s))
    judgement = implemented(imported, exploration, judged(imported), "6s", pool)
    assert [r.kind for r in regions_of(judgement.program.hot, judgement.kernels)] == ["rows"]
    rows = {row.kind: row.used for row in judgement.native}
    assert rows == {"contraction": False, "rows": True}


def test_kernels_that_gain_much_are_tried_before_all_are_dropped(
    found: tuple[Imported, Exploration], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported, exploration = found

    def program_s(tuned: Tuned) -> float:
        kinds = {regions_of(tuned.program.hot, [read_choice(c)])[0].kind for c in tuned.kernels}
        return 3e-4 if kinds == {"rows"} else 1.2e-3

    pool = Pool(lambda r, _: 9e-5 if r.kind == "contraction" else 2e-5)
    monkeypatch.setattr(comparing, "compare", compared(program_s))
    monkeypatch.setattr(stage._Stage, "_refined", lambda self, form, choices, tried: choices)
    judgement = implemented(imported, exploration, judged(imported), "6s", pool)
    assert [r.kind for r in regions_of(judgement.program.hot, judgement.kernels)] == ["rows"]
    monkeypatch.setattr(comparing, "compare", compared(lambda program: 1.2e-3))
    judgement = implemented(imported, exploration, judged(imported), "6s", pool)
    assert judgement.kernels == ()
    assert "as fast with them; with 1 of them: on fresh rounds" in judgement.notes[-1]


def test_a_form_of_which_little_was_tried_is_not_compared() -> None:
    _, form = form_of(two_layers, *inputs())
    often, once = form.regions[0], form.regions[-1]
    form = replace(form, regions=(*[often] * 20, once))
    trial = Trial("fast", "contraction", cost_of(once), xla_s=1e-9, own_s=1e-9)
    anything: Any = None
    court = stage._Stage(anything, anything, anything, anything, anything, anything, 0.0)
    assert court._expected_s(form, {}) == math.inf
    assert court._expected_s(form, {once.graph: trial}) == math.inf
    most = court._expected_s(form, {often.graph: trial})
    assert court._expected_s(form, {often.graph: trial, once.graph: trial}) == pytest.approx(most, rel=0.2)


def test_regions_that_need_positive_values_are_tried_on_those() -> None:
    def fn(x: Any, v: Any) -> Any:
        return jnp.sum(jnp.maximum(x / jnp.sqrt(v + 1e-5), 0.0), -1)

    x = inputs()[0]
    _, form = form_of(fn, x, np.abs(x[:, :1]))
    with TrialPool(processes=1) as pool:
        (trial,) = try_regions(form.regions, pool, budget_s=60.0).values()
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
    _, form = form_of(two_layers, *inputs())
    worker: Any = Dying(1)
    jobs = [_Job(number, form.regions[0], None) for number in range(3)]
    assert _Process(worker).build(jobs, 0) == {0: (), 1: "crash: SIGSEGV", 2: ()}
    assert worker.requests == [[0, 1, 2], [0, 2]]
