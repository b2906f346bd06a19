"""Validation of the machine code of the program that is to be returned; kernels whose code is wrong are left to XLA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from superopt.candidates.evidence import UNMEASURED
from superopt.candidates.ledger import ChoiceReason, Chosen, Why
from superopt.certify.kernels import MOST_IN_FIELD, MOST_VALIDATION_S, Refutation, ValidatedCode, validate_code
from superopt.errors import KernelDefectError
from superopt.kernels.choose.specs import regions_of
from superopt.machine.deadline import HALF, Deadline
from superopt.pipeline.session import Session

_WRONG = "its machine code is wrong"


def validation_deadline(session: Session) -> Deadline:
    """The deadline of the validation of machine code, which runs beside the check."""
    if not session.request.searches:  # it is to be quick, whatever the budget
        return Deadline.within(HALF * session.clock.elapsed_s)
    return session.deadline.at_most(MOST_VALIDATION_S)


def validated_code(session: Session, choice: Chosen, halted: Callable[[], bool]) -> ValidatedCode:
    """The verdicts of validation on the machine code of the candidate's kernels."""
    candidate, deadline = choice.candidate, validation_deadline(session)
    return validate_code(candidate.program.hot, candidate.kernels, deadline.left_s, MOST_IN_FIELD, halted)


def without(session: Session, choice: Chosen, refuted: Mapping[int, Refutation]) -> Chosen:
    """The choice with regions of refuted machine code left to XLA; each refutation is reported as a defect."""
    for one in dict.fromkeys(refuted.values()):
        session.fallback.around(f"the code of the kernel {one.kernel}", lambda one=one: _defect(one), None)
    candidate = choice.candidate
    gone = [kernel for number, kernel in enumerate(candidate.kernels) if number in refuted]
    kept = tuple(kernel for number, kernel in enumerate(candidate.kernels) if number not in refuted)
    if session.maker is not None:
        session.maker.refuse(regions_of(candidate.program.hot, gone), _WRONG)
    why = Why(ChoiceReason.CODE_WRONG, count=len(gone))
    return replace(choice, candidate=replace(candidate, kernels=kept), measured=UNMEASURED, why=why)


def _defect(what: Refutation) -> None:
    raise KernelDefectError(str(what))
