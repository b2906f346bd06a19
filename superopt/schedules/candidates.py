"""Jobs of a worker in which the candidates of a search are built, checked and timed.

Jobs, after `open` (a graph as text, the number of threads, a file with inputs and XLA's outputs):

    build{traces}   one event per trace: the cost of the build, or why there is none. Values are checked against XLA's;
                    `known` for code that was built before, unless `again`.
    time{digests}   one event per candidate of this process: seconds of each of several interleaved samples, of
                    fewer where they are long (about `each_s` for a candidate). It is one call where two took longer
                    than `limit_s`, and two samples where these took longer than `slow_s`. With `peak` also so many
                    samples of independent multiply-adds in each round, as digests `peak 0` and so on: the clock.

All candidates work on the same buffers: an operator of a few megabytes runs 15 % faster in some memory than in other,
and the inputs of several kernels do not stay in caches.  With a `footprint` in `open`, calls take turns with as many
copies of the frozen operands as make up that many bytes, as those of a program do.  The turns are shared by all
candidates, so none finds in the caches what another one has just read.

A candidate that kills the process takes nothing else with it.  JAX is not loaded here: the parent computes the expected
values (`save_problem`).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from superopt.arrays.bundles import load, random_values, save
from superopt.errors import InputError
from superopt.ir.graph import Graph
from superopt.ir.text import parse_graph
from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm import jit
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.show import digest
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.runtime.kernel import Code, GuardError, Kernel, Room, build
from superopt.kernels.schedule.trace import apply
from superopt.machine.deadline import Stopwatch
from superopt.measure import loop, rates
from superopt.measure.conditioning import Neighbours, beyond_rounding
from superopt.measure.exact import neighbours_of_kernel
from superopt.measure.numerics import FLOAT_TOLERANCE, Tolerance, computed_in
from superopt.workshop.job import Event

_MOST_PACKED_BYTES = 512 << 20  # packed operands kept for other candidates, copies for turns included
_MOST_TURNS = 1024  # copies of 64 kB are 64 MB; to bring less takes a microsecond
# 1e-5 of an output's norm for float32, 5e-5 of an element (or of the root mean square of all)
TOLERANCE = Tolerance(normwise=0.1, elementwise=0.5)
_RACED = 2  # samples after which a slow candidate is left
_SIGNED, _UNSIGNED = (-50, 50), (0, 100)  # two products of bytes, 10,000 at most, fit 16 bits: no sum saturates


@dataclass(slots=True)
class _Session:
    """The operator that `open` set up, and the candidates so far."""

    program: LoopProgram
    arrays: dict[str, np.ndarray]
    expected: list[np.ndarray]
    kinds: tuple[str, ...]
    near: Neighbours
    threads: int
    calls: dict[str, Callable[[], Any]]
    footprint: int = 0
    turns: Iterator[int] = field(default_factory=itertools.count)
    room: Room = field(default_factory=Room)
    bounds: list[_Bounds] = field(default_factory=list["_Bounds"])
    packed: dict[str, dict[str, np.ndarray]] = field(default_factory=dict[str, dict[str, np.ndarray]])
    first: dict[str, float] = field(default_factory=dict[str, float])  # seconds of the first call
    known: set[str] = field(default_factory=set[str])


_STATE: list[_Session] = []


def open_graph(request: Mapping[str, Any]) -> Iterator[Event]:
    """Set up an operator, in place of an earlier one."""
    graph = parse_graph(request["graph"])
    arrays = load(Path(request["problem"]))
    expected = [arrays[f"output {k}"] for k in range(len(graph.outputs))]
    program = from_graph(graph.outputs, name="kernel")
    kinds, threads = computed_in(graph), request["threads"]
    near = neighbours_of_kernel(graph, arrays)
    session = _Session(program, arrays, expected, kinds, near, threads, {}, request.get("footprint", 0))
    session.bounds = [_bounds(x) for x in expected]
    _STATE[:] = [session]
    yield {"event": "opened"}


def save_problem(path: Path, graph: Graph, seed: int) -> None:
    """Write random inputs and XLA's outputs for them, for `open`."""
    arrays = example_arrays(graph, seed)
    save(path, arrays | {f"output {k}": x for k, x in enumerate(reference(graph, arrays))})


def example_arrays(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Return random inputs by name: normal, or small integers."""
    types = {node["name"]: (node.shape, node.dtype) for node in graph.inputs}
    return random_values(types, seed, signed=_SIGNED, unsigned=_UNSIGNED)


def reference(graph: Graph, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs as XLA computes them."""
    import jax

    from superopt.backends.xla import needs_x64, to_jax  # late: jax takes half a second, and workers do without

    with jax.enable_x64(needs_x64(graph)):
        results = jax.jit(to_jax(graph))(*[arrays[node["name"]] for node in graph.inputs])
        return [np.asarray(x) for x in results]


def build_candidates(request: Mapping[str, Any]) -> Iterator[Event]:
    """Build and check the candidates of some traces."""
    session = _STATE[0]
    for index, trace in zip(request["indices"], request["traces"], strict=True):
        yield {"event": "begin", "index": index}
        yield {"index": index, **_candidate(session, trace, request.get("again", False))}


def _candidate(session: _Session, trace: Any, again: bool) -> Event:
    """Build a schedule and compare its results; the event says how that ended."""
    watch = Stopwatch()
    try:
        scheduled = apply(session.program, trace)
        prepare, hot = hoisted(scheduled)
        values = dict(session.arrays)
        if prepare is not None:
            values |= _prepared(session, prepare)
        code = generate(hot)
        key = _key(code)
        if key in session.known and not again:
            return {"event": "known"}
        session.known.add(key)
        kernel = build(code, threads_hint=session.threads)
    except (InputError, jit.CompileError) as error:
        return {"event": "refused", "detail": str(error)}
    call = _bound(session, kernel, values)
    wrong = _wrong(session, kernel, values, call)
    if wrong is not None:
        return {"event": "wrong", "detail": wrong}
    session.calls[kernel.digest] = call
    return {
        "event": "built",
        "digest": kernel.digest,
        "seconds": watch.elapsed_s,
        "compile_s": kernel.compiled.seconds,
        "spills": kernel.compiled.spills,
    }


def _bound(session: _Session, kernel: Kernel, values: Mapping[str, np.ndarray]) -> Callable[[], Any]:
    """Return a call on the buffers of the room, with the copies of the frozen operands whose turn it is."""
    frozen = sum(values[b.name].nbytes for b in kernel.operands if b.scope == "frozen")
    count = max(1, min(_MOST_TURNS, -(-session.footprint // frozen))) if frozen else 1
    calls = [kernel.bind(values, session.threads, session.room, turn) for turn in range(count)]
    return calls[0] if count == 1 else lambda: calls[next(session.turns) % count]()


def _key(code: Code) -> str:
    """Return a digest of the code before it is compiled: half of the schedules of rows give the code of another."""
    text = json.dumps([code.module.text(), [(p.symbol, p.tasks) for p in code.phases], [b.name for b in code.pointers]])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _prepared(session: _Session, prepare: LoopProgram) -> dict[str, np.ndarray]:
    """Return the packed operands; many candidates share them."""
    key = digest(prepare)
    if key not in session.packed:
        held = [max(session.footprint, sum(x.nbytes for x in arrays.values())) for arrays in session.packed.values()]
        if sum(held) > _MOST_PACKED_BYTES:
            session.packed.clear()
            session.room = Room()
        session.packed[key] = build(generate(prepare), pipeline="none").run(session.arrays)
    return session.packed[key]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Scales of an expected output for its tolerance: its norm, and the reciprocal of each element's magnitude."""

    norm: float
    inverse: np.ndarray


def _bounds(expected: np.ndarray) -> _Bounds:
    flat = expected.reshape(-1)
    if expected.dtype != np.float32 or not flat.size:
        return _Bounds(0.0, np.zeros(0, np.float32))
    norm = float(np.sqrt(np.dot(flat, flat)))
    rms = np.float32(norm / np.sqrt(flat.size))
    with np.errstate(divide="ignore"):  # infinite where all is zero: nothing is then near enough at once
        return _Bounds(norm, 1 / np.maximum(np.abs(flat), rms))


def _near(bounds: _Bounds, expected: np.ndarray, found: np.ndarray) -> bool:
    """Whether a float32 output is well within the tolerance; false where that needs the full comparison."""
    if not bounds.inverse.size or expected.shape != found.shape:
        return False
    gap = np.subtract(found, expected).reshape(-1)
    distance = float(np.sqrt(np.dot(gap, gap)))
    gap *= bounds.inverse
    normwise, elementwise = (
        TOLERANCE.normwise * FLOAT_TOLERANCE["float32"],
        TOLERANCE.elementwise * FLOAT_TOLERANCE["float32"],
    )
    return distance <= 0.9 * normwise * bounds.norm and max(gap.max(), -gap.min()) <= 0.9 * elementwise


def _wrong(session: _Session, kernel: Kernel, values: Mapping[str, np.ndarray], call: Callable[[], Any]) -> str | None:
    """Run once, and return the fault in the results; None where they are right."""
    session.room.clear(kernel.outputs)
    session.first[kernel.digest] = loop.seconds_of(call, 1)
    try:
        session.room.check(kernel.operands + kernel.scratch, values)
        found = session.room.check(kernel.outputs, values)
    except GuardError as error:
        session.room = Room()
        return str(error)
    with np.errstate(invalid="ignore", over="ignore"):
        near = [_near(b, x, y) for b, x, y in zip(session.bounds, session.expected, found, strict=True)]
    if all(near):
        return None
    far = beyond_rounding(session.near, session.kinds, session.expected, found, TOLERANCE)
    if far is None:
        return None
    number, error = far
    name = kernel.outputs[number].name
    return f"{name} is not XLA's: {error.detail or f'relative error {error.normwise:.2g}'}"


def time_candidates(request: Mapping[str, Any]) -> Iterator[Event]:
    """Time candidates that this process built, interleaved."""
    session = _STATE[0]
    calls = [session.calls[digest] for digest in request["digests"]]
    session.calls.clear()  # a candidate to be timed again is built again
    first = [session.first[digest] for digest in request["digests"]]
    peaks = [f"peak {k}" for k in range(request.get("peak", 0))]
    calls, first = calls + [_peak() for _ in peaks], first + [0.0] * len(peaks)
    once = [_warm(call, x, request["limit_s"], request["sample_s"]) for call, x in zip(calls, first, strict=True)]
    active = {i for i, seconds in enumerate(once) if seconds <= request["limit_s"]}
    samples = {i: [] if i in active else [seconds] for i, seconds in enumerate(once)}
    numbers = [max(1, min(loop.MAX_CALLS, int(request["sample_s"] / max(x, 1e-7) + 0.999))) for x in once]
    long = [n * max(x, 1e-7) for n, x in zip(numbers, once, strict=True)]
    rounds = [max(_RACED, min(request["rounds"], int(request["each_s"] / x))) for x in long]
    for k, i, seconds in loop.interleaved(calls, numbers, request["rounds"], request["seed"], active):
        if seconds is not None:
            samples[i].append(seconds)
            if (k + 1 == _RACED and min(samples[i]) > request["slow_s"]) or k + 1 >= rounds[i]:
                active.discard(i)
    for i, name in enumerate([*request["digests"], *peaks]):
        yield {"event": "timed", "digest": name, "samples_s": samples[i]}


@functools.cache
def _peak() -> Callable[[], Any]:
    return rates.peak_call()[0]


def _warm(call: Callable[[], Any], first_s: float, limit_s: float, sample_s: float) -> float:
    """Estimate the seconds of a call with warm caches and threads: the first one takes up to four times as long."""
    seconds = first_s
    if seconds > limit_s:
        seconds = min(seconds, loop.seconds_of(call, 1))
    if seconds < 4 * sample_s:
        seconds = min(loop.seconds_of(call, 1), loop.seconds_of(call, 3))
    return seconds
