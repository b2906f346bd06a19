"""Cycles of stages on one thread: the estimate by which default schedules are chosen.  It ranks, it does not predict.

Rates are those of the processor that the schedule is for; those of `host()` are nominal, so that a default schedule is
the same in every process and on every machine with the same vectors and caches.
"""

from __future__ import annotations

from math import prod

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import bounds
from superopt.ir.scalar import SCALARS
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.loops.stage import Stage

_WORTH_S, _FORK_S = 4e-6, 1e-6  # work that is worth a fork, and what it costs


def is_short(cycles: float, cpu: Cpu) -> bool:
    """Whether one thread is to do this work alone."""
    return cycles < cpu.rates.cycles(_WORTH_S)


def fork(cpu: Cpu, threads: int) -> float:
    """Return the cycles of a fork; 0 on one thread."""
    return cpu.rates.cycles(_FORK_S) if threads > 1 else 0.0


def untiled(stage: Stage) -> float:
    """Estimate the cycles of a stage without a tile: vectors of eight for each store and operation."""
    inner = max(
        [prod(int(bounds(s.extent)[1]) for s in e.args[1]) for e in subexpressions(stage.value) if e.kind == "reduce"],
        default=1,
    )
    nodes = sum(1 + 8 * _is_slow(e) for e in subexpressions(stage.value) if e.kind in ("op", "load", "convert"))
    return prod(a.extent for a in stage.axes) * (1 + inner * nodes) / 8


def from_beyond_l2(size: float, cpu: Cpu) -> float:
    """Return the cycles to read so many bytes once from L3 or memory, where they lie; 0 where they fit L2."""
    if size <= cpu.l2:
        return 0.0
    return size / (cpu.rates.from_memory if size > cpu.l3 else cpu.rates.from_l3)


def _is_slow(e: Expr) -> bool:
    return e.kind == "op" and (SCALARS[e.args[0]].transcendental or e.args[0] == "div")
