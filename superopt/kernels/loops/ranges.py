"""Allowed ranges of schedule decisions: of every knob, and of every field of a register tile.

Knobs change no loop program, so the prover would accept a value out of range.  The kernel would then misbehave: a task
of minus one row writes nothing, a block of minus five steps never ends.  Ranges are checked where a program is checked
for being well-formed: after every step of a trace, and by the verifier of schedules.  `excess` bounds the work and
memory of a whole trace: padding to 2^40 iterations is as endless as a loop without an end.
"""

from __future__ import annotations

from math import prod

from superopt.errors import InputError
from superopt.ir.expr import subexpressions
from superopt.ir.index import bounds
from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels.loops.stage import LoopProgram, Stage, Tile

_MANY = 1 << 31  # most of a knob that counts iterations
_AT_ONCE = 64  # most of a knob that becomes so many values in registers
KNOBS: dict[str, tuple[int, int] | tuple[str, ...]] = {
    "vectors": (1, _AT_ONCE), "rows": (0, _AT_ONCE), "accumulators": (1, _AT_ONCE), "window": (0, 4096),
    "cache": ("none", "scratch", "output"), "keep": ("costly", "all"), "cut": (0, 1), "transpose": (0, 1),
    "lane": (0, 1), "rows_per_task": (0, _MANY), "tasks": (1, 1 << 20), "block": (0, _MANY), "prefetch": (0, 1 << 20),
    "depth": (1, _MANY), "limit": (1, _MANY), "warps": (1, 32), "stages": (1, 16), "online": (0, 1),
    "precision": ("ieee", "tf32", "tf32x3"),
}  # fmt: skip
DECISIONS = {
    "vectors": (1, _AT_ONCE), "unroll": (1, 1024), "block": (0, _MANY), "pad_a": (0, 4096), "split": (1, 1 << 16),
    "prefetch": (0, 1 << 20), "streams": (1, _AT_ONCE), "rows": (1, _AT_ONCE), "tasks": (1, _MANY),
}  # fmt: skip
_MOST_TILE = 256  # vectors of sums that one tile holds: more than any processor has registers for
_MORE_WORK, _LEAST_WORK = 1 << 10, 1 << 20  # so many times the iterations, and so many in any case
_MORE_BYTES, _LEAST_BYTES = 1 << 8, 1 << 26


def knob_fault(name: str, value: object) -> str:
    """Return the fault in the value of a knob; empty when it is allowed."""
    known = KNOBS.get(name)
    if known is None:
        return f"{name!r} is no knob, only {', '.join(KNOBS)}"
    low, high = known[0], known[-1]
    if isinstance(low, int) and isinstance(high, int):
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return "" if fits else f"the knob {name} is {value!r}; it goes from {low} to {high}"
    return "" if value in known else f"the knob {name} is {value!r}; it is one of {', '.join(map(str, known))}"


def decision_fault(name: str, value: object) -> str:
    """Return the fault in a number among a tile's decisions, or in the numbers of its axes; empty if none."""
    if name not in DECISIONS:
        return ""
    low, high = DECISIONS[name]
    numbers = [n for _, n in value] if isinstance(value, tuple) else [value]  # pyright: ignore[reportUnknownVariableType]
    wrong = [n for n in numbers if not isinstance(n, int) or not low <= n <= high]  # pyright: ignore[reportUnknownVariableType]
    return f"{name} is {wrong[0]!r}; it goes from {low} to {high}" if wrong else ""


def stage_fault(stage: Stage) -> str:
    """Return the fault in the decisions of a stage; empty when there is none."""
    faults = [knob_fault(name, value) for name, value in stage.knobs]
    if stage.tile is not None:
        faults.append(_tile_fault(stage.tile))
    return next((f"stage {stage.buffer}: {fault}" for fault in faults if fault), "")


def _tile_fault(tile: Tile) -> str:
    for name, value in (("vectors", tile.vectors), ("unroll", tile.unroll), ("rows", tile.rows)):
        fault = decision_fault(name, value)
        if fault:
            return f"the tile's {fault}"
    held = tile.vectors * prod([n for _, n in tile.rows])
    return f"its tile holds {held} vectors, more than {_MOST_TILE}" if held > _MOST_TILE else ""


def excess(before: LoopProgram, after: LoopProgram) -> str:
    """Return by how far a scheduled program exceeds its bounds on iterations and memory; empty when it is within."""
    most, made = _MORE_WORK * iterations(before) + _LEAST_WORK, iterations(after)
    if made > most:
        return f"the schedule makes {made} iterations of {iterations(before)}"
    most, made = _MORE_BYTES * _bytes(before) + _LEAST_BYTES, _bytes(after)
    return f"the schedule needs {made} bytes of memory, {most} at most" if made > most else ""


def require_within(before: LoopProgram, after: LoopProgram) -> LoopProgram:
    """Return the scheduled program if its iterations and memory are within bounds of the original's.

    Raises:
        InputError: it does far more than the program that it comes from.
    """
    fault = excess(before, after)
    if fault:
        raise InputError(fault)
    return after


def iterations(program: LoopProgram) -> int:
    """Count the iterations of all loops, reductions included; nested reductions count as if side by side."""
    total = 0
    for stage in program.stages:
        sums = [e for e in subexpressions(stage.value) if e.kind == "reduce"]
        inner = sum([prod([int(bounds(s.extent)[1]) for s in e.args[1]]) for e in sums])
        total += prod([a.extent for a in stage.axes]) * (1 + inner)
    return total


def _bytes(program: LoopProgram) -> int:
    return sum([ITEMSIZE_BYTES[b.dtype] * prod(b.shape) for b in program.buffers])
