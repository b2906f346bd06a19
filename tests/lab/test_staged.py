"""Rows of scheduled stages, the model of scheduled kernels, and figures of its choices."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel.features import stages
from costmodel.model import staged as model
from costmodel.model.weights_file import WeightsError
from superopt.errors import InputError
from superopt.kernels.choose.defaults import default_trace
from superopt.kernels.llvm.cpu import host
from superopt.kernels.loops.program import from_graph
from superopt.kernels.schedule.trace import apply
from superopt.lab.training import regions, schedule_eval, schedules, staged
from superopt.lab.training.collect import LabelFile
from superopt.lab.training.staged import ScheduleLabels, StagedSettings
from superopt.lab.training.tasks import read_lines, write_lines
from superopt.machine.rates import NOMINAL
from superopt.schedules.space import space_of
from superopt.schedules.workload import workload

QUICK = StagedSettings(hidden=16, members=2, epochs=120, batch=64, drop=0.0)


def _rows(text: str, trace: list[list[object]] | None = None, threads: int = 1) -> np.ndarray:
    program = from_graph(workload(text).outputs, name="kernel")
    return stages.stage_rows(apply(program, default_trace(program) if trace is None else trace), threads)


def _named(rows: np.ndarray, name: str) -> float:
    return float(rows[0, stages.NAMES.index(name)])


@pytest.mark.parametrize("text", ["dot f32 40x64x96", "softmax f32 30x50", "conv f32 9x9x16 3x3x32", "cumsum f32 8x40"])
def test_rows_are_finite_and_one_for_each_stage_that_runs(text: str) -> None:
    rows = _rows(text)
    assert rows.shape[1] == len(stages.NAMES) == len(set(stages.NAMES))
    assert len(rows) >= 1
    assert np.isfinite(rows).all()
    assert 0 < stages.estimate_s(rows) < 1e-2


def test_rows_follow_the_program_and_not_only_its_decisions() -> None:
    plain: list[list[object]] = [["set_knob", "out0", "transpose", 0]]
    across = _rows("transpose f32 200x320")
    gathered = _rows("transpose f32 200x320", plain)
    assert _named(across, "transposed") == 1.0 > _named(gathered, "transposed")
    assert stages.estimate_s(across) < stages.estimate_s(gathered)
    # a row that is summed again for every element of it
    again: list[list[object]] = [["reorder", "out0", ["o1", "o0"]], ["vectorize", "out0", "o0"]]
    assert stages.estimate_s(_rows("softmax f32 64x500", again)) > 20 * stages.estimate_s(_rows("softmax f32 64x500"))


def test_work_is_counted_in_full_and_tails_of_tiles_by_what_exists() -> None:
    one, ten = (stages.estimate_s(_rows(f"dot f32 {m}x512x512")) for m in (60, 600))
    assert 6 < ten / one < 14
    rows = _rows("dot f32 61x512x512")
    assert _named(rows, "tile") == 1.0
    assert 0 <= _named(rows, "waste_rows") < 0.2
    assert _named(_rows("dot f32 600x512x512", threads=2), "threads") == 1.0


def test_estimates_are_nominal_and_the_rate_of_the_processor_is_a_feature() -> None:
    """The model that ships was fitted to such rows: another clock must not move what it corrects."""
    scheduled = apply(program := from_graph(workload("dot f32 40x64x96").outputs), default_trace(program))
    half = replace(host(), rates=replace(NOMINAL, hertz=NOMINAL.hertz / 2, from_l3=1.0, fma_s=2 * NOMINAL.fma_s))
    nominal, slow = stages.stage_rows(scheduled), stages.stage_rows(scheduled, cpu=half)
    assert (_named(nominal, "log_rate"), _named(slow, "log_rate")) == (0.0, -1.0)
    differs = {stages.NAMES[k] for k in np.flatnonzero((nominal != slow).any(0))}
    assert differs == {"log_rate"}


def test_weights_of_the_program_come_from_beyond_the_caches_that_do_not_hold_them() -> None:
    program = from_graph(workload("dot f32 8x512x512").outputs, name="kernel")
    scheduled, size = apply(program, default_trace(program)), 4 * 512 * 512
    warm, cold = (stages.stage_rows(scheduled, weights=n) for n in (0, 1 << 30))
    own = stages.stage_rows(scheduled, weights=size)
    assert _named(warm, "cold_l3") == 0 < _named(cold, "cold_l3")
    np.testing.assert_array_equal(warm, own)
    assert _named(cold, "past_l3") == pytest.approx(_named(cold, "cold_l3"), rel=1e-3), "nothing else is cold"
    assert stages.estimate_s(cold) > 1.2 * stages.estimate_s(warm)
    assert _named(cold, "weights_l3") > _named(warm, "weights_l3")


def test_groups_of_the_ablation_are_names_in_order() -> None:
    places = [(stages.NAMES.index(a), stages.NAMES.index(b)) for a, b in stages.GROUPS.values()]
    assert all(a <= b for a, b in places)
    assert sum(b - a + 1 for a, b in places) <= len(stages.NAMES)


def _labels(regions_: int = 24, points: int = 6) -> ScheduleLabels:
    """Programs of one or two stages whose time over the estimate is a function of one number of the row."""
    rng = np.random.default_rng(0)
    rows, seconds, region, families = [], [], [], []
    for r in range(regions_):
        for _ in range(points):
            x = np.zeros((1 + r % 2, len(stages.NAMES)), np.float32)
            x[:, stages.NAMES.index("log_seconds")] = 14 + rng.standard_normal()
            x[:, stages.NAMES.index("vectors")] = rng.integers(0, 4)
            rows.append(x)
            seconds.append(stages.estimate_s(x) * math.exp(0.4 * x[0, stages.NAMES.index("vectors")] - 0.6))
            region.append(r)
            families.append(f"family {r % 6}")
    n = len(rows)
    first = np.arange(n) % points == 0
    exhaustive = np.array(region) % 4 == 0
    seconds = np.array(seconds)
    again = np.where(exhaustive, 1.02 * seconds, np.nan)
    return ScheduleLabels(rows, seconds, again, np.array(region), np.array(families),
                  np.array([f"program {r}" for r in region]), exhaustive, first,
                  np.array(region) % 3 == 0, header={})  # fmt: skip


def test_a_fit_finds_what_the_estimate_misses_and_survives_its_file(tmp_path: Path) -> None:
    labels = _labels()
    fitted = staged.fit(labels, QUICK, 0)
    error = np.abs(np.log(fitted.seconds(labels.rows) / labels.seconds))
    missed = np.abs(np.log(schedule_eval.prior(labels, 0)(labels) / labels.seconds))
    assert error.mean() < 0.5 * missed.mean()
    assert fitted.interval > 0
    path = tmp_path / "schedules.safetensors"
    model.write(path, fitted, {"seed": 0})
    np.testing.assert_allclose(model.read(path).seconds(labels.rows), fitted.seconds(labels.rows), rtol=1e-4)
    path.write_bytes(path.read_bytes()[:-4])
    model.read.cache_clear()
    with pytest.raises(WeightsError, match="not the file"):
        model.read(path)


def test_the_model_corrects_estimates_by_networks_of_two_layers() -> None:
    rng, width, inputs = np.random.default_rng(0), 3, 2 * len(stages.NAMES)
    programs = [rng.standard_normal((count, len(stages.NAMES))).astype(np.float32) for count in (1, 3)]
    names, ranks = len(stages.NAMES), np.sort(rng.standard_normal((len(stages.NAMES), 5)), 1)
    sizes = {"w1": (2, inputs, width), "b1": (2, width), "w2": (2, width, width), "b2": (2, width), "w3": (2, width)}
    layers = {name: 0.3 * rng.standard_normal(size) for name, size in sizes.items()}
    fitted = model.Staged(
        mean=rng.standard_normal(names), std=1 + rng.random(names), ranks=ranks, b3=rng.standard_normal(2),
        interval=0.1, **layers,
    )  # fmt: skip
    found = fitted.members(programs)
    for k in range(2):
        w1, b1, w2, b2, w3 = (array[k] for array in layers.values())
        for n, rows in enumerate(programs):
            h = np.maximum(model.encode(rows, fitted.mean, fitted.std, ranks) @ w1 + b1, 0)
            logs = np.maximum(h @ w2 + b2, 0) @ w3 + fitted.b3[k]
            nanoseconds = np.exp(logs) * 2.0 ** rows[:, stages.NAMES.index("log_seconds")]
            assert found[k, n] == pytest.approx(np.log(model.CALL_S + 1e-9 * nanoseconds.sum()), rel=1e-5)


def test_figures_of_a_perfect_model_and_of_none() -> None:
    labels = _labels()
    perfect = schedule_eval.figures(labels.seconds, labels)
    assert perfect["mape"] == 0
    assert perfect["tau"] == perfect["top1"] == 1
    assert perfect["tile_ape"] == 0
    assert perfect["measurements"] == 1
    assert perfect["best_over_default"] >= perfect["clear_over_default"] > 1
    turned = schedule_eval.figures(1 / labels.seconds, labels)
    assert turned["tau"] == -1
    assert turned["measurements"] > turned["measurements_by_chance"]
    floors = schedule_eval.floors(labels)
    assert floors["floor_mape"] == pytest.approx(0.02)
    assert floors["floor_tile_ape"] == 0, "all second visits are later by as much"
    assert floors["ceiling_tau"] == 1


def test_an_evaluation_has_the_figures_of_the_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_eval, "network", lambda settings: schedule_eval.prior)  # fits take seconds each
    result = schedule_eval.evaluate(_labels(), QUICK, 1, ["family 0", "family 1"], 1e9, lambda line: None)
    names = {"mape_own_random", "mape_own_lofo", "tau_schedule", "tile_ape_random", "tile_ape_lofo", "top1", "top5",
             "coverage90", "measurements_vs_random", "transfer"}  # fmt: skip
    assert names <= set(result["summary"])
    assert set(result["ablation"]) == set(stages.GROUPS)
    text = schedule_eval.table(result | {"labels": {"labels": 1, "regions": 1, "families": 1}})
    assert "`tau_schedule`" in text


def test_labels_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no labels"):
        staged.load(tmp_path / "missing.jsonl.gz")
    write_lines(tmp_path / "some.jsonl.gz", [{"header": {}}, {"key": "unknown", "points": []}])
    with pytest.raises(InputError, match="does not have"):
        staged.load(tmp_path / "some.jsonl.gz")


@functools.cache
def texts() -> dict[str, str]:
    """The texts of the regions that ship, by key."""
    return {row["key"]: row["text"] for row in read_lines(regions.SHIPPED)[1:]}


@pytest.mark.parametrize("path", schedules.shipped(), ids=lambda path: path.name)
def test_shipped_labels_name_regions_on_file(path: Path) -> None:
    records = read_lines(path)
    assert {"machine", "versions", "timing"} <= set(records[0]["header"])
    assert {row["key"] for row in records[1:]} <= texts().keys()
    assert all(point[1] > 0 for row in records[1:] for point in row["points"])


def test_rows_of_labels_are_those_of_the_machine_that_timed_them(tmp_path: Path) -> None:
    header, *rows = read_lines(schedules.SHIPPED)
    row = next(r for r in rows if "dot_general" in texts()[r["key"]] and json.dumps(r["points"][0]).count("tensorize"))
    row = row | {"points": row["points"][:1]}
    lanes = []
    for wide in (True, False):
        machine = dict(header["header"]["machine"])
        machine["features"] = [f for f in machine["features"] if wide or not f.startswith("avx512")]
        machine["caches_bytes"] = machine["caches_bytes"] | {"L2": 1 << (20 if wide else 19)}
        path = tmp_path / f"{wide}.jsonl.gz"
        write_lines(path, [{"header": header["header"] | {"machine": machine}}, row])
        labels = staged.load(path)
        lanes.append(labels.rows[0][:, stages.NAMES.index("lanes")].max())
        assert labels.vector_bits == (512 if wide else 256)
    assert lanes == [4.0, 3.0], "logarithms of 16 and of 8"


def test_the_least_time_of_a_set_is_known_where_sets_were_visited_again() -> None:
    point, again = [[], 1e-5, 0], [[], 1e-5, 0, 1.1e-5]
    for points, exhaustive, known in (([point], True, False), ([again], True, True), ([again], False, False)):
        assert staged._known([{"header": {}}, {"exhaustive": exhaustive, "points": points}]) == known


def test_labels_of_several_machines_do_not_share_a_file(tmp_path: Path) -> None:
    labels = LabelFile.read(tmp_path / "some.jsonl.gz")
    labels.stamp()
    labels.rows.append({"key": "one"})
    labels.stamp()
    labels.header["machine"]["cores"] += 1
    with pytest.raises(InputError, match="another machine"):
        labels.stamp()
    labels.rows[0]["threads"] = 1
    labels.stamp()
    labels.header["machine"]["features"] = ["another"]
    with pytest.raises(InputError, match="another machine"):
        labels.stamp()


def test_a_machine_is_predicted_by_labels_of_others() -> None:
    one, other = _labels(), _labels()
    other = replace(other, seconds=3 * other.seconds)
    found = schedule_eval.between_machines([one, other], schedule_eval.prior, lambda line: None)
    assert len(found) == 12
    own, others, at_rate, scaled, _, _ = list(found.values())[6:]
    assert scaled["mape"] == pytest.approx(own["mape"], rel=0.1), "a factor is all that differs"
    assert others["mape"] == at_rate["mape"] > 1.5 * own["mape"], "the rate of both is unknown"


def test_labels_of_another_machine_are_as_if_of_the_first() -> None:
    one = replace(_labels(), header={"fma_s": 2e-10})
    fast = replace(one, seconds=one.seconds / 2, again_s=one.again_s / 2, header={"fma_s": 1e-10})
    same = fast.at_rate_of(one)
    np.testing.assert_allclose(same.seconds, one.seconds)
    np.testing.assert_allclose(same.again_s, one.again_s)
    assert same.header == one.header


def test_a_set_that_is_timed_exhaustively_begins_with_the_default() -> None:
    space = space_of(from_graph(workload("dot f32 72x200x312").outputs, name="kernel"))
    points = list(schedules.every(space))
    assert points[0] == space.start
    assert len(points) <= schedules.EXHAUSTIVE + 1
    assert len({point["out0.tile"] for point in points}) == len(space.decisions["out0.tile"].options)
