"""Labels of whole programs: how long the training programs take in kernels, to fit what lies between kernels.

A program in kernels takes longer than its kernels alone: it is called, its operands come from where another core or the
kernel before left them, weights and fresh pages from memory.  `fit` finds what the call costs, by how much kernels are
slower in company, and what a byte costs that they move, from programs of which the regions are known.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog

from costmodel.model.boundary import Boundary
from costmodel.model.objective import Objective
from superopt.arrays.bundles import random_values
from superopt.choose.plain import KernelMaker, in_regions, own_form
from superopt.choose.trials import TrialPool
from superopt.errors import SuperoptError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.counters import boundary_bytes
from superopt.ir.text import parse_graph
from superopt.kernels.choose.choice import regions_of
from superopt.lab.training import corpus, families
from superopt.lab.training.collect import LabelFile
from superopt.lab.training.tasks import canonical, make_form
from superopt.machine import facts as machine
from superopt.measure import ComparisonSettings, Timing, Tuned, Worker, as_called, compare

SHIPPED = corpus.SHIPPED.with_name("programs.jsonl.gz")
_SETTINGS = ComparisonSettings(rounds=15, min_time_s=0.01)
Say = Callable[[str], None]
Row = dict[str, Any]


def collect(out: Path, budget_s: float, say: Say) -> dict[str, Any]:
    """Time training programs in kernels that are not in the file yet, until the budget ends."""
    end = time.monotonic() + budget_s
    labels = LabelFile.read(out)
    labels.stamp()
    known = {row["program"] for row in labels.rows} | set(labels.failed)
    names = sorted(families.names(), key=lambda n: hashlib.sha256(f"{n[0]}/{n[1]}".encode()).digest())
    try:
        with TrialPool() as pool, Worker() as worker:
            maker = KernelMaker(pool)
            for family, number in names:
                name = f"{family}/{number}"
                if name in known or time.monotonic() > end:
                    continue
                try:
                    row = _timed(family, number, maker, worker)
                except SuperoptError as error:
                    row = str(error)
                if isinstance(row, str):
                    labels.failed[name] = row[:200]
                else:
                    labels.rows.append({"program": name, "family": family} | row)
    finally:  # what was timed is kept whatever ends the run
        labels.write()
    say(f"{len(labels.rows)} programs, {len(labels.failed)} failed")
    return {"programs": len(labels.rows), "failed": len(labels.failed)}


def _timed(family: str, number: int, maker: KernelMaker, worker: Worker) -> Row | str:
    described = families.program(family, number)
    live = random_values({str(i): (x.shape, str(x.dtype)) for i, x in enumerate(described.inputs)}, number)
    imported = import_function(described.fn, (described.weights, *live.values()), frozen=0)
    made = maker.make(in_regions("own form", own_form(imported.graph)))
    regions = regions_of(made.program.hot, made.choices)
    if len(regions) < len(made.regions):
        return "not all of it is in kernels"
    original = as_called(imported.graph, closed=imported.closes_over)
    candidate = Tuned(made.program, {}, tuple(c.to_json() for c in made.choices))
    found = compare(
        original, [candidate], imported.live_values, imported.frozen_values, _SETTINGS, worker=worker
    ).candidates[0]
    if not isinstance(found, Timing):
        return f"{found.cause}: {found.detail}"
    counts = Counter(make_form("region", canonical(region.graph)).text for region in regions)
    samples = sorted(found.samples_s)
    return {"seconds": samples[len(samples) // 4], "regions": sorted(counts.items())}


def fit(labels: LabelFile, model: Objective) -> tuple[Boundary, dict[str, float]]:
    """The boundary that makes predictions of programs right, and how right: without it, with it, of unseen families.

    The caches are those of the machine on which the programs were timed; the model has seen regions of all families.
    """
    with machine.taken(machine.from_dict(labels.header.get("machine"))):
        return _fit(labels.rows, model)


def _fit(rows: Sequence[Row], model: Objective) -> tuple[Boundary, dict[str, float]]:
    sums, moved, seconds = (np.array(x) for x in zip(*[_facts(row, model) for row in rows], strict=True))
    groups = np.array([row["family"] for row in rows])

    def errors(boundary: Boundary, at: np.ndarray) -> np.ndarray:
        return np.abs(boundary.seconds(sums[at], moved[at]) - seconds[at]) / seconds[at]

    everything = np.arange(len(rows))
    whole = _fitted(sums, moved, seconds)
    left_out: list[float] = []
    for family in sorted(set(groups)):
        inside = groups != family
        left_out += errors(_fitted(sums[inside], moved[inside], seconds[inside]), everything[~inside]).tolist()
    return whole, {
        "programs": float(len(rows)),
        "program_error_alone": float(np.median(np.abs(sums - seconds) / seconds)),
        "program_error": float(np.median(errors(whole, everything))),
        "program_error_lofo": float(np.median(left_out)),
    }


def _facts(row: Row, model: Objective) -> tuple[float, float, float]:
    graphs = [parse_graph(text) for text, _ in row["regions"]]
    counts = np.array([n for _, n in row["regions"]])
    return float(counts @ model.price(graphs)), float(counts @ [sum(boundary_bytes(g)) for g in graphs]), row["seconds"]


def _fitted(sums: np.ndarray, moved: np.ndarray, seconds: np.ndarray) -> Boundary:
    """Coefficients, none negative, of the least sum of relative errors: a linear program, the errors its unknowns."""
    terms = np.stack([np.ones_like(sums), sums, moved], 1) / seconds[:, None]
    scale, apart, ones = terms.max(0), np.eye(len(terms)), np.ones(len(terms))
    bounds = np.block([[terms / scale, -apart], [-terms / scale, -apart]])
    found = linprog(np.r_[np.zeros(3), ones], A_ub=bounds, b_ub=np.r_[ones, -ones])
    return Boundary(*(found.x[:3] / scale).tolist())
