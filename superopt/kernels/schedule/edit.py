"""Helpers of the schedule primitives: find and replace stages and axes, rewrite expressions, check premises.

A premise that does not hold raises `InputError` with the request and the program's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from superopt.errors import InputError
from superopt.ir.expr import Expr, ExprChange, over_values, rewrite, subexpressions, values_of
from superopt.ir.index import Guard, Size, Symbol, Truth, all_of, nonnegative, substitute, substitute_guard
from superopt.kernels.loops.program import checked, ordered
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage


def require(condition: bool, message: str, hint: str = "") -> None:
    """Raise `InputError` unless the condition holds."""
    if not condition:
        raise InputError(message, hint=hint)


def position(stage: Stage, name: str) -> int:
    """Return the place of the named axis in the nest."""
    return stage.axes.index(stage.axis(name))


def plain(stage: Stage, primitive: str) -> Stage:
    """Return the stage, if it is not tensorized; otherwise raise `InputError`."""
    require(
        stage.tile is None, f"{primitive} of stage {stage.buffer}: it is tensorized", "schedule it before tensorize"
    )
    return stage


def unshared(program: LoopProgram, stage: Stage, first: int, primitive: str) -> None:
    """Raise if the axis at this place, or one further in, is shared with a stage placed around or inside."""
    if stage.at is not None and first < stage.at[1]:
        raise InputError(
            f"{primitive} of stage {stage.buffer}: its axis {stage.axes[first].symbol} belongs to {stage.at[0]}, in "
            "which it is placed"
        )
    for inner in program.placed(stage.buffer):
        assert inner.at is not None
        if first < inner.at[1]:
            raise InputError(
                f"{primitive} of stage {stage.buffer}: stage {inner.buffer} is placed under its axis "
                f"{stage.axes[first].symbol}",
                hint="change the axes first, then place",
            )


def fresh(taken: Iterable[str], name: str) -> str:
    """Return the name, with `_` appended until it is free."""
    names = set(taken)
    while name in names:
        name += "_"
    return name


def new_buffer(program: LoopProgram, name: str | None, default: str, primitive: str) -> str:
    """Return the name of a buffer to add: the requested name, which must be free, or the default, made free."""
    taken = [b.name for b in program.buffers]
    if name is None:
        return fresh(taken, default)
    require(name not in taken, f"{primitive}: there is a buffer {name} already")
    require(name.isidentifier(), f"{primitive}: {name!r} cannot be the name of a buffer")
    return name


def with_stage(program: LoopProgram, *stages: Stage) -> LoopProgram:
    """Return the program with the stages of these names replaced."""
    new = {s.buffer: s for s in stages}
    return checked(replace(program, stages=tuple([new.get(s.buffer, s) for s in program.stages])))


def with_buffers(
    program: LoopProgram, stages: Iterable[Stage], add: Iterable[Buffer] = (), drop: Iterable[str] = ()
) -> LoopProgram:
    """Return the program with other stages, buffers added (or replaced by name) and dropped."""
    new = {b.name: b for b in add}
    gone = set(drop)
    kept = [new.pop(b.name, b) for b in program.buffers if b.name not in gone]
    return checked(LoopProgram(program.name, ordered([*kept, *new.values()]), tuple(stages)))


def before(program: LoopProgram, name: str, *stages: Stage) -> list[Stage]:
    """Return all stages, with these inserted before the one of this name."""
    at = program.stages.index(program.stage(name))
    return [*program.stages[:at], *stages, *program.stages[at:]]


def mapped(stage: Stage, mapping: Mapping[Symbol, Size], axes: Sequence[Loop], *exists: Size) -> Stage:
    """Return the stage over other axes: the old ones replaced, iterations restricted to `exists` >= 0."""
    guard = substitute_guard(stage.guard, mapping)
    return replace(
        stage,
        axes=tuple(axes),
        index=tuple([substitute(x, mapping) for x in stage.index]),
        value=stage.value.substitute(mapping),
        guard=all_of(guard, *[nonnegative(x) for x in exists]),
    )


def terms(guard: Truth) -> tuple[Size, ...]:
    """Return the indices that must be >= 0 for a guard to hold: none for True, -1 for False."""
    if isinstance(guard, Guard):
        return tuple(guard.ordered)
    return () if guard else (-1,)


# ---- expressions


def rewritten(stage: Stage, change: ExprChange) -> Stage:
    """Return the stage with subexpressions of value, index and guard replaced, outermost first."""
    guard = stage.guard
    if isinstance(guard, Guard):
        guard = all_of(*[nonnegative(rewritten_index(p, change)) for p in guard.ordered])
    index = tuple([rewritten_index(x, change) for x in stage.index])
    return replace(stage, index=index, value=rewrite(stage.value, before=change), guard=guard)


def rewritten_index(x: Size, change: ExprChange) -> Size:
    """Return the index with subexpressions of the scalars that it reads replaced."""
    return over_values(x, {v: rewrite(v, before=change) for v in values_of(x)})


def parts(stage: Stage) -> list[Expr]:
    """Return the subexpressions of a stage's value, each once, the value itself first."""
    return subexpressions(stage.value)[::-1]


def reductions(stage: Stage) -> list[Expr]:
    """Return the reductions in a stage's value, each once, outer ones first."""
    return [e for e in parts(stage) if e.kind == "reduce"]


def part(stage: Stage, what: int | str) -> Expr:
    """Return a subexpression by its place in `parts`, or a reduction (`reduce:0`) by its place in `reductions`.

    Raises:
        InputError: there is none.
    """
    members = parts(stage)
    number = what
    if isinstance(what, str):
        kind, _, digits = what.partition(":")
        require(
            kind == "reduce" and digits.isdecimal(), f"{what!r} names no part of a value: it is a number or reduce:N"
        )
        members, number = reductions(stage), int(digits)
    require(
        isinstance(number, int) and 0 <= number < len(members),
        f"stage {stage.buffer} has {len(members)} such parts, no {what!r}",
    )
    return members[int(number)]


def reduction(stage: Stage, number: int) -> Expr:
    """Return a reduction by its place in `reductions`.

    Raises:
        InputError: there is none.
    """
    return part(stage, f"reduce:{number}")
