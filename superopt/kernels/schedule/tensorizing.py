"""The primitive tensorize: replaces the loops of a contraction by a register tile of a declared intrinsic.

Packing stages come first, then the same stage over axes that are cut into tasks (parallel), tiles (serial), rows of a
tile (unroll) and lanes (vector).  Sizes need not divide anything: the guard of the stage tells which iterations exist,
and panels and groups are padded with zeros.  The expression around the sum stays unchanged, with the sum as a leaf: it
is the epilogue.  `evaluate` gives the same result as for the original.  A packing stage of a frozen operand reads
frozen buffers alone, so that `hoisted` moves it to the prepare program.

    before   out[o0, o1] = f(sum_k x[o0, k] * w[k, o1])
    after    b[p, k, l] = [32*p+l < N] ? w[k, 32*p+l] : 0
             out[o0, o1] = f(sum_k x[o0, k] * b[p, k, l])
    where    o0 = 28*o0t + 14*o0m + o0r,  o1 = 32*(8*o1t + p) + l

Decisions are plain data (`ContractionDecisions`); in a trace they are pairs of a field and a value.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from superopt.errors import InputError
from superopt.ir.expr import Expr, const, convert, load, op, reduce
from superopt.ir.index import (
    Guard,
    Poly,
    Size,
    Symbol,
    Truth,
    all_of,
    coefficient,
    nonnegative,
    of_atom,
    substitute,
    substitute_guard,
)
from superopt.kernels.llvm.cpu import Cpu, host
from superopt.kernels.loops.contract import Contraction, analyse, analyse_placed, exchange, find, with_total
from superopt.kernels.loops.program import checked, ordered
from superopt.kernels.loops.ranges import decision_fault
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage, Tile, extent
from superopt.kernels.schedule.edit import terms
from superopt.kernels.schedule.guards import inside
from superopt.kernels.schedule.intrinsics import Intrinsic, intrinsic
from superopt.kernels.schedule.packing import Packed, coordinates, guarded, packed_stage, parts_of

AxisPairs = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class ContractionDecisions:
    """Tunable parameters of a tensorized contraction; axes are those of the normal form (`contract.analyse`), by name.

    Attributes:
        intrinsic: key in the table of intrinsics.
        rows: registers along each axis that is not the lane; 1 where an axis is not named.
        vectors: vectors along the lane.
        depth: iterators of the sum, outermost first, each whole (`r0_0`) or in two parts (`r0_0/16`, `r0_0%16`); in
            their
            original order when empty.
        unroll: unroll factor of the innermost one.
        block: steps of the outermost one after which the tile goes on to other rows and columns and comes back; 0: all
            steps at once.
        pack_a: none: A is read where it is; phase: copied on its coordinates before; task: each task copies its part.
        pack_b: panels; coordinates; or none: B is read where it is.
        order_a: order of A's coordinates in its copy.
        pad_a: elements between rows of the copy.
        tasks: iterations of each axis in one task, the lane's in panels; all where an axis is not named.
        columns_first: the panels of a task are its outer loop (B stays in the cache), else the rows are.
        split: parts of the sum that are formed in parallel and added afterwards.
        prefetch: steps ahead for which B is prefetched; 0: none.
        streams: neighbouring panels that a tile reads at once, each a stream in memory; they divide the lane.
        merge_columns: treat all axes of B as one, copying B (a convolution with channels first and a small image).
        lane: the axis along vectors (`contract.analyse`); the innermost one when empty.
    """

    intrinsic: str = "fma_f32"
    rows: tuple[tuple[str, int], ...] = ()
    vectors: int = 2
    depth: tuple[str, ...] = ()
    unroll: int = 4
    block: int = 0
    pack_a: Literal["none", "phase", "task"] = "none"
    pack_b: Literal["none", "panels", "coordinates"] = "panels"
    order_a: tuple[str, ...] = ()
    pad_a: int = 0
    tasks: tuple[tuple[str, int], ...] = ()
    columns_first: bool = True
    split: int = 1
    prefetch: int = 0
    streams: int = 1
    merge_columns: bool = False
    lane: str = ""


def tensorize(program: LoopProgram, stage: str, decisions: AxisPairs = ()) -> LoopProgram:
    """Replace the inner loops of a contraction by a register tile, operands packed as the tile reads them.

    before
        for o0<8, o1<32
          out0[o0,o1] = sum_{r0<8} mul(x[o0,r0], w[r0,o1])
    tensorize out0 [["rows", [["o0", 4]]], ["pack_b", "none"]]
        for o0m<2, o0r<4 unroll, o1l<32 vector
          out0[4*o0m+o0r,o1l] = sum_{r0<8} mul(x[4*o0m+o0r,r0], w[r0,o1l])   # fma_f32 o0r:4 by 2 vectors of o1l over r0

    Args:
        program: a well-formed program.
        stage: the stage with the contraction, not scheduled yet.
        decisions: fields of `ContractionDecisions` and their values; truth values may be 0 and 1.

    Raises:
        InputError: the stage holds no contraction that the intrinsic fits, a decision does not fit it, or the
            coordinates of an operand reach further than the operand does.
    """
    return tiled(program, stage, decisions_of(decisions))


def tiled(program: LoopProgram, name: str, decisions: ContractionDecisions, cpu: Cpu | None = None) -> LoopProgram:
    """Return the program with a register tile in place of the inner loops of a contraction.

    Args:
        program: the program.
        name: stage with the contraction.
        decisions: parameters of the tile.
        cpu: gives the lanes of a vector; this machine when None.

    Raises:
        InputError: the stage holds no contraction of this intrinsic, a decision does not fit it, or the coordinates of
            an operand reach further than the operand does.
    """
    made = _tiled if program.stage(name).at is None else _placed
    after = checked(made(program, name, decisions, cpu or host()))
    known = {s.buffer for s in program.stages}
    for s in after.stages:
        copy = s.buffer not in known and s.tile is None
        if copy and not inside(after, s.value, terms(s.guard)):
            raise InputError(f"tensorize {name}: the copy {s.buffer} of an operand would read beyond its arrays")
    return after


def _tiled(program: LoopProgram, name: str, decisions: ContractionDecisions, cpu: Cpu) -> LoopProgram:
    """Tile a stage of its own, with its operands packed before."""
    if decisions.split > 1:
        program, name = _split_depth(program, name, decisions)
    contraction = analyse(program, program.stage(name), decisions.merge_columns, decisions.lane)
    if contraction is None:
        raise InputError(f"stage {name} holds no contraction that a register tile fits")
    kind = intrinsic(decisions.intrinsic)
    contraction, before = _offset(contraction, kind, name)
    leaf_a, leaf_b = (
        kind.operand(contraction.a, "uint8" if kind.offset else kind.a),
        kind.operand(contraction.b, kind.b),
    )
    if leaf_a is None or leaf_b is None:
        raise InputError(
            f"stage {name} multiplies {contraction.a.dtype} and {contraction.b.dtype}, not as {kind.name} does"
        )
    depth = _depth(contraction, decisions.depth, kind.group)
    grid = _Grid(contraction, decisions, kind.lanes(cpu) * decisions.vectors)
    value_a, packed_a = _operand_a(name, leaf_a, grid, depth)
    value_b, packed_b = _operand_b(name, leaf_b, grid, depth)
    total = reduce("sum", depth.iterators, kind.product(value_a, value_b))
    value = (
        with_total(contraction, total).value.substitute(grid.at) if grid.at else with_total(contraction, total).value
    )
    index = tuple([substitute(x, grid.at) for x in contraction.stage.index])
    stage = Stage(name, tuple(grid.axes), index, value, grid.guard, knobs=_knobs(decisions))
    again = find(stage)
    names = tuple([s.name for s in again.depth]) if again is not None else ()
    tile = Tile(kind.name, tuple(grid.rows), grid.lane.name, decisions.vectors, names, decisions.unroll)
    stage = replace(stage, tile=tile)
    new = [*before, *[(p.buffer, p.stage) for p in (packed_b, packed_a) if p is not None]]
    return _inserted(program, name, [b for b, _ in new], [s for _, s in new], stage)


def _placed(program: LoopProgram, name: str, decisions: ContractionDecisions, cpu: Cpu) -> LoopProgram:
    """Tile a stage inside another: its own loops are tiles, the operands lie in memory."""
    stage = program.stage(name)
    assert stage.at is not None
    shared = stage.axes[: stage.at[1]]
    contraction = analyse_placed(program, stage, decisions.lane)
    if contraction is None:
        raise InputError(f"stage {name} holds no contraction that a register tile fits")
    kind = intrinsic(decisions.intrinsic)
    if decisions.pack_a != "none" or decisions.pack_b != "none" or decisions.split > 1 or decisions.tasks:
        raise InputError(f"stage {name} stands inside {stage.at[0]}: it packs nothing and has no tasks of its own")
    if kind.group > 1 or kind.offset:
        raise InputError(f"stage {name} stands inside {stage.at[0]}: {kind.name} needs operands that are packed")
    leaf_a, leaf_b = kind.operand(contraction.a, kind.a), kind.operand(contraction.b, kind.b)
    if leaf_a is None or leaf_b is None or not readable(leaf_a) or leaf_b.kind != "load":
        raise InputError(f"stage {name}: a tile reads its operands from memory as {kind.name} does")
    if isinstance(contraction.guard_a, Guard) or isinstance(contraction.guard_b, Guard):
        raise InputError(f"stage {name}: operands of a tile inside {stage.at[0]} are read without guards")
    depth = _depth(contraction, decisions.depth, 1)
    if depth.padded:
        raise InputError(f"stage {name}: the steps of its sum must be divided evenly")
    whole = replace(decisions, tasks=tuple([(s.name, extent(s)) for s in contraction.batch]))
    grid = _Grid(contraction, whole, kind.lanes(cpu) * decisions.vectors)
    at = {**grid.at, **depth.parts}
    total = reduce("sum", depth.iterators, kind.product(leaf_a.substitute(at), leaf_b.substitute(at)))
    guard = substitute_guard(contraction.stage.guard, grid.at) if isinstance(contraction.stage.guard, Guard) else True
    guard = _by_tiles(program, contraction, grid, guard)
    made = Stage(
        name,
        (*shared, *grid.axes),
        tuple([substitute(x, grid.at) for x in contraction.stage.index]),
        with_total(contraction, total).value.substitute(grid.at),
        all_of(grid.guard, guard),
        stage.at,
        knobs=_knobs(decisions),
    )
    again = find(made)
    names = tuple([s.name for s in again.depth]) if again is not None else ()
    tile = Tile(kind.name, tuple(grid.rows), grid.lane.name, decisions.vectors, names, decisions.unroll)
    stages = tuple([replace(made, tile=tile) if s is stage else s for s in program.stages])
    return replace(program, stages=stages)


def _by_tiles(program: LoopProgram, found: Contraction, grid: _Grid, guard: Truth) -> Truth:
    """Return the guard with conditions on tiles in place of those on rows of a tile, where reads stay inside."""
    if not isinstance(guard, Guard):
        return guard
    rows: dict[Symbol, Size] = {a.symbol: 0 for a in grid.axes if a.kind == "unroll"}
    wider = all_of(*[nonnegative(substitute(p, rows)) if _backward(p, rows) else nonnegative(p) for p in guard.ordered])
    value = found.stage.value.substitute(grid.at)
    return wider if inside(program, value, terms(all_of(wider, grid.guard))) else guard


def _backward(p: Poly, rows: dict[Symbol, Size]) -> bool:
    return any(s in p.symbols for s in rows) and all((coefficient(p, s) or 0) <= 0 for s in rows)


def _knobs(decisions: ContractionDecisions) -> tuple[tuple[str, int | str], ...]:
    chosen = {"block": decisions.block, "prefetch": decisions.prefetch}
    return tuple([(k, v) for k, v in chosen.items() if v])


def _inserted(
    program: LoopProgram, name: str, buffers: Sequence[Buffer], stages: Sequence[Stage], stage: Stage
) -> LoopProgram:
    """Return the program with one stage replaced and others before it."""
    placed = [replace(s, at=(name, len([a for a in stage.axes if a.kind == "parallel"])))
              if any(b.name == s.buffer and b.scope == "local" for b in buffers) else s for s in stages]  # fmt: skip
    all_: list[Stage] = []
    for s in program.stages:
        all_ += [*placed, stage] if s.buffer == name else [s]
    return replace(program, buffers=ordered((*program.buffers, *buffers)), stages=tuple(all_))


# ---- axes


class _Grid:
    """The axes of the tile: `at` expresses the axes of the normal form in terms of them."""

    def __init__(self, found: Contraction, decisions: ContractionDecisions, width: int) -> None:
        self.found, self.decisions = found, decisions
        tile, block = dict(decisions.rows), dict(decisions.tasks)
        axes = [a.symbol for a in found.stage.axes]
        known = {s.name for s in axes}
        for name in (*tile, *block):
            if name not in known:
                raise InputError(f"decisions name the axis {name!r}; the contraction has {sorted(known)}")
        self.at: dict[Symbol, Size] = {}
        self.rows: list[tuple[str, int]] = []
        tasks: list[Loop] = []
        tiles: list[Loop] = []
        inner: list[Loop] = []
        conditions: list[Truth] = []
        self.panel: Size = 0
        for s in axes:
            lane = s is found.lane
            step = width if lane else min(tile.get(s.name, 1), extent(s))
            streams = decisions.streams if lane else 1
            if streams > 1 and extent(s) % (step * streams):
                raise InputError(f"{streams} streams of panels of {step} do not divide the {extent(s)} of {s.name}")
            whole = -(-extent(s) // (step * streams))
            size = 1 if s in found.batch else whole
            if s.name in block:
                size = min(max(block[s.name] // streams if lane else -(-block[s.name] // step), 1), whole)
            while streams > 1 and whole % size:
                size -= 1
            t = Symbol(s.name + "t", 0, -(-whole // size) - 1)
            m = Symbol(s.name + "m", 0, size - 1)
            r = Symbol(s.name + ("l" if lane else "r"), 0, step - 1)
            tasks += [Loop(t, "parallel")] if t.high else []
            tiles += [Loop(m)] if m.high else []
            number: Size = (of_atom(t) * size if t.high else 0) + (of_atom(m) if m.high else 0)
            if streams > 1:
                stream = Symbol(s.name + "q", 0, streams - 1)
                inner.append(Loop(stream, "unroll"))
                self.rows.append((stream.name, streams))
                number = number * streams + of_atom(stream)
            if lane:
                self.panel, self.lane = number, r
                inner.append(Loop(r, "vector"))
            elif r.high:
                inner.append(Loop(r, "unroll"))
                self.rows.append((r.name, step))
            self.at[s] = number * step + (of_atom(r) if r.high else 0)
            conditions.append(self.at[s] < extent(s))
        last = [a for a in tiles if a.symbol.name == found.lane.name + "m"]
        others = [a for a in tiles if a not in last]
        batch = [a for a in others if any(a.symbol.name == s.name + "m" for s in found.batch)]
        others = [a for a in others if a not in batch]
        ordered_tiles = [*batch, *last, *others] if decisions.columns_first else [*batch, *others, *last]
        inner.sort(key=lambda a: a.kind == "vector")
        self.tasks = tasks
        self.axes = [*tasks, *ordered_tiles, *inner]
        self.guard = all_of(*conditions)


# ---- depth


@dataclass(frozen=True, slots=True)
class _Depth:
    """The iterators of the sum.

    Attributes:
        parts: iterators of the normal form in terms of the tile's.
        iterators: the tile's, outermost first.
        padded: iterators of the normal form whose range is longer in the tile.
        group: steps that an instruction takes: the innermost iterator where it is more than 1.
    """

    parts: dict[Symbol, Size]
    iterators: tuple[Symbol, ...]
    padded: frozenset[Symbol]
    group: int


def _depth(found: Contraction, order: Sequence[str], group: int) -> _Depth:
    """Return the iterators of a sum, split and ordered as asked, with those that need a guard."""
    names = {s.name: s for s in found.depth}
    if not order:
        order = list(names)
        if group > 1:
            last = order.pop()
            order += [f"{last}/{group}", f"{last}%{group}"]
    parts: dict[Symbol, Size] = {}
    iterators: list[Symbol] = []
    padded: set[Symbol] = set()
    for name, kind, n in parts_of(order, list(names)):
        s = names[name]
        if kind == "/":
            new, part = Symbol("?" + name + "h", 0, -(-extent(s) // n) - 1), n
        elif kind == "%":
            new, part = Symbol("?" + name + "l", 0, n - 1), 1
        else:
            new, part = Symbol("?" + name, 0, s.high), 1
        if kind and extent(s) % n:
            padded.add(s)
        parts[s] = parts.get(s, 0) + (of_atom(new) * part if new.high else 0)
        iterators.append(new)
    if group > 1 and iterators[-1].high != group - 1:
        raise InputError(f"the innermost part of the depth must be {group} steps, as one instruction takes them")
    return _Depth(parts, tuple(iterators), frozenset(padded), group)


# ---- operands


def _operand_a(name: str, leaf: Expr, grid: _Grid, depth: _Depth) -> tuple[Expr, Packed | None]:
    """Return A as the tile of a stage reads it, and the stage that packs it."""
    chosen, guard = grid.decisions, grid.found.guard_a
    at = {**grid.at, **depth.parts}
    if chosen.pack_a == "none":
        if not readable(leaf) or isinstance(guard, Guard) or depth.padded:
            raise InputError(f"stage {name}: the operand A must be packed: it is computed, guarded or padded")
        return leaf.substitute(at), None
    outer = grid.tasks if chosen.pack_a == "task" else ()
    made = coordinates(name + "_a", leaf, guard, at, outer, chosen.order_a, chosen.pad_a, depth.padded)
    return made.value, made


def _operand_b(name: str, leaf: Expr, grid: _Grid, depth: _Depth) -> tuple[Expr, Packed | None]:
    """Return B as the tile of a stage reads it, and the stage that packs it."""
    way, guard, single = grid.decisions.pack_b, grid.found.guard_b, not depth.padded and depth.group == 1
    at = {**grid.at, **depth.parts}
    if way == "none":
        if leaf.kind != "load" or isinstance(guard, Guard) or not single:
            raise InputError(f"stage {name}: the operand B must be packed: it is computed, guarded, padded or grouped")
        return leaf.substitute(at), None
    if way == "coordinates" and not single:
        raise InputError(f"stage {name}: the operand B must be packed in panels: it is padded or grouped")
    name += "_b"
    made = coordinates(name, leaf, guard, at) if way == "coordinates" else _panels(name, leaf, grid, depth)
    return made.value, made


def _panels(name: str, leaf: Expr, grid: _Grid, depth: _Depth) -> Packed:
    """Pack B as [batch.., columns.., panel][depth..][lane]: the data that the tile streams is contiguous.

    The last panel and the last group of the depth, which lies inside the lane, are padded with zeros.
    """
    contraction, lane, width = grid.found, grid.found.lane, extent(grid.lane)
    seen = leaf.symbols | (contraction.guard_b.symbols if isinstance(contraction.guard_b, Guard) else frozenset())
    outer = [s for s in (*contraction.batch, *contraction.columns[:-1]) if s in seen]
    own = {d: Symbol(d.name[1:], 0, d.high) for d in depth.iterators}
    parts = {s: substitute(x, {d: of_atom(own[d]) for d in own}) for s, x in depth.parts.items()}
    missing = all_of(*[parts[s] < extent(s) for s in contraction.depth if s in depth.padded])
    piece, within = Symbol("p", 0, -(-extent(lane) // width) - 1), Symbol("l", 0, width - 1)
    column = of_atom(piece) * width + of_atom(within) if piece.high else of_atom(within)
    packed = {s: Symbol(f"p{s.name}", 0, s.high) for s in (*outer, *own.values())}
    mapping: dict[Symbol, Size] = {s: of_atom(t) for s, t in packed.items()} | {lane: column}
    value = guarded(missing, guarded(contraction.guard_b, leaf).substitute(parts)).substitute(mapping)
    value = guarded(column < extent(lane), value)
    steps = depth.iterators
    outside, last = (steps[:-1], steps[-1:]) if depth.group > 1 else (steps, ())
    axes = [*[packed[s] for s in outer], *([piece] if piece.high else []), *[packed[own[d]] for d in outside], within]
    axes += [packed[own[d]] for d in last]
    index = [*[grid.at[s] for s in outer], *([grid.panel] if piece.high else []), *map(of_atom, outside)]
    index += [of_atom(grid.lane), *map(of_atom, last)]
    return packed_stage(name, axes, value, index)


def readable(leaf: Expr) -> bool:
    """Whether a tile can read this operand from memory: it is a load, or a signed byte offset by 128."""
    return leaf.kind == "load" or offset_load(leaf) is not None


def offset_load(leaf: Expr) -> Expr | None:
    """Return the load of a signed byte inside `uint8(int32(x) + 128)`; None for anything else."""
    if leaf.kind != "convert" or leaf.dtype != "uint8" or leaf.args[1].kind != "op" or leaf.args[1].args[0] != "add":
        return None
    wide, shift = leaf.args[1].args[2:]
    if shift.kind != "const" or shift.args[0] != 128 or wide.kind != "convert" or wide.args[0] != "int8":
        return None
    return wide.args[1] if wide.args[1].kind == "load" else None


def _offset(found: Contraction, kind: Intrinsic, name: str) -> tuple[Contraction, list[tuple[Buffer, Stage]]]:
    """Rewrite signed times signed bytes as unsigned times signed; the difference is subtracted again."""
    if not kind.offset:
        return found, []
    leaf = kind.operand(found.a, kind.a)
    if leaf is None or kind.operand(found.b, kind.b) is None:
        raise InputError(f"stage {name} does not multiply as {kind.name} does")
    wide = kind.accumulator
    shift = const(kind.offset, wide)
    wider = op("add", wide, convert(guarded(found.guard_a, leaf), kind.a, wide), shift)
    a = convert(convert(wider, wide, "uint8"), "uint8", wide)
    factor = guarded(found.guard_b, found.b)
    axes = [s for s in (*found.batch, *found.columns) if s in factor.symbols]
    inner = [s for s in found.depth if s in factor.symbols]
    rest = 1
    for s in found.depth:
        rest *= 1 if s in inner else extent(s)
    sums = reduce("sum", inner, op("mul", wide, factor, const(kind.offset * rest, wide)))
    buffer = Buffer(name + "_c", tuple([extent(s) for s in axes]), wide, "scratch")
    stage = Stage(buffer.name, tuple([Loop(s) for s in axes]), tuple([of_atom(s) for s in axes]), sums)
    body = op("mul", wide, a, factor)
    total = reduce("sum", found.depth, body)
    correction = load(buffer.name, [of_atom(s) for s in axes], wide)
    value = exchange(found.stage.value, found.total, op("sub", wide, total, correction))
    again = find(replace(found.stage, value=value))
    if again is None:
        raise InputError(f"stage {name} does not multiply as {kind.name} does")
    return again, [(buffer, stage)]


# ---- split of the depth


def _split_depth(program: LoopProgram, name: str, decisions: ContractionDecisions) -> tuple[LoopProgram, str]:
    """Form parts of the sum in parallel in a stage of their own.

        before   out[i] = f(sum_k a[i, k])
        after    part[s, i] = sum_k a[i, n*s + k];    out[i] = f(sum_s part[s, i])

    Raises:
        InputError: the parts do not divide the outermost iterator of the sum.
    """
    contraction = analyse(program, program.stage(name), decisions.merge_columns, decisions.lane)
    if contraction is None:
        raise InputError(f"stage {name} holds no contraction that a register tile fits")
    first, count = contraction.depth[0], decisions.split
    if extent(first) % count or extent(first) == count:
        raise InputError(f"{count} parts do not divide the {extent(first)} steps of {first} in stage {name}")
    part = Symbol("s", 0, count - 1)
    inner = Symbol("?k", 0, extent(first) // count - 1)
    _, _, body = contraction.total.args
    body = body.substitute({first: of_atom(part) * extent(inner) + of_atom(inner)})
    axes = [part, *[a.symbol for a in contraction.stage.axes]]
    buffer = Buffer(name + "_p", tuple([extent(s) for s in axes]), contraction.total.dtype, "scratch")
    value = reduce("sum", [inner, *contraction.depth[1:]], body)
    partial = Stage(buffer.name, tuple([Loop(s) for s in axes]), tuple([of_atom(s) for s in axes]), value)
    term = load(buffer.name, [of_atom(s) for s in axes], contraction.total.dtype)
    final = with_total(contraction, reduce("sum", (part,), term))
    return _inserted(program, name, [buffer], [partial], final), buffer.name


# ---- decisions as pairs


def decisions_of(pairs: AxisPairs) -> ContractionDecisions:
    """Parse decisions from pairs; fields that are not named have their defaults.

    Raises:
        InputError: an unknown field, or a value that it cannot have.
    """
    hints = typing.get_type_hints(ContractionDecisions)
    given: dict[str, Any] = {}
    for pair in pairs:
        if len(pair) != 2 or pair[0] not in hints:
            raise InputError(f"tensorize has no decision {list(pair)}", hint=f"decisions: {', '.join(hints)}")
        name, value = pair
        given[name] = _value(name, value, hints[name])
        fault = decision_fault(name, given[name])
        if fault:
            raise InputError(f"the decision {fault}")
    return ContractionDecisions(**given)


def pairs_of(decisions: ContractionDecisions) -> list[list[Any]]:
    """Return the decisions that differ from the defaults, in a form that JSON can hold."""
    plain = type(decisions)()
    pairs: list[list[Any]] = []
    for f in fields(decisions):
        value = getattr(decisions, f.name)
        if value != getattr(plain, f.name):
            pairs.append([f.name, int(value) if isinstance(value, bool) else _listed(value)])
    return pairs


def _listed(value: Any) -> Any:
    return [_listed(x) for x in value] if isinstance(value, tuple) else value


def _value(name: str, value: Any, hint: Any) -> Any:
    """Check a value against the type of its field, and return it converted."""
    converted = _converted(value, hint)
    if converted is None:
        raise InputError(f"the decision {name!r} of tensorize cannot be {value!r}")
    return converted


def _converted(value: Any, hint: Any) -> Any:
    """Convert a value to the type of its field; None where it is of another type."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return next((x for h in inside if (x := _converted(value, h)) is not None), None)
    if origin is typing.Literal:
        return value if value in inside else None
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return None
        kinds = [inside[0]] * len(value) if inside[1:] == (...,) else list(inside)
        if len(kinds) != len(value):
            return None
        items = [_converted(x, k) for x, k in zip(value, kinds, strict=True)]
        return None if None in items else tuple(items)
    if hint is bool:
        return bool(value) if value in (0, 1) else None
    if hint is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    return value if isinstance(value, hint) else None
