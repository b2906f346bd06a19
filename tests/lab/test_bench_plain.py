"""The plain suite: what its summary says, that wrong results end a case, and which suites go without the search."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.errors import UsageError
from superopt.lab.bench import in_own_process, plain, run_suite
from superopt.lab.bench.programs.layers import Net


def _row(case: str, over_plain: float, vs_jax: float, seconds: float) -> dict[str, object]:
    return {"case": case, "over_plain": over_plain, "vs_jax": vs_jax, "plain_vs_jax": vs_jax / over_plain,
            "plain_seconds": seconds, "product_seconds": 30.0, "noise_floor": 0.02, "product_vs_f64": 1e-6}  # fmt: skip


def test_summary() -> None:
    rows = [
        _row("bert_base", 1.0, 1.3, 12.0),
        _row("gpt2_prefill", 1.1, 1.2, 9.0),
        _row("squeezenet", 0.99, 4.0, 2.0),
        _row("lstm_step", 2.0, 9.0, 1.0),
        {"case": "resnet50", "failure": "no result"},
    ]
    summary = plain.summarise(rows)
    assert summary["min_over_plain"] == 0.99
    assert summary["min_vs_jax"] == summary["gpt2"] == 1.2
    assert summary["bert"] == 1.3
    assert summary["geomean_vs_jax"] == pytest.approx(6.0)  # of the core programs alone
    assert (summary["plain_seconds"], summary["plain_seconds_but_largest"]) == (12.0, 2.0)
    assert summary["failed"] == 1.0


def test_results_are_compared_with_float64_and_with_jax() -> None:
    w, x = np.full((8, 4), 0.3, np.float32), np.arange(16, dtype=np.float32).reshape(2, 8)
    net = Net(lambda p, x: x @ p["w"], {"w": w}, (x,))
    right = jnp.asarray(x) @ w
    figures = plain.errors(net, {"jax": right, "plain": right * (1 + 1e-6), "product": right})
    assert 0.0 < figures["plain_vs_f64"] < 1e-5
    with pytest.raises(AssertionError, match="product differs from jax"):
        plain.errors(net, {"jax": right, "plain": right, "product": right * 1.01})


def test_rounds_are_added_while_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "ROUNDS", 5)
    monkeypatch.setattr(plain, "MOST_ROUNDS", 10)

    def rounds(*product: float) -> int:
        def interleaved(calls: list[object], *, rounds: int, **_: object) -> list[list[float]]:
            return [[1.0] * rounds, [1.0] * rounds, list(islice(cycle(product), rounds)), [1.0] * rounds]

        monkeypatch.setattr("superopt.lab.bench.timing.interleaved", interleaved)
        return plain.timed(dict.fromkeys(("jax", "plain", "product", "again"), lambda: None), 0)["rounds"]

    assert rounds(0.5) == 5
    assert rounds(0.8, 1.3, 1.0, 0.9, 1.2) == 10


def test_only_suites_that_optimise_go_without_the_search() -> None:
    with pytest.raises(UsageError, match="--no-search is not for the suite verifier"):
        run_suite("verifier", budget=None, cases=(), seed=0, say=print, search=False)


def test_flags_and_environment_reach_the_process(tmp_path: Path) -> None:
    text = "import json, os, sys; print(json.dumps({'arguments': sys.argv[1:], 'here': os.environ['HERE']}))"
    (tmp_path / "a_case_that_echoes.py").write_text(text)
    environment = {"HERE": "x", "PYTHONPATH": str(tmp_path)}
    row = in_own_process("a_case_that_echoes", "c", "5s", 3, 60.0, flags=("--no-search",), environment=environment)
    assert row == {"arguments": ["c", "5s", "3", "--no-search"], "here": "x"}
