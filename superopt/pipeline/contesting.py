"""The stages that propose what is returned: by the contest, or by the performance model alone."""

from __future__ import annotations

from dataclasses import replace

from superopt.candidates.ledger import ChoiceReason, Chosen, Why
from superopt.contest.attribution import measured_gains
from superopt.contest.choices import (
    as_xla_computes,
    by_prediction,
    decided,
    original_after_failure,
    original_returned,
    undecided,
)
from superopt.contest.contest import Outcome, contest
from superopt.contest.rounds import Rounds, Subject
from superopt.explore.request import Request
from superopt.machine.budget import LEAST_KERNELS_S
from superopt.pipeline.session import Session, for_rounds_s
from superopt.pipeline.state import RunState, is_cut
from superopt.report.verdicts import HURRIED, UNPRICED, no_kernels


def unchanged(session: Session, state: RunState) -> Chosen:
    """The choice of the original, as long as nothing is known to be faster."""
    if state.hurried:
        return original_returned(session.imported, ChoiceReason.NO_TIME, notes=(HURRIED,))
    notes: list[str] = []
    if session.request.kernels_by and not session.kernels:
        late = f"a budget of less than {LEAST_KERNELS_S:g} s leaves no time to try them"
        notes.append(no_kernels(session.pool.backend.unavailable() or late))
    if session.kernels and not session.pool.backend.version:
        notes.append(UNPRICED)
    why = ChoiceReason.NO_TIME if state.found is None else ChoiceReason.NONE_FASTER
    return original_returned(session.imported, why, notes=tuple(notes))


def contests(session: Session, state: RunState) -> bool:
    """Whether there are candidates, and Ctrl-C has not ended the stages before."""
    return not is_cut(session, state) and (bool(state.made) or state.found is not None)


def hold_contest(session: Session, state: RunState) -> RunState:
    """Time the candidates with the original, and propose those that may be returned, the best first."""
    session.end(session.pool, session.alone)
    judged, found = unchanged(session, state), state.found
    request = session.request.within(state.limits)
    entries = as_xla_computes(found) if found is not None and not state.made else state.made
    entries = [session.entered(entry) for entry in entries]
    known_s = session.known_s(for_rounds_s(state.limits))
    subject, apart = Subject.of(session.imported), not state.hurried
    with Rounds(subject, request, session.worker, apart, known_s=known_s, other=session.second) as rounds:
        said = contest(rounds, entries, session.clock.say, ledger=session.ledger)
    chosen = [decided(said, number, judged) for number in said.order]
    first = chosen[0].candidate if chosen else None
    if first is not None and first.finalist and not first.kernels:
        work = session.fallback.around(
            "measured gains", lambda: _with_gains(session, state, chosen[0], said, request), None
        )
        chosen[0] = work or chosen[0]
    return replace(state, proposals=tuple(chosen), otherwise=undecided(session.imported, said, judged))


def _with_gains(session: Session, state: RunState, winner: Chosen, said: Outcome, request: Request) -> Chosen:
    """The choice of a program that XLA computes, with measured gains of its most important rules."""
    assert state.found is not None
    finalist = state.found.finalist(winner.candidate.finalist)
    assert finalist is not None
    session.clock.say("timing the winner without its most important rules")
    try:
        with Rounds(Subject.of(session.imported), request, session.worker, other=session.second) as rounds:
            gains = measured_gains(rounds, state.found, finalist, winner.candidate.options, said.final)
    except KeyboardInterrupt:
        return replace(winner, interrupted=True)
    return replace(winner, gains=gains)


def predict(session: Session, state: RunState) -> RunState:
    """Propose the cheapest of the search's programs by the model; nothing is measured."""
    found = state.found
    if found is None and not session.fallback.lost:
        return replace(state, otherwise=original_returned(session.imported, ChoiceReason.NO_TIME))
    chosen = None
    if found is not None:
        chosen = session.fallback.around("the choice by the model", lambda: by_prediction(found, state.made), None)
    if chosen is None:
        return replace(state, otherwise=original_after_failure(session.imported, session.fallback))
    otherwise = original_returned(session.imported, ChoiceReason.NOTHING_CHEAPER)
    return replace(state, proposals=tuple(chosen), otherwise=otherwise)


def at_hand(session: Session, state: RunState) -> RunState:
    """Propose the best fallback where the search was cut off: the plain candidate, a prediction, or the original."""
    cut, judged = is_cut(session, state), unchanged(session, state)
    if state.plain is not None:
        why = Why(ChoiceReason.PLAIN_INTERRUPTED if cut else ChoiceReason.PLAIN_CONTEST_LOST)
        judged = Chosen(state.plain, why=why, notes=judged.notes)
    elif state.found is not None and state.found.interrupted:
        state = predict(session, state)
        proposals = tuple(replace(one, interrupted=True) for one in state.proposals)
        assert state.otherwise is not None
        return replace(state, proposals=proposals, otherwise=replace(state.otherwise, interrupted=True))
    elif not session.request.searches:
        judged = original_after_failure(session.imported, session.fallback)
    elif cut:
        judged = original_returned(session.imported, ChoiceReason.MEASURING_INTERRUPTED, notes=judged.notes)
    return replace(state, proposals=(), otherwise=replace(judged, interrupted=cut))
