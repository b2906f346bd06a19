"""The suite peers: whole networks against ONNX Runtime and OpenVINO, all on the same threads and the same file.

    PYTHON tests/upstream/exports.py --out DIR --peers
    superopt bench --suite peers --models DIR --peer-python PYTHON --budget 60s --keep FILE --json

The networks are files in a folder that `tests/upstream/exports.py` has filled.  Each framework runs in a process of its
own; the peers' are of the Python that has them, which need not be this one (`superopt[peers]` brings both into this
one).  Superopt optimises first, alone; then all are timed in shuffled rounds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from superopt.errors import SuperoptError, UsageError
from superopt.lab.bench import NO_SEARCH, Result, Say, geomean, once, table_with_summary, wanted
from superopt.lab.bench.peers.processes import Served, compared, framework
from superopt.lab.bench.timing import median
from superopt.machine.budget import parse_budget
from superopt.measure.numerics import output_errors

PEERS = ("onnxruntime", "openvino")
OURS = "superopt"
MODELS = "models.json"
ROUNDS, MOST_ROUNDS = 21, 63
_BUILD_S = 1200.0  # time to build, on top of the budget
_ANSWER_S = 600.0
_COLUMNS = (
    ("case", "network", ""),
    ("superopt_ms", "superopt ms", ".3g"),
    *((f"{name}_ms", f"{name} ms", ".3g") for name in PEERS),
    *((f"vs_{name}", f"over {name}", ".2f") for name in PEERS),
    ("vs_best", "over the best", ".2f"),
    ("vs_best_low", "low", ".2f"),
    ("vs_best_high", "high", ".2f"),
    ("difference", "difference", ".1e"),
    ("build_s", "build s", ".0f"),
    ("rounds", "rounds", "d"),
    ("foreign_load", "load of others", ".2f"),
)


def run(
    *,
    budget: str,
    cases: Sequence[str],
    seed: int,
    say: Say,
    models: str | None = None,
    peer_python: str | None = None,
    search: bool = True,
) -> Result:
    """Measure every network of the folder that is one of those to compare."""
    folder = folder_of(models)
    rows: list[dict[str, Any]] = []
    for entry in entries(folder, cases):
        if not entry["peers"] and not cases:
            continue
        case = case_of(entry)
        asked = ["peers", case, budget, seed, search]
        row = once(asked, lambda e=entry: _measured(folder, e, budget, seed, peer_python or sys.executable, search))
        rows.append(row)
        if "failure" in row:
            say(f"{case}: failed: {row['failure']}")
        else:
            times = ", ".join(f"{name} {row[f'{name}_ms']:.3g} ms" for name in (OURS, *PEERS) if f"{name}_ms" in row)
            say(f"{case}: {times}; {row['vs_best']:.2f} of the best")
    summary = summarise(rows)
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean and least ratio to the best peer, the number of networks ahead beyond doubt, and failures."""
    good = [row for row in rows if "failure" not in row]
    return {
        "geomean_vs_best_peer": geomean([row["vs_best"] for row in good]),
        "min_vs_best_peer": min((row["vs_best"] for row in good), default=0.0),
        "ahead": float(sum(row["vs_best_low"] > 1.0 for row in good)),
        "behind": float(sum(row["vs_best_high"] < 1.0 for row in good)),
        "networks": float(len(good)),
        "foreign_load": max((row["foreign_load"] for row in good), default=0.0),
        "failed": float(len(rows) - len(good)),
    }


def folder_of(models: str | None) -> Path:
    """The folder of models.

    Raises:
        UsageError: no folder is named, or it has no list of models.
    """
    how = "make one: PYTHON tests/upstream/exports.py --out DIR"
    if models is None:
        raise UsageError("this suite needs a folder of exported models: --models DIR", hint=how)
    if not (Path(models) / MODELS).is_file():
        raise UsageError(f"{models} has no {MODELS}", hint=how)
    return Path(models)


def entries(folder: Path, cases: Sequence[str]) -> list[dict[str, Any]]:
    """The exported files whose cases are selected."""
    known = json.loads((folder / MODELS).read_text(encoding="utf-8"))
    return [entry for entry in known if "file" in entry and wanted(case_of(entry), cases)]


def case_of(entry: Mapping[str, Any]) -> str:
    """The name of a model in one of its forms."""
    return f"{entry['model']} {entry['form']}"


def files_of(folder: Path, entry: Mapping[str, Any]) -> tuple[Path, Path]:
    """The file of a model and that of its inputs."""
    model = folder / entry["file"]
    return model, model.parent / "inputs.npz"


def ours(model: Path, inputs: Path, budget: str, seed: int, search: bool) -> Served:
    """The model under superopt."""
    module = "superopt.lab.bench.peers.run_ours"
    command = [sys.executable, "-P", "-m", module, str(model), str(inputs), budget, str(seed)]
    limit_s = (parse_budget(budget).seconds or 0.0) + _BUILD_S
    return Served(OURS, command if search else [*command, NO_SEARCH], limit_s)


def _measured(
    folder: Path, entry: Mapping[str, Any], budget: str, seed: int, python: str, search: bool
) -> dict[str, Any]:
    case, (model, inputs) = case_of(entry), files_of(folder, entry)
    missing: dict[str, str] = {}
    try:
        with ExitStack() as stack:
            served = [stack.enter_context(ours(model, inputs, budget, seed, search))]
            for name in PEERS:
                try:
                    served.append(stack.enter_context(framework(name, python, model, inputs, _ANSWER_S)))
                except SuperoptError as error:
                    missing[name] = str(error.args[0])
            if len(served) == 1:
                return {"case": case, "failure": "; ".join(missing.values())}
            samples, ratios, load = compared(served, OURS, ROUNDS, MOST_ROUNDS, seed)
            results = {one.name: one.outputs() for one in served}
    except SuperoptError as error:
        return {"case": case, "failure": str(error.args[0])}
    best = min(ratios, key=lambda name: ratios[name].ratio)
    row: dict[str, Any] = {f"{name}_ms": 1e3 * median(x) for name, x in samples.items()}
    for key, ratio in (*ratios.items(), ("best", ratios[best])):
        row |= {f"vs_{key}": ratio.ratio, f"vs_{key}_low": ratio.low, f"vs_{key}_high": ratio.high}
    return row | {
        "case": case,
        "best": best,
        "difference": max(e.normwise for e in output_errors(results[best], as_types(results[best], results[OURS]))),
        "build_s": served[0].about["build_s"],
        "verdict": served[0].about["verdict"],
        "stages": served[0].about["stages"],
        "rounds": len(samples[OURS]),
        "foreign_load": load,
        "versions": {one.name: one.about["version"] for one in served},
        "missing": missing,
    }


def as_types(like: Sequence[np.ndarray], given: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results converted to the types of others: JAX returns 32-bit integers for 64-bit ones."""
    if len(like) != len(given):
        return list(given)
    return [x.astype(r.dtype) if x.dtype.kind == r.dtype.kind else x for r, x in zip(like, given, strict=True)]
