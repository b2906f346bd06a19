"""How long a stage takes, roughly: enough to tell a phase that is worth sharing among threads from one that is not.

Every value is computed once for each combination of the iterators that it depends on (the generator hoists), so a
stage costs the sum over its values of instructions times extents, over the lanes of a vector; one with a register tile
costs its multiply-adds.  Calls of a kernel measure its work and replace the estimate (`pool`).
"""

from __future__ import annotations

from math import prod

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.scalar import SCALARS
from superopt.kernels.emit.types import width_of
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.loops.stage import Stage
from superopt.kernels.schedule.intrinsics import intrinsic

CYCLES_PER_MICROSECOND = 3000.0
CYCLES = {"load": 3.0, "op": 1.0, "convert": 2.0, "where": 1.0, "index": 1.0}
TRANSCENDENTAL, QUOTIENT, STORE = 20.0, 8.0, 3.0


def microseconds(stage: Stage, cpu: Cpu) -> float:
    """An estimate of the work of a stage on one thread."""
    parts = subexpressions(stage.value)
    size = max([width_of(e.dtype) for e in parts if e.dtype != "bool"], default=4)
    lanes = max(1, cpu.vector_bits // (8 * size))
    counts = [prod([int(s.high) + 1 for s in e.symbols if isinstance(s.high, int)]) for e in parts]
    if stage.tile is not None:
        return max(counts) / lanes / intrinsic(stage.tile.intrinsic).group / CYCLES_PER_MICROSECOND
    cycles = sum(_cycles(e) * n for e, n in zip(parts, counts, strict=True))
    stores = prod([a.extent for a in stage.axes])
    return (cycles + STORE * stores) / lanes / CYCLES_PER_MICROSECOND


def _cycles(e: Expr) -> float:
    if e.kind == "op" and SCALARS[e.args[0]].transcendental:
        return TRANSCENDENTAL
    if e.kind == "op" and e.args[0] in ("div", "rem"):
        return QUOTIENT
    return CYCLES.get(e.kind, 0.0)
