"""The A/A suite: how often a speed-up is claimed where there is none.

Sixty small programs that have nothing to improve: single products, elementwise chains, normalisations, reductions,
movement.  Each is put through two experiments.

    same      The contest gets copies of the program itself, so that every claim is false by construction.
    library   The whole pipeline runs with all rules.  A program that it returns as faster is timed again in a fresh
              process, in many more rounds; a claim that this does not confirm is false.  A confirmed one shows that
              there was something to gain after all, and is left out of the share.

    superopt bench --suite aa [--case NAME ...] [--json]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from superopt.candidates.candidate import Candidate
from superopt.contest.contest import Outcome, contest
from superopt.contest.rounds import ORIGINAL, Rounds, Subject
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.program import original_program
from superopt.lab.bench import Result, Say, table_with_summary, wanted
from superopt.lab.bench.programs.aa_programs import PROGRAMS, AAProgram
from superopt.machine.budget import parse_budget
from superopt.machine.deadline import now_s
from superopt.measure import ComparisonSettings, Timing, compare
from superopt.pipeline.optimizer import optimize
from superopt.workshop.job import Failure
from superopt.workshop.process import Worker

COPIES = 4  # as many candidates as an ordinary search proposes
RETEST_ROUNDS = 61
_COLUMNS = (
    ("case", "program", ""),
    ("before_ms", "ms", ".3g"),
    ("same_claimed", "claimed of itself", ""),
    ("same_best", "best copy", ".3f"),
    ("noise_floor", "noise floor", ".3f"),
    ("claimed", "claimed", ""),
    ("ratio", "speed-up claimed", ".3f"),
    ("again", "timed again", ".3f"),
    ("again_low", "low", ".3f"),
    ("confirmed", "confirmed", ""),
    ("seconds", "seconds", ".0f"),
)


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Both experiments on every program."""
    rows: list[dict[str, Any]] = []
    for name, make in PROGRAMS.items():
        if not wanted(name, cases):
            continue
        row = measure_case(name, make, budget, seed + len(rows))
        rows.append(row)
        again = f", {row['again']:.3f} again" if row["claimed"] else ""
        say(f"{name}: same {row['same_claimed']}, claimed {row['claimed']}{again}, {row['seconds']:.0f} s")
    summary = summarise(rows)
    text = table_with_summary(rows, _COLUMNS, summary)
    return rows, summary, text


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Numbers and shares of claims; `claimed_share` is the larger of the two shares of false ones.

    `covered` counts the claims whose interval contains the ratio of the fresh process.
    """
    count = max(1, len(rows))
    same = sum(1 for row in rows if row["same_claimed"])
    claimed = [row for row in rows if row["claimed"]]
    false = sum(1 for row in claimed if not row["confirmed"])
    nothing_to_gain = max(1, count - (len(claimed) - false))
    return {
        "programs": float(len(rows)),
        "same_claims": float(same),
        "same_share": same / count,
        "without_gain": float(nothing_to_gain),
        "library_claims": float(len(claimed)),
        "library_false_claims": float(false),
        "library_false_share": false / nothing_to_gain,
        "library_claims_covered": float(sum(1 for row in claimed if row["low"] <= row["again"] <= row["high"])),
        "claimed_share": max(same / count, false / nothing_to_gain),
    }


def measure_case(name: str, make: Callable[[], AAProgram], budget: str, seed: int) -> dict[str, Any]:
    """Both experiments on one program."""
    begin = time.perf_counter()
    fn, args = make()
    imported = import_function(fn, args)
    same = judge_copies(imported, budget, seed)
    ratios = [f.ratio.ratio for f in same.rows() if f.ratio is not None]
    result = optimize(fn, *args, budget=budget, seed=seed, store=False, kernels=False)
    before_ms = result.report.measured.before_ms
    row: dict[str, Any] = {
        "case": name,
        "before_ms": before_ms if before_ms is not None else same.median_ms(ORIGINAL),
        "same_claimed": bool(same.order),
        "same_best": max(ratios, default=None),
        "noise_floor": same.noise_floor(ORIGINAL),
        "claimed": result.speedup.low > 1.0,
        "ratio": result.speedup.ratio if result.speedup.low > 1.0 else None,
        "low": result.speedup.low,
        "high": result.speedup.high,
        "again": None,
        "again_low": None,
        "confirmed": None,
        "rules": [used.rule for used in result.report.rewrites],
        "options": dict(result.report.compiler_options),
        "verdict": result.report.verdict,
    }
    if row["claimed"]:
        original, live = original_program(imported.graph), imported.live_values
        claimed = Candidate(name="claimed", program=result.program, options=row["options"], kernels=result.kernels)
        settings = ComparisonSettings(RETEST_ROUNDS, seed=seed + 1, prune=0.0)
        again = compare(original, [claimed], live, imported.frozen_values, settings)
        timing = again.candidates[0]
        if isinstance(timing, Timing) and not isinstance(again.reference, Failure):
            row |= {"again": timing.ratio.ratio, "again_low": timing.ratio.low, "confirmed": timing.ratio.low > 1.0}
        else:
            row |= {"again": 0.0, "again_low": 0.0, "confirmed": False}
    row["seconds"] = time.perf_counter() - begin
    return row


def judge_copies(imported: Imported, budget: str, seed: int) -> Outcome:
    """The contest of copies of the program itself, with the same compiler options."""
    copies = [Candidate(name=f"copy {i + 1}", program=original_program(imported.graph)) for i in range(COPIES)]
    with Worker() as worker:
        deadline = parse_budget(budget).deadline(now_s())
        with Rounds(Subject.of(imported), Request(deadline, seed=seed), worker) as rounds:
            return contest(rounds, copies, options=False)
