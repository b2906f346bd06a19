"""The stage that puts kernels into programs: what is tried, when they are kept, what is reported and remembered."""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from costmodel.model.kept import EarlierKernels
from costmodel.model.load import load_native, load_objective
from superopt.backends import mixed, native
from superopt.backends.mixed import MixedExecutable
from superopt.backends.native import Native
from superopt.backends.protocol import backend_of, default_trace
from superopt.candidates.ledger import ChoiceReason, RunLedger
from superopt.certify.kernels import ValidatedCode, _field_s, validate_code
from superopt.certify.library import ProvedLibrary
from superopt.certify.plan import empty_plan
from superopt.contest.checks import OriginalRuns
from superopt.contest.choices import compare_with_original, decided, original_returned
from superopt.contest.contest import Outcome
from superopt.contest.rounds import Series
from superopt.explain.summary import make_report
from superopt.explore.exploration import explore
from superopt.explore.found import Exploration
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.graph import Graph
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.specs import NATIVE
from superopt.kernels.llvm.cpu import supported
from superopt.machine.fallback import Fallback
from superopt.machine.speedup import Speedup
from superopt.make.plain import KernelMaker, in_regions, own_form
from superopt.make.trials import TrialPool
from superopt.measure import Comparison, Timing
from superopt.measure.kernels import XLA
from superopt.pipeline import contesting, exploring
from superopt.report.data import Report, read_report
from superopt.returned.optimized import Optimized
from superopt.returned.remember import recall, remember
from superopt.store import Store
from tests.support.stages import own_kernels, steps
from verifier.kernels.check import KernelVerdict
from verifier.verdict import REFUTED, UNKNOWN

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")


def mixer(p: dict[str, Any], x: Any) -> Any:
    y = jnp.maximum(x @ p["w"] + p["b"], 0.0)
    d = y - jnp.mean(y, -1, keepdims=True)
    return d / jnp.sqrt(jnp.mean(d * d, -1, keepdims=True) + 1e-5)


def timing(seconds: float, reference: float, rounds: int = 9) -> Timing:
    ratio = reference / seconds
    return Timing(
        tuple(seconds * (1 + 1e-3 * (k % 3)) for k in range(rounds)), Speedup(ratio, 0.99 * ratio, 1.01 * ratio)
    )


@pytest.fixture(scope="module")
def found() -> tuple[Imported, Exploration]:
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((48, 96)).astype(np.float32), "b": rng.standard_normal(96).astype(np.float32)}
    x = rng.standard_normal((40, 48)).astype(np.float32)
    imported = import_function(mixer, (params, x), frozen=0)
    return imported, explore(imported.graph, (), steps(1))


def test_a_kernel_that_is_not_proved_is_not_used(
    found: tuple[Imported, Exploration], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Native.prove

    def doubting(self: Native, graph: Graph, trace: Any, ledger: Any = None) -> Any:
        verdict = real(self, graph, trace, ledger)
        return replace(verdict, status="UNKNOWN") if any(n.op == "dot_general" for n in graph.nodes()) else verdict

    monkeypatch.setattr(Native, "prove", doubting)
    with TrialPool(processes=1) as pool:
        maker = KernelMaker(pool)
        made = maker.make(in_regions("own form", own_form(found[0].graph)))
    assert len(made.kernels) == 1
    unused = [row for row in maker.rows(made) if not row.used]
    assert [row.kind for row in unused] == ["contraction"]
    assert "UNKNOWN" in unused[0].failure


def test_the_limit_of_prepared_bytes_holds_for_packed_weights(found: tuple[Imported, Exploration]) -> None:
    assert own_kernels(found[0], max_prepared_bytes=1000).kernels == ()


@pytest.mark.parametrize(
    "extra", [{"numerics": "exact"}, {"deterministic": True}, {"kernels": False}, {"budget": "2s"}, {}]
)
def test_no_kernels_where_none_are_asked_for_and_none_can_be_chosen(
    extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not under exact numerics, where nothing is measured, in small budgets, and on machines without them."""
    if not extra:
        monkeypatch.setattr(Native, "unavailable", lambda _: "none are made for a z80")

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("no kernel is made")

    monkeypatch.setattr(KernelMaker, "make", never)
    monkeypatch.setattr(contesting, "contest", lambda *_, **__: Outcome([], Series([], 0), Series([], 0), 0))
    options: dict[str, Any] = {"budget": "5steps", "store": False, "rules": (), "objective": load_objective(None)}
    fast = superopt.optimize(jnp.tanh, np.ones((8, 8), np.float32), **(options | extra))
    assert fast.kernels == ()


@pytest.mark.usefixtures("unsearched")
def test_timed_kernels_are_kept_and_correct_the_prices_of_the_next_call(tmp_path: Path) -> None:
    given: list[EarlierKernels] = []

    def explored(*args: Any, **options: Any) -> Exploration:
        given.append(args[2].earlier)
        return explore(*args, **options)

    store, x = tmp_path / "store.sqlite", np.ones((64, 96), np.float32)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exploring, "explore", explored)
        for seed in (0, 1):
            superopt.optimize(lambda x: jnp.tanh(x @ x.T), x, budget="5steps", store=store, rules=(), seed=seed)
    assert given[0] == {}
    timed = given[1][cast("Any", load_native()).version]
    assert "dot" in {label.kind for label in timed}
    assert all(label.seconds > 0 for label in timed)


def test_regions_that_xla_computes_faster_are_left_to_it(found: tuple[Imported, Exploration]) -> None:
    class Prices:
        """XLA takes 2 s for products and 1 s for the rest, our kernels 1.5 s for all."""

        models: ClassVar[dict[str, object]] = {}

        def by_backend(self, graphs: Sequence[Graph], *, timed: bool = True) -> dict[str, np.ndarray]:
            xla = [2.0 if any(n.op == "dot_general" for n in g.nodes()) else 1.0 for g in graphs]
            return {XLA: np.array(xla), NATIVE: np.full(len(graphs), 1.5)}

        own, own_name = SimpleNamespace(model=None), NATIVE

        def is_own(self, graph: Graph) -> bool:
            return any(n.op == "dot_general" for n in graph.nodes())

        def refused(self, graph: Graph) -> bool:
            return False

        def program_s(self, regions: Sequence[Graph], own: Container[Graph], apart_s: float) -> float:
            return sum(1.5 if region in own else 1.0 for region in regions) + apart_s

    with TrialPool(processes=1) as pool:
        maker, form = KernelMaker(pool), own_form(found[0].graph)
        maker.model = Prices()  # pyright: ignore[reportAttributeAccessIssue]
        made = maker.make(in_regions("mixed", form))
        rows = maker.rows(made)
    assert [(row.kind, row.used) for row in rows] == [("contraction", True), ("rows", False)]
    assert rows[1].failure == "faster there"
    assert (rows[0].predicted_ms, rows[0].by_xla_ms) == (1500.0, 2000.0)
    assert made.predicted_s == 2.5
    assert len(made.kernels) == 1


def test_kernels_are_made_in_the_worker_and_what_fails_is_named() -> None:
    def f(x: Any, y: Any) -> Any:
        return jnp.exp(x) + y, jnp.sum(x * y, 1)

    x = np.ones((64, 64), np.float32)
    regions = partition(import_function(f, (x, x)).graph)
    with TrialPool(processes=1) as pool:
        made = pool.make_all([(region.graph, None) for region in regions])
        (wrong,) = pool.make_all([(regions[0].graph, (("split", "out0", "nowhere", (4,)),))])
    assert made == [default_trace(Native(), region.graph) for region in regions]
    assert isinstance(wrong, str)


def test_kernels_are_reported_remembered_and_validated(found: tuple[Imported, Exploration], tmp_path: Path) -> None:
    imported, exploration = found
    with TrialPool(processes=1) as pool:
        maker = KernelMaker(pool)
        made = maker.make(in_regions("own form", own_form(imported.graph)))
    series = Series([made], 0)
    level = timing(1e-3, 1e-3)
    series.add(Comparison(level, (timing(0.5e-3, 1e-3),), again_s=level.samples_s), (0,), 0)
    said = Outcome([made], series, series, 1, (0,))
    ledger, library = RunLedger(), ProvedLibrary((), {})
    ledger.add(compare_with_original(made, OriginalRuns.of(imported)))
    ledger.add(decided(said, 0, original_returned(imported, ChoiceReason.NO_TIME)))
    report: Report = make_report("mixer", imported, exploration, ledger, library, steps(1), Fallback(), maker.rows)
    assert report.numerics is not None
    assert read_report(report.to_json()) == report
    assert re.search(r"2 of 2 regions \(own form\) are our own", str(report))
    assert not report.original_returned
    report.save(str(tmp_path / "report.html"))
    assert "Kernels of our own" in (tmp_path / "report.html").read_text()
    executable = mixed.build(made.program, imported.frozen_values, kernels=made.kernels)
    plan = empty_plan(imported.graph, "real")
    result = Optimized(imported, made.program, executable, report, plan, made.kernels)
    validation = result.validate()
    assert validation.valid, validation.cause
    assert validation.kernels == 2
    assert "2 schedules of kernels" in str(validation)
    assert validation.code == 2
    assert "machine code of 2 of them validated" in str(validation)
    store = Store(tmp_path / "store.db")
    try:
        remember(store, "key", result)
        again = recall(store, "key", imported)
    finally:
        store.close()
    assert again is not None
    assert isinstance(again.executable, MixedExecutable)
    assert again.kernels == made.kernels
    params, x = jax.tree_util.tree_unflatten(imported.in_tree, imported.examples)[0]
    np.testing.assert_allclose(again(params, x), mixer(params, x), rtol=1e-4, atol=1e-5)
    path = result.save(tmp_path / "mixer.superopt")
    assert superopt.load(path).validate().kernels == 2
    assert again.speedup == Speedup(**report.to_json()["speedup"])


def test_wrong_machine_code_is_refused_and_what_cannot_be_read_is_told(
    found: tuple[Imported, Exploration], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported, _ = found
    made = own_kernels(imported)
    hot, choices = made.program.hot, made.kernels
    monkeypatch.setattr(Native, "recorded", lambda *_: None)
    assert validate_code(hot, choices) == ValidatedCode(2)
    assert validate_code(hot, choices, 0.0) == ValidatedCode(0, {"no time was left for it": 2})
    real = Native.validate
    for status, unknown in ((UNKNOWN, {"why": 1}), (REFUTED, {})):
        said = iter([KernelVerdict(status, "why", 0.0)])
        monkeypatch.setattr(Native, "validate", lambda self, *a, said=said: next(said, None) or real(self, *a))
        code = validate_code(hot, choices)
        assert (code.proved, code.unknown) == (1, unknown)
        assert [str(why).endswith("is wrong: why") for why in code.refuted.values()] == [True] * (status == REFUTED)
    assert backend_of(XLA).validate(made.regions[0].graph).status == UNKNOWN


def test_an_object_of_other_code_is_no_validated_kernel(
    found: tuple[Imported, Exploration], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code is written anew for validation; what runs was found by a key, and may be anything."""
    first, second = (region.graph for region in own_kernels(found[0]).regions[:2])
    other = native.compiled(second)
    monkeypatch.setattr(native, "compiled", lambda region, trace: other)
    verdict = Native().validate(first)
    assert verdict.status == REFUTED
    assert "not made of its code" in verdict.cause


def test_how_long_validation_takes_is_not_said_by_the_iterations_of_its_rows() -> None:
    """A softmax is computed once for each element, not once for each pair of them; products are those of matrices."""

    def seconds(fn: Any, *shapes: tuple[int, ...]) -> float:
        imported = import_function(fn, [np.zeros(shape, np.float32) for shape in shapes])
        (region,) = in_regions("own", own_form(imported.graph)).regions
        return _field_s(region.graph)

    assert 0.5 < seconds(jax.nn.softmax, (1024, 4096)) < 10.0
    assert 1.0 < seconds(jnp.tanh, (1 << 24,)) < 10.0
    assert seconds(jnp.matmul, (256, 256), (256, 256)) < 1.0
    padded = functools.partial(jax.lax.conv_general_dilated, window_strides=(1, 1), padding="SAME")
    assert seconds(padded, (1, 16, 55, 55), (64, 16, 3, 3)) < 0.3
