"""The stage of the check: the first proposal that computes what the original does, and whose machine code does."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from threading import Event
from typing import TypeVar

from superopt.candidates.ledger import ChoiceReason, Chosen, Rejected, Validated, Why
from superopt.certify.kernels import MOST_VALIDATION_S
from superopt.contest.checks import OriginalLostError
from superopt.contest.choices import after_check, compare_with_original, original_after_failure, original_returned
from superopt.machine.background import BackgroundCall, TimeOverError
from superopt.machine.deadline import now_s
from superopt.pipeline import validating
from superopt.pipeline.session import Session
from superopt.pipeline.state import RunState, is_cut

T = TypeVar("T")
AFTER_S = 0.5  # after Ctrl-C, for what is left to do for the program at hand


def check(session: Session, state: RunState) -> RunState:
    """Choose the first proposal that passes the check, or else what is returned otherwise."""
    assert state.otherwise is not None
    checks = _Checks(session, is_cut(session, state))
    for proposal in state.proposals:
        checked = checks.checked(proposal)
        if not checked.returns_original or proposal.returns_original:
            return replace(state, choice=checked)
        if not session.ledger.about(proposal.candidate, Rejected):
            session.ledger.add(Rejected(proposal.candidate, checked.why))
    return replace(state, choice=checks.checked(state.otherwise))


@dataclass(slots=True)
class _Checks:
    """The checks of one optimisation.

    Attributes:
        cut: Ctrl-C has ended a stage: what is at hand is checked for a moment.
        cut_s: instant at which what was there by Ctrl-C began to be checked.
    """

    session: Session
    cut: bool
    cut_s: float = math.inf

    def checked(self, choice: Chosen) -> Chosen:
        """The choice after the check that was put off; nothing is measured after it."""
        session, runs, halted = self.session, self.session.runs, Event()
        session.entered(choice.candidate)
        interrupted = self.cut or choice.interrupted or session.fallback.interrupted
        if interrupted:
            halted.set()
            self.cut_s = min(self.cut_s, now_s())
        session.end(session.pool, session.alone)
        if runs.has_run:
            session.end(session.worker)
        validated = BackgroundCall(lambda: validating.validated_code(session, choice, halted.is_set))
        checked = self._settled(choice, interrupted)
        if checked is None or not checked.candidate.kernels:
            halted.set()
            return checked or original_after_failure(session.imported, session.fallback)
        interrupted = interrupted or session.fallback.interrupted
        end_s = self.cut_s + AFTER_S if interrupted else math.inf
        code = session.fallback.around("the validation of machine code", lambda: validated.by(end_s), None)
        halted.set()
        if code is not None and code.refuted:
            checked = self._settled(validating.without(session, choice, code.refuted), interrupted)
        if checked is None or code is None:
            return checked or original_after_failure(session.imported, session.fallback)
        session.clock.say(f"machine code of {code.proved} of {code.count} kinds of kernels validated")
        refuted = len(set(code.refuted.values()))
        session.ledger.add(Validated(checked.candidate, code.proved, code.unknown, refuted))
        return checked

    def _waited(self, work: BackgroundCall[T], end_s: float) -> T:
        """The result of a check by this instant; after Ctrl-C it goes on for a moment."""
        try:
            return work.result(end_s)
        except KeyboardInterrupt:
            self.session.fallback.interrupted = True
            self.cut_s = min(self.cut_s, now_s())
            return work.result(min(end_s, self.cut_s + AFTER_S))

    def _settled(self, choice: Chosen, interrupted: bool) -> Chosen | None:
        """The choice after its check; None where that fails.

        It is the original where a program's calls, or its own, do not end in time.
        """
        if not choice.needs_check:
            return choice
        session, runs = self.session, self.session.runs
        late_s = now_s() + MOST_VALIDATION_S + 4.0 * (runs.build_s + runs.call_s)
        end_s = self.cut_s + AFTER_S if interrupted else max(runs.end_s, late_s)
        runs.end_s = min(runs.end_s, end_s)

        def check() -> Chosen:
            try:
                found = self._waited(BackgroundCall(lambda: compare_with_original(choice.candidate, runs)), end_s)
            except OriginalLostError as error:
                why = Why(ChoiceReason.ORIGINAL_LOST, str(error))
            except TimeOverError:
                why = Why(ChoiceReason.CHECK_LATE)
            else:
                session.ledger.add(found)
                after = after_check(session.imported, choice, found)
                if found.cause:
                    session.ledger.add(Rejected(found.candidate, after.why))
                return after
            return original_returned(session.imported, why, notes=choice.notes, interrupted=interrupted)

        return session.fallback.around("the check", check, None)
