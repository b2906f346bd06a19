"""The state of an optimisation between its stages, and what a stage is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from superopt.candidates.candidate import Candidate
from superopt.candidates.ledger import Chosen
from superopt.certify.library import ProvedLibrary
from superopt.explore.exploration import Begun
from superopt.explore.found import Exploration
from superopt.machine.background import BackgroundCall
from superopt.machine.deadline import Deadline
from superopt.pipeline.session import FIRST, Session


@dataclass(frozen=True, slots=True)
class RunState:
    """The results of the stages so far.

    Attributes:
        library: the proved rules; None before they are loaded.
        making: the plain candidate that is being made beside other work.
        yardstick: values in float64 that are being computed beside other work.
        ahead: programs that are being built beside other work: seconds of a build, and of the fewest rounds.
        begun: the search by the models alone; `found` is its end.
        plain: the plain candidate, once it is ready.
        made: the candidates of the contest, the plain one first.
        build_s: seconds of building a program.
        rounds_s: seconds of the fewest rounds of a contest.
        code_s: seconds reserved for validating machine code.
        hurried: builds are too slow for the budget: one round is searched, and nothing else is built.
        limits: the deadline of the contest, and of the stages before it.
        proposals: what the contest or the model proposes to return, the best first.
        otherwise: what is returned where none of these passes its check.
        choice: what is returned.
    """

    library: ProvedLibrary | None = None
    making: BackgroundCall[Candidate | None] | None = None
    yardstick: BackgroundCall[object] | None = None
    ahead: BackgroundCall[tuple[float, float]] | None = None
    begun: Begun | None = None
    found: Exploration | None = None
    plain: Candidate | None = None
    made: tuple[Candidate, ...] = ()
    build_s: float = 0.0
    rounds_s: float = 0.0
    code_s: float = 0.0
    hurried: bool = False
    limits: Deadline = field(default_factory=Deadline)
    proposals: tuple[Chosen, ...] = ()
    otherwise: Chosen | None = None
    choice: Chosen | None = None

    @property
    def proved(self) -> ProvedLibrary:
        """The proved rules; none before they are loaded."""
        return self.library or ProvedLibrary((), {})

    @property
    def interrupted_early(self) -> bool:
        """Whether Ctrl-C ended the first round of the search."""
        return self.begun is not None and self.begun.interrupted


StageStep = Callable[[Session, RunState], RunState]


def always(session: Session, state: RunState) -> bool:
    """Whether a stage that is never left out runs: it does."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStage:
    """One stage of an optimisation.

    Attributes:
        name: its name in the report's times; empty where it only begins work beside others.
        lost: what the report calls it where it fails; the state before it stands then.
        needs, gives: the fields of the state that it reads and sets.
        run: the stage itself.
        wanted: whether it is run, by what is there before it.
        let: errors that end the optimisation.
    """

    name: str
    lost: str
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    run: StageStep
    wanted: Callable[[Session, RunState], bool] = always
    let: tuple[type[BaseException], ...] = FIRST


@dataclass(slots=True)
class StageLoop:
    """The stages of an optimisation as they run; `state` is that after the last of them."""

    session: Session
    state: RunState = field(default_factory=RunState)

    def go(self, stages: Sequence[RunStage]) -> RunState:
        """Run the stages that are wanted, in order; one that fails leaves the state as it was."""
        for stage in stages:
            if stage.wanted(self.session, self.state):
                with self.session.clock.stage(stage.name) if stage.name else nullcontext():
                    work = partial(stage.run, self.session, self.state)
                    self.state = self.session.fallback.around(stage.lost, work, self.state, let=stage.let)
        return self.state


def is_cut(session: Session, state: RunState) -> bool:
    """Whether Ctrl-C has ended one of the stages."""
    found = state.found is not None and state.found.interrupted
    chosen = state.otherwise is not None and state.otherwise.interrupted
    return found or chosen or session.fallback.interrupted
