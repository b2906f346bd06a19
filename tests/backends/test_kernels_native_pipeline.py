"""The stage that puts kernels into programs: what is tried, when they are kept, what is reported and remembered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from costmodel.model.load import load_objective
from superopt.backends import native
from superopt.backends.native import NativeExecutable
from superopt.certify.kernels import prove_kernels
from superopt.certify.library import ProvedLibrary
from superopt.certify.plan import empty_plan
from superopt.choose import implement as stage
from superopt.choose.forms import forms_of
from superopt.choose.trials import Trial, TrialPool, cost_of, try_regions, worth_trying
from superopt.contest import comparing
from superopt.contest.judgement import Judgement
from superopt.explain.summary import make_report
from superopt.explore.exploration import explore
from superopt.explore.found import Exploration
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.graph import Graph
from superopt.ir.program import original_program
from superopt.kernels.choose.choice import choices_of
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.regions import Region
from superopt.kernels.llvm.cpu import supported
from superopt.machine.barrier import Barrier
from superopt.machine.speedup import Speedup
from superopt.measure import Comparison, Timing
from superopt.pipeline import optimizer
from superopt.report.data import Report, of_original, read_report
from superopt.returned.optimized import Optimized
from superopt.returned.remember import recall, remember
from superopt.store import Store
from tests.support.stages import implemented, steps

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")


def mixer(p: dict[str, Any], x: Any) -> Any:
    y = jnp.maximum(x @ p["w"] + p["b"], 0.0)
    d = y - jnp.mean(y, -1, keepdims=True)
    return d / jnp.sqrt(jnp.mean(d * d, -1, keepdims=True) + 1e-5)


@pytest.fixture(scope="module")
def found() -> tuple[Imported, Exploration]:
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((48, 96)).astype(np.float32), "b": rng.standard_normal(96).astype(np.float32)}
    x = rng.standard_normal((40, 48)).astype(np.float32)
    imported = import_function(mixer, (params, x), frozen=0)
    return imported, explore(imported.graph, (), steps(1))


def judged(imported: Imported) -> Judgement:
    return Judgement(original_program(imported.graph), None, "the original was returned", of_original(1.0))


def timing(seconds: float, reference: float, rounds: int = 9) -> Timing:
    ratio = reference / seconds
    return Timing(
        tuple(seconds * (1 + 1e-3 * (k % 3)) for k in range(rounds)), Speedup(ratio, 0.99 * ratio, 1.01 * ratio)
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Trials and comparisons that take what the test says: seconds of a program with kernels, and without."""
    seconds = {"with": 0.5e-3, "without": 1e-3, "own": 1e-4, "xla": 2e-4}

    def tried(regions: Sequence[Region], pool: TrialPool, *, known: Any = None, **_: Any) -> dict[Graph, Trial]:
        trace, ratio = native.default_trace, Speedup(2.0, 1.9, 2.1)
        return (known or {}) | {
            r.graph: Trial(str(r), r.kind, cost_of(r), trace(r.graph), seconds["xla"], seconds["own"], ratio)
            for r in regions
        }

    def compared(reference: Any, candidates: Sequence[Any], *_: Any, **__: Any) -> Comparison:
        times = [seconds["with" if getattr(c, "kernels", ()) else "without"] for c in candidates]
        base = timing(1e-3, 1e-3)
        return Comparison(base, tuple(timing(s, 1e-3) for s in times))

    monkeypatch.setattr(stage, "try_regions", tried)
    monkeypatch.setattr(stage, "search_partition", lambda form, tried, *_, **__: (form, tried))
    monkeypatch.setattr(TrialPool, "start", lambda pool: None)
    monkeypatch.setattr(comparing, "compare", compared)
    return seconds


BUDGET = "5s"


def test_kernels_are_kept_where_the_program_is_faster(
    found: tuple[Imported, Exploration], measured: dict[str, float]
) -> None:
    imported, exploration = found
    judgement = implemented(imported, exploration, judged(imported), BUDGET)
    assert len(judgement.kernels) == 2
    assert "2 of its kernels are our own" in judgement.verdict
    assert judgement.measured.speedup.ratio == pytest.approx(2.0)
    assert judgement.implementation["kernels"] == judgement.implementation["regions"] == 2
    assert [row.used for row in judgement.native] == [True, True]
    assert judgement.numerics is not None
    assert judgement.numerics.max_rel_error < 1e-5
    assert set(judgement.measured.samples_ms) == {"original", "without kernels", "returned"}


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"with": 1.2e-3}, "not faster|as fast"),
        ({"with": 1e-3}, "not faster|as fast"),
        ({"own": 1e-3}, "no kernel was"),
    ],
)
def test_kernels_are_given_up_where_it_is_not(
    found: tuple[Imported, Exploration], measured: dict[str, float], change: dict[str, float], cause: str
) -> None:
    imported, exploration = found
    measured.update(change)
    before = judged(imported)
    judgement = implemented(imported, exploration, before, BUDGET)
    assert judgement.kernels == ()
    assert (judgement.program, judgement.verdict) == (before.program, before.verdict)
    assert judgement.implementation["kernels"] == 0
    assert any(row.xla_ms for row in judgement.native)
    (note,) = judgement.notes
    assert re.search(cause, note)


def test_a_kernel_that_is_not_proved_is_not_used(
    found: tuple[Imported, Exploration], measured: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from superopt.certify import kernels

    real = kernels.prove_kernel

    def doubting(graph: Graph, trace: Any, ledger: Any = None) -> Any:
        verdict = real(graph, trace, ledger)
        return replace(verdict, status="UNKNOWN") if any(n.op == "dot_general" for n in graph.nodes()) else verdict

    monkeypatch.setattr("superopt.choose.schedules.prove_kernel", doubting)
    imported, exploration = found
    judgement = implemented(imported, exploration, judged(imported), BUDGET)
    assert len(judgement.kernels) == 1
    assert [(row.kind, row.used) for row in judgement.native if not row.used] == [("contraction", False)]
    assert "UNKNOWN" in next(row.failure for row in judgement.native if not row.used)


def test_the_limit_of_prepared_bytes_holds_for_packed_weights(
    found: tuple[Imported, Exploration], measured: dict[str, float]
) -> None:
    imported, exploration = found
    judgement = implemented(imported, exploration, judged(imported), BUDGET, max_prepared_bytes=1000)
    assert judgement.kernels == ()


def test_small_budgets_and_machines_without_kernels_try_none(
    found: tuple[Imported, Exploration], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported, exploration = found
    short = implemented(imported, exploration, judged(imported), "2s")
    assert (short.kernels, short.native) == ((), ())
    assert "budget" in short.notes[-1]
    monkeypatch.setattr("superopt.choose.implement.unavailable", lambda: "none are made for a z80")
    other = implemented(imported, exploration, judged(imported), BUDGET)
    assert other.notes[-1] == "no kernels of our own: none are made for a z80"


def test_no_kernels_under_exact_numerics_and_when_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(imported: Imported, found: Any, judgement: Judgement, *_: Any, **__: Any) -> Judgement:
        calls.append("implement")
        return judgement

    monkeypatch.setattr(optimizer, "implement", counted)
    monkeypatch.setattr(optimizer, "judge", lambda imported, *_, **__: judged(imported))
    x = np.ones((8, 8), np.float32)
    options: dict[str, Any] = {"budget": "5steps", "store": False, "rules": (), "objective": load_objective(None)}
    for extra in ({"numerics": "exact"}, {"deterministic": True}, {"kernels": False}):
        superopt.optimize(jnp.tanh, x, **options, **extra)
    assert calls == []
    superopt.optimize(jnp.tanh, x, **options)
    assert calls == ["implement"]


def test_trials_run_in_the_worker_and_name_what_fails() -> None:
    def f(x: Any, y: Any) -> Any:
        return jnp.exp(x) + y, jnp.sum(x * y, 1)

    x = np.ones((64, 64), np.float32)
    graph = import_function(f, (x, x)).graph
    regions = partition(graph)
    assert worth_trying(regions) == list(regions)
    with TrialPool(processes=1) as pool:
        trials = try_regions(regions, pool, budget_s=60.0)
        assert {t.kind for t in trials.values()} == {"map", "rows"}
        assert all(t.gain > 0 and t.own_s and t.xla_s and t.trace is not None for t in trials.values())
        wrong = pool.try_all([(regions[0], (("split", "out0", "nowhere", (4,)),))])[0]
        assert try_regions(regions, pool, budget_s=0.0, known=trials) == trials
    assert wrong.failure
    assert wrong.gain == 0.0


def test_what_moves_next_to_nothing_is_not_tried() -> None:
    def f(x: Any) -> Any:
        return jnp.tanh(x), x.reshape(-1)

    graph = import_function(f, (np.ones((4, 4), np.float32),)).graph
    assert len(partition(graph)) == 2
    assert worth_trying(partition(graph)) == []


def test_forms_hold_every_region_of_the_program_once(found: tuple[Imported, Exploration]) -> None:
    imported, exploration = found
    forms = forms_of(exploration, judged(imported))
    assert [form.name for form in forms] == ["returned", "own form"]
    form = forms[0]
    kernels = choices_of(form.program.hot, [(r, native.default_trace(r.graph)) for r in form.regions])
    assert prove_kernels(form.program.hot, kernels) == (2, "")


def test_kernels_are_reported_remembered_and_validated(
    found: tuple[Imported, Exploration], measured: dict[str, float], tmp_path: Path
) -> None:
    imported, exploration = found
    judgement = implemented(imported, exploration, judged(imported), BUDGET)

    memory = {"frozen_bytes": 1, "prepared_bytes": 2, "added_bytes": 3}
    library = ProvedLibrary((), {})
    report: Report = make_report("mixer", imported, exploration, judgement, library, steps(1), memory, Barrier())
    assert read_report(report.to_json()) == report
    assert re.search(r"2 of 2 regions.* are our own: 2.00x", str(report))
    assert not report.original_returned
    report.save(str(tmp_path / "report.html"))
    assert "Kernels of our own" in (tmp_path / "report.html").read_text()
    executable = native.build(judgement.program, imported.frozen_values, kernels=judgement.kernels)
    plan = empty_plan(imported.graph, "real")
    result = Optimized(imported, judgement.program, executable, report, plan, judgement.kernels)
    validation = result.validate()
    assert validation.valid, validation.cause
    assert validation.kernels == 2
    assert "2 schedules of kernels" in str(validation)
    store = Store(tmp_path / "store.db")
    try:
        remember(store, "key", result)
        again = recall(store, "key", imported)
    finally:
        store.close()
    assert again is not None
    assert isinstance(again.executable, NativeExecutable)
    assert again.kernels == judgement.kernels
    params, x = jax.tree_util.tree_unflatten(imported.in_tree, imported.examples)[0]
    np.testing.assert_allclose(again(params, x), mixer(params, x), rtol=1e-4, atol=1e-5)
    path = result.save(tmp_path / "mixer.superopt")
    assert superopt.load(path).validate().kernels == 2
    assert again.speedup == Speedup(**report.to_json()["speedup"])
