"""Automatic tensorization: the loops of a contraction become a register tile of a declared intrinsic.

`tensorize(program, stage, decisions)` is a function from loop programs to loop programs: packing stages before, then
the same stage over axes that are cut into tasks (parallel), tiles (serial), rows of a tile (unroll) and lanes (vector).
Nothing must divide anything: the guard of the stage says which iterations exist, panels and groups are padded with
zeros.  What surrounds the sum stays as it is, with the sum as a leaf: it is the epilogue.  `evaluate` of the result is
that of the original.  A packing stage of a frozen operand reads frozen buffers alone, so that `hoisted` takes it away.

    before   out[o0, o1] = f(sum_k x[o0, k] * w[k, o1])
    after    b[p, k, l] = [32*p+l < N] ? w[k, 32*p+l] : 0
             out[o0, o1] = f(sum_k x[o0, k] * b[p, k, l])      o0 = 28*o0t + 14*o0m + o0r,  o1 = 32*(8*o1t + p) + l
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from superopt.kernels.loops.program import ordered
from superopt.kernels.loops.stage import Axis, Buffer, LoopProgram, Stage, Tile, extent
from superopt.kernels.schedule.edit import terms
from superopt.kernels.schedule.guards import inside
from superopt.kernels.schedule.intrinsics import Intrinsic, intrinsic
from superopt.kernels.schedule.pack import Packed, coordinates, guarded, panels, parts_of
from superopt.kernels.schedule.tile_decisions import ContractionDecisions


def tensorize(program: LoopProgram, name: str, decisions: ContractionDecisions, cpu: Cpu | None = None) -> LoopProgram:
    """Replace the inner loops of a contraction by a register tile.

    Args:
        program: the program.
        name: stage with the contraction.
        decisions: how it runs.
        cpu: gives the lanes of a vector; this machine when None.

    Raises:
        InputError: the stage holds no contraction of this intrinsic, or a decision does not fit it.
    """
    if program.stage(name).at is not None:
        return _placed(program, program.stage(name), decisions, cpu or host())
    if decisions.split > 1:
        program, name = split_depth(program, name, decisions)
    found = analyse(program, program.stage(name), decisions.merge_columns, decisions.lane)
    if found is None:
        raise InputError(f"stage {name} holds no contraction that a register tile fits")
    kind = intrinsic(decisions.intrinsic)
    found, before = _offset(found, kind, name)
    leaf_a, leaf_b = kind.operand(found.a, "uint8" if kind.offset else kind.a), kind.operand(found.b, kind.b)
    if leaf_a is None or leaf_b is None:
        raise InputError(f"stage {name} multiplies {found.a.dtype} and {found.b.dtype}, not as {kind.name} does")
    parts, depth, padding = _depth(found, decisions.depth, kind.group)
    grid = _Grid(found, decisions, kind.lanes(cpu or host()) * decisions.vectors)
    at: dict[Symbol, Size] = {**grid.at, **parts}
    value_a, packed_a = _operand_a(found, leaf_a, grid, at, decisions, name, padding)
    value_b, packed_b = _operand_b(found, leaf_b, grid, parts, depth, decisions, kind.group, name, padding)
    total = reduce("sum", depth, kind.product(value_a, value_b))
    value = with_total(found, total).value.substitute(grid.at) if grid.at else with_total(found, total).value
    index = tuple([substitute(x, grid.at) for x in found.stage.index])
    stage = Stage(name, tuple(grid.axes), index, value, grid.guard, knobs=_knobs(decisions))
    again = find(stage)
    names = tuple([s.name for s in again.depth]) if again is not None else ()
    tile = Tile(kind.name, tuple(grid.rows), grid.lane.name, decisions.vectors, names, decisions.unroll)
    stage = replace(stage, tile=tile)
    new = [*before, *[(p.buffer, p.stage) for p in (packed_b, packed_a) if p is not None]]
    return _inserted(program, name, [b for b, _ in new], [s for _, s in new], stage)


def _placed(program: LoopProgram, stage: Stage, decisions: ContractionDecisions, cpu: Cpu) -> LoopProgram:
    """A register tile in a stage that stands inside another: its own loops are tiles, the operands lie in memory."""
    assert stage.at is not None
    name, shared = stage.buffer, stage.axes[: stage.at[1]]
    found = analyse_placed(program, stage, decisions.lane)
    if found is None:
        raise InputError(f"stage {name} holds no contraction that a register tile fits")
    kind = intrinsic(decisions.intrinsic)
    if decisions.pack_a != "none" or decisions.pack_b != "none" or decisions.split > 1 or decisions.tasks:
        raise InputError(f"stage {name} stands inside {stage.at[0]}: it packs nothing and has no tasks of its own")
    if kind.group > 1 or kind.offset:
        raise InputError(f"stage {name} stands inside {stage.at[0]}: {kind.name} needs operands that are packed")
    leaf_a, leaf_b = kind.operand(found.a, kind.a), kind.operand(found.b, kind.b)
    if leaf_a is None or leaf_b is None or not readable(leaf_a) or leaf_b.kind != "load":
        raise InputError(f"stage {name}: a tile reads its operands from memory as {kind.name} does")
    if isinstance(found.guard_a, Guard) or isinstance(found.guard_b, Guard):
        raise InputError(f"stage {name}: operands of a tile inside {stage.at[0]} are read without guards")
    parts, depth, padding = _depth(found, decisions.depth, 1)
    if padding:
        raise InputError(f"stage {name}: the steps of its sum must be divided evenly")
    whole = replace(decisions, tasks=tuple([(s.name, extent(s)) for s in found.batch]))
    grid = _Grid(found, whole, kind.lanes(cpu) * decisions.vectors)
    total = reduce(
        "sum", depth, kind.product(leaf_a.substitute({**grid.at, **parts}), leaf_b.substitute({**grid.at, **parts}))
    )
    guard = substitute_guard(found.stage.guard, grid.at) if isinstance(found.stage.guard, Guard) else True
    guard = _by_tiles(program, found, grid, guard)
    made = Stage(
        name,
        (*shared, *grid.axes),
        tuple([substitute(x, grid.at) for x in found.stage.index]),
        with_total(found, total).value.substitute(grid.at),
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
    """The guard with conditions on tiles in place of those on rows of a tile, where reads stay inside."""
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
    """The program with one stage replaced and others before it."""
    placed = [replace(s, at=(name, len([a for a in stage.axes if a.kind == "parallel"])))
              if any(b.name == s.buffer and b.scope == "local" for b in buffers) else s for s in stages]  # fmt: skip
    all_: list[Stage] = []
    for s in program.stages:
        all_ += [*placed, stage] if s.buffer == name else [s]
    return replace(program, buffers=ordered((*program.buffers, *buffers)), stages=tuple(all_))


# ---- axes


class _Grid:
    """The axes of the tile: `at` gives those of the normal form in terms of them."""

    def __init__(self, found: Contraction, decisions: ContractionDecisions, width: int) -> None:
        tile, block = dict(decisions.rows), dict(decisions.tasks)
        axes = [a.symbol for a in found.stage.axes]
        known = {s.name for s in axes}
        for name in (*tile, *block):
            if name not in known:
                raise InputError(f"decisions name the axis {name!r}; the contraction has {sorted(known)}")
        self.at: dict[Symbol, Size] = {}
        self.rows: list[tuple[str, int]] = []
        tasks: list[Axis] = []
        tiles: list[Axis] = []
        inner: list[Axis] = []
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
            tasks += [Axis(t, "parallel")] if t.high else []
            tiles += [Axis(m)] if m.high else []
            number: Size = (of_atom(t) * size if t.high else 0) + (of_atom(m) if m.high else 0)
            if streams > 1:
                stream = Symbol(s.name + "q", 0, streams - 1)
                inner.append(Axis(stream, "unroll"))
                self.rows.append((stream.name, streams))
                number = number * streams + of_atom(stream)
            if lane:
                self.panel, self.lane = number, r
                inner.append(Axis(r, "vector"))
            elif r.high:
                inner.append(Axis(r, "unroll"))
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


def _depth(
    found: Contraction, order: Sequence[str], group: int
) -> tuple[dict[Symbol, Size], list[Symbol], dict[Symbol, int]]:
    """Depth iterators in terms of the tile's, the tile's outermost first, and iterators that are padded."""
    names = {s.name: s for s in found.depth}
    if not order:
        order = list(names)
        if group > 1:
            last = order.pop()
            order += [f"{last}/{group}", f"{last}%{group}"]
    parts: dict[Symbol, Size] = {}
    symbols: list[Symbol] = []
    padding: dict[Symbol, int] = {}
    for name, kind, n in parts_of(order, list(names)):
        s = names[name]
        if kind == "/":
            new, part = Symbol("?" + name + "h", 0, -(-extent(s) // n) - 1), n
        elif kind == "%":
            new, part = Symbol("?" + name + "l", 0, n - 1), 1
        else:
            new, part = Symbol("?" + name, 0, s.high), 1
        if kind and extent(s) % n:
            padding[s] = n
        parts[s] = parts.get(s, 0) + (of_atom(new) * part if new.high else 0)
        symbols.append(new)
    if group > 1 and symbols[-1].high != group - 1:
        raise InputError(f"the innermost part of the depth must be {group} steps, as one instruction takes them")
    return parts, symbols, padding


# ---- operands


def _operand_a(
    found: Contraction,
    leaf: Expr,
    grid: _Grid,
    at: dict[Symbol, Size],
    decisions: ContractionDecisions,
    name: str,
    padding: dict[Symbol, int],
) -> tuple[Expr, Packed | None]:
    if decisions.pack_a == "none":
        if not readable(leaf) or isinstance(found.guard_a, Guard) or padding:
            raise InputError(f"stage {name}: the operand A must be packed: it is computed, guarded or padded")
        return leaf.substitute(at), None
    outer = grid.tasks if decisions.pack_a == "task" else ()
    made = coordinates(name + "_a", leaf, found.guard_a, at, outer, decisions.order_a, decisions.pad_a, set(padding))
    return made.value, made


def _operand_b(
    found: Contraction,
    leaf: Expr,
    grid: _Grid,
    parts: dict[Symbol, Size],
    depth: Sequence[Symbol],
    decisions: ContractionDecisions,
    group: int,
    name: str,
    padding: dict[Symbol, int],
) -> tuple[Expr, Packed | None]:
    if decisions.pack_b == "none":
        if leaf.kind != "load" or isinstance(found.guard_b, Guard) or padding or group > 1:
            raise InputError(f"stage {name}: the operand B must be packed: it is computed, guarded, padded or grouped")
        return leaf.substitute({**grid.at, **parts}), None
    if decisions.pack_b == "coordinates":
        if padding or group > 1:
            raise InputError(f"stage {name}: the operand B must be packed in panels: it is padded or grouped")
        made = coordinates(name + "_b", leaf, found.guard_b, {**grid.at, **parts})
        return made.value, made
    outer = [s for s in (*found.batch, *found.columns[:-1]) if s in leaf.symbols or s in _of(found.guard_b)]
    own = {s: Symbol(s.name[1:], 0, s.high) for s in depth}
    mapping: dict[Symbol, Size] = {s: substitute(x, {d: of_atom(own[d]) for d in depth}) for s, x in parts.items()}
    inside = of_atom(grid.lane)
    operand = guarded(found.guard_b, leaf).substitute(mapping)
    missing = all_of(*[mapping[s] < extent(s) for s in padding])
    made = panels(
        name + "_b", operand, missing, found.lane, extent(grid.lane), outer, [own[d] for d in depth],
        grid.at, grid.panel, inside, group,
    )  # fmt: skip
    back: dict[Symbol, Size] = {own[d]: of_atom(d) for d in depth}
    value = load(made.value.args[0], [substitute(x, back) for x in made.value.args[1]], made.value.dtype)
    return value, replace(made, value=value)


def _of(guard: Truth) -> frozenset[Symbol]:
    return guard.symbols if isinstance(guard, Guard) else frozenset()


def readable(leaf: Expr) -> bool:
    """Can a tile read this operand from memory: a load, or a signed byte offset by 128?"""
    return leaf.kind == "load" or offset_load(leaf) is not None


def offset_load(leaf: Expr) -> Expr | None:
    """The load of a signed byte inside `uint8(int32(x) + 128)`."""
    if leaf.kind != "convert" or leaf.dtype != "uint8" or leaf.args[1].kind != "op" or leaf.args[1].args[0] != "add":
        return None
    wide, shift = leaf.args[1].args[2:]
    if shift.kind != "const" or shift.args[0] != 128 or wide.kind != "convert" or wide.args[0] != "int8":
        return None
    return wide.args[1] if wide.args[1].kind == "load" else None


def _offset(found: Contraction, kind: Intrinsic, name: str) -> tuple[Contraction, list[tuple[Buffer, Stage]]]:
    """Signed bytes times signed bytes as unsigned times signed, with what that adds subtracted again."""
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
    stage = Stage(buffer.name, tuple([Axis(s) for s in axes]), tuple([of_atom(s) for s in axes]), sums)
    body = op("mul", wide, a, factor)
    total = reduce("sum", found.depth, body)
    correction = load(buffer.name, [of_atom(s) for s in axes], wide)
    value = exchange(found.stage.value, found.total, op("sub", wide, total, correction))
    again = find(replace(found.stage, value=value))
    if again is None:
        raise InputError(f"stage {name} does not multiply as {kind.name} does")
    return again, [(buffer, stage)]


# ---- split of the depth


def split_depth(program: LoopProgram, name: str, decisions: ContractionDecisions) -> tuple[LoopProgram, str]:
    """Form parts of the sum in parallel in a stage of their own.

    before   out[i] = f(sum_k a[i, k])
    after    part[s, i] = sum_k a[i, n*s + k];    out[i] = f(sum_s part[s, i])

    Raises:
        InputError: the parts do not divide the outermost iterator of the sum.
    """
    found = analyse(program, program.stage(name), decisions.merge_columns, decisions.lane)
    if found is None:
        raise InputError(f"stage {name} holds no contraction that a register tile fits")
    first, count = found.depth[0], decisions.split
    if extent(first) % count or extent(first) == count:
        raise InputError(f"{count} parts do not divide the {extent(first)} steps of {first} in stage {name}")
    part = Symbol("s", 0, count - 1)
    inner = Symbol("?k", 0, extent(first) // count - 1)
    _, _, body = found.total.args
    body = body.substitute({first: of_atom(part) * extent(inner) + of_atom(inner)})
    axes = [part, *[a.symbol for a in found.stage.axes]]
    buffer = Buffer(name + "_p", tuple([extent(s) for s in axes]), found.total.dtype, "scratch")
    value = reduce("sum", [inner, *found.depth[1:]], body)
    partial = Stage(buffer.name, tuple([Axis(s) for s in axes]), tuple([of_atom(s) for s in axes]), value)
    term = load(buffer.name, [of_atom(s) for s in axes], found.total.dtype)
    final = with_total(found, reduce("sum", (part,), term))
    return _inserted(program, name, [buffer], [partial], final), buffer.name
