"""What reports say about a program: sites and gains of rules, rules not chosen, kernels, the drawing, the A/A suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from costmodel.model.load import load_objective
from costmodel.model.measured import Correction
from superopt.backends.native import Native
from superopt.candidates.candidate import Candidate
from superopt.certify.library import proved_library
from superopt.contest.attribution import without
from superopt.explain.drawing import draw
from superopt.explain.evidence import (
    kernels,
    measured_by_finalists,
    model_figures,
    not_chosen,
    regions,
    sites,
    state_of,
)
from superopt.explain.regions import draw_regions
from superopt.explore.exploration import explore
from superopt.explore.found import Exploration
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.interp import evaluate
from superopt.kernels.choose.partition import cost_of
from superopt.kernels.choose.specs import NATIVE, specs_of
from superopt.lab.bench.aa import summarise
from superopt.lab.bench.programs.aa_programs import PROGRAMS
from superopt.machine.deadline import Deadline
from superopt.make.plain import in_regions, own_form
from superopt.make.trials import Trial, report_rows
from superopt.measure.kernels import XLA
from superopt.report.data import DrawnNode, NativeKernel
from tests.support.stages import steps

RNG = np.random.default_rng(0)


def program(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """(A B) x wants to be A (B x); C D depends on frozen inputs alone; the sum may be a product with ones."""
    y = (x @ w["a"]) @ w["b"]
    return jnp.tanh(y @ (w["c"] @ w["d"])).sum(-1)


def arguments() -> tuple[dict[str, np.ndarray], np.ndarray]:
    shapes = {"a": (96, 160), "b": (160, 64), "c": (64, 80), "d": (80, 48)}
    return {k: RNG.standard_normal(s).astype(np.float32) for k, s in shapes.items()}, np.ones((64, 96), np.float32)


class Prior:
    """An objective that was not learned: it does not know what it was fitted on."""

    name, version = "prior", "1"

    def __init__(self) -> None:
        self.base = load_objective(None)

    def price(self, kernels):
        return self.base.price(kernels)


@pytest.fixture(scope="module")
def found() -> Exploration:
    imported = import_function(program, arguments(), frozen=(0,))
    return explore(imported.graph, proved_library(None).rules, steps(800, Prior()))


def test_sites_are_operations_of_the_program(found: Exploration) -> None:
    best = found.result.best
    assert best.rules, "a cheaper program than the original exists"
    table = sites(found, best)
    assert set(table) <= set(best.rules)
    assert all(n >= 1 for row in table.values() for n in row.values())
    assert any("dot_general" in site for row in table.values() for site in row)
    assert all("->" in site for row in table.values() for site in row)


def test_rules_not_chosen_apply_and_are_not_used(found: Exploration) -> None:
    best = found.result.best
    others, left_out = not_chosen(found, best, Deadline())
    assert left_out == 0
    assert [x.loss_ms for x in others] == sorted(x.loss_ms for x in others)
    assert not {x.rule for x in others} & set(best.rules)
    before = state_of(found, found.result.original)
    for other in not_chosen(found, found.result.original, Deadline())[0]:
        assert other.sites >= 1
        assert other.loss == pytest.approx(1e-3 * other.loss_ms / before.seconds)
    gains = {x.rule: x.loss for x in not_chosen(found, found.result.original, Deadline())[0]}
    assert min(gains.values()) < -0.05, "what the search took shows as a gain over the original"


def test_rules_are_priced_until_the_call_is_over_and_the_others_are_counted(found: Exploration) -> None:
    every, _ = not_chosen(found, found.result.original, Deadline())
    none, left_out = not_chosen(found, found.result.original, Deadline.within(0.0))
    assert none == ()
    assert left_out == len(every) > 0


def test_kernels_add_up_to_the_predicted_time(found: Exploration) -> None:
    for finalist in found.result.finalists:
        uses = kernels(found, finalist)
        assert sum(k.ms for k in uses) == pytest.approx(1e3 * finalist.predicted_s, rel=1e-6)
        assert all(k.outside is None and not k.timed for k in uses)
        assert model_figures(found, uses)["outside_share"] is None


class Learned:
    """An objective that has been trained on everything but reductions."""

    name, version = "learned", "1"

    def __init__(self, base) -> None:
        self.base = base

    def price(self, kernels):
        return self.base.price(kernels)

    def uncertainty(self, kernels):
        return np.ones(len(kernels))

    def outside(self, kernels):
        return np.array([any(n.op.startswith("reduce") for n in k.nodes()) for k in kernels])


def test_shares_outside_of_the_training_and_errors_of_timed_kernels(found: Exploration) -> None:
    model = found.model.xla
    best = found.result.best
    base = model.base
    try:
        model.base = Learned(base)
        first = max(best.kernels, key=lambda item: item[1])
        model.learn([first[0]], [3.0 * float(base.price([first[0]])[0])])
        uses = kernels(found, best)
        figures = model_figures(found, uses)
    finally:
        model.base = base
        model.seconds.clear()
        model._timed.clear()
        model._correction = Correction((), ())
    assert figures["kernels_timed"] == 1
    assert figures["median_error"] == pytest.approx(2.0, rel=1e-3)
    outside = sum(k.ms for k in uses if k.outside) / sum(k.ms for k in uses)
    assert figures["outside_share"] == pytest.approx(outside)
    assert sum(k.timed for k in uses) == 1


def test_kernels_of_our_own_are_those_of_the_table_each_on_its_backend(found: Exploration) -> None:
    ours = NativeKernel("dot", "contraction", 2, True, predicted_ms=2.0, timed_ms=3.0, by_xla_ms=9.0, outside=False)
    left = NativeKernel("gather", "movement", 1, False, predicted_ms=0.5, by_xla_ms=7.0, outside=True)
    new = NativeKernel("exp", "map", 4, True, predicted_ms=1.0, by_xla_ms=8.0, outside=True)
    uses = regions([new, ours, left, NativeKernel("iota", "map", 1, True)])
    assert [(use.name, use.count, use.ms, use.timed, use.outside) for use in uses] == [
        ("gather", 1, 7.0, False, None),
        ("dot", 2, 6.0, True, False),
        ("exp", 4, 4.0, False, True),
    ]
    figures = model_figures(found, uses)
    assert figures["timed_share"] == pytest.approx(6.0 / 17.0)
    assert figures["outside_share"] == pytest.approx(4.0 / 17.0)


def test_the_drawing_holds_both_programs(found: Exploration) -> None:
    best = found.result.best
    drawing = draw(found, best)
    assert drawing is not None
    for nodes in (drawing.before, drawing.after):
        seen: set[int] = set()
        for node in nodes:
            assert set(node.reads) <= seen, "operands come first"
            seen.add(node.id)
            assert node.kernel in {n.id for n in nodes}
    priced = [node.us for node in drawing.after if node.us is not None]
    assert sum(priced) == pytest.approx(1e6 * best.predicted_s, rel=1e-3)
    assert {node.backend for node in drawing.after if node.us} == {XLA}
    assert {node.rule for node in drawing.after} - {""} <= set(best.rules)
    assert [n.op for n in drawing.before if n.change == "ahead"] == ["dot_general"], "C D is computed on every call"
    assert not [n for n in drawing.after if n.change == "ahead"]
    same = {n.id for n in drawing.before if n.change == "same"}
    assert same == {n.id for n in drawing.after if n.change == "same"}
    unchanged = draw(found, None)
    assert unchanged is not None
    assert all(node.change == "same" for node in (*unchanged.before, *unchanged.after))


def in_kernels(imported: Imported, found: Exploration) -> tuple[Candidate, tuple[NativeKernel, ...]]:
    """The program's own form with all of its regions as kernels of our own, none of which is made."""
    form = in_regions("own form", own_form(imported.graph))
    tried = {region.graph: Trial(str(region), region.kind, cost_of(region)) for region in form.regions}
    rows = report_rows(form.regions, set(tried), tried, NATIVE, found.model)
    choices = specs_of(form.program.hot, [(region, None) for region in form.regions])
    return replace(form, kernels=choices), rows


def test_the_drawing_of_a_program_in_kernels_shows_what_is_fused_on_which_backend() -> None:
    w, x = np.full((64, 32), 0.1, np.float32), np.ones((16, 64), np.float32)
    imported = import_function(lambda w, x: jnp.tanh(x @ w + 1.0), (w, x), frozen=0)
    request = replace(steps(50), own=Native())
    found = explore(imported.graph, (), request)
    candidate, rows = in_kernels(imported, found)
    for searched in (found, None):
        drawing = draw_regions(imported.graph, candidate, rows, searched, request.objective)
        assert drawing is not None
        (product,) = [node for node in drawing.after if node.op == "dot_general"]
        (same,) = [node for node in drawing.before if node.id == product.id]
        inside = [[n.op for n in side if n.kernel == dot.kernel] for side, dot in
                  ((drawing.before, same), (drawing.after, product))]  # fmt: skip
        assert inside[1] == ["dot_general", "add", "tanh"]
        assert inside[0] == (["dot_general"] if searched else inside[1]), "without a search, in the regions of ours"
        assert (same.backend, product.backend) == (XLA, NATIVE)
        assert {n.type for n in (same, product)} == {"f32[16,32]"}, "as the program has it"
        assert [n.us for n in drawing.after if n.us] == [1e3 * row.takes_ms for row in rows if row.takes_ms]
        for side in (drawing.before, drawing.after):
            ids = {n.id for n in side}
            assert all(n.kernel in ids for n in side)
            assert all(n.us is None or n.kernel == n.id for n in side)
            assert {n.change for n in side} == {"same"}


def test_an_operation_of_no_class_is_drawn_on_one_side() -> None:
    w, x = np.full((64, 32), 0.1, np.float32), np.ones((16, 64), np.float32)
    request = replace(steps(50), own=Native())
    found = explore(import_function(lambda w, x: jnp.tanh(x @ w), (w, x), frozen=0).graph, (), request)
    candidate, rows = in_kernels(import_function(lambda w, x: jnp.sin(jnp.tanh(x @ w)), (w, x), frozen=0), found)
    drawing = draw_regions(found.graph, candidate, rows, found, request.objective)
    assert drawing is not None
    assert [(n.op, n.change) for n in drawing.after][-2:] == [("tanh", "same"), ("sin", "only")]


def test_the_drawing_has_a_box_for_each_kernel_of_the_table_where_images_are_laid_out_otherwise() -> None:
    rng = np.random.default_rng(0)
    p = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in
         (("a", (8, 3, 3, 3)), ("b", (8, 8, 1, 1)), ("c", (32, 10)))}  # fmt: skip
    x = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)

    def network(p: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
        y = jnp.tanh(jax.lax.conv(x, jnp.exp(p["a"]), (2, 2), "SAME"))
        z = jnp.maximum(jax.lax.conv(y, p["b"], (1, 1), "SAME") + y, 0.0)
        pooled = jax.lax.reduce_window(z, 0.0, jax.lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return pooled.reshape(1, -1) @ p["c"]

    imported = import_function(network, (p, x), frozen=0)
    request = replace(steps(50), own=Native())
    found = explore(imported.graph, (), request)
    candidate, rows = in_kernels(imported, found)
    assert any(node.op == "transpose" for node in candidate.program.hot.nodes()), "images lie channels last"
    for searched in (found, None):
        drawing = draw_regions(imported.graph, candidate, rows, searched, request.objective)
        assert drawing is not None
        boxes = [node for node in drawing.after if node.kernel == node.id and node.backend]
        assert len(boxes) == len(candidate.regions) == sum(row.count for row in rows)
        drawn_us = sorted(node.us for node in boxes if node.us)
        assert drawn_us == pytest.approx(
            sorted(1e3 * row.takes_ms for row in rows for _ in range(row.count) if row.takes_ms)
        )
        assert [node.op for node in drawing.before if node.change == "ahead"] == ["exp"]
        assert {node.change for node in drawing.after} == {"same"}
        for side in (drawing.before, drawing.after):
            check_drawn(side)


def check_drawn(side: tuple[DrawnNode, ...]) -> None:
    done: set[int] = set()
    for node in side:
        assert node.id not in done
        assert set(node.reads) <= done, "operands come first"
        done.add(node.id)


def test_a_winner_without_a_rule_is_the_same_function(found: Exploration) -> None:
    best = found.result.best
    params, x = arguments()
    given = {str(n["name"]): params[n["name"].split(".")[-1]] for n in found.graph.inputs if n["frozen"]}
    (live,) = [str(n["name"]) for n in found.graph.inputs if not n["frozen"]]
    want = np.asarray(program(params, x))
    for rule in best.rules:
        other = without(found, best, rule)
        lowered = found.program(other)
        assert lowered.prepare is not None
        prepared = zip(lowered.prepared_inputs, evaluate(lowered.prepare, given), strict=True)
        (got,) = evaluate(lowered.hot, {live: x} | {str(node["name"]): value for node, value in prepared})
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
        assert other.name.endswith(f"without {rule}")


def test_measured_gains_come_from_finalists_without_the_rule() -> None:
    rows = {"warm": 2.0, "without a": 3.0, "last": 2.5}
    assert measured_by_finalists(rows, "warm", ["a", "b"]) == {"a": 1.0}
    assert measured_by_finalists(rows, "gone", ["a"]) == {}


def test_the_aa_programs_are_distinct_and_traceable() -> None:
    assert len(PROGRAMS) >= 50
    shapes: set[str] = set()
    for make in PROGRAMS.values():
        fn, args = make()
        shapes.add(str(jax.make_jaxpr(fn)(*args)))
    assert len(shapes) == len(PROGRAMS)


def test_false_claims_are_those_that_a_fresh_run_does_not_confirm() -> None:
    quiet = {"same_claimed": False, "claimed": False, "confirmed": None}
    real = {"same_claimed": False, "claimed": True, "confirmed": True, "low": 1.1, "high": 1.3, "again": 1.2}
    false = {"same_claimed": True, "claimed": True, "confirmed": False, "low": 1.1, "high": 1.3, "again": 1.0}
    summary = summarise([quiet] * 7 + [real, real, false])
    assert summary["programs"] == 10
    assert (summary["same_claims"], summary["same_share"]) == (1, 0.1)
    assert (summary["library_claims"], summary["library_false_claims"]) == (3, 1)
    assert summary["without_gain"] == 8
    assert summary["library_false_share"] == pytest.approx(1 / 8)
    assert summary["claimed_share"] == pytest.approx(1 / 8)
    assert summary["library_claims_covered"] == 2
    assert summarise([])["claimed_share"] == 0.0
