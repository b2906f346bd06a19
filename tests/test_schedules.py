"""The search of schedules: operators by name, spaces, the model, and a search from end to end."""

from __future__ import annotations

import random

import numpy as np
import pytest

from superopt.errors import InputError, UsageError
from superopt.kernels.evaluate import evaluate
from superopt.kernels.program import from_graph
from superopt.kernels.schedule.trace import apply
from superopt.schedules.features import NAMES, features
from superopt.schedules.model import Rows, fit
from superopt.schedules.records import Records
from superopt.schedules.space import space_of
from superopt.schedules.tune import Candidate, tune
from superopt.schedules.worker import example_arrays, reference
from superopt.schedules.workload import workload
from superopt.store import Store

SMALL = ("dot f32 13x37x24", "dot s8 6x20x16", "conv f32 6x7x5 3x3x18 stride 2", "softmax f32 5x33", "dot bf16 4x16x8")


@pytest.mark.parametrize(
    "text",
    ["dot", "dot f32 12", "dot f32 1x2x0", "dot f16 1x2x3", "conv f32 8x8x4", "conv f32 8x8x4 3x3x6 groups 4",
     "conv f32 8x8x4 3x3x8 stride", "softmax s8 4x4", "fft f32 8x8", "dot f32 1x2x3 extra"],
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
        assert set(point) == set(space.knobs)
        try:
            scheduled = apply(program, space.trace(point))
        except InputError:
            continue
        kept += 1
        got = evaluate(scheduled, arrays)["out0"].astype(np.float64)
        np.testing.assert_allclose(got, expected, rtol=2e-2 if "bf16" in text else 1e-4, atol=1e-4)
    assert kept >= 6


def test_features_are_finite_and_tell_points_apart() -> None:
    space = space_of(from_graph(workload("dot f32 128x768x256").outputs, name="kernel"))
    rng = random.Random(0)
    rows = np.stack([features(space, space.sample(rng)) for _ in range(40)])
    assert rows.shape == (40, len(NAMES))
    assert np.all(np.isfinite(rows))
    assert len(np.unique(rows, axis=0)) >= 38


def test_spaces_are_large() -> None:
    assert space_of(from_graph(workload("conv f32 28x28x128 3x3x128").outputs, name="kernel")).size > 10**7


def test_the_model_orders_what_it_has_not_seen() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, len(NAMES))).astype(np.float32)
    y = (x[:, 0] + np.abs(x[:, 1]) - 0.5 * x[:, 2] * x[:, 3]).astype(np.float32)
    group = np.repeat(np.arange(3, dtype=np.int32), 100)
    model = fit(Rows(x[:200], y[:200] + 5 * group[:200], group[:200]))
    mean, spread = model.predict(x[200:])
    assert np.corrcoef(mean, y[200:])[0, 1] > 0.7
    assert np.all(spread >= 0)


def test_rows_of_two_searches_keep_their_groups() -> None:
    one = Rows(np.zeros((2, len(NAMES)), np.float32), np.zeros(2, np.float32), np.zeros(2, np.int32))
    both = one.join(one)
    assert both.group.tolist() == [0, 0, 1, 1]
    assert len(Rows.empty().join(one)) == 2


def test_records_are_kept_for_other_operators_only() -> None:
    store = Store(memory=True)
    graph, other = workload("dot f32 8x32x16"), workload("dot f32 8x32x32")
    space = space_of(from_graph(graph.outputs, name="kernel"))
    point = space.sample(random.Random(0))
    Records(store, graph, 1).add([Candidate(space.trace(point), point, "d", 1e-5)], space)
    assert len(Records(store, graph, 1).rows()) == 0
    assert len(Records(store, other, 1).rows()) == 1
    assert len(Records(store, other, 4).rows()) == 0


@pytest.mark.parametrize("method", ["model", "random"])
def test_a_search_from_end_to_end(method: str) -> None:
    store = Store(memory=True)
    found = tune(workload("dot f32 12x48x40"), 60.0, seed=3, method=method, most=12, store=store)
    assert 2 <= found.candidates <= 14
    assert found.seconds > 0
    arrays = example_arrays(workload("dot f32 12x48x40"), 0)
    np.testing.assert_allclose(
        evaluate(found.program, arrays)["out0"], arrays["x"] @ arrays["w"], rtol=1e-4, atol=1e-4
    )  # fmt: skip
    assert len(store.items("schedules")) == 1
