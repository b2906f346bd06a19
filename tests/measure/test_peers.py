"""Programs beside another runtime: it has its own process, a limit of time, and nothing that it does is an error."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from superopt.measure.peers import beside_onnx_runtime, has_onnx_runtime
from superopt.measure.result import ENOUGH_ROUNDS
from tests.support.other_runtime import stand_in

X = np.ones((2, 3), np.float64)


def test_both_are_timed_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "runs", monkeypatch)
    assert has_onnx_runtime()
    found = beside_onnx_runtime(tmp_path / "a.onnx", [X], lambda: time.sleep(0.001), 20.0)
    assert (found.failure, found.version) == ("", "9.9.9")
    assert found.threads >= 1
    assert len(found.theirs_s) == len(found.ours_s) >= ENOUGH_ROUNDS
    assert all(s >= 0.002 for s in found.theirs_s)
    assert all(s >= 0.001 for s in found.ours_s)


@pytest.mark.parametrize(
    ("does", "said"),
    [("refuses", "NOT_IMPLEMENTED"), ("dies", "exit status 3"), ("hangs", "timeout: no answer within")],
)
def test_what_goes_wrong_is_told_in_one_line_and_in_time(
    does: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, does, monkeypatch)
    begin_s, budget_s = time.monotonic(), 4.0 if does == "hangs" else 20.0
    found = beside_onnx_runtime(tmp_path / "a.onnx", [X], lambda: None, budget_s)
    assert said in found.failure
    assert "\n" not in found.failure
    assert len(found.failure) < 300
    assert found.theirs_s == found.ours_s == ()
    assert time.monotonic() - begin_s < budget_s + 2.0


def test_other_numbers_of_inputs_and_too_little_time_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "runs", monkeypatch)
    assert "it takes 1 inputs, 2 are given" in beside_onnx_runtime(tmp_path / "a", [X, X], lambda: None, 20.0).failure
    slow = beside_onnx_runtime(tmp_path / "a", [X], lambda: time.sleep(3.0), 10.0)
    assert "do not suffice for 5 rounds" in slow.failure
