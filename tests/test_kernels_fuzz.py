"""A sample of the random kernels; `python -m superopt.kernels.fuzz` runs as many as are asked for."""

from __future__ import annotations

import pytest

from superopt.kernels import cpu, fuzz

pytestmark = pytest.mark.skipif(not cpu.supported(), reason="no code is generated for this processor")


def test_random_kernels() -> None:
    """In a process of their own: a wrong kernel can end it."""
    results = dict(fuzz.run(first=100, cases=30))
    assert sorted(results) == list(range(100, 130))
    assert {s: r for s, r in results.items() if r not in ("ok", "skipped")} == {}
    assert list(results.values()).count("ok") >= 20


def test_wrong_kernels_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that drops the last step of every loop bound fails most cases with a reduction."""
    from superopt.kernels import reduce

    kept = reduce.extent
    monkeypatch.setattr(reduce, "extent", lambda it: max(1, kept(it) - 1))
    results = [fuzz.check(seed) for seed in range(40, 60)]
    assert sum(r.startswith("wrong") for r in results) >= 2
