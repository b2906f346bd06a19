"""The primitive split_prefix: a prefix fold (scan) in blocks that do not wait for each other.

A fold over all elements up to one is carried from element to element.  Given the folds of whole blocks, every block
begins with the fold of those before it and proceeds alone: long rows become tasks, for a second pass over them.
"""

from __future__ import annotations

from superopt.ir.algebra import COMBINE
from superopt.ir.expr import Expr, const, convert, op, reduce, where
from superopt.ir.index import all_of, iterator, nonnegative, of_atom, substitute
from superopt.ir.ops.record import accumulator, identity
from superopt.ir.prefix import direction
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.compose import cut
from superopt.kernels.schedule.edit import plain, reduction, require
from superopt.kernels.schedule.loops import split


def split_prefix(program: LoopProgram, stage: str, number: int, factor: int, name: str | None = None) -> LoopProgram:
    """Cut the axis that a prefix fold ends at into blocks, and keep the fold of each block.

    before
        for o0<12
          out0[o0] = sum_{r0<12} [o0-r0>=0] ? x[r0] : 0
    split_prefix out0 0 4 t
        for c0<3
          t[c0] = sum_{r0<4} x[4*c0+r0]
        for o0_0<3, o0_1<4
          out0[4*o0_0+o0_1] = add(sum_{r0<3} [o0_0-r0-1>=0] ? t[r0] : 0, sum_{r0<4} [o0_1-r0>=0] ? x[4*o0_0+r0] : 0)

    Suffixes too.  Folds from an element to the end use the blocks behind instead.  Sums and products of 16-bit floats
    are kept in float32, in which they are accumulated.

    Raises:
        InputError: no such reduction, it is no prefix of an axis, or a block below 1 or as long as the axis.
    """
    current = plain(program.stage(stage), "split_prefix")
    target = reduction(current, number)
    along = [a for a in current.axes if direction(target, a.symbol)]
    require(len(along) == 1, f"split_prefix {stage}: reduction {number} is no prefix that ends at an axis")
    axis = along[0]
    require(
        1 <= factor < axis.extent, f"split_prefix {stage}: {axis.symbol} has {axis.extent} steps, no blocks of {factor}"
    )
    sign = direction(target, axis.symbol)
    at = current.axes.index(axis)
    program = split(program, stage, axis.symbol.name, [factor])
    current = program.stage(stage)
    block, inner = current.axes[at].symbol, current.axes[at + 1].symbol
    whole = target.substitute({axis.symbol: of_atom(block) * factor + of_atom(inner)})
    monoid, (old,), body = target.args
    wide = accumulator(target.dtype) if monoid in ("sum", "prod") else target.dtype
    neutral = const(identity(monoid, wide), wide)
    others = [p for p in body.args[0].ordered if axis.symbol not in p.symbols]
    step, i = iterator("?i", factor)
    place = of_atom(block) * factor + i
    exists = [axis.extent - 1 - place] if axis.extent % factor else []
    term = body.args[1] if wide == target.dtype else convert(body.args[1], target.dtype, wide)
    term = term.substitute({old: place})
    inside = [nonnegative(p) for p in (*exists, *[substitute(p, {old: place}) for p in others])]
    total = reduce(monoid, [step], where(all_of(*inside), lambda: term, lambda: neutral))
    moving = nonnegative((of_atom(inner) - i) * sign)
    local = reduce(monoid, [step], where(all_of(moving, *inside), lambda: term, lambda: neutral))
    count = block.high
    assert isinstance(count, int)
    other, b = iterator("?b", count + 1)

    def used(kept: Expr) -> Expr:
        before = kept.substitute({block: b})
        earlier = nonnegative((of_atom(block) - b) * sign - 1)
        carried = reduce(monoid, [other], where(earlier, lambda: before, lambda: neutral))
        made = op(COMBINE[monoid], wide, carried, local)
        return made if wide == target.dtype else convert(made, wide, target.dtype)

    return cut(program, current, whole, total, used, name, "split_prefix")
