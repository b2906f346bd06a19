"""The decisions of a chain of contractions (attention), and the trace that a choice of them is.

What a chain is taken apart into does not depend on decisions, and the order of its steps only on the rows of a task:
for each number of them the steps are made once, and a point puts its tiles into them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from superopt.errors import InputError
from superopt.ir.counters import block_cost
from superopt.kernels.choose.chains import (
    ChainDecisions,
    Parted,
    built,
    chosen,
    first_tile,
    options,
    parted,
    second_tile,
    taken,
)
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.loops.stage import LoopProgram
from superopt.schedules.knobs import Chained, Knob, Point, StageSpace, Trace

_BYTES = {"float32": 4.0, "float64": 8.0}


def chain_space(program: LoopProgram, name: str, cpu: Cpu, threads: int, base: Trace) -> StageSpace | None:
    """The knobs of a chain whose default schedule begins with these steps; None where the stage is none.

    Args:
        program: not scheduled.
        name: the stage.
        cpu: that runs it.
        threads: that a call may use.
        base: the default schedule of the program; what follows the chain in it sets knobs of stages.
    """
    parts = parted(program, name, cpu)
    default = None if parts is None else chosen(parts.sizes, cpu, threads)
    found = None if parts is None or default is None else built(parts, default)
    if parts is None or default is None or found is None:
        return None
    after = base[len(found[1]) :]
    if base[: len(found[1])] != found[1] or any(step[0] != "set_knob" for step in after):
        return None
    named = options(parts.sizes, cpu, threads)
    start = _point(default)
    steps: dict[int, Trace] = {default.block: found[1]}
    for block in {block for block, _ in named["queries"]} - {default.block}:
        made = built(parts, ChainDecisions(block, 1, 1, 1))
        if made is not None:
            steps[block] = made[1]
    named["queries"] = tuple([x for x in named["queries"] if x[0] in steps])
    knobs = [Knob(k, values if start[k] in values else (start[k], *values)) for k, values in named.items()]
    stage = program.stage(name)
    cost = block_cost([a.symbol for a in stage.axes], stage.value, rows=True)
    sizes = parts.sizes
    moved = _BYTES[parts.dtype] * sizes.batch * sizes.columns * (sizes.rows + max(sizes.keys, 1))
    return StageSpace(
        name, tuple(knobs), None, cost.flops + 20.0 * cost.transcendentals, moved, (), tuple(after), start,
        Chained(parts, steps),
    )  # fmt: skip


def chain_steps(part: StageSpace, point: Point) -> Trace:
    """The steps of a point.

    Raises:
        InputError: the chain has no schedule with so many rows to a task.
    """
    assert part.chain is not None
    decisions = _decisions(part.chain.parts, point)
    if decisions.block not in part.chain.steps:
        raise InputError(f"stage {part.stage} has no schedule with {decisions.block} rows to a task")
    found: Trace = []
    for step in part.chain.steps[decisions.block]:
        found.append(_retiled(part.chain.parts, decisions, step) if step[0] == "tensorize" else list(step))
    return [*found, *[list(step) for step in part.after]]


def _retiled(parts: Parted, decisions: ChainDecisions, step: Sequence[Any]) -> list[Any]:
    if step[1] == parts.name:
        return ["tensorize", step[1], second_tile(parts, decisions)]
    row = dict(step[2])["rows"][0][0]
    return ["tensorize", step[1], first_tile(parts, decisions, row)]


def _decisions(parts: Parted, point: Point) -> ChainDecisions:
    return taken(parts.sizes, point["queries"], point["columns"], point["keys"], point["unroll"])


def _point(d: ChainDecisions) -> dict[str, Any]:
    return {"queries": (d.block, d.first), "columns": (d.vectors, d.second), "keys": d.keys, "unroll": d.unroll}


def chain_features(part: StageSpace, point: Point, cpu: Cpu, threads: int) -> dict[str, float]:
    """What describes a point, under the names of contractions."""
    assert part.chain is not None
    sizes, d = part.chain.parts.sizes, _decisions(part.chain.parts, point)
    along = d.block // sizes.lanes
    tasks = sizes.batch * -(-sizes.rows // d.block)
    return {
        "contraction": 1.0,
        "log_work": _log(part.work),
        "log_bytes": _log(part.moved_bytes),
        "log_depth": _log(sizes.keys or 1),
        "log_rows": _log(sizes.rows),
        "log_columns": _log(sizes.columns),
        "threads": float(threads),
        "rows": float(d.first),
        "vectors": float(along),
        "registers": (d.first * along + along + 1) / cpu.registers,
        "loads_per_step": (d.first + along) / (d.first * along) + (d.second + d.vectors) / (d.second * d.vectors),
        "waste_rows": -(-sizes.rows // d.block) * d.block / sizes.rows - 1,
        "unroll": _log(d.unroll),
        "log_block": _log(d.keys or sizes.keys or 1),
        "log_task": _log(d.block),
        "task_a_in_l2": _log(sizes.bytes_a_row * d.block / (cpu.l2 or 524288)),
        "log_tasks": _log(tasks),
        "imbalance": -(-tasks // threads) * threads / tasks - 1,
    }


def _log(x: float) -> float:
    return math.log2(max(x, 2**-10))
