"""Primitives on reductions: split, reorder, pad, factor into partial results, turn into loops.

A reduction is named by its place in `edit.reductions` (0: the outermost first), its iterators by their place.  A
primitive that regroups a reduction reorders its combinations: exact for integers, maxima and minima, reassociation for
floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from superopt.ir.expr import Expr, const, convert, reduce, where
from superopt.ir.index import Size, Symbol, iterator, nonnegative, of_atom, row_major
from superopt.ir.ops.record import accumulator, identity
from superopt.kernels.loops.stage import Loop, LoopProgram, extent
from superopt.kernels.schedule.compose import cut
from superopt.kernels.schedule.edit import fresh, plain, reduction, require, rewritten, with_stage


def split_reduction(
    program: LoopProgram, stage: str, number: int, iterator: int, factors: Sequence[int]
) -> LoopProgram:
    """Split an iterator of a reduction; where the factors do not divide its extent, the tail is the identity.

    before
        for o0<6
          out0[o0] = sum_{r0<8} x[o0,r0]
    split_reduction out0 0 0 [4]
        for o0<6
          out0[o0] = sum_{r0_0<2,r0_1<4} x[o0,4*r0_0+r0_1]

    Raises:
        InputError: no such reduction or iterator, or a factor below 1.
    """
    current = plain(program.stage(stage), "split_reduction")
    target = reduction(current, number)
    monoid, iterators, body = target.args
    at = _place(target, iterator, "split_reduction")
    sizes = [int(f) for f in factors]
    require(bool(sizes) and all(f >= 1 for f in sizes), f"split_reduction needs factors of at least 1, got {sizes}")
    old = iterators[at]
    sizes = [-(-extent(old) // prod(sizes)), *sizes]
    pairs = _fresh(sizes, "split")
    whole = row_major([i for _, i in pairs], sizes)
    body = _tailed(monoid, body.substitute({old: whole}), extent(old) - 1 - whole)
    new = reduce(monoid, [*iterators[:at], *[s for s, _ in pairs], *iterators[at + 1 :]], body)
    return with_stage(program, rewritten(current, _swap(target, new)))


def pad_reduction(program: LoopProgram, stage: str, number: int, iterator: int, multiple: int) -> LoopProgram:
    """Round the extent of an iterator of a reduction up to a multiple; what is added is the identity.

    before
        for o0<6
          out0[o0] = sum_{r0<7} x[o0,r0]
    pad_reduction out0 0 0 4
        for o0<6
          out0[o0] = sum_{r0<8} [6-r0>=0] ? x[o0,r0] : 0

    Raises:
        InputError: no such reduction or iterator, or a multiple below 1.
    """
    current = plain(program.stage(stage), "pad_reduction")
    target = reduction(current, number)
    monoid, iterators, body = target.args
    at = _place(target, iterator, "pad_reduction")
    require(multiple >= 1, f"pad_reduction to a multiple of {multiple}")
    old = iterators[at]
    ((wide, i),) = _fresh([-(-extent(old) // multiple) * multiple], "pad")
    body = _tailed(monoid, body.substitute({old: i}), extent(old) - 1 - i)
    new = reduce(monoid, [*iterators[:at], wide, *iterators[at + 1 :]], body)
    return with_stage(program, rewritten(current, _swap(target, new)))


def reorder_reduction(program: LoopProgram, stage: str, number: int, order: Sequence[int]) -> LoopProgram:
    """Permute the iterators of a reduction, outermost first.

    before
        for o0<6
          out0[o0] = sum_{r0_0<3,r0_1<4} x[o0,r0_0,r0_1]
    reorder_reduction out0 0 [1, 0]
        for o0<6
          out0[o0] = sum_{r0_0<4,r0_1<3} x[o0,r0_1,r0_0]

    Raises:
        InputError: no such reduction, or the order is no permutation of its iterators.
    """
    current = plain(program.stage(stage), "reorder_reduction")
    target = reduction(current, number)
    monoid, iterators, body = target.args
    require(
        sorted(order) == list(range(len(iterators))),
        f"reorder_reduction {list(order)}: that is no permutation of the {len(iterators)} iterators {iterators}",
    )
    new = reduce(monoid, [iterators[j] for j in order], body)
    return with_stage(program, rewritten(current, _swap(target, new)))


def rfactor(
    program: LoopProgram, stage: str, number: int, iterators: Sequence[int], name: str | None = None
) -> LoopProgram:
    """Keep partial results, one for each value of some iterators of a reduction, and combine them in the stage.

    before
        out0[] = sum_{r0_0<4,r0_1<8} x[8*r0_0+r0_1]
    rfactor out0 0 [0] part
        for c0<4
          part[c0] = sum_{r0<8} x[8*c0+r0]
        out0[] = sum_{r0<4} part[r0]

    Sums and products of 16-bit floats are kept in float32, in which they are formed.

    Raises:
        InputError: no such reduction, or the iterators are none or all of its own.
    """
    current = plain(program.stage(stage), "rfactor")
    target = reduction(current, number)
    monoid, its, body = target.args
    chosen = sorted(set(iterators))
    require(
        0 < len(chosen) < len(its) and chosen[0] >= 0 and chosen[-1] < len(its),
        f"rfactor over {list(iterators)}: the reduction has the iterators {its}",
        "split the reduction first",
    )
    wide = accumulator(target.dtype) if monoid in ("sum", "prod") else target.dtype
    if wide != target.dtype:
        body = convert(body, target.dtype, wide)
    partial = reduce(monoid, [it for j, it in enumerate(its) if j not in chosen], body)

    def combined(kept: Expr) -> Expr:
        whole = reduce(monoid, [its[j] for j in chosen], kept)
        return whole if wide == target.dtype else convert(whole, wide, target.dtype)

    return cut(program, current, target, partial, combined, name, "rfactor")


def decompose_reduction(program: LoopProgram, stage: str, iterators: Sequence[int], place: int = 0) -> LoopProgram:
    """Make iterators of a stage's reduction loops of the stage, which accumulates in its buffer from the identity.

    before
        for o0<6
          out0[o0] = sum_{r0_0<4,r0_1<8} x[o0,8*r0_0+r0_1]
    decompose_reduction out0 [0] 0
        for k0<4, o0<6
          out0[o0] sum= sum_{r0<8} x[o0,8*k0+r0]

    Args:
        program: a well-formed program.
        stage: whose value is a reduction and nothing around it (`materialize` takes it out of an expression).
        iterators: places of the iterators that become loops.
        place: where the loops are inserted.

    Raises:
        InputError: the value is no reduction, a sum or product of 16-bit floats (its buffer would round each partial
            result), or the loops would be shared with a placed stage.
    """
    current = plain(program.stage(stage), "decompose_reduction")
    target = current.value
    require(
        target.kind == "reduce" and current.combine in (None, target.args[0]),
        f"decompose_reduction {stage}: its value is no reduction, but {target.kind}",
        "materialize the reduction first",
    )
    monoid, its, body = target.args
    require(
        monoid not in ("sum", "prod") or accumulator(target.dtype) == target.dtype,
        f"decompose_reduction {stage}: partial results of a {monoid} would be rounded to {target.dtype}",
    )
    chosen = sorted(set(iterators))
    require(
        bool(chosen) and chosen[0] >= 0 and chosen[-1] < len(its),
        f"decompose_reduction {stage} over {list(iterators)}: the iterators are {its}",
    )
    require(
        0 <= place <= len(current.axes), f"decompose_reduction {stage}: it has {len(current.axes)} axes, not {place}"
    )
    placed = [s.at[1] for s in program.placed(stage) if s.at is not None]
    require(
        place >= max([0 if current.at is None else current.at[1], *placed]),
        f"decompose_reduction {stage}: stages are placed around or inside its axes further in than {place}",
    )
    names = [a.symbol.name for a in current.axes]
    mapping: dict[Symbol, Size] = {}
    axes: list[Loop] = []
    for j in chosen:
        symbol = Symbol(fresh(names, f"k{len(axes)}"), 0, its[j].high)
        names.append(symbol.name)
        axes.append(Loop(symbol))
        mapping[its[j]] = of_atom(symbol)
    value = reduce(monoid, [it for j, it in enumerate(its) if j not in chosen], body.substitute(mapping))
    new = replace(current, axes=(*current.axes[:place], *axes, *current.axes[place:]), value=value, combine=monoid)
    return with_stage(program, new)


# ---- helpers


def _place(target: Expr, at: int, primitive: str) -> int:
    its = target.args[1]
    require(0 <= at < len(its), f"{primitive}: the reduction has the iterators {its}, no number {at}")
    return at


def _fresh(sizes: Sequence[int], purpose: str) -> list[tuple[Symbol, Size]]:
    """Return iterators under names that no value uses; `reduce` renames them."""
    return [iterator(f"?{purpose}{j}", n) for j, n in enumerate(sizes)]


def _tailed(monoid: str, body: Expr, exists: Size) -> Expr:
    return where(nonnegative(exists), lambda: body, lambda: const(identity(monoid, body.dtype), body.dtype))


def _swap(old: Expr, new: Expr) -> Callable[[Expr], Expr | None]:
    return lambda e: new if e is old else None
