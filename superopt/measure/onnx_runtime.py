"""Jobs of a worker that runs one ONNX file in ONNX Runtime, for `superopt.measure.peers`.

Neither JAX nor our threads are in its process.  If the runtime cannot run a file, its message is returned as data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from superopt.arrays import bundles as arrays
from superopt.machine.fallback import in_one_line
from superopt.measure import loop
from superopt.workshop.job import Event

_DTYPES = {
    "float": "float32", "double": "float64", "float16": "float16", "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_CALLS: list[Callable[[], object]] = []  # calls of the model that was loaded last


def load_model(request: Mapping[str, Any]) -> Iterator[Event]:
    """Load a model, call it, and report the seconds of a call and the number of calls per sample."""
    try:
        import onnxruntime  # late: only this process has it  # pyright: ignore[reportMissingImports]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = request["threads"], 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(request["model"], options, providers=["CPUExecutionProvider"])
        given = arrays.load(Path(request["arrays"]))
        wanted = session.get_inputs()
        if len(wanted) != len(given):
            raise ValueError(f"it takes {len(wanted)} inputs, {len(given)} are given")
        feeds = {one.name: _as_taken(given[str(i)], one.type) for i, one in enumerate(wanted)}

        def call() -> object:
            return session.run(None, feeds)

        call()
        seconds = loop.seconds_of(call, 1)
        _CALLS[:] = [call]
        yield {"event": "loaded", "version": str(onnxruntime.__version__), "seconds": seconds}
    except Exception as error:  # an error of the library about a file is reported as data
        yield {"event": "failed", "detail": in_one_line(error)}


def _as_taken(value: np.ndarray, kind: str) -> np.ndarray:
    """An input in the type that the runtime expects, such as `tensor(float)`."""
    dtype = _DTYPES.get(kind.removeprefix("tensor(").removesuffix(")"))
    if dtype is None:
        raise ValueError(f"an input is a {kind}")
    return np.ascontiguousarray(value, np.dtype(dtype))


def time_model(request: Mapping[str, Any]) -> Iterator[Event]:
    """Seconds per call of a sample, after a call that wakes the threads."""
    (call,) = _CALLS
    call()
    yield {"event": "timed", "seconds": loop.seconds_of(call, request["calls"])}
