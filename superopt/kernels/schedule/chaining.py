"""Primitives on values with nested reductions (attention): choose, share, factor_out.

A product with the softmax of another product sums over a function of a row of inner sums, and so repeats the inner sums
under several iterators.  `choose` turns choices between positions into guards.  `share` keeps a part that stands under
several iterators once.  `factor_out` moves factors independent of a sum out of it.  After that every stage is one
contraction, one reduction or one map, which can be placed, laid out and tensorized on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from superopt.errors import InputError
from superopt.ir.expr import Expr, load, op, reduce, rewrite, where
from superopt.ir.index import Guard, Size, Symbol, Truth, all_of, bounds, nonnegative, of_atom
from superopt.ir.ops.record import accumulator
from superopt.ir.types import FLOATS
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage
from superopt.kernels.schedule.bijection import element_of, last
from superopt.kernels.schedule.edit import (
    before,
    new_buffer,
    part,
    plain,
    reduction,
    require,
    rewritten,
    with_buffers,
    with_stage,
)
from superopt.kernels.schedule.guards import inside

_NARROW = 1 << 31  # positions that an integer of any index dtype holds


def choose(program: LoopProgram, stage: str) -> LoopProgram:
    """Turn choices between two values by a comparison of positions into guards.

    before
        for o0<6, o1<5
          out0[o0,o1] = select_n(ge((o0), (o1)), 0, x[o0,o1])
    choose out0
        for o0<6, o1<5
          out0[o0,o1] = [o0-o1>=0] ? x[o0,o1] : 0

    Raises:
        InputError: the stage makes no such choice.
    """
    current = plain(program.stage(stage), "choose")

    def change(e: Expr) -> Expr | None:
        if e.kind != "op" or e.args[0] != "select_n" or len(e.operands) != 3:
            return None
        guard = positions(e.operands[0])
        if guard is None:
            return None
        _, no, yes = e.operands
        return where(guard, lambda: rewrite(yes, before=change), lambda: rewrite(no, before=change))

    new = rewritten(current, change)
    require(new.value is not current.value, f"choose {stage}: it chooses by no comparison of positions")
    return with_stage(program, new)


def positions(e: Expr) -> Truth | None:
    """Return the guard equal to a truth value made of comparisons of affine positions; None for any other."""
    if e.kind == "const" and e.dtype == "bool":
        return bool(e.args[0])
    if e.kind != "op":
        return None
    fn, parts = e.args[0], e.operands
    if fn == "select_n" and len(parts) == 3 and all(x.kind == "const" for x in parts[1:]) and e.dtype == "bool":
        inner, (no, yes) = positions(parts[0]), (bool(x.args[0]) for x in parts[1:])
        return inner if yes and not no else _negated(inner) if no and not yes else None
    if fn == "and" and e.dtype == "bool":
        both = [positions(x) for x in parts]
        return all_of(*[g for g in both if g is not None]) if None not in both else None
    if fn == "not" and e.dtype == "bool":
        return _negated(positions(parts[0]))
    if fn in ("ge", "gt", "le", "lt") and len(parts) == 2:
        a, b = [_affine(x) for x in parts]
        if a is None or b is None:
            return None
        more = a - b if fn in ("ge", "gt") else b - a
        return nonnegative(more - (fn in ("gt", "lt")))
    return None


def _negated(guard: Truth | None) -> Truth | None:
    if isinstance(guard, Guard):
        held = guard.ordered
        return nonnegative(held[0] * -1 - 1) if len(held) == 1 else None
    return None if guard is None else not guard


def _affine(e: Expr) -> Size | None:
    """Return a position as an index, where no step of it can wrap; else None."""
    position: Size | None = None
    if e.kind == "index":
        position = e.args[0]
    elif e.kind == "const" and e.dtype != "bool" and float(e.args[0]).is_integer():
        position = int(e.args[0])
    elif e.kind == "op" and e.args[0] in ("add", "sub") and len(e.operands) == 2:
        a, b = [_affine(x) for x in e.operands]
        if a is not None and b is not None:
            position = a + b if e.args[0] == "add" else a - b
    if position is None or e.dtype not in ("int32", "int64"):
        return None
    low, high = bounds(position)
    return position if low >= -_NARROW and high < _NARROW else None


def share(program: LoopProgram, stage: str, what: int | str, name: str | None = None) -> LoopProgram:
    """Keep a part of a value in a buffer over the iterators that it depends on, under whatever iterators it stands.

    before
        for o0<6
          out0[o0] = sum_{r1<5} mul(sub(x[o0,r1], max_{r0<5} x[o0,r0]), y[r1])
    share out0 3 kept
        for c0<6, c1<5
          kept[c0,c1] = x[c0,c1]
        for o0<6
          out0[o0] = sum_{r1<5} mul(sub(kept[o0,r1], max_{r0<5} kept[o0,r0]), y[r1])

    `materialize` replaces one part.  `share` replaces every part that is the same up to the names of its iterators.

    Raises:
        InputError: no such part, or one that would read beyond its arrays outside of its place.
    """
    current = plain(program.stage(stage), "share")
    target = part(current, what)
    result = new_buffer(program, name, f"{stage}_part", "share")
    require(inside(program, target), f"share {target}: outside of its place it would read beyond its arrays")
    axes = [a.symbol for a in current.axes]
    mine = [s for s in axes if s in target.symbols]
    bound = sorted(target.symbols - set(axes), key=lambda s: s.name)
    symbols = [*mine, *bound]
    shape = tuple([last(s) + 1 for s in symbols])
    its, element = element_of(shape, [])
    new = Stage(
        result, tuple(map(Loop, its)), tuple(element), target.substitute(dict(zip(symbols, element, strict=True)))
    )

    def change(e: Expr) -> Expr | None:
        names = _renaming(target, e, bound, axes)
        if names is None:
            return None
        return load(result, [of_atom(s) if last(s) else 0 for s in (*mine, *names)], target.dtype)

    changed = rewritten(current, change)
    stages = [changed if s is current else s for s in before(program, stage, new)]
    return with_buffers(program, stages, [Buffer(result, shape, target.dtype, "scratch")])


def _renaming(target: Expr, e: Expr, bound: Sequence[Symbol], axes: Sequence[Symbol]) -> Sequence[Symbol] | None:
    """Return iterators to put in place of `bound` so that one part becomes the other; None where there are none."""
    if e is target:
        return bound
    if not bound or (e.kind, e.dtype, e.height) != (target.kind, target.dtype, target.height):
        return None
    others = [s for s in e.symbols if s not in axes]
    if len(others) != len(bound) or e.symbols - set(others) != target.symbols - set(bound):
        return None
    for names in permutations(others):
        if [s.high for s in names] == [s.high for s in bound]:
            mapping = {s: of_atom(t) for s, t in zip(bound, names, strict=True)}
            if target.substitute(mapping) is e:
                return names
    return None


def factor_out(program: LoopProgram, stage: str, number: int) -> LoopProgram:
    """Move factors and divisors that do not depend on a sum's iterators out of it.

    before
        for o0<6, o1<4
          out0[o0,o1] = sum_{r0<5} mul(div(x[o0,r0], s[o0]), y[r0,o1])
    factor_out out0 0
        for o0<6, o1<4
          out0[o0,o1] = div(sum_{r0<5} mul(x[o0,r0], y[r0,o1]), s[o0])

    Raises:
        InputError: no such reduction, no sum of floats, or nothing that can be taken out.
    """
    current = plain(program.stage(stage), "factor_out")
    target = reduction(current, number)
    monoid, its, body = target.args
    require(
        monoid == "sum" and target.dtype in FLOATS and accumulator(target.dtype) == target.dtype,
        f"factor_out {stage}: reduction {number} is a {monoid} of {target.dtype}, not a sum of floats",
    )
    core, factors = _parted(body, frozenset(its))
    if not factors:
        raise InputError(f"factor_out {stage}: every factor of {body} depends on {', '.join(s.name for s in its)}")
    new = reduce("sum", its, core)
    for fn, x in factors:
        new = op(fn, target.dtype, new, x)
    return with_stage(program, rewritten(current, lambda e: new if e is target else None))


def _parted(e: Expr, its: frozenset[Symbol]) -> tuple[Expr, list[tuple[str, Expr]]]:
    """Return the part of a product that depends on iterators, and the factors and divisors that do not."""
    if e.kind != "op" or e.args[0] not in ("mul", "div"):
        return e, []
    fn, (a, b) = e.args[0], e.operands
    if b.symbols.isdisjoint(its):
        core, factors = _parted(a, its)
        return core, [*factors, (fn, b)]
    if fn == "div":
        core, factors = _parted(a, its)
        return (e, []) if not factors else (op("div", e.dtype, core, b), factors)
    if a.symbols.isdisjoint(its):
        core, factors = _parted(b, its)
        return core, [*factors, (fn, a)]
    left, right = _parted(a, its), _parted(b, its)
    if not left[1] and not right[1]:
        return e, []
    return op("mul", e.dtype, left[0], right[0]), [*left[1], *right[1]]
