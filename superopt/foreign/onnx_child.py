"""The process that runs small ONNX models of strangers: `python -m superopt.foreign.onnx_child RESULTS`.

Requests come on standard input and results go to the descriptor RESULTS, as messages of `superopt.foreign.onnx_values`.
The system holds the process to the time and memory limits of each request.  A process that takes more time is ended,
and its parent reports that.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import resource
import signal
import sys
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference

from superopt.errors import InputError
from superopt.files.reading import cause_of
from superopt.foreign.onnx_limits import Bounded
from superopt.foreign.onnx_values import packed, unpacked
from superopt.machine.deadline import Stopwatch, process_s


def main() -> None:
    """Answer requests until standard input ends."""
    source, out = sys.stdin.buffer, os.fdopen(int(sys.argv[1]), "wb")

    def read(count: int) -> bytes:
        data = source.read(count)
        if len(data) < count:
            raise EOFError
        return data

    limits = _Limits()
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    _ended_with_parent()
    with contextlib.suppress(EOFError):
        while True:
            message, values = unpacked(read)
            model = read(message["model"])
            watch, results, told = Stopwatch(process_s), list[Any](), {"error": "", "memory": False}
            try:
                limits.set(message["seconds"], message["bytes"])
                signal.signal(signal.SIGIO, signal.SIG_DFL)
                results = _TASKS[message["task"]](model, values)
            except Exception as error:  # of NumPy, Python and the evaluator's own operators
                told = {"error": _told(error), "memory": isinstance(error, MemoryError)}
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            pieces = packed({**told, "spent_s": watch.elapsed_s}, results)
            out.writelines(pieces)
            out.flush()


def _told(error: Exception) -> str:
    if isinstance(error, InputError | MemoryError):
        return cause_of(error)
    return f"ONNX's reference evaluator does not run it: {cause_of(error)}"


@functools.lru_cache(maxsize=256)
def _evaluator_of(model: bytes) -> tuple[Bounded, tuple[str, ...]]:
    parsed = onnx.load_model_from_string(model)
    return Bounded(parsed), tuple(v.name for v in parsed.graph.input)


def _types(model: bytes, values: list[Any]) -> list[Any]:
    """Shape and element type of each result, None where they cannot be inferred, after a check that it can be run.

    The model's last node is the one in question: those before it were checked by earlier requests.
    """
    parsed = onnx.load_model_from_string(model)
    last = onnx.ModelProto()
    last.CopyFrom(parsed)
    del last.graph.node[:-1], last.graph.output[:]
    Bounded(last)
    try:
        inferred = onnx.shape_inference.infer_shapes(parsed, data_prop=True)
    except MemoryError:
        raise
    except Exception:  # inference may raise anything: then nothing is known
        return [None] * len(parsed.graph.output)
    return [_type(output.type) for output in inferred.graph.output]


def _type(kind: onnx.TypeProto) -> list[np.ndarray] | None:
    tensor = kind.tensor_type
    if kind.WhichOneof("value") != "tensor_type" or not tensor.elem_type or not tensor.HasField("shape"):
        return None
    sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
    return None if min(sizes, default=0) < 0 else [np.array(sizes, np.int64), np.array(tensor.elem_type)]


def _run(model: bytes, values: list[Any]) -> list[Any]:
    evaluator, names = _evaluator_of(model)
    with np.errstate(all="ignore"):
        return list(evaluator.run(None, dict(zip(names, values, strict=True))))


_TASKS = {"run": _run, "types": _types}


class _Limits:
    """Processor time and memory that this process may take."""

    def __init__(self) -> None:
        self._mapped, self._bytes = _mapped_bytes(), 0

    def set(self, seconds: float, more: int) -> None:
        """Allow so many seconds from now on, and so many bytes more than the process had at the beginning."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        _set(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + seconds) + 1)
        if more != self._bytes:
            self._bytes = more
            _set(resource.RLIMIT_AS, self._mapped + more)


def _set(kind: int, soft: int) -> None:
    hard = resource.getrlimit(kind)[1]
    with contextlib.suppress(OSError, ValueError):  # a system without this limit
        resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _mapped_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 32


def _ended_with_parent() -> None:
    """End the process when standard input closes, by a signal: its parent sends nothing while a request is answered."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    if hasattr(os, "O_ASYNC"):
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


if __name__ == "__main__":
    main()
