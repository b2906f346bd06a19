"""The cost model: steps, features, fit, coefficients on disk, and the facts that a search relies on."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.features.counts import INDEX
from costmodel.labels import forms
from costmodel.labels.microsuite import MicroCase, suite
from costmodel.model import analytical, weights_file
from costmodel.model.analytical import COUNT, Coefficients, FeatureTable, seconds
from costmodel.model.catalogue import tabulate
from costmodel.model.load import load_roofline
from costmodel.model.measured import Measured
from costmodel.model.objective import Objective, Roofline
from rewrites import library
from rewrites.build.expander import library_expander
from superopt.ir.build import dot, kernel, spread, tensor
from superopt.ir.graph import Graph, Node, make_input, mk
from superopt.lab.training import calibrate as calibrating
from superopt.lab.training.calibrate import calibrate, fit_cases, keep
from superopt.lab.training.metrics import kendall_tau, quality
from superopt.machine import facts as machine
from superopt.store import Store

OBJECTIVE = load_roofline()


@functools.cache
def kernels_of_suite() -> list[MicroCase]:
    return suite()


@functools.cache
def tabulated() -> FeatureTable:
    return tabulate([case.graph for case in kernels_of_suite()])


def price(*outputs: Node) -> float:
    return float(OBJECTIVE.price([kernel(*outputs)])[0])


def steps(node: Node) -> list[dict[str, float]]:
    """Features of each step of a kernel, those that are not zero."""
    return [{name: row[i] for name, i in INDEX.items() if row[i]} for row in tabulate([kernel(node)]).counts.tolist()]


def counts(node: Node) -> dict[str, float]:
    """Features of a kernel, summed over its steps."""
    total: dict[str, float] = {}
    for step in steps(node):
        for name, value in step.items():
            total[name] = total.get(name, 0.0) + value
    return total


def read_bytes(step: dict[str, float]) -> float:
    return sum(step.get(f"read_{level}", 0.0) for level in ("l2", "l3", "dram"))


# ---- steps


def test_elementwise_chain_is_one_loop() -> None:
    x = tensor("x", 64, 64)
    (step,) = steps(mk("exp", mk("add", x, mk("neg", x))))
    assert (step["fn_exp"], step["cheap"], step["evaluation"]) == (64 * 64, 2 * 64 * 64, 3 * 64 * 64)
    assert step["load"] == 2 * 64 * 64
    assert read_bytes(step) == pytest.approx(4 * 64 * 64)  # each element once


def test_softmax_is_four_steps_and_layer_norm_computes_no_root_per_element() -> None:
    found = steps(forms.softmax(tensor("x", 128, 768)))
    assert len(found) == 4
    assert all(
        name in step
        for name, step in zip(("reduce_max_minor", "fn_exp", "reduce_sum_minor", "fn_div"), found, strict=True)
    )
    assert [step.get("fn_exp", 0.0) for step in found] == [0.0, 128 * 768, 0.0, 0.0]
    assert counts(forms.layer_norm(tensor("x", 128, 768)))["fn_rsqrt"] == 128


def test_producers_and_consumers_of_heavy_ops_are_steps_of_their_own() -> None:
    product = dot(mk("exp", tensor("a", 32, 64)), tensor("b", 64, 16), ((1,), (0,)))
    found = steps(mk("tanh", product))
    assert len(found) == 3
    assert all(name in step for name, step in zip(("fn_exp", "dot", "fn_tanh"), found, strict=True))


def test_transposes_fold_into_products_and_reshapes_are_free() -> None:
    a = mk("transpose", tensor("a", 64, 32), permutation=(1, 0))
    product = mk("reshape", dot(a, tensor("b", 64, 16), ((1,), (0,))), new_sizes=(4, 8, 16))
    (step,) = steps(product)
    assert step["dot_km"] == 64 * 32
    assert "turn" not in step


def test_slices_are_evaluated_where_they_are_read() -> None:
    found = counts(forms.depthwise_shifts("NHWC", 1, 16, 14, 3, 1))
    assert found["pad_eval"] == 9 * 14 * 14 * 16
    assert found["loop"] == 1
    half = mk("slice", tensor("x", 64, 64), start_indices=(0, 0), limit_indices=(32, 64), strides=(1, 1))
    (step,) = steps(mk("neg", half))
    assert read_bytes(step) == pytest.approx(4 * 32 * 64)


# ---- features of heavy ops


@pytest.mark.parametrize(
    ("a", "b", "contract", "expected"),
    [
        ((32, 64), (64, 16), ((1,), (0,)), {"dot_mnk": 32 * 64 * 16, "dot_km": 0, "dot_rhs_turned": 0}),
        ((64, 32), (16, 64), ((0,), (1,)), {"dot_km": 64 * 32, "dot_rhs_turned": 64 * 16, "dot_both_turned": 64 * 16}),
        ((1, 64), (64, 16), ((1,), (0,)), {"vector_kn": 64 * 16, "vector_nk": 0}),
        ((1, 64), (16, 64), ((1,), (1,)), {"vector_nk": 64 * 16, "vector_kn": 0}),
        ((1, 8, 8, 64), (64, 16), ((3,), (0,)), {"dot_mnk": 64 * 64 * 16, "turn": 0}),
        ((8, 64, 8), (64, 16), ((1,), (0,)), {"dot_mnk": 64 * 64 * 16, "turn": 1, "turn_small": 8 * 64 * 8}),
        ((1, 64, 1), (64, 16), ((1,), (0,)), {"vector_kn": 64 * 16, "turn": 0}),
        ((64,), (64,), ((0,), (0,)), {"inner": 64}),
        ((4, 4, 8), (4, 8, 16), ((1, 2), (0, 1)), {"dot_mnk": 4 * 32 * 16, "turn": 0}),
        ((4, 4, 8), (4, 8, 16), ((2, 1), (1, 0)), {"dot_mnk": 4 * 32 * 16, "turn": 0}),
        ((4, 4, 8), (8, 4, 16), ((1, 2), (1, 0)), {"turn": 1}),
    ],
)
def test_product_features(a: tuple[int, ...], b: tuple[int, ...], contract: tuple, expected: dict[str, float]) -> None:
    found = counts(dot(tensor("a", *a), tensor("b", *b), contract))
    assert {name: found.get(name, 0.0) for name in expected} == expected


def test_batched_product_features() -> None:
    found = counts(dot(tensor("a", 12, 8, 4), tensor("b", 12, 4, 16), ((2,), (1,)), (0,)))
    assert found["batch_mnk"] == 12 * 8 * 4 * 16
    assert found["batch_count"] == 12
    beside = counts(dot(tensor("a", 8, 12, 4), tensor("b", 16, 12, 4), ((2,), (2,)), (1,)))
    assert beside["turn"] == 2


def test_convolution_pays_for_foreign_layouts() -> None:
    native = counts(forms.conv_plain("NHWC,HWIO,NHWC", 1, 64, 32, 28, 3, 1))
    foreign = counts(forms.conv_plain("NCHW,OIHW,NCHW", 1, 64, 32, 28, 3, 1))
    assert native.get("turn", 0.0) == 0.0
    assert foreign["turn"] == 3
    assert foreign["conv_macs"] == native["conv_macs"] == 28 * 28 * 32 * 64 * 9
    # one channel: both orders are the same memory
    single = counts(forms.conv_plain("NCHW,HWIO,NHWC", 1, 1, 32, 28, 3, 1))
    assert single.get("turn", 0.0) == 0.0
    assert "depthwise_macs" in counts(forms.conv_plain("NHWC,HWIO,NHWC", 1, 32, 32, 28, 3, 1, groups=32))
    assert "group_macs" in counts(forms.conv_plain("NHWC,HWIO,NHWC", 1, 32, 32, 28, 3, 1, groups=4))


def test_loops_over_bodies_are_repeated() -> None:
    x = tensor("x", 16)
    body = kernel(mk("exp", x))
    scan = mk(
        "scan", x, body=body, num_consts=0, num_carry=1, length=7, reverse=False, unroll=1,
    )  # fmt: skip
    found = tabulate([kernel(scan)])
    assert found.repeat.tolist() == [1.0, 7.0]
    assert found.counts[1, INDEX["fn_exp"]] == 16


def test_every_feature_of_the_suite_is_known_and_finite() -> None:
    assert np.isfinite(tabulated().counts).all()
    assert (tabulated().counts >= 0).all()
    assert (tabulated().spread >= 1.0).all()
    assert tabulated().counts.shape[1] == COUNT


def test_suite_covers_every_common_feature() -> None:
    shown = {name for name, i in INDEX.items() if (tabulated().counts[:, i] > 0).any()}
    rare = {"conv_dilated", "iota_eval", "reduce_arg_major", "reduce_arg_all", "opaque", "opaque_elem"}
    assert set(INDEX) - shown <= rare


# ---- the roofline


def test_fit_recovers_coefficients_from_exact_labels() -> None:
    cases = [c for c in kernels_of_suite() if c.kind in ("dot", "vector", "loop")]
    table = tabulate([c.graph for c in cases])
    truth = Coefficients(weights_file.uncalibrated().theta * 0.5, 3.0, 0.6)
    labels = seconds(table, truth)
    found = seconds(table, analytical.fit(table, labels, steps=1500))
    assert np.median(np.abs(found - labels) / labels) < 0.05


def test_one_short_kernel_does_not_decide_a_coefficient_alone() -> None:
    cases = [c.graph for c in kernels_of_suite() if c.kind in ("vector", "loop")]
    small, large = (kernel(mk("reduce_max", tensor("x", n, n), axes=(0, 1))) for n in (8, 1024))
    table = tabulate([*cases, small])
    default = weights_file.uncalibrated()
    labels = seconds(table, default)
    labels[-1] = 1e-4  # disturbed: it has 64 elements
    (found,) = seconds(tabulate([large]), analytical.fit(table, labels, steps=300))
    assert found < 20.0 * seconds(tabulate([large]), default)[0]


def test_compute_and_memory_combine_between_sum_and_maximum() -> None:
    table = tabulate([kernel(mk("exp", tensor("x", 512, 512)))])
    theta = weights_file.uncalibrated().theta
    added, upper = (float(seconds(table, Coefficients(theta, p, 0.5))[0]) for p in (1.0, 1.0))
    lower = float(seconds(table, Coefficients(theta, 200.0, 0.5))[0])
    between = float(seconds(table, Coefficients(theta, 2.0, 0.5))[0])
    assert lower < between < added == upper


def test_price_is_additive_and_independent_of_the_batch() -> None:
    graphs = [c.graph for c in kernels_of_suite()[::40]]
    together = OBJECTIVE.price(graphs)
    alone = np.array([OBJECTIVE.price([g])[0] for g in graphs])
    np.testing.assert_allclose(together, alone, rtol=1e-12)
    assert (together > 0).all()
    assert OBJECTIVE.price([]).shape == (0,)
    assert isinstance(OBJECTIVE, Objective)


def test_known_kernels_make_no_new_entries() -> None:
    graphs = [c.graph for c in kernels_of_suite()]
    prices = OBJECTIVE.price(graphs)
    known = dict(OBJECTIVE._catalogue.entries)
    assert known
    assert list(OBJECTIVE.price(graphs)) == list(prices)
    assert OBJECTIVE._catalogue.entries == known


def test_macros_are_priced_as_what_they_expand_to() -> None:
    conv = forms.conv_plain("NHWC,HWIO,NHWC", 1, 32, 32, 28, 3, 1, groups=32)
    macro = mk("macro", *conv.inputs, rule="depthwise-shifts", op=conv.op, attrs=conv.attrs)
    shifts = forms.depthwise_shifts("NHWC", 1, 32, 28, 3, 1)
    objective = Measured(OBJECTIVE, library_expander(library.load()))
    (priced,) = objective.price([kernel(macro)])
    assert priced == pytest.approx(price(shifts), rel=0.5)
    assert priced < 0.2 * price(conv)


# ---- what a search relies on (shipped coefficients)


def test_facts_of_the_backend() -> None:
    depthwise = forms.conv_plain("NHWC,HWIO,NHWC", 1, 32, 32, 112, 3, 1, groups=32)
    assert price(depthwise) > 8 * price(forms.depthwise_shifts("NHWC", 1, 32, 112, 3, 1))
    for c, o, size in ((64, 256, 56), (1024, 256, 14)):
        point = forms.conv_plain("NHWC,HWIO,NHWC", 1, c, o, size, 1, 1)
        assert price(point) > 1.2 * price(forms.conv_as_dot("NHWC", 1, c, o, size, 1))
        foreign = forms.conv_plain("NCHW,OIHW,NCHW", 1, c, o, size, 1, 1)
        assert price(foreign) > 1.1 * price(point)
    conv = forms.conv_plain("NCHW,OIHW,NCHW", 1, 64, 64, 56, 3, 1)
    assert price(conv) > price(forms.conv_plain("NHWC,HWIO,NHWC", 1, 64, 64, 56, 3, 1))
    x, y, v = tensor("x", 1024, 1024), tensor("y", 1024, 1024), tensor("v", 1024, 1)
    left = dot(dot(x, y, ((1,), (0,))), v, ((1,), (0,)))
    right = dot(x, dot(y, v, ((1,), (0,))), ((1,), (0,)))
    assert price(left) > 8 * price(right)
    sine, tanh = mk("sin", x), mk("tanh", x)
    assert price(sine) > 3 * price(tanh)


def test_transposed_copies_and_smaller_slices() -> None:
    x = tensor("x", 1024, 1024)
    assert price(mk("transpose", x, permutation=(1, 0))) > price(mk("neg", x))
    narrow = mk("slice", x, start_indices=(0, 0), limit_indices=(128, 1024), strides=(1, 1))
    assert price(mk("neg", narrow)) < 0.5 * price(mk("neg", x))
    bias = spread(tensor("b", 1024), x.shape, 1)
    assert price(mk("add", x, bias)) < price(mk("add", x, tensor("z", 1024, 1024)))


# ---- coefficients on disk and in the store


def test_card_of_the_shipped_coefficients_says_where_they_come_from() -> None:
    _, card = weights_file.read()
    assert card["machine"]["fingerprint"]
    assert card["versions"]["jaxlib"]
    assert card["kernels"] > 500
    assert 0 < card["held_out"]["mape"] < 2
    assert "shipped" in OBJECTIVE.source


@pytest.mark.parametrize("damage", ["nan", "negative", "version", "missing", "format", "text", "card"])
def test_unusable_coefficients_are_refused_with_the_reason(tmp_path: Path, damage: str) -> None:
    data = weights_file.encode(weights_file.uncalibrated(), {})
    if damage == "nan":
        data["seconds_per_unit"]["dot_mnk"] = math.nan
    elif damage == "negative":
        data["sharing"] = -1.0
    elif damage == "version":
        data["features"] += 1
    elif damage == "missing":
        del data["seconds_per_unit"]["dot_mnk"]
    elif damage == "format":
        data["format"] = 99
    elif damage == "card":
        data["card"] = 1.5
    path = tmp_path / "w.json"
    path.write_text("{" if damage == "text" else json.dumps(data))
    with pytest.raises(weights_file.WeightsError):
        weights_file.read(path)
    if damage in ("nan", "version"):
        with Store(memory=True) as store:
            store.put("calibration", machine.environment_key(), data)
            refused = load_roofline(store)
        assert "refused" in refused.source
        assert refused.version == OBJECTIVE.version


@pytest.fixture
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits of a tenth of their steps, where a test does not look at how well they fit."""
    whole = analytical.fit

    def short(*given: Any, steps: int = 3000, **options: Any) -> Coefficients:
        return whole(*given, steps=steps // 10, **options)

    monkeypatch.setattr(analytical, "fit", short)


FITS = pytest.mark.parametrize("folds", [2, pytest.param(calibrating.FOLDS, marks=pytest.mark.slow)])


@FITS
@pytest.mark.usefixtures("short_fits")
def test_calibration_goes_through_the_store(folds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "FOLDS", folds)
    cases = [c for c in kernels_of_suite() if c.kind in ("scan", "vector")]
    truth = seconds(tabulate([c.graph for c in cases]), OBJECTIVE.coefficients)
    calibration = fit_cases(cases, truth)
    assert calibration.card["held_out_by_kind"].keys() == {"scan", "vector"}
    with Store(tmp_path / "s.sqlite") as store:
        keep(store, calibration)
        mine = load_roofline(store)
    assert mine.source == "calibrated on this machine"
    assert mine.version != OBJECTIVE.version
    weights_file.write(tmp_path / "w.json", calibration.coefficients, calibration.card)
    again, card = weights_file.read(tmp_path / "w.json")
    np.testing.assert_allclose(again.theta, calibration.coefficients.theta, rtol=1e-5)
    assert card["kernels"] == len(cases)
    assert Roofline(again, "test").price([cases[0].graph])[0] > 0
    assert len(again.theta) == COUNT


def test_metrics() -> None:
    measured = np.array([1.0, 2.0, 3.0, 1.0, 5.0])
    tasks = ["a", "a", "a", "b", "b"]
    perfect = quality(measured, measured, tasks)
    assert (perfect.mape, perfect.tau, perfect.pairs, perfect.regret) == (0.0, 1.0, 1.0, 0.0)
    reversed_ = quality(measured[[2, 1, 0, 4, 3]], measured, tasks)
    assert (reversed_.tau, reversed_.pairs) == (-1.0, 0.0)
    assert reversed_.regret == pytest.approx((2.0 + 4.0) / 2)
    assert kendall_tau(np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 4, 3])) == pytest.approx(4 / 6)


def test_results_of_control_flow_are_read_like_inputs() -> None:
    x, y = tensor("x", 16), tensor("y", 16)
    body = kernel(mk("exp", x), mk("neg", y))
    scan = mk("scan", x, y, body=body, num_consts=0, num_carry=2, length=3, reverse=False, unroll=1)
    first, second = (mk("result", scan, index=i) for i in range(2))
    found = tabulate([kernel(mk("add", first, mk("tanh", second)))])
    assert found.repeat.tolist() == [1.0, 3.0, 3.0, 1.0]
    assert found.counts[-1, INDEX["fn_tanh"]] == 16
    assert price(mk("add", first, second)) > 0
    assert price(tensor("x", 16)) == 0.0


@FITS
@pytest.mark.usefixtures("short_fits")
def test_calibration_measures_fits_and_says_so(folds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "FOLDS", folds)
    cases = [c for c in kernels_of_suite() if c.task.startswith(("flat-add", "dot-32", "dot-64x64x64", "vector-128"))]
    said: list[str] = []

    def unhurried(graphs: Any, budget_s: float, worker: Any) -> Any:
        return timed(graphs, budget_s=max(budget_s, 120.0), worker=worker)

    timed = calibrating.time_kernels
    monkeypatch.setattr(calibrating, "time_kernels", unhurried)  # all of a pass, however busy the machine is
    calibration = calibrate(5.0, cases=cases, progress=said.append)
    assert calibration.card["kernels"] == len(cases)
    assert calibration.card["machine"]["fingerprint"] == machine.fingerprint()
    assert calibration.labels.keys() == {c.name for c in cases}
    assert said[0].startswith("pass 1")
    weights_file.decode(weights_file.encode(calibration.coefficients, calibration.card))


@pytest.mark.parametrize(
    ("kind", "result", "least", "most"),
    [("float32", "float32", 1.0, 1.0), ("int8", "int32", 2.0, 10.0), ("int32", "int32", 2.0, 10.0),
     ("int16", "int16", 30.0, 400.0), ("int8", "int8", 30.0, 400.0)],
)  # fmt: skip
def test_products_of_integers_are_priced_as_what_they_are(kind: str, result: str, least: float, most: float) -> None:
    """XLA:CPU has a routine for results in int32, and loops over single numbers for other integers."""

    def product(of: str, to: str) -> float:
        a, b = (make_input(name, (512, 512), of) for name in "ab")
        node = mk("dot_general", a, b, dimension_numbers=(((1,), (0,)), ((), ())), precision=None,
                  preferred_element_type=to)  # fmt: skip
        return float(Roofline(weights_file.uncalibrated(), "uncalibrated").price([Graph((a, b), (node,))])[0])

    assert least <= product(kind, result) / product("float32", "float32") <= most


def test_convolutions_of_integers_are_priced_as_what_they_are() -> None:
    def convolution(kind: str) -> float:
        x, w = make_input("x", (1, 16, 16, 64), kind), make_input("w", (3, 3, 64, 64), kind)
        node = mk(
            "conv_general_dilated", x, w, window_strides=(1, 1), padding=((1, 1), (1, 1)), lhs_dilation=(1, 1),
            rhs_dilation=(1, 1), dimension_numbers=((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)), feature_group_count=1,
            batch_group_count=1, precision=None, preferred_element_type=None,
        )  # fmt: skip
        return float(Roofline(weights_file.uncalibrated(), "uncalibrated").price([Graph((x, w), (node,))])[0])

    assert convolution("int32") > 30.0 * convolution("float32")
