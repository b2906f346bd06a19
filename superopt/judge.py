"""The judgement over finalists: build, check, time against the original, and time the winner again.

The best of several noisy timings looks better than it is, so the ratio that is reported comes from fresh rounds
after the choice.  A program is returned in place of the original only when the interval of that ratio lies above 1 and
the ratio above the noise floor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from superopt.attribution import Gain, measured_gains
from superopt.budget import SearchBudget
from superopt.checks import check
from superopt.explore import Exploration
from superopt.frontends.jaxpr import Imported
from superopt.ir.program import Program, original_program
from superopt.ir.text import print_graph
from superopt.measure import Comparison, Failure, Timing, Worker, compare, confirm
from superopt.result import Finalist, NumericCheck, Speedup
from superopt.search.search import Finalist as Candidate

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Judgement:
    """Which program is returned, and on what evidence."""

    program: Program
    winner: Candidate | None
    verdict: str
    before_ms: float | None = None
    after_ms: float | None = None
    speedup: Speedup | None = None
    noise_floor: float | None = None
    numerics: NumericCheck | None = None
    finalists: tuple[Finalist, ...] = ()
    notes: tuple[str, ...] = ()
    samples_ms: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    after_text: str = ""
    gains: dict[str, Gain] = field(default_factory=dict[str, Gain])


def judge(
    imported: Imported,
    found: Exploration,
    limits: SearchBudget,
    seed: int,
    *,
    measure: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> Judgement:
    """Choose between the finalists and the original."""
    original = original_program(imported.graph)
    if not measure or found.interrupted:
        return _by_prediction(imported, found, original, seed)
    candidates = found.finalists
    if not candidates:
        return Judgement(original, None, "the original was returned: the search found nothing cheaper")
    programs = [found.program(f) for f in candidates]
    with Worker() as worker:
        try:
            return _by_measurement(imported, found, original, programs, limits, seed, worker, progress)
        except KeyboardInterrupt:
            return Judgement(original, None, "the original was returned: measuring was interrupted")


def _by_measurement(
    imported: Imported,
    found: Exploration,
    original: Program,
    programs: Sequence[Program],
    limits: SearchBudget,
    seed: int,
    worker: Worker,
    progress: Callable[[str], None],
) -> Judgement:
    """Compare, then confirm the best few on fresh rounds until one holds."""
    candidates = found.finalists
    live, frozen = imported.live_values, imported.frozen_values
    budget_s = 0.6 * limits.measure_seconds
    comparison = compare(original, programs, live, frozen, rounds=9, seed=seed, budget_s=budget_s, worker=worker)
    rows = _rows(candidates, comparison)
    notes = list(comparison.notes)
    if isinstance(comparison.reference, Failure):
        cause = f"{comparison.reference.cause}: {comparison.reference.detail}"
        return Judgement(original, None, f"the original was returned: it could not be timed ({cause})", finalists=rows)
    notes += [f"{f.name}: {f.failure}" for f in rows if f.failure]
    order = sorted(
        (i for i, c in enumerate(comparison.candidates) if isinstance(c, Timing)),
        key=lambda i: -comparison.candidates[i].ratio.ratio,  # pyright: ignore[reportAttributeAccessIssue] (timings)
    )
    before_ms = comparison.reference.median_s * 1e3
    for i in order[:_TRIES]:
        progress(f"confirming {candidates[i].name}: {rows[i].ratio}")
        budget_s = 0.4 * limits.measure_seconds
        again = confirm(original, programs[i], live, frozen, rounds=15, seed=seed + 1, budget_s=budget_s, worker=worker)
        timing = again.candidates[0]
        if isinstance(timing, Timing) and isinstance(again.reference, Timing) and again.faster(0):
            numerics, cause = check(imported.graph, programs[i], live, frozen, seed)
            if cause:
                notes.append(f"{candidates[i].name} was refused: {cause}")
                continue
            progress("timing the winner without its most important rules")
            try:
                gains = measured_gains(
                    found, candidates[i], programs[i], timing.build_s, live, frozen, limits, seed, worker
                )
            except KeyboardInterrupt:
                gains = {}
            return Judgement(
                programs[i],
                candidates[i],
                "faster program returned",
                again.reference.median_s * 1e3,
                timing.median_s * 1e3,
                Speedup(timing.ratio.ratio, timing.ratio.low, timing.ratio.high),
                again.noise_floor,
                numerics,
                rows,
                tuple(notes),
                {
                    "original": tuple(1e3 * s for s in again.reference.samples_s),
                    "returned": tuple(1e3 * s for s in timing.samples_s),
                },
                print_graph(programs[i].hot),
                gains,
            )
        if isinstance(timing, Timing) and timing.ratio.ratio < 1.0:
            break
    return Judgement(
        original,
        None,
        "the original was returned: no candidate measured faster beyond the noise floor",
        before_ms,
        before_ms,
        None,
        comparison.noise_floor,
        None,
        rows,
        tuple(notes),
        {"original": tuple(1e3 * s for s in comparison.reference.samples_s)},
    )


def _by_prediction(imported: Imported, found: Exploration, original: Program, seed: int) -> Judgement:
    """The model's own choice, checked but not timed: the same on every machine."""
    best = found.result.best
    if best not in found.finalists:
        return Judgement(original, None, "the original was returned: the model finds nothing cheaper")
    before, after = found.result.original.predicted_s, best.predicted_s
    ratio = before / after if after > 0 else 1.0
    program = found.program(best)
    numerics, cause = check(imported.graph, program, imported.live_values, imported.frozen_values, seed)
    if cause:
        return Judgement(original, None, f"the original was returned: {cause}")
    return Judgement(
        program,
        best,
        "program chosen by the performance model; times are predictions, nothing was measured",
        1e3 * before,
        1e3 * after,
        Speedup(ratio, ratio, ratio),
        numerics=numerics,
        finalists=tuple(Finalist(f.name, 1e3 * f.predicted_s, None, None) for f in found.finalists),
        after_text=print_graph(program.hot),
    )


def _rows(candidates: tuple[Candidate, ...], comparison: Comparison) -> tuple[Finalist, ...]:
    rows: list[Finalist] = []
    for finalist, outcome in zip(candidates, comparison.candidates, strict=True):
        if isinstance(outcome, Failure):
            text = f"{outcome.cause}: {outcome.detail}"
            rows.append(Finalist(finalist.name, 1e3 * finalist.predicted_s, None, None, text))
        else:
            ratio = Speedup(outcome.ratio.ratio, outcome.ratio.low, outcome.ratio.high)
            rows.append(Finalist(finalist.name, 1e3 * finalist.predicted_s, 1e3 * outcome.median_s, ratio))
    return tuple(rows)
