"""An answer of the store whose speed was in doubt, timed anew."""

from __future__ import annotations

from dataclasses import replace

from superopt.candidates.candidate import Candidate
from superopt.contest.contest import duel
from superopt.contest.rounds import Rounds, Subject
from superopt.machine.budget import LEAST_KERNELS_S, LEAST_S
from superopt.machine.deadline import Deadline
from superopt.pipeline.session import CONTEST, Session
from superopt.report.verdicts import ANSWERED, IN_DOUBT
from superopt.returned.optimized import Optimized
from superopt.returned.remember import remember


def timed_again(session: Session, known: Optimized, key: str) -> Optimized | None:
    """The answer with new figures; None where the original is faster.

    Where the new rounds leave no doubt, the entry of the store loses its mark.
    """
    kept = Candidate(
        name="kept", program=known.program, kernels=known.kernels, options=known.report.compiler_options
    )  # fmt: skip
    request = session.request.within(Deadline.within(LEAST_S))
    subject, builds_s = Subject.of(session.imported), len(CONTEST) * LEAST_KERNELS_S
    with Rounds(subject, request, session.worker, apart=False, builds_s=builds_s) as rounds:
        series = duel(rounds, [kept])
    if series.is_slower(0):
        return None
    measured = series.measured(0)
    if measured is None or not series.is_decided:
        return known
    notes = tuple(note for note in known.report.notes if note not in (IN_DOUBT, ANSWERED))
    known.report = replace(known.report, measured=measured, notes=notes)
    session.fallback.around("the entry in the store", lambda: remember(session.store, key, known), None)
    known.report = replace(known.report, notes=(*notes, ANSWERED))
    return known
