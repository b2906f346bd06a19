"""Primitives between stages: inline, materialize, cache_write, reverse_compute_at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from superopt.ir.expr import Expr, const, load, rewrite, where
from superopt.ir.index import Size, Symbol, all_of, decide, nonnegative, of_atom, substitute, substitute_guard
from superopt.kernels.loops.program import loads, reads
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage
from superopt.kernels.schedule.bijection import element_of, inverse, last, solve, total, written
from superopt.kernels.schedule.edit import (
    before,
    new_buffer,
    part,
    plain,
    require,
    rewritten,
    rewritten_index,
    terms,
    with_buffers,
)
from superopt.kernels.schedule.guards import conditions


def inline(program: LoopProgram, stage: str) -> LoopProgram:
    """Substitute a stage's value wherever its buffer is read, and drop the stage.

    before
        for o0<6, o1<5
          s0[o0,o1] = exp(x[o0,o1])
        for o0<6
          out0[o0] = sum_{r0<5} s0[o0,r0]
    inline s0
        for o0<6
          out0[o0] = sum_{r0<5} exp(x[o0,r0])

    Raises:
        InputError: the buffer is an output, or not every element of it is written. Also where the stage's index map has
            no inverse, it accumulates, or other stages are placed inside it.
    """
    current = plain(program.stage(stage), "inline")
    buffer = program.buffer(stage)
    require(buffer.scope in ("scratch", "local"), f"inline {stage}: it is an {buffer.scope} and must be kept")
    require(not program.placed(stage), f"inline {stage}: {[s.buffer for s in program.placed(stage)]} are placed in it")
    shared = [a.symbol for a in current.axes[: current.at[1]]] if current.at is not None else []
    total(current, buffer, "inline")

    def change(e: Expr) -> Expr | None:
        if e.kind != "load" or e.args[0] != stage:
            return None
        element = [rewritten_index(x, change) for x in e.args[1]]  # an index may itself read the buffer
        return current.value.substitute(inverse(current, element, buffer.shape, shared))

    stages = [rewritten(s, change) if stage in reads(s) else s for s in program.stages if s is not current]
    return with_buffers(program, stages, drop=[stage])


def materialize(program: LoopProgram, stage: str, what: int | str, name: str | None = None) -> LoopProgram:
    """Keep a part of a stage's value in a buffer over the iterators that it depends on: the inverse of inline.

    before
        for o0<6, o1<5
          out0[o0,o1] = sub(x[o0,o1], max_{r0<5} x[o0,r0])
    materialize out0 reduce:0 peak
        for c0<6
          peak[c0] = max_{r0<5} x[c0,r0]
        for o0<6, o1<5
          out0[o0,o1] = sub(x[o0,o1], peak[o0])

    The part's reads stay inside their arrays.  The guards and tails that ensure it become a choice in the new stage,
    which keeps 0 elsewhere.

    Args:
        program: a well-formed program.
        stage: the stage whose value is cut.
        what: place of the part in `edit.parts`, or `reduce:N`.
        name: name of the new buffer; by default the stage's with `_part`.

    Raises:
        InputError: no such part, or one that reads a buffer local to the stage.
    """
    current = plain(program.stage(stage), "materialize")
    target = part(current, what)
    return cut(program, current, target, target, lambda kept: kept, name, "materialize")


def cut(
    program: LoopProgram,
    stage: Stage,
    target: Expr,
    kept: Expr,
    use: Callable[[Expr], Expr],
    name: str | None,
    primitive: str,
) -> LoopProgram:
    """Compute an expression into a scratch buffer of its own, and replace a part of a value by a use of it.

    Args:
        program: a well-formed program.
        stage: the stage whose value holds the part.
        target: the part that is replaced.
        kept: the expression; where it has iterators that the part does not have, these are its outermost axes.
        use: builds the part from an element of the new buffer.
        name: name of the new buffer; by default the stage's with `_part`.
        primitive: name of the primitive, for messages.

    Raises:
        InputError: the name is taken, or the expression cannot be computed apart from its place.
    """
    result = new_buffer(program, name, f"{stage.buffer}_part", primitive)
    guard, safe = conditions(program, stage, target, kept)
    require(safe, f"{primitive} {kept}: outside of its place it would read beyond its arrays")
    free = kept.symbols | guard_symbols(guard)
    mine = [a.symbol for a in stage.axes if a.symbol in free]
    rest = sorted(free - set(mine), key=lambda s: s.name)
    outer = [s for s in rest if s not in target.symbols and s in kept.symbols]
    symbols = [*outer, *mine, *[s for s in rest if s not in outer]]
    shape = tuple([last(s) + 1 for s in symbols])
    its, element = element_of(shape, [])
    value = kept_where(guard, kept).substitute(dict(zip(symbols, element, strict=True)))
    new = Stage(result, tuple(map(Loop, its)), tuple(element), value)
    reading = use(load(result, [of_atom(s) if last(s) else 0 for s in symbols], kept.dtype))
    changed = rewritten(stage, lambda e: reading if e is target else None)
    stages = [changed if s is stage else s for s in before(program, stage.buffer, new)]
    return with_buffers(program, stages, [Buffer(result, shape, kept.dtype, "scratch")])


def guard_symbols(guard: Sequence[Size]) -> frozenset[Symbol]:
    """Return the symbols of conditions."""
    return frozenset[Symbol]().union(*(x.symbols for x in guard if not isinstance(x, int)))


def kept_where(guard: Sequence[Size], value: Expr) -> Expr:
    """Return the value where all of these are >= 0, else 0."""
    zero = const(False if value.dtype == "bool" else 0, value.dtype)
    return where(all_of(*map(nonnegative, guard)), lambda: value, lambda: zero)


def cache_write(program: LoopProgram, stage: str, name: str | None = None) -> LoopProgram:
    """Compute into a buffer of its own and copy the result to its destination.

    before
        for o0<6, o1<5
          out0[o0,o1] = exp(x[o0,o1])
    cache_write out0 held
        for o0<6, o1<5
          held[o0,o1] = exp(x[o0,o1])
        for c0<6, c1<5
          out0[c0,c1] = held[c0,c1]

    The two stages can be scheduled apart.  The copy may follow the rows in which results are stored, the first stage
    its work.

    Raises:
        InputError: the stage is placed inside another, its index map has no inverse, or the name is taken.
    """
    current = program.stage(stage)
    buffer = program.buffer(stage)
    require(current.at is None, f"cache_write {stage}: it is placed inside {current.at and current.at[0]}")
    result = new_buffer(program, name, f"{stage}_cache", "cache_write")
    its, element, exists = written(current, buffer)
    guard = all_of(*map(nonnegative, exists))
    copy = Stage(stage, tuple(map(Loop, its)), tuple(element), load(result, element, buffer.dtype), guard)
    stages: list[Stage] = []
    for s in program.stages:
        if s.at is not None and s.at[0] == stage:
            stages.append(replace(s, at=(result, s.at[1])))
        else:
            stages += [replace(current, buffer=result), copy] if s is current else [s]
    return with_buffers(program, stages, [replace(buffer, name=result, scope="scratch")])


def reverse_compute_at(program: LoopProgram, stage: str) -> LoopProgram:
    """Merge a stage into the one whose elements it maps one by one: an epilogue.

    before
        for o0_0<3, o0_1<2
          s0[2*o0_0+o0_1] = sum_{r0<5} x[2*o0_0+o0_1,r0]
        for o0<6
          out0[o0] = exp(s0[o0])
    reverse_compute_at out0
        for o0_0<3, o0_1<2
          out0[2*o0_0+o0_1] = exp(sum_{r0<5} x[2*o0_0+o0_1,r0])

    The producer's loops, placement of inner stages, tile and knobs stay.

    Raises:
        InputError: the stage reads no scratch buffer at exactly one index that determines its axes, others read
            that buffer, or the stage is placed, tensorized or accumulates.
    """
    current = plain(program.stage(stage), "reverse_compute_at")
    require(
        current.at is None and current.combine is None and not program.placed(stage),
        f"reverse_compute_at {stage}: it is placed inside a stage, holds one, or accumulates",
    )
    producer, element = _producer(program, current)
    read_by = [s.buffer for s in program.stages if producer.buffer in reads(s)]
    require(read_by == [stage], f"reverse_compute_at {stage}: {producer.buffer} is read by {read_by}")
    require(
        producer.combine is None and producer.at is None,
        f"reverse_compute_at {stage}: its producer {producer.buffer} accumulates or is placed inside another stage",
    )
    shape = program.buffer(producer.buffer).shape
    axes = solve(element, [a.symbol for a in current.axes], producer.index, shape)
    require(
        axes is not None,
        f"reverse_compute_at {stage}: its axes do not follow from the element of {producer.buffer} that it reads",
    )
    assert axes is not None
    total(producer, program.buffer(producer.buffer), "reverse_compute_at")
    _covered(current, element, shape)
    exists = [x for s, value in axes.items() for x in (value, last(s) - value)]
    guard = all_of(producer.guard, substitute_guard(current.guard, axes), *map(nonnegative, _unknown(producer, exists)))
    # substitution first: the value of the producer has symbols of its own
    whole = current.value.substitute(axes)
    value = _put(whole, producer)
    new = replace(
        producer, buffer=stage, index=tuple([substitute(x, axes) for x in current.index]), value=value, guard=guard
    )
    stages: list[Stage] = []
    for s in program.stages:
        if s is producer:
            continue
        moved = s.at is not None and s.at[0] == producer.buffer
        stages.append(replace(s, at=(stage, s.at[1])) if moved and s.at is not None else new if s is current else s)
    if program.placed(producer.buffer):  # they stand right before the producer: it may have to move up or they down
        stages = _grouped(stages, new)
    return with_buffers(program, stages, drop=[producer.buffer])


def _unknown(producer: Stage, exists: Sequence[Size]) -> list[Size]:
    """Return the conditions that do not follow from those under which the producer runs."""
    known = terms(producer.guard)
    return [x for x in exists if not any(decide(x - k) is True for k in known)]


def _grouped(stages: Sequence[Stage], host: Stage) -> list[Stage]:
    inner = [s for s in stages if s.at is not None and s.at[0] == host.buffer]
    rest = [s for s in stages if s not in inner]
    at = rest.index(host)
    return [*rest[:at], *inner, *rest[at:]]


def _producer(program: LoopProgram, stage: Stage) -> tuple[Stage, Sequence[Size]]:
    """Return the stage that a pointwise stage maps, and the element that it reads."""
    scratch = {b.name: b.shape for b in program.buffers if b.scope == "scratch"}
    readers = [e for e in loads(stage) if e.args[0] in scratch]
    axes = [a.symbol for a in stage.axes]
    whole = [e for e in readers if solve(e.args[1], axes, e.args[1], scratch[e.args[0]]) is not None]
    names = {e.args[0] for e in whole}
    late = [s for s in program.stages if s.buffer in names]
    require(
        bool(late), f"reverse_compute_at {stage.buffer}: it reads no scratch buffer at an index that gives its axes"
    )
    producer = late[-1]
    at = {e.args[1] for e in readers if e.args[0] == producer.buffer}
    require(len(at) == 1, f"reverse_compute_at {stage.buffer}: it reads {producer.buffer} at {len(at)} indices")
    return producer, next(iter(at))


def _covered(stage: Stage, element: Sequence[Size], shape: Sequence[int]) -> None:
    """Raise unless the elements read stay inside the producer's buffer, so that each iteration has its element."""
    known = terms(stage.guard)
    for x, n in zip(element, shape, strict=True):
        for y in (x, n - 1 - x):
            inside = decide(y) is True or any(decide(y - k) is True for k in known)
            require(inside, f"reverse_compute_at {stage.buffer}: it reads at {x}, outside of {n} elements")


def _put(value: Expr, producer: Stage) -> Expr:
    def change(e: Expr) -> Expr | None:
        return producer.value if e.kind == "load" and e.args[0] == producer.buffer else None

    return rewrite(value, before=change)
