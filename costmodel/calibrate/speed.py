"""How many kernels a second are priced that were not priced before, on one core of a process of its own.

Two kinds of streams.  A *search* is what one search asked its objective, in its order and its batches: most nodes of a
kernel have been seen in others before, and batches are small.  A *corpus* is kernels of many programs in large
batches, where nearly all nodes are new.  Every stream starts with an empty objective; of each figure the best of a few
passes is kept, since neighbours on the machine only ever add time.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.model.learned import Learned
from costmodel.model.model import Model
from superopt.ir.graph import Graph
from superopt.ir.text import parse_graph, print_graph
from superopt.machine import facts as machine

MOST = 4096
BATCH = 512
_PASSES = 5
Stream = Sequence[Sequence[Graph]]


@dataclass(frozen=True, slots=True)
class Speed:
    """One stream: kernels, their nodes, batches, and seconds in all and for entries, features and structures alone."""

    kernels: int
    nodes: int
    batches: int
    seconds: float
    encoding_s: float

    @property
    def rate(self) -> float:
        """Kernels per second."""
        return self.kernels / self.seconds


def fresh_speed(model: Model, streams: Sequence[Stream]) -> list[Speed]:
    """Speed on each stream; kernels that come twice in one are left out."""
    texts = [[[print_graph(k) for k in batch] for batch in _once(stream)] for stream in streams]
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, initializer=_bind) as pool:
        return pool.apply(_measure, (model, texts))


def scoring_speed(model: Model, kernels: Sequence[Graph]) -> dict[str, float]:
    """Kernels of a corpus per second: `whole`, and `network`, which leaves out what encodes them."""
    kernels = kernels[:MOST]
    (found,) = fresh_speed(model, [[kernels[i : i + BATCH] for i in range(0, len(kernels), BATCH)]])
    return {"whole": round(found.rate), "network": round(found.kernels / (found.seconds - found.encoding_s))}


def _once(stream: Stream) -> list[list[Graph]]:
    seen: set[tuple[object, ...]] = set()
    found: list[list[Graph]] = []
    for batch in stream:
        fresh = {k.outputs: k for k in batch if k.outputs not in seen}
        seen.update(fresh)
        if fresh:
            found.append(list(fresh.values()))
    return found


def _bind() -> None:
    machine.describe()  # features depend on the number of cores: as the parent sees it
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _measure(model: Model, texts: Sequence[Sequence[Sequence[str]]]) -> list[Speed]:
    streams = [[[parse_graph(text) for text in batch] for batch in stream] for stream in texts]
    for stream in streams[:1]:
        Learned(model, "speed").price(stream[0])  # loads libraries
    found: list[Speed] = []
    for stream in streams:
        whole: list[float] = []
        encoding: list[float] = []
        for _ in range(_PASSES):
            fresh = Learned(model, "speed")
            begin = time.perf_counter()
            for batch in stream:
                fresh.price(batch)
            whole.append(time.perf_counter() - begin)
            fresh = Learned(model, "speed")
            begin = time.perf_counter()
            for batch in stream:
                fresh.encode(batch)
            encoding.append(time.perf_counter() - begin)
        kernels = [k for batch in stream for k in batch]
        found.append(Speed(len(kernels), sum(len(k.nodes()) for k in kernels), len(stream), min(whole), min(encoding)))
    return found
