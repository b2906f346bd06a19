"""Jobs handed to workers: whichever is free takes the next one, and hosts that time do nothing else.

A job of a kind in `ALONE` waits until its host is idle, and holds it.  Jobs are taken in their order, so such a job is
not overtaken for ever.  Machine code and timings depend on the processor: jobs that are not portable go only to hosts
whose processor and versions are those of this machine.  A job whose worker is lost comes back and is taken next.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from superopt.errors import InputError
from superopt.machine.deadline import Deadline
from superopt.workshop.job import ALONE, LOST, MOST_LOSSES, Event, Failure, Job, JobKind, JobWorker, WorkerDiedError
from superopt.workshop.process import ProcessLimits, Worker

JobItem = TypeVar("JobItem")
DialogueResult = TypeVar("DialogueResult")
JobResult = TypeVar("JobResult")
HERE = "here"
"""The host of workers that are processes of this machine."""
NONE_ALIKE = "no host of the cluster has the processor and the versions of this machine"
_POLL_S = 0.05


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

    def share(self, call: str, files: Mapping[str, bytes]) -> None:
        """Have each other host call `package.module:function` with these files by name, before its next job."""
        ...


class LocalExecutor:
    """Processes of this machine."""

    def seats(self, count: int, limits: ProcessLimits, *, inline: bool = False, loads: str = "") -> list[Seat]:
        """Return that many workers; no process starts before its first job."""
        return [Seat(Worker(limits, inline=inline, loads=loads)) for _ in range(count)]

    def share(self, call: str, files: Mapping[str, bytes]) -> None:
        """Do nothing: there is no other host."""


LOCAL = LocalExecutor()
"""The executor where no cluster is named."""


class LastingWorker:
    """A worker with one of every other host in reserve: where it is lost, the next one does the next job."""

    def __init__(self, workers: Sequence[JobWorker]) -> None:
        self._workers, self._at = list(workers), 0

    @property
    def started(self) -> int:
        """Number of processes that were started so far, on all hosts."""
        return sum(worker.started for worker in self._workers)

    @property
    def alive(self) -> bool:
        """Whether the process that did the last job runs."""
        return self._workers[self._at].alive

    def request(self, job: Job, end_s: float = math.inf) -> Iterator[Event]:
        """Do a job and yield its events.

        Raises:
            WorkerDiedError: its process died, or the worker was lost.
        """
        with self._watched():
            yield from self._workers[self._at].request(job, end_s)

    def ready(self) -> None:
        """Start the process and wait until it has started.

        Raises:
            WorkerDiedError: it has not.
        """
        with self._watched():
            self._workers[self._at].ready()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Take the next worker where this one is lost inside the block."""
        try:
            yield
        except WorkerDiedError as death:
            if death.failure.cause == LOST:
                self._at = (self._at + 1) % len(self._workers)
            raise

    def end(self) -> None:
        """Close the worker for good."""
        for worker in self._workers:
            worker.end()

    def close(self) -> None:
        """End the process; the next job starts another one."""
        self._workers[self._at].close()

    def __enter__(self) -> LastingWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Workshop:
    """Workers and the jobs that wait for them; a context manager that ends the workers."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self.seats = list(seats)
        self._starting: list[Future[bool]] = []
        self._starters = ThreadPoolExecutor(max(1, len(self.seats)))

    @property
    def is_here(self) -> bool:
        """Whether all workers are processes of this machine."""
        return all(seat.host == HERE for seat in self.seats)

    def start(self) -> None:
        """Start the workers without waiting for them."""
        self._starting += [self._starters.submit(_started, seat) for seat in self.seats]

    def ready(self, end_s: float = math.inf) -> bool:
        """Wait for starting workers until this instant; return whether they have started.

        Raises:
            Exception: a start failed otherwise than by the death of its worker.
        """
        left_s = None if end_s == math.inf else Deadline(end_s).left_s
        started = wait(self._starting, left_s)
        for start in started.done:
            start.result()
        return not started.not_done

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
        return dict(self.each(jobs, end_s, halted=halted, most=most, ahead=len(jobs)))

    def each(
        self,
        jobs: Iterable[Job],
        end_s: float = math.inf,
        *,
        halted: Callable[[], bool] = lambda: False,
        most: int | None = None,
        ahead: int | None = None,
    ) -> Iterator[tuple[int, list[Event] | Failure]]:
        """Do jobs; yield the number of each that has ended, with its events or its failure.

        The caller's thread asks for the next job, so that it may depend on results so far; between results it may call
        this again.  A caller that stops early leaves jobs that run to the end of their workers.

        Args:
            jobs: the jobs, in the order in which they are taken.
            end_s: instant at which jobs that have not ended are ended.
            halted: whether no further job begins.
            most: number of workers to use; all by default.
            ahead: number of jobs that wait or run at a time; two for each worker by default.
        """

        def requested(seat: Seat, job: Job) -> list[Event]:
            return list(seat.worker.request(job, end_s))

        return self._each(jobs, requested, halted, self.seats[:most], ahead)

    def dialogues(
        self, kind: JobKind, items: Iterable[JobItem], hold: Callable[[Seat, JobItem], DialogueResult]
    ) -> Iterator[tuple[JobItem, DialogueResult | Failure]]:
        """Hold a dialogue of several requests with a worker for each item; yield the item with the result.

        A dialogue counts as one job of this kind, and begins anew with another worker where its own is lost.  A single
        worker gets an item when it has done the last one.

        Args:
            kind: what the worker does in a dialogue.
            items: the items, in the order in which they are taken.
            hold: does the requests, in a thread of the worker; a worker that dies is a failure of the item.

        Raises:
            InputError: no host has the processor and the versions of this machine.
        """
        alike(self.seats)
        taken: list[JobItem] = []

        def jobs() -> Iterator[Job]:
            for item in items:
                taken.append(item)
                yield Job(kind, "", {"item": item})

        ahead = 1 if len(self.seats) == 1 else None
        for number, result in self._each(
            jobs(), lambda seat, job: hold(seat, job.data["item"]), lambda: False, self.seats, ahead
        ):
            yield taken[number], result

    def _each(
        self,
        jobs: Iterable[Job],
        do: Callable[[Seat, Job], Any],
        halted: Callable[[], bool],
        seats: Sequence[Seat],
        ahead: int | None,
    ) -> Iterator[tuple[int, Any]]:
        self.ready()
        line = _Queue(seats, halted)
        threads = ThreadPoolExecutor(max(1, len(seats)))
        drains = [threads.submit(_drain, line, seat, do) for seat in seats]
        source = enumerate(jobs)
        try:
            while True:
                while line.pending < (2 * len(seats) if ahead is None else ahead) and not halted():
                    if (numbered := next(source, None)) is None:
                        break
                    line.add(*numbered)
                if (result := line.next(lambda: any(drain.done() and drain.exception() for drain in drains))) is None:
                    break
                yield result
        finally:
            line.close()
            threads.shutdown(wait=False)
        for drain in drains:
            drain.result()

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        for seat in self.seats:
            seat.worker.end()
        self._starters.shutdown()

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers to use.

    Attributes:
        count: number on each host.
        executor: source of the workers.
    """

    count: int = 1
    executor: Executor = LOCAL

    def workshop(self, limits: ProcessLimits, *, inline: bool = False, loads: str = "") -> Workshop:
        """Return a workshop of these workers; the arguments are those of `Worker`."""
        return Workshop(self.executor.seats(self.count, limits, inline=inline, loads=loads))

    def lasting(self, limits: ProcessLimits | None = None, *, inline: bool = False) -> list[JobWorker]:
        """Return the workers on hosts that are like this machine, each with one of every other such host in reserve.

        Raises:
            InputError: no host has the processor and the versions of this machine.
        """

        def seats(count: int) -> list[Seat]:
            return alike(self.executor.seats(count, limits or ProcessLimits(), inline=inline))

        first = seats(self.count)
        if len({seat.host for seat in first}) == 1:
            return [seat.worker for seat in first]
        return [
            LastingWorker([seat.worker, *(other.worker for other in seats(1) if other.host != seat.host)])
            for seat in first
        ]


def sole_worker(executor: Executor, limits: ProcessLimits | None = None, *, inline: bool = False) -> JobWorker:
    """Return one worker on a host that is like this machine; the arguments are those of `Workers.lasting`.

    Raises:
        InputError: there is none.
    """
    return Workers(1, executor).lasting(limits, inline=inline)[0]


def alike(seats: Sequence[Seat]) -> list[Seat]:
    """Return the seats whose hosts have the processor and the versions of this machine.

    Raises:
        InputError: there is none.
    """
    native = [seat for seat in seats if seat.native]
    if not native:
        raise InputError(NONE_ALIKE)
    return native


def again_where_lost(call: Callable[[], JobResult]) -> JobResult:
    """Return the result of a call, which begins anew where it loses its worker.

    Raises:
        WorkerDiedError: it has lost several, or died otherwise.
    """
    for _ in range(MOST_LOSSES - 1):
        try:
            return call()
        except WorkerDiedError as death:
            if death.failure.cause != LOST:
                raise
    return call()


ONE_WORKER = Workers()
"""One process of this machine."""


def _started(seat: Seat) -> bool:
    """Start a worker and return whether it runs; one that died of it is started again when there is work."""
    with seat.turn, suppress(WorkerDiedError):
        seat.worker.ready()
        return True
    return False


def _drain(line: _Queue, seat: Seat, do: Callable[[Seat, Job], Any]) -> None:
    while (number := line.take(seat)) is not None:
        try:
            with seat.turn:
                line.finish(number, do(seat, line.jobs[number]))
        except WorkerDiedError as death:
            if death.failure.cause == LOST:
                line.lose(number, death.failure)
                if not _started(seat):
                    line.leave(seat)
                    return
            else:
                line.finish(number, death.failure)
        except BaseException:
            line.finish(number, Failure("exit", "the call was interrupted"))
            line.leave(seat)
            raise


class _Queue:
    """Jobs that wait, and the hosts that are busy; shared by the threads of all seats."""

    def __init__(self, seats: Sequence[Seat], halted: Callable[[], bool]) -> None:
        self.jobs: dict[int, Job] = {}
        self._seats, self._halted = list(seats), halted
        self._ended: deque[tuple[int, Any]] = deque()
        self._waiting: list[int] = []
        self._running: dict[int, Seat] = {}
        self._losses: Counter[int] = Counter()
        self._changed = threading.Condition()
        self._closed = False

    @property
    def pending(self) -> int:
        """Number of jobs that wait or run."""
        return len(self.jobs)

    def add(self, number: int, job: Job) -> None:
        """Let a job wait, behind the others."""
        with self._changed:
            self.jobs[number] = job
            self._waiting.append(number)
            self._give_up(NONE_ALIKE)
            self._changed.notify_all()

    def close(self) -> None:
        """Let no further job begin."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def next(self, has_failed: Callable[[], bool]) -> tuple[int, Any] | None:
        """Wait for the next job that ends; None where none runs and none will begin, or a thread of a seat failed."""
        with self._changed:
            while not self._ended:
                if has_failed():
                    return None
                if not self._running and (not self._waiting or self._halted()):
                    return None
                self._changed.wait(_POLL_S)
            return self._ended.popleft()

    def take(self, seat: Seat) -> int | None:
        """Return the next job for a seat once its host is free for it; None where there will be none."""
        with self._changed:
            while not self._closed and not self._halted():
                number = next((n for n in self._waiting if _may(seat, self.jobs[n])), None)
                if number is not None and self._fits(seat, self.jobs[number]):
                    self._waiting.remove(number)
                    self._running[number] = seat
                    return number
                self._changed.wait(_POLL_S)
            return None

    def finish(self, number: int, result: Any) -> None:
        """Record the result of a job."""
        with self._changed:
            self._finish(number, result)
            self._changed.notify_all()

    def _finish(self, number: int, result: Any) -> None:
        self._running.pop(number, None)
        del self.jobs[number]
        self._ended.append((number, result))

    def lose(self, number: int, failure: Failure) -> None:
        """Put a job back whose worker is gone; one that has lost several is given up."""
        with self._changed:
            self._losses[number] += 1
            if self._losses[number] < MOST_LOSSES:
                self._running.pop(number, None)
                self._waiting.insert(0, number)
            else:
                self._finish(number, failure)
            self._changed.notify_all()

    def leave(self, seat: Seat) -> None:
        """Take out a seat whose worker cannot be started again; jobs that nobody else may do are given up."""
        with self._changed:
            self._seats.remove(seat)
            self._give_up("no host is left for it")
            self._changed.notify_all()

    def _give_up(self, why: str) -> None:
        for number in [n for n in self._waiting if not any(_may(seat, self.jobs[n]) for seat in self._seats)]:
            self._waiting.remove(number)
            self._finish(number, Failure(LOST, why))

    def _fits(self, seat: Seat, job: Job) -> bool:
        """Whether the host may begin a job now."""
        beside = [self.jobs[n].kind for n, other in self._running.items() if other.host == seat.host]
        return not beside if job.kind in ALONE else not ALONE.intersection(beside)


def _may(seat: Seat, job: Job) -> bool:
    """Whether a host may ever do a job."""
    return job.portable or seat.native
