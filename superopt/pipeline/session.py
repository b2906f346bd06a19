"""The session of one optimisation: its request, processes, clock, fallback and ledger, as all stages are given them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from superopt.candidates.candidate import Candidate
from superopt.candidates.ledger import Made, Proved, RunLedger
from superopt.contest.checks import OriginalRuns
from superopt.contest.rounds import rounds_fit
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported
from superopt.machine.budget import LEAST_KERNELS_S, Budget
from superopt.machine.deadline import HALF, Deadline, Stopwatch
from superopt.machine.fallback import Fallback
from superopt.make.plain import KernelMaker
from superopt.make.trials import TrialPool
from superopt.report.data import StageTime
from superopt.store import Store
from superopt.workshop.job import JobWorker

Progress = Callable[[str], None]

FIRST = (KeyboardInterrupt,)  # ends a call that has no program yet
CONTEST = ("the plain candidate", "one program of the search")  # what a contest builds at least
TWO = 1.0 - HALF * HALF  # of what is left, for a stage that has the half of the next one, too


@runtime_checkable
class Watcher(Protocol):
    """A function of progress lines that is told what else is to be shown of a running optimisation."""

    def __call__(self, line: str) -> None: ...

    def watch(self, ledger: RunLedger, deadline: Deadline) -> None: ...

    def begins(self, stage: str) -> None: ...


class Clock:
    """Measures wall time per stage, and prints progress lines."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.stages: list[StageTime] = []
        self._watch = Stopwatch()

    @property
    def begin_s(self) -> float:
        """The instant of the call."""
        return self._watch.begin_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call."""
        return self._watch.elapsed_s

    def say(self, line: str) -> None:
        if self.progress is not None:
            self.progress(line)

    def watched(self, ledger: RunLedger, deadline: Deadline) -> None:
        """Let a watcher see the ledger and the deadline of the call."""
        if isinstance(self.progress, Watcher):
            self.progress.watch(ledger, deadline)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if isinstance(self.progress, Watcher):
            self.progress.begins(name)
        watch = Stopwatch()
        try:
            yield
        finally:
            seconds = watch.elapsed_s
            self.stages.append(StageTime(name, seconds))
        self.say(f"{name}: {seconds:.1f} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One optimisation, as its stages are given it.

    Attributes:
        worker: the process that compares programs.
        second: another one, for programs whose times differ between processes.
        runs: runs of the original, which checks compare candidates with.
        store: earlier results; None without a store.
        pool: processes that make kernels.
        alone: the process that times kernels.
        maker: makes the kernels of programs; None where it could not be set up.
        budget: the budget of the stages before the last; `request.deadline` is its end.
        whole: the deadline of the whole call; the stages before the last have a little less.
        model: the file of the model, where the program is one.
    """

    imported: Imported
    request: Request
    worker: JobWorker
    second: JobWorker
    runs: OriginalRuns
    store: Store | None
    pool: TrialPool
    alone: JobWorker
    maker: KernelMaker | None
    clock: Clock
    fallback: Fallback
    ledger: RunLedger
    budget: Budget
    whole: Deadline
    model: Path | None = None

    @property
    def deadline(self) -> Deadline:
        """The deadline of all stages before the last."""
        return self.request.deadline

    @property
    def kernels(self) -> bool:
        """Whether the budget, a maker and the backend allow our kernels."""
        priced = not self.request.deterministic or self.request.own is not None  # a model decides, or a timing
        wanted = bool(self.request.kernels_by) and self.budget.suffices_for_kernels and priced
        return wanted and self.maker is not None and not self.pool.backend.unavailable()

    @property
    def kernel_maker(self) -> KernelMaker | None:
        """The maker, where a search uses our kernels."""
        return self.maker if self.kernels else None

    def entered(self, candidate: Candidate) -> Candidate:
        """The candidate, entered into the ledger; all kernels of one are proved."""
        if not self.ledger.about(candidate, Made):
            self.ledger.add(Made(candidate))
            if candidate.kernels:
                self.ledger.add(Proved(candidate, len(candidate.kernels)))
        return candidate

    def known_s(self, left_s: float) -> float:
        """Seconds of a call of the original if the fewest rounds with it exceed `left_s`; else 0."""
        call_s = self.runs.call_s
        return 0.0 if rounds_fit(call_s, left_s) and not self.runs.given_up else call_s

    def end(self, *processes: JobWorker | TrialPool) -> None:
        """End processes that are done, before the next stage needs memory for the weights."""
        for one in processes:
            self.fallback.around("the end of processes", one.close, None)


def for_rounds_s(limits: Deadline) -> float:
    """Seconds that rounds have in any case."""
    return max(limits.left_s, HALF * LEAST_KERNELS_S)
