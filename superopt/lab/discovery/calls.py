"""Jobs of a discovery: functions with arguments that JSON does not hold; a worker loads a universe once and keeps it.

Enumeration reads and writes rows in a folder of this machine, more than would move in the time that it takes, so its
jobs stay here.  Judgements are small and slow, and any host does them.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from superopt.lab.discovery import enumeration
from superopt.lab.discovery.algebra import AxesType, OpForm, digests
from superopt.lab.discovery.enumeration import LevelJob, PartitionRows
from superopt.lab.discovery.terms import Universe
from superopt.workshop.job import Event, Failure, Job, JobKind, WorkerDiedError, resolve
from superopt.workshop.process import ProcessLimits
from superopt.workshop.scheduler import Workshop

AnyResult = TypeVar("AnyResult")
LIMITS = ProcessLimits(silence_s=3600.0)
"""Limits of a worker: it says nothing before the end of a job, and jobs have no limit of their own."""


def in_turn(
    workshop: Workshop, kind: JobKind, fn: Callable[..., AnyResult], tasks: Iterator[tuple[Any, ...]]
) -> Iterator[AnyResult]:
    """Results as they arrive; at most two tasks per worker are under way, and each is created when there is room.

    A single worker gets a task when it has done the last one, so its results are those of a loop.

    Raises:
        WorkerDiedError: a task ended its process.
    """
    call = f"{fn.__module__}:{fn.__qualname__}"
    jobs = (Job(kind, f"{__name__}:apply", {"call": call, "given": _packed(task)}, portable=True) for task in tasks)
    for _, result in workshop.each(jobs, ahead=1 if len(workshop.seats) == 1 else None):
        if isinstance(result, Failure):
            raise WorkerDiedError(result)
        yield _unpacked(result[0]["value"])


def apply(request: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the value of a function for the arguments of a job."""
    yield {"event": "value", "value": _packed(resolve(request["call"])(*_unpacked(request["given"])))}


def _packed(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode("ascii")


def _unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


Enumerated = Sequence[tuple[OpForm, tuple[int, ...]]]


def save_universe(path: Path, leaves: Sequence[AxesType], made: Enumerated) -> None:
    """Write the parts of a universe to a file."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(pickle.dumps((tuple(leaves), tuple(made))))
    fresh.replace(path)


@lru_cache(maxsize=1)
def load_universe(path: Path) -> Universe:
    """The universe of a file, with all values."""
    leaves, made = pickle.loads(path.read_bytes())
    u = Universe()
    for t in leaves:
        u.leaf(t)
    for form, args in made:
        u.add(form, args)
    return u


@lru_cache(maxsize=1)
def fingerprints(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Sorted fingerprints of the terms of a universe, and their numbers."""
    u = load_universe(path)
    prints = np.array([digests(u.values[x.number][None], x.type)[0] for x in u.terms], np.uint64)
    order = np.argsort(prints, kind="stable")
    return prints[order], order


def make(path: Path, job: LevelJob, ops: frozenset[str], folder: Path, partitions: int) -> int:
    """Run a job of a level."""
    return enumeration.run_job(load_universe(path), job, ops, folder, partitions)


def read(path: Path, ops: frozenset[str], folder: Path, partition: int, last: bool) -> Path:
    """Read a partition of a level; return the path of a file with its rows, which may be long."""
    known, numbers = fingerprints(path)
    rows = enumeration.read_partition(load_universe(path), known, numbers, ops, folder, partition, last)
    there = folder / f"{partition:04d}.rows"
    there.write_bytes(pickle.dumps(rows))
    return there


def rows_at(path: Path) -> PartitionRows:
    """The rows that `read` wrote; the file is removed."""
    rows = pickle.loads(path.read_bytes())
    path.unlink()
    return rows
