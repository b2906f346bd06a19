"""The functions that run in worker processes, and the pool; a worker loads a universe once and keeps it.

With one job everything runs in this process.  Workers are spawned, so they inherit nothing but the arguments.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from superopt.lab.discovery import enumeration
from superopt.lab.discovery.algebra import AxesType, OpForm, digests
from superopt.lab.discovery.enumeration import LevelJob, PartitionRows
from superopt.lab.discovery.terms import Universe

AnyResult = TypeVar("AnyResult")


class Inline(Executor):
    """An executor that computes at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The finished future of a call."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # as an executor does: raised again by `result`
            future.set_exception(error)
        return future


def pool(jobs: int) -> Executor:
    """Workers, or this process for one job."""
    if jobs == 1:
        return Inline()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def in_turn(
    executor: Executor, fn: Callable[..., AnyResult], tasks: Iterator[tuple[Any, ...]], jobs: int
) -> Iterator[AnyResult]:
    """Results as they arrive; at most two tasks per worker are under way, and each is created when there is room."""
    running: set[Future[AnyResult]] = set()
    more = True
    while more or running:
        while more and len(running) < (2 * jobs if jobs > 1 else 1):
            task = next(tasks, None)
            if task is None:
                more = False
                break
            running.add(executor.submit(fn, *task))
        done, running = wait(running, return_when=FIRST_COMPLETED) if running else (set(), running)
        for future in done:
            yield future.result()


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
    found = np.array([digests(u.values[x.number][None], x.type)[0] for x in u.terms], np.uint64)
    order = np.argsort(found, kind="stable")
    return found[order], order


def make(path: Path, job: LevelJob, ops: frozenset[str], folder: Path, partitions: int) -> int:
    """Run a job of a level."""
    return enumeration.run_job(load_universe(path), job, ops, folder, partitions)


def read(path: Path, ops: frozenset[str], folder: Path, partition: int, last: bool) -> PartitionRows:
    """Read a partition of a level."""
    known, numbers = fingerprints(path)
    return enumeration.read_partition(load_universe(path), known, numbers, ops, folder, partition, last)
