"""What generated code may do beyond the text of an expression: one list, and a switch that turns all of it off.

Each entry changes results only by rounding (class `real`): the denotation is over the reals.  Under `STRICT` every
scalar function is applied as written and rounded as its dtype says, so that pointwise results have the bits of the
reference interpreter, and a function without an exact instruction sequence is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.types import FLOATS


@dataclass(frozen=True, slots=True)
class Licence:
    """Which inexact steps the generator may take.

    Attributes:
        contraction: `a * b + c` rounded once (fma).
        reciprocal: `x / s` as `x * (1 / s)`, for a constant s and for one that is the same in all lanes.
        reassociation: sums and products of floats in any order (lanes, several accumulators).
        polynomial: transcendental functions by polynomials within the bounds that `superopt.kernels.vecmath` states.
        excess: 16-bit floats keep the precision of float32 inside a kernel, and are rounded where they are stored
            or converted.
    """

    contraction: bool = True
    reciprocal: bool = True
    reassociation: bool = True
    polynomial: bool = True
    excess: bool = True


def licence_of(value: Expr, licence: Licence) -> Licence:
    """The licence for one value: sums stay in their order where they are computed again to be found equal.

    An argmax is the least position whose element equals the maximum.  Sums that are elements there are computed in two
    loops; were they rounded in two ways, no element would equal the maximum.
    """
    if not (licence.reassociation or licence.contraction) or not _finds_sums(value):
        return licence
    return replace(licence, reassociation=False, contraction=False, excess=False)


def _finds_sums(value: Expr) -> bool:
    """Is something compared for equality with the extreme of what holds a sum of floats for each element?"""
    compared = [e for e in subexpressions(value) if e.kind == "op" and e.args[0] in ("eq", "ne")]
    extremes = {x for e in compared for x in subexpressions(e) if x.kind == "reduce" and x.args[0] in ("max", "min")}
    return any(
        x.kind == "reduce" and x.args[0] in ("sum", "prod") and x.dtype in FLOATS and not x.symbols <= extreme.symbols
        for extreme in extremes
        for x in subexpressions(extreme.args[2])
    )


DEFAULT = Licence()
STRICT = Licence(contraction=False, reciprocal=False, reassociation=False, polynomial=False, excess=False)
