"""The files of the kind `onnx`, made of two models."""

from __future__ import annotations

from pathlib import Path

from superopt.bench import faults_onnx
from superopt.bench.faults_onnx import mutated, read
from tests.onnx_models import mlp

__all__ = ["corpus", "mutated", "read"]


def corpus(folder: Path) -> None:
    """A network, and a model with external data."""
    faults_onnx.write(folder, [mlp(), faults_onnx.with_data()])
