"""Primitives that move a stage into the loops of another: compute_at, blockize."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from superopt.ir.expr import Expr, load
from superopt.ir.index import Poly, Size, Symbol, all_of, bounds, iterator, nonnegative, of_atom, substitute_guard
from superopt.kernels.loops.program import loads, reads
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage
from superopt.kernels.schedule.bijection import inverse, total
from superopt.kernels.schedule.edit import new_buffer, plain, require, rewritten, with_buffers


def compute_at(program: LoopProgram, stage: str, host: str, count: int) -> LoopProgram:
    """Compute the elements needed by each iteration of a later stage's outermost `count` axes inside that iteration.

    before
        for o0<6, o1<5
          s0[o0,o1] = exp(x[o0,o1])
        for o0<6, o1<4
          out0[o0,o1] = add(s0[o0,o1], s0[o0,1+o1])
    compute_at s0 out0 1
        for o0<6
          for s0_1<5
            s0[0,s0_1] = exp(x[o0,s0_1])
          for o1<4
            out0[o0,o1] = add(s0[0,o1], s0[0,1+o1])

    The buffer becomes local. It shrinks to the region that one iteration reads, by the ranges of its indices; elements
    that neighbouring iterations both need are computed twice.  Loops are made anew: schedule the stage after placing
    it.

    Raises:
        InputError: the buffer is an output or read outside of these loops, not every element of it is written, its
            index map has no inverse, or it is placed or holds stages already.
    """
    moved, inside = plain(program.stage(stage), "compute_at"), program.stage(host)
    buffer = program.buffer(stage)
    require(buffer.scope == "scratch" and moved.at is None, f"compute_at {stage}: it is no phase that fills scratch")
    require(not program.placed(stage), f"compute_at {stage}: {[s.buffer for s in program.placed(stage)]} are in it")
    require(0 <= count <= len(inside.axes), f"compute_at {stage}: {host} has {len(inside.axes)} axes, not {count}")
    above = 0 if inside.at is None else inside.at[1]
    require(count >= above, f"compute_at {stage}: {host} stands under {above} axes of another stage, not {count}")
    total(moved, buffer, "compute_at")
    readers = [s for s in program.stages if stage in reads(s)]
    require(bool(readers), f"compute_at {stage}: nothing reads it")
    shared = inside.axes[:count]
    outer = [a.symbol for a in shared]
    for s in readers:
        require(
            s.buffer == host or _runs_in(program, s, host, count),
            f"compute_at {stage}: {s.buffer} reads it outside of the first {count} axes of {host}",
        )
    indices = [e.args[1] for s in readers for e in loads(s) if e.args[0] == stage]
    region = [_interval([x[d] for x in indices], n, outer) for d, n in enumerate(buffer.shape)]
    start = [low for low, _ in region]
    pairs = [iterator(f"{stage}_{d}", n) for d, (_, n) in enumerate(region)]
    element = [low + i for low, (_, i) in zip(start, pairs, strict=True)]
    axes = inverse(moved, element, buffer.shape)
    exists = [y for x, n in zip(element, buffer.shape, strict=True) for y in (x, n - 1 - x)]
    guard = all_of(substitute_guard(moved.guard, axes), *map(nonnegative, exists))
    inner = [Loop(it) for it, _ in pairs if it.high != 0]
    new = replace(
        moved, axes=(*shared, *inner), index=tuple([i for _, i in pairs]), value=moved.value.substitute(axes),
        guard=guard, at=(host, count),
    )  # fmt: skip

    def shifted(e: Expr) -> Expr | None:
        if e.kind != "load" or e.args[0] != stage:
            return None
        return load(stage, [x - low for x, low in zip(e.args[1], start, strict=True)], e.dtype)

    stages: list[Stage] = []
    for s in program.stages:
        if s is moved:
            continue
        if s is readers[0]:
            stages.append(new)
        stages.append(rewritten(s, shifted) if s in readers else s)
    local = Buffer(stage, tuple([n for _, n in region]), buffer.dtype, "local")
    return with_buffers(program, stages, [local])


def _runs_in(program: LoopProgram, stage: Stage, host: str, count: int) -> bool:
    while stage.buffer != host:
        if stage.at is None or stage.at[1] < count:
            return False
        stage = program.stage(stage.at[0])
    return True


def _interval(indices: Iterable[Size], n: int, outer: Sequence[Symbol]) -> tuple[Size, int]:
    """Return the first element and number of elements that indices into an axis of size n reach for fixed `outer`."""
    whole: tuple[Size, int] = (0, n)
    first: Size | None = None
    least, most = 0.0, 0.0
    for x in indices:
        base, rest = _parted(x, frozenset(outer))
        if not _free(rest, frozenset(outer)):
            return whole
        low, high = bounds(rest)
        if first is None:
            first, least, most = base, low, high
            continue
        shift = base - first
        if not isinstance(shift, int):
            return whole
        least, most = min(least, low + shift), max(most, high + shift)
    if first is None or not most - least + 1 < n:
        return whole
    return first + int(least), max(0, int(most - least + 1))


def _parted(x: Size, outer: frozenset[Symbol]) -> tuple[Size, Size]:
    """Return the terms over outer axes alone, and the rest."""
    if isinstance(x, int):
        return 0, x
    base: Size = 0
    for mono, c in x.terms:
        if mono and all(a.symbols <= outer and a.symbols for a in mono):
            term: Size = c
            for a in mono:
                term = term * of_atom(a)
            base = base + term
    return base, x - base


def _free(x: Size, outer: frozenset[Symbol]) -> bool:
    return not isinstance(x, Poly) or x.symbols.isdisjoint(outer)


def blockize(program: LoopProgram, stage: str, count: int, name: str | None = None) -> LoopProgram:
    """Make the axes inside the outermost `count` a block: a stage that fills a local buffer, which is then stored.

    before
        for o0_0<3, o0_1<2, o1<5
          out0[2*o0_0+o0_1,o1] = exp(x[2*o0_0+o0_1,o1])
    blockize out0 1 block
        for o0_0<3
          for o0_1<2, o1<5
            block[o0_1,o1] = exp(x[2*o0_0+o0_1,o1])
          for o0_1<2, o1<5
            out0[2*o0_0+o0_1,o1] = block[o0_1,o1]

    Raises:
        InputError: the stage is tensorized or accumulates, or has fewer axes.
    """
    current = plain(program.stage(stage), "blockize")
    require(0 <= count <= len(current.axes), f"blockize {stage}: it has {len(current.axes)} axes, not {count}")
    require(current.combine is None, f"blockize {stage}: it accumulates")
    require(
        current.at is None or count >= current.at[1],
        f"blockize {stage}: its first {current.at and current.at[1]} axes belong to {current.at and current.at[0]}",
    )
    result = new_buffer(program, name, f"{stage}_block", "blockize")
    inner = [a.symbol for a in current.axes[count:]]
    index = tuple([of_atom(s) if s.high != 0 else 0 for s in inner])
    shape = tuple([a.extent for a in current.axes[count:]])
    dtype = current.value.dtype
    block = replace(current, buffer=result, index=index, at=(stage, count))
    store = replace(current, value=load(result, index, dtype), knobs=())
    stages: list[Stage] = []
    for s in program.stages:
        if s is current:
            stages += [block, store]
        elif s.at is not None and s.at[0] == stage and s.at[1] > count:
            stages.append(replace(s, at=(result, s.at[1])))
        else:
            stages.append(s)
    return with_buffers(program, stages, [Buffer(result, shape, dtype, "local")])
