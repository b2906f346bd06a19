"""Pricing of rules that were found: what is tried, and a rule that pays on the program that has its pattern."""

from __future__ import annotations

import numpy as np
import pytest
from jax import Array

from rewrites.language.parse import parse
from rewrites.language.show import show
from rewrites.library import by_name
from superopt.lab.bench import price
from superopt.lab.bench.programs.layers import Net, avg_pool, conv2d

EQUATION = """found: X[*b k *s]  A[k *m]
  wsum(dot(X, A, k), s(w, t))  ==  dot(wsum(X, s(w, t)), A, k)
"""


def _program() -> Net:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64, 1, 1)).astype(np.float32)

    def fn(p: Array, x: Array) -> Array:
        return avg_pool(conv2d(x, p), 2, 2, 0)

    return Net(fn, w, (rng.standard_normal((1, 64, 32, 32)).astype(np.float32),))  # type: ignore[arg-type]


def test_an_equation_is_tried_in_both_directions_and_a_steered_rule_as_it_is() -> None:
    forward, backward = price.tried([parse(EQUATION)])
    assert (forward.mode, backward.mode) == ("near", "near")
    assert (forward.lhs, forward.rhs) == (backward.rhs, backward.lhs)
    steered = by_name("pool-before-product")
    assert price.tried([steered]) == (steered,)


@pytest.mark.parametrize(("rule", "paid"), [("pool-before-product", 1), ("max-before-add", 0)])
def test_a_rule_pays_where_its_pattern_is(rule: str, paid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price, "programs", lambda: {"tiny": _program})
    row = price.price_case(price.PricedProgram("tiny", show(by_name(rule)), 100, 0, False))
    assert row["paid"] == paid
    assert set(row["gains"]) == ({rule} if paid else set())
    assert row["applied"] == list(row["gains"])
    assert row["ratio"] > 1.1 if paid else row["ratio"] == 1.0


def test_programs_of_all_suites_are_priced() -> None:
    suites = {name.partition("/")[0] for name in price.programs()}
    assert suites == {"core", "nets", "rewrites", "ablation", "alternatives", "options"}
