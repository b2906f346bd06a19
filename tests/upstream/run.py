"""Programs and examples of upstream libraries through superopt; see README.md beside this file.

python tests/upstream/run.py [--case NAME ...] [--examples] [--budget 10s] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # in the place of this folder, whose modules belong to the package tests.upstream

from superopt.lab.bench import in_own_process, table  # noqa: E402
from superopt.machine.budget import parse_budget  # noqa: E402
from tests.upstream.examples import EXAMPLES  # noqa: E402
from tests.upstream.programs import PROGRAMS  # noqa: E402

NOT_SLOWER = 0.97
SECOND_S = 3.0
_TIMEOUT_S = 600.0
_COLUMNS = (
    ("case", "program", ""),
    ("library", "library", ""),
    ("seconds", "seconds", ".1f"),
    ("within", "within budget", ""),
    ("right", "right", ""),
    ("jax_ms", "jax ms", ".3g"),
    ("product_ms", "ours ms", ".3g"),
    ("ratio", "over jax.jit", ".3f"),
    ("ratio_low", "low", ".3f"),
    ("ratio_high", "high", ".3f"),
    ("noise_floor", "noise floor", ".3f"),
    ("kept", "kept", ""),
    ("second_s", "second process s", ".2f"),
    ("missed", "missed", ""),
)
_EXAMPLE_COLUMNS = (
    ("case", "example", ""),
    ("programs", "programs", "d"),
    ("seconds", "seconds", ".1f"),
    ("right", "right", ""),
    ("missed", "missed", ""),
)


def main() -> int:
    """Run what was asked for; the exit code says whether anything was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", default=[], help="part of a name; all without it")
    parser.add_argument("--examples", action="store_true", help="the examples in the place of the programs")
    parser.add_argument("--budget", default="10s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="rows and summary as one JSON object")
    given = parser.parse_args()
    names = [n for n in (EXAMPLES if given.examples else PROGRAMS) if _asked(n, given.case)]
    if not names:
        parser.error(f"nothing is named {', '.join(given.case)}")
    rows: list[dict[str, Any]] = []
    for name in names:
        rows.append(example_row(name, given) if given.examples else program_row(name, given))
        told = rows[-1]
        print(f"{name}: {told['missed'] or _in_short(told)}", file=sys.stderr, flush=True)
    summary = of_examples(rows) if given.examples else of_programs(rows)
    if given.json:
        print(json.dumps({"rows": rows, "summary": summary}, indent=1))
    else:
        print(table(rows, _EXAMPLE_COLUMNS if given.examples else _COLUMNS))
        print("\n" + ", ".join(f"{key} {value:.4g}" for key, value in summary.items()))
    return 1 if any(row["missed"] for row in rows) else 0


def program_row(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """A program optimised and timed in one process, and called again in another, both with one empty cache."""
    with tempfile.TemporaryDirectory(prefix="superopt-upstream-") as folder:
        row = _process(name, given, folder, "first", folder)
        later = {} if "failure" in row else _process(name, given, folder, "second", folder)
    row["library"] = PROGRAMS[name].library
    row |= {("second_failure" if key == "failure" else key): x for key, x in later.items() if key != "case"}
    limit_s = 1.3 * (parse_budget(given.budget).seconds or 0.0) + 5.0
    row["within"] = row.get("seconds", limit_s) < limit_s
    wrongs = [row[key] for key in ("wrong", "recalled_wrong", "loaded_wrong") if row.get(key)]
    row["right"] = "failure" not in row and not wrongs
    row["kept"] = "stored" if row.get("stored") else "saved" if "load_s" in row else "no"
    row["second_s"] = row.get("recall_s") if row["kept"] == "stored" else row.get("load_s")
    row["missed"] = "; ".join(_missed(row, wrongs))
    return row


def _missed(row: dict[str, Any], wrongs: Sequence[str]) -> list[str]:
    if "failure" in row:
        return [f"failed: {row['failure']}"]
    missed = [f"wrong: {text}" for text in wrongs]
    if not row["within"]:
        missed.append(f"took {row['seconds']:.1f} s")
    if row["ratio"] < NOT_SLOWER:
        missed.append(f"{row['ratio']:.3f} of jax.jit [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}]")
    if "second_failure" in row:
        missed.append(f"second process failed: {row['second_failure']}")
    elif row["kept"] == "no":
        missed.append(f"neither stored nor saved: {row['not_saved']}")
    elif row["second_s"] >= SECOND_S:
        missed.append(f"second process: {row['second_s']:.1f} s")
    return missed


def example_row(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """An example under both decorators in one process."""
    with tempfile.TemporaryDirectory(prefix="superopt-upstream-") as cache:
        row = _process(name, given, cache, "example")
    row["right"] = not row.get("failure") and not row["wrong"]
    missed = [f"failed: {row['failure']}"] if "failure" in row else []
    if row.get("wrong"):
        missed.append(f"wrong: {row['wrong']}")
    if row.get("programs") == 0:
        missed.append("nothing was optimised")
    row["missed"] = "; ".join(missed)
    return row


def of_programs(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How many kept each bar."""
    good = [row for row in rows if "failure" not in row]
    return {
        "programs": len(rows),
        "libraries": len({row["library"] for row in rows}),
        "right": sum(row["right"] for row in rows),
        "within_budget": sum(row["within"] for row in good),
        "stored": sum(row["kept"] == "stored" for row in rows),
        "saved": sum("load_s" in row for row in rows),
        "second_seconds": max((row["second_s"] for row in good if row["second_s"] is not None), default=0.0),
        "least_ratio": min((row["ratio"] for row in good), default=0.0),
        "below_097": sum(row["ratio"] < NOT_SLOWER for row in good),
        "noise_floor": max((row["noise_floor"] for row in good), default=0.0),
        "failed": len(rows) - len(good),
        "missed": sum(bool(row["missed"]) for row in rows),
    }


def of_examples(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How many gave the same results under both decorators."""
    return {
        "examples": len(rows),
        "right": sum(row["right"] for row in rows),
        "programs": sum(row.get("programs", 0) for row in rows),
        "failed": sum("failure" in row for row in rows),
    }


def _process(name: str, given: argparse.Namespace, cache: str, *flags: str) -> dict[str, Any]:
    environment = {"XDG_CACHE_HOME": cache, "PYTHONPATH": str(ROOT)}
    module = "tests.upstream.measure"
    return in_own_process(module, name, given.budget, given.seed, _TIMEOUT_S, flags=flags, environment=environment)


def _asked(name: str, cases: Sequence[str]) -> bool:
    return not cases or any(text in name for text in cases)


def _in_short(row: dict[str, Any]) -> str:
    if "ratio" not in row:
        return f"{row['programs']} programs in {row['seconds']:.1f} s"
    ratio = f"{row['ratio']:.3f} [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}]"
    return f"{row['seconds']:.1f} s, {ratio}, {row['kept']}, second process {row['second_s']:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
