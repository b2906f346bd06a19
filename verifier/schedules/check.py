"""The check of a schedule: all obligations, by the arithmetic of this package and then, where open, by the solver."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.errors import InputError
from superopt.kernels.loops.program import checked
from superopt.kernels.loops.ranges import require_within
from superopt.kernels.loops.show import digest
from superopt.kernels.loops.stage import LoopProgram
from superopt.machine.deadline import Deadline, Stopwatch
from verifier.schedules import obligations
from verifier.schedules.domain import ExhaustedError, QuestionBudget
from verifier.schedules.questions import Findings
from verifier.schedules.remote import Answers, settle_all
from verifier.schedules.stages import View
from verifier.schedules.tiles import tile
from verifier.schedules.value import BufferValues
from verifier.schedules.verdict import OBLIGATIONS, ORDER, VALUE, CheckLimits, Finding, ScheduleVerdict, Witness
from verifier.verdict import PROVED, REFUTED, UNKNOWN

_RANK = {REFUTED: 0, UNKNOWN: 1, PROVED: 2}


def check_schedule(
    before: LoopProgram,
    after: LoopProgram,
    limits: CheckLimits | None = None,
    aliases: Sequence[tuple[str, str]] = (),
    answers: Answers | None = None,
) -> ScheduleVerdict:
    """Prove or refute that a loop program after a trace is safe to run and computes the same outputs as before.

    Args:
        before: the program to which the trace was applied; its stages are the specification.
        after: the program from which code is generated.
        limits: limits of the check; the verdict is UNKNOWN beyond them.
        aliases: outputs and the inputs whose memory they take.
        answers: cache of the solver's answers.

    Returns:
        A verdict with one finding per obligation and place; refutations hold iterator values as a witness.
    """
    watch = Stopwatch()
    limits = limits or CheckLimits()
    out = Findings(limits, frozenset(b.name for b in after.buffers if b.scope in ("input", "frozen")))
    real = False
    try:
        if obligations.sequence(after, out):
            real = _discharge(before, require_within(before, checked(after)), aliases, out, answers)
    except InputError as error:
        out.add(ORDER, after.name, "a well-formed program", REFUTED, "structure", Witness((), (), str(error.args[0])))
    except (ExhaustedError, RecursionError) as spent:
        out.add(VALUE, after.name, "within the limits of the check", UNKNOWN, str(spent))
    return _verdict(before, after, out, real, watch.elapsed_s)


def _discharge(
    before: LoopProgram,
    after: LoopProgram,
    aliases: Sequence[tuple[str, str]],
    out: Findings,
    answers: Answers | None,
) -> bool:
    """Check all obligations, with findings in `out`; return whether some sum is taken in another order."""
    budget = QuestionBudget(out.limits.steps, Deadline.within(out.limits.seconds))
    old, new = View(before, budget), View(after, budget)
    for stage in after.stages:
        obligations.layout(new, stage, out)
        obligations.bounds(new, stage, out)
        obligations.order(new, stage, out)
        obligations.accumulation(stage, out)
        if after.buffer(stage.buffer).scope == "output":
            obligations.complete(new, stage, out)
        tile(new, stage, out)
    obligations.aliases(new, aliases, out)
    values = BufferValues(old, new, out)
    values.run()
    obligations.overflow(old, new, out)
    real = values.real
    if not any(f.status == REFUTED for f in out.found):
        real |= settle_all(out, values.left_over, answers)
    return real


def _verdict(before: LoopProgram, after: LoopProgram, out: Findings, real: bool, seconds: float) -> ScheduleVerdict:
    findings = sorted(out.found, key=_place)
    status = min((f.status for f in findings), key=_RANK.__getitem__, default=UNKNOWN)
    key = f"{digest(before)}{digest(after)}"
    return ScheduleVerdict(after.name, key, status, tuple(findings), "real" if real else "exact", seconds)


def _place(f: Finding) -> tuple[int, int]:
    return _RANK[f.status], OBLIGATIONS.index(f.obligation)
