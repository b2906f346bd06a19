"""Cycles of stages on one thread: the estimate by which default schedules are chosen.  It ranks, it does not predict.

Rates are those of the processor that the schedule is for; those of `host()` are nominal, so that a default schedule is
the same in every process and on every machine with the same vectors and caches.
"""

from __future__ import annotations

from superopt.kernels.llvm.cpu import Cpu

_WORTH_S, _FORK_S = 4e-6, 1e-6  # work that is worth a fork, and what it costs


def is_short(cycles: float, cpu: Cpu) -> bool:
    """Whether one thread is to do this work alone."""
    return cycles < cpu.rates.cycles(_WORTH_S)


def fork(cpu: Cpu, threads: int) -> float:
    """Return the cycles of a fork; 0 on one thread."""
    return cpu.rates.cycles(_FORK_S) if threads > 1 else 0.0


def from_beyond_l2(size: float, cpu: Cpu) -> float:
    """Return the cycles to read so many bytes once from L3 or memory, where they lie; 0 where they fit L2."""
    if size <= cpu.l2:
        return 0.0
    return size / (cpu.rates.from_memory if size > cpu.l3 else cpu.rates.from_l3)
