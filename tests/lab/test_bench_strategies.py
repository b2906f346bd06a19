"""The comparison of strategies: every mixture runs, and figures are held against the best that any run found."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.lab.bench.searches import strategies


def test_each_mixture_is_run_by_proposals_and_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "SEEDS", range(1))
    row = strategies.measure_case("strategies:open:layers:ensemble_of_heads", 0)
    assert {(run["mixture"], run["by"]) for run in row["runs"]} == {
        (name, by) for name in strategies.MIXTURES for by in strategies.BY
    }
    least = {run["mixture"]: run["ms"] for run in row["runs"] if run["by"] == "evaluations"}
    assert max(ms for name, ms in least.items() if name != "starts") < least["starts"]


def test_figures_are_over_the_best_known() -> None:
    def run(mixture: str, seed: int, ms: float) -> dict[str, Any]:
        return {"mixture": mixture, "by": "evaluations", "seed": seed, "ms": ms}

    one = [run("starts", 0, 2.0), run("starts", 1, 2.0), run("descents", 0, 1.0), run("descents", 1, 1.1)]
    other = [run("starts", 0, 10.0), run("descents", 0, 10.0)]
    starts, descents, *_ = strategies.compared([{"runs": one}, {"runs": other}])
    assert (starts["evaluations_median"], starts["evaluations_worst"], starts["evaluations_wins"]) == (1.0, 1.0, 1)
    assert descents["evaluations_wins"] == 2
    assert descents["evaluations_spread"] == pytest.approx(0.1)
    assert "seconds_median" not in starts
