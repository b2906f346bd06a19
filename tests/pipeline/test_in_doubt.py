"""Programs that rounds leave in doubt, and plain ones that lose: what is returned and what is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.candidates.candidate import Candidate
from superopt.contest.rounds import Series
from superopt.ir.program import original_program
from superopt.machine.switches import plain_kept
from superopt.measure import Comparison, Timing
from superopt.measure.stats import paired_ratio
from superopt.pipeline import again, checking, plain

X = np.ones((8, 8), np.float32)


def rounds(monkeypatch: pytest.MonkeyPatch, factor: float) -> list[int]:
    """Have every program be so many times as fast as the original; how often one was timed."""
    timed: list[int] = []

    def duel(_: Any, entries: list[Candidate]) -> Series:
        timed.append(len(entries))
        series = Series(entries, 0)
        base, other = (1e-3,) * 31, (1e-3 / factor,) * 31
        first = Timing(base, paired_ratio(base, base))
        series.add(Comparison(first, (Timing(other, paired_ratio(base, other)),), again_s=base), (0,), 0)
        return series

    for module in (plain, again):
        monkeypatch.setattr(module, "duel", duel)
    return timed


def run(**options: Any) -> superopt.Optimized:
    return superopt.optimize(lambda x: jnp.tanh(x) * 2.0, X, search=False, **options)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_without_a_search_the_original_is_returned_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    timed = rounds(monkeypatch, factor)
    report = run(store=False).report
    assert timed == [1]
    assert report.original_returned == (factor < 1.0)
    assert report.measured.before_ms == pytest.approx(1.0)


def test_plain_candidates_are_not_timed_where_nothing_is_or_they_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = rounds(monkeypatch, 0.5)
    assert not run(store=False, deterministic=True).report.original_returned
    with plain_kept():
        assert not run(store=False).report.original_returned
    assert timed == []


@pytest.mark.parametrize(("later", "original"), [(1.5, False), (0.5, True)])
def test_a_result_in_doubt_is_kept_and_timed_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, later: float, original: bool
) -> None:
    store = tmp_path / "store.sqlite"
    rounds(monkeypatch, 33.0)
    after_check = checking.after_check
    monkeypatch.setattr(checking, "after_check", lambda *args: replace(after_check(*args), noisy=True))
    assert not run(store=store).report.original_returned
    timed = rounds(monkeypatch, later)
    monkeypatch.setattr(checking, "after_check", after_check)
    found = run(store=store)
    assert timed == [1] if not original else timed == [1, 1]
    assert found.report.original_returned == original
    if not original:
        assert found.report.measured.speedup.ratio == pytest.approx(1.5)
        assert "answered from the store" in str(found.report)
        run(store=store)
        assert timed == [1], "the doubt is over"
    np.testing.assert_allclose(found(X), np.tanh(X) * 2.0, rtol=1e-6)
    assert original_program(found.imported.graph)
