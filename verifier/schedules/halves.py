"""Values of 16-bit floats over the reals: no rounding between what is read and what is written.

Two expressions that are one expression without their roundings to 16-bit floats have one value over the reals.  A
truth value, an integer and a neighbour in a dtype see how their operand was rounded, and keep it.
"""

from __future__ import annotations

from superopt.ir.expr import Expr, const, convert, op, subexpressions, with_parts
from superopt.ir.scalar import DTYPE, HALVES, SCALARS
from superopt.ir.types import FLOATS

_WIDE = "float32"


def has_halves(e: Expr) -> bool:
    """Is something computed in 16-bit floats, or rounded to them?"""
    return any(x.dtype in HALVES and x.kind not in ("load", "const") for x in subexpressions(e))


def unrounded(root: Expr) -> Expr:
    """The expression in float32 wherever it was in 16-bit floats."""
    done: dict[Expr, Expr] = {}
    for e in subexpressions(root):
        done[e] = e if _sees_rounding(e) else _over(e, [done[x] for x in e.operands])
        if e.dtype in HALVES and done[e].dtype in HALVES:
            done[e] = convert(done[e], e.dtype, _WIDE)
    return done[root]


def _sees_rounding(e: Expr) -> bool:
    if e.kind == "op" and e.args[0] == "nextafter":
        return True
    whole = (e.kind == "op" and SCALARS[e.args[0]].predicate) or (e.kind == "convert" and e.dtype not in FLOATS)
    return whole and any(x.dtype in HALVES and x.kind not in ("load", "const") for x in e.operands)


def _over(e: Expr, parts: list[Expr]) -> Expr:
    half = e.dtype in HALVES
    match e.kind:
        case "const" if half:
            return const(float(DTYPE[e.dtype].type(e.args[0])), _WIDE)
        case "const" | "load" | "index":
            return e
        case "convert":
            if half and e.args[0] not in FLOATS:
                return e
            wanted = _WIDE if half else e.dtype
            return parts[0] if parts[0].dtype == wanted else convert(parts[0], parts[0].dtype, wanted)
        case "op" if e.args[1] in HALVES:
            return op(e.args[0], _WIDE, *parts)
        case _:
            return with_parts(e, parts, lambda x: x)
