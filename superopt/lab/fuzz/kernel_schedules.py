"""Random schedules: knobs of every stage, and traces of schedule primitives that fit the program."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from superopt.errors import InputError
from superopt.kernels import schedule
from superopt.kernels.choose import defaults
from superopt.kernels.llvm.cpu import host
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.trace import apply
from superopt.lab.fuzz.kernel_graphs import Rng

_KNOBS: dict[str, list[int | str]] = {
    "vectors": [1, 2, 4, 8],
    "rows": [0, 0, 1, 2, 3], "accumulators": [1, 2, 4], "cache": ["none", "scratch", "output"],
    "keep": ["costly", "all"], "window": [0, 9, 64], "rows_per_task": [0, 0, 1, 7], "tasks": [1, 3, 16],
    "cut": [1, 1, 0], "transpose": [1, 1, 0], "lane": [1, 1, 1, 0],
}  # fmt: skip


_STEPS = [
    "split",
    "split",
    "reorder",
    "vectorize",
    "parallel",
    "unroll",
    "fuse",
    "compute_at",
    "compute_at",
    "inline",
    "cache_write",
    "reverse_compute_at",
    "rfactor",
    "split_reduction",
    "decompose_reduction",
    "materialize",
    "split_prefix",
    "widen",
]


def scheduled(program: LoopProgram, rng: Rng) -> tuple[LoopProgram, tuple[str, ...]]:
    """The program under random decisions, or under a default schedule of any plainness, and the decisions."""
    if rng.random() < 0.3:
        return _by_default(program, rng)
    stages = [
        replace(s, knobs=tuple([(k, v[int(rng.integers(len(v)))]) for k, v in _KNOBS.items()])) for s in program.stages
    ]
    program = replace(program, stages=tuple(stages))
    trace: list[str] = []
    if rng.random() < 0.4:
        return program, ()
    for _ in range(int(rng.integers(1, 8))):
        step = _step(program, rng)
        if step is None:
            continue
        name, args = step
        try:
            program = getattr(schedule, name)(program, *args)
        except InputError:  # a premise of the primitive does not hold
            continue
        trace.append(f"{name}{tuple(args)}")
    return program, tuple(trace)


def _by_default(program: LoopProgram, rng: Rng) -> tuple[LoopProgram, tuple[str, ...]]:
    found = list(itertools.islice(defaults.traces(program, host(), int(rng.integers(1, 5))), 1 + int(rng.integers(8))))
    return apply(program, found[-1]), tuple(map(str, found[-1]))


def _step(program: LoopProgram, rng: Rng) -> tuple[str, list[Any]] | None:
    def pick(items: Any) -> Any:
        return items[int(rng.integers(len(items)))]

    stage = pick(program.stages)
    axes = [a.symbol.name for a in stage.axes]
    if not axes:
        return None
    kind = pick(_STEPS)
    if kind == "split":
        return "split", [stage.buffer, pick(axes), [int(pick([2, 3, 4, 8, 16, 32]))]]
    if kind == "reorder":
        return "reorder", [stage.buffer, [axes[int(j)] for j in rng.permutation(len(axes))]]
    if kind == "fuse" and len(axes) > 1:
        j = int(rng.integers(len(axes) - 1))
        return "fuse", [stage.buffer, [axes[j], axes[j + 1]]]
    if kind in ("vectorize", "parallel", "unroll"):
        return kind, [stage.buffer, pick(axes)]
    if kind == "compute_at" and len(program.stages) > 1:
        other = pick(program.stages)
        return "compute_at", [stage.buffer, other.buffer, int(rng.integers(0, len(other.axes) + 1))]
    if kind == "rfactor":
        return "rfactor", [stage.buffer, 0, [0]]
    if kind == "split_reduction":
        return "split_reduction", [stage.buffer, 0, 0, [int(pick([2, 4, 16]))]]
    if kind == "split_prefix":
        return "split_prefix", [stage.buffer, int(rng.integers(2)), int(pick([2, 3, 8, 16]))]
    if kind == "decompose_reduction":
        return "decompose_reduction", [stage.buffer, [0], int(rng.integers(len(axes) + 1))]
    if kind == "materialize":
        return "materialize", [stage.buffer, int(rng.integers(3))]
    return (kind, [stage.buffer]) if kind in ("inline", "cache_write", "reverse_compute_at", "widen") else None
