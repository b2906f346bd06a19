"""Proofs about schedules: a loop program after a trace computes what it computed before, and touches nothing else.

`check_schedule(before, after)` discharges seven obligations, each proved, refuted with concrete iterator values, or
unknown; only a program that is proved may run unchecked.  The arithmetic is over concrete extents: intervals and
linear combinations first (`domain`), inverses of index maps by digits (`maps`), enumeration of small domains, Z3 and
the prover of rules for what is left, in a process under a clock.
"""

from verifier.schedules.check import check_schedule
from verifier.schedules.verdict import OBLIGATIONS, CheckLimits, Finding, ScheduleVerdict, Witness

__all__ = ["OBLIGATIONS", "CheckLimits", "Finding", "ScheduleVerdict", "Witness", "check_schedule"]
