"""Jobs and what becomes of them, as plain data."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Event = dict[str, Any]
JobKind = Literal["make", "validate", "time", "compare"]
ALONE: frozenset[JobKind] = frozenset({"time", "compare"})
"""Kinds of jobs beside which nothing else runs on a host."""
LOST = "lost"
"""The cause of a failure that says nothing of the job: its worker is gone, and another one takes the job."""
MOST_LOSSES = 3
"""Workers that one job may lose."""
FILES = "files"
"""Key of an event that names files of the job's folder, which are complete when it is yielded."""


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work for a worker.

    Attributes:
        kind: whether it makes, validates, times or compares; jobs of the kinds `ALONE` share their host with nothing.
        call: `package.module:function`, which takes the data and yields events.
        data: JSON values.
        files: paths of files that the job reads, by the name under which the function finds them in its data.
        folder: folder of the caller into which the function writes files, as `folder` in its data; none where empty.
        portable: whether any processor gives the same result.

    Raises:
        ValueError: the data has a name that a file has, or `folder`.
    """

    kind: JobKind
    call: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: str = ""
    portable: bool = False

    def __post_init__(self) -> None:
        if twice := self.data.keys() & {*self.files, "folder"}:
            raise ValueError(f"the data of {self.call} has {sorted(twice)}, which the job gives it")

    def message(self) -> dict[str, Any]:
        """Return the line that a worker reads."""
        return {"call": self.call, "data": {**self.data, **self.files, "folder": self.folder}}


@dataclass(frozen=True, slots=True)
class OutputError:
    """Relative errors of one output; infinite when shapes, dtypes or special values differ."""

    normwise: float
    elementwise: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a job has no result.

    Attributes:
        cause: one of `crash`, `exit`, `timeout`, `memory`, `build`, `run`, `numerics`, `lost`.
        detail: one or two lines for the report.
        errors: per output, when the outputs were computed and are wrong.
    """

    cause: str
    detail: str
    errors: tuple[OutputError, ...] = ()


PING = Job("make", "superopt.workshop.job:pong")
"""The job that answers with the number of its process."""


def pong(_: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the number of the process."""
    yield {"event": "pong", "pid": os.getpid()}


class WorkerDiedError(Exception):
    """The worker ended before it finished a job; `failure` is the cause."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.cause}: {failure.detail}")
        self.failure = failure


class JobWorker(Protocol):
    """A worker on any host: one process that does one job at a time and remembers what earlier jobs left in it."""

    @property
    def started(self) -> int:
        """Number of processes that were started so far; another number means that earlier jobs are forgotten."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        ...

    def request(self, job: Job, end_s: float = math.inf) -> Iterator[Event]:
        """Do a job and yield its events; raises `WorkerDiedError`."""
        ...

    def ready(self) -> None:
        """Start the process and wait until it has started; raises `WorkerDiedError`."""
        ...

    def end(self) -> None:
        """Close the worker for good."""
        ...

    def close(self) -> None:
        """End the process; the next job starts another one."""
        ...

    def __enter__(self) -> JobWorker: ...

    def __exit__(self, *_: object) -> None: ...


def resolve(target: str, path: str | None = None) -> Any:
    """Return the object that `package.module:name` stands for."""
    if path is not None and path not in sys.path:
        sys.path.insert(0, path)
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
