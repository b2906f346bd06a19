"""The stages of the plain candidate: begun beside other work, joined, and timed with the original without a search."""

from __future__ import annotations

from dataclasses import replace

from superopt.candidates.candidate import Candidate, Provenance
from superopt.candidates.evidence import of_original
from superopt.candidates.ledger import ChoiceReason, Chosen, Why
from superopt.contest.choices import original_after_failure, original_returned
from superopt.contest.contest import duel
from superopt.contest.rounds import ORIGINAL, Rounds, Subject
from superopt.explore.loops import opened
from superopt.machine.background import BackgroundCall
from superopt.machine.budget import LEAST_KERNELS_S, LEAST_S
from superopt.machine.deadline import Deadline, now_s
from superopt.make.plain import in_regions, own_form
from superopt.pipeline.session import CONTEST, FIRST, Session
from superopt.pipeline.state import RunState


def begin_checks(session: Session, state: RunState) -> RunState:
    """Begin what the check needs of the original, beside all other stages."""
    runs = session.runs
    runs.end_s = session.deadline.end_s
    state = replace(state, limits=session.deadline)
    if session.request.searches and session.request.deterministic:  # it is called after the search
        return state
    if session.request.searches or not runs.on_disk:
        runs.begin()
    # else weights are not read for it while other processes are there
    yardstick = None if runs.on_disk else BackgroundCall(lambda: runs.truth, native=False)
    return replace(state, yardstick=yardstick)


def begin_plain(session: Session, state: RunState) -> RunState:
    """Begin to make the plain candidate in other processes."""
    until = session.deadline.share()
    return replace(state, making=BackgroundCall(lambda: plain_candidate(session, until)))


def plain_candidate(session: Session, deadline: Deadline, *, kernels: bool = True) -> Candidate | None:
    """The program's own form with every region a kernel; None where it cannot be made."""
    graph, maker = session.imported.graph, session.maker
    if not kernels or maker is None:
        return Candidate(name="own form", program=own_form(graph), origin=Provenance.OWN_FORM)

    def made() -> Candidate:
        # the steps of sixteen loop programs take .05 s each at most
        until = Deadline() if session.request.deterministic else deadline.at_most(LEAST_S)
        without, loops = (graph, ()) if session.request.exact else opened(graph, until)
        form = in_regions("own form", own_form(without))
        return maker.make(replace(form, loops=loops), deadline)

    return session.fallback.around("the plain candidate", made, None, let=FIRST)


def join_plain(session: Session, state: RunState) -> RunState:
    """Wait for the plain candidate, or take what there is after Ctrl-C."""
    assert state.making is not None
    made = state.making.by(now_s()) if state.interrupted_early else state.making.result()
    if made is None or made.changes_nothing:
        return state
    plain = replace(made, plain=True)
    return replace(state, plain=plain, made=(plain,))


def make_alone(session: Session, state: RunState) -> RunState:
    """Make the plain candidate without a search."""
    wanted = bool(session.request.kernels_by) and not session.pool.backend.unavailable()
    plain = plain_candidate(session, Deadline(), kernels=wanted)
    if plain is None:
        return replace(state, otherwise=original_after_failure(session.imported, session.fallback))
    if plain.changes_nothing:
        return replace(state, otherwise=original_returned(session.imported, ChoiceReason.NOTHING_TO_DO))
    return replace(state, otherwise=Chosen(plain, why=Why(ChoiceReason.PLAIN_UNTIMED)))


def times_plain(session: Session, state: RunState) -> bool:
    """Whether the plain candidate, chosen without a search, is timed with the original: not where it must come back."""
    made = state.otherwise is not None and state.otherwise.needs_check
    return made and not (session.request.deterministic or session.request.keeps_plain)


def time_plain(session: Session, state: RunState) -> RunState:
    """Time the plain candidate for a second; choose the original, if that is faster beyond doubt."""
    assert state.otherwise is not None
    plain, runs = state.otherwise.candidate, session.runs
    runs.rest_s = LEAST_S
    _ = runs.wanted
    request = session.request.within(Deadline.within(LEAST_S))
    builds_s = len(CONTEST) * (runs.build_s + LEAST_KERNELS_S)  # a build may include the start of a process
    subject, known_s = Subject.of(session.imported), session.known_s(LEAST_S)
    with Rounds(subject, request, session.worker, apart=False, builds_s=builds_s, known_s=known_s) as rounds:
        series = duel(rounds, [plain])
    measured = series.measured(0)
    if measured is None:
        return state
    if series.is_slower(0):
        why = Why(ChoiceReason.PLAIN_SLOWER, after_ms=measured.after_ms or 0.0, before_ms=measured.before_ms or 0.0)
        original = of_original(measured.before_ms, series.noise_floor, series.samples_s(ORIGINAL))
        return replace(state, otherwise=original_returned(session.imported, why, measured=original, listed=plain))
    samples = {"original": ORIGINAL, "returned": 0}
    samples_ms = {name: tuple(1e3 * s for s in series.samples_s(i)) for name, i in samples.items()}
    measured = replace(measured, samples_ms=samples_ms)
    return replace(state, otherwise=Chosen(plain, why=Why(ChoiceReason.PLAIN_UNSEARCHED), measured=measured))
