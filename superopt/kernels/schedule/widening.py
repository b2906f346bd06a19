"""The primitive widen: keeps values of 16-bit floats in float32 between loads and stores.

A sum of products of 16-bit floats is formed in float32, but every later step is rounded as the program is written.
These roundings separate factors, divisors and sums that belong together.  Without them a value is the same over the
reals, and nearer to what it denotes.  Truth values and integers depend on roundings, so none of theirs is removed.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.errors import InputError
from superopt.ir.expr import Expr, const, convert, op, subexpressions, with_parts
from superopt.ir.scalar import DTYPE, HALVES, SCALARS
from superopt.ir.types import FLOATS
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.edit import plain, require, with_stage

_WIDE = "float32"


def widen(program: LoopProgram, stage: str) -> LoopProgram:
    """Keep float32 between the loads of 16-bit floats and the store.

    before
        for o0<6
          out0[o0] = bfloat16(sum_{r0<5} mul(float32(exp(x[o0,r0])), float32(y[r0])))
    widen out0
        for o0<6
          out0[o0] = bfloat16(sum_{r0<5} mul(exp(float32(x[o0,r0])), float32(y[r0])))

    Raises:
        InputError: the stage computes nothing in 16-bit floats, or compares or makes integers of what it computes.
    """
    current = plain(program.stage(stage), "widen")
    for e in subexpressions(current.value):
        narrow = [x for x in e.operands if x.dtype in HALVES and x.kind not in ("load", "const")]
        compared = e.kind == "op" and SCALARS[e.args[0]].predicate
        counted = e.kind == "convert" and e.dtype not in FLOATS
        if e.kind == "op" and e.args[0] == "nextafter":
            raise InputError(f"widen {stage}: {e} is the neighbour in a dtype")
        if narrow and (compared or counted):
            raise InputError(f"widen {stage}: {e} sees how its operand was rounded to 16 bits")
    value = _wide(current.value)
    if value.dtype != current.value.dtype:
        value = convert(value, value.dtype, current.value.dtype)
    require(value is not current.value, f"widen {stage}: it computes nothing in 16-bit floats")
    return with_stage(program, replace(current, value=value))


def _wide(root: Expr) -> Expr:
    """Return the expression with float32 in place of 16-bit floats, loads and operands of comparisons excepted."""
    done: dict[Expr, Expr] = {}
    for e in subexpressions(root):
        done[e] = _step(e, [done[x] for x in e.operands])
    return done[root]


def _step(e: Expr, inner: list[Expr]) -> Expr:
    """Apply one step to operands that are wide; the result is wide."""
    half = e.dtype in HALVES
    if e.kind == "const" and half:
        return const(float(DTYPE[e.dtype].type(e.args[0])), _WIDE)
    if e.kind in ("load", "index") and half:
        return convert(e, e.dtype, _WIDE)
    if e.kind == "convert":
        if half and e.args[0] not in FLOATS:
            return convert(e, e.dtype, _WIDE)  # a rounded integer
        target = _WIDE if half else e.dtype
        return inner[0] if inner[0].dtype == target else convert(inner[0], inner[0].dtype, target)
    if e.kind == "op" and e.args[1] in HALVES:
        return op(e.args[0], _WIDE, *inner)
    return with_parts(e, inner, lambda x: x)
