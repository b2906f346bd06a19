"""Small ONNX models run in a separate process that may be ended: one for this process, started on first use.

A model of a few bytes can ask for any amount of time and memory: a pattern that is matched by backtracking, a tree with
a cycle, texts that grow.  The limits of the process are in proportion to its inputs.  Where it exceeds them it is
ended, and the next request starts another.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superopt.errors import FileLimitError, InputError
from superopt.foreign.onnx_values import packed, size_of, unpacked
from superopt.machine.deadline import Deadline

SECONDS = 5.0  # processor time of a request
SECONDS_PER_MB = 50.0  # per MB of inputs: the evaluator's loops over boxes take some microseconds for each number
MEMORY_BYTES = 4 << 30
MEMORY_PER_BYTE = 64  # bytes of memory per byte of inputs
_WAITS = 20.0  # wall time over processor time, on machines where others run too
_MEMORY = "operators that run on the host take more memory than is accepted"
_HINT = "run the model in another runtime, or give the operator a function (load_model, operators=)"


class HostProcess:
    """The evaluating process, shared by all threads of this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._left: subprocess.Popen[bytes] | None = None  # kept, or Python would complain that it runs
        self._results = -1
        self._spent = threading.local()

    @property
    def spent_s(self) -> float:
        """Processor time of the process for requests of this thread."""
        return getattr(self._spent, "seconds", 0.0)

    @property
    def pid(self) -> int | None:
        """Number of the process, while there is one."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def ask(self, model: bytes, values: Sequence[Any] = (), *, task: str = "run") -> list[Any]:
        """Outputs of a model for these inputs; with task `types`, the types of its outputs if it can be run.

        Raises:
            InputError: the reference evaluator cannot run it.
            FileLimitError: it takes more time or memory than allowed.
        """
        given = size_of(values)
        seconds = SECONDS + SECONDS_PER_MB * given / 1e6
        limits = {"seconds": seconds, "bytes": MEMORY_BYTES + MEMORY_PER_BYTE * given}
        pieces = packed({"task": task, "model": len(model), **limits}, values)
        with self._lock:
            process = self._ensure()
            answered = False
            try:
                until = Deadline.within(_WAITS * seconds)
                message, results = self._exchange(process, [*pieces, model], until)
                answered = True
            except (OSError, EOFError) as error:
                raise self._ended(process, seconds) from error
            finally:
                if not answered:  # died, Ctrl-C, or too late: of no further use
                    self._close()
        self._spent.seconds = self.spent_s + message["spent_s"]
        if message["memory"]:
            raise FileLimitError(_MEMORY, hint=_HINT)
        if message["error"]:
            raise InputError(message["error"])
        return results

    def _exchange(self, process: subprocess.Popen[bytes], pieces: Sequence[Any], until: Deadline) -> Any:
        """Send a request and return its answer; raise EOFError where none comes in time."""
        assert process.stdin is not None
        for piece in pieces:
            process.stdin.write(piece)
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._results, selectors.EVENT_READ)

            def read(count: int) -> bytearray:
                data = bytearray(count)
                view, have = memoryview(data), 0
                while have < count:
                    if not selector.select(until.left_s):
                        raise EOFError
                    got = os.readv(self._results, [view[have : have + (1 << 20)]])
                    if not got:
                        raise EOFError
                    have += got
                return data

            return unpacked(read)

    def _ended(self, process: subprocess.Popen[bytes], seconds: float) -> InputError:
        """The error that reports how the process ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        code = process.poll()
        if code in (None, -signal.SIGXCPU):
            return FileLimitError(
                f"operators that run on the host take more than {seconds:.0f} s of processor time", hint=_HINT
            )
        if code in (-signal.SIGKILL, -signal.SIGABRT):  # ended by the system, or by a library that got no memory
            return FileLimitError(_MEMORY, hint=_HINT)
        what = signal.Signals(-code).name if code is not None and code < 0 else f"status {code}"
        return InputError(f"ONNX's reference evaluator ended with {what}", hint=_HINT)

    def _ensure(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._close()
        mine, theirs = os.pipe()
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
        environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        # -P: modules in the folder of the user are not taken for those of the same name that it needs
        command = [sys.executable, "-P", "-m", "superopt.foreign.onnx_child", str(theirs)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(theirs,), start_new_session=True, env=environment,
            )  # fmt: skip
        except BaseException:
            os.close(mine)
            raise
        finally:
            os.close(theirs)
        self._results = mine
        return self._process

    def close(self) -> None:
        """End the process; the next request starts another."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        os.close(self._results)
        self._results = -1

    def forget(self) -> None:
        """Leave the process to the parent, as this process is a fork of it."""
        self._lock, self._left = threading.Lock(), self._process
        self._process, self._results = None, -1


EVALUATOR = HostProcess()
atexit.register(EVALUATOR.close)
os.register_at_fork(after_in_child=EVALUATOR.forget)
