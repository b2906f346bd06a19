"""Jobs handed to workers: whichever is free takes the next one, and hosts that time do nothing else.

A job of a kind in `ALONE` waits until its host is idle, and holds it.  Jobs are taken in their order, so such a job is
not overtaken for ever.  Machine code and timings depend on the processor: jobs that are not portable go only to hosts
whose processor and versions are those of this machine.  A job whose worker is lost comes back and is taken next.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from superopt.machine.deadline import Deadline
from superopt.workshop.job import ALONE, LOST, Event, Failure, Job, JobWorker, WorkerDiedError
from superopt.workshop.process import ProcessLimits, Worker

HERE = "here"
"""The host of workers that are processes of this machine."""
_POLL_S = 0.05
_MOST_LOSSES = 3  # workers that one job may lose


@dataclass(slots=True, eq=False)
class Seat:
    """A worker with its host.

    Attributes:
        worker: the worker.
        host: name of the host.
        native: whether the host has the processor and the versions of this machine.
        turn: lock held during a job.
    """

    worker: JobWorker
    host: str = HERE
    native: bool = True
    turn: threading.Lock = field(default_factory=threading.Lock)


class Executor(Protocol):
    """The source of workers: this machine's processes or a cluster."""

    def seats(self, count: int, limits: ProcessLimits, *, inline: bool = False, loads: str = "") -> list[Seat]:
        """Return workers, at most `count` on each host; the arguments are those of `Worker`."""
        ...


class LocalExecutor:
    """Processes of this machine."""

    def seats(self, count: int, limits: ProcessLimits, *, inline: bool = False, loads: str = "") -> list[Seat]:
        """Return that many workers; no process starts before its first job."""
        return [Seat(Worker(limits, inline=inline, loads=loads)) for _ in range(count)]


class Workshop:
    """Workers and the jobs that wait for them; a context manager that ends the workers."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self.seats = list(seats)
        self._starting: list[Future[bool]] = []
        self._executor = ThreadPoolExecutor(max(1, len(self.seats)))

    def start(self) -> None:
        """Start the workers without waiting for them."""
        self._starting += [self._executor.submit(_started, seat) for seat in self.seats]

    def ready(self, end_s: float = math.inf) -> bool:
        """Wait for starting workers until this instant; return whether they have started."""
        left_s = None if end_s == math.inf else Deadline(end_s).left_s
        return not wait(self._starting, left_s).not_done

    def done(
        self,
        jobs: Sequence[Job],
        end_s: float = math.inf,
        *,
        halted: Callable[[], bool] = lambda: False,
        most: int | None = None,
    ) -> dict[int, list[Event] | Failure]:
        """Do jobs; return the events of each by its number, or why there are none.

        Args:
            jobs: the jobs, in the order in which they are taken.
            end_s: instant at which jobs that have not ended are ended.
            halted: whether no further job begins.
            most: number of workers to use; all by default.
        """
        self.ready()
        seats = self.seats[:most]
        line = _Queue(jobs, seats, halted)
        list(self._executor.map(lambda seat: _drain(line, seat, end_s), seats))
        return line.results

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        for seat in self.seats:
            seat.worker.end()
        self._executor.shutdown()

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def local(count: int, limits: ProcessLimits, *, inline: bool = False, loads: str = "") -> Workshop:
    """Return a workshop of processes of this machine."""
    return Workshop(LocalExecutor().seats(count, limits, inline=inline, loads=loads))


def _started(seat: Seat) -> bool:
    """Start a worker and return whether it runs; one that died of it is started again when there is work."""
    with seat.turn, suppress(WorkerDiedError):
        seat.worker.ready()
        return True
    return False


def _drain(line: _Queue, seat: Seat, end_s: float) -> None:
    while (number := line.take(seat)) is not None:
        try:
            with seat.turn:
                line.finish(seat, number, list(seat.worker.request(line.jobs[number], end_s)))
        except WorkerDiedError as death:
            if death.failure.cause == LOST:
                line.lose(seat, number, death.failure)
                if not _started(seat):
                    line.leave(seat)
                    return
            else:
                line.finish(seat, number, death.failure)
        except BaseException:
            line.finish(seat, number, Failure("exit", "the call was interrupted"))
            raise


class _Queue:
    """Jobs that wait, and the hosts that are busy; shared by the threads of all seats."""

    def __init__(self, jobs: Sequence[Job], seats: Sequence[Seat], halted: Callable[[], bool]) -> None:
        self.jobs, self._seats, self._halted = jobs, list(seats), halted
        self.results: dict[int, list[Event] | Failure] = {}
        self._waiting = list(range(len(jobs)))
        self._running: dict[int, Seat] = {}
        self._losses: Counter[int] = Counter()
        self._changed = threading.Condition()
        self._give_up("no host has the processor and the versions of this machine")

    def take(self, seat: Seat) -> int | None:
        """Return the next job for a seat once its host is free for it; None where there will be none."""
        with self._changed:
            while True:
                if self._halted():
                    return None
                number = next((n for n in self._waiting if _may(seat, self.jobs[n])), None)
                if number is None and not any(_may(seat, self.jobs[n]) for n in self._running):
                    return None
                if number is not None and self._fits(seat, self.jobs[number]):
                    self._waiting.remove(number)
                    self._running[number] = seat
                    return number
                self._changed.wait(_POLL_S)

    def finish(self, seat: Seat, number: int, result: list[Event] | Failure) -> None:
        """Record the result of a job."""
        with self._changed:
            self._running.pop(number, None)
            self.results[number] = result
            self._changed.notify_all()

    def lose(self, seat: Seat, number: int, failure: Failure) -> None:
        """Put a job back whose worker is gone; one that has lost several is given up."""
        with self._changed:
            self._losses[number] += 1
            if self._losses[number] < _MOST_LOSSES:
                self._running.pop(number, None)
                self._waiting.insert(0, number)
                self._changed.notify_all()
                return
        self.finish(seat, number, failure)

    def leave(self, seat: Seat) -> None:
        """Take out a seat whose worker cannot be started again; jobs that nobody else may do are given up."""
        with self._changed:
            self._seats.remove(seat)
            self._give_up("no host is left for it")
            self._changed.notify_all()

    def _give_up(self, why: str) -> None:
        for number in [n for n in self._waiting if not any(_may(seat, self.jobs[n]) for seat in self._seats)]:
            self._waiting.remove(number)
            self.results[number] = Failure(LOST, why)

    def _fits(self, seat: Seat, job: Job) -> bool:
        """Whether the host may begin a job now."""
        beside = [self.jobs[n].kind for n, other in self._running.items() if other.host == seat.host]
        return not beside if job.kind in ALONE else not ALONE.intersection(beside)


def _may(seat: Seat, job: Job) -> bool:
    """Whether a host may ever do a job."""
    return job.portable or seat.native
