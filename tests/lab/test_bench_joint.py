"""The suites joint and plain: what their summaries say, that wrong results end a case, who goes without the search."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.errors import UsageError
from superopt.lab.bench import in_own_process, joint, keeping, run_suite, table_with_summary
from superopt.lab.bench.programs.layers import Net
from superopt.lab.bench.timing import until_decided
from superopt.machine.speedup import Speedup
from superopt.report.data import JudgedFinalist


def _plain_row(case: str, over_plain: float, vs_jax: float, seconds: float) -> dict[str, object]:
    return {"case": case, "over_plain": over_plain, "vs_jax": vs_jax, "plain_vs_jax": vs_jax / over_plain,
            "plain_seconds": seconds, "product_seconds": 30.0, "noise_floor": 0.02, "product_vs_f64": 1e-6,
            "proposals": 900, "proposals_per_second": 90.0}  # fmt: skip


def _row(
    case: str, over: tuple[float, float, float], vs_jax: float, said: tuple[float | None, float | None, float | None],
    late: bool = False, proposals: int = 0,
) -> dict[str, object]:  # fmt: skip
    gains = dict(zip(("over_plain", "over_no_rewrites", "over_no_kernels"), over, strict=True))
    tau, regret, error = said
    return {"case": case, "vs_jax": vs_jax, "tau": tau, "tau_apart": tau, "regret": regret, "program_error": error,
            "over_budget": late, "noise_floor": 0.02, "proposals": proposals,
            "proposals_per_second": proposals / 10, **gains}  # fmt: skip


def test_cases() -> None:
    assert len(set(joint.CASES)) == 20
    assert len(joint.NETWORKS) == 11
    assert joint.ONE_LAYER not in joint.CASES


def test_summary() -> None:
    rows = [
        _row("bert_base", (1.0, 1.1, 1.5), 1.9, (0.5, 0.02, 0.1), proposals=700),
        _row("squeezenet", (1.0, 1.0, 1.0), 1.0, (None, None, None), proposals=800),
        _row("lstm_step", (2.0, 1.2, 0.96), 4.0, (None, 0.04, None), late=True),
        _row("low_rank_chain", (0.98, 1.0, 1.0), 9.0, (0.7, None, 0.3)),
        _row("bert_one_layer", (0.5, 0.5, 0.5), 2.0, (-1.0, 9.0, 9.0), late=True),
        {"case": "resnet50", "failure": "no result"},
    ]
    summary = joint.summarise(rows)
    assert summary == pytest.approx({
        "networks_vs_plain": 2 ** (1 / 3),  # low_rank_chain is left out
        "median_vs_plain": 1.0,
        "min_proposals": 700,  # of whole networks
        "proposals_per_second": 70.0,
        "geomean_vs_plain": 1.96 ** (1 / 4),
        "geomean_vs_no_rewrites": 1.32 ** (1 / 4),
        "min_vs_alternatives": 0.96,
        "geomean_vs_jax": 68.4 ** (1 / 4),
        "core_vs_jax": 36.0 ** (1 / 3),
        "tau_finalists": 0.6,
        "tau_finalists_apart": 0.6,
        "pick_regret": 0.03,
        "program_error": 0.2,
        "over_budget": 1.0,
        "deep_over_one": 0.95,
        "noise_floor": 0.02,
        "failed": 1.0,
    })  # fmt: skip
    assert "| lstm_step |" in table_with_summary(rows, joint._COLUMNS, summary)


def test_summary_leaves_out_what_no_case_says() -> None:
    summary = joint.summarise([_row("lstm_step", (1.0, 1.0, 1.0), 4.0, (None, None, None))])
    assert not {"tau_finalists", "pick_regret", "program_error", "deep_over_one"} & summary.keys()


def test_summary_of_plain() -> None:
    rows = [
        _plain_row("bert_base", 1.0, 1.3, 12.0),
        _plain_row("gpt2_prefill", 1.1, 1.2, 9.0),
        _plain_row("squeezenet", 0.99, 4.0, 2.0),
        _plain_row("lstm_step", 2.0, 9.0, 1.0),
        {"case": "resnet50", "failure": "no result"},
    ]
    summary = joint.summarise_plain(rows)
    assert summary["min_over_plain"] == 0.99
    assert summary["min_vs_jax"] == summary["gpt2"] == 1.2
    assert summary["bert"] == 1.3
    assert summary["geomean_vs_jax"] == pytest.approx(6.0)  # of the core programs alone
    assert (summary["plain_seconds"], summary["plain_seconds_but_largest"]) == (12.0, 2.0)
    assert summary["failed"] == 1.0


def _finalists(*times: tuple[float | None, float | None]) -> list[JudgedFinalist]:
    """Candidates of an original of 1 ms, known to a fifth."""
    return [
        JudgedFinalist(
            f"f{i}",
            predicted,
            measured,
            None if measured is None else Speedup(1 / measured, 0.8 / measured, 1.25 / measured),
        )
        for i, (predicted, measured) in enumerate(times)
    ]


def test_agreement_of_predictions_with_times() -> None:
    found = joint.agreement(_finalists((1.0, 2.2), (2.0, 2.0), (3.0, 4.0), (None, 1.0), (0.5, None)))
    assert found["tau"] == pytest.approx(1 / 3)
    assert found["tau_apart"] == 1.0  # 2.2 and 2.0 cannot be told apart
    assert found["regret"] == pytest.approx(1.2)  # over the best that was built, which has no prediction
    assert found["candidates"][3] == {"name": "f3", "predicted_ms": None, "measured_ms": 1.0}
    assert len(found["candidates"]) == 4  # the last was not timed


def test_agreement_of_few_or_equal_predictions() -> None:
    assert joint.agreement(_finalists((None, 1.0), (None, 2.0))) | {"candidates": ()} == {
        "candidates": (), "tau": None, "tau_apart": None, "regret": None
    }  # fmt: skip
    one = joint.agreement(_finalists((1.0, 3.0), (None, 2.0)))
    assert (one["tau"], one["tau_apart"], one["regret"]) == (None, None, pytest.approx(0.5))
    alike = joint.agreement(_finalists((1.0, 3.0), (1.0, 2.0)))
    assert (alike["tau"], alike["regret"]) == (0.0, pytest.approx(0.25))


def test_results_are_compared_with_float64_and_with_jax() -> None:
    w, x = np.full((8, 4), 0.3, np.float32), np.arange(16, dtype=np.float32).reshape(2, 8)
    net = Net(lambda p, x: x @ p["w"], {"w": w}, (x,))
    right = jnp.asarray(x) @ w
    figures = joint.errors(net, {"jax": right, "plain": right * (1 + 1e-6), "product": right})
    assert 0.0 < figures["plain_vs_f64"] < 1e-5
    with pytest.raises(AssertionError, match="product differs from jax"):
        joint.errors(net, {"jax": right, "plain": right, "product": right * 1.01})


def test_rounds_are_added_while_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "ROUNDS", 5)
    monkeypatch.setattr(joint, "MOST_ROUNDS", 10)

    def figures(names: tuple[str, ...], *product: float) -> dict[str, float]:
        def interleaved(calls: list[object], *, rounds: int, **_: object) -> list[list[float]]:
            assert len(calls) == len(names) + 1  # plain twice
            series = {"product": list(islice(cycle(product), rounds)), "no_kernels": [1.5] * rounds}
            return [series.get(name, [1.0] * rounds) for name in (*names, "again")]

        monkeypatch.setattr("superopt.lab.bench.timing.interleaved", interleaved)
        return joint.timed(dict.fromkeys(names, lambda: None), 0)

    three = ("jax", "plain", "product")
    assert figures(three, 0.5)["rounds"] == 5
    assert figures(three, 0.8, 1.3, 1.0, 0.9, 1.2)["rounds"] == 10
    five = figures(("jax", *joint.OPTIONS), 0.5)
    gains = [five[key] for key in ("vs_jax", "over_plain", "over_no_rewrites", "over_no_kernels")]
    assert gains == pytest.approx([2.0, 2.0, 2.0, 3.0])
    assert five["no_kernels_ms"] == 1500.0


def test_rounds_end_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def interleaved(calls: list[object], *, rounds: int, **_: object) -> list[list[float]]:
        now[0] += 50.0
        return [[1.0, 1.1, 0.9, 1.0], [1.1, 1.0, 1.0, 0.9]]

    monkeypatch.setattr("superopt.lab.bench.timing.interleaved", interleaved)
    monkeypatch.setattr("superopt.lab.bench.timing.time.perf_counter", lambda: now[0])
    calls = {name: (lambda: None) for name in ("a", "b")}
    samples, _ = until_decided(calls, [("a", "b", 0.98)], rounds=4, most_rounds=400, sample_s=1.0, seed=0, most_s=120.0)
    assert len(samples["a"]) == 12


def test_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}

    def in_own_process(module: str, case: str, budget: str, *_: object, **__: object) -> dict[str, str]:
        given[case] = budget
        return {"case": case, "failure": module}

    monkeypatch.setattr(joint, "in_own_process", in_own_process)
    summary = run_suite("joint", budget=None, cases=("bert",), seed=0, say=lambda line: None)["summary"]
    assert given == {"bert_base": "60s", "bert_layer": "30s", "bert_one_layer": "30s"}
    assert summary["failed"] == 3.0
    run_suite("joint", budget="5s", cases=("bert",), seed=0, say=lambda line: None)
    assert set(given.values()) == {"5s"}


def test_only_suites_that_optimise_go_without_the_search() -> None:
    with pytest.raises(UsageError, match="--no-search is not for the suite verifier"):
        run_suite("verifier", budget=None, cases=(), seed=0, say=print, search=False)


def test_flags_and_environment_reach_the_process(tmp_path: Path) -> None:
    text = "import json, os, sys; print(json.dumps({'arguments': sys.argv[1:], 'here': os.environ['HERE']}))"
    (tmp_path / "a_case_that_echoes.py").write_text(text)
    environment = {"HERE": "x", "PYTHONPATH": str(tmp_path)}
    row = in_own_process("a_case_that_echoes", "c", "5s", 3, 60.0, flags=("--no-search",), environment=environment)
    assert row == {"arguments": ["c", "5s", "3", "--no-search"], "here": "x"}


def test_a_case_for_which_no_process_starts_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the rows of all cases before it are lost."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    row = in_own_process("a_case", "c", "5s", 0, 60.0)
    assert row["case"] == "c"
    assert row["failure"].startswith("no process: ")


def test_rows_are_kept_as_they_come_and_not_measured_again(tmp_path: Path) -> None:
    text = """
import json, pathlib, sys
calls = pathlib.Path(sys.argv[0]).with_name("calls.txt")
calls.write_text((calls.read_text() if calls.exists() else "") + sys.argv[1])
assert sys.argv[1] != "bad"
print(json.dumps({"case": sys.argv[1]}))
"""
    (tmp_path / "a_case_that_counts.py").write_text(text)
    environment, kept = {"PYTHONPATH": str(tmp_path)}, tmp_path / "rows.jsonl"

    def row(case: str, budget: str = "5s") -> dict[str, Any]:
        return in_own_process("a_case_that_counts", case, budget, 0, 60.0, environment=environment)

    with keeping(kept):
        assert row("a") == {"case": "a"}
        kept.write_text(kept.read_text() + '{"asked": ["cut o')  # the process ended here
        assert "failure" in row("bad")
    with keeping(kept):
        assert row("a", "6s") == {"case": "a"}
    with keeping(kept):
        assert row("a") == row("a", "6s") == {"case": "a"}
        assert "failure" in row("bad")
    assert row("a") == {"case": "a"}
    assert (tmp_path / "calls.txt").read_text() == "abadabada"
