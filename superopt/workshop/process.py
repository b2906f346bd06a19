"""The parent's side of a worker process: start it, ask it, watch it, and get rid of it.

The worker is no fork of this process, since XLA's threads do not survive one, but of a fresh interpreter that has only
loaded the modules of workers (`superopt.workshop.forks`).  It has its own session, so Ctrl-C reaches only the parent,
which then kills the whole group, forks included.  Jobs go to its standard input; events come back on a pipe of
their own as JSON lines; output of candidates goes to a reader that keeps the last few kilobytes.  The worker ends
itself when its input closes, so it never outlives the parent.

Every request has a limit on silence and one on memory.  A worker that breaks either is killed, and the next request
starts a new one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt.machine import facts as machine
from superopt.workshop import forks
from superopt.workshop.job import PING, Event, Failure, Job, JobWorker, WorkerDiedError

_POLL_S = 0.1
_TAIL_BYTES = 8192
_MAX_EVENT_BYTES = 64 << 20
WAITS = 10.0
ENDED = "it was ended"
TIME_OVER = "it had not ended when the time was over"
"""The reason why a request with an end failed."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits on the silence and the memory of a worker.

    Attributes:
        silence_s: longest time without an event (one build, one check or one round).
        processor: count the worker's processor time where the system reports it, not the clock; a worker that neither
            answers nor works is given up after `WAITS` times as long.
        memory_bytes: resident and allocated memory of the worker; None is three quarters of the machine's.
        jobs: jobs after which the process is replaced, for those that leave compiled code in it.
    """

    silence_s: float = 120.0
    memory_bytes: int | None = None
    processor: bool = False
    jobs: float = math.inf

    def memory(self) -> int:
        """The memory limit in bytes."""
        if self.memory_bytes is not None:
            return self.memory_bytes

        return machine.describe().memory_bytes * 3 // 4 or 8 << 30


MOST_PROCESSES = 4
"""Processes that make or validate kernels at once: one that has made some takes 0.28 GB."""
ONE_KERNEL = ProcessLimits(silence_s=60.0)
"""Limits of workers that build and time one kernel at a time, for which a few seconds are slow."""


class Worker:
    """A process that does jobs, started at the first one and again after a death; use it as a context manager.

    With `inline`, the process runs computations in the calling thread instead of handing them to another one; that
    costs a small kernel more than its work.  Programs are timed as users run them, with the hand-over.  `loads` is a
    `module:function` that the process calls before its first job.  A worker that is not `forked` is a fresh
    interpreter, without JAX unless it loads that.
    """

    def __init__(
        self,
        limits: ProcessLimits | None = None,
        *,
        inline: bool = False,
        loads: str = "",
        forked: bool = True,
    ) -> None:
        self.inline, self.forked = inline, forked
        self.loads = loads
        self.limits = limits or ProcessLimits()
        self.started = 0
        self._process: forks.Process | None = None
        self._events: int = -1
        self._buffer = b""
        self._tail = _Tail()
        self._asking: int | None = None  # the thread whose request is being answered
        self._over = False
        self._jobs = 0

    def request(self, job: Job, end_s: float = math.inf) -> Iterator[Event]:
        """Send a job and yield its events up to, and without, the final `done`.

        Args:
            job: the job.
            end_s: instant of `time.monotonic` at which the worker is killed, if it has not answered by then.

        Raises:
            WorkerDiedError: the worker crashed, was too silent, too slow or took too much memory, or was ended.  The
                process is gone by then.
        """
        if self._jobs >= self.limits.jobs:
            self.close()
        process = self._ensure()
        self._jobs += 1
        finished = False
        self._asking = threading.get_ident()
        try:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(job.message()).encode() + b"\n")
                process.stdin.flush()
            except OSError:
                raise WorkerDiedError(self._obituary(process)) from None
            while True:
                event = self._next_event(process, end_s)
                if event.get("event") == "done":
                    finished = True
                    return
                yield event
        finally:
            self._asking = None
            if not finished:  # died, Ctrl-C, or the caller stopped listening: this process is of no further use
                self.close()

    def ready(self) -> None:
        """Start the process where none is running, and wait until it has loaded its modules.

        Raises:
            WorkerDiedError: it ended, or was silent for too long.
        """
        list(self.request(PING))

    @property
    def alive(self) -> bool:
        """Whether a process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def processor_s(self) -> float:
        """Processor time of the running process so far; 0 where none runs or the system does not report it."""
        return (_processor_s(self._process.pid) or 0.0) if self._process is not None else 0.0

    def end(self) -> None:
        """Close the worker for good, whichever thread waits for it or starts it: requests fail from now on."""
        self._over = True
        self.close()

    def close(self) -> None:
        """Kill the worker's process group and reap it; another thread's request fails, and reaps the rest."""
        process = self._process
        if process is None:
            return
        _kill(process)
        if self._asking not in (None, threading.get_ident()):
            return
        self._process = None
        _reap(process)
        os.close(self._events)
        self._events, self._buffer = -1, b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ensure(self) -> forks.Process:
        if self._over:
            raise WorkerDiedError(Failure("exit", ENDED))
        if self._process is not None and self.alive:
            return self._process
        self.close()
        mine, theirs = os.pipe()
        changes = {"JAX_CPU_ENABLE_ASYNC_DISPATCH": "false"} if self.inline else {}
        limits = [str(self.limits.memory()), self.loads]
        try:
            forked = forks.fork(limits, changes, theirs, lambda: self._over) if self.forked else None
            if self._over:
                if forked is not None:
                    _reap(forked)
                raise WorkerDiedError(Failure("exit", ENDED))
            self._process = forked or _started(limits, changes, theirs)
        except BaseException:
            os.close(mine)
            raise
        finally:
            os.close(theirs)
        self._events, self._buffer = mine, b""
        self.started += 1
        self._jobs = 0
        self._tail = _Tail()
        assert self._process.stderr is not None
        threading.Thread(target=self._tail.drain, args=(self._process.stderr,), daemon=True).start()
        return self._process

    def _next_event(self, process: forks.Process, end_s: float = math.inf) -> Event:
        silent_s, last = 0.0, time.monotonic()
        worked_s = _processor_s(process.pid) if self.limits.processor else None
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            while True:
                line, found, rest = self._buffer.partition(b"\n")
                if found:
                    self._buffer = rest
                    return json.loads(line)
                rest_s = _POLL_S if worked_s is not None else max(0.0, self.limits.silence_s - silent_s)
                if selector.select(max(0.0, min(_POLL_S, rest_s, end_s - time.monotonic()))):
                    chunk = os.read(self._events, 1 << 16)
                    if not chunk or len(self._buffer) > _MAX_EVENT_BYTES:
                        raise WorkerDiedError(self._obituary(process))
                    self._buffer += chunk
                    continue
                if process.poll() is not None:
                    raise WorkerDiedError(self._obituary(process))
                now = time.monotonic()
                if now >= end_s:
                    raise WorkerDiedError(Failure("timeout", TIME_OVER))
                silent_s, last = silent_s + min(now - last, 1.0), now  # a machine that was asleep is no silent worker
                spent_s = silent_s
                if worked_s is not None:
                    spent_s = max((_processor_s(process.pid) or worked_s) - worked_s, silent_s / WAITS)
                if spent_s > self.limits.silence_s:
                    raise WorkerDiedError(Failure("timeout", f"no answer within {self.limits.silence_s:g} s"))
                used = _resident_bytes(process.pid)
                if used > self.limits.memory():
                    raise WorkerDiedError(
                        Failure("memory", f"{used >> 20} MB in use, limit {self.limits.memory() >> 20} MB")
                    )

    def _obituary(self, process: forks.Process) -> Failure:
        try:
            code = process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            return Failure("exit", "the worker closed its pipe and stayed")
        words = self._tail.text()
        last = "; ".join(filter(None, (words.splitlines()[-1] if words else "", self._tail.fault)))
        if any(sign in words for sign in ("bad_alloc", "MemoryError", "RESOURCE_EXHAUSTED", "Out of memory")):
            return Failure("memory", last)
        if code < 0:
            return Failure("crash", f"{_signal_name(-code)}{': ' + last if last else ''}")
        return Failure("exit", f"exit status {code}{': ' + last if last else ''}")


def _started(arguments: Sequence[str], changes: Mapping[str, str], events: int) -> forks.Process:
    """A worker as a fresh interpreter, not forked."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    # -P: modules in the folder of the user are not taken for those of the same name that the worker needs
    return subprocess.Popen(
        [sys.executable, "-P", "-m", forks.PROGRAM, str(events), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        pass_fds=(events,), start_new_session=True,
        env={**forks.ENVIRONMENT, **os.environ, **changes, "PYTHONPATH": path},
    )  # fmt: skip


def _reap(process: forks.Process) -> None:
    """End a process, and close its streams."""
    _kill(process)
    process.wait()
    for stream in (process.stdin, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _kill(process: forks.Process) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def ended_by_interrupts(workers: Sequence[JobWorker]) -> Iterator[None]:
    """Make Ctrl-C inside the block end these workers at once, so that threads that wait for them end, too."""
    try:
        yield
    except KeyboardInterrupt:
        for worker in workers:
            worker.end()
        raise


class _Tail:
    """The last bytes that a worker wrote to its standard error; `fault` says why reading it ended before its end."""

    def __init__(self) -> None:
        self.fault = ""
        self._bytes = b""
        self._ended = threading.Event()

    def drain(self, stream: Any) -> None:
        """Read until the end, keeping the tail; after a fault the worker cannot write either, and so does not wait."""
        try:
            while chunk := os.read(stream.fileno(), 1 << 16):
                self._bytes = (self._bytes + chunk)[-_TAIL_BYTES:]
        except Exception as error:  # told with the end of the worker
            if not stream.closed:
                self.fault = f"what it wrote could not be read: {type(error).__name__}: {error}"
                stream.close()
        self._ended.set()

    def text(self) -> str:
        """The bytes read so far, once the stream has ended or half a second has gone by."""
        self._ended.wait(0.5)
        return self._bytes.decode(errors="replace").strip()


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _processor_s(pid: int) -> float | None:
    """Processor time of a process so far; None where the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
