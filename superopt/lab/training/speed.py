"""Throughput of pricing new kernels, in kernels per second on one core of a process of its own.

    python -m superopt.lab.training.speed

There are two kinds of streams.  A *search* has the requests of one search on a training program to its objective, in
its order and its batches.  Most nodes of a kernel have been seen in others before, and batches are small.  A *corpus*
has kernels of many programs in large batches, where nearly all nodes are new.  Every stream starts with an empty
objective.  Each figure is the best of a few passes, since other load on the machine only ever adds time.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.model import learned_file
from costmodel.model.learned import Learned
from costmodel.model.load import load_roofline
from costmodel.model.model import Model
from costmodel.model.objective import Objective
from rewrites.language.term import Rule
from rewrites.library import load
from superopt.explore.exploration import explore
from superopt.explore.request import Request
from superopt.ir.graph import Graph
from superopt.ir.text import parse_graph, print_graph
from superopt.lab.training import corpus, families
from superopt.machine import facts as machine
from superopt.machine.deadline import Deadline

PROGRAMS = (
    ("relative-attention", 3), ("searched-cell", 2), ("vision-transformer", 7), ("separable-conv", 8),
    ("recommender", 1), ("graph-network", 4),
)  # fmt: skip
STEPS = 12_000
MOST = 4096
BATCH = 512
_PASSES = 5
GraphStream = Sequence[Sequence[Graph]]


@dataclass(frozen=True, slots=True)
class Speed:
    """Figures of a stream: kernels, nodes, batches, seconds, and seconds of encoding alone (entries, features ...)."""

    kernels: int
    nodes: int
    batches: int
    seconds: float
    encoding_s: float

    @property
    def rate(self) -> float:
        """Kernels per second."""
        return self.kernels / self.seconds


def fresh_speed(model: Model, streams: Sequence[GraphStream]) -> list[Speed]:
    """Speed on each stream; kernels that come twice in one are left out."""
    texts = [[[print_graph(k) for k in batch] for batch in _once(stream)] for stream in streams]
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, initializer=_bind) as pool:
        return pool.apply(_measure, (model, texts))


def scoring_speed(model: Model, kernels: Sequence[Graph]) -> dict[str, float]:
    """Kernels of a corpus per second: `whole`, and `network`, which leaves out their encoding."""
    kernels = kernels[:MOST]
    (speed,) = fresh_speed(model, [[kernels[i : i + BATCH] for i in range(0, len(kernels), BATCH)]])
    return {"whole": round(speed.rate), "network": round(speed.kernels / (speed.seconds - speed.encoding_s))}


def _once(stream: GraphStream) -> list[list[Graph]]:
    seen: set[tuple[object, ...]] = set()
    batches: list[list[Graph]] = []
    for batch in stream:
        fresh = {k.outputs: k for k in batch if k.outputs not in seen}
        seen.update(fresh)
        if fresh:
            batches.append(list(fresh.values()))
    return batches


def _bind() -> None:
    machine.describe()  # features depend on the number of cores: as the parent sees it
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _measure(model: Model, texts: Sequence[Sequence[Sequence[str]]]) -> list[Speed]:
    streams = [[[parse_graph(text) for text in batch] for batch in stream] for stream in texts]
    for stream in streams[:1]:
        Learned(model, "speed").price(stream[0])  # loads libraries
    speeds: list[Speed] = []
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
        speeds.append(Speed(len(kernels), sum(len(k.nodes()) for k in kernels), len(stream), min(whole), min(encoding)))
    return speeds


class RecordingObjective:
    """An objective that records its requests, batch by batch."""

    def __init__(self, base: Objective) -> None:
        self.base, self.name, self.version = base, base.name, base.version
        self.batches: list[list[Graph]] = []

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        """Seconds that each kernel takes inside a program."""
        self.batches.append(list(kernels))
        return self.base.price(kernels)


def asked(family: str, number: int, rules: Sequence[Rule], steps: int = STEPS) -> list[list[Graph]]:
    """The requests of a search on a training program to its objective, macros expanded."""
    objective = RecordingObjective(load_roofline())
    request = Request(Deadline(steps=steps), objective, deterministic=True)
    explore(families.program(family, number).graph(), rules, request)
    return objective.batches


def report(searches: Sequence[tuple[str, Speed]], whole: Speed) -> str:
    """The figures as a Markdown table."""
    total = Speed(
        *(sum(getattr(s, name) for _, s in searches) for name in ("kernels", "nodes", "batches")),
        *(sum(getattr(s, name) for _, s in searches) for name in ("seconds", "encoding_s")),
    )  # fmt: skip
    lines = [
        "| stream | kernels | nodes each | a batch | kernels/s | us each | of that encoding |",
        "|---|" + "--:|" * 6,
    ]
    for name, s in (*searches, ("all searches", total), (f"corpus, all nodes new, batches of {BATCH}", whole)):
        each = 1e6 / s.kernels
        lines.append(
            f"| {name} | {s.kernels} | {s.nodes / s.kernels:.1f} | {s.kernels / s.batches:.1f} | {s.rate:.0f} "
            f"| {each * s.seconds:.1f} | {each * s.encoding_s:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table for the shipped weights."""
    rules = tuple(load())
    streams = [asked(family, number, rules) for family, number in PROGRAMS]
    labels = list({x.key: x.graph for x in corpus.load().labels}.values())
    some = labels[:: max(1, len(labels) // MOST)][:MOST]
    streams.append([some[i : i + BATCH] for i in range(0, len(some), BATCH)])
    speeds = fresh_speed(learned_file.read()[0], streams)
    print(report([(f"{f}/{n}", s) for (f, n), s in zip(PROGRAMS, speeds, strict=False)], speeds[-1]))


if __name__ == "__main__":
    main()
