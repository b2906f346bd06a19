"""Functions of jobs for tests of the workshop."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from superopt.kernels.llvm.jit import cache_folder
from superopt.workshop.cluster import RayExecutor
from superopt.workshop.job import LOST, Event, Failure, Job, WorkerDiedError
from superopt.workshop.process import ONE_KERNEL, Worker
from superopt.workshop.scheduler import Workers, Workshop

SPANS = 3


def square(data: Mapping[str, Any]) -> Iterator[Event]:
    """Yield a square; negative numbers end the process."""
    if data["number"] < 0:
        os._exit(3)
    yield {"event": "square", "square": data["number"] ** 2}


def content(data: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the size of a file and where it lies, after a while."""
    time.sleep(data.get("seconds", 0.0))
    path = Path(data["path"])
    yield {"event": "content", "bytes": len(path.read_bytes()), "path": str(path)}


def words(data: Mapping[str, Any]) -> Iterator[Event]:
    """Write to the standard error until somebody reads it, and end the process."""
    os.write(2, b"x" * data["bytes"])
    os._exit(3)
    yield {}


def cache(_: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the folder in which objects are cached."""
    yield {"event": "cache", "path": str(cache_folder())}


def late(_: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the modules that this process has to load before it can call a kernel of ours from XLA."""
    before = set(sys.modules)
    from superopt.backends import native  # late: it is one of them where it is not loaded yet

    assert native.unavailable() == ""
    yield {"event": "late", "modules": sorted(set(sys.modules) - before)}


def span(data: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the instants at which a sleep begins and ends."""
    begin = time.monotonic()
    time.sleep(data["seconds"])
    yield {"event": "span", "begin": begin, "end": time.monotonic()}


def spans(workshop: Workshop) -> list[tuple[float, float]]:
    """Begin and end of jobs that time, in the order in which they began."""
    jobs = [Job("time", "tests.support.jobs:span", {"seconds": 0.3}) for _ in range(SPANS)]
    done = [found for found in workshop.done(jobs).values() if not isinstance(found, Failure)]
    return sorted((event["begin"], event["end"]) for (event,) in done)


def drive(address: str) -> None:
    """Print `ready`, wait for a line, and print the spans of jobs that time on a cluster."""
    with RayExecutor(address) as cluster, Workers(1, cluster).workshop(ONE_KERNEL) as workshop:
        workshop.start()
        workshop.ready()
        print("ready", flush=True)
        input()
        print(json.dumps(spans(workshop)))


class Losing(Worker):
    """A worker of this machine that is lost in its requests of these numbers, each after so many events."""

    def __init__(self, losses: Mapping[int, int]) -> None:
        super().__init__()
        self.losses, self.count = dict(losses), -1

    def request(self, job: Job, end_s: float = math.inf) -> Iterator[Event]:
        self.count += 1
        most = self.losses.pop(self.count, math.inf)
        for number, event in enumerate(super().request(job, end_s)):
            if number >= most:
                self.close()
                raise WorkerDiedError(Failure(LOST, "the node is gone"))
            yield event
