"""The search of schedules: operators by name, spaces, the model, and a search from end to end."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from superopt.errors import InputError, UsageError
from superopt.frontends.jax.jaxpr import import_function
from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.emit.generate import generate
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.schedule.trace import apply
from superopt.lab.training.schedule_prior import fitted, plain
from superopt.machine.facts import Machine, taken
from superopt.schedules.candidates import example_arrays, reference
from superopt.schedules.features import NAMES, features
from superopt.schedules.model import Forecast, Prior, Rows, forecast, prior
from superopt.schedules.records import MeasuredSchedule, Records
from superopt.schedules.space import SchedulePoint, ScheduleSpace, space_of
from superopt.schedules.tune import STRATEGIES, ScheduleSearch, Strategy, tune
from superopt.schedules.workload import workload
from superopt.store import Store
from tests.support.machines import AVX2, AVX512

SMALL = ("dot f32 13x37x24", "dot s8 6x20x16", "conv f32 6x7x5 3x3x18 stride 2", "softmax f32 5x33", "dot bf16 4x16x8")


@pytest.mark.parametrize(
    "text",
    ["dot", "dot f32 12", "dot f32 1x2x0", "dot f16 1x2x3", "conv f32 8x8x4", "conv f32 8x8x4 3x3x6 groups 4",
     "conv f32 8x8x4 3x3x8 stride", "softmax s8 4x4", "fft f32 8x8", "dot f32 1x2x3 extra",
     "dot f32", "conv s8 8x8x4 3x3x8"],
)  # fmt: skip
def test_operators_that_are_not_understood(text: str) -> None:
    with pytest.raises(UsageError):
        workload(text)


def test_operators_are_graphs_with_frozen_weights() -> None:
    graph = workload("conv f32 8x9x4 3x3x6 groups 2")
    assert [node.shape for node in graph.inputs] == [(1, 8, 9, 4), (3, 3, 2, 6)]
    assert [node["frozen"] for node in graph.inputs] == [False, True]
    assert graph.outputs[0].shape == (1, 8, 9, 6)
    assert workload("cumsum f64 3x4").outputs[0].dtype == "float64"


@pytest.mark.parametrize("text", SMALL)
def test_points_keep_the_value(text: str) -> None:
    graph = workload(text)
    arrays = example_arrays(graph, 0)
    program = from_graph(graph.outputs, name="kernel")
    space = space_of(program, threads=2)
    rng = random.Random(1)
    expected = reference(graph, arrays)[0].astype(np.float64)
    point = space.sample(rng)
    kept = 0
    for _ in range(12):
        point = space.mutate(space.cross(point, space.sample(rng), rng), rng)
        assert set(point) == set(space.decisions)
        try:
            scheduled = apply(program, space.trace(point))
        except InputError:
            continue
        kept += 1
        got = evaluate(scheduled, arrays)["out0"].astype(np.float64)
        np.testing.assert_allclose(got, expected, rtol=2e-2 if "bf16" in text else 1e-4, atol=1e-4)
    assert kept >= 6


def _described(space: ScheduleSpace, point: SchedulePoint) -> np.ndarray:
    return features(apply(space.unscheduled, space.trace(point)), space.threads)


def test_features_are_finite_and_tell_points_apart() -> None:
    space = space_of(from_graph(workload("dot f32 128x768x256").outputs, name="kernel"))
    rng = random.Random(0)
    rows = np.stack([_described(space, space.sample(rng)) for _ in range(40)])
    assert rows.shape == (40, len(NAMES))
    assert np.all(np.isfinite(rows))
    assert len(np.unique(rows, axis=0)) >= 38


def test_spaces_are_large() -> None:
    assert space_of(from_graph(workload("conv f32 28x28x128 3x3x128").outputs, name="kernel")).size > 10**7


@pytest.mark.parametrize("machine", [None, AVX512, AVX2], ids=["host", "avx512", "avx2"])
def test_the_default_schedule_is_a_point_of_the_space(machine: Machine | None) -> None:
    for text in (
        *SMALL,
        "conv f32 20x20x96 3x3x64",
        "softmax f32 64x200",
        "layer_norm f32 20x900",
        "dot f32 1x768x512",
    ):
        program = from_graph(workload(text).outputs, name="kernel")
        with taken(machine):
            space = space_of(program)
            by_default, by_point = (
                generate(hoisted(apply(program, steps))[1]) for steps in (space.base, space.trace(space.start))
            )
        assert by_default.module.text() == by_point.module.text()
        assert space.size > 1
        assert all(space.start[name] in knob.options for name, knob in space.decisions.items())


def test_chained_contractions_are_searched_as_others() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T, -1) @ v

    graph = import_function(fn, [np.zeros(shape, np.float32) for shape in ((64, 16), (48, 16), (48, 16))]).graph
    found = tune(graph, ScheduleSearch(20.0, most=4))
    assert found.candidates == 4
    assert found.space_size > 100
    assert not found.refused


def test_products_between_transforms_are_searched_as_others() -> None:
    def winograd(x: Any, u: Any) -> Any:  # F(2, 3) of eight outputs
        a, b, c, d = x[0:8:2], x[1:9:2], x[2::2], x[3::2]
        m = jnp.einsum("ptc,pco->pto", jnp.stack([a - c, b + c, c - b, b - d]), u)
        return jnp.stack([m[0] + m[1] + m[2], m[1] - m[2] - m[3]], 1).reshape(-1, u.shape[-1])

    graph = import_function(winograd, [np.zeros(shape, np.float32) for shape in ((10, 32), (4, 32, 48))]).graph
    found = tune(graph, ScheduleSearch(20.0, most=4))
    assert found.candidates == 4
    assert found.space_size > 10
    assert not found.refused


def test_operands_are_read_in_place_only_where_lanes_are_neighbours() -> None:
    def fn(x: Any, w: Any) -> Any:
        return jnp.einsum("mk,nk->mn", x, w)

    def other(x: Any, w: Any) -> Any:
        return x @ w

    for made, offered in ((fn, ("panels",)), (other, ("none", "panels"))):
        shapes = ((8, 24), (48, 24) if made is fn else (24, 48))
        graph = import_function(made, [np.zeros(shape, np.float32) for shape in shapes]).graph
        space = space_of(from_graph(graph.outputs, name="kernel"))
        assert next(k.options for name, k in space.decisions.items() if name.endswith("pack_b")) == offered


def _plain(noise: float = 0.02) -> Prior:
    n = len(NAMES)
    return Prior(np.zeros(n), np.ones(n), np.full(n, 6.0), 1.0, noise, 0.5)


def test_the_model_orders_what_it_has_not_seen() -> None:
    rng = np.random.default_rng(0)
    x = np.zeros((300, len(NAMES)))
    x[:, :4] = rng.standard_normal((300, 4))
    y = 0.3 * (x[:, 0] + np.abs(x[:, 1]) - 0.5 * x[:, 2] * x[:, 3])
    group = np.zeros(100, np.int32)
    found = forecast(x[200:], Rows(x[:100], y[:100] + 5, group), Rows.empty(), _plain())
    assert np.corrcoef(found.mean, y[200:])[0, 1] > 0.9
    alone = forecast(x[200:], Rows(x[:2], y[:2], group[:2]), Rows.empty(), _plain())
    helped = forecast(x[200:], Rows(x[:2], y[:2], group[:2]), Rows(x[100:200], y[100:200] - 9, group), _plain())
    assert np.corrcoef(helped.mean, y[200:])[0, 1] > np.corrcoef(alone.mean, y[200:])[0, 1] + 0.2


def test_a_measured_point_is_known_and_a_batch_spreads() -> None:
    x = np.zeros((3, len(NAMES)))
    x[2, 0] = 3.0
    own = Rows(x[:1], np.asarray([1.0]), np.zeros(1, np.int32))
    found = forecast(x, own, Rows.empty(), _plain())
    deviations = np.sqrt(np.diagonal(found.covariance))
    assert deviations[0] < 0.05 < deviations[2]
    twins = Forecast(
        np.asarray([-0.1, -0.1, 0.0]), np.asarray([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), 0.05
    )
    assert set(twins.batch(2, 0.5)) == {0, 2}
    assert sorted(twins.batch(9, 0.5)) == [0, 1, 2]


def test_the_shipped_prior_is_for_these_features() -> None:
    known = prior()
    assert known.lengths.shape == (len(NAMES),)
    assert np.all(known.lengths > 0)
    space = space_of(from_graph(workload("dot f32 90x400x300").outputs, name="kernel"))
    rows = np.stack([_described(space, space.start), *[_described(space, p) for p in _legal(space, 8)]])
    found = forecast(rows, Rows.empty(), Rows.empty(), known)
    np.testing.assert_allclose(found.mean, rows[:, -1])


def _legal(space: ScheduleSpace, count: int) -> list[SchedulePoint]:
    rng, found = random.Random(0), list[SchedulePoint]()
    while len(found) < count:
        point = space.sample(rng)
        try:
            apply(space.unscheduled, space.trace(point))
        except InputError:
            continue
        found.append(point)
    return found


def test_priors_are_read_as_they_were_written_and_fitted_to_what_is_left(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = plain(rng.standard_normal((20, len(NAMES))))
    (tmp_path / "prior.json").write_text(json.dumps(made.to_json()))
    x = rng.standard_normal((12, len(NAMES)))
    again = prior(tmp_path / "prior.json")
    np.testing.assert_allclose(again.covariance(x, x), made.covariance(x, x), rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(np.diagonal(made.covariance(x, x)), made.amplitude**2, rtol=1e-3)
    right = fitted([(x, made.mean(x) + 7.0)] * 3, steps=60)
    wrong = fitted([(x, rng.standard_normal(12))] * 3, steps=60)
    assert right.amplitude < wrong.amplitude


def test_rows_of_two_searches_keep_their_groups() -> None:
    one = Rows(np.zeros((2, len(NAMES)), np.float32), np.zeros(2, np.float32), np.zeros(2, np.int32))
    both = one.join(one)
    assert both.group.tolist() == [0, 0, 1, 1]
    assert len(Rows.empty().join(one)) == 2


def test_records_are_kept_for_other_operators_only() -> None:
    store = Store(memory=True)
    graph, other = workload("dot f32 8x32x16"), workload("dot f32 8x32x32")
    space = space_of(from_graph(graph.outputs, name="kernel"))
    point = space.start
    Records(store, graph, 1).add([MeasuredSchedule(space.trace(point), point, _described(space, point), "d", 1e-5)])
    assert len(Records(store, graph, 1).rows()) == 0
    assert len(Records(store, other, 1).rows()) == 1
    assert len(Records(store, other, 4).rows()) == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_search_from_end_to_end(strategy: Strategy) -> None:
    store = Store(memory=True)
    found = tune(workload("dot f32 12x48x40"), ScheduleSearch(60.0, seed=3, strategy=strategy, most=12), store=store)
    assert 2 <= found.candidates <= 14
    assert len({c.digest for c in found.history}) == found.candidates
    assert found.default_seconds >= found.seconds
    assert found.seconds > 0
    arrays = example_arrays(workload("dot f32 12x48x40"), 0)
    np.testing.assert_allclose(
        evaluate(found.program, arrays)["out0"], arrays["x"] @ arrays["w"], rtol=1e-4, atol=1e-4
    )  # fmt: skip
    assert len(store.items("schedules")) == 1
