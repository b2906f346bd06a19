"""The suite native-program on a small program, with few rounds, and its summary."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.kernels.llvm.cpu import supported
from superopt.lab.bench.cost import native
from tests.support.native_programs import CASES


@pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
@pytest.mark.usefixtures("keeps_plain")
def test_a_program_is_lowered_compared_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "build_case", lambda name, seed: CASES["attention"]())
    for name, value in (("_ROUNDS", 6), ("_MOST_ROUNDS", 6), ("_SAMPLE_S", 1e-4)):
        monkeypatch.setattr(native, name, value)
    row = native.measure_case("attention", "60s", 0, search=False)
    assert "failure" not in row
    assert row["left"] == ""
    assert row["steps"] > 1
    assert row["arena_over_live"] >= 1
    assert row["buffers_mb"] >= row["arena_mb"] > 0
    assert all(row[f"{name}_ms"] > 0 for name in ("jax", "hosted", "native", "inside", "bound"))


def test_programs_left_to_xla_count_apart() -> None:
    timed: dict[str, Any] = {
        "case": "a", "left": "", "vs_hosted": 1.2, "fastest": 1.1, "high": 1.3, "inside_vs_hosted": 1.0, "vs_jax": 2.0,
        "overhead_us": 3.0, "arena_over_live": 1.05, "lowering_ms": 4.0,
    }  # fmt: skip
    slower = timed | {"case": "b", "vs_hosted": 0.9, "high": 0.95}
    rows = [timed, slower, {"case": "c", "left": "2 x sort"}, {"case": "d", "failure": "no result"}]
    summary = native.summarise(rows)
    assert summary["min_vs_hosted"] == 0.9
    assert summary["max_arena_over_live"] == 1.05
    assert [summary[name] for name in ("native", "left", "slower", "failed")] == [2, 1, 1, 1]
