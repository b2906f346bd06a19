"""What the performance model predicts is never told as if it were measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import superopt
from rewrites.library import load
from superopt.candidates.evidence import Measurement
from superopt.commands.main import cli
from superopt.machine.speedup import UNTIMED, Speedup, predicted_speedup
from superopt.pipeline import target
from superopt.report import json_text, to_text
from superopt.report.data import Report, read_report
from superopt.report.html import to_html

A, B = [np.random.default_rng(seed).standard_normal((256, 256)).astype(np.float32) for seed in (0, 1)]
X = np.ones((256, 1), np.float32)


def product(a: Any, b: Any, x: Any) -> Any:
    return (a @ b) @ x


@pytest.fixture(scope="module")
def program() -> superopt.Optimized:
    rules = [rule for rule in load() if rule.name == "dot-assoc"]
    found = superopt.optimize(product, A, B, X, budget="50steps", deterministic=True, store=False, rules=rules)
    assert found.report.rewrites
    assert found.speedup == found.report.speedup
    return found


@pytest.fixture(scope="module")
def predicted(program: superopt.Optimized) -> Report:
    return program.report


def test_a_saved_prediction_is_one(program: superopt.Optimized, tmp_path: Path) -> None:
    loaded = superopt.load(program.save(tmp_path / "product.superopt"))
    assert loaded.speedup == program.speedup


def test_a_prediction_has_neither_interval_nor_times(predicted: Report) -> None:
    assert predicted.speedup.basis == "predicted"
    assert predicted.speedup.ratio > 1.5
    assert math.isnan(predicted.speedup.low)
    assert not predicted.speedup.low > 1.0
    assert not predicted.speedup.is_gain
    assert (predicted.measured.before_ms, predicted.measured.after_ms) == (None, None)
    assert str(predicted.speedup).endswith("x predicted, not measured")


def test_reports_say_that_nothing_was_measured(predicted: Report) -> None:
    times = to_text(predicted).splitlines()[1]
    assert times.startswith("  predicted, not measured: before ")
    assert "[" not in times
    page = to_html(predicted)
    assert "before (jax.jit), predicted" in page
    assert "95 % interval" not in page
    data = json.loads(json_text(predicted.to_json()))
    assert data["speedup"] == {"ratio": predicted.speedup.ratio, "low": None, "high": None, "basis": "predicted"}
    assert data["before_ms"] is data["after_ms"] is None
    assert read_report(data).speedup.basis == "predicted"
    assert math.isnan(read_report(data).speedup.low)


def test_strict_takes_no_prediction(predicted: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(report=predicted, save=None)
    monkeypatch.setattr(target, "optimize_target", lambda *_, **__: made)
    assert CliRunner().invoke(cli, ["optimize", "program.py:make"]).exit_code == 0
    assert CliRunner().invoke(cli, ["optimize", "program.py:make", "--strict"]).exit_code == 5
    made.report = replace(predicted, measured=Measurement(speedup=Speedup(2.0, 1.9, 2.1)))
    assert CliRunner().invoke(cli, ["optimize", "program.py:make", "--strict"]).exit_code == 0


def test_the_table_says_what_does_not_divide(predicted: Report) -> None:
    apart = replace(predicted, measured=Measurement(before_ms=126.0, after_ms=44.7, speedup=Speedup(3.58, 3.1, 3.9)))
    text = " ".join(to_text(apart).split())
    assert "speed-up 3.58x [3.10, 3.90] over jax.jit in paired rounds (of medians 2.82x)" in text
    assert "of medians 2.82x" in to_html(apart)
    close = replace(predicted, measured=Measurement(before_ms=100.0, after_ms=50.0, speedup=Speedup(2.01, 1.9, 2.1)))
    assert "medians" not in to_text(close)


def test_what_was_not_timed_is_no_gain() -> None:
    assert str(UNTIMED) == "not measured"
    assert not UNTIMED.is_gain
    assert not predicted_speedup(9.0).is_gain
    assert not Speedup(1.0, 1.0, 1.0).is_gain
    assert Speedup(1.1, 1.05, 1.2).is_gain
