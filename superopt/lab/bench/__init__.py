"""Benchmark suites: each returns one JSON-serialisable object.

The object holds `suite`, `machine`, `versions`, `rows` (one per case, with every figure), `summary` (flat numbers) and
`text` (the table that the terminal shows).  Comparisons are interleaved in one run; ratios carry intervals.  Rows that
take long (those of processes of their own, and of pairs of models) are kept in a file as they are measured, where one
is named (`keeping`).  A run of an hour that was cut off does not measure them again.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any

from superopt.errors import UsageError
from superopt.lab import Say
from superopt.machine import facts as machine
from superopt.machine.extras import need
from superopt.machine.switches import plain_kept

Result = tuple[list[dict[str, Any]], dict[str, float], str]
"""Results of a suite: rows, summary, text."""
_HERE = "superopt.lab.bench"
SUITES = {
    "aa": f"{_HERE}.aa:run",
    "ablation": f"{_HERE}.ablation:run",
    "alternatives": f"{_HERE}.alternatives:run",
    "budget": f"{_HERE}.budget:run",
    "calls": f"{_HERE}.cost.calls:run",
    "core": f"{_HERE}.core:run",
    "exports": f"{_HERE}.peers.exports:run",
    "faults": f"{_HERE}.faults.suite:run",
    "joint": f"{_HERE}.joint:run",
    "kernels": f"{_HERE}.kernels:run",
    "loops": f"{_HERE}.core:run_loops",
    "memory": f"{_HERE}.cost.memory:run",
    "native": f"{_HERE}.core:run_native",
    "native-program": f"{_HERE}.cost.native:run",
    "objective": f"{_HERE}.objective:run",
    "onnx-nodes": f"{_HERE}.onnx.nodes:run",
    "onnx-types": f"{_HERE}.onnx.types:run",
    "options": f"{_HERE}.options:run",
    "pallas": f"{_HERE}.pallas.suite:run",
    "peers": f"{_HERE}.peers.suite:run",
    "plain": f"{_HERE}.joint:run_plain",
    "rewrites": f"{_HERE}.rewrites:run",
    "schedules": f"{_HERE}.schedules:run",
    "search": f"{_HERE}.searches.suite:run",
    "verifier": f"{_HERE}.verifier:run",
    "workshop": f"{_HERE}.workshop:run",
    "zoo": f"{_HERE}.zoo.suite:run",
}
"""Suite -> the function that runs it, loaded on first use."""
_OF_ONNX = ("budget", "exports", "memory", "onnx-nodes", "onnx-types", "peers")
NO_SEARCH = "--no-search"
OPTIONS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "count": ("--count", None, ("faults",)),
    "watch": ("--no-watch", True, ("verifier",)),
    "models": ("--models", None, ("exports", "native-program", "peers")),
    "peer_python": ("--peer-python", None, ("exports", "peers")),
    "search": (NO_SEARCH, True, ("core", "exports", "loops", "native", "native-program", "peers", "rewrites")),
}
"""Option that some suites take -> its spelling, its default, and those suites."""
BUDGETS = {
    "aa": "6s",
    "calls": "3s",
    "exports": "20s",
    "joint": "",  # each case has its own
    "kernels": "8s",
    "loops": "15s",
    "memory": "30s",
    "objective": "8s",
    "plain": "30s",
    "schedules": "20s",
    "rewrites": "15s",
    "ablation": "5s",
    "alternatives": "10s",
    "verifier": "5000steps",
    "zoo": "20s",
}


def run_suite(
    suite: str,
    *,
    budget: str | None,
    cases: Sequence[str],
    seed: int,
    say: Say,
    **options: Any,
) -> dict[str, Any]:
    """Run a suite by name, each case with the suite's default budget where none is given.

    Args:
        options: those of `OPTIONS`.  `search`: whether programs are searched or built as `optimize(search=False)` does.
            `count`: files of each kind.  `watch`: whether the verifier evaluates the statements that it proves.
            `models`: a folder of models.  `peer_python`: a Python with the other frameworks, this one where it is None.

    Raises:
        MissingExtraError: the suite has ONNX models, and the onnx package is not installed.
        UsageError: there is no such suite, it has no case whose name contains one of `cases`, or it optimises nothing.
    """
    if suite in _OF_ONNX:
        need("onnx", f"the suite {suite}")

    if suite not in SUITES:
        raise UsageError(f"there is no suite {suite!r}", hint=", ".join(SUITES))
    module, _, name = SUITES[suite].partition(":")
    run: Callable[..., Result] = getattr(import_module(module), name)
    for key, value in options.items():
        spelled, default, suites = OPTIONS[key]
        if value == default:
            continue
        if suite not in suites:
            raise UsageError(f"{spelled} is not for the suite {suite}", hint=", ".join(suites))
        run = functools.partial(run, **{key: value})
    with plain_kept():
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


def table_with_summary(
    rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str, str]], summary: Mapping[str, float]
) -> str:
    """Rows as a table with the summary in a line below."""
    return table(rows, columns) + "\n\n" + ", ".join(f"{k} {v:.4g}" for k, v in summary.items())


def wanted(name: str, cases: Sequence[str]) -> bool:
    """Whether a case is selected: its name contains one of these texts, or there are none."""
    return not cases or any(text in name for text in cases)


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers; 0 for none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 0.0


_KEPT: ContextVar[Path | None] = ContextVar("kept", default=None)


@contextmanager
def keeping(path: str | os.PathLike[str]) -> Iterator[None]:
    """Append rows of `once` to this file as they are measured, one a line; rows already in it are not measured again.

    A row is identified by module, case, budget, seed and flags, but not by the version of superopt that measured it.
    Failures are measured again.
    """
    token = _KEPT.set(Path(path))
    try:
        yield
    finally:
        _KEPT.reset(token)


def _kept(path: Path) -> dict[str, dict[str, Any]]:
    """Rows of a file by their identity; a line that was cut off is skipped."""
    kept: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
            kept[json.dumps(entry["asked"])] = entry["row"]
        except (ValueError, KeyError, TypeError):
            continue
    return kept


def once(asked: Sequence[Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure a row; inside `keeping` it may be one that was measured before."""
    path = _KEPT.get()
    if path is not None and (row := _kept(path).get(json.dumps(asked))) is not None:
        return row
    row = measure()
    if path is not None and "failure" not in row:
        cut_off = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" * cut_off + json.dumps({"asked": asked, "row": row}) + "\n")
    return row


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

    `environment` is added to that of this process.  The row is kept by `once`.
    """

    def measure() -> dict[str, Any]:
        return _measured(module, case, budget, seed, timeout_s, flags, environment)

    return once([module, case, budget, seed, *flags], measure)


def _measured(
    module: str,
    case: str,
    budget: str,
    seed: int,
    timeout_s: float,
    flags: Sequence[str],
    environment: Mapping[str, str] | None,
) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", module, case, budget, str(seed), *flags]
    added = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=added)
    except subprocess.TimeoutExpired:
        return {"case": case, "failure": f"no result within {timeout_s:.0f} s"}
    except OSError as error:  # no process: the rows of an hour must not be lost with it
        return {"case": case, "failure": f"no process: {error}"}
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return {"case": case, "failure": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    try:
        return json.loads(lines[-1])
    except ValueError:
        return {"case": case, "failure": f"no result, but {lines[-1][:200]!r}"}
