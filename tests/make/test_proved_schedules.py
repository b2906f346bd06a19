"""Schedules that a search found are used where they are proved, can be built and are faster than the default ones."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from superopt.ir.graph import Graph, make_input, mk
from superopt.make.schedules import ScheduleStage, proved
from superopt.make.trials import Trial

X = make_input("x", (3, 4), "float32")
GRAPH = Graph((X,), (mk("tanh", X),))
NO_COST: Any = None
TRACE = (("tile", "i", 4),)


def pool(verdict: str, made: Sequence[str | None] = (None,)) -> Any:
    """A pool of which no process runs: its backend says so, and its kernels are made with these failures."""
    answer = SimpleNamespace(proved=verdict == "proved", status=verdict, cause="a cause")
    return SimpleNamespace(
        backend=SimpleNamespace(name="native", prove=lambda graph, trace, ledger: answer),
        make_all=lambda jobs: list(made),
    )


def trial(**changes: Any) -> Trial:
    return Trial("tanh", "map", NO_COST, **changes)


def test_kernels_without_a_proof_are_failures() -> None:
    said: list[str] = []
    failed = trial(failure="it was not made")
    found = proved(pool("refuted").backend, {GRAPH: trial()}, None, said.append)
    assert found[GRAPH].failure == "its schedule is refuted: a cause"
    assert said == ["tanh: its schedule is refuted"]
    assert proved(pool("refuted").backend, {GRAPH: failed}, None, said.append) == {GRAPH: failed}
    assert proved(pool("proved").backend, {GRAPH: trial()}, None, said.append) == {GRAPH: trial()}


@pytest.mark.parametrize(("verdict", "made"), [("unknown", None), ("refuted", None), ("proved", "it does not compile")])
def test_searched_schedules_without_a_proof_or_a_kernel_are_not_timed(verdict: str, made: str | None) -> None:
    stage = ScheduleStage(pool(verdict, [made]), worker=SimpleNamespace())  # type: ignore[arg-type]
    region: Any = SimpleNamespace(graph=GRAPH)
    assert stage._better(region, trial(), TRACE, None) == trial()  # type: ignore[arg-type]
