"""Measuring: programs against a reference, kernels for the cost model; always in a worker process that may die.

`compare` checks candidates numerically against a reference program and times them interleaved with it; `confirm`
re-times one winner on fresh rounds, since the best of several noisy figures is too good; `time_kernels` yields labels
for the cost model.  A candidate that crashes, hangs, eats the memory or computes something else becomes a
`Failure`, and the others go on.
"""

from superopt.measure.compare import as_called, compare, confirm, pooled
from superopt.measure.kernels import KernelTiming, time_kernels
from superopt.measure.numerics import OutputError, Tolerance, output_errors
from superopt.measure.process import ProcessLimits, Worker
from superopt.measure.result import Comparison, EntryPoint, Failure, Ratio, Timing, Tuned

__all__ = [
    "Comparison",
    "EntryPoint",
    "Failure",
    "KernelTiming",
    "OutputError",
    "ProcessLimits",
    "Ratio",
    "Timing",
    "Tolerance",
    "Tuned",
    "Worker",
    "as_called",
    "compare",
    "confirm",
    "output_errors",
    "pooled",
    "time_kernels",
]
