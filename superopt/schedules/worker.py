"""The process in which candidates are built, checked and timed (`python -m superopt.schedules.worker`).

Requests, after `open` (a graph as text, the number of threads, a file with inputs and XLA's outputs):

    build{traces}   one event per trace: what the build cost, or why there is none; values are checked against XLA's;
                    `known` for code that was built before, unless `again`
    time{digests}   one event per candidate of this process: seconds of each of several interleaved samples; of one
                    sample where the first call already took longer than `limit_s`, of two where these took longer
                    than `slow_s`

A candidate that kills the process takes nothing else with it.  JAX is not loaded here: the parent computes what is
expected (`save_problem`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
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
from superopt.measure.arrays import load, random_values, save
from superopt.measure.numerics import Tolerance, output_errors
from superopt.measure.worker import serve

Event = dict[str, Any]
_MOST_PACKED_BYTES = 512 << 20  # of packed operands that are kept for other candidates
# of an output's norm 1e-5 for float32, of an element (or of the root mean square of all) 5e-5
TOLERANCE = Tolerance(normwise=0.1, elementwise=0.5)
_RACED = 2  # samples after which a slow candidate is left
_SIGNED, _UNSIGNED = (-50, 50), (0, 100)


@dataclass(slots=True)
class _Session:
    """What `open` set up, and the candidates so far."""

    program: LoopProgram
    arrays: dict[str, np.ndarray]
    expected: list[np.ndarray]
    threads: int
    calls: dict[str, Callable[[], Any]]
    packed: dict[str, dict[str, np.ndarray]] = field(default_factory=dict[str, dict[str, np.ndarray]])
    known: set[str] = field(default_factory=set[str])


_STATE: list[_Session] = []


def main(event_fd: int, memory_bytes: int) -> None:
    """Serve until the input closes."""
    serve(event_fd, memory_bytes, {"open": _open, "build": _build, "time": _time})


def _open(request: Mapping[str, Any]) -> Iterator[Event]:
    from superopt.ir.text import parse_graph  # late: only once per worker

    graph = parse_graph(request["graph"])
    found = load(Path(request["problem"]))
    expected = [found[f"output {k}"] for k in range(len(graph.outputs))]
    _STATE[:] = [_Session(from_graph(graph.outputs, name="kernel"), found, expected, request["threads"], {})]
    yield {"event": "opened"}


def save_problem(path: Path, graph: Graph, seed: int) -> None:
    """Write random inputs and what XLA computes of them, for `open`."""
    arrays = example_arrays(graph, seed)
    save(path, arrays | {f"output {k}": x for k, x in enumerate(reference(graph, arrays))})


def example_arrays(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Random inputs by name: normal, or small integers."""
    types = {node["name"]: (node.shape, node.dtype) for node in graph.inputs}
    return random_values(types, seed, signed=_SIGNED, unsigned=_UNSIGNED)


def reference(graph: Graph, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs as XLA computes them."""
    import jax  # late: the import takes half a second, and workers do without

    from superopt.backends.xla import needs_x64, to_jax

    with jax.enable_x64(needs_x64(graph)):
        results = jax.jit(to_jax(graph))(*[arrays[node["name"]] for node in graph.inputs])
        return [np.asarray(x) for x in results]


def _build(request: Mapping[str, Any]) -> Iterator[Event]:
    session = _STATE[0]
    for index, trace in zip(request["indices"], request["traces"], strict=True):
        yield {"event": "begin", "index": index}
        yield {"index": index, **_candidate(session, trace, request.get("again", False))}


def _candidate(session: _Session, trace: Any, again: bool) -> Event:
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
    if kernel.digest in session.known and not again:
        return {"event": "known"}
    session.known.add(kernel.digest)
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
        if sum(x.nbytes for arrays in session.packed.values() for x in arrays.values()) > _MOST_PACKED_BYTES:
            session.packed.clear()
        session.packed[key] = build(generate(prepare), pipeline="none").run(session.arrays)
    return session.packed[key]


def _wrong(session: _Session, kernel: Kernel, values: Mapping[str, np.ndarray]) -> str | None:
    found = kernel.run(values)
    errors = output_errors(session.expected, [found[buffer.name] for buffer in kernel.outputs])
    for buffer, error in zip(kernel.outputs, errors, strict=True):
        if not TOLERANCE.accepts(error, buffer.dtype):
            return f"{buffer.name} is not XLA's: {error.detail or f'relative error {error.normwise:.2g}'}"
    return None


def _time(request: Mapping[str, Any]) -> Iterator[Event]:
    session = _STATE[0]
    calls = [session.calls[digest] for digest in request["digests"]]
    session.calls.clear()  # each holds copies of the operands; who wants to time one again builds it again
    active = {i for i, call in enumerate(calls) if loop.seconds_of(call, 1) <= request["limit_s"]}
    samples = {i: [] if i in active else [loop.seconds_of(call, 1)] for i, call in enumerate(calls)}
    numbers = [loop.calls_for(call, request["sample_s"]) if i in active else 1 for i, call in enumerate(calls)]
    for k, i, seconds in loop.interleaved(calls, numbers, request["rounds"], request["seed"], active):
        if seconds is not None:
            samples[i].append(seconds)
            if k + 1 == _RACED and min(samples[i]) > request["slow_s"]:
                active.discard(i)
    for i, name in enumerate(request["digests"]):
        yield {"event": "timed", "digest": name, "samples_s": samples[i]}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
