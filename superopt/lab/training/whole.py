"""Labels of whole programs: how long the training programs take in kernels, to fit the time between kernels.

A program in kernels takes longer than its kernels alone: it is called, its operands come from where another core or the
kernel before left them, weights from memory.  `fit` determines the cost of the call, the factor by which kernels are
slower in company, and the cost of a byte that they move.  It uses programs and the kernels in them, timed one after the
other as a search times them.
search times them.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog

from costmodel.model.boundary import Boundary
from superopt.arrays.bundles import random_values
from superopt.candidates.candidate import original_candidate
from superopt.errors import SuperoptError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.counters import boundary_bytes
from superopt.ir.program import frozen_bytes
from superopt.ir.text import parse_graph
from superopt.kernels.choose.specs import NATIVE, regions_of
from superopt.lab import Say
from superopt.lab.training import corpus, families
from superopt.lab.training.collect import LabelFile, Row
from superopt.lab.training.tasks import canonical, make_form
from superopt.make.plain import KernelMaker, in_regions, own_form
from superopt.make.trials import TrialPool
from superopt.measure import ComparisonSettings, KernelTiming, Timing, compare, time_kernels
from superopt.measure.kernels import KernelSettings
from superopt.workshop.job import JobWorker
from superopt.workshop.scheduler import LOCAL, Executor, again_where_lost, sole_worker

SHIPPED = corpus.SHIPPED.with_name("programs.jsonl.gz")
_SETTINGS = ComparisonSettings(rounds=15, min_time_s=0.01)


def collect(out: Path, budget_s: float, say: Say, executor: Executor = LOCAL) -> dict[str, Any]:
    """Time training programs in kernels that are not in the file yet, until the budget ends.

    Workers of the executor make and time them.
    """
    end = time.monotonic() + budget_s
    labels = LabelFile.read(out)
    labels.stamp()
    known = {row["program"] for row in labels.rows} | set(labels.failed)
    names = sorted(families.names(), key=lambda n: hashlib.sha256(f"{n[0]}/{n[1]}".encode()).digest())
    try:
        with TrialPool(executor=executor) as pool, sole_worker(executor) as worker:
            maker = KernelMaker(pool)
            for family, number in names:
                name = f"{family}/{number}"
                if name in known or time.monotonic() > end:
                    continue
                try:
                    row = again_where_lost(functools.partial(_timed, family, number, maker, worker))
                except SuperoptError as error:
                    row = str(error)
                if isinstance(row, str):
                    labels.failed[name] = row[:200]
                else:
                    labels.rows.append({"program": name, "family": family} | row)
    finally:  # timings are kept whatever ends the run
        labels.write()
    say(f"{len(labels.rows)} programs, {len(labels.failed)} failed")
    return {"programs": len(labels.rows), "failed": len(labels.failed)}


def _timed(family: str, number: int, maker: KernelMaker, worker: JobWorker) -> Row | str:
    described = families.program(family, number)
    live = random_values({str(i): (x.shape, str(x.dtype)) for i, x in enumerate(described.inputs)}, number)
    imported = import_function(described.fn, (described.weights, *live.values()), frozen=0)
    made = maker.make(in_regions("own form", own_form(imported.graph)))
    regions = regions_of(made.program.hot, made.kernels)
    if len(regions) < len(made.regions):
        return "not all of it is in kernels"
    original = original_candidate(imported.graph, closed=imported.closes_over)
    comparison = compare(
        original, [made], imported.live_values, imported.frozen_values, _SETTINGS, worker=worker
    ).candidates[0]
    if not isinstance(comparison, Timing):
        return f"{comparison.cause}: {comparison.detail}"
    counts = Counter(region.graph for region in regions)
    kernels = time_kernels(
        list(counts), settings=KernelSettings(footprint=sum(frozen_bytes(region.graph) for region in regions)),
        worker=worker, backends=[NATIVE] * len(counts),
    )  # fmt: skip
    timed = [
        (make_form("region", canonical(graph)).text, count, kernel.seconds)
        for (graph, count), kernel in zip(counts.items(), kernels, strict=True)
        if isinstance(kernel, KernelTiming)
    ]
    if len(timed) < len(counts):
        return "not all of its kernels were timed"
    samples = sorted(comparison.samples_s)
    return {"seconds": samples[len(samples) // 4], "regions": sorted(timed)}


def fit(labels: LabelFile) -> tuple[Boundary, dict[str, float]]:
    """Fit the boundary of programs to their kernels' times; with errors without it, with it, and on unseen families."""
    sums, moved, seconds = (np.array(x) for x in zip(*map(_facts, labels.rows), strict=True))
    groups = np.array([row["family"] for row in labels.rows])

    def errors(boundary: Boundary, at: np.ndarray) -> np.ndarray:
        return np.abs(boundary.seconds(sums[at], moved[at]) - seconds[at]) / seconds[at]

    everything = np.arange(len(seconds))
    whole = boundary_of(sums, moved, seconds)
    left_out: list[float] = []
    for family in sorted(set(groups)):
        inside = groups != family
        left_out += errors(boundary_of(sums[inside], moved[inside], seconds[inside]), everything[~inside]).tolist()
    return whole, {
        "programs": float(len(seconds)),
        "program_error_alone": float(np.median(np.abs(sums - seconds) / seconds)),
        "program_error": float(np.median(errors(whole, everything))),
        "program_error_lofo": float(np.median(left_out)),
    }


def _facts(row: Row) -> tuple[float, float, float]:
    """For a program: the sum of its kernels' times, the bytes that they read and write, and its own time."""
    moved = sum(count * sum(boundary_bytes(parse_graph(text))) for text, count, _ in row["regions"])
    return sum(count * kernel_s for _, count, kernel_s in row["regions"]), float(moved), row["seconds"]


def boundary_of(sums: np.ndarray, moved: np.ndarray, seconds: np.ndarray) -> Boundary:
    """Nonnegative coefficients of the least sum of relative errors: a linear program with the errors as unknowns."""
    terms = np.stack([np.ones_like(sums), sums, moved], 1) / seconds[:, None]
    scale, apart, ones = terms.max(0), np.eye(len(terms)), np.ones(len(terms))
    bounds = np.block([[terms / scale, -apart], [-terms / scale, -apart]])
    solution = linprog(np.r_[np.zeros(3), ones], A_ub=bounds, b_ub=np.r_[ones, -ones])
    return Boundary(*(solution.x[:3] / scale).tolist())
