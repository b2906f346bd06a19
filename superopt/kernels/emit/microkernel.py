"""Code of a tensorized stage: tasks, loops over tiles, and one function per shape of tile.

A task decodes its number into the parallel axes, runs the serial ones as far as the guard lets them exist, and calls
the tile for the region that exists.  Tiles are full, or the one tail that each axis has, chosen by comparison.  Stages
placed in the task run before, tensorized ones as tiles of their own into local buffers.  With `block` steps of the
depth at a time the tiles of a task are visited once per block, and partial sums wait in the output.

A tile has accumulators over the depth loops, then the epilogue.  Per step the vectors of B are loaded once, each row's
element of A is broadcast and multiplied into its accumulators.  Addresses are sums of a part that the tile's arguments
give, one part per depth loop, and a constant; each part is added where its loop begins.  The expressions decide which
rows use which element of A and which vector of B.  Equal loads are one load, so axes of A, axes of B, and axes of both
need no separate cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from superopt.errors import InputError
from superopt.ir.expr import load
from superopt.ir.index import Guard, Poly, Size, Symbol, bounds, coefficient, of_atom, row_major, substitute
from superopt.kernels.emit import registers
from superopt.kernels.emit.memory import store
from superopt.kernels.emit.nest import Writer
from superopt.kernels.emit.options import DEFAULT, Knobs, Licence
from superopt.kernels.emit.plan import plan
from superopt.kernels.emit.registers import HeldValue, loaded, stored
from superopt.kernels.emit.values import Emitter, entered
from superopt.kernels.llvm.module import Function, Lines, Module, Value
from superopt.kernels.llvm.types import constant_mask, element_of, type_of, vector
from superopt.kernels.loops.contract import Contraction, exchange, find
from superopt.kernels.loops.program import reads
from superopt.kernels.loops.simplify import flatten, reciprocals
from superopt.kernels.loops.stage import Buffer, LoopProgram, Stage, extent
from superopt.kernels.schedule.intrinsics import Intrinsic, intrinsic
from superopt.kernels.schedule.tensorizing import offset_load

LEAST_ACROSS = 4  # rows from which a transpose is cheaper than scattered stores
_SUM = "sum of the tile"


def write_tiled(module: Module, name: str, program: LoopProgram, stage: Stage, licence: Licence = DEFAULT) -> int:
    """Write a tensorized stage as `void name(ptr bufs, i64 task)`, and the stages placed in it.

    Args:
        module: receives the functions.
        name: name of the function.
        program: gives the buffers.
        stage: a stage with a tile.
        licence: which inexact steps the epilogue may take.

    Returns:
        The number of tasks.

    Raises:
        InputError: the stage is not one that `tensorize` returns.
    """
    return _Tiled(module, name, program, stage, licence).write()


def tiles_of(
    module: Module, name: str, program: LoopProgram, stage: Stage, licence: Licence
) -> Callable[[Emitter], None]:
    """Return a function that writes a tensorized stage inside loops, as loops over calls of its tiles.

    Args:
        module: receives the tiles, each once.
        name: name of the tiles.
        program: gives the buffers.
        stage: a stage with a tile, in which no other stage is placed.
        licence: which inexact steps the epilogue may take.

    Returns:
        A function of an emitter that has bound the axes that the stage shares with its host, and knows local buffers.

    Raises:
        InputError: the stage is not one that `tensorize` returns, or holds others.
    """
    if program.placed(stage.buffer):
        raise InputError(f"stage {stage.buffer} is a tile inside loops, and holds stages")
    assert stage.at is not None
    shared = stage.axes[: stage.at[1]]
    used = {stage.buffer, *reads(stage)}
    tiled = _Tiled(module, name, program, stage, licence)
    tiled.tasks = [a.symbol for a in shared if a.extent > 1]
    tiled.outer = [*tiled.tasks, *tiled.serial]

    def write(em: Emitter) -> None:
        local = {b.name: em.pointers[b.name] for b in program.buffers if b.scope == "local" and b.name in used}
        tiled.tiles_in(em.f, {s: em.bindings[s].base for s in tiled.tasks}, local)

    return write


class _Tiled:
    def __init__(self, module: Module, symbol: str, program: LoopProgram, stage: Stage, licence: Licence) -> None:
        contraction, tile = find(stage), stage.tile
        if tile is None or contraction is None:
            raise InputError(f"stage {stage.buffer} is not tensorized")
        self.module, self.program, self.stage, self.symbol = module, program, stage, symbol
        self.licence, self.found, self.tile = licence, contraction, tile
        rows = {name for name, _ in tile.rows}
        self.tasks = [a.symbol for a in stage.axes if a.kind == "parallel"]
        self.serial = [a.symbol for a in stage.axes if a.kind == "serial"]
        self.outer = [*self.tasks, *self.serial]
        self.rows = [a.symbol for a in stage.axes if a.symbol.name in rows]
        self.lane = stage.axes[-1].symbol
        if self.lane.name != tile.lanes or len(self.tasks) + len(self.serial) + len(self.rows) + 1 != len(stage.axes):
            raise InputError(f"the axes of stage {stage.buffer} are not those of its tile")
        self.conditions = stage.guard.ordered if isinstance(stage.guard, Guard) else []
        self.inside = program.placed(stage.buffer)
        self.kind: Intrinsic = intrinsic(tile.intrinsic)
        self.steps = contraction.depth[:-1] if self.kind.group > 1 else contraction.depth
        self.block = int(stage.knob("block", 0))
        if not self.steps or self.block >= extent(self.steps[0]):
            self.block = 0
        if self.block and program.buffer(stage.buffer).dtype != self.kind.accumulator:
            raise InputError(f"stage {stage.buffer} is blocked along the depth, but its output holds no partial sums")
        self.tiles: dict[tuple[int, ...], str] = {}
        self.shapes = {b.name: b.shape for b in program.buffers}
        self.slots = {b.name: j for j, b in enumerate(program.pointers)}
        self.lanes = self.kind.lanes(module.cpu)
        self.type = type_of(self.kind.accumulator, self.lanes)
        self.place = row_major(stage.index, self.shapes[stage.buffer])
        self.contiguous = coefficient(self.place, self.lane) == 1
        self._read(contraction)

    def _read(self, found: Contraction) -> None:
        """Read the operands as loads, and record where they lie in memory."""
        name, kind = self.stage.buffer, self.kind
        a = kind.operand(found.a, "uint8" if kind.offset else kind.a)
        b = kind.operand(found.b, kind.b)
        if a is None or b is None:
            raise InputError(f"stage {name} does not multiply as {kind.name} does")
        signed = offset_load(a)
        self.flip = signed is not None
        self.a, self.b = signed if signed is not None else a, b
        if self.a.kind != "load" or self.b.kind != "load":
            raise InputError(f"stage {name}: a tile reads its operands from memory")
        places = [row_major(e.args[1], self.shapes[e.args[0]]) for e in (self.a, self.b)]
        if kind.group > 1 and coefficient(places[0], found.depth[-1]) != 1:
            raise InputError(f"stage {name}: the steps of A that one instruction takes are not next to each other")
        grouped: dict[Symbol, Size] = {found.depth[-1]: 0} if kind.group > 1 else {}
        self.place_a, self.place_b = [substitute(x, grouped) for x in places]
        if coefficient(self.place_b, self.lane) != kind.group:
            raise InputError(f"stage {name}: the lanes of B are not next to each other")
        if self.block and not self.contiguous:
            raise InputError(f"stage {name}: partial sums need lanes next to each other in the output")

    def write(self) -> int:
        f = self.module.function(self.symbol, [("ptr", "bufs"), ("i64", "task")])
        env: dict[Symbol, Value] = {}
        rest: Value = "%task"
        for s in reversed(self.tasks):
            env[s] = f.rem(rest, extent(s)) if s is not self.tasks[0] else rest
            rest = f.div(rest, extent(s))
        self.tiles_in(f, env, {})
        f.ret()
        count = 1
        for s in self.tasks:
            count *= extent(s)
        return count

    def tiles_in(self, f: Function, env: dict[Symbol, Value], local: dict[str, str]) -> None:
        """Write the tiles of one task, and before them the stages placed in it; `local`: buffers filled so far."""
        for s in self.inside:
            self._place(f, s, env, local)
        if not self.block:
            self._loops(f, 0, env, local, [])
            return
        first = self.steps[0]

        def pass_(k: Value, _: list[Value]) -> None:
            end = f.minimum(f.add(k, self.block), extent(first))
            flags = [("i64", k), ("i64", end), ("i1", f.less(k, 1)), ("i1", f.less(extent(first) - 1, end))]
            self._loops(f, 0, env, local, flags)

        f.for_(0, extent(first), self.block, pass_)

    def _place(self, f: Function, inner: Stage, env: dict[Symbol, Value], local: dict[str, str]) -> None:
        """Write a stage that the task runs before its tiles, and the local buffer that it fills."""
        assert inner.at is not None
        if inner.at[1] > len(self.tasks):
            raise InputError(f"stage {inner.buffer} stands inside the tiles of {self.stage.buffer}")
        buffer = self.program.buffer(inner.buffer)
        local[buffer.name] = f.room(max(prod(buffer.shape), 1), 64, stored(buffer.dtype))
        if inner.tile is not None:
            name = f"{self.symbol}_{buffer.name}"
            _Tiled(self.module, name, self.program, inner, self.licence).tiles_in(f, env, local)
            return
        pointers = dict(local)
        for number, other in enumerate(self.program.pointers):
            pointers[other.name] = f.load("ptr", f.element("%bufs", number, "ptr"), 8)
        nest = plan(self.program, inner, self.module.cpu, self.licence, inner.at[1])
        em = entered(f, self.program, pointers, self.licence, nest.knobs)
        for s in self.tasks[: inner.at[1]]:
            em = em.bind(s, env[s])
        Writer(nest, self.program).write(em)

    def _loops(
        self, f: Function, level: int, env: dict[Symbol, Value], local: dict[str, str], flags: list[tuple[str, Value]]
    ) -> None:
        """Write the serial axes, outermost first, each as far as it exists."""
        if level == len(self.serial):
            self._choose(f, env, local, flags, [], [*self.rows, self.lane])
            return
        s = self.serial[level]
        high: Value = extent(s)
        for p in self.conditions:
            step = coefficient(p, s)
            if step is None:
                raise InputError(f"the guard {p} of stage {self.stage.buffer} is not linear")
            if step < 0:
                inner: dict[Symbol, Size] = dict.fromkeys([*self.serial[level:], *self.rows, self.lane], 0)
                last = f.div(self._value(f, substitute(p, inner), env), -step)
                high = f.minimum(high, f.add(last, 1))

        def body(v: Value, _: list[Value]) -> None:
            self._loops(f, level + 1, env | {s: v}, local, flags)

        f.for_(0, high, 1, body)

    def _choose(
        self,
        f: Function,
        env: dict[Symbol, Value],
        local: dict[str, str],
        flags: list[tuple[str, Value]],
        sizes: Sequence[int],
        left: Sequence[Symbol],
    ) -> None:
        """Choose between full tile and tail along each axis, then call the tile."""
        if not left:
            self._call(f, env, local, flags, tuple(sizes))
            return
        axis = left[0]
        whole = extent(axis)
        rest, condition = self._tail(axis)
        if condition is None or not rest:
            self._choose(f, env, local, flags, [*sizes, whole], left[1:])
            return
        others: dict[Symbol, Size] = dict.fromkeys([*self.rows, self.lane], 0)
        at = substitute(condition, others | {axis: whole - 1})
        fits = f.less(-1, self._value(f, at, env))
        f.if_(
            fits,
            lambda: self._choose(f, env, local, flags, [*sizes, whole], left[1:]),
            lambda: self._choose(f, env, local, flags, [*sizes, rest], left[1:]),
        )

    def _tail(self, axis: Symbol) -> tuple[int, Poly | None]:
        """Return the size of the last tile along an axis, 0 where it is full, and the condition that identifies it."""
        whole = extent(axis)
        for p in self.conditions:
            if axis in p.symbols:
                others = [c for m, c in p.terms if m and m != (axis,)]
                if coefficient(p, axis) != -1 or any(c % whole for c in others):
                    raise InputError(f"the guard {p} of stage {self.stage.buffer} is not that of a tile")
                return (p.constant + 1) % whole, p
        return 0, None

    def _value(self, f: Function, x: Size, env: dict[Symbol, Value]) -> Value:
        if isinstance(x, int):
            return x
        total: Value = 0
        for mono, c in x.terms:
            if not mono:
                total = f.add(total, c)
                continue
            atom = mono[0]
            if len(mono) > 1 or not isinstance(atom, Symbol):
                raise InputError(f"the guard of stage {self.stage.buffer} is not linear: {x}")
            total = f.add(total, f.mul(env[atom], c))
        return total

    def _call(
        self,
        f: Function,
        env: dict[Symbol, Value],
        local: dict[str, str],
        flags: list[tuple[str, Value]],
        sizes: tuple[int, ...],
    ) -> None:
        if sizes not in self.tiles:
            name = self.tiles[sizes] = f"{self.symbol}_tile_" + "x".join(map(str, sizes))
            _Tile(self, name, sizes, tuple(local)).write()
        args = [("ptr", "%bufs"), *[("i64", env[s]) for s in self.outer], *[("ptr", p) for p in local.values()], *flags]
        f.effect(f"call void @{self.tiles[sizes]}({', '.join([f'{t} {v}' for t, v in args])})")


@dataclass(frozen=True, slots=True)
class _Point:
    """One vector of results: its position, and how many of its lanes exist.

    Attributes:
        env: values of the axes of the stage; that of the axis along the vector is the first element's.
        total: the sum, a vector.
        lanes: number of lanes of the vector.
        valid: number of lanes that exist.
    """

    env: dict[Symbol, Value]
    total: str
    lanes: int
    valid: int


@dataclass(slots=True)
class _Level:
    """A loop of a tile: the place where the addresses that it fixes are computed, and those known so far."""

    hoist: Lines
    known: dict[tuple[object, ...], str] = field(default_factory=dict)


class _Tile:
    """One function for one shape of tile: `void name(ptr bufs, i64 axes.., ptr locals.. [, i64 from, i64 to, ...])`."""

    def __init__(self, of: _Tiled, name: str, sizes: Sequence[int], local: Sequence[str]) -> None:
        self.of = of
        args = [("ptr", "bufs"), *[("i64", s.name) for s in of.outer], *[("ptr", x) for x in local]]
        if of.block:
            args += [("i64", "from"), ("i64", "to"), ("i1", "first"), ("i1", "last")]
        self.f = f = of.module.function(name, args, attributes="noinline nounwind")
        self.values: dict[Symbol, tuple[Value, int]] = {s: (f"%{s.name}", 0) for s in of.outer}
        self.levels: list[_Level] = []
        self.base = {x: f"%{x}" for x in local}
        for buffer in (of.a.args[0], of.b.args[0], of.stage.buffer):
            if buffer not in self.base:
                slot = f.element("%bufs", of.slots[buffer], "ptr")
                self.base[buffer] = f.load("ptr", slot, 8)
        *row_sizes, self.columns = sizes
        self.positions = list(itertools.product(*[range(n) for n in row_sizes]))
        self.vectors = -(-self.columns // of.lanes)

    def write(self) -> None:
        """Write the sums, then the epilogue."""
        self._open()
        self._finish(self._loop(0, self._start()))
        self.f.ret()

    # ---- addresses

    def _open(self) -> None:
        hoist: Lines = []
        self.f.lines.append(hoist)
        self.levels.append(_Level(hoist))

    def _pointer(self, buffer: str, place: Size) -> str:
        """Return the address of an element; each part of it is added at the loop that fixes it."""
        f = self.f
        unit = type_of(self.of.program.buffer(buffer).dtype, stored=True)
        pointer = self.base[buffer]
        known: tuple[object, ...] = ()
        terms = [(m, c) for m, c in (place.terms if not isinstance(place, int) else ()) if m]
        for level, scope in enumerate(self.levels):
            mine = [(m[0], c) for m, c in terms if len(m) == 1 and self._level(m[0], place) == level]
            if not mine:
                continue
            known = (*known, *mine)
            key = (buffer, known)
            if key not in scope.known:
                with f.writing(scope.hoist):
                    total: Value = 0
                    for s, c in mine:
                        assert isinstance(s, Symbol)
                        total = f.add(total, f.mul(self.values[s][0], c))
                    scope.known[key] = f.element(pointer, total, unit)
            pointer = scope.known[key]
        constant = place if isinstance(place, int) else place.constant
        return f.element(pointer, constant, unit)

    def _level(self, atom: object, place: Size) -> int:
        if not isinstance(atom, Symbol):
            raise InputError(f"stage {self.of.stage.buffer}: a tile reads at {place}, which is not linear")
        return self.values[atom][1]

    # ---- the sum

    def _start(self) -> list[Value]:
        count = len(self.positions) * self.vectors
        if not self.of.block:
            return ["zeroinitializer"] * count
        f = self.f
        first = f.broadcast("%first", "i1", self.of.lanes)
        again = f.value(f"xor {vector('i1', self.of.lanes)} {first}, splat (i1 true)")
        values: list[Value] = []
        for position in self.positions:
            for j in range(self.vectors):
                mask, n = again, self._valid(j)
                if n < self.of.lanes:
                    mask = f.value(f"and {vector('i1', self.of.lanes)} {again}, {constant_mask(n, self.of.lanes)}")
                values.append(f.masked_load(self.of.type, self._result(position, j), mask))
        return values

    def _loop(self, level: int, accs: list[Value]) -> list[Value]:
        """Write the depth loops from this one on."""
        if level == len(self.of.steps):
            return self._step({}, accs)
        f, s = self.f, self.of.steps[level]
        low: Value = 0
        high: Value = extent(s)
        if level == 0 and self.of.block:
            low, high = "%from", "%to"
        if level == 0:
            high = f.maximum(self._limited(s, high), low)  # a sum may end before a block of its steps begins
        innermost = level == len(self.of.steps) - 1
        unroll = min(self.of.tile.unroll, extent(s)) if innermost else 1

        def run(start: Value, end: Value, times: int, values: list[Value]) -> list[Value]:
            def body(v: Value, current: list[Value]) -> list[Value]:
                self._open()
                self.values[s] = v, len(self.levels) - 1
                for w in range(times):
                    inner = {s: of_atom(s) + w}
                    current = self._step(inner, current) if innermost else self._loop(level + 1, current)
                self.levels.pop()
                return current

            return f.for_(start, end, times, body, [(self.of.type, x) for x in values])

        if unroll == 1:
            return run(low, high, 1, accs)
        length = f.sub(high, low)
        whole = f.mul(f.div(length, unroll), unroll)
        middle = f.add(low, whole)
        accs = run(low, middle, unroll, accs)
        return run(middle, high, 1, accs) if not (isinstance(length, int) and length == whole) else accs

    def _limited(self, s: Symbol, high: Value) -> Value:
        """Return the end of the outermost depth loop where a condition on the product ends it."""
        f = self.f
        sides = {p for g in (self.of.found.guard_a, self.of.found.guard_b) if isinstance(g, Guard) for p in g.ordered}
        for p in sorted(sides, key=str):
            rest = p + of_atom(s)
            if isinstance(rest, int):
                high = f.minimum(high, max(rest + 1, 0))
                continue
            if coefficient(p, s) != -1 or not rest.symbols <= set(self.of.outer):
                raise InputError(f"stage {self.of.stage.buffer}: the tile cannot end its sum where {p} >= 0 ends")
            last: Value = rest.constant
            for t in sorted(rest.symbols, key=lambda t: t.name):
                last = f.add(last, f.mul(f"%{t.name}", coefficient(rest, t) or 0))
            high = f.minimum(high, f.maximum(f.add(last, 1), 0))
        return high

    def _step(self, shift: dict[Symbol, Size], accs: list[Value]) -> list[Value]:
        """Write one step of the sum for all accumulators; return them."""
        f, out = self.f, list(accs)
        vectors: dict[Size, str] = {}
        scalars: dict[Size, str] = {}
        ahead = int(self.of.stage.knob("prefetch", 0))
        for q, position in enumerate(self.positions):
            at: dict[Symbol, Size] = {**shift, **dict(zip(self.of.rows, position, strict=True))}
            a = substitute(self.of.place_a, at)
            places = [substitute(self.of.place_b, {**at, self.of.lane: j * self.of.lanes}) for j in range(self.vectors)]
            for j, b in enumerate(places):
                if b not in vectors:
                    vectors[b] = self._vector(b, j)
                    if ahead and self.of.steps:
                        step = coefficient(b, self.of.steps[-1]) or 0
                        f.prefetch(self._pointer(self.of.b.args[0], b + step * ahead))
            if a not in scalars:
                scalars[a] = self._scalar(a)
            for j, b in enumerate(places):
                k = q * self.vectors + j
                out[k] = self.of.kind.step(f, str(out[k]), scalars[a], vectors[b], self.of.lanes)
        return out

    def _scalar(self, place: Size) -> str:
        """Load an element of A into all lanes."""
        f, dtype = self.f, self.of.a.dtype
        pointer = self._pointer(self.of.a.args[0], place)
        if self.of.kind.group > 1:
            x = f.load("i32", pointer, 1)
            if self.of.flip:
                x = f.value(f"xor i32 {x}, {-0x7F7F7F80}")
            whole = f.broadcast(x, "i32", self.of.lanes)
            bytes_ = vector("i8", self.of.lanes * self.of.kind.group)
            return f.value(f"bitcast {vector('i32', self.of.lanes)} {whole} to {bytes_}")
        if dtype == "bfloat16" and self.of.kind.accumulator == "float32":
            return f.broadcast(loaded(f, f.load("i16", pointer), dtype, 0), "float", self.of.lanes)
        kind = type_of(dtype)
        return f.broadcast(f.load(kind, pointer), kind, self.of.lanes)

    def _vector(self, place: Size, j: int) -> str:
        """Load a vector of B."""
        f, group, dtype = self.f, self.of.kind.group, self.of.b.dtype
        pointer = self._pointer(self.of.b.args[0], place)
        if group > 1:
            return f.load(vector("i8", self.of.lanes * group), pointer, 1)
        valid = self._valid(j)
        masked = valid < self.of.lanes and not self._padded()
        mask = constant_mask(valid, self.of.lanes)
        if dtype == "bfloat16" and self.of.kind.accumulator == "float32":
            short = vector("i16", self.of.lanes)
            x = f.masked_load(short, pointer, mask) if masked else f.load(short, pointer)
            return loaded(f, x, dtype, self.of.lanes)
        kind = type_of(dtype, self.of.lanes)
        return f.masked_load(kind, pointer, mask) if masked else f.load(kind, pointer)

    def _padded(self) -> bool:
        """Whether all lanes of a panel are in memory."""
        shape = self.of.shapes[self.of.b.args[0]]
        return all(
            bounds(x)[1] < n
            for x, n in zip(self.of.b.args[1], shape, strict=True)
            if not isinstance(x, int) and self.of.lane in x.symbols
        )

    def _valid(self, j: int) -> int:
        return min(self.of.lanes, self.columns - j * self.of.lanes)

    # ---- results

    def _result(self, position: Sequence[int], j: int) -> str:
        at: dict[Symbol, Size] = {**dict(zip(self.of.rows, position, strict=True)), self.of.lane: j * self.of.lanes}
        return self._pointer(self.of.stage.buffer, substitute(self.of.place, at))

    def _finish(self, accs: list[Value]) -> None:
        plain = self.of.stage.value is self.of.found.total and self.of.contiguous
        if plain:
            self._plain(accs)
        elif self.of.block:
            self.f.if_("%last", lambda: self._epilogue(accs), lambda: self._plain(accs))
        else:
            self._epilogue(accs)

    def _plain(self, accs: Sequence[Value]) -> None:
        """Store the sums without an epilogue."""
        for (position, j), x in zip(itertools.product(self.positions, range(self.vectors)), accs, strict=True):
            pointer, n = self._result(position, j), self._valid(j)
            if n < self.of.lanes:
                self.f.masked_store(self.of.type, x, pointer, constant_mask(n, self.of.lanes))
            else:
                self.f.store(self.of.type, x, pointer)

    def _epilogue(self, accs: Sequence[Value]) -> None:
        outer: dict[Symbol, Value] = {s: f"%{s.name}" for s in self.of.outer}
        sums = dict(zip(itertools.product(self.positions, range(self.vectors)), map(str, accs), strict=True))
        along = self._across()
        points: list[_Point] = []
        if along is None:
            for (position, j), x in sums.items():
                env = outer | dict(zip(self.of.rows, position, strict=True)) | {self.of.lane: j * self.of.lanes}
                points.append(_Point(env, x, self.of.lanes, self._valid(j)))
        else:
            points = self._transposed(sums, outer, along)
        self._stored(along or self.of.lane, points)

    def _across(self) -> Symbol | None:
        """Return an axis of rows that is contiguous in the output, where the lanes are not; None otherwise."""
        if self.of.contiguous:
            return None
        for j, s in enumerate(self.of.rows):
            count = len({position[j] for position in self.positions})
            if coefficient(self.of.place, s) == 1 and LEAST_ACROSS <= count <= self.of.lanes:
                return s
        return None

    def _transposed(
        self, sums: dict[tuple[tuple[int, ...], int], str], outer: dict[Symbol, Value], along: Symbol
    ) -> list[_Point]:
        """Transpose the tile in registers so that vectors lie along an axis of rows."""
        at = self.of.rows.index(along)
        groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for position in self.positions:
            groups.setdefault((*position[:at], *position[at + 1 :]), []).append(position)
        others = [s for s in self.of.rows if s is not along]
        points: list[_Point] = []
        for j in range(self.vectors):
            for rest, members in groups.items():
                rows = [sums[position, j] for position in members]
                rows += ["poison"] * (self.of.lanes - len(rows))
                columns = registers.square(self.f, rows, element_of(self.of.type), self.of.lanes)
                for lane in range(self._valid(j)):
                    env = (
                        outer
                        | dict(zip(others, rest, strict=True))
                        | {self.of.lane: j * self.of.lanes + lane, along: 0}
                    )
                    points.append(_Point(env, columns[lane], self.of.lanes, len(members)))
        return points

    def _stored(self, lane: Symbol, points: Sequence[_Point]) -> None:
        """Store the stage's value for vectors along an axis: all of one width, on the same outer axes.

        The sum is replaced by a load of a buffer that does not exist, whose value the emitter is given for each vector.
        The rest (bias, scale, activation, residual, conversion) is written by the emitter like any other stage.  Values
        that depend on the lane alone are written once for all rows.
        """
        of, f = self.of, self.f
        total, buffer = of.found.total, of.stage.buffer
        leaf = load(_SUM, (of_atom(lane),), total.dtype)
        held = Buffer(_SUM, (1 << 30,), total.dtype, "local")
        program = replace(of.program, buffers=(*of.program.buffers, held))
        value = flatten(exchange(of.stage.value, total, leaf), {b.name: b for b in program.buffers})
        if of.licence.reciprocal:
            value = reciprocals(value, lane)
        pointers = {x: p for x, p in self.base.items() if x not in of.slots}
        for name, number in of.slots.items():
            pointers[name] = f.load("ptr", f.element("%bufs", number, "ptr"), 8)
        em, lanes = entered(f, program, pointers, of.licence, Knobs()), points[0].lanes
        inner = [s for s in points[0].env if isinstance(points[0].env[s], int)]
        for s, v in points[0].env.items():
            if s not in inner:
                em = em.bind(s, v)
        rows = [s for s in inner if s != lane]
        for first in sorted({int(p.env[lane]) for p in points}):
            group = [p for p in points if p.env[lane] == first]
            column = em.deeper().bind(lane, first)
            tail = group[0].valid if group[0].valid < lanes else None
            column = column.within(column.scope.along(lane, lanes, tail))
            for point in group:
                here = column.deeper()
                for s in rows:
                    here = here.bind(s, point.env[s])
                here.levels[-1].memo[here.scope.key(leaf)] = HeldValue(point.total, True, here.top)
                here.prepare(value)
                store(here, buffer, of.program.buffer(buffer).dtype, of.place, here.value(value), here.mask(False))
