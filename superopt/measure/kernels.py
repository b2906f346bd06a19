"""Seconds per kernel: the labels that the cost model is fitted to.

A kernel inside a program costs no Python dispatch.  So each call is timed alone (it ends when its result is there), and
the time of an empty kernel, measured in the same rounds, is taken off.  A machine only ever adds time to a call, so
the label is a minimum: over the calls of a sample, then over rounds spread in time.  Kernels of one chunk are
interleaved, which keeps alternatives of one operation comparable.

A kernel called over and over finds its weights in the caches, where those of a whole program may not fit.  With a
`footprint`, calls take turns with as many copies of the frozen operands as make up that many bytes.  If that exceeds
the last cache, the label is the median of the rounds.  Memory is shared with other cores, and its best moment is
not that of all kernels of a program (a decode step of 1.8 ms has 1.2 by the minima).

A backend is known here by its name and supplies the call (`superopt.backends.protocol`).  `time(graph, operands,
options)` returns the call, its operands with those that the backend prepares from frozen ones, and the positions of
the latter.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superopt.arrays import bundles as arrays
from superopt.ir.graph import Graph
from superopt.ir.text import parse_graph, print_graph
from superopt.machine import facts as machine
from superopt.measure import loop
from superopt.workshop.job import LOST, Failure, Job, JobWorker, WorkerDiedError
from superopt.workshop.process import ProcessLimits, Worker

XLA = "xla"
"""The backend of kernels for which none is named."""
_BACKENDS = "superopt.backends.protocol:backend_of"  # a backend by its name
MIN_SECONDS = 2e-7  # of a label, whose logarithm is taken: the empty kernel may take as long as a short one
LEFT_OUT = "left out: the budget was used up"
_LEAST_ROUNDS = 3  # the fewest whose median leaves a disturbed one out
Alone = Callable[[Graph, Sequence[Any], Mapping[str, Any]], tuple[Callable[..., Any], Sequence[Any], Sequence[int]]]
LARGEST_FOOTPRINT = 128 << 20  # beyond the caches of most machines more makes no difference
MOST_COPIES = 64  # 4 MB of the smallest operands with cold labels, 64 kB: beyond the second cache


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """One kernel, timed.

    Attributes:
        seconds: minimum over all calls, or median of the rounds' minima (above), less the empty kernel's minimum.
        rounds_s: minimum of each round, dispatch included.
        dispatch_s: minimum of the empty kernel.
    """

    seconds: float
    rounds_s: tuple[float, ...]
    dispatch_s: float

    @property
    def spread(self) -> float:
        """How far the median round is above the fastest, relative: the uncertainty of the label."""
        low = min(self.rounds_s)
        return sorted(self.rounds_s)[len(self.rounds_s) // 2] / low - 1.0


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """Settings of timing: chunk size, rounds per chunk, seconds per sample, calls per sample at most, seed.

    Attributes:
        footprint: bytes of frozen operands that calls of a kernel take turns with; 0 is one copy.
        most_s: a kernel whose samples have taken this long is left out of the rounds after the third.
    """

    chunk: int = 12
    rounds: int = 4
    sample_s: float = 0.004
    max_calls: int = 60
    seed: int = 0
    footprint: int = 0
    most_s: float = 1e9


def time_kernels(
    graphs: Sequence[Graph],
    *,
    settings: KernelSettings | None = None,
    budget_s: float = 0.0,
    limits: ProcessLimits | None = None,
    worker: JobWorker | None = None,
    progress: Callable[[int, int], None] | None = None,
    options: Sequence[Mapping[str, Any]] | None = None,
    backends: Sequence[str] | None = None,
) -> list[KernelTiming | Failure]:
    """Seconds of each kernel graph on random inputs, in a worker process.

    Kernels that the budget leaves out are failures with cause `timeout`.  One that kills the worker is a failure, too,
    and the rest goes on in a new worker.

    Args:
        options: per graph, options for its backend: those of XLA's compiler, or the schedule of our kernel.
        backends: per graph, the name of a backend; all XLA by default.

    Raises:
        WorkerDiedError: the worker was lost with its host.
    """
    settings = settings or KernelSettings()
    timings: dict[int, KernelTiming | Failure] = {}
    tasks = list(zip(graphs, options or [{}] * len(graphs), backends or [XLA] * len(graphs), strict=True))
    if worker is not None:
        _collect(worker, tasks, settings, budget_s, timings, progress)
    else:
        with Worker(limits, inline=True) as own:
            _collect(own, tasks, settings, budget_s, timings, progress)
    return [timings.get(i, Failure("timeout", LEFT_OUT)) for i in range(len(graphs))]


def _collect(
    worker: JobWorker,
    tasks: Sequence[tuple[Graph, Mapping[str, Any], str]],
    settings: KernelSettings,
    budget_s: float,
    found: dict[int, KernelTiming | Failure],
    progress: Callable[[int, int], None] | None,
) -> None:
    """Time kernels in the worker, again without each one at which it died, and put the results into `found`."""
    deadline = time.monotonic() + budget_s if budget_s else float("inf")
    texts = [print_graph(graph) for graph, _, _ in tasks]
    with arrays.scratch_folder(sum(map(len, texts))) as folder:
        while len(found) < len(tasks) and time.monotonic() < deadline:
            left = [i for i in range(len(tasks)) if i not in found]
            path = Path(folder) / "texts.json"
            path.write_text(json.dumps([[i, texts[i], dict(tasks[i][1]), tasks[i][2]] for i in left]), encoding="utf-8")
            left_s = deadline - time.monotonic() if budget_s else 0.0
            fields = {**asdict(settings), "budget_s": left_s}
            job = Job("time", "superopt.measure.programs:time_texts", {"settings": fields}, {"texts": str(path)})
            busy: int | None = None
            try:
                for event in worker.request(job):
                    if event["event"] == "begin":
                        busy = event["index"]
                    elif event["event"] == "kernel":
                        found[event["index"]] = KernelTiming(
                            event["seconds"], tuple(event["rounds_s"]), event["dispatch_s"]
                        )
                    elif event["event"] == "failed":
                        found[event["index"]] = Failure(event["cause"], event["detail"])
                    if progress is not None and event["event"] != "begin":
                        progress(len(found), len(tasks))
            except WorkerDiedError as death:
                if death.failure.cause == LOST:
                    raise
                found[left[0] if busy is None else busy] = death.failure
                continue
            return


def kernel_events(
    texts: Sequence[tuple[int, str, Mapping[str, Any], str]],
    resolve: Callable[[str], Any],
    settings: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """The worker's side: compile and time kernels in chunks (events `begin`, `kernel`, `failed`)."""
    import jax  # late: only where programs run

    fields = dict(settings)
    budget_s = fields.pop("budget_s")
    how = KernelSettings(**fields)
    rng = np.random.default_rng(how.seed)
    start = time.monotonic()
    empty = jax.jit(_empty)
    tiny = jax.device_put(np.zeros(4, np.float32))

    def dispatch() -> None:
        jax.block_until_ready(empty(tiny))

    for first in range(0, len(texts), how.chunk):
        if budget_s and time.monotonic() - start > budget_s:
            return
        thunks: dict[int, loop.Thunk] = {}
        for index, text, options, backend in texts[first : first + how.chunk]:
            if budget_s and thunks and time.monotonic() - start > budget_s:
                break  # kernels compiled so far are timed
            yield {"event": "begin", "index": index}
            try:
                thunks[index] = _compiled(
                    parse_graph(text), resolve(_BACKENDS)(backend).time, rng, options, how.footprint
                )
            except Exception as error:  # data: the kernel's own fault, reported with its cause
                yield {
                    "event": "failed",
                    "index": index,
                    "cause": "build",
                    "detail": f"{type(error).__name__}: {error}"[:500],
                }
        yield from _time_chunk(thunks, dispatch, how, first, start + budget_s if budget_s else math.inf)


def _empty(x: Any) -> Any:
    return x + 1.0


def _time_chunk(
    thunks: Mapping[int, loop.Thunk], dispatch: loop.Thunk, settings: KernelSettings, seed: int, end_s: float
) -> Iterator[dict[str, Any]]:
    """Time compiled kernels in shuffled rounds; yield the result of each at the end."""
    calls = {i: min(settings.max_calls, loop.calls_for(thunk, settings.sample_s)) for i, thunk in thunks.items()}
    rounds: dict[int, list[float]] = {i: [] for i in thunks}
    floors: list[float] = []
    rng = random.Random(settings.seed + seed)
    order = list(thunks)
    spent_s = dict.fromkeys(thunks, 0.0)
    for number in range(settings.rounds):
        if number and time.monotonic() > end_s:
            break
        rng.shuffle(order)
        floors.append(min(loop.seconds_each(dispatch, 30)))
        for i in order:
            if number >= _LEAST_ROUNDS and spent_s[i] > settings.most_s:
                continue
            yield {"event": "begin", "index": i}
            thunks[i]()
            samples = loop.seconds_each(thunks[i], calls[i])
            spent_s[i] += sum(samples)
            rounds[i].append(min(samples))
    floor = min(floors, default=0.0)
    from_memory = machine.beyond_caches(settings.footprint)
    for i, samples in rounds.items():
        label_s = sorted(samples)[len(samples) // 2] if from_memory else min(samples)
        seconds = max(label_s - floor, MIN_SECONDS)
        yield {"event": "kernel", "index": i, "seconds": seconds, "rounds_s": samples, "dispatch_s": floor}


def _compiled(
    graph: Graph,
    alone: Alone,
    rng: np.random.Generator,
    options: Mapping[str, Any],
    footprint: int,
) -> loop.Thunk:
    """Return a call of a compiled kernel on random arrays, the frozen ones from several copies in turn."""
    import jax  # late: only where programs run

    given = loop.on_device([_random(node.shape, node.dtype, rng) for node in graph.inputs])
    call, operands, frozen = alone(graph, given, options)
    turns = [operands]
    for _ in range(copies(sum(operands[i].nbytes for i in frozen), footprint) - 1):
        turns.append([x.copy() if i in frozen else x for i, x in enumerate(operands)])
    turn = itertools.cycle(turns)

    def thunk() -> None:
        jax.block_until_ready(call(*next(turn)))

    thunk()
    return thunk


def copies(nbytes: int, footprint: int) -> int:
    """Number of copies of operands of `nbytes` that fit into a footprint."""
    return max(1, min(MOST_COPIES, min(footprint, LARGEST_FOOTPRINT) // max(1, nbytes)))


def _random(shape: Any, dtype: str, rng: np.random.Generator) -> np.ndarray:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    kind = arrays.dtype(dtype)
    if kind.kind in "iu":
        return rng.integers(0, 8, shape).astype(kind)
    # positive and of order one: no logarithm of a negative, no denormals, no overflow
    return rng.uniform(0.25, 1.0, shape).astype(np.float32).astype(kind)
