"""Good schedules without search, for every stage of a loop program.

A contraction gets the register tile, lane, packing and task grid whose estimated cycles are least; every other stage
is left to the generator, which arranges it by its accesses, as one task where the work is not worth a fork.  The
estimates know the number of multiply-adds, loads per step, tails, stores that scatter, copies
that are not hoisted, and caches; they rank, they do not predict.
"""

from __future__ import annotations

from math import prod
from typing import Any

from superopt.errors import InputError
from superopt.ir.expr import subexpressions
from superopt.ir.index import bounds
from superopt.ir.scalar import SCALARS
from superopt.kernels.chains import chain
from superopt.kernels.contract import outermost
from superopt.kernels.cpu import Cpu, host
from superopt.kernels.default_prefix import in_blocks
from superopt.kernels.default_tiles import FORK, decide
from superopt.kernels.program import checked
from superopt.kernels.schedule import set_knob
from superopt.kernels.schedule.edit import reductions, terms
from superopt.kernels.schedule.guards import inside
from superopt.kernels.schedule.tensorizing import pairs_of
from superopt.kernels.schedule.trace import Trace, apply, trace
from superopt.kernels.stage import LoopProgram, Stage
from superopt.kernels.tensorize import ContractionDecisions, tensorize

_LONG = 49  # vectors of a row from which its last phase takes ...
_WIDE = 8  # ... so many at a time


def default(program: LoopProgram, cpu: Cpu | None = None, threads: int = 1) -> LoopProgram:
    """A schedule of every stage, chosen by estimates.

    Args:
        program: as `from_graph` makes it; stages that are scheduled already are left alone.
        cpu: what it runs on; this machine when None.
        threads: that a call may use.
    """
    return _chosen(program, cpu or host(), threads)[0]


def default_trace(program: LoopProgram, cpu: Cpu | None = None, threads: int = 1) -> Trace:
    """The steps whose application is `default`."""
    return trace(_chosen(program, cpu or host(), threads)[1])


def _chosen(program: LoopProgram, cpu: Cpu, threads: int) -> tuple[LoopProgram, list[list[Any]]]:
    """The scheduled program and the steps that lead to it."""
    steps: list[list[Any]] = []
    waiting = [s.buffer for s in program.stages]
    while waiting:
        name = waiting.pop(0)
        chained = chain(program, name, cpu, threads)
        if chained is not None:
            program, steps = chained[0], [*steps, *chained[1]]
            continue
        before = {s.buffer for s in program.stages}
        program, cut = _apart(program, name, cpu, threads)
        steps += cut
        decisions = decide(program, name, cpu, threads)
        tiled = None if decisions is None else _tried(program, name, decisions, cpu)
        if tiled is not None and decisions is not None:
            program = tiled
            steps.append(["tensorize", name, pairs_of(decisions)])
        waiting += [s.buffer for s in program.stages if s.buffer not in before and s.value.height]
    for name in [s.buffer for s in program.stages]:
        blocks = in_blocks(program, name, cpu, threads)
        if blocks is not None:
            program, steps = blocks[0], [*steps, *blocks[1]]
    for stage in program.stages:
        if _alone(stage):
            program = set_knob(program, stage.buffer, "tasks", 1)
            steps.append(["set_knob", stage.buffer, "tasks", 1])
        wide = _LONG * cpu.lanes("float32")
        rows = _of_rows(stage)
        chosen: dict[str, int | str] = {}
        if rows and stage.axes[-1].extent >= wide:
            chosen["vectors"] = _WIDE
        if rows and _read_together(stage):
            chosen |= {"keep": "all", "rows": 1 if stage.axes[-1].extent >= wide else 2, "accumulators": 2}
        if _long_body(stage):
            chosen["vectors"] = 1
        for knob, value in chosen.items():
            program = set_knob(program, stage.buffer, knob, value)
            steps.append(["set_knob", stage.buffer, knob, value])
    return program, steps


def _tried(program: LoopProgram, name: str, decisions: ContractionDecisions, cpu: Cpu) -> LoopProgram | None:
    """The program with a tile; None where an operand cannot be copied as the tile reads it."""
    try:
        after = checked(tensorize(program, name, decisions, cpu))
    except InputError:
        return None
    known = {s.buffer for s in program.stages}
    new = [s for s in after.stages if s.buffer not in known and s.tile is None]
    return after if all(inside(after, s.value, terms(s.guard)) for s in new) else None


def _apart(program: LoopProgram, name: str, cpu: Cpu, threads: int) -> tuple[LoopProgram, list[list[Any]]]:
    """Every contraction but the last of a stage with several in a stage of its own."""
    steps: list[list[Any]] = []
    while True:
        stage = program.stage(name)
        sums = list(outermost(stage.value))
        if len(sums) < 2 or any(r.args[0] != "sum" or r.height > 1 for r in sums):
            return program, steps
        step = ["materialize", name, f"reduce:{reductions(stage).index(sums[0])}", f"{name}_s{len(sums)}"]
        cut = apply(program, [step])
        if decide(cut, step[-1], cpu, threads) is None:
            return program, steps
        program, steps = cut, [*steps, step]


def _alone(stage: Stage) -> bool:
    """Is the work of an untiled stage not worth a fork?"""
    if stage.tile is not None or stage.at is not None or any(k == "tasks" for k, _ in stage.knobs):
        return False
    return all(a.kind == "serial" for a in stage.axes) and _cycles_untiled(stage) < FORK


def _of_rows(stage: Stage) -> bool:
    """Does an untiled stage reduce rows and then write them?"""
    if stage.tile is not None or stage.at is not None or not stage.axes or stage.knobs:
        return False
    lane = stage.axes[-1]
    if any(a.kind != "serial" for a in stage.axes):
        return False
    found = [e for e in subexpressions(stage.value) if e.kind == "reduce"]
    rows = [e for e in found if [s.high for s in e.args[1]] == [lane.symbol.high] and lane.symbol not in e.symbols]
    return bool(rows) and len(rows) == len(found)


def _read_together(stage: Stage) -> bool:
    """Do several of its phases read two arrays or more (a residual)?  Their sum is then kept rather than read again."""
    bodies = [e.args[2] for e in subexpressions(stage.value) if e.kind == "reduce"]
    read = [{e.args[0] for e in subexpressions(body) if e.kind == "load"} for body in bodies]
    return len(read) > 1 and min(map(len, read)) > 1


def _long_body(stage: Stage) -> bool:
    """Is an untiled stage elementwise, with functions that take many instructions?

    One vector at a time keeps their constants in registers, and the processor overlaps iterations by itself.
    """
    if stage.tile is not None or stage.at is not None or any(k == "vectors" for k, _ in stage.knobs):
        return False
    parts = subexpressions(stage.value)
    if any(a.kind != "serial" for a in stage.axes) or any(e.kind == "reduce" for e in parts):
        return False
    return any(e.kind == "op" and SCALARS[e.args[0]].transcendental and e.symbols for e in parts)


def _cycles_untiled(stage: Stage) -> float:
    """A rough number of cycles of a stage on one thread: vectors of eight for each store and operation."""
    inner = max(
        [prod(int(bounds(s.extent)[1]) for s in e.args[1]) for e in subexpressions(stage.value) if e.kind == "reduce"],
        default=1,
    )
    nodes = sum(
        1 + 8 * (e.args[0] in _SLOW) for e in subexpressions(stage.value) if e.kind in ("op", "load", "convert")
    )
    return prod(a.extent for a in stage.axes) * (1 + inner * nodes) / 8


_SLOW = ("exp", "log", "tanh", "erf", "logistic", "sin", "cos", "pow", "sqrt", "rsqrt", "div", "expm1", "log1p")
