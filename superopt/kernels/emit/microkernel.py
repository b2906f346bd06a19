"""Code of a tensorized stage: tasks, loops over tiles, and one function per shape of tile.

A task decodes its number into the parallel axes, runs the serial ones as far as the guard lets them exist, and calls
the tile for what is there: full tiles, or the one tail that each axis has, chosen by comparison.  Stages placed in the
task run before, tensorized ones as tiles of their own into local buffers.  With `block` steps of
the depth at a time the tiles of a task are visited once per block, and partial sums wait in the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from superopt.errors import InputError
from superopt.ir.index import Guard, Poly, Size, Symbol, coefficient, substitute
from superopt.kernels.emit.licence import DEFAULT, Licence
from superopt.kernels.emit.microkernel_tile import TileWriter
from superopt.kernels.emit.nest import Writer
from superopt.kernels.emit.plan import plan
from superopt.kernels.emit.types import stored
from superopt.kernels.emit.values import Emitter
from superopt.kernels.llvm.module import Function, Module, Value
from superopt.kernels.loops.contract import extent, find
from superopt.kernels.loops.stage import LoopProgram, Stage
from superopt.kernels.schedule.intrinsics import intrinsic


def write_tiled(module: Module, name: str, program: LoopProgram, stage: Stage, licence: Licence = DEFAULT) -> int:
    """Write a tensorized stage as `void name(ptr bufs, i64 task)`, and the stages placed in it.

    Args:
        module: receives the functions.
        name: of the function.
        program: gives the buffers.
        stage: with a tile.
        licence: which inexact steps the epilogue may take.

    Returns:
        The number of tasks.

    Raises:
        InputError: the stage is not what `tensorize` makes.
    """
    return _Tiled(module, name, program, stage, licence).write()


class _Tiled:
    def __init__(self, module: Module, symbol: str, program: LoopProgram, stage: Stage, licence: Licence) -> None:
        found, tile = find(stage), stage.tile
        if tile is None or found is None:
            raise InputError(f"stage {stage.buffer} is not tensorized")
        self.module, self.program, self.stage, self.symbol = module, program, stage, symbol
        self.licence, self.found = licence, found
        rows = {name for name, _ in tile.rows}
        self.tasks = [a.symbol for a in stage.axes if a.kind == "parallel"]
        self.serial = [a.symbol for a in stage.axes if a.kind == "serial"]
        self.rows = [a.symbol for a in stage.axes if a.symbol.name in rows]
        self.lane = stage.axes[-1].symbol
        if self.lane.name != tile.lanes or len(self.tasks) + len(self.serial) + len(self.rows) + 1 != len(stage.axes):
            raise InputError(f"the axes of stage {stage.buffer} are not those of its tile")
        self.conditions = stage.guard.ordered if isinstance(stage.guard, Guard) else []
        self.inside = program.placed(stage.buffer)
        kind = intrinsic(tile.intrinsic)
        steps = found.depth[:-1] if kind.group > 1 else found.depth
        self.block = int(stage.knob("block", 0))
        if not steps or self.block >= extent(steps[0]):
            self.block = 0
        if self.block and program.buffer(stage.buffer).dtype != kind.accumulator:
            raise InputError(f"stage {stage.buffer} is blocked along the depth, but its output holds no partial sums")
        self.steps = steps
        self.tiles: dict[tuple[int, ...], str] = {}

    def write(self) -> int:
        f = self.module.function(self.symbol, [("ptr", "bufs"), ("i64", "task")])
        env: dict[Symbol, Value] = {}
        rest: Value = "%task"
        for s in reversed(self.tasks):
            env[s] = f.rem(rest, extent(s)) if s is not self.tasks[0] else rest
            rest = f.div(rest, extent(s))
        self._run(f, env, {})
        f.ret()
        count = 1
        for s in self.tasks:
            count *= extent(s)
        return count

    def _run(self, f: Function, env: dict[Symbol, Value], local: dict[str, str]) -> None:
        """The tiles of one task, and before them the stages placed in it; `local`: buffers filled so far."""
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
        """A stage that the task runs before its tiles, and the local buffer that it fills."""
        assert inner.at is not None
        if inner.at[1] > len(self.tasks):
            raise InputError(f"stage {inner.buffer} stands inside the tiles of {self.stage.buffer}")
        buffer = self.program.buffer(inner.buffer)
        local[buffer.name] = f.room(max(prod(buffer.shape), 1), 64, stored(buffer.dtype))
        if inner.tile is not None:
            name = f"{self.symbol}_{buffer.name}"
            _Tiled(self.module, name, self.program, inner, self.licence)._run(f, env, local)
            return
        pointers = dict(local)
        for number, other in enumerate(self.program.pointers):
            pointers[other.name] = f.load("ptr", f.element("%bufs", number, "ptr"), 8)
        nest = plan(self.program, inner, self.module.cpu, self.licence, inner.at[1])
        em = Emitter(f, pointers, {b.name: b for b in self.program.buffers}, self.licence, nest.knobs)
        for s in self.tasks[: inner.at[1]]:
            em.bind(s, env[s])
        Writer(em, nest, self.program).write(0, nest.value, nest.guard)
        em.pop()

    def _loops(
        self, f: Function, level: int, env: dict[Symbol, Value], local: dict[str, str], flags: list[tuple[str, Value]]
    ) -> None:
        """The serial axes, outermost first, each as far as it exists."""
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
        """Full or tail along each axis of the tile, then the call."""
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
        """Iterations of the last tile along an axis, 0 where it is full, and the condition that says which it is."""
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
        outer = [*self.tasks, *self.serial]
        if sizes not in self.tiles:
            name = f"{self.symbol}_tile_" + "x".join(map(str, sizes))
            self.tiles[sizes] = name
            writer = TileWriter(self.program, self.stage, self.found, outer, self.rows, self.lane, self.licence)
            writer.write(self.module, name, sizes, bool(self.block), tuple(local))
        args = [("ptr", "%bufs"), *[("i64", env[s]) for s in outer], *[("ptr", p) for p in local.values()], *flags]
        f.effect(f"call void @{self.tiles[sizes]}({', '.join([f'{t} {v}' for t, v in args])})")
