"""A model is timed beside ONNX Runtime where that is installed; all renderings give the ratio, and no call fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.machine.budget import parse_budget
from superopt.pipeline.beside import kept_for_peers, peers_of
from superopt.report import json_text
from superopt.report.data import Report, read_report
from superopt.report.figures import ms
from superopt.report.html import to_html
from tests.support.other_runtime import stand_in


def model_file(folder: Path) -> Path:
    weights = numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 3]), ("y", [2, 4])))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "one", [x], [y], [weights])
    path = folder / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def optimised(path: Path) -> Report:
    return superopt.optimize(str(path), search=False, kernels=False, store=False).report


def test_all_renderings_give_the_ratio_over_the_other_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "runs", monkeypatch)
    report = optimised(model_file(tmp_path))
    (peer,) = report.peers
    assert (peer.name, peer.version, peer.failure) == ("ONNX Runtime", "9.9.9", "")
    assert peer.ratio is not None
    assert peer.ratio.ratio > 1.0, "a call of it waits for 2 ms"
    text = " ".join(str(report).split())
    assert f"own process: {ms(peer.ms)}, the returned program beside it {ms(peer.returned_ms)}" in text
    assert f"{peer.ratio} over ONNX Runtime" in text
    page = to_html(report)
    assert f'data-of="peers/0/ratio" value="{peer.ratio.ratio}">{peer.ratio}</data>' in page
    assert "speed-up over ONNX Runtime, 95 % interval" in page
    data = json.loads(json_text(report.to_json()))
    assert data["peers"][0]["ratio"] == peer.ratio.to_json()
    assert data["baseline"] == "jax.jit of the model"
    assert read_report(data).peers == report.peers


def test_a_runtime_that_fails_fails_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "dies", monkeypatch)
    report = optimised(model_file(tmp_path))
    (peer,) = report.peers
    assert peer.ratio is None
    assert "ONNX Runtime: not timed, exit: exit status 3" in " ".join(str(report).split())
    assert "not timed: exit: exit status 3" in to_html(report)
    assert not report.lost


def test_without_it_and_for_functions_nothing_is_said_nor_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, path = parse_budget("60s"), model_file(tmp_path)
    with monkeypatch.context() as absent:
        absent.setitem(sys.modules, "onnxruntime", None)
        assert kept_for_peers(path, limits) == limits
        assert optimised(path).peers == ()
    stand_in(tmp_path, "runs", monkeypatch)
    assert kept_for_peers(None, limits) == limits
    left = kept_for_peers(path, limits)
    assert left.seconds == 55.0, "what the rounds take is within the budget"
    assert kept_for_peers(path, parse_budget("10s")).seconds == 9.0
    fast = superopt.optimize(lambda x: x + 1.0, np.ones(3, np.float32), search=False, kernels=False, store=False)
    assert fast.report.peers == ()


def test_nothing_is_begun_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "hangs", monkeypatch)
    fast = superopt.optimize(lambda x: x + 1.0, np.ones(3, np.float32), search=False, kernels=False, store=False)
    (peer,) = peers_of(model_file(tmp_path), fast.imported, fast.executable, 0.5, 0)
    assert peer.failure == "no time was left of the budget"
    exact = superopt.optimize(str(model_file(tmp_path)), budget="20steps", deterministic=True, store=False, rules=[])
    assert exact.report.peers == (), "nothing is measured there"
