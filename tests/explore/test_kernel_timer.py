"""Timings of kernels during a search: what fails is refused, and nothing is timed when the time is over."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from costmodel.model.joint import MOST, KernelJob
from superopt.explore import kernel_timer
from superopt.explore.kernel_timer import KernelTimer, is_open
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, make_input, mk
from superopt.machine.deadline import Deadline
from superopt.measure import KernelTiming
from superopt.measure.kernels import LEFT_OUT
from superopt.workshop.job import Failure

X = make_input("x", (3,))
GRAPHS = [Graph((X,), (mk(op, X),)) for op in ("exp", "tanh", "sin")]


class Objective:
    """A model that remembers what it is told."""

    own_name = "native"

    def __init__(self) -> None:
        self.refused: list[Graph] = []
        self.learned: list[Graph] = []

    def by_backend(self, graphs: Sequence[Graph]) -> dict[str, np.ndarray]:
        return {"native": np.arange(len(graphs), 0, -1.0)}

    def refuse(self, job: KernelJob) -> None:
        self.refused.append(job.runs)

    def learn(self, jobs: Sequence[KernelJob], seconds: Sequence[float]) -> None:
        self.learned += [job.runs for job in jobs]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that were given to timings, of which one succeeds, one crashes and one is left out."""
    seconds: list[float] = []

    def time_kernels(graphs: Sequence[Graph], *, budget_s: float, **_: Any) -> list[Any]:
        seconds.append(budget_s)
        return [KernelTiming(1e-6, (1e-6,), 0.0), Failure("crash", "it died"), Failure("timeout", LEFT_OUT)][
            : len(graphs)
        ]

    monkeypatch.setattr(kernel_timer, "time_kernels", time_kernels)
    return seconds


def test_kernels_that_fail_are_refused_and_those_left_out_are_not(asked: list[float]) -> None:
    objective: Any = Objective()
    timer = KernelTimer(objective, SimpleNamespace())  # type: ignore[arg-type]
    assert timer.calibrate([*GRAPHS, GRAPHS[0]], Deadline.within(60.0)) == 1
    assert (objective.learned, objective.refused) == ([GRAPHS[0]], [GRAPHS[1]])
    assert len(asked) == 1


def test_nothing_is_timed_when_the_time_is_over(asked: list[float]) -> None:
    objective: Any = Objective()
    timer = KernelTimer(objective, SimpleNamespace())  # type: ignore[arg-type]
    assert timer.calibrate(GRAPHS, Deadline.within(0.0)) == 0, "no limit would be another thing"
    assert timer.calibrate([], Deadline.within(60.0)) == 0
    assert timer.distinguish([GRAPHS, GRAPHS], Deadline.within(60.0)) == 0, "all programs have these"
    assert asked == []


def test_kernels_with_control_flow_are_not_timed_by_themselves() -> None:
    loop = import_function(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * x, x), (np.ones(3, np.float32),)).graph
    assert is_open(loop)
    assert not is_open(GRAPHS[0])


@pytest.mark.parametrize(("count", "seconds", "doubts"), [(0, 60.0, []), (3, 0.0, []), (3, 60.0, [MOST, 1.0])])
def test_rivals_are_timed_once_kernels_have_told_how_wrong_the_model_is(
    count: int, seconds: float, doubts: list[float], asked: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that might bring a noticeable part of the program's time, and that no finalist has."""
    doubted: list[float] = []

    def rivals(problem: Any, best: Any, optimism: float, deadline: Deadline) -> list[tuple[Graph, float]]:
        doubted.append(optimism)
        gains = (1.0, kernel_timer._WORTH_TIMING + 1e-4, kernel_timer._WORTH_TIMING - 1e-4)
        return list(zip(GRAPHS, gains, strict=True))

    objective: Any = Objective()
    objective.count = count
    objective.uncertain_s = lambda kernels: [0.0] * len(kernels)
    objective.untimed = lambda kernels: [KernelJob("native", kernel, kernel) for kernel in kernels]
    objective.error_of = lambda most: most
    monkeypatch.setattr(kernel_timer, "rival_kernels", rivals)
    best = SimpleNamespace(predicted_s=1.0, kernels=((GRAPHS[0], 0.5),))
    result: Any = SimpleNamespace(finalists=(best,), best=best, problem=None)
    KernelTimer(objective, SimpleNamespace()).learn(result, Deadline.within(seconds))  # type: ignore[arg-type]
    assert doubted == doubts
    assert objective.learned == ([GRAPHS[0]] if seconds else []) + [GRAPHS[1]] * bool(doubts)
