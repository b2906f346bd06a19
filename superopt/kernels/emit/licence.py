"""What generated code may do beyond the text of an expression: one list, and a switch that turns all of it off.

Each entry changes results only by rounding (class `real`): the denotation is over the reals.  Under `STRICT` every
scalar function is applied as written and rounded as its dtype says, so that pointwise results have the bits of the
reference interpreter, and a function without an exact instruction sequence is refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Licence:
    """Which inexact steps the generator may take.

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
