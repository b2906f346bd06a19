"""The stages of an optimisation as data, in their order, and what is returned where they are cut off."""

from __future__ import annotations

from dataclasses import replace

from superopt.candidates.ledger import ChoiceReason, Chosen, Why
from superopt.contest.checks import OriginalLostError
from superopt.contest.choices import original_after_failure, original_returned
from superopt.errors import SuperoptError
from superopt.pipeline import building, checking, contesting, exploring, forming, plain
from superopt.pipeline.session import FIRST, Session
from superopt.pipeline.state import RunStage, RunState, StageLoop

_LOST = (OriginalLostError, *FIRST)

BEGIN = RunStage(name="", lost="the original", gives=("yardstick", "limits"), run=plain.begin_checks)
RULES = RunStage(
    name="rules", lost="the library of rules", gives=("library",), run=exploring.prove, wanted=exploring.needs_rules,
    let=(SuperoptError, *FIRST),
)  # fmt: skip
SEARCH = RunStage(
    name="explore", lost="the search", needs=("library", "limits"), gives=("found",), run=exploring.search,
    wanted=exploring.explores, let=(),
)  # fmt: skip
UNSEARCHED = (
    BEGIN,
    RunStage(name="plain", lost="the plain candidate", gives=("otherwise",), run=plain.make_alone),
    RunStage(
        name="contest", lost="the timing of the plain candidate", needs=("otherwise",), gives=("otherwise",),
        run=plain.time_plain, wanted=plain.times_plain, let=_LOST,
    ),
)  # fmt: skip
MAKING = RunStage(
    name="", lost="the plain candidate", gives=("making",), run=plain.begin_plain,
    wanted=lambda session, state: session.kernels,
)  # fmt: skip
PLAIN = RunStage(
    name="plain", lost="the plain candidate", needs=("making",), gives=("plain", "made"), run=plain.join_plain,
    wanted=lambda session, state: state.making is not None,
)  # fmt: skip
FORMS = RunStage(
    name="forms", lost="programs of the search in kernels", needs=("found", "made", "limits"),
    gives=("made", "limits"), run=forming.make_forms, wanted=forming.makes_forms, let=(),
)  # fmt: skip
PREDICTED = (
    BEGIN,
    MAKING,
    RULES,
    PLAIN,
    SEARCH,
    FORMS,
    RunStage(
        name="", lost="the choice by the model", needs=("found", "made"), gives=("proposals", "otherwise"),
        run=contesting.predict,
    ),
)  # fmt: skip
MEASURED = (
    BEGIN,
    MAKING,
    replace(RULES, wanted=exploring.begins_early),
    RunStage(
        name="first round", lost="the first round of the search", needs=("library",), gives=("begun",),
        run=exploring.begin_search, wanted=exploring.begins_early,
    ),
    PLAIN,
    RunStage(
        name="original", lost="the original", needs=("yardstick", "made"),
        gives=("build_s", "code_s", "hurried", "limits"), run=building.run_original, let=_LOST,
    ),
    RunStage(
        name="", lost="programs built ahead", needs=("made",), gives=("ahead",), run=building.begin_ahead,
        wanted=lambda session, state: not state.hurried,
    ),
    RULES,
    RunStage(
        name="ahead", lost="programs built ahead", needs=("ahead", "build_s", "code_s"),
        gives=("build_s", "rounds_s", "limits"), run=building.join_ahead,
        wanted=lambda session, state: state.ahead is not None,
    ),
    SEARCH,
    FORMS,
    RunStage(
        name="schedules", lost="the search of schedules", needs=("made", "limits"), gives=("made",),
        run=forming.search_schedules, wanted=forming.searches_schedules, let=(),
    ),
    RunStage(
        name="contest", lost="the contest", needs=("made", "found", "limits"), gives=("proposals", "otherwise"),
        run=contesting.hold_contest, wanted=contesting.contests, let=(),
    ),
)  # fmt: skip
CHECK = RunStage(
    name="check", lost="the check of the choice", needs=("proposals", "otherwise"), gives=("choice",),
    run=checking.check, let=_LOST,
)  # fmt: skip


def stages_of(session: Session) -> tuple[RunStage, ...]:
    """The stages before the check that the request asks for."""
    if not session.request.searches:
        return UNSEARCHED
    return PREDICTED if session.request.deterministic else MEASURED


def chosen(session: Session) -> RunState:
    """The state with the choice to return; Ctrl-C raises while there is no plain candidate, and returns it then."""
    loop = StageLoop(session)
    session.fallback.around(
        "the choice of a program", lambda: _choose(session, loop), None, let=(SuperoptError, *FIRST)
    )
    if loop.state.choice is None and loop.state.plain is not None:
        left = Chosen(loop.state.plain, why=Why(ChoiceReason.PLAIN_CHOICE_LOST))
        loop.state = replace(loop.state, proposals=(), otherwise=left)
        loop.go((CHECK,))
    return loop.state if loop.state.choice is not None else replace(
        loop.state, choice=original_after_failure(session.imported, session.fallback)
    )  # fmt: skip


def _choose(session: Session, loop: StageLoop) -> None:
    """Run the stages and the check; after Ctrl-C, the check of what is at hand."""
    try:
        loop.go(stages_of(session))
        if loop.state.otherwise is None:
            loop.state = contesting.at_hand(session, loop.state)
        loop.go((CHECK,))
    except OriginalLostError as error:
        lost = original_returned(session.imported, Why(ChoiceReason.ORIGINAL_LOST, str(error)))
        loop.state = replace(loop.state, choice=lost)
    except KeyboardInterrupt:
        if loop.state.plain is None:
            raise
        session.fallback.interrupted = True
        loop.state = contesting.at_hand(session, loop.state)
        loop.go((CHECK,))
