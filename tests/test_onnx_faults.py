"""Damaged ONNX files are read in a process of their own: programs or typed errors, and nothing else."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import onnx
import pytest

from superopt.bench import faults_onnx
from tests.onnx_models import mlp

DYING = """
import json, os, sys
for number in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps({"begin": number}), flush=True)
    if number == 1:
        os.abort()
    row = {"file": number, "status": "ok", "seconds": 11.0 if number == 2 else 0.1, "opened": ["/x"] * (number == 3)}
    print(json.dumps(row), flush=True)
"""


def test_changes_are_reproducible_and_differ() -> None:
    data = mlp().SerializeToString()
    made = [faults_onnx.mutated(data, data, random.Random(f"0-{i}")) for i in range(50)]
    assert made == [faults_onnx.mutated(data, data, random.Random(f"0-{i}")) for i in range(50)]
    assert len(set(made)) > 40
    parsed = 0
    for one in made:
        try:
            onnx.ModelProto.FromString(one)
            parsed += 1
        except Exception:  # of many kinds
            continue
    assert parsed > 15


def test_what_goes_wrong_is_counted(tmp_path: Path) -> None:
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    counts = {"files": 0, "programs": 0, "typed": 0, "untyped": 0, "deaths": 0, "outside": 0}
    counts |= {"slowest_seconds": 0.0, "peak_mb": 0, "faults": []}
    at = 0
    while at < 5:
        at = faults_onnx._watch([sys.executable, str(script)], at, 5, counts)
    assert (counts["files"], counts["programs"], counts["deaths"], counts["outside"]) == (5, 4, 1, 1)
    assert counts["slowest_seconds"] == 11.0
    assert [f["file"] for f in counts["faults"]] == [1, 2, 3]


def test_a_sample_of_damaged_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(folder: Path) -> int:
        for i, model in enumerate((mlp(), faults_onnx._external())):
            (folder / f"{i}.onnx").write_bytes(model.SerializeToString())
        return 2

    monkeypatch.setattr(faults_onnx, "write_seeds", few)
    counts = faults_onnx.check(files=40, seed=3)
    assert counts["files"] == counts["programs"] + counts["typed"] == 40
    assert counts["programs"] > 3
    assert counts["typed"] > 10
    assert not counts["faults"]
