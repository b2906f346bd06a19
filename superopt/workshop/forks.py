"""Workers forked from one process that has loaded their modules, instead of each loading them for itself.

Loading JAX takes two seconds of a processor, a fork some milliseconds.  The forking process has the environment, the
processors and the path of its parent.  It is a fresh interpreter with no threads that matter and no XLA in use, ends
when the parent does, and is replaced when the environment changes.  It takes one message per worker:

    [arguments, environment, folder]   With the descriptors of the worker: input, events, errors, status.

The worker writes its process number to `status` when it leads a group of processes, which can be killed; the process
that forked it adds its exit status when it ends.  Where no forking process can exist (no Linux, no room), workers are
started as processes of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

PROGRAM = "superopt.workshop.worker"
"""The module that every worker runs."""
LOADED = (
    PROGRAM, "superopt.measure.programs", "superopt.make.making", "superopt.schedules.candidates",
    "superopt.backends.native", "llvmlite.binding", "jaxlib.mlir.dialects.mhlo",
    "jaxlib.mlir.dialects.builtin",
)  # fmt: skip
"""Modules of most jobs; they and their imports are loaded before the first worker is requested.  The last ones are
imported by their users late: each worker took 0.04 s of a processor for LLVM and 0.02 s for what JAX compiles with."""
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Environment of workers, where the user has not set it.  NumPy's own threads go on spinning after a product or a norm
and take processors from the next timing.  Each of several processes would reserve most of a GPU's memory at start."""
_UNREAD = frozenset({"PYTEST_CURRENT_TEST"})
"""Variables that no worker reads, and that change too often to start another process for each value."""
_LATE = frozenset({"XDG_CACHE_HOME"})
"""Variables that no module reads as it loads: the forking process has none of them, each worker those of its parent."""
_MOST_BYTES = 1 << 16  # of a message
_DESCRIPTORS = 4
_WAIT_S = 0.05  # interval between checks whether the worker is still wanted


class Forked:
    """A forked worker with the part of the `subprocess.Popen` interface that its parent uses; `start` makes one."""

    def __init__(self, pid: int, stdin: IO[bytes], stderr: IO[bytes], status: int) -> None:
        self.pid, self.stdin, self.stderr = pid, stdin, stderr
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while the worker runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the worker and return its exit status.

        Raises:
            TimeoutExpired: it has not ended by then.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        while (code := self._ended(0.1)) is None:
            if end_s is not None and time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
        return code

    def _ended(self, most_s: float) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._status], [], [], most_s)[0]:
                told = os.read(self._status, 64)
                self.returncode = int(told) if told else -signal.SIGKILL  # the process that forks is gone
                os.close(self._status)
        return self.returncode


Process = subprocess.Popen[bytes] | Forked


class _Nursery:
    """The process that forks."""

    def __init__(self, root: str, environment: Mapping[str, str]) -> None:
        self._mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH", ""))))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "superopt.workshop.forks", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),), start_new_session=True,
                env={**ENVIRONMENT, **environment, "PYTHONPATH": path},
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        events: int,
        halted: Callable[[], bool],
    ) -> Forked:
        """Fork a worker with these arguments, and `events` as the first of them."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as mine:

            def pipe(read_here: bool) -> tuple[int, int]:
                read, write = os.pipe()
                here, there = (read, write) if read_here else (write, read)
                mine.callback(os.close, here)
                theirs.callback(os.close, there)
                return here, there

            (stdin, their_stdin), (stderr, their_stderr), (status, their_status) = pipe(False), pipe(True), pipe(True)
            message = json.dumps([list(arguments), dict(environment), os.getcwd()]).encode()
            socket.send_fds(self._mine, [message], [their_stdin, events, their_stderr, their_status])
            theirs.close()
            told = b""
            while not told.endswith(b"\n"):
                if not select.select([status], [], [], _WAIT_S)[0]:
                    if halted():
                        raise OSError("nobody waits for the worker any more")
                    continue
                piece = os.read(status, 1)
                if not piece:
                    raise OSError("the process that forks workers is gone")
                told += piece
            mine.pop_all()
            return Forked(int(told), os.fdopen(stdin, "wb"), os.fdopen(stderr, "rb"), status)

    def close(self) -> None:
        """Let the process end when its workers have ended."""
        self._mine.close()

    def kill(self) -> None:
        """End the process now."""
        self.close()
        self._process.kill()
        self._process.wait()


_LOCK = threading.Lock()
_AT_WORK: list[tuple[Any, _Nursery]] = []  # the current forking process, with the environment that it serves
_LEFT: list[_Nursery] = []  # earlier ones, which end with their workers


def load() -> None:
    """Start a process that loads the modules of workers, if none runs yet; returns at once."""
    with contextlib.suppress(OSError), _LOCK:
        _nursery()


def at_work() -> bool:
    """Whether a process that forks workers already runs for the current environment."""
    with _LOCK:
        return _running() is not None


def fork(
    arguments: Sequence[str],
    changes: Mapping[str, str],
    events: int,
    halted: Callable[[], bool] = lambda: False,
) -> Forked | None:
    """Fork a worker; None where none can be forked.

    Args:
        arguments: arguments of the program after the first, which is the descriptor `events`.
        changes: changes to the environment.
        events: descriptor to which the worker writes.
        halted: whether nobody waits for it any more.
    """
    if sys.platform != "linux":
        return None
    try:
        with _LOCK:
            nursery = _nursery()
        late = {name: os.environ[name] for name in _LATE if name in os.environ}
        return nursery.fork(arguments, {**late, **changes}, events, halted)
    except OSError:
        return None


def _end() -> None:
    for nursery in (*_LEFT, *(nursery for key, nursery in _AT_WORK if key[0] == os.getpid())):
        nursery.kill()
    _LEFT.clear()
    _AT_WORK.clear()


atexit.register(_end)


def _nursery() -> _Nursery:
    """The forking process for the current environment, started if it does not run.

    Raises:
        OSError: it cannot be started.
    """
    if sys.platform != "linux":
        raise OSError("only Linux hands over descriptors in messages that keep their bounds")
    if (running := _running()) is not None:
        return running
    key = _served()
    for known, other in _AT_WORK:
        if known[0] == os.getpid():
            other.close()
            _LEFT.append(other)
    _LEFT[:] = [other for other in _LEFT if other.alive]
    _AT_WORK.clear()  # of the one that was closed, should no other start
    _AT_WORK.append((key, _Nursery(str(Path(__file__).resolve().parents[2]), key[1])))
    return _AT_WORK[0][1]


def _running() -> _Nursery | None:
    """The forking process for the current environment; None where it does not run."""
    known = _AT_WORK[0] if _AT_WORK else None
    return known[1] if known is not None and known[0] == _served() and known[1].alive else None


def _served() -> tuple[int, dict[str, str], set[int]]:
    """The process, environment and processors that a forking process serves."""
    environment = {name: value for name, value in os.environ.items() if name not in _UNREAD | _LATE}
    return os.getpid(), environment, os.sched_getaffinity(0)


def main(number: int) -> None:
    """Load modules, then fork a worker for each message until the parent is gone and all workers have ended."""
    mine = socket.socket(fileno=number)
    _load(mine)
    gc.freeze()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    status: dict[int, int] = {}
    waiting = [mine.fileno(), woken]
    while len(waiting) > 1 or status:
        ready = select.select(waiting, [], [])[0]
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            _reap(status)
        if mine.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(mine, _MOST_BYTES, _DESCRIPTORS)
            if not message:
                waiting.remove(mine.fileno())
                continue
            pid = os.fork()
            if not pid:
                _become(json.loads(message), descriptors, [mine.fileno(), woken, wake, *status.values()])
            for descriptor in descriptors[:-1]:
                os.close(descriptor)
            status[pid] = descriptors[-1]


def _load(parent: socket.socket) -> None:
    """Import the modules of workers; where the parent ends meanwhile, so does this process.

    Importing takes seconds in which the main thread looks at nothing else.  The thread that does is gone before the
    first fork.
    """
    loaded, loading = os.pipe()
    watch = threading.Thread(target=_end_with, args=(parent, loaded))
    watch.start()
    try:
        for name in LOADED:
            with contextlib.suppress(ImportError):  # of a module of JAX's own: raised where a job asks for it
                importlib.import_module(name)
    finally:
        os.close(loading)
        watch.join()
        os.close(loaded)


def _end_with(parent: socket.socket, loaded: int) -> None:
    """End the process when its parent's end of the socket closes; return when the pipe of `loaded` does."""
    both = select.poll()
    both.register(parent, 0)  # no event but the hang-up, which is always told
    both.register(loaded, 0)
    if any(descriptor == parent.fileno() for descriptor, _ in both.poll()):
        os._exit(0)


def _reap(status: dict[int, int]) -> None:
    while status:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        told = status.pop(pid, None)
        if told is not None:
            with contextlib.suppress(OSError):
                os.write(told, str(os.waitstatus_to_exitcode(code)).encode())
            os.close(told)


def _become(message: Sequence[Any], descriptors: Sequence[int], others: Sequence[int]) -> NoReturn:
    """Turn the forked process into the worker; does not return."""
    code = 1
    try:
        arguments, changes, folder = message
        stdin, events, stderr, status = descriptors
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.write(status, f"{os.getpid()}\n".encode())  # from now on it can be ended as a group
        os.dup2(stdin, 0)
        os.dup2(stderr, 2)
        for number in (*others, stdin, stderr, status):
            os.close(number)
        os.environ.update(changes)
        with contextlib.suppress(OSError):
            os.chdir(folder)
        if "jax" in sys.modules:
            _tell_jax(changes)
        importlib.import_module(PROGRAM).main(events, *arguments)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # as an interpreter does that ends
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _tell_jax(changes: Mapping[str, str]) -> None:
    """Apply settings that JAX has read from the environment when it was imported."""
    import jax  # late: it is loaded

    for name, value in changes.items():
        if name.startswith("JAX_"):
            jax.config.update(name.lower(), json.loads(value))


if __name__ == "__main__":
    main(int(sys.argv[1]))
