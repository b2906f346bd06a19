"""Options of code generation: which inexact steps are allowed, and how a stage is written.

A licence changes results only by rounding (class `real`): the denotation is over the reals.  Under `STRICT` every
scalar function is applied as written and rounded as its dtype says.  Pointwise results then have the bits of the
reference interpreter.  A function without an exact instruction sequence is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from superopt.errors import InputError
from superopt.kernels.loops.ranges import knob_fault
from superopt.kernels.loops.stage import Stage


@dataclass(frozen=True, slots=True)
class Licence:
    """Inexact steps that the generator may take (fast-math flags).

    Attributes:
        contraction: `a * b + c` rounded once (fma).
        reciprocal: `x / s` as `x * (1 / s)`, for a constant s and for one that is the same in all lanes.
        reassociation: sums and products of floats in any order (lanes, several accumulators).
        polynomial: transcendental functions by polynomials within the bounds that `superopt.kernels.math.table` states.
        excess: 16-bit floats keep the precision of float32 inside a kernel, and are rounded where they are stored
            or converted.
    """

    contraction: bool = True
    reciprocal: bool = True
    reassociation: bool = True
    polynomial: bool = True
    excess: bool = True


DEFAULT = Licence()
STRICT = Licence(contraction=False, reciprocal=False, reassociation=False, polynomial=False, excess=False)


@dataclass(frozen=True, slots=True)
class Knobs:
    """Decisions about one stage that change no result beyond rounding.

    Attributes:
        vectors: lane vectors per step of the lane loop.
        rows: rows at a time, whose phases hide each other's latency; 0: by the length of a row.
        accumulators: number of accumulators of a reduction along the lanes, or of one point.
        cache: where values of a row are kept between its phases: none, scratch, output.
        keep: which values are kept: costly (transcendental or quotient), all.
        window: reductions of at most so many steps are unrolled completely.
        rows_per_task: iterations of the parallel loops in one task; 0: as many as give `tasks`.
        tasks: target number of tasks.
        cut: 1: iterators are cut at the interior of guards; 0: guards stay choices.
        transpose: 1: loads along another axis go through register transposes; 0: they are gathered.
        lane: 1: vectors along the axis that suits; 0: one element after the other, where no axis is scheduled as one.
    """

    vectors: int = 4
    rows: int = 0
    accumulators: int = 4
    cache: str = "scratch"
    keep: str = "costly"
    window: int = 64
    rows_per_task: int = 0
    tasks: int = 16
    cut: int = 1
    transpose: int = 1
    lane: int = 1


def knobs_of(stage: Stage) -> Knobs:
    """Return the knobs of a stage.

    Raises:
        InputError: a knob has a value outside of its range.
    """
    made = Knobs()
    for name, value in stage.knobs:
        fault = knob_fault(name, value)
        if fault:
            raise InputError(f"stage {stage.buffer}: {fault}")
        if name in Knobs.__slots__:
            made = replace(made, **{name: value})
    return made
