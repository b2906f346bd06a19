"""The zoo: both forms of a snippet equal float64, the frozen third is what the hash draws; rows and summary."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from superopt.lab.bench import in_own_process
from superopt.lab.bench.zoo import suite as zoo
from superopt.lab.corpora.zoo import FROZEN, OPEN, is_frozen, load
from superopt.lab.corpora.zoo.snippet import Snippet, TwoForms
from tests.support.sampling import sampled

SNIPPETS = load()


@pytest.mark.parametrize("case", sampled(SNIPPETS, lambda n, _: n % 25 == 0))
def test_both_forms_equal_float64(case: str) -> None:
    assert max(zoo.distances(SNIPPETS[case].forms(1)).values()) <= 1


def test_another_function_is_far() -> None:
    x = np.ones((3, 4), np.float32)
    assert zoo.distances(TwoForms(lambda x: x @ x.T, lambda x: x @ x.T * 1.001, (x,)))["hand"] > 1
    assert zoo.distances(TwoForms(lambda x: x > 0, lambda x: x > 1, (x,)))["hand"] > 1


def test_the_frozen_third_is_what_the_hash_draws() -> None:
    for case, snippet in SNIPPETS.items():
        assert case.startswith(f"{FROZEN if is_frozen(snippet.name) else OPEN}:"), case


def test_counts() -> None:
    gains = [case for case in SNIPPETS if ":written_well:" not in case]
    assert len(gains) >= 100
    assert len(SNIPPETS) - len(gains) >= 15
    assert len({s.name for s in SNIPPETS.values()}) == len(SNIPPETS)
    fields = {case.split(":")[1] for case in SNIPPETS}
    assert all(
        any(case.startswith(f"{part}:{field}:") for case in SNIPPETS) for part in (OPEN, FROZEN) for field in fields
    )
    assert 0.3 <= sum(case.startswith(FROZEN) for case in SNIPPETS) / len(SNIPPETS) <= 0.4


def test_forms_differ_where_there_is_something_to_gain() -> None:
    for case, snippet in SNIPPETS.items():
        forms = snippet.forms(0)
        assert (forms.fn is forms.hand) == (":written_well:" in case), case
        assert all(k < len(forms.args) for k in snippet.frozen), case
        assert all(str(x.dtype) in ("float32", "int32") for x in jax.tree.leaves(forms.args)), case


def test_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(zoo, "MOST_ROUNDS", zoo.ROUNDS)  # a row is made of however few rounds
    monkeypatch.setattr(zoo, "_SAMPLE_S", 1e-4)
    monkeypatch.setattr(zoo, "optimize", functools.partial(zoo.optimize, search=False))  # nor does it ask what is found
    x = np.ones((8, 8), np.float32)
    forms = TwoForms(lambda a, b: (a @ a) @ b, lambda a, b: a @ (a @ b), (x, x[:, :1]))
    row = zoo.measured(Snippet("tiny", "associativity", lambda _: forms, (), cancellation=True), "1s", 0)
    assert not row["wrong"]
    assert row["self"] > 0
    assert row["low"] <= row["ratio"] <= row["high"]
    assert row["near"] == (row["ratio"] <= zoo.NEAR)
    assert {"jax_ms", "hand_ms", "ours_ms", "best_ms", "opt_in_ms", "near_opt_in", "below"} <= row.keys()


def test_unequal_forms_have_no_row() -> None:
    forms = TwoForms(lambda x: x + 1, lambda x: x + 2, (np.ones(4, np.float32),))
    with pytest.raises(AssertionError, match="not equal"):
        zoo.measured(Snippet("unequal", "", lambda _: forms, (), cancellation=False), "1s", 0)


def test_a_case_that_is_not_there_is_a_failure() -> None:
    assert "failure" in in_own_process("superopt.lab.bench.zoo.suite", "open:none:none", "1s", 0, 60.0)


def _row(case: str, own: float, hand: float, ratio: float, near: bool, opted: bool) -> dict[str, object]:
    return {"case": case, "self": own, "hand_self": hand, "ratio": ratio, "near": near, "near_opt_in": opted,
            "below": own < zoo.NOT_SLOWER, "wrong": False}  # fmt: skip


def test_summary() -> None:
    rows = [
        _row("open:graphs:a", 4.0, 1.0, 1.0, True, True),
        _row("open:graphs:b", 0.9, 1.2, 3.0, False, True),
        _row("frozen:graphs:c", 2.0, 0.99, 2.0, False, False),
        {"case": "frozen:graphs:d", "failure": "no result"},
    ]
    assert zoo.summarise(rows) == pytest.approx({
        "cases": 4.0, "near": 1 / 3, "near_opt_in": 2 / 3, "median_self": 2.0, "median_ratio": 2.0,
        "min_vs_self": 0.9, "below": 1.0, "wrong": 0.0, "failed": 1.0,
        "open_cases": 2.0, "open_near": 0.5, "open_near_opt_in": 1.0, "open_median_self": 2.45,
        "open_median_ratio": 2.0,
        "frozen_cases": 1.0, "frozen_near": 0.0, "frozen_near_opt_in": 0.0, "frozen_median_self": 2.0,
        "frozen_median_ratio": 2.0,
    })  # fmt: skip
