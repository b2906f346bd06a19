"""The stages of the search: proved rules, a first round by the models alone, and the search itself."""

from __future__ import annotations

from dataclasses import replace

from superopt.certify.library import proved_library
from superopt.explore.exploration import begin, explore
from superopt.machine.budget import LEAST_S
from superopt.machine.deadline import HALF, Deadline
from superopt.pipeline.session import CONTEST, TWO, Session
from superopt.pipeline.state import RunState


def begins_early(session: Session, state: RunState) -> bool:
    """Whether the search begins while other processes start and make kernels: this one has nothing else to do."""
    return state.making is not None and session.budget.is_kept and session.deadline.left_s >= LEAST_S


def needs_rules(session: Session, state: RunState) -> bool:
    """Whether a search follows whose rules are not loaded."""
    return state.library is None and not state.hurried


def prove(session: Session, state: RunState) -> RunState:
    """Load the proved rules of the search; prove missing ones as far as their share of the time allows."""
    deadline = session.deadline.reserve().share() if session.budget.is_kept else Deadline()
    return replace(
        state, library=proved_library(session.store, session.request.rules, session.request.numerics, deadline)
    )  # fmt: skip


def begin_search(session: Session, state: RunState) -> RunState:
    """Search one round by the models alone, in a part of the time."""
    request = session.request.within(session.deadline.share(1.0 - TWO))
    return replace(state, begun=begin(session.imported.graph, state.proved.rules, request, session.clock.say))


def search_deadline(session: Session, state: RunState) -> Deadline:
    """The deadline of the search: its share of the time that the stages after it leave."""
    if session.request.deterministic:
        return session.deadline.reserve().share(TWO)
    if state.hurried:
        return state.limits.share(0.0)
    follow_s = len(CONTEST) * state.build_s + state.rounds_s
    return state.limits.share(HALF if session.kernels else TWO, follow_s)


def explores(session: Session, state: RunState) -> bool:
    """Whether there is time to search, or a search that has found a program."""
    is_searched = state.begun is not None and state.begun.is_searched
    if is_searched or state.hurried:
        return is_searched
    enough = not session.budget.is_kept or search_deadline(session, state).left_s >= LEAST_S
    if not enough:
        session.clock.say("no time was left to search")
    return enough


def search(session: Session, state: RunState) -> RunState:
    """Search for programs, with the kernels of regions that are made by now."""
    maker = session.kernel_maker
    found = explore(
        session.imported.graph,
        state.proved.rules,
        session.request.within(search_deadline(session, state)),
        session.clock.say,
        None if session.request.deterministic else session.alone,
        () if state.hurried else [graph for form in state.made for graph in form.chosen],
        None if maker is None else maker.meanwhile,
        state.begun,
    )
    return replace(state, found=found, library=state.proved.with_instances(found.instances))
