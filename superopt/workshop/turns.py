"""Turns of jobs on a host: one that times has the host to itself, whichever drivers send jobs there.

A driver orders its own jobs and knows nothing of those of other drivers.  So the part of a worker that runs on the host
holds a lock (`flock`) during a job, alone or with others.  The system releases it when the process ends.  Who waits to
be alone holds a second lock, the door, and lets nobody else in meanwhile.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from superopt.store import default_path
from superopt.workshop.job import Failure, WorkerDiedError
from superopt.workshop.process import TIME_OVER

try:
    import fcntl
except ImportError:  # no locks there
    fcntl = None

_POLL_S = 0.01


@contextmanager
def turn(alone: bool, end_s: float) -> Iterator[None]:
    """Hold this host inside the block, alone or with jobs that need not be alone.

    Raises:
        WorkerDiedError: the host was not free before the instant `end_s`.
    """
    folder, host = default_path().parent, socket.gethostname()
    folder.mkdir(parents=True, exist_ok=True)
    with _opened(folder / f"{host}.door") as door, _opened(folder / f"{host}.room") as room:
        _lock(door, True, end_s)
        _lock(room, alone, end_s)
        _unlock(door)
        yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield number
    finally:
        os.close(number)


def _lock(number: int, alone: bool, end_s: float) -> None:
    if fcntl is None:
        return
    while True:
        try:
            fcntl.flock(number, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise WorkerDiedError(Failure("timeout", TIME_OVER)) from None
            time.sleep(_POLL_S)
        except OSError:  # a file system without locks
            return
        else:
            return


def _unlock(number: int) -> None:
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_UN)
