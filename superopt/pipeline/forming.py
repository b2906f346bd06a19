"""The stages that make candidates of what the search found: programs in kernels, and searched schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from superopt.candidates.candidate import Candidate
from superopt.explore.found import Exploration
from superopt.machine.budget import LEAST_KERNELS_S, LEAST_S, PROGRAMS, WORTH
from superopt.machine.deadline import HALF, Deadline
from superopt.make.forms import apart_s, forms_of, own_regions, priced, that_differ
from superopt.make.plain import KernelMaker
from superopt.pipeline.building import validation_s
from superopt.pipeline.session import CONTEST, TWO, Session
from superopt.pipeline.state import RunState, is_cut

_FURTHER = "further programs of the search in kernels"


def makes_forms(session: Session, state: RunState) -> bool:
    """Whether programs of the search are made in kernels."""
    return state.found is not None and session.kernel_maker is not None and not is_cut(session, state)


def make_forms(session: Session, state: RunState) -> RunState:
    """Predict the plain candidate, and make kernels of the search's best programs as far as there is time."""
    found, maker = state.found, session.kernel_maker
    assert found is not None
    assert maker is not None
    if state.hurried:
        whole, follow_s = state.limits.share(), 0.0
    else:  # some of the code was validated beside the search
        state = replace(state, limits=session.deadline.reserve(state.build_s + validation_s(session, state.made)))
        whole, follow_s = state.limits, len(CONTEST) * state.build_s + state.rounds_s
    maker.model = found.model
    apart = apart_s(found, found.result.original)
    made = [replace(form, apart_s=apart) for form in state.made]
    session.fallback.around(_FURTHER, lambda: _add_forms(session, state, whole, follow_s, made), None)
    return replace(state, made=tuple(maker.predicted(form) if form.regions else form for form in made))


def _add_forms(session: Session, state: RunState, whole: Deadline, follow_s: float, made: list[Candidate]) -> None:
    """Add forms of the search to the programs made, one after the other: those of before a failure stay."""
    found, maker = state.found, session.kernel_maker
    assert found is not None
    assert maker is not None
    forms = forms_of(found)
    limits = whole.share(1.0 if _gains(maker, forms, made) else TWO, follow_s)
    ready = _whole(session, maker, forms, limits.share(TWO))
    for form in _distinguished(session, found, ready, made, limits)[:PROGRAMS]:
        if (len(made) + 2) * state.build_s > whole.left_s:
            session.clock.say(f"{form.name}: the time does not suffice to build it")
            continue
        done = maker.make(form, limits)  # regions that XLA was timed to compute faster are left out
        if not done.kernels and (finalist := found.finalist(form.finalist)) is not None:  # XLA has its own ways
            name, seconds = finalist.name, found.by_xla_s(finalist)
            done = Candidate(name=name, program=found.program(finalist), finalist=name, predicted_s=seconds)
        made.append(done)


def _gains(maker: KernelMaker, forms: Sequence[Candidate], made: Sequence[Candidate]) -> bool:
    """Whether a form is predicted to beat all programs made by more than a schedule search is likely to bring."""
    least_s = min([maker.predicted(form).predicted_s or math.inf for form in made if form.kernels], default=math.inf)
    return any(WORTH * form.predicted_s < least_s for form in forms if form.predicted_s is not None)


def _whole(session: Session, maker: KernelMaker, forms: Sequence[Candidate], limits: Deadline) -> list[Candidate]:
    """Make forms of kernels in worker processes, before any are timed; return those whose kernels are all made."""
    whole: list[Candidate] = []
    for form in forms:
        left_s, takes_s = limits.left_s, maker.seconds_for(form)
        if takes_s <= left_s:
            maker.make(form, limits)
        if not maker.has_made(form):
            session.clock.say(f"{form.name}: not made, it takes {takes_s:.1f} s and {left_s:.1f} are left")
        else:
            whole.append(form)
    return whole


def _distinguished(
    session: Session, found: Exploration, forms: Sequence[Candidate], made: Sequence[Candidate], limits: Deadline
) -> list[Candidate]:
    """The forms worth building, once the regions that tell them apart are timed."""
    model = found.model
    if found.timer is not None and model.own is not None and forms:
        programs = [own_regions(model, form) for form in (*forms, *made)]
        timed = found.timer.distinguish(programs, limits.share().or_within(LEAST_KERNELS_S))
        session.clock.say(f"{timed} regions timed in which {len(programs)} forms differ")
    return that_differ(model, priced(model, forms), made)


def schedules_deadline(state: RunState) -> Deadline:
    """The deadline of the search of schedules: half of what the contest leaves."""
    follow_s = (len(state.made) + 1) * state.build_s + state.rounds_s
    return state.limits.share(reserve_s=follow_s).or_within(LEAST_KERNELS_S)


def searches_schedules(session: Session, state: RunState) -> bool:
    """Whether there is a program whose schedules may be searched, and time: half of it, processes start."""
    if state.hurried or not makes_forms(session, state) or not _predicted(state):
        return False
    return HALF * schedules_deadline(state).left_s >= LEAST_S


def search_schedules(session: Session, state: RunState) -> RunState:
    """Search schedules for the program that is fastest by prediction; add it if that makes it faster."""
    assert session.maker is not None
    best = min(_predicted(state), key=lambda form: form.predicted_s or 0.0)
    done = session.maker.searched(best, schedules_deadline(state), session.worker, session.request.seed)
    return state if done is None else replace(state, made=(*state.made, done))


def _predicted(state: RunState) -> list[Candidate]:
    return [form for form in state.made if form.predicted_s is not None and form.kernels]
