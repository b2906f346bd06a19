"""Proofs about schedules: a loop program after a trace computes the same outputs and accesses no other memory.

`check_schedule(before, after)` discharges seven obligations, each proved, refuted with concrete iterator values, or
unknown; only a program that is proved may run unchecked.  The arithmetic is over concrete extents.  It tries intervals
and linear combinations first (`domain`), then inverses of index maps by digits (`maps`) and enumeration of small
domains.  Questions still open go to Z3 and the prover of rules, in a process with a time limit.
"""

from verifier.schedules.check import check_schedule
from verifier.schedules.verdict import OBLIGATIONS, CheckLimits, Finding, ScheduleVerdict, Witness

__all__ = ["OBLIGATIONS", "CheckLimits", "Finding", "ScheduleVerdict", "Witness", "check_schedule"]
