"""The programs of the examples folder run as they stand."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(p.name for p in (ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / name))["main"]()
    assert "proof" in capsys.readouterr().out, "each prints a report"


def test_there_are_examples_to_run() -> None:
    assert {"optimize_jax.py", "optimize_onnx.py", "own_rule.py"} <= set(EXAMPLES)
