"""Which prefixes are cut into blocks: few long rows, which are too few tasks for the threads of a call.

Blocks cost a second pass over what is read, so rows are left whole where there are enough of them.
"""

from __future__ import annotations

from math import prod
from typing import Any

from superopt.errors import InputError
from superopt.ir.prefix import direction
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.edit import reductions
from superopt.kernels.schedule.trace import apply

_LEAST = 1 << 14  # elements of all rows from which two passes pay
_BLOCK = 1 << 12  # elements of a block, where that is enough for all threads ...
_TASKS = 4  # ... that get so many blocks each otherwise

Steps = list[list[Any]]


def in_blocks(program: LoopProgram, name: str, cpu: Cpu, threads: int) -> tuple[LoopProgram, Steps] | None:
    """The program with a prefix along the innermost axis of a stage in blocks, and the steps; None where it stays."""
    stage = program.stage(name)
    plain = stage.tile is None and stage.at is None and stage.guard is True and not stage.knobs
    if threads < 2 or not cpu.vector_bits or not plain or not stage.axes or any(a.kind != "serial" for a in stage.axes):
        return None
    found = reductions(stage)
    lane = stage.axes[-1]
    rows = prod(a.extent for a in stage.axes[:-1])
    if len(found) != 1 or not direction(found[0], lane.symbol) or 2 * rows > threads or rows * lane.extent < _LEAST:
        return None
    lanes = cpu.lanes("float32")
    block = max(_BLOCK, -(-lane.extent * rows // (_TASKS * threads)))
    steps: Steps = [["split_prefix", name, 0, -(-block // lanes) * lanes]]
    try:
        after = apply(program, steps)
        for axis in after.stage(name).axes[:-1]:
            steps.append(["parallel", name, axis.symbol.name])
            after = apply(after, steps[-1:])
    except InputError:
        return None
    return after, steps
