"""What loses its worker begins anew with another one, and ends with the results that it would have had."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from superopt.ir.program import original_program
from superopt.kernels.llvm.cpu import supported
from superopt.measure import ComparisonSettings, Timing, compare, ran
from superopt.schedules.candidates import example_arrays
from superopt.schedules.tune import ScheduleSearch, tune
from superopt.schedules.workload import workload
from superopt.workshop import process
from superopt.workshop.job import LOST, MOST_LOSSES, Event, Failure, Job, JobWorker, WorkerDiedError
from superopt.workshop.process import Worker
from superopt.workshop.scheduler import LastingWorker, again_where_lost
from tests.support.jobs import Losing

GRAPH = workload("dot f32 16x24x8")
PROGRAM = original_program(GRAPH)
VALUES = [example_arrays(GRAPH, seed) for seed in range(3)]
INPUTS = [[values[node["name"]] for node in PROGRAM.live_inputs] for values in VALUES]
FROZEN = {node["name"]: VALUES[0][node["name"]] for node in GRAPH.inputs if node["frozen"]}


@pytest.mark.parametrize("after", range(5))
def test_a_comparison_that_loses_its_worker_begins_anew(after: int) -> None:
    with Losing({0: after}) as worker:
        found = compare(PROGRAM, [PROGRAM], INPUTS[0], FROZEN, ComparisonSettings(3, 0.0), worker=worker)
    assert worker.started == 2
    assert isinstance(found.reference, Timing)
    assert isinstance(found.candidates[0], Timing), "no candidate is to blame"
    assert len(found.candidates[0].samples_s) == len(found.again_s) == 3, "rounds of the lost worker are forgotten"


def test_a_comparison_that_goes_on_losing_workers_is_given_up() -> None:
    with Losing(dict.fromkeys(range(9), 0)) as worker:
        found = compare(PROGRAM, [PROGRAM], INPUTS[0], FROZEN, ComparisonSettings(3, 0.0), worker=worker)
    assert worker.started == MOST_LOSSES
    assert isinstance(found.reference, Failure)
    assert found.reference.cause == LOST


def test_a_fault_in_reading_what_a_worker_writes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the worker wait for somebody who reads on."""
    real = os.read

    def read(number: int, size: int) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("of the reader")
        return real(number, size)

    with Worker(process.ProcessLimits(silence_s=20.0)) as worker:
        monkeypatch.setattr(process.os, "read", read)
        with pytest.raises(WorkerDiedError) as died:
            list(worker.request(Job("make", "tests.support.jobs:words", {"bytes": 1 << 20})))
    assert died.value.failure.cause == "exit"
    assert "what it wrote could not be read: RuntimeError: of the reader" in died.value.failure.detail


@pytest.mark.parametrize("after", range(3))
def test_calls_go_on_where_they_lost_their_worker(after: int) -> None:
    taken: list[list[np.ndarray]] = []
    with Losing({0: after}) as worker, Worker() as other:
        found = ran(PROGRAM, INPUTS, FROZEN, worker=worker, take=lambda results, seconds: taken.append(results))
        local = ran(PROGRAM, INPUTS, FROZEN, worker=other)
    assert worker.started == 2
    assert [[x.tobytes() for x in one] for one in taken] == [[x.tobytes() for x in one] for one in local.results]
    assert len(found.results) == len(found.seconds) == len(INPUTS)
    assert found.lost is None


@pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
def test_a_search_of_schedules_that_loses_its_worker_tries_what_another_one_tries() -> None:
    """It is lost while it starts, opens, builds and times."""
    how = ScheduleSearch(120.0, strategy="random", most=5)

    def tried(worker: Worker) -> list[tuple[str, str]]:
        with worker:
            found = tune(GRAPH, how, processes=[worker])
        assert not any("died" in cause for cause in found.refused)
        return [(json.dumps(c.trace), c.digest) for c in found.history]

    local = tried(Worker())
    assert len(local) > 3
    for losses in ({0: 0}, {1: 0}, {2: 1}, {3: 0}, {4: 5}):
        losing = Losing(losses)
        assert tried(losing) == local
        assert losing.started == 2


def test_a_call_is_made_again_only_where_its_worker_is_lost() -> None:
    def calls(cause: str) -> tuple[Callable[[], str], list[str]]:
        made: list[str] = []

        def call() -> str:
            made.append(cause)
            raise WorkerDiedError(Failure(cause, ""))

        return call, made

    for cause, count in ((LOST, MOST_LOSSES), ("crash", 1)):
        call, made_of = calls(cause)
        with pytest.raises(WorkerDiedError):
            again_where_lost(call)
        assert len(made_of) == count


class Host:
    """A worker of a host that may be gone."""

    def __init__(self, name: str, gone: bool = False) -> None:
        self.name, self.gone, self.started, self.ended = name, gone, 0, False
        self.alive = True

    def request(self, job: Job, end_s: float = math.inf) -> Iterator[Event]:
        self.started = 1
        if self.gone:
            raise WorkerDiedError(Failure(LOST, self.name))
        yield {"event": self.name}

    def ready(self) -> None:
        list(self.request(Job("make", "")))

    def end(self) -> None:
        self.ended = True

    def close(self) -> None:
        pass

    def __enter__(self) -> JobWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def test_the_next_host_takes_over_where_one_is_gone() -> None:
    hosts = [Host("one", gone=True), Host("two"), Host("three")]
    with LastingWorker(hosts) as worker:
        assert again_where_lost(lambda: list(worker.request(Job("time", "")))) == [{"event": "two"}]
        assert worker.started == 2, "so that whoever asks knows that earlier jobs are forgotten"
        assert list(worker.request(Job("time", ""))) == [{"event": "two"}], "it stays there"
        hosts[1].gone = True
        with pytest.raises(WorkerDiedError):
            worker.ready()
        worker.ready()
        assert worker.started == 3
    assert all(host.ended for host in hosts)
