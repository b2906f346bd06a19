"""Benchmark suites: each returns one JSON-serialisable object.

The object holds `suite`, `machine`, `versions`, `rows` (one per case, with every figure), `summary` (flat numbers) and
`text` (the table that the terminal shows).  Comparisons are interleaved in one run; ratios carry intervals.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from superopt.errors import UsageError
from superopt.extras import need

Say = Callable[[str], None]
SUITES = (
    "aa",
    "ablation",
    "alternatives",
    "budget",
    "core",
    "faults",
    "kernels",
    "memory",
    "native",
    "onnx-nodes",
    "onnx-types",
    "options",
    "pallas",
    "plain",
    "rewrites",
    "schedules",
    "search",
    "verifier",
)
_OF_ONNX = ("memory", "onnx-nodes", "onnx-types")
NO_SEARCH = "--no-search"
WITHOUT_SEARCH = ("core", "native", "rewrites")  # their programs can be taken as `optimize(search=False)` builds them
BUDGETS = {
    "aa": "6s",
    "kernels": "8s",
    "memory": "30s",
    "plain": "30s",
    "schedules": "20s",
    "rewrites": "15s",
    "ablation": "5s",
    "alternatives": "10s",
    "verifier": "5000steps",
}


def run_suite(
    suite: str,
    *,
    budget: str | None,
    cases: Sequence[str],
    seed: int,
    say: Say,
    search: bool = True,
    count: int | None = None,
) -> dict[str, Any]:
    """Run a suite by name, each case with the budget of the suite where none is given.

    Without `search` its programs are built as `optimize(search=False)` does.  `count` is for `faults`: how many files
    of each kind.

    Raises:
        MissingExtraError: it has ONNX models, and the onnx package is not installed.
        UsageError: there is no such suite, it has no case whose name contains one of `cases`, or it optimises nothing.
    """
    if suite in _OF_ONNX:
        need("onnx", f"the suite {suite}")
    from superopt import machine  # late: the package imports nothing heavy before a suite is chosen

    if suite == "aa":
        from superopt.bench.aa import run  # late: see above
    elif suite == "ablation":
        from superopt.bench.ablation import run  # late: see above
    elif suite == "alternatives":
        from superopt.bench.alternatives import run  # late: see above
    elif suite == "budget":
        from superopt.bench.budget import run  # late: see above
    elif suite == "core":
        from superopt.bench.core import run  # late: see above
    elif suite == "faults":
        from superopt.bench import faults  # late: see above

        run = faults.run if count is None else functools.partial(faults.run, count=count)
    elif suite == "kernels":
        from superopt.bench.kernels import run  # late: see above
    elif suite == "memory":
        from superopt.bench.memory import run  # late: see above
    elif suite == "native":
        from superopt.bench.core import run_native as run  # late: see above
    elif suite == "onnx-nodes":
        from superopt.bench.onnx_nodes import run  # late: see above
    elif suite == "onnx-types":
        from superopt.bench.onnx_types import run  # late: see above
    elif suite == "options":
        from superopt.bench.options import run  # late: see above
    elif suite == "pallas":
        from superopt.bench.pallas import run  # late: see above
    elif suite == "plain":
        from superopt.bench.plain import run  # late: see above
    elif suite == "rewrites":
        from superopt.bench.rewrites import run  # late: see above
    elif suite == "schedules":
        from superopt.bench.schedules import run  # late: see above
    elif suite == "search":
        from superopt.bench.search import run  # late: see above
    elif suite == "verifier":
        from superopt.bench.verifier import run  # late: see above
    else:
        raise UsageError(f"there is no suite {suite!r}", hint=", ".join(SUITES))
    if not search:
        if suite not in WITHOUT_SEARCH:
            raise UsageError(f"--no-search is not for the suite {suite}", hint=", ".join(WITHOUT_SEARCH))
        run = functools.partial(run, search=False)
    rows, summary, text = run(budget=budget or BUDGETS.get(suite, "60s"), cases=tuple(cases), seed=seed, say=say)
    if not rows:
        raise UsageError(f"the suite {suite} has no case named {', '.join(map(repr, cases))}")
    return {
        "suite": suite,
        "machine": machine.as_dict(),
        "versions": machine.versions(),
        "rows": rows,
        "summary": summary,
        "text": text,
    }


def table(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str, str]]) -> str:
    """Rows as a Markdown table; a column is (key, title, format specification)."""
    lines = ["| " + " | ".join(title for _, title, _ in columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        cells = [format(row[key], spec) if row.get(key) is not None else "-" for key, _, spec in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers; 0 of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 0.0


def in_own_process(
    module: str,
    case: str,
    budget: str,
    seed: int,
    timeout_s: float,
    *,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The row that `python -m module case budget seed flags` prints as its last line, or a row with the `failure`.

    `environment` is added to that of this process.
    """
    command = [sys.executable, "-P", "-m", module, case, budget, str(seed), *flags]
    added = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=added)
    except subprocess.TimeoutExpired:
        return {"case": case, "failure": f"no result within {timeout_s:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return {"case": case, "failure": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    try:
        return json.loads(lines[-1])
    except ValueError:
        return {"case": case, "failure": f"no result, but {lines[-1][:200]!r}"}
