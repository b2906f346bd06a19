"""The register tile: accumulators over the depth loops, then the epilogue.

Per step: the vectors of B are loaded once, each row's element of A is broadcast and multiplied into its accumulators.
Addresses are sums of a part that the tile's arguments give, one part per depth loop, and a constant; each part is
added where its loop begins.  Which rows see which element of A, and which vector of B, follows from the expressions:
equal loads are one load, so that axes of A, axes of B, and axes of both are no cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from superopt.errors import InputError
from superopt.ir.index import Guard, Size, Symbol, bounds, coefficient, of_atom, row_major, substitute
from superopt.kernels.emit.licence import Licence
from superopt.kernels.emit.microkernel_epilogue import Point, epilogue
from superopt.kernels.emit.transpose import square
from superopt.kernels.llvm.module import Lines, Module, Value, constant_mask, element_of, type_of, vector
from superopt.kernels.loops.contract import Contraction, extent
from superopt.kernels.loops.stage import LoopProgram, Stage
from superopt.kernels.schedule.intrinsics import Intrinsic, intrinsic
from superopt.kernels.schedule.register_tile import offset_load

LEAST_ACROSS = 4  # rows from which a transpose is cheaper than scattered stores


@dataclass(slots=True)
class _Level:
    """A loop: where addresses that it fixes are computed, and those known so far."""

    hoist: Lines
    known: dict[tuple[object, ...], str] = field(default_factory=dict)


class TileWriter:
    """Writes functions for tiles of one stage."""

    def __init__(
        self,
        program: LoopProgram,
        stage: Stage,
        found: Contraction,
        outer: Sequence[Symbol],
        rows: Sequence[Symbol],
        lane: Symbol,
        licence: Licence,
    ) -> None:
        assert stage.tile is not None
        self.program, self.stage, self.found, self.tile = program, stage, found, stage.tile
        self.outer, self.rows, self.lane, self.licence = outer, rows, lane, licence
        self.kind: Intrinsic = intrinsic(stage.tile.intrinsic)
        self.shapes = {b.name: b.shape for b in program.buffers}
        self.slots = {b.name: j for j, b in enumerate(program.pointers)}
        self.steps = list(found.depth[:-1] if self.kind.group > 1 else found.depth)
        a = self.kind.operand(found.a, "uint8" if self.kind.offset else self.kind.a)
        b = self.kind.operand(found.b, self.kind.b)
        if a is None or b is None:
            raise InputError(f"stage {stage.buffer} does not multiply as {self.kind.name} does")
        signed = offset_load(a)
        self.flip = signed is not None
        self.a, self.b = signed if signed is not None else a, b
        if self.a.kind != "load" or self.b.kind != "load":
            raise InputError(f"stage {stage.buffer}: a tile reads its operands from memory")
        if (
            self.kind.group > 1
            and coefficient(row_major(self.a.args[1], self.shapes[self.a.args[0]]), found.depth[-1]) != 1
        ):
            raise InputError(
                f"stage {stage.buffer}: the steps of A that one instruction takes are not next to each other"
            )
        grouped: dict[Symbol, Size] = {found.depth[-1]: 0} if self.kind.group > 1 else {}
        self.place_a, self.place_b = [
            substitute(row_major(e.args[1], self.shapes[e.args[0]]), grouped) for e in (self.a, self.b)
        ]
        if coefficient(self.place_b, lane) != self.kind.group:
            raise InputError(f"stage {stage.buffer}: the lanes of B are not next to each other")

    def write(self, module: Module, name: str, sizes: Sequence[int], blocked: bool, local: Sequence[str]) -> None:
        """One function `void name(ptr bufs, i64 axes.., ptr locals.. [, i64 from, i64 to, i1 first, i1 last])`."""
        args = [("ptr", "bufs"), *[("i64", s.name) for s in self.outer], *[("ptr", x) for x in local]]
        if blocked:
            args += [("i64", "from"), ("i64", "to"), ("i1", "first"), ("i1", "last")]
        f = module.function(name, args, attributes="noinline nounwind")
        self.f, self.blocked = f, blocked
        place = row_major(self.stage.index, self.shapes[self.stage.buffer])
        self.contiguous = coefficient(place, self.lane) == 1
        if blocked and not self.contiguous:
            raise InputError(f"stage {self.stage.buffer}: partial sums need lanes next to each other in the output")
        self.lanes = self.kind.lanes(module.cpu)
        self.type = type_of(self.kind.accumulator, self.lanes)
        self.values: dict[Symbol, tuple[Value, int]] = {s: (f"%{s.name}", 0) for s in self.outer}
        self.levels: list[_Level] = []
        self.base = {x: f"%{x}" for x in local}
        for buffer in (self.a.args[0], self.b.args[0], self.stage.buffer):
            if buffer not in self.base:
                slot = f.element("%bufs", self.slots[buffer], "ptr")
                self.base[buffer] = f.load("ptr", slot, 8)
        self._open()
        *row_sizes, self.columns = sizes
        self.positions = list(itertools.product(*[range(n) for n in row_sizes]))
        self.vectors = -(-self.columns // self.lanes)
        accs = self._start()
        accs = self._loop(0, accs)
        self._finish(accs)
        f.ret()

    # ---- addresses

    def _open(self) -> None:
        hoist: Lines = []
        self.f.lines.append(hoist)
        self.levels.append(_Level(hoist))

    def _pointer(self, buffer: str, place: Size) -> str:
        """The address of an element, each part added at the loop that fixes it."""
        f = self.f
        unit = type_of(self.program.buffer(buffer).dtype, stored=True)
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
                lines, f.lines = f.lines, scope.hoist
                total: Value = 0
                for s, c in mine:
                    assert isinstance(s, Symbol)
                    total = f.add(total, f.mul(self.values[s][0], c))
                scope.known[key] = f.element(pointer, total, unit)
                f.lines = lines
            pointer = scope.known[key]
        constant = place if isinstance(place, int) else place.constant
        return f.element(pointer, constant, unit)

    def _level(self, atom: object, place: Size) -> int:
        if not isinstance(atom, Symbol):
            raise InputError(f"stage {self.stage.buffer}: a tile reads at {place}, which is not linear")
        return self.values[atom][1]

    # ---- the sum

    def _start(self) -> list[Value]:
        count = len(self.positions) * self.vectors
        if not self.blocked:
            return ["zeroinitializer"] * count
        f = self.f
        first = f.broadcast("%first", "i1", self.lanes)
        again = f.value(f"xor {vector('i1', self.lanes)} {first}, splat (i1 true)")
        found: list[Value] = []
        for position in self.positions:
            for j in range(self.vectors):
                mask, n = again, self._valid(j)
                if n < self.lanes:
                    mask = f.value(f"and {vector('i1', self.lanes)} {again}, {constant_mask(n, self.lanes)}")
                found.append(f.masked_load(self.type, self._result(position, j), mask))
        return found

    def _loop(self, level: int, accs: list[Value]) -> list[Value]:
        """Depth loops from this one on."""
        if level == len(self.steps):
            return self._step({}, accs)
        f, s = self.f, self.steps[level]
        low: Value = 0
        high: Value = extent(s)
        if level == 0 and self.blocked:
            low, high = "%from", "%to"
        if level == 0:
            high = f.maximum(self._limited(s, high), low)  # a sum may end before a block of its steps begins
        innermost = level == len(self.steps) - 1
        unroll = min(self.tile.unroll, extent(s)) if innermost else 1

        def run(start: Value, end: Value, times: int, values: list[Value]) -> list[Value]:
            def body(v: Value, current: list[Value]) -> list[Value]:
                self._open()
                self.values[s] = v, len(self.levels) - 1
                for w in range(times):
                    inner = {s: of_atom(s) + w}
                    current = self._step(inner, current) if innermost else self._loop(level + 1, current)
                self.levels.pop()
                return current

            return f.for_(start, end, times, body, [(self.type, x) for x in values])

        if unroll == 1:
            return run(low, high, 1, accs)
        length = f.sub(high, low)
        whole = f.mul(f.div(length, unroll), unroll)
        middle = f.add(low, whole)
        accs = run(low, middle, unroll, accs)
        return run(middle, high, 1, accs) if not (isinstance(length, int) and length == whole) else accs

    def _limited(self, s: Symbol, high: Value) -> Value:
        """The end of the outermost depth loop where a condition on the product ends it."""
        f = self.f
        sides = {p for g in (self.found.guard_a, self.found.guard_b) if isinstance(g, Guard) for p in g.ordered}
        for p in sorted(sides, key=str):
            rest = p + of_atom(s)
            if isinstance(rest, int):
                high = f.minimum(high, max(rest + 1, 0))
                continue
            if coefficient(p, s) != -1 or not rest.symbols <= set(self.outer):
                raise InputError(f"stage {self.stage.buffer}: the tile cannot end its sum where {p} >= 0 ends")
            last: Value = rest.constant
            for t in sorted(rest.symbols, key=lambda t: t.name):
                last = f.add(last, f.mul(f"%{t.name}", coefficient(rest, t) or 0))
            high = f.minimum(high, f.maximum(f.add(last, 1), 0))
        return high

    def _step(self, shift: dict[Symbol, Size], accs: list[Value]) -> list[Value]:
        f, out = self.f, list(accs)
        vectors: dict[Size, str] = {}
        scalars: dict[Size, str] = {}
        ahead = int(self.stage.knob("prefetch", 0))
        for q, position in enumerate(self.positions):
            at: dict[Symbol, Size] = {**shift, **dict(zip(self.rows, position, strict=True))}
            a = substitute(self.place_a, at)
            places = [substitute(self.place_b, {**at, self.lane: j * self.lanes}) for j in range(self.vectors)]
            for j, b in enumerate(places):
                if b not in vectors:
                    vectors[b] = self._vector(b, j)
                    if ahead and self.steps:
                        step = coefficient(b, self.steps[-1]) or 0
                        f.prefetch(self._pointer(self.b.args[0], b + step * ahead))
            if a not in scalars:
                scalars[a] = self._scalar(a)
            for j, b in enumerate(places):
                k = q * self.vectors + j
                out[k] = self.kind.step(f, str(out[k]), scalars[a], vectors[b], self.lanes)
        return out

    def _scalar(self, place: Size) -> str:
        """The element of A in all lanes."""
        f, dtype = self.f, self.a.dtype
        pointer = self._pointer(self.a.args[0], place)
        if self.kind.group > 1:
            x = f.load("i32", pointer, 1)
            if self.flip:
                x = f.value(f"xor i32 {x}, {-0x7F7F7F80}")
            whole = f.broadcast(x, "i32", self.lanes)
            bytes_ = vector("i8", self.lanes * self.kind.group)
            return f.value(f"bitcast {vector('i32', self.lanes)} {whole} to {bytes_}")
        if dtype == "bfloat16" and self.kind.accumulator == "float32":
            x = f.value(f"zext i16 {f.load('i16', pointer)} to i32")
            x = f.value(f"bitcast i32 {f.value(f'shl i32 {x}, 16')} to float")
            return f.broadcast(x, "float", self.lanes)
        kind = type_of(dtype)
        return f.broadcast(f.load(kind, pointer), kind, self.lanes)

    def _vector(self, place: Size, j: int) -> str:
        """A vector of B."""
        f, group, dtype = self.f, self.kind.group, self.b.dtype
        pointer = self._pointer(self.b.args[0], place)
        if group > 1:
            return f.load(vector("i8", self.lanes * group), pointer, 1)
        valid = self._valid(j)
        masked = valid < self.lanes and not self._padded()
        mask = constant_mask(valid, self.lanes)
        if dtype == "bfloat16" and self.kind.accumulator == "float32":
            short, wide = vector("i16", self.lanes), vector("i32", self.lanes)
            x = f.masked_load(short, pointer, mask) if masked else f.load(short, pointer)
            x = f.value(f"shl {wide} {f.value(f'zext {short} {x} to {wide}')}, splat (i32 16)")
            return f.value(f"bitcast {wide} {x} to {vector('float', self.lanes)}")
        kind = type_of(dtype, self.lanes)
        return f.masked_load(kind, pointer, mask) if masked else f.load(kind, pointer)

    def _padded(self) -> bool:
        """Are all lanes of a panel in memory?"""
        shape = self.shapes[self.b.args[0]]
        return all(
            bounds(x)[1] < n
            for x, n in zip(self.b.args[1], shape, strict=True)
            if not isinstance(x, int) and self.lane in x.symbols
        )

    def _valid(self, j: int) -> int:
        return min(self.lanes, self.columns - j * self.lanes)

    # ---- results

    def _result(self, position: Sequence[int], j: int) -> str:
        at: dict[Symbol, Size] = {**dict(zip(self.rows, position, strict=True)), self.lane: j * self.lanes}
        place = row_major(self.stage.index, self.shapes[self.stage.buffer])
        return self._pointer(self.stage.buffer, substitute(place, at))

    def _finish(self, accs: list[Value]) -> None:
        plain = self.stage.value is self.found.total and self.contiguous
        if plain:
            self._plain(accs)
        elif self.blocked:
            self.f.if_("%last", lambda: self._epilogue(accs), lambda: self._plain(accs))
        else:
            self._epilogue(accs)

    def _plain(self, accs: Sequence[Value]) -> None:
        """Store the sums as they are."""
        for (position, j), x in zip(itertools.product(self.positions, range(self.vectors)), accs, strict=True):
            pointer, n = self._result(position, j), self._valid(j)
            if n < self.lanes:
                self.f.masked_store(self.type, x, pointer, constant_mask(n, self.lanes))
            else:
                self.f.store(self.type, x, pointer)

    def _epilogue(self, accs: Sequence[Value]) -> None:
        outer: dict[Symbol, Value] = {s: f"%{s.name}" for s in self.outer}
        sums = dict(zip(itertools.product(self.positions, range(self.vectors)), map(str, accs), strict=True))
        along = self._across()
        points: list[Point] = []
        if along is None:
            for (position, j), x in sums.items():
                env = outer | dict(zip(self.rows, position, strict=True)) | {self.lane: j * self.lanes}
                points.append(Point(env, x, self.lanes, self._valid(j)))
        else:
            points = self._transposed(sums, outer, along)
        local = {x: p for x, p in self.base.items() if x not in self.slots}
        lane = along or self.lane
        epilogue(self.f, self.program, self.stage, lane, self.found.total, points, local, self.licence)

    def _across(self) -> Symbol | None:
        """Where the lanes are apart in the output: an axis of rows that are next to each other in it."""
        if self.contiguous:
            return None
        place = row_major(self.stage.index, self.shapes[self.stage.buffer])
        for j, s in enumerate(self.rows):
            count = len({position[j] for position in self.positions})
            if coefficient(place, s) == 1 and LEAST_ACROSS <= count <= self.lanes:
                return s
        return None

    def _transposed(
        self, sums: dict[tuple[tuple[int, ...], int], str], outer: dict[Symbol, Value], along: Symbol
    ) -> list[Point]:
        """The tile with vectors along an axis of rows, by transposes in registers."""
        at = self.rows.index(along)
        groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for position in self.positions:
            groups.setdefault((*position[:at], *position[at + 1 :]), []).append(position)
        others = [s for s in self.rows if s is not along]
        points: list[Point] = []
        for j in range(self.vectors):
            for rest, members in groups.items():
                rows = [sums[position, j] for position in members]
                rows += ["poison"] * (self.lanes - len(rows))
                columns = square(self.f, rows, element_of(self.type), self.lanes)
                for lane in range(self._valid(j)):
                    env = outer | dict(zip(others, rest, strict=True)) | {self.lane: j * self.lanes + lane, along: 0}
                    points.append(Point(env, columns[lane], self.lanes, len(members)))
        return points
