"""Schedules as data: a trace is a list of primitives with their arguments, which JSON can hold.

    [["split", "out0", "o0", [4]], ["reorder", "out0", ["o0_0", "o1", "o0_1"]], ["vectorize", "out0", "o0_1"]]

`apply` replays a trace on a program, also on one of other sizes.  `attempt` returns the failure instead of raising it,
since most traces that a search draws are illegal somewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from superopt.errors import InputError
from superopt.kernels.loops.ranges import require_within
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule import PRIMITIVES

_MOST_INTEGER = 1 << 40  # largest integer in a step: beyond any extent, and quick to calculate with

Step = tuple[Any, ...]
Trace = tuple[Step, ...]
Steps = list[list[Any]]  # a trace under construction, or as JSON


@dataclass(frozen=True, slots=True)
class Illegal:
    """The failure of a trace: the number of the step, the step, and the message of its failed premise."""

    number: int
    step: Step
    message: str


def trace(steps: Sequence[Sequence[Any]]) -> Trace:
    """Return steps in their frozen form: lists become tuples.

    Raises:
        InputError: a step is no primitive with arguments made of integers, strings, None and lists of these.
    """
    return tuple([_checked(step) for step in steps])


def _checked(step: Sequence[Any]) -> Step:
    frozen = _frozen(step)
    if not frozen or not isinstance(frozen, tuple) or frozen[0] not in PRIMITIVES:
        raise InputError(f"{step!r} is no step of a trace", hint=f"primitives: {', '.join(PRIMITIVES)}")
    return frozen


def _frozen(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return tuple(map(_frozen, x))
    if x is None or isinstance(x, str) or (isinstance(x, int) and -_MOST_INTEGER <= x <= _MOST_INTEGER):
        return x
    raise InputError(f"a trace holds integers, strings and lists, not {x!r}")


def apply(program: LoopProgram, steps: Sequence[Sequence[Any]]) -> LoopProgram:
    """Return the program after all steps.

    Raises:
        InputError: a step is illegal, says which; or all steps together make far more iterations or memory.
    """
    before = program
    for number, step in enumerate(steps):
        program = _applied(program, number, _checked(step))
    return require_within(before, program)


def attempt(program: LoopProgram, steps: Sequence[Sequence[Any]]) -> LoopProgram | Illegal:
    """Return the program after all steps, or the first step that is illegal."""
    before = program
    for number, step in enumerate(steps):
        try:
            program = require_within(before, _applied(program, number, _checked(step)))
        except InputError as error:
            return Illegal(number, _frozen(step), Exception.__str__(error))
    return program


def _applied(program: LoopProgram, number: int, step: Step) -> LoopProgram:
    name, *arguments = step
    primitive = PRIMITIVES[name]
    fault = primitive.misfit(arguments)
    if fault:
        raise InputError(f"step {number}, {list(step)}: {fault}")
    try:
        return primitive.run(program, *arguments)
    except InputError as error:
        raise InputError(f"step {number}, {list(step)}: {Exception.__str__(error)}", hint=error.hint) from None
