"""The suite objective: the value of each part of the objective, for programs in kernels.

Every variant explores the same program for the same seconds.  The program that it prices least is made, and all are
timed interleaved with the original, in fresh rounds that choose nothing.

    joint         The objective of `optimize`: learned prices on both backends, the boundary between kernels, and
                  kernels timed between rounds.
    no timing     Nothing is timed during the search.
    no model      Rooflines alone, corrected by timed kernels as in `joint`.
    no boundary   The price of a program is the sum of its kernels alone.
    apart         The search minimises prices of XLA's kernels; its best program is cut into our kernels afterwards.
    no rewrites   `joint` with no rules: layouts and cuts alone.
    xla           The best program by prices of XLA's kernels, as XLA computes it.

    superopt bench --suite objective [--case NAME ...] [--budget 8s] [--json]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodel.model.joint import NativeModel
from costmodel.model.learned import Learned
from costmodel.model.load import load_native, load_objective, load_roofline
from costmodel.model.objective import Objective, Roofline
from rewrites.language.term import Rule
from superopt.backends.native import Native
from superopt.candidates.candidate import Candidate, original_candidate
from superopt.certify.library import proved_library
from superopt.errors import UsageError
from superopt.explore.exploration import explore
from superopt.explore.found import Exploration
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.lab.bench import Result, Say, geomean, table_with_summary, wanted
from superopt.lab.bench.programs.programs import build_case
from superopt.machine.budget import parse_budget
from superopt.machine.deadline import Deadline
from superopt.make.forms import apart_s
from superopt.make.plain import KernelMaker, cut, in_regions
from superopt.make.trials import TrialPool
from superopt.measure import ComparisonSettings, Timing, compare
from superopt.measure.compare import KERNELS
from superopt.measure.stats import paired_ratio
from superopt.workshop.process import ONE_KERNEL, Worker

CASES = (
    "squeezenet", "shufflenet", "bert_layer", "inverted_residual", "linear_attention", "low_rank_chain", "lstm_step",
    "inception_block", "unet_block",
)  # fmt: skip
"""Programs of the suite joint, of a layer or a few: a variant's kernels are made within seconds."""
JOINT = "joint"
_ROUNDS, _SAMPLE_S = 31, 0.02


@dataclass(frozen=True, slots=True)
class Ablated:
    """A part of the objective left out.

    Attributes:
        by_xla: prices of XLA's kernels.
        own: prices of our kernels; None where the search prices none.
        timed: whether kernels are timed during the search.
        rewrites: whether the library's rules are used.
        kernels: whether the program is made of our kernels.
    """

    by_xla: Objective
    own: NativeModel | None
    timed: bool = True
    rewrites: bool = True
    kernels: bool = True


class _Told(Native):
    """The native backend with given prices."""

    def __init__(self, known: NativeModel) -> None:
        self._known = known  # in place of the shipped model


def variants() -> dict[str, Ablated]:
    """Variants of the objective by name, the whole objective first.

    Raises:
        UsageError: the learned weights are unusable here.
    """
    learned, own = load_objective(), load_native()
    if own is None or not isinstance(learned, Learned) or not isinstance(own.regions, Learned):
        raise UsageError("the suite objective needs the learned weights")
    whole = Ablated(learned, own)
    roofline = Roofline(own.regions.model.prior, "that of the learned model of our kernels")
    return {
        JOINT: whole,
        "no_timing": replace(whole, timed=False),
        "no_model": Ablated(load_roofline(), NativeModel(roofline, own.boundary)),
        "no_boundary": replace(whole, own=NativeModel(own.regions)),
        "apart": replace(whole, own=None),
        "no_rewrites": replace(whole, rewrites=False),
        "xla": replace(whole, own=None, kernels=False),
    }


_COLUMNS = (
    ("case", "program", ""),
    ("original_ms", "original ms", ".3g"),
    (f"{JOINT}_ms", "joint ms", ".3g"),
    ("noise_floor", "noise floor", ".3f"),
    *((f"over_{name}", f"over {name.replace('_', ' ')}", ".2f") for name in
      ("no_timing", "no_model", "no_boundary", "apart", "no_rewrites", "xla")),
)  # fmt: skip


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Explore each case with each variant of the objective and time the program that each prices least."""
    seconds = parse_budget(budget).seconds or 8.0
    ablated, rules = variants(), proved_library(None).rules
    rows: list[dict[str, Any]] = []
    with TrialPool(backend=Native()) as pool, Worker(ONE_KERNEL, inline=True) as worker:
        for case in CASES:
            if wanted(case, cases):
                rows.append(measure_case(case, ablated, rules, seconds, seed, pool, worker))
                gains = (f"{k[5:]} {v:.2f}" for k, v in rows[-1].items() if k.startswith("over_") and v is not None)
                say(f"{case}: {rows[-1][f'{JOINT}_ms']:.3g} ms, time of the others over it: {', '.join(gains)}")
    summary = summarise(rows)
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Geometric means of each variant's time over the whole objective's, over the cases for which all have one."""
    names = sorted({key for row in rows for key in row if key.startswith("over_")})
    known = {name: [row[name] for row in rows if row.get(name) is not None] for name in names}
    return {f"geomean_{name}": geomean(values) for name, values in known.items() if values}


def measure_case(
    case: str,
    found: dict[str, Ablated],
    rules: Sequence[Rule],
    seconds: float,
    seed: int,
    pool: TrialPool,
    worker: Worker,
) -> dict[str, Any]:
    """The program that each variant prices least, timed with the original and the others."""
    net = build_case(case, seed)
    imported = import_function(net.fn, (net.params, *net.inputs), frozen=0)
    picks = {name: picked(imported, v, rules, seconds, seed, pool, worker) for name, v in found.items()}
    return {"case": case} | timed(imported, picks, seed)


def picked(
    imported: Imported,
    variant: Ablated,
    rules: Sequence[Rule],
    seconds: float,
    seed: int,
    pool: TrialPool,
    worker: Worker,
) -> Candidate:
    """The program that a variant prices least, its kernels made."""
    own = None if variant.own is None else _Told(variant.own)
    request = Request(Deadline.within(seconds), variant.by_xla, own, kernels_by=Native.name, seed=seed)
    explored = explore(
        imported.graph, rules if variant.rewrites else (), request, worker=worker if variant.timed else None
    )
    form = best_form(explored)
    if not variant.kernels:
        return form
    maker = KernelMaker(pool)
    if explored.model.own is not None:
        maker.model = explored.model
    return maker.make(form)


def best_form(found: Exploration) -> Candidate:
    """The program that a search prices least, with its cuts, or with ours where it does not price our kernels."""
    best = found.result.best
    program, stored = found.result.lowering.lower_stored(best.selection, found.graph, found.expand)
    form = Candidate(name=best.name, program=program, finalist=best.name, apart_s=apart_s(found, best))
    return cut(form, program, stored) if found.result.problem.in_kernels else in_regions(best.name, program)


def timed(imported: Imported, picks: dict[str, Candidate], seed: int) -> dict[str, Any]:
    """Milliseconds of each variant's program, and its time over that of the whole objective's, paired by rounds."""
    result = compare(
        original_candidate(imported.graph, closed=imported.closes_over),
        list(picks.values()),
        imported.live_values,
        imported.frozen_values,
        ComparisonSettings(_ROUNDS, _SAMPLE_S, seed, prune=0.0),
        backend=KERNELS,
    )
    times = {n: c.samples_s for n, c in zip(picks, result.candidates, strict=True) if isinstance(c, Timing)}
    row: dict[str, Any] = {"noise_floor": result.noise_floor, "original_ms": None, f"{JOINT}_ms": None}
    if isinstance(result.reference, Timing):
        row["original_ms"] = 1e3 * result.reference.median_s
    for name in picks:
        known = name in times and JOINT in times
        row[f"{name}_ms"] = 1e3 * sorted(times[name])[len(times[name]) // 2] if name in times else None
        if name != JOINT:
            row[f"over_{name}"] = paired_ratio(times[name], times[JOINT], seed=seed).ratio if known else None
    return row


__all__ = ["CASES", "Ablated", "best_form", "measure_case", "picked", "run", "summarise", "timed", "variants"]
