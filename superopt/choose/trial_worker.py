"""The process in which regions are tried as kernels (`python -m superopt.choose.trial_worker`); see
`superopt.choose.trials`.

    build{path, backend}  an event per job of the file (number, region as text, schedule or null): `built` or `failed`
    make{path, backend}   the same, of the kernels alone: compiled and run alone, compared and timed with nothing
    time{indices}         one event per built job: seconds of XLA's version and of the kernel, interleaved

XLA's version of a region is built once, whatever number of schedules is tried on it.  A kernel is run between bands of
memory before anything else, and must give XLA's values; one that kills the process takes nothing else with it.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from superopt.arrays.bundles import random_values
from superopt.backends import mixed, xla
from superopt.backends.protocol import Backend, backend_of, default_trace, for_device
from superopt.errors import InputError
from superopt.ir.graph import Graph
from superopt.ir.program import Program, original_program
from superopt.ir.text import parse_graph
from superopt.kernels.schedule.trace import trace as frozen_trace
from superopt.measure import loop
from superopt.measure.numerics import Tolerance, output_errors
from superopt.measure.worker import serve

_MOST_REFERENCES = 24
_FEW_ROUNDS = 3
_LEAST_CALLS = 8  # of a sample, unless a call alone takes longer than samples do
_CLEAR = 1.5  # the rounds leave no doubt where all ratios lie beyond this on one side
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Reference:
    """XLA's version of a region: the call, its operands, its results."""

    graph: Graph
    program: Program
    live: list[Any]
    frozen: dict[str, np.ndarray]
    call: Callable[..., Any]
    expected: list[np.ndarray]


@dataclass(slots=True)
class _Session:
    """What is built: references by the text of the region, kernels by the number of the job."""

    seed: int = 0
    references: dict[str, _Reference] = field(default_factory=dict[str, _Reference])
    ready: dict[int, tuple[loop.Thunk, loop.Thunk]] = field(default_factory=dict[int, tuple[loop.Thunk, loop.Thunk]])


_STATE = _Session()


def main(event_fd: int, memory_bytes: int) -> None:
    """Load JAX and LLVM, then serve until the input closes."""
    for_device().unavailable()
    serve(event_fd, memory_bytes, {"build": _build, "make": _make, "time": _time})


def _build(request: Mapping[str, Any]) -> Iterator[Event]:
    _STATE.seed = request["seed"]
    yield from _each(request, _built)


def _make(request: Mapping[str, Any]) -> Iterator[Event]:
    yield from _each(request, _made)


def _each(request: Mapping[str, Any], build: Callable[[Backend, int, str, Any], Any]) -> Iterator[Event]:
    backend = backend_of(request["backend"])
    for index, text, trace in json.loads(Path(request["path"]).read_text(encoding="utf-8")):
        yield {"event": "begin", "index": index}
        try:
            yield {"event": "built", "index": index, "trace": build(backend, index, text, trace)}
        except InputError as error:
            yield {"event": "failed", "index": index, "detail": str(error.args[0])[:300]}
        except Exception as error:  # a candidate may raise anything; it is reported with its cause
            yield {"event": "failed", "index": index, "detail": f"build: {type(error).__name__}: {error}"[:300]}


def _built(backend: Backend, index: int, text: str, trace: Any) -> Any:
    """Build, run between bands, and check one job; its schedule.

    Raises:
        InputError: no kernel can be made of the region, or it computes something else.
    """
    known = _STATE.references.pop(text, None) or _referenced(text)
    _STATE.references[text] = known  # the last one used is the last one to go
    while len(_STATE.references) > _MOST_REFERENCES:
        _STATE.references.pop(next(iter(_STATE.references)))
    if trace is None:
        trace = default_trace(backend, known.graph)
    choice = {**mixed.whole_kernel(known.program, known.graph, trace, backend.name).to_json(), "guarded": True}
    own = mixed.build(known.program, known.frozen, kernels=[choice])
    if own.refused:
        raise InputError("; ".join(own.refused.values()))
    got = [np.asarray(x) for x in jax.block_until_ready(own(*known.live))]
    for error, array in zip(output_errors(known.expected, got), known.expected, strict=False):
        if not Tolerance().accepts(error, str(array.dtype)):
            sizes = f"normwise {error.normwise:.1e}, elementwise {error.elementwise:.1e}"
            raise InputError(f"numerics: it differs from XLA's version: {error.detail or sizes}")
    _STATE.ready[index] = (_thunk(known.call, known.live), _thunk(own, known.live))
    return trace


def _made(backend: Backend, index: int, text: str, trace: Any) -> Any:
    """Compile a kernel, which leaves it in the cache of objects, and run it between bands; its schedule."""
    graph = parse_graph(text)
    trace = default_trace(backend, graph) if trace is None else frozen_trace(trace)
    mixed.run_guarded(backend, backend.build(graph, trace))
    return trace


def _referenced(text: str) -> _Reference:
    """XLA's version on values of both signs, or on positive ones where those give results that are not finite.

    NaN says nothing about a kernel: XLA itself loses it in some of its maxima.
    """
    graph = parse_graph(text)
    values = random_values({n["name"]: (n.shape, n.dtype) for n in graph.inputs}, _STATE.seed)
    found = _computed(graph, values)
    if not all(np.isfinite(x.astype(np.float64)).all() for x in found.expected if x.dtype.kind not in "biu"):
        found = _computed(graph, {n: x if x.dtype.kind in "biu" else np.abs(x) for n, x in values.items()})
    return found


def _computed(graph: Graph, values: Mapping[str, np.ndarray]) -> _Reference:
    program = original_program(graph)
    frozen = {n["name"]: values[n["name"]] for n in graph.inputs if n["frozen"]}
    live = [jax.device_put(values[n["name"]]) for n in program.live_inputs]
    call = xla.build(program, frozen)
    expected = [np.asarray(x) for x in jax.block_until_ready(call(*live))]
    return _Reference(graph, program, live, frozen, call, expected)


def _thunk(call: Callable[..., Any], live: Sequence[Any]) -> loop.Thunk:
    return lambda: jax.block_until_ready(call(*live))


def _time(request: Mapping[str, Any]) -> Iterator[Event]:
    """Rounds over all jobs, so that the samples of one lie apart in time; what is decided drops out."""
    pairs = {index: _STATE.ready.pop(index) for index in request["indices"]}
    calls: dict[int, list[int]] = {}
    for index, pair in pairs.items():
        yield {"event": "begin", "index": index}
        calls[index] = [_calls(thunk, request["sample_s"]) for thunk in pair]
    rng = random.Random(_STATE.seed)
    samples: dict[int, tuple[list[float], list[float]]] = {index: ([], []) for index in pairs}
    active = list(pairs)
    for number in range(request["rounds"]):
        for index in rng.sample(active, len(active)):
            yield {"event": "begin", "index": index}
            for i in rng.sample(range(2), 2):
                samples[index][i].append(_sample(pairs[index][i], calls[index][i]))
        if number + 1 >= _FEW_ROUNDS:
            active = [i for i in active if not _decided(*samples[i], calls[i], request["budget_s"])]
    for index, (xla_s, own_s) in samples.items():
        yield {"event": "timed", "index": index, "xla_s": xla_s, "own_s": own_s}


def _calls(thunk: loop.Thunk, sample_s: float) -> int:
    """How many calls make a sample: several of what is short, so that the first one, after another program, is lost."""
    count = loop.calls_for(thunk, sample_s)
    return count if count > _LEAST_CALLS or loop.seconds_of(thunk, 1) > sample_s else _LEAST_CALLS


def _sample(thunk: loop.Thunk, calls: int) -> float:
    """The first quartile of the seconds of some calls: the others found caches or cores as somebody else left them."""
    return sorted(loop.seconds_each(thunk, calls))[calls // 4]


def _decided(xla_s: Sequence[float], own_s: Sequence[float], calls: Sequence[int], budget_s: float) -> bool:
    """Do the rounds leave no doubt, or have they taken too long?"""
    ratios = [a / b for a, b in zip(xla_s, own_s, strict=True)]
    clear = min(ratios) > _CLEAR or max(ratios) < 1.0 / _CLEAR
    return clear or calls[0] * sum(xla_s) + calls[1] * sum(own_s) > budget_s


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
