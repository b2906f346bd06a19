"""Which operands of windows are copied, so that the lanes of a stage are next to each other in them.

A window reads each element several times.  Where the elements along the lane are apart in memory (images with
channels first into images with channels last, a convolution of each channel alone), every one of these reads would be
a gather, or a transpose in registers of as many rows as there are lanes; a copy transposes each element once.
"""

from __future__ import annotations

from math import prod
from typing import Any

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import Symbol, coefficient, row_major
from superopt.kernels.loops.stage import LoopProgram, Stage, extent
from superopt.kernels.schedule.trace import attempt

_AGAIN = 4  # reads of an element from which a copy of it pays


def along_lane(program: LoopProgram, name: str) -> list[list[Any]]:
    """Steps that copy what the windows of a stage read apart; none where there is no such buffer."""
    stage = program.stage(name)
    lanes = [a.symbol for a in stage.axes if a.extent > 1]
    plain = stage.tile is None and stage.at is None and not stage.knobs and all(a.kind == "serial" for a in stage.axes)
    if not plain or not lanes:
        return []
    steps: list[list[Any]] = []
    for source in dict.fromkeys(e.args[0] for e in _of_windows(stage)):
        copied = _copied(program, stage, source, lanes[-1])
        after = attempt(program, copied)
        if copied and isinstance(after, LoopProgram):
            program, steps = after, [*steps, *copied]
            stage = program.stage(name)
    return steps


def _of_windows(stage: Stage) -> list[Expr]:
    """The loads inside reductions."""
    inner = [e for r in subexpressions(stage.value) if r.kind == "reduce" for e in subexpressions(r.args[2])]
    return [e for e in dict.fromkeys(inner) if e.kind == "load"]


def _copied(program: LoopProgram, stage: Stage, source: str, lane: Symbol) -> list[list[Any]]:
    """The copy of one buffer with the dimension of the lane last."""
    buffer = program.buffer(source)
    reads = [e for e in _of_windows(stage) if e.args[0] == source and lane in e.symbols]
    if not reads or buffer.scope == "local":
        return []
    dimensions = {d for e in reads for d, x in enumerate(e.args[1]) if not isinstance(x, int) and lane in x.symbols}
    steps = {coefficient(row_major(e.args[1], buffer.shape), lane) for e in reads}
    times = sum(prod([extent(s) for s in e.symbols]) for e in reads) / max(1, prod(buffer.shape))
    if len(dimensions) != 1 or steps & {0, 1, -1, None} or times < _AGAIN:
        return []
    (d,) = dimensions
    order = [*[k for k in range(len(buffer.shape)) if k != d], d]
    copy = f"{source}_along"
    return [
        ["cache_read", stage.buffer, source, copy],
        ["transform_layout", copy, [["permute", order]], "new"],
    ]
