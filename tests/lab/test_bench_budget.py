"""The budget suite on a sample: an original that takes long, and calls that are interrupted."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("onnx", reason="originals of the suite are ONNX models, too")

from superopt.lab.bench import budget

SAMPLE = [
    f"{budget.SLOW}:callback:4",
    f"{budget.CTRL_C}:original:callback:optimize",
]
WHOLE = [pytest.param(f"{prefix}:", marks=pytest.mark.slow) for prefix in (budget.SLOW, budget.CTRL_C)]


@pytest.mark.parametrize("case", [*SAMPLE, *WHOLE])
def test_calls_end_in_the_time_and_leave_nothing(case: str) -> None:
    """How long they take on a machine that does something else, too, is what the suite is for."""
    said: list[str] = []
    rows, summary, text = budget.run(budget="", cases=[case], seed=0, say=said.append)
    assert rows, case
    assert len(said) == len(rows)
    failed: list[Any] = [row for row in rows if "failure" in row or row.get("left")]
    assert not failed, text
    prefix = case.partition(":")[0]
    assert f"{prefix}: kept" in summary
    if prefix == budget.CTRL_C:
        assert all(row["form"].startswith(("KeyboardInterrupt", "a result")) for row in rows)
