"""Rivals: kernels that the best program does not use and that a wrong price would have hidden."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import numpy as np
import pytest

from costmodel.model.measured import kind
from superopt.ir.graph import Graph
from superopt.machine.deadline import Deadline
from superopt.search.finalists import rival_kernels
from superopt.search.meter import Meter
from superopt.search.search import SMALL, SMALL_WITHIN, SearchResult, SearchSettings, search
from tests.support.search_cases import case

module = import_module("superopt.search.search")
OPTIMISM, DOUBT = 1.7, 6.0


class OneDearKind:
    """Everything costs 1, a kernel of one kind costs more."""

    name = version = "one dear kind"

    def __init__(self, dear: str, price: float) -> None:
        self.dear, self.dear_price = dear, price

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        return np.array([self.dear_price if kind(k) == self.dear else 1.0 for k in kernels])


def found(price: float) -> SearchResult:
    return search(
        case("convnet", "library").eg, OneDearKind("macro conv-im2col", price), SearchSettings(Deadline(steps=2_000))
    )


@pytest.mark.parametrize("excess", [0.9, 1.1])
def test_a_rival_is_what_wins_if_it_is_cheaper_by_the_assumed_error(excess: float) -> None:
    result = found(excess * OPTIMISM)
    rivals = {kind(kernel) for kernel, _ in rival_kernels(result.problem, result.best, OPTIMISM)}
    used = {kind(kernel) for kernel, _ in result.best.kernels}
    assert "macro conv-im2col" not in used
    assert ("macro conv-im2col" in rivals) == (excess < 1.0)


def test_most_promising_first() -> None:
    result = found(1.2)
    gains = [gain for _, gain in rival_kernels(result.problem, result.best, OPTIMISM)]
    assert gains == sorted(gains, reverse=True)
    assert all(gain > 0 for gain in gains)


def test_nothing_is_priced_when_the_time_is_over() -> None:
    result = found(1.2)
    assert rival_kernels(result.problem, result.best, OPTIMISM)
    assert rival_kernels(result.problem, result.best, OPTIMISM, deadline=Deadline(0.0)) == []


def test_doubting_the_model_further_finds_more() -> None:
    result = found(1.1 * OPTIMISM)
    doubted = {kind(kernel) for kernel, _ in rival_kernels(result.problem, result.best, DOUBT)}
    usual = {kind(kernel) for kernel, _ in rival_kernels(result.problem, result.best, OPTIMISM)}
    assert "macro conv-im2col" in doubted - usual
    assert usual <= doubted


@pytest.mark.parametrize("late", [False, True])
def test_forms_next_to_the_best_are_kept_as_long_as_there_is_time(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meter, "is_late", late)
    monkeypatch.setattr(module, "SMALL", 2 * SMALL)  # the program has 42 classes
    settings = SearchSettings(Deadline(steps=500), finalists=13)
    result = search(case("linear", "library").eg, OneDearKind("dot", 1.6), settings)
    assert any(f.name.startswith("beside") for f in result.finalists) != late


@pytest.mark.parametrize(("price", "measured"), [(1.6, True), (40.0, False)])
def test_forms_next_to_the_best_of_a_small_program_are_finalists(
    price: float, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that prices one form up to twice as high as another does not keep it from being measured."""
    monkeypatch.setattr(module, "SMALL", 2 * SMALL)  # the program has 42 classes
    result = search(
        case("linear", "library").eg, OneDearKind("dot", price), SearchSettings(Deadline(steps=500), finalists=13)
    )
    assert result.statistics.live_classes <= 2 * SMALL
    others = [f for f in result.finalists if not f.original]
    assert all(f.predicted_s <= SMALL_WITHIN * result.best.predicted_s for f in others)
    assert "dot" not in {kind(kernel) for kernel, _ in result.best.kernels}
    assert any(f.name.startswith("beside") for f in others)
    assert any(kind(kernel) == "dot" for f in others for kernel, _ in f.kernels) == measured
