"""The last stages: the returned program is built, planned, reported, timed beside other runtimes, and kept."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

from costmodel.model.kept import keep
from superopt.backends.xla import XlaExecutable, build
from superopt.candidates.candidate import Candidate
from superopt.candidates.evidence import Measurement
from superopt.candidates.ledger import Chosen, Rejected
from superopt.certify.plan import Plan, empty_plan
from superopt.contest.checks import OriginalLostError, of_the_program
from superopt.contest.choices import original_after_failure
from superopt.explain.summary import make_report
from superopt.explore.trace import make_plan
from superopt.frontends.jax.jaxpr import Imported
from superopt.machine.background import BackgroundCall
from superopt.machine.fallback import Fallback
from superopt.pipeline.beside import peers_of
from superopt.pipeline.session import Clock, Session
from superopt.pipeline.state import RunState
from superopt.report.data import NativeKernel, PeerTiming, Report
from superopt.report.verdicts import unproved, verdict
from superopt.returned.optimized import Optimized
from superopt.returned.remember import remember


def finished(session: Session, state: RunState, name: str, key: str) -> Optimized:
    """The returned program, built, with its plan and its report; the original where it cannot be built."""
    clock, fallback, ledger = session.clock, session.fallback, session.ledger
    with clock.stage("build"):
        choice, executable = _built(session, state)
    with clock.stage("plan"):
        plan = fallback.around("the plan", lambda: _plan(session, state, choice), None)
    if state.proved.unproved:
        choice = replace(choice, notes=(*choice.notes, unproved(state.proved.unproved)))
    fallback.hurried = choice.returns_original and session.whole.is_over
    ledger.add(choice)
    with clock.stage("explain"):
        report = _report(session, state, choice, name)
    with clock.stage("beside"):
        peers = fallback.around("the comparison with other runtimes", lambda: _beside(session, executable), ())
    memory = {field: getattr(executable, field) for field in ("frozen_bytes", "prepared_bytes", "added_bytes")}
    report = replace(report, memory=memory, stages=tuple(clock.stages), peers=peers)
    candidate = choice.candidate
    result = Optimized(session.imported, candidate.program, executable, report, plan, candidate.kernels)
    if _is_kept(session, state, choice):
        store, left_out, noisy = session.store, state.proved.unproved, choice.noisy
        fallback.around("the entry in the store", lambda: remember(store, key, result, left_out, in_doubt=noisy), None)
    if (archive := session.store) is not None and (explored := state.found) is not None:
        fallback.around("the timed kernels in the store", lambda: keep(archive, explored.model.labels()), None)
    result.report = replace(report, lost=dict(fallback.lost), notes=(*report.notes, *fallback.notes))
    return result


def _built(session: Session, state: RunState) -> tuple[Chosen, XlaExecutable]:
    """The choice with its executable; the original where the chosen program cannot be built."""
    chosen = state.choice
    assert chosen is not None
    executable = session.fallback.around(
        "the chosen program", lambda: BackgroundCall(lambda: _executable(session, chosen)).result(), None
    )
    choice = original_after_failure(session.imported, session.fallback) if executable is None else chosen
    with of_the_program():
        executable = executable or _executable(session, choice)
        if session.imported.whole:  # on a thread of its own: the compiler hears no Ctrl-C
            BackgroundCall(lambda: executable.compile(*session.imported.live_values)).by(session.deadline.end_s)
    if choice.returns_original and not (session.imported.whole or session.fallback.interrupted):
        with session.fallback.kept("the run of the original"), suppress(OriginalLostError):
            _ = session.runs.wanted
    return choice, executable


def _executable(session: Session, choice: Chosen) -> XlaExecutable:
    candidate = choice.candidate
    return session.runs.candidate(candidate.program, candidate.options, candidate.kernels)


def _plan(session: Session, state: RunState, choice: Chosen) -> Plan:
    winner = None if state.found is None else state.found.finalist(choice.candidate.finalist)
    if winner is None or state.found is None:
        return replace(empty_plan(session.imported.graph, session.request.numerics), loops=choice.candidate.loops)
    return make_plan(state.found, winner, session.request.numerics)


def _report(session: Session, state: RunState, choice: Chosen, name: str) -> Report:
    def rows(candidate: Candidate) -> tuple[NativeKernel, ...]:
        priced = not session.fallback.interrupted  # the user waits
        return () if session.maker is None else session.maker.rows(candidate, priced)

    def report() -> Report:
        return make_report(
            name, session.imported, state.found, session.ledger, state.proved, session.request, session.fallback, rows
        )

    return session.fallback.around("the report", report, _least_report(choice, name))


def _least_report(choice: Chosen, name: str) -> Report:
    """The report that says what is returned, and why."""
    return Report(
        program=name, verdict=verdict(choice.candidate, choice.why),
        measured=Measurement(speedup=choice.measured.speedup), original_returned=choice.returns_original,
    )  # fmt: skip


def original_alone(imported: Imported, fallback: Fallback, clock: Clock, name: str) -> Optimized:
    """The original with the least report, where the optimisation itself could not be set up, or failed.

    Raises:
        ProgramError: it cannot be built.
    """
    choice = original_after_failure(imported, fallback)
    program = choice.candidate.program
    with of_the_program():
        executable = build(program, imported.frozen_values)
    report = replace(
        _least_report(choice, name), stages=tuple(clock.stages), lost=dict(fallback.lost), notes=fallback.notes
    )
    return Optimized(imported, program, executable, report)


def _beside(session: Session, executable: XlaExecutable) -> tuple[PeerTiming, ...]:
    """Timings of the returned program beside other runtimes; none where nothing may be measured any more."""
    if session.request.deterministic or session.fallback.interrupted or session.imported.whole:
        return ()
    left_s = session.whole.left_s if session.request.searches else math.inf
    return peers_of(session.model, session.imported, executable, left_s, session.request.seed)


def _is_kept(session: Session, state: RunState, choice: Chosen) -> bool:
    """Whether the result is an answer for later calls: nothing was lost, and another run would not find more."""
    if choice.interrupted or session.fallback.lost:
        return False
    hurried = session.request.searches and state.found is None
    return not (choice.returns_original and (hurried or choice.noisy or session.ledger.of(Rejected)))
