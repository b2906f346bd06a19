"""The process in which kernels are made (`python -m superopt.choose.trial_worker`); see `superopt.choose.trials`.

    make{path, backend}   an event per job of the file (number, region as text, schedule or null): `built` or `failed`,
                          with the processor time that it took

A kernel is compiled, which leaves it in the cache of objects, and run between bands of memory; one that kills the
process takes nothing else with it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from superopt.backends import mixed
from superopt.backends.protocol import backend_of, default_trace, for_device
from superopt.errors import InputError
from superopt.ir.text import parse_graph
from superopt.kernels.schedule.trace import trace as frozen_trace
from superopt.measure.worker import serve

Event = dict[str, Any]


def main(event_fd: int, memory_bytes: int) -> None:
    """Load JAX and LLVM, then serve until the input closes."""
    for_device().unavailable()
    serve(event_fd, memory_bytes, {"make": _make})


def _make(request: Mapping[str, Any]) -> Iterator[Event]:
    backend = backend_of(request["backend"])
    for index, text, given in json.loads(Path(request["path"]).read_text(encoding="utf-8")):
        yield {"event": "begin", "index": index}
        begin_s = time.process_time()
        try:
            graph = parse_graph(text)
            trace = default_trace(backend, graph) if given is None else frozen_trace(given)
            mixed.run_guarded(backend, backend.build(graph, trace))
            said: Event = {"event": "built", "trace": trace}
        except InputError as error:
            said = {"event": "failed", "detail": str(error.args[0])[:300]}
        except Exception as error:  # a candidate may raise anything; it is reported with its cause
            said = {"event": "failed", "detail": f"build: {type(error).__name__}: {error}"[:300]}
        yield said | {"index": index, "seconds": time.process_time() - begin_s}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
