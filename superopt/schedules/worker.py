"""The process in which candidates are built, checked and timed (`python -m superopt.schedules.worker`).

Requests, after `open` (a graph as text, the number of threads, a seed):

    build{traces}   one event per trace: what the build cost, or why there is none; values are checked against XLA's
    time{digests}   one event per candidate of this process: seconds of each of several interleaved samples; of one
                    sample where the first call already took longer than `limit_s`

A candidate that kills the process takes nothing else with it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from superopt.errors import InputError
from superopt.ir.graph import Graph
from superopt.kernels import jit
from superopt.kernels.generate import generate
from superopt.kernels.program import from_graph, hoisted
from superopt.kernels.runtime import Kernel, build
from superopt.kernels.schedule.trace import apply
from superopt.kernels.show import digest
from superopt.kernels.stage import LoopProgram
from superopt.measure import loop
from superopt.measure.arrays import dtype as numpy_dtype
from superopt.measure.worker import serve

Event = dict[str, Any]
_MOST_PACKED = 8
TOLERANCE = 2e-5  # of the largest value; times the square root of the dtype's precision over float32's


@dataclass(slots=True)
class _Session:
    """What `open` set up, and the candidates so far."""

    program: LoopProgram
    arrays: dict[str, np.ndarray]
    expected: list[np.ndarray]
    threads: int
    calls: dict[str, Callable[[], Any]]
    packed: dict[str, dict[str, np.ndarray]] = field(default_factory=dict[str, dict[str, np.ndarray]])


_STATE: list[_Session] = []


def main(event_fd: int, memory_bytes: int) -> None:
    """Serve until the input closes."""
    serve(event_fd, memory_bytes, {"open": _open, "build": _build, "time": _time})


def _open(request: Mapping[str, Any]) -> Iterator[Event]:
    from superopt.ir.text import parse_graph  # late: only once per worker

    graph = parse_graph(request["graph"])
    arrays = example_arrays(graph, request["seed"])
    _STATE[:] = [
        _Session(from_graph(graph.outputs, name="kernel"), arrays, reference(graph, arrays), request["threads"], {})
    ]
    yield {"event": "opened"}


def example_arrays(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Random inputs by name: normal, or small integers."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for node in graph.inputs:
        dtype = numpy_dtype(node.dtype)
        shape = tuple([n for n in node.shape if isinstance(n, int)])
        if node.dtype == "bool":
            found[node["name"]] = rng.integers(0, 2, shape).astype(bool)
        elif dtype.kind in "iu":
            low, high = (0, 100) if dtype.kind == "u" else (-50, 50)
            found[node["name"]] = rng.integers(low, high, shape).astype(dtype)
        else:
            found[node["name"]] = rng.standard_normal(shape).astype(dtype)
    return found


def reference(graph: Graph, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs as XLA computes them."""
    import jax  # late: the import takes a second

    from superopt.backends.xla import needs_x64, to_jax

    with jax.enable_x64(needs_x64(graph)):
        results = jax.jit(to_jax(graph))(*[arrays[node["name"]] for node in graph.inputs])
        return [np.asarray(x) for x in results]


def _build(request: Mapping[str, Any]) -> Iterator[Event]:
    session = _STATE[0]
    for index, trace in zip(request["indices"], request["traces"], strict=True):
        yield {"event": "begin", "index": index}
        yield {"index": index, **_candidate(session, trace)}


def _candidate(session: _Session, trace: Any) -> Event:
    begin = time.perf_counter()
    try:
        scheduled = apply(session.program, trace)
        prepare, hot = hoisted(scheduled)
        values = dict(session.arrays)
        if prepare is not None:
            values |= _prepared(session, prepare)
        kernel = build(generate(hot), threads_hint=session.threads)
    except (InputError, jit.CompileError) as error:
        return {"event": "refused", "detail": str(error)}
    wrong = _wrong(session, kernel, values)
    if wrong is not None:
        return {"event": "wrong", "detail": wrong}
    session.calls[kernel.digest] = kernel.bind(values, session.threads)
    return {
        "event": "built",
        "digest": kernel.digest,
        "seconds": time.perf_counter() - begin,
        "compile_s": kernel.compiled.seconds,
        "spills": kernel.compiled.spills,
    }


def _prepared(session: _Session, prepare: LoopProgram) -> dict[str, np.ndarray]:
    """The packed operands; many candidates share them."""
    key = digest(prepare)
    if key not in session.packed:
        if len(session.packed) >= _MOST_PACKED:
            session.packed.clear()
        session.packed[key] = build(generate(prepare), pipeline="none").run(session.arrays)
    return session.packed[key]


def _wrong(session: _Session, kernel: Kernel, values: Mapping[str, np.ndarray]) -> str | None:
    got = kernel.run(values)
    for buffer, expected in zip(kernel.outputs, session.expected, strict=True):
        found = got[buffer.name]
        if expected.dtype.kind in "biu":
            if not np.array_equal(found, expected):
                return f"{buffer.name} differs from XLA's"
            continue
        wide, exact = found.astype(np.float64), expected.astype(np.float64)
        eps = float(np.finfo(np.float32).eps) if buffer.dtype == "float32" else _eps(buffer.dtype)
        scale = float(np.max(np.abs(exact), initial=0.0, where=np.isfinite(exact))) or 1.0
        allowed = TOLERANCE * (eps / float(np.finfo(np.float32).eps)) ** 0.5 * max(1.0, scale)
        both = np.isfinite(wide) & np.isfinite(exact)
        if not np.array_equal(wide[~both], exact[~both], equal_nan=True):
            return f"{buffer.name} differs from XLA's where values are not finite"
        error = float(np.max(np.abs(wide - exact), initial=0.0, where=both))
        if error > allowed:
            return f"{buffer.name} is {error:.2g} from XLA's, {allowed:.2g} allowed"
    return None


def _eps(dtype: str) -> float:
    import ml_dtypes  # late: narrow types only

    return float(ml_dtypes.finfo(numpy_dtype(dtype)).eps)


def _time(request: Mapping[str, Any]) -> Iterator[Event]:
    session = _STATE[0]
    calls = [session.calls[digest] for digest in request["digests"]]
    session.calls.clear()  # each holds copies of the operands; who wants to time one again builds it again
    hopeless = {i for i, call in enumerate(calls) if loop.seconds_of(call, 1) > request["limit_s"]}
    timed = [i for i in range(len(calls)) if i not in hopeless]
    rounds = loop.samples([calls[i] for i in timed], request["sample_s"], request["rounds"], request["seed"])
    samples = {i: [loop.seconds_of(calls[i], 1)] for i in hopeless} | dict(zip(timed, rounds, strict=True))
    for i, name in enumerate(request["digests"]):
        yield {"event": "timed", "digest": name, "samples_s": samples[i]}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
