"""Code for loop programs: one function per phase, its parallel loops cut into tasks.

`generate` is total over stages without a tile: any expression of the free algebra with dtypes of the table, at any
sizes.  It knows loads, guards, reductions and scalar functions, never an op.  A stage with a tile is written by
`superopt.kernels.emit.microkernel`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from superopt.errors import UnsupportedKernel
from superopt.ir.expr import Expr, subexpressions
from superopt.ir.scalar import DTYPE, SCALARS
from superopt.kernels.emit import plan as emit_plan
from superopt.kernels.emit.bitwise_consistency import licences
from superopt.kernels.emit.microkernel import tiles_of, write_tiled
from superopt.kernels.emit.nest import Placed, Rest, Writer
from superopt.kernels.emit.options import DEFAULT, Licence
from superopt.kernels.emit.plan import Nest
from superopt.kernels.emit.registers import stored, width_of
from superopt.kernels.emit.values import Emitter, entered
from superopt.kernels.llvm.cpu import Cpu, host
from superopt.kernels.llvm.module import Function, Module, Value
from superopt.kernels.loops.stage import LoopProgram, Stage
from superopt.kernels.runtime.kernel import Code, Phase
from superopt.kernels.schedule.intrinsics import intrinsic

MOST_NODES = 20_000  # nodes in the expression of a stage


def generate(program: LoopProgram, cpu: Cpu | None = None, licence: Licence = DEFAULT) -> Code:
    """Generate the code of a loop program.

    Args:
        program: a well-formed program.
        cpu: the target CPU; this machine when None.
        licence: which inexact steps may be taken.

    Raises:
        UnsupportedKernel: an expression of more than 20 000 nodes; a scalar function or a dtype without code; an
            accumulation along lanes that fall on one element; compared values that are computed in two ways.
    """
    return _generated(program, cpu or host(), licence)


@functools.lru_cache(maxsize=4)  # what says that a default schedule has code is asked for that code next
def _generated(program: LoopProgram, cpu: Cpu, licence: Licence) -> Code:
    module = Module(cpu)
    phases: list[Phase] = []
    allowed = licences(program, licence)
    for number, stage in enumerate(program.phases()):
        name = f"phase{number}"
        work = 1e6 * sum(cycles(s, cpu) for s in _all_in(program, stage)) / cpu.rates.hertz
        phases.append(Phase(name, write_phase(module, name, program, stage, allowed[stage.buffer]), work))
    return Code(module, tuple(phases), program.pointers)


def _all_in(program: LoopProgram, stage: Stage) -> list[Stage]:
    """Return a stage and the stages that run in it."""
    return [stage, *[x for s in program.placed(stage.buffer) for x in _all_in(program, s)]]


def write_phase(module: Module, name: str, program: LoopProgram, stage: Stage, licence: Licence = DEFAULT) -> int:
    """Write the function of one stage, and those placed in it, into a module.

    Returns:
        The number of its tasks.
    """
    if 0 in [a.extent for a in stage.axes] or stage.guard is False:
        f = module.function(name, [("ptr", "bufs"), ("i64", "task")])
        f.ret()
        return 1
    nodes = len(subexpressions(stage.value))
    if nodes > MOST_NODES:
        raise UnsupportedKernel(f"{stage.buffer} has {nodes} nodes, more than {MOST_NODES}")
    for e in subexpressions(stage.value):
        if e.dtype not in DTYPE:
            raise UnsupportedKernel(f"{stage.buffer} uses {e.dtype}")
    if stage.tile is not None:
        return write_tiled(module, name, program, stage, licence)
    nest = emit_plan.plan(program, stage, module.cpu, licence)
    f = module.function(name, [("ptr", "bufs"), ("i64", "task")])
    em = _emitter(f, program, nest, licence)
    tasks = _tasks(em, program, nest, name)
    f.ret()
    return tasks


def _emitter(f: Function, program: LoopProgram, nest: Nest, licence: Licence) -> Emitter:
    pointers = {b.name: f.load("ptr", f.element("%bufs", j, "ptr"), 8) for j, b in enumerate(program.pointers)}
    for b in program.buffers:
        if b.scope == "local":
            pointers[b.name] = f.room(max(1, prod(b.shape)), 64, stored(b.dtype))
    return entered(f, program, pointers, licence, nest.knobs)


def _tasks(em: Emitter, program: LoopProgram, nest: Nest, name: str) -> int:
    """Write the loops that become tasks, and the others inside; return the number of tasks."""
    f, loops = em.f, nest.tasks
    writer = Writer(nest, program, _placed(program, nest.stage, name, em))
    if not loops:
        writer.write(em)
        return 1
    total = prod([loop.extent for loop in loops])
    rows = nest.knobs.rows_per_task or max(1, -(-total // nest.knobs.tasks))
    rows = min(rows, total)
    em.within(em.scope.awaiting(frozenset([p.stage.buffer for _, p in writer.placed]))).prepare(nest.value)
    first = f.mul("%task", rows)
    last = f.minimum(f.add(first, rows), total)
    pieces = [writer.cuts(em, loop, writer.rest) for loop in loops]
    rest = replace(writer.rest, pieces=prod([len(p) for p in pieces]))
    if len(loops) == 1:
        (loop,) = loops
        for low, high in pieces[0]:
            begin = first if low == 0 else f.maximum(first, low)
            end = last if high == total else f.minimum(last, high)

            def row(v: Value, _: list[Value], low: int = low, high: int = high) -> None:
                writer.write(em.deeper().bind(loop.it, v, low, high), 1, rest)

            f.for_(begin, end, 1, row)
            em.fresh()
        return -(-total // rows)

    def rowsof(v: Value, _: list[Value]) -> None:
        inner = em.deeper()
        left: Value = v
        for loop in reversed(loops[1:]):
            inner = inner.bind(loop.it, f.rem(left, loop.extent))
            left = f.div(left, loop.extent)
        _choose(inner.bind(loops[0].it, left), writer, pieces, rest)

    f.for_(first, last, 1, rowsof)
    return -(-total // rows)


def _choose(em: Emitter, writer: Writer, pieces: Sequence[Sequence[tuple[int, int]]], rest: Rest, j: int = 0) -> None:
    """Select the piece of each task iterator, by comparison."""
    if j == len(pieces):
        writer.write(em.deeper(), j, rest)
        return
    it, f = writer.nest.loops[j].it, em.f
    base = em.bindings[it].base

    def from_(k: int) -> None:
        low, high = pieces[j][k]

        def here() -> None:  # bound again: what holds in this piece stays in it
            _choose(em.deeper().bind(it, base, low, high), writer, pieces, rest, j + 1)

        if k == len(pieces[j]) - 1:
            here()
            return
        f.if_(f.less(base, high), here, lambda: from_(k + 1))

    from_(0)


def _placed(program: LoopProgram, stage: Stage, name: str, em: Emitter) -> tuple[Placed, ...]:
    """Return the stages placed in a stage that is written as the function of this name."""
    placed: list[Placed] = []
    for s in program.placed(stage.buffer):
        assert s.at is not None
        inner = () if s.tile is not None else _placed(program, s, name, em)
        tile = None if s.tile is None else tiles_of(em.f.module, f"{name}_{s.buffer}", program, s, em.scope.licence)
        placed.append(Placed(s, s.at[1], inner, tile))
    return tuple(placed)


_CYCLES = {"load": 3.0, "op": 1.0, "convert": 2.0, "where": 1.0, "index": 1.0}
_TRANSCENDENTAL, _QUOTIENT, _STORE = 20.0, 8.0, 3.0


def cycles(stage: Stage, cpu: Cpu) -> float:
    """Estimate the cycles of a stage on one thread, from the operations of its value; they are not measured."""
    parts = subexpressions(stage.value)
    size = max([width_of(e.dtype) for e in parts if e.dtype != "bool"], default=4)
    lanes = max(1, cpu.vector_bits // (8 * size))
    counts = [prod([int(s.high) + 1 for s in e.symbols if isinstance(s.high, int)]) for e in parts]
    if stage.tile is not None:
        return max(counts) / lanes / intrinsic(stage.tile.intrinsic).group
    stores = prod([a.extent for a in stage.axes])
    return (sum(_cycles_of(e) * n for e, n in zip(parts, counts, strict=True)) + _STORE * stores) / lanes


def _cycles_of(e: Expr) -> float:
    if e.kind == "op" and SCALARS[e.args[0]].transcendental:
        return _TRANSCENDENTAL
    if e.kind == "op" and e.args[0] in ("div", "rem"):
        return _QUOTIENT
    return _CYCLES.get(e.kind, 0.0)
