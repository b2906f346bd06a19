"""Numbers that describe a scheduled stage to the model: shapes, decisions and what follows from both.

All are logarithms, shares or flags, so that one model serves operators of every size; the last name says the kind of
stage.  Nothing here knows an operator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.kernels.loops.stage import extent
from superopt.schedules.space import ScheduleSpace, StageSpace, chain_decisions

if TYPE_CHECKING:
    from jaxtyping import Float

NAMES = (
    "contraction", "log_work", "log_bytes", "log_depth", "log_rows", "log_columns", "threads",
    "rows", "vectors", "registers", "loads_per_step", "waste_rows", "waste_columns", "unroll",
    "log_block", "block_in_l1", "log_task", "task_a_in_l2", "task_b_in_l2", "b_in_l2", "log_tasks", "imbalance",
    "pack_a_phase", "pack_a_task", "pack_b", "pad", "columns_first", "prefetch", "log_split", "channels_split",
    "log_inner", "window", "ordered_a", "nest_vectors", "nest_rows", "nest_cache", "nest_accumulators",
    "nest_transpose", "nest_cut", "nest_window", "nest_keep", "nest_ordered", "nest_moved",
)  # fmt: skip


def features(space: ScheduleSpace, point: Mapping[str, Any]) -> Float[np.ndarray, " features"]:
    """Sum of the stages' numbers weighted by work; float32, one per name."""
    if not space.stages:
        return np.zeros(len(NAMES), np.float32)
    rows, weights = [], []
    for part in space.stages:
        own = {name.partition(".")[2]: value for name, value in point.items() if name.startswith(part.stage + ".")}
        tiled = part.contraction is not None and own["tile"] is not None
        if part.chain is not None:
            values = _chain(space, part, own)
        else:
            values = _contraction(space, part, own) if tiled else _nest(space, part, own)
        rows.append([values.get(name, 0.0) for name in NAMES])
        weights.append(part.work)
    total = np.asarray(rows, np.float64) * (np.asarray(weights) / sum(weights))[:, None]
    return total.sum(0).astype(np.float32)


def _log(x: float) -> float:
    return math.log2(max(x, 2**-10))


def _contraction(space: ScheduleSpace, part: StageSpace, point: Mapping[str, Any]) -> dict[str, float]:
    assert part.contraction is not None
    found, kind = part.contraction
    cpu = space.cpu
    vectors, row_sizes = point["tile"]
    tile = dict(row_sizes)
    rows = math.prod(tile.values())
    width = kind.lanes(cpu) * vectors
    depth = math.prod(map(extent, found.depth))
    columns = math.prod(map(extent, found.columns))
    all_rows = math.prod(map(extent, found.rows))
    batch = math.prod(map(extent, found.batch))
    element = 4.0 if kind.group == 1 else 1.0
    block = point["block"] * kind.group or depth
    task_columns, task_rows, tasks, waste = 1, 1, batch, 1.0
    for s in (*found.rows, *found.columns):
        step = width if s is found.lane else tile.get(s.name, 1)
        whole = -(-extent(s) // step)
        size = point.get(f"task.{s.name}", extent(s))
        size = max(1, size // vectors) if s is found.lane else -(-size // step)
        size = min(size, whole)
        tasks *= -(-whole // size)
        if s is found.lane:
            task_columns = size * step
        else:
            task_rows *= size * step
            waste *= whole * step / extent(s)
    tasks *= point["split"]
    inner = point["depth"][-1] if point["depth"] else found.depth[-1].name
    return {
        "contraction": 1.0,
        "log_work": _log(part.work),
        "log_bytes": _log(part.moved_bytes),
        "log_depth": _log(depth),
        "log_rows": _log(all_rows),
        "log_columns": _log(columns),
        "threads": float(space.threads),
        "rows": float(rows),
        "vectors": float(vectors),
        "registers": kind.registers(rows, vectors) / cpu.registers,
        "loads_per_step": (rows + vectors) / (rows * vectors),
        "waste_rows": waste - 1,
        "waste_columns": -(-extent(found.lane) // width) * width / extent(found.lane) - 1,
        "unroll": _log(point["unroll"]),
        "log_block": _log(block),
        "block_in_l1": _log(block * width * element / (cpu.l1 or 32768)),
        "log_task": _log(task_rows * task_columns),
        "task_a_in_l2": _log(task_rows * block * element / (cpu.l2 or 524288)),
        "task_b_in_l2": _log(task_columns * block * element / (cpu.l2 or 524288)),
        "b_in_l2": _log(columns * depth * element / (cpu.l2 or 524288)),
        "log_tasks": _log(tasks),
        "imbalance": -(-tasks // space.threads) * space.threads / tasks - 1,
        "pack_a_phase": float(point["pack_a"] == "phase"),
        "pack_a_task": float(point["pack_a"] == "task"),
        "pack_b": float(point["pack_b"] == "panels"),
        "pad": float(point["pad_a"] > 0),
        "ordered_a": float(bool(point["order_a"])),
        "columns_first": float(point["columns_first"]),
        "prefetch": point["prefetch"] / 8,
        "log_split": _log(point["split"]),
        "channels_split": float(any("%" in name for name in point["depth"])),
        "log_inner": _log(
            16 if "%" in inner else next(extent(s) for s in found.depth if s.name == inner.split("/")[0])
        ),
        "window": float(len(found.depth)),
    }


def _nest(space: ScheduleSpace, part: StageSpace, point: Mapping[str, Any]) -> dict[str, float]:
    stage = space.program.stage(part.stage)
    order = point.get("order")
    tasks = point.get("tasks", 1)
    return {
        "log_work": _log(part.work),
        "log_bytes": _log(part.moved_bytes),
        "log_rows": _log(math.prod(a.extent for a in stage.axes)),
        "log_columns": _log(stage.axes[-1].extent if stage.axes else 1),
        "threads": float(space.threads),
        "log_tasks": _log(float(tasks)),
        "imbalance": -(-tasks // space.threads) * space.threads / tasks - 1,
        "nest_vectors": _log(point.get("vectors", 4)),
        "nest_rows": float(point.get("rows", 0)) ** 0.5,
        "nest_cache": float(("none", "scratch", "output").index(point.get("cache", "none"))),
        "nest_accumulators": _log(point.get("accumulators", 4)),
        "nest_transpose": float(point.get("transpose", 1)),
        "nest_cut": float(point.get("cut", 1)),
        "nest_window": _log(point.get("window", 64)),
        "nest_keep": float(point.get("keep", "costly") == "all"),
        "nest_ordered": float(order is not None),
        "nest_moved": float(order is not None and order[-1] != stage.axes[-1].symbol.name),
    }


def _chain(space: ScheduleSpace, part: StageSpace, point: Mapping[str, Any]) -> dict[str, float]:
    """What describes a point, under the names of contractions."""
    assert part.chain is not None
    cpu, threads = space.cpu, space.threads
    sizes, d = part.chain.parts.sizes, chain_decisions(part.chain.parts, point)
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
