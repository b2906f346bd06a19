"""The budget suite: is a budget the wall time of the call?

Twelve programs with five budgets each, every call in a process of its own, store and cache of kernels empty,
as on the first day of a user.  A call keeps its budget where it takes at most 1.15 times as long.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from superopt.lab.bench import Result, Say, in_own_process, told, wanted
from superopt.lab.bench.core import CASES
from superopt.lab.bench.programs.programs import build_case
from superopt.pipeline.optimizer import optimize

PROGRAMS = (*CASES, "transformer_block", "mobilenet_v2")
BUDGETS_S = (10, 15, 20, 25, 30)
OVER = 1.15  # of the budget: what is left of a build or a proof that had begun
_TIMEOUT_S = 600.0
_COLUMNS = (
    ("case", "program", ""),
    ("budget_s", "budget s", ".0f"),
    ("seconds", "seconds", ".1f"),
    ("share", "of the budget", ".2f"),
    ("speedup", "speed-up", ".2f"),
    ("form", "returned", ""),
)


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Optimise every program with every budget; `budget` is not used, since budgets are what is measured."""
    rows: list[dict[str, Any]] = []
    for case in PROGRAMS:
        for seconds in BUDGETS_S:
            name = f"{case}:{seconds}"
            if not wanted(name, cases):
                continue
            row = in_own_process("superopt.lab.bench.budget", case, f"{seconds}s", seed, _TIMEOUT_S)
            rows.append(row)
            say(f"{name}: {row.get('failure') or format(row['seconds'], '.1f')}")
    good = [row for row in rows if "failure" not in row]
    shares = sorted(row["share"] for row in good)
    summary = {
        "runs": float(len(rows)),
        "kept": sum(share <= OVER for share in shares) / len(rows) if rows else 0.0,
        "largest_share": max(shares, default=0.0),
        "failed": float(len(rows) - len(good)),
    }
    return rows, summary, told(rows, _COLUMNS, summary)


def measure_case(case: str, budget: str, seed: int) -> dict[str, Any]:
    """The wall time of one call in this process, with nothing stored."""

    program = build_case(case, seed)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        begin = time.perf_counter()
        result = optimize(program.fn, program.params, *program.inputs, frozen=0, budget=budget, seed=seed)
        seconds = time.perf_counter() - begin
    budget_s = float(budget.removesuffix("s"))
    report = result.report
    form = "original" if report.original_returned else str(report.implementation.get("form") or "XLA")
    return {
        "case": case,
        "budget_s": budget_s,
        "seconds": seconds,
        "share": seconds / budget_s,
        "speedup": report.speedup.ratio,
        "form": form,
        "verdict": report.verdict,
        "stages": {stage.name: round(stage.seconds, 2) for stage in report.stages},
        "notes": list(report.notes),
    }


if __name__ == "__main__":
    print(json.dumps(measure_case(sys.argv[1], sys.argv[2], int(sys.argv[3])), default=str))
