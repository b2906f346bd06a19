"""Measuring: programs against a reference, kernels for the cost model; always in a worker process that may die.

`compare` checks candidates numerically against a reference program and times them interleaved with it; `time_kernels`
yields labels for the cost model.  A candidate that crashes, hangs, eats the memory or computes something else becomes a
`Failure`, and the others go on.
"""

from superopt.measure.compare import Ran, compare, pooled, ran
from superopt.measure.kernels import KernelTiming, time_kernels
from superopt.measure.numerics import Tolerance, output_errors
from superopt.measure.result import Comparison, EntryPoint, Timing
from superopt.measure.session import ComparisonSettings

__all__ = [
    "Comparison",
    "ComparisonSettings",
    "EntryPoint",
    "KernelTiming",
    "Ran",
    "Timing",
    "Tolerance",
    "compare",
    "output_errors",
    "pooled",
    "ran",
    "time_kernels",
]
