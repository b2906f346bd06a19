"""Jobs of a worker that makes kernels; see `superopt.make.trials`.

    make{path, backend}       Make the kernel of the file (region as text, schedule or null): an event `built` or
                              `failed`, with the processor time that it took.
    validate{path, backend}   Validate its machine code: `built` with its schedule, or `failed` where the validation
                              did not finish.
    take{path}                Store kernels and verdicts of other hosts.

A kernel is compiled, which leaves it in the cache of objects, and run between guard bands of memory.  One that kills
the process takes nothing else with it.  The verdict of validation on its code is kept beside the object.  Both are
written into the folder of the job as well, for a driver on another machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from superopt.arrays import bundles
from superopt.backends import made, mixed
from superopt.backends.protocol import Backend, backend_of, default_trace, for_device
from superopt.certify.kernels import validated
from superopt.errors import InputError
from superopt.ir.graph import Graph
from superopt.ir.text import parse_graph
from superopt.kernels.schedule.trace import Trace
from superopt.kernels.schedule.trace import trace as frozen_trace
from superopt.machine.deadline import Stopwatch, process_s
from superopt.workshop.job import FILES, Event


def take(request: Mapping[str, Any]) -> Iterator[Event]:
    """Store a bundle of files that another machine handed over."""
    made.take_over({name: content.tobytes() for name, content in bundles.load(Path(request["path"])).items()})
    yield {"event": "taken"}


def load() -> None:
    """Load JAX and LLVM."""
    for_device().unavailable()


def make(request: Mapping[str, Any]) -> Iterator[Event]:
    """Compile the kernel of a file and run it between guard bands."""
    yield from _told(_made, request)


def validate(request: Mapping[str, Any]) -> Iterator[Event]:
    """Validate the machine code of the kernel of a file."""
    yield from _told(_validated, request)


def _told(work: Callable[[Backend, Graph, Trace], None], request: Mapping[str, Any]) -> Iterator[Event]:
    backend, watch = backend_of(request["backend"]), Stopwatch(process_s)
    text, given = json.loads(Path(request["path"]).read_text(encoding="utf-8"))
    try:
        graph = parse_graph(text)
        trace = default_trace(backend, graph) if given is None else frozen_trace(given)
        work(backend, graph, trace)
        key = backend.key(graph, trace)
        stored = made.hand_over(key, Path(request["folder"])) if key and request["folder"] else []
        said: Event = {"event": "built", "trace": trace, FILES: stored}
    except InputError as error:
        said = {"event": "failed", "detail": str(error.args[0])[:300]}
    except Exception as error:  # a candidate may raise anything; it is reported with its cause
        said = {"event": "failed", "detail": f"build: {type(error).__name__}: {error}"[:300]}
    yield said | {"seconds": watch.elapsed_s}


def _made(backend: Backend, graph: Graph, trace: Trace) -> None:
    mixed.run_guarded(backend, backend.build(graph, trace))


def _validated(backend: Backend, graph: Graph, trace: Trace) -> None:
    validated(backend, graph, trace)
