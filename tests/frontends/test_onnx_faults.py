"""Damaged ONNX files are programs or typed errors, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import onnx
import pytest

from superopt.lab.bench.faults import onnx as faults_onnx
from superopt.lab.bench.faults import suite as faults
from tests.support.onnx_models import mlp


def test_changes_are_reproducible_and_differ(tmp_path: Path) -> None:
    data, outside = mlp().SerializeToString(), tmp_path / "outside"
    for name in ("good", "in"):
        (tmp_path / name).mkdir()
    faults_onnx.write(tmp_path / "good", [mlp()])
    made = [faults_onnx.mutated(data, random.Random(f"0-{i}"), outside) for i in range(50)]
    assert made == [faults_onnx.mutated(data, random.Random(f"0-{i}"), outside) for i in range(50)]
    assert len(set(made)) > 40
    parsed = 0
    for one in made:
        try:
            onnx.ModelProto.FromString(one)
            parsed += 1
        except Exception:  # of many kinds
            continue
    assert parsed > 15


def test_bytes_from_outside_are_told(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    model = faults_onnx.with_data()
    (tmp_path / "data.bin").write_bytes(faults_onnx.CANARY[:16])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert "outside" in faults_onnx.read(path, tmp_path / "good.onnx")


def test_a_sample_of_damaged_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = faults._files("onnx", "tests.support.faults_models", 40, 3, lambda _: None)
    assert found.files == 40
    assert 10 < found.refused < 38
    assert not found.faults
