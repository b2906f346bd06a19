"""Integer sums: none leaves its type, or it wraps exactly as the sum that it stands for.

A sum of k products of bytes stays below k * 255 * 128.  Where that fits the accumulator nothing wraps.  Where it does
not, the accumulator must have the type in which the program before sums, and the machine's integers wrap as that type
does; a narrower one is refuted by the number of terms and the values that take it over the edge.
"""

from __future__ import annotations

from superopt.ir.expr import Expr
from superopt.ir.scalar import DTYPE
from superopt.kernels.loops.stage import Stage
from verifier.schedules.numbers import Ranges, range_of_dtype, sums
from verifier.schedules.questions import Findings
from verifier.schedules.stages import View
from verifier.schedules.verdict import OVERFLOW, PROVED, REFUTED, Witness


def overflow(before: View, after: View, out: Findings) -> None:
    """The obligations of all sums of integers in a program."""
    known = {_width(e) for s in before.program.stages for e in sums(before.plain(s).value)}
    ranges = Ranges()
    for stage in after.program.stages:
        for e in sums(after.plain(stage).value):
            _sum(stage, e, ranges, known, out)


def _width(e: Expr) -> int:
    return DTYPE[e.dtype].itemsize


def _sum(stage: Stage, e: Expr, ranges: Ranges, known: set[int], out: Findings) -> None:
    ranges.of(e)
    low, high = ranges.exact[e]
    least, most = range_of_dtype(e.dtype)
    inside = ranges.whole.get(e.args[2], True)
    what = f"the sum over {','.join(f'{s}<{s.extent}' for s in e.args[1])} in {e.dtype}"
    if least <= low and high <= most and inside:
        out.add(OVERFLOW, stage.buffer, f"{what} stays in {int(low)} .. {int(high)}", PROVED, "intervals")
    elif known and _width(e) >= min(known):
        out.add(OVERFLOW, stage.buffer, f"{what} wraps as the sum before does", PROVED, "structure")
    else:
        one = ranges.of(e.args[2])
        end = most if high > most else least
        size = max(one[1], 1) if high > most else min(one[0], -1)
        steps = int(end // size) + 1
        says = f"after {steps} terms of {int(size)} the sum is {int(steps * size)}, and {e.dtype} ends at {int(end)}"
        at = tuple((s.name, 0) for s in e.args[1])
        out.add(OVERFLOW, stage.buffer, what, REFUTED, "intervals", Witness(at, (), says))
