"""Jobs are taken in their order by whichever worker may do them; hosts that time do nothing else."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from superopt.errors import InputError, MissingExtraError
from superopt.workshop.cluster import RayExecutor
from superopt.workshop.job import LOST, Event, Failure, Job, WorkerDiedError
from superopt.workshop.process import ONE_KERNEL
from superopt.workshop.scheduler import ONE_WORKER, Seat, Workshop

CALL = "tests.support.jobs:square"


class Shared:
    """The jobs that fake workers hold at the same time, by host."""

    def __init__(self) -> None:
        self.lock, self.busy = threading.Lock(), dict[str, list[Job]]()
        self.wrong: list[tuple[str, list[Job]]] = []
        self.done: list[tuple[str, Job]] = []


class Fake:
    """A worker that sleeps, and is lost as often as told."""

    def __init__(self, host: str, shared: Shared, losses: int = 0, gone: bool = False) -> None:
        self.gone = gone
        self.host, self.shared, self.losses = host, shared, losses
        self.started, self.alive = 1, True

    def request(self, job: Job, end_s: float = math.inf) -> Iterator[Event]:
        if self.losses:
            self.losses -= 1
            raise WorkerDiedError(Failure(LOST, "the node is gone"))
        with self.shared.lock:
            busy = self.shared.busy.setdefault(self.host, [])
            busy.append(job)
            if len(busy) > 1 and any(x.kind in ("time", "compare") for x in busy):
                self.shared.wrong.append((self.host, list(busy)))
        time.sleep(0.01)
        with self.shared.lock:
            busy.remove(job)
            self.shared.done.append((self.host, job))
        yield {"event": "done by", "host": self.host}

    def ready(self) -> None:
        if self.gone:
            raise WorkerDiedError(Failure(LOST, "the node is gone"))

    def end(self) -> None:
        pass


def jobs(kinds: str) -> list[Job]:
    names: dict[str, Any] = {"m": "make", "v": "validate", "t": "time", "c": "compare"}
    return [Job(names[kind], CALL, {"n": n}) for n, kind in enumerate(kinds)]


def test_a_host_that_times_does_nothing_else() -> None:
    shared = Shared()
    seats = [Seat(Fake(host, shared), host) for host in ("one", "one", "one", "two", "two")]
    with Workshop(seats) as workshop:
        done = workshop.done(jobs("mmtmvmtcmmttmvm"))
    assert sorted(done) == list(range(15))
    assert not any(isinstance(result, Failure) for result in done.values())
    assert shared.wrong == []
    assert {host for host, _ in shared.done} == {"one", "two"}


def test_jobs_of_a_processor_stay_off_other_processors() -> None:
    shared = Shared()
    seats = [Seat(Fake("like", shared), "like"), Seat(Fake("unlike", shared), "unlike", native=False)]
    work = [*jobs("tmtmtm"), *[Job("make", CALL, {"n": n}, portable=True) for n in range(6)]]
    with Workshop(seats) as workshop:
        workshop.done(work)
    assert len(shared.done) == 12
    assert all(job.portable for host, job in shared.done if host == "unlike")
    assert any(host == "unlike" for host, _ in shared.done)


def test_without_a_host_of_this_processor_its_jobs_fail() -> None:
    with Workshop([Seat(Fake("unlike", Shared()), "unlike", native=False)]) as workshop:
        (failure,) = workshop.done(jobs("t")).values()
    assert isinstance(failure, Failure)
    assert failure.cause == LOST


def test_jobs_of_a_lost_worker_come_back() -> None:
    shared = Shared()
    with Workshop([Seat(Fake("one", shared, losses=2), "one"), Seat(Fake("two", shared), "two")]) as workshop:
        done = workshop.done(jobs("mmmmmm"))
    assert len(done) == 6
    assert not any(isinstance(result, Failure) for result in done.values())


def test_a_node_that_is_gone_takes_no_further_job() -> None:
    shared = Shared()
    gone, left = Fake("one", shared, losses=99, gone=True), Fake("two", shared)
    with Workshop([Seat(gone, "one"), Seat(left, "two")]) as workshop:
        done = workshop.done(jobs("mmmmmm"))
    assert not any(isinstance(result, Failure) for result in done.values())
    assert gone.losses == 98
    with Workshop([Seat(gone, "one")]) as workshop:
        assert all(isinstance(result, Failure) for result in workshop.done(jobs("mm")).values())


def test_a_job_that_loses_every_worker_is_given_up() -> None:
    with Workshop([Seat(Fake("one", Shared(), losses=3), "one")]) as workshop:
        done = workshop.done(jobs("mm"))
    assert isinstance(done[0], Failure)
    assert not isinstance(done[1], Failure)


def test_nothing_begins_once_it_is_halted() -> None:
    shared = Shared()
    with Workshop([Seat(Fake("one", shared), "one")]) as workshop:
        done = workshop.done(jobs("mmmmmm"), halted=lambda: len(shared.done) >= 2)
    assert sorted(done) == [0, 1]


def test_jobs_may_depend_on_results_so_far() -> None:
    shared, results = Shared(), list[int]()

    def made() -> Iterator[Job]:
        for n in range(9):
            yield Job("make", CALL, {"n": n, "seen": len(results)})

    with Workshop([Seat(Fake(host, shared), host) for host in ("one", "two")]) as workshop:
        for number, result in workshop.each(made()):
            assert not isinstance(result, Failure)
            results.append(number)
    assert sorted(results) == list(range(9))
    seen = {job.data["n"]: job.data["seen"] for _, job in shared.done}
    assert all(n - 4 <= seen[n] <= n for n in seen)
    assert seen[8] >= 4


def test_a_caller_that_stops_early_begins_nothing_more() -> None:
    shared = Shared()
    with Workshop([Seat(Fake("one", shared), "one")]) as workshop:
        for _ in workshop.each(jobs("mmmmmmmm")):
            break
        assert len(workshop.done(jobs("mm"))) == 2
    assert len(shared.done) <= 4


def test_a_dialogue_is_held_with_one_worker_and_begins_anew_where_that_is_lost() -> None:
    shared = Shared()
    seats = [Seat(Fake("one", shared, losses=1), "one"), Seat(Fake("two", shared), "two")]

    def held(seat: Seat, text: str) -> str:
        if text == "dies":
            raise WorkerDiedError(Failure("crash", "SIGSEGV"))
        return text + "".join(event["host"][0] for _ in range(2) for event in seat.worker.request(jobs("m")[0]))

    unlike = Seat(Fake("unlike", shared), "unlike", native=False)
    with Workshop([unlike]) as workshop, pytest.raises(InputError, match="no host of the cluster"):
        list(workshop.dialogues("make", ["a"], held))
    with Workshop(seats) as workshop:
        done = dict(workshop.dialogues("make", ["a", "b", "dies", "c"], held))
    assert done.pop("dies") == Failure("crash", "SIGSEGV")
    assert all(done[text] in (text + "oo", text + "tt") for text in "abc")


def test_a_single_worker_gets_an_item_when_it_has_done_the_last_one() -> None:
    done: list[int] = []

    def items() -> Iterator[int]:
        for n in range(4):
            assert len(done) == n
            yield n

    with Workshop([Seat(Fake("one", Shared()), "one")]) as workshop:
        assert list(workshop.dialogues("time", items(), lambda _, n: done.append(n) or n)) == [(n, n) for n in range(4)]


@pytest.mark.parametrize("number", [3, -3])
def test_processes_of_this_machine_do_jobs(number: int) -> None:
    """A failure of the function is data, and the next job gets a new process."""
    with ONE_WORKER.workshop(ONE_KERNEL) as workshop:
        done = workshop.done([Job("make", CALL, {"number": n}) for n in (2, number, 4)])
    assert done[0] == [{"event": "square", "square": 4}]
    assert done[2] == [{"event": "square", "square": 16}]
    assert isinstance(done[1], Failure) == (number < 0)


def test_without_ray_an_address_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"superopt\[ray\]"):
        RayExecutor("auto")


@pytest.mark.parametrize("data", [{"folder": "here"}, {"weights": 1}])
def test_data_of_a_job_has_no_name_that_the_job_gives_it(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="which the job gives it"):
        Job("make", "a.module:function", data, {"weights": "a file"})
