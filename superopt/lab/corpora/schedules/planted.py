"""Wrong schedules, one or more for every obligation: each must be refuted with a witness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from superopt.ir.expr import Expr, const, convert, load, op, reduce, subexpressions, where, with_loads
from superopt.ir.index import Size, Symbol, nonnegative, of_atom, substitute, substitute_guard
from superopt.kernels.loops.contract import exchange
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage
from superopt.kernels.schedule.tensorizing import ContractionDecisions, tiled
from superopt.kernels.schedule.trace import apply
from superopt.lab.corpora.schedules.examples import CPU, bytes_, dense, rows, stencil
from verifier.schedules.verdict import ALIAS, BOUNDS, LAYOUT, ONCE, ORDER, OVERFLOW, VALUE


@dataclass(frozen=True, slots=True)
class Planted:
    """A wrong schedule, and the obligation that it breaks."""

    name: str
    obligation: str
    before: LoopProgram
    after: LoopProgram
    aliases: tuple[tuple[str, str], ...] = ()


def planted() -> Iterator[Planted]:
    """All wrong schedules."""
    d = dense(37, 50, 70)
    tiles = apply(d, [["split", "out0", "o0", [8]], ["parallel", "out0", "o0_0"]])
    i, j = (of_atom(a.symbol) for a in tiles.stage("out0").axes[:2])
    yield Planted("tiles overlap", LAYOUT, d, _index(tiles, "out0", lambda x: [7 * i + j, *x[1:]]))
    yield Planted("tasks race", ORDER, d, _index(tiles, "out0", lambda x: [7 * i + j, *x[1:]]))
    yield Planted("a tail is missing", ONCE, d, _fewer(tiles, "out0", 0))
    yield Planted("a tail is not guarded", BOUNDS, d, _stage(tiles, "out0", guard=True))
    yield Planted("iterations are left out", ONCE, d, _stage(tiles, "out0", guard=nonnegative(35 - 8 * i - j)))
    yield from _sums(d)
    yield from _packing(d)
    yield from _intrinsics(d)
    yield from _placement()
    yield from _narrow()
    yield from _unrounded()
    yield from _prefixes()
    yield from _in_place()


def _sums(d: LoopProgram) -> Iterator[Planted]:
    parts = apply(d, [["split_reduction", "out0", 0, 0, [8]]])
    total = _sum(parts.stage("out0").value)
    body = total.args[2]
    bare = reduce("sum", total.args[1], body.args[1])
    yield Planted("the tail of a sum is not guarded", BOUNDS, d, _value(parts, "out0", total, bare))
    k = total.args[1]
    shorter = [Symbol(s.name, 0, s.high - (n == 0)) for n, s in enumerate(k)]
    mapping: dict[Symbol, Size] = {s: of_atom(t) for s, t in zip(k, shorter, strict=True)}
    less = reduce("sum", shorter, body.substitute(mapping))
    yield Planted("a part of a sum is left out", VALUE, d, _value(parts, "out0", total, less))
    added = apply(d, [["materialize", "out0", "reduce:0", "acc"], ["decompose_reduction", "acc", [0], 0]])
    axes = added.stage("acc").axes
    racing = _stage(added, "acc", axes=(Loop(axes[0].symbol, "parallel"), *axes[1:]))
    yield Planted("tasks add to one element", ORDER, d, racing)


def _packing(d: LoopProgram) -> Iterator[Planted]:
    steps = [
        ["cache_read", "out0", "w", "packed"],
        ["transform_layout", "packed", [["split", 1, 16], ["permute", [1, 0, 2]]]],
    ]
    packed = apply(d, steps)

    def swapped(e: Expr) -> Expr | None:
        if e.args[0] != "packed":
            return None
        p, k, l = e.args[1]
        return load("packed", (p, k, 15 - l), e.dtype)

    yield Planted("a packed operand is read in another order", VALUE, d, _rebuilt(packed, "out0", swapped))
    narrow = replace(packed.buffer("packed"), shape=(5, 50, 15))
    yield Planted("a layout is too small", BOUNDS, d, _buffer(packed, narrow))

    def beyond(e: Expr) -> Expr | None:
        return (
            load("packed", (e.args[1][0], e.args[1][1] + 1, e.args[1][2]), e.dtype) if e.args[0] == "packed" else None
        )

    yield Planted("a packed operand is read beyond its end", BOUNDS, d, _rebuilt(packed, "out0", beyond))
    yield Planted("a packed operand is read where it is not written", ORDER, d, _fewer(packed, "packed", 1))


def _intrinsics(d: LoopProgram) -> Iterator[Planted]:
    made = tiled(d, "out0", ContractionDecisions(rows=(("o0", 6),), vectors=2, pack_a="phase"), CPU)
    stage = made.stage("out0")
    assert stage.tile is not None
    lane = stage.axis(stage.tile.lanes).symbol

    def moved(e: Expr) -> Expr | None:
        if e.args[0] != "out0_a":
            return None
        return load("out0_a", (e.args[1][0], (e.args[1][1] + of_atom(lane)) % 50), e.dtype)

    yield Planted("an intrinsic broadcasts what depends on the lane", VALUE, d, _rebuilt(made, "out0", moved))

    def across(e: Expr) -> Expr | None:
        if e.args[0] != "out0_b":
            return None
        *first, l = e.args[1]
        return load("out0_b", (*first, 31 - l), e.dtype)

    yield Planted("an intrinsic reads lanes backwards", VALUE, d, _rebuilt(made, "out0", across))
    other = _stage(made, "out0", tile=replace(stage.tile, intrinsic="fma_f64"))
    yield Planted("an intrinsic of another type", VALUE, d, other)
    q = bytes_(10, 24, 40, "uint8", "int8")
    bytes_tiled = tiled(q, "out0", ContractionDecisions("dot_u8s8", rows=(("o0", 2),), vectors=1, pack_a="phase"), CPU)
    tile = bytes_tiled.stage("out0").tile
    assert tile is not None
    signs = _stage(bytes_tiled, "out0", tile=replace(tile, intrinsic="dot_s8u8"))
    yield Planted("an intrinsic with its operands exchanged", VALUE, q, signs)
    yield Planted("a vector load leaves its buffer", BOUNDS, q, _unpadded(bytes_tiled))


def _unpadded(tiled: LoopProgram) -> LoopProgram:
    """The byte product with B in [depth / 4, columns, 4], whose last vector is not padded."""
    k, n, g = Symbol("k", 0, 5), Symbol("n", 0, 39), Symbol("g", 0, 3)
    depth, column = 4 * of_atom(k) + of_atom(g), of_atom(n)
    index: tuple[Size, ...] = (of_atom(k), column, of_atom(g))
    copy = Stage("out0_b", (Loop(k), Loop(n), Loop(g)), index, load("w", (depth, column), "int8"))

    def read(e: Expr) -> Expr | None:
        if e.args[0] != "out0_b":
            return None
        panel, step, lane, part = e.args[1]
        return load("out0_b", (step, 16 * panel + lane, part), e.dtype)

    program = _buffer(tiled, replace(tiled.buffer("out0_b"), shape=(6, 40, 4)))
    stages = tuple([copy if s.buffer == "out0_b" else s for s in program.stages])
    return _rebuilt(replace(program, stages=stages), "out0", read)


def _placement() -> Iterator[Planted]:
    s = stencil(9, 14)
    placed = apply(s, [["split", "out0", "o0", [4]], ["compute_at", "s0", "out0", 1]])
    yield Planted("a stage is read before it has run", ORDER, s, replace(s, stages=s.stages[::-1]))
    yield Planted("a region is too small", ORDER, s, _fewer(placed, "s0", -1))
    r = rows(20, 33)
    peaks = apply(r, [["materialize", "out0", "reduce:0", "peak"], ["compute_at", "peak", "out0", 1]])

    def wrong(e: Expr) -> Expr | None:
        return load("x", ((e.args[1][0] + 1) % 20, e.args[1][1]), e.dtype) if e.args[0] == "x" else None

    yield Planted("a row is that of another iteration", VALUE, r, _rebuilt(peaks, "peak", wrong))


def _narrow() -> Iterator[Planted]:
    q = bytes_(4, 300, 5, "uint8", "int8")
    stage = q.stage("out0")
    total = _sum(stage.value)
    body = total.args[2]
    short = op("mul", "int16", *[convert(x.args[1], x.args[0], "int16") for x in body.operands])
    value = convert(reduce("sum", total.args[1], short), "int16", "int32")
    yield Planted("bytes are summed in 16 bits", OVERFLOW, q, _stage(q, "out0", value=value))


def _unrounded() -> Iterator[Planted]:
    r = rows(6, 9)
    stage = r.stage("out0")
    whole = convert(convert(stage.value, "float32", "int32"), "int32", "float32")
    floor = _stage(r, "out0", value=whole)
    yield Planted("a value is not rounded to an integer any more", VALUE, floor, r)


def _prefixes() -> Iterator[Planted]:
    i, r = Symbol("o0", 0, 29), Symbol("r0", 0, 29)
    guard = nonnegative(of_atom(i) - of_atom(r))
    term = load("x", (of_atom(r),), "float32")
    value = reduce("sum", (r,), where(guard, lambda: term, lambda: const(0, "float32")))
    buffers = (Buffer("x", (30,), "float32", "input"), Buffer("out0", (30,), "float32", "output"))
    program = LoopProgram("prefix", buffers, (Stage("out0", (Loop(i),), (of_atom(i),), value),))
    cut = apply(program, [["split_prefix", "out0", 0, 8, "totals"]])
    stage = cut.stage("out0")
    before = stage.value.operands[0]
    (held,) = before.args[2].args[0].ordered
    for by, name in ((-1, "the block before is left out of a prefix"), (1, "a block is counted twice in a prefix")):
        wrong = nonnegative(held + by)
        body = where(wrong, lambda: before.args[2].args[1], lambda: before.args[2].args[2])
        yield Planted(name, VALUE, program, _value(cut, "out0", before, reduce("sum", before.args[1], body)))


def _in_place() -> Iterator[Planted]:
    x, out = Buffer("x", (8, 8), "float32", "input"), Buffer("out0", (8, 8), "float32", "output")
    i, j = Symbol("i", 0, 7), Symbol("j", 0, 7)
    a, b = of_atom(i), of_atom(j)
    axes = (Loop(i), Loop(j))
    turned = Stage("out0", axes, (a, b), op("exp", "float32", load("x", (b, a), "float32")))
    program = LoopProgram("transposed", (x, out), (turned,))
    yield Planted("a transposition in place", ALIAS, program, program, (("out0", "x"),))


# ---- changes


def _sum(value: Expr) -> Expr:
    return next(e for e in reversed(subexpressions(value)) if e.kind == "reduce")


def _stage(program: LoopProgram, name: str, **fields: object) -> LoopProgram:
    stages = [replace(s, **fields) if s.buffer == name else s for s in program.stages]  # pyright: ignore[reportArgumentType]
    return replace(program, stages=tuple(stages))


def _buffer(program: LoopProgram, new: Buffer) -> LoopProgram:
    return replace(program, buffers=tuple([new if b.name == new.name else b for b in program.buffers]))


def _index(program: LoopProgram, name: str, change: Callable[[Sequence[Size]], Sequence[Size]]) -> LoopProgram:
    return _stage(program, name, index=tuple(change(program.stage(name).index)))


def _rebuilt(program: LoopProgram, name: str, read: Callable[[Expr], Expr | None]) -> LoopProgram:
    return _stage(program, name, value=with_loads(program.stage(name).value, read))


def _value(program: LoopProgram, name: str, old: Expr, new: Expr) -> LoopProgram:
    return _stage(program, name, value=exchange(program.stage(name).value, old, new))


def _fewer(program: LoopProgram, name: str, axis: int) -> LoopProgram:
    """The program with one iteration of an axis left out."""
    stage = program.stage(name)
    old = stage.axes[axis]
    new = Loop(Symbol(old.symbol.name, 0, old.extent - 2), old.kind)
    mapping: dict[Symbol, Size] = {old.symbol: of_atom(new.symbol)}
    axes = tuple([new if a is old else a for a in stage.axes])
    guard = substitute_guard(stage.guard, mapping)
    index = tuple([substitute(x, mapping) for x in stage.index])
    return _stage(program, name, axes=axes, index=index, guard=guard, value=stage.value.substitute(mapping))
