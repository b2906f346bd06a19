"""The files of the kind `onnx`, made of two models."""

from __future__ import annotations

from pathlib import Path

from superopt.lab.bench.faults import onnx as faults_onnx
from superopt.lab.bench.faults.onnx import mutated, read
from tests.support.onnx_models import mlp

__all__ = ["corpus", "mutated", "read"]


def corpus(folder: Path) -> None:
    """A network, and a model with external data."""
    faults_onnx.write(folder, [mlp(), faults_onnx.with_data()])
