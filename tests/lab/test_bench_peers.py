"""Suites of exported models: programs in processes that answer, and what rows add up to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from superopt.errors import ProgramError, UsageError
from superopt.lab.bench.peers import exports, serve, suite
from superopt.lab.bench.peers.processes import Served, rounds

_PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from serve import serve
print("not an answer")
serve(lambda: time.sleep(float(sys.argv[2])), lambda: [np.arange(3)], {"version": "1"})
"""


_ENDS = "raise ValueError('no such thing')"


def _served(name: str, seconds: float) -> Served:
    return Served(name, [sys.executable, "-c", _PROGRAM, str(Path(serve.__file__).parent), str(seconds)], 60.0)


def test_programs_in_processes_are_timed_in_turn_and_give_their_results() -> None:
    with _served("slow", 0.04) as slow, _served("quick", 0.01) as quick:
        assert quick.about["version"] == "1"
        times, _ = rounds([slow, quick], 1, 0)
        assert times["slow"][0] > 2 * times["quick"][0] > 0.02
        np.testing.assert_array_equal(quick.outputs()[0], [0, 1, 2])


def test_a_process_that_ends_says_why() -> None:
    with pytest.raises(ProgramError, match="no such thing"), Served("x", [sys.executable, "-c", _ENDS], 60.0):
        pass


def test_summaries_count_what_is_beyond_doubt() -> None:
    row = {"vs_best": 1.2, "vs_best_low": 1.1, "vs_best_high": 1.3, "foreign_load": 0.0}
    behind = {"vs_best": 0.9, "vs_best_low": 0.8, "vs_best_high": 1.05, "foreign_load": 0.2}
    found = suite.summarise([row, behind, {"case": "z", "failure": "no"}])
    assert (found["ahead"], found["behind"], found["min_vs_best_peer"], found["failed"]) == (1.0, 0.0, 0.9, 1.0)
    one = {"case": "a float32", "ratio": 0.9, "below": True, "wrong": False, "difference": 0.0}
    two = {"case": "a float32 --no-search", "ratio": 2.0, "below": False, "wrong": True, "difference": None}
    found = exports.summarise([one, two])
    assert [found[k] for k in ("min_vs_jax", "below", "wrong", "unjudged", "models")] == [0.9, 1.0, 1.0, 1.0, 1.0]


def test_a_folder_without_models_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"models\.json"):
        suite.folder_of(str(tmp_path))
    (tmp_path / "models.json").write_text(
        json.dumps([{"model": "a", "form": "qdq", "file": "a/qdq.onnx"}, {"model": "b"}])
    )
    assert [suite.case_of(e) for e in suite.entries(suite.folder_of(str(tmp_path)), ["qdq"])] == ["a qdq"]


def test_what_looks_wrong_is_held_against_onnx_runtime_on_neighbours_of_the_inputs(tmp_path: Path) -> None:
    def saved(name: str, value: float) -> str:
        np.savez(tmp_path / name, np.array([1.0, value], np.float32))
        return str(tmp_path / f"{name}.npz")

    truth, own, near, far = saved("truth", 0.0), saved("own", 0.1), saved("near", 0.12), saved("far", 0.2)
    row = {"error": 0.22, "peer_error": 0.1, "wrong": True}
    assert exports._judged_again(row, [near, ""], [own, truth])["wrong"]
    again = exports._judged_again(row, [near, far], [own, truth])
    assert not again["wrong"]
    assert again["peer_error"] == pytest.approx(0.2)
    assert exports._judged_again(row | {"error": float("nan")}, [far], [own, truth])["wrong"]
    assert exports._judged_again(row, [far], [own]) == {}
