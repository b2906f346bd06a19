"""Decisions of a stage's schedule: their options, the default ones, and the steps that take them.

Whoever makes schedules of a kind returns `StageDecisions`, for parts of a program that run as one with the program
that was taken apart.  The default schedule takes their defaults (`superopt.kernels.choose.defaults`), a search all of
their options (`superopt.schedules.space`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.errors import InputError
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.trace import Steps, apply

SchedulePoint = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ScheduleDecision:
    """A decision of a schedule, its options, and the one that the default schedule takes."""

    name: str
    options: tuple[Any, ...]
    default: Any


@dataclass(frozen=True, slots=True)
class StageDecisions:
    """The decisions of one stage.

    Attributes:
        stage: its name.
        decisions: all of them, each independent of the others.
        steps: maps an option per decision, by name, to the primitives that take them; raises `InputError` where one
            does not fit.
    """

    stage: str
    decisions: tuple[ScheduleDecision, ...]
    steps: Callable[[SchedulePoint], Steps]

    @property
    def start(self) -> dict[str, Any]:
        """The point of the default schedule."""
        return {d.name: d.default for d in self.decisions}


@dataclass(frozen=True, slots=True)
class Parted:
    """A program that was taken apart, and the decisions of how its parts run as one.

    Attributes:
        program: the program after `prefix`.
        prefix: the steps that take it apart.
        decisions: those of the stage in which the others run.
    """

    program: LoopProgram
    prefix: Steps
    decisions: StageDecisions

    def default(self) -> tuple[LoopProgram, Steps] | None:
        """Return the program under the default schedule, and all of its steps; None where a step does not fit."""
        try:
            steps = self.decisions.steps(self.decisions.start)
            return apply(self.program, steps), [*self.prefix, *steps]
        except InputError:
            return None


def decided(options: Mapping[str, Sequence[Any]], start: Mapping[str, Any]) -> tuple[ScheduleDecision, ...]:
    """Return decisions with these options, to which that of the default schedule is added."""
    return tuple([ScheduleDecision(name, _with(values, start[name]), start[name]) for name, values in options.items()])


def _with(options: Sequence[Any], start: Any) -> tuple[Any, ...]:
    """Return options extended by one that must be among them, numbers in their order."""
    if start in options:
        return tuple(options)
    numbers = all(isinstance(x, int) for x in (*options, start))
    return tuple(sorted((*options, start))) if numbers else (start, *options)
