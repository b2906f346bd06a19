"""Rates of a processor: the one model of its speed, which estimates of time read.

`NOMINAL` is a fixed processor.  Default schedules and the features of the cost model are computed for it, so that they
are the same on every machine with the same vectors and caches.  Those of the machine at hand are measured once per
processor (`superopt.measure.rates`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """The speed of one thread of a processor, and costs of calls and threads.

    Attributes:
        hertz: cycles of a core in a second.
        ticks: ticks of the time stamp counter in a second, whatever the clock of the core is.
        fma_s: seconds of one of many independent vector multiply-adds.
        from_l2, from_l3, from_memory: bytes in a cycle from beyond the first, the second and the last cache.
        call_s: seconds of a call of a kernel that does nothing.
        task_s: seconds of starting a task.
        wake_s: seconds of sharing a call with helpers that are awake.
        handover_s: seconds of one region of XLA's between kernels of ours, beside its own.
    """

    hertz: float
    ticks: float
    fma_s: float
    from_l2: float
    from_l3: float
    from_memory: float
    call_s: float
    task_s: float
    wake_s: float
    handover_s: float

    def cycles(self, seconds: float) -> float:
        """Return the cycles of a core in so many seconds."""
        return seconds * self.hertz


NOMINAL = Rates(
    hertz=3.5e9, ticks=2.8e9, fma_s=2.74e-10, from_l2=48.0, from_l3=24.0, from_memory=6.0,
    call_s=2e-7, task_s=4e-8, wake_s=1.5e-6,
    handover_s=4e-5,  # a program of three kernels takes 65 us with such a region, 22 without
)  # fmt: skip
"""The processor of estimates: about the one of the first labels of the cost model."""
