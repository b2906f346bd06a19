"""How many kernels a second are priced, on one core of a process of its own.

Two figures: from kernel graphs never seen before (steps, features, structure, network), and the network alone on
kernels that are encoded.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence

from costmodel.model import Model
from superopt import machine
from superopt.ir.graph import Graph
from superopt.ir.text import parse_graph, print_graph

MOST = 4096


def scoring_speed(model: Model, kernels: Sequence[Graph]) -> dict[str, float]:
    """Kernels per second, `whole` and `network`; the best of three passes each."""
    texts = [print_graph(k) for k in kernels[:MOST]]
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, initializer=_bind) as pool:
        return pool.apply(_measure, (model, texts))


def _bind() -> None:
    machine.describe()  # features depend on the number of cores: as the parent sees it
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _measure(model: Model, texts: Sequence[str]) -> dict[str, float]:
    from costmodel.learned import Learned  # late: after the process is bound to its core
    from costmodel.predict import predict

    kernels = [parse_graph(text) for text in texts]
    Learned(model, "speed").price(kernels)  # compiles
    whole: list[float] = []
    network: list[float] = []
    for _ in range(3):
        fresh = Learned(model, "speed")
        begin = time.perf_counter()
        fresh.price(kernels)
        whole.append(time.perf_counter() - begin)
        table, structures = fresh.encode(kernels)
        begin = time.perf_counter()
        predict(model, table, structures, fresh.encoder.rows)
        network.append(time.perf_counter() - begin)
    return {"whole": round(len(kernels) / min(whole)), "network": round(len(kernels) / min(network))}
