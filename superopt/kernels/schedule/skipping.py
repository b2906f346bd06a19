"""The primitive skip: leaves out, block by block, iterations whose values no reader uses (causal masks).

A stage inside a task may store minus infinity where a mask does not hold.  Its readers are a maximum, which ignores the
value, and exp of it less something, which is 0 and adds nothing to a sum.  Where the mask holds for no element of a
block, nothing of the block need be computed or read: a causal mask halves the work of long rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.ir.expr import Expr, const, reduce, rewrite, subexpressions, where
from superopt.ir.index import Size, Symbol, Truth, all_of, coefficient, decide, nonnegative, substitute
from superopt.ir.ops.record import identity
from superopt.kernels.loops.program import reads
from superopt.kernels.loops.stage import LoopProgram, Stage
from superopt.kernels.schedule.bijection import element_of, inverse, last
from superopt.kernels.schedule.edit import plain, require, with_stage

_LEAST = -1e30  # a mask's substitute for minus infinity: exp of it less any score is 0


def skip(program: LoopProgram, stage: str, dim: int) -> LoopProgram:
    """Leave out whole masked blocks along one axis of a local buffer, where it is filled and read.

    before
        for o0_0<2 parallel
          for s0_0<8, s0_1<4
            s0[s0_0,s0_1] = [4*o0_0+s0_1-s0_0>=0] ? x[4*o0_0+s0_1,s0_0] : -inf
          for o0_1<4
            out0[4*o0_0+o0_1] = max_{r0<8} s0[r0,o0_1]
    skip s0 0
        for o0_0<2 parallel
          for s0_0<8, s0_1<4 if 3+4*o0_0-s0_0>=0
            s0[s0_0,s0_1] = [4*o0_0+s0_1-s0_0>=0] ? x[4*o0_0+s0_1,s0_0] : -inf
          for o0_1<4
            out0[4*o0_0+o0_1] = max_{r0<8} [3+4*o0_0-r0>=0] ? s0[r0,o0_1] : -inf

    Rows that are masked as a whole are NaN before and after.  A constant of at most -1e30 counts as minus infinity
    where no row is masked as a whole: exp of it less a score is taken to be 0.

    Raises:
        InputError: the stage is not placed, it stores something else under its mask, the mask excludes no block, or a
            reader uses an element that would be left out.
    """
    current = plain(program.stage(stage), "skip")
    require(current.at is not None and current.combine is None, f"skip {stage}: it stands inside no other stage")
    value = current.value
    masked = value.kind == "where" and value.args[2].kind == "const" and value.args[2].args[0] <= _LEAST
    require(masked, f"skip {stage}: it does not keep minus infinity where a mask does not hold")
    limits = _limits(program, current, dim)
    if value.args[2].args[0] > -float("inf"):
        require(
            _begins(program, current, dim),
            f"skip {stage}: a row may be masked as a whole, and then counts a finite number",
        )
    require(bool(limits), f"skip {stage}: its mask excludes no block along axis {dim}")
    return _left_out(program, current, dim, limits, "max")


def _begins(program: LoopProgram, stage: Stage, dim: int) -> bool:
    """Whether the mask holds at the first element along the axis, at all positions on the others."""
    its, held = _mask(program, stage, dim)
    return all(decide(substitute(p, {its[dim]: 0})) is True for p in held)


Limit = tuple[Symbol, Size]  # an iterator over the axis of the buffer, and the term that must be >= 0 there


def _limits(program: LoopProgram, stage: Stage, dim: int) -> list[Limit]:
    """Return conditions on one axis of the buffer that are necessary for the mask at any position on the others."""
    its, mask = _mask(program, stage, dim)
    limits: list[Limit] = []
    for held in mask:
        for s in its:
            k = coefficient(held, s)
            if s is its[dim]:
                continue
            if k is None:
                break
            held = substitute(held, {s: last(s) if k > 0 else 0})
        else:
            if coefficient(held, its[dim]) == -1:  # a loop can end early
                limits.append((its[dim], held))
    return limits


def _mask(program: LoopProgram, stage: Stage, dim: int) -> tuple[Sequence[Symbol], list[Size]]:
    """Return iterators over the buffer of a placed stage, and the conditions of its mask in terms of them."""
    assert stage.at is not None
    shared = [a.symbol for a in stage.axes[: stage.at[1]]]
    shape = program.buffer(stage.buffer).shape
    require(0 <= dim < len(shape), f"skip {stage.buffer}: it has {len(shape)} axes, no axis {dim}")
    its, element = element_of(shape, [s.name for s in shared])
    axes = inverse(stage, element, shape, shared)
    return its, [substitute(p, axes) for p in stage.value.args[0].ordered]


def _left_out(program: LoopProgram, stage: Stage, dim: int, limits: Sequence[Limit], monoid: str) -> LoopProgram:
    """Drop the elements of a stage that the limits exclude; its readers fold them with a monoid."""

    def holds(x: Size) -> Truth:
        return all_of(*[nonnegative(substitute(p, {s: x})) for s, p in limits])

    name = stage.buffer
    program = with_stage(program, replace(stage, guard=all_of(stage.guard, holds(stage.index[dim]))))
    for reader in [s for s in program.stages if name in reads(s)]:
        outside = _outside(reader.value, name)
        if outside is not None:
            body = outside
            zero = monoid == "max" and reader.value.kind == "op" and reader.value.args[0] == "exp"
            inner = reader.value.operands[0] if zero else reader.value
            zero = zero and inner.kind == "op" and inner.args[0] == "sub" and inner.operands[0] is body
            zero = zero and not any(e.kind == "load" and e.args[0] == name for e in subexpressions(inner.operands[1]))
            require(zero and reader.at is not None, f"skip {name}: {reader.buffer} needs every element of it")
            at = body.args[1][dim]
            place = next((d for d, x in enumerate(reader.index) if x == at), None)
            require(place is not None, f"skip {name}: {reader.buffer} is not filled along the axis that it reads")
            assert place is not None
            program = _left_out(program, reader, place, limits, "sum")
            continue

        def change(e: Expr, reader: Stage = reader) -> Expr | None:
            if e.kind != "reduce" or not any(x.kind == "load" and x.args[0] == name for x in subexpressions(e.args[2])):
                return None
            loads = [x for x in _factors(e.args[2], monoid) if x.kind == "load" and x.args[0] == name]
            require(
                e.args[0] == monoid and len(loads) == 1, f"skip {name}: {reader.buffer} does not fold it by {monoid}"
            )
            neutral = const(identity(monoid, e.dtype), e.dtype)
            return reduce(monoid, e.args[1], where(holds(loads[0].args[1][dim]), lambda: e.args[2], lambda: neutral))

        now = program.stage(reader.buffer)
        program = with_stage(program, replace(now, value=rewrite(now.value, before=change)))
    return program


def _outside(value: Expr, name: str) -> Expr | None:
    """Return a load of a buffer that stands in no reduction; None if there is none."""
    stack = [value]
    while stack:
        e = stack.pop()
        if e.kind == "load" and e.args[0] == name:
            return e
        if e.kind != "reduce":
            stack += e.operands
    return None


def _factors(body: Expr, monoid: str) -> Sequence[Expr]:
    """Return the expressions that each make the body the identity of the fold when they are.

    These are the body of a maximum, or any factor of a summed product.
    """
    if monoid == "sum" and body.kind == "op" and body.args[0] == "mul":
        return [x for y in body.operands for x in _factors(y, monoid)]
    return [body]
