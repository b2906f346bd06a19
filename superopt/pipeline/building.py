"""The stages between the plain candidate and the search: the original's first call, and programs built ahead."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from superopt.candidates.candidate import Candidate, original_candidate
from superopt.certify.kernels import code_s
from superopt.contest.checks import OriginalLostError
from superopt.contest.rounds import least_s
from superopt.frontends.jax.jaxpr import Imported
from superopt.machine.background import BackgroundCall
from superopt.machine.deadline import HALF, Deadline
from superopt.measure import ComparisonSettings, Timing, compare
from superopt.measure.compare import serialisable
from superopt.pipeline.session import FIRST, Session, for_rounds_s
from superopt.pipeline.state import RunState
from superopt.workshop.job import JobWorker


def run_original(session: Session, state: RunState) -> RunState:
    """Wait for the original's results, and reserve the time of validation; decide whether builds are too slow.

    Raises:
        OriginalLostError: there are no results, or only one call fits in the time and there is no program to compare.
    """
    if state.interrupted_early:
        raise KeyboardInterrupt
    build_s = first_call_s(session, state)
    if state.yardstick is not None:
        state.yardstick.by(session.deadline.share().end_s)
    reserved_s = validation_s(session, state.made)
    # the original is built once more for the contest; programs in kernels are fast
    if session.kernels and session.deadline.share().left_s < build_s:
        return replace(state, code_s=reserved_s, hurried=True, limits=session.deadline.reserve(reserved_s))
    return replace(state, code_s=reserved_s, build_s=build_s)


def first_call_s(session: Session, state: RunState) -> float:
    """Seconds of the original's first call, the build included.

    Raises:
        OriginalLostError: there are no results, or nothing to compare in the time.
    """
    runs = session.runs
    runs.rest_s = session.deadline.share().left_s
    _ = runs.wanted
    if state.plain is None and session.known_s(for_rounds_s(session.deadline)):
        more = "more than " if runs.given_up else ""
        raise OriginalLostError(
            f"a call of it takes {more}{runs.call_s:.3g} s: the time does not suffice for comparing"
        )  # fmt: skip
    return runs.build_s


def validation_s(session: Session, made: Sequence[Candidate]) -> float:
    """Seconds reserved for validating machine code: the estimate for these programs, at most half of the rest."""
    every = [(form.program.hot, form.kernels) for form in made]
    takes_s = session.fallback.around(
        "the time of validation", lambda: sum(code_s(*one) for one in every), 0.0, let=FIRST
    )
    return min(takes_s, HALF * session.deadline.share().left_s)


def begin_ahead(session: Session, state: RunState) -> RunState:
    """Begin to build the original and the plain candidate in the comparing process."""
    whole = session.deadline
    known_s = session.known_s(for_rounds_s(whole))
    return replace(
        state, ahead=BackgroundCall(lambda: built_in(session.worker, session.imported, state.made, whole, known_s))
    )


def join_ahead(session: Session, state: RunState) -> RunState:
    """Wait for the builds, and validate machine code of the plain candidate meanwhile."""
    assert state.ahead is not None
    validating = nullcontext() if session.kernel_maker is None else session.kernel_maker.meanwhile(())
    with validating:
        again_s, rounds_s = session.fallback.around("programs built ahead", state.ahead.result, (0.0, 0.0), let=FIRST)
    build_s = min(state.build_s, again_s)  # both ran beside other work, the second with the start of its process
    limits = session.deadline.reserve(build_s + state.code_s)
    return replace(state, build_s=build_s, rounds_s=rounds_s, limits=limits)


def built_in(
    worker: JobWorker, imported: Imported, entries: Sequence[Candidate], whole: Deadline, known_s: float
) -> tuple[float, float]:
    """Have the comparing worker build the original, then these programs; it keeps those that are slow to build.

    The original is neither built nor called where a call of it is known to take too long for rounds (`known_s`).

    Returns:
        Build seconds of the last program, since one in kernels builds in a fraction of the original's time; and seconds
        of the fewest rounds of a contest.
    """
    called = original_candidate(imported.graph, closed=imported.closes_over)
    if not serialisable(called.program):
        return 0.0, 0.0
    live, frozen = imported.live_values, imported.frozen_values
    settings = ComparisonSettings(1, 0.0, end_s=whole.end_s, known_s=known_s)
    found = compare(called, entries, live, frozen, settings, worker=worker)
    built = [one for one in (found.reference, *found.candidates) if isinstance(one, Timing)]
    original_s = 0.0 if known_s or not built else built[0].samples_s[-1]
    return (built[-1].build_s, least_s(original_s, built[-1].samples_s[-1])) if built else (0.0, 0.0)
