"""Pages of documentation, cell by cell, under `jax.jit` and under `superopt.jit`.

    python tests/upstream/pages.py FOLDER [--page NAME ...] [--budget 1s] [--json]

FOLDER holds notebooks (`*.ipynb`) and pages of MyST markdown (`*.md`), such as `docs` of github.com/jax-ml/jax; nothing
is fetched.  Each page runs twice, each time in a process of its own: as it is, and with `jax.jit` replaced by
`superopt.jit`.  An outcome of a cell is what it prints, the value of its last expression, the values that it assigns to
names, and the exception that it raises; those of both runs are compared, addresses, times and log lines left out.
The exit code is 1 where a cell has another outcome.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(
    r"^```(?:\{code-cell\}[^\n]*|python|pycon|\{code-block\} python)[ \t]*\n(.*?)^```[ \t]*$", re.M | re.S
)
_OPTION = re.compile(r"\A(---\n.*?\n---\n|(:[\w-]+:.*\n)+)", re.S)
_ADDRESS = re.compile(
    r"\b0x[0-9a-fA-F]+\b|\bid=\d+|\b\d{13,15}\b|/[\w/.-]+\.py\b|line \d+|\bline\d+"
    r"|, metadata=\{[^}]*\}|\bloc\([^\n]*\)|^#loc.*$|^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:.+\n)*",
    re.M,
)  # places in memory, files and texts of programs
_TIME = re.compile(r"[\d.,]+ ?(?:ns|µs|us|μs|ms|s)\b|[\d.]+ (?:seconds|secs)|\(.*?mean ± std.*\)")
_MAGIC = re.compile(r"^\s*(%timeit\s+(?:-\w+\s+\S+\s+)*|%time\s+|[%!].*$)", re.M)
_TIMEOUT_S = 1200.0


def cells(path: Path) -> list[str]:
    """The code cells of a page; of a transcript with prompts the code alone."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        found = ["".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    else:
        found = [_OPTION.sub("", body) for body in _FENCE.findall(text)]
    return [_MAGIC.sub(lambda m: "" if m[1].startswith(("%", "!")) else m[0], _unprompted(x)) for x in found]


def _unprompted(code: str) -> str:
    lines = code.splitlines()
    if not any(line.startswith(">>> ") for line in lines):
        return code
    return "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ", ">>>", "...")))


def outcomes(path: Path, budget: str, replaced: bool) -> Iterator[dict[str, Any]]:
    """What each cell of a page does in this process."""
    import jax
    import numpy as np

    random.seed(0)
    np.random.seed(0)
    programs: list[Any] = []

    def jit(*args: Any, **options: Any) -> Any:
        import superopt

        made = superopt.jit(*args, budget=budget, **options)
        programs.append(made)
        return made

    space = types.ModuleType("__main__")
    sys.modules["__main__"] = space
    if replaced:
        jax.jit = jit
    for number, code in enumerate(cells(path)):
        before, out = dict(vars(space)), io.StringIO()
        row: dict[str, Any] = {"cell": number, "code": code[:200], "raised": "", "value": ""}
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            try:
                row["value"] = _told(_run(code, vars(space)))
                jax.effects_barrier()
            except BaseException as error:  # an outcome like any other
                row["raised"] = _plain(f"{type(error).__name__}: {error}")[:_MOST_TEXT]
        row["printed"] = _plain(out.getvalue())
        row["names"] = {
            name: _told(value)
            for name, value in vars(space).items()
            if not name.startswith("__") and before.get(name) is not value
        }
        row["programs"] = sum(len(p.programs) for p in programs if hasattr(p, "programs"))
        yield row


_MOST_TEXT = 400


def _run(code: str, space: dict[str, Any]) -> Any:
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), space)
    return None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)


def _told(value: Any) -> Any:
    try:
        return _data(value)
    except Exception as error:  # of an array that was deleted, or leaked
        return type(error).__name__


def _data(value: Any) -> Any:
    """A value as data: arrays with type, sharding and elements, containers of them, and of anything else its text."""
    import jax
    import numpy as np

    if isinstance(value, jax.Array) and not _is_key(value):
        told = {
            "type": str(jax.typeof(value)),
            "weak": bool(value.aval.weak_type),
            "sharding": _plain(str(value.sharding)),
        }
        return {**told, **_elements(np.asarray(value))}
    if isinstance(value, np.ndarray | np.generic):
        return {"type": f"numpy {value.dtype}{list(value.shape)}", **_elements(np.asarray(value))}
    if isinstance(value, dict) and len(value) < 50:
        return {"dict": [[_told(k), _told(v)] for k, v in value.items()]}
    if isinstance(value, tuple | list) and len(value) < 50:
        return {type(value).__name__: [_told(v) for v in value]}
    if callable(value) or isinstance(value, types.ModuleType):
        return "callable"
    if isinstance(value, str):
        return _plain(value)[:2000]
    return _plain(f"{type(value).__name__}: {value!r}")[:2000]


def _is_key(value: Any) -> bool:
    import jax

    return jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)


def _elements(array: Any) -> dict[str, Any]:
    import numpy as np

    if array.dtype.kind not in "fiubc" and array.dtype.name != "bfloat16":
        return {"text": _plain(str(array))}
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64).reshape(-1)[:4096]
    flat = np.concatenate([wide.real, wide.imag]) if wide.dtype.kind == "c" else wide
    return {"elements": [float(x) for x in flat]}


def _plain(text: str) -> str:
    return _TIME.sub("TIME", _ADDRESS.sub("ADDRESS", text))


def difference(one: Any, two: Any) -> str:
    """The difference of two outcomes, or an empty text; floats may differ by rounding."""
    import numpy as np

    if isinstance(one, Mapping) and isinstance(two, Mapping):
        if one.keys() != two.keys():
            return f"{sorted(one)} is not {sorted(two)}"
        return next((f"{key}: {d}" for key in one if (d := difference(one[key], two[key]))), "")
    if isinstance(one, list) and isinstance(two, list):
        if len(one) != len(two):
            return f"{len(one)} is not {len(two)}"
        if one and all(isinstance(x, float) for x in (*one, *two)):
            a, b = np.array(one), np.array(two)
            scale = np.abs(a[np.isfinite(a)]).max(initial=1e-30)
            same = np.isclose(a, b, rtol=2e-4, atol=2e-5 * scale, equal_nan=True)
            return "" if same.all() else f"{a[~same][:3]} is not {b[~same][:3]}"
        return next((d for x, y in zip(one, two, strict=True) if (d := difference(x, y))), "")
    if one == two or (isinstance(one, str) and isinstance(two, str) and _same_text(one, two)):
        return ""
    return f"{str(one)[:300]!r} is not {str(two)[:300]!r}"


_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:e[-+]?\d+)?")


def _same_text(one: str, two: str) -> bool:
    """Whether two texts are equal but for the last digits of numbers and the order of lines, which effects may have."""
    one, two = ("\n".join(sorted(text.splitlines())) for text in (one, two))
    if " ".join(_NUMBER.sub("#", one).split()) != " ".join(_NUMBER.sub("#", two).split()):
        return False
    pairs = zip(map(float, _NUMBER.findall(one)), map(float, _NUMBER.findall(two)), strict=False)
    return all(abs(a - b) <= 2e-4 * max(abs(a), abs(b), 1e-2) for a, b in pairs)


def page_row(path: Path, budget: str) -> dict[str, Any]:
    """A page in both ways."""
    with tempfile.TemporaryDirectory(prefix="superopt-pages-") as folder:
        runs = [_process(path, budget, flag, folder) for flag in ("jax", "superopt")]
    rows: dict[str, Any] = {"page": path.name, "cells": len(cells(path)), "different": []}
    if not len(runs[0]) == len(runs[1]) == rows["cells"]:
        rows["different"].append({"cell": min(map(len, runs)), "code": "", "how": "the process ended"})
    for one, two in zip(*runs, strict=False):
        parts = ((key, difference(one[key], two[key])) for key in ("raised", "printed", "value", "names"))
        how = "; ".join(f"{key}: {text}" for key, text in parts if text)
        if how:
            rows["different"].append({"cell": one["cell"], "code": one["code"], "how": how})
    rows["programs"] = runs[1][-1]["programs"] if runs[1] else 0
    rows["raised"] = sum(bool(row["raised"]) for row in runs[0])
    return rows


def _process(path: Path, budget: str, which: str, folder: str) -> list[dict[str, Any]]:
    out = Path(folder) / which
    environment = {**os.environ, "XDG_CACHE_HOME": folder, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    command = [sys.executable, __file__, str(path), "--budget", budget, "--run", which, "--out", str(out)]
    subprocess.run(command, env=environment, check=False, timeout=_TIMEOUT_S, cwd=folder, capture_output=True)
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def main() -> int:
    """Compare the pages that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", action="append", default=[], help="the name of a page; all without it")
    parser.add_argument("--budget", default="1s")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run", choices=("jax", "superopt"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        with open(given.out, "w", buffering=1) as out:
            for row in outcomes(given.folder, given.budget, given.run == "superopt"):
                out.write(json.dumps(row, default=str) + "\n")
        return 0
    pages = sorted(p for p in given.folder.rglob("*") if p.suffix in (".md", ".ipynb"))
    pages = [p for p in pages if not given.page or p.name in given.page or p.stem in given.page]
    if not pages:
        parser.error("there is no such page")
    rows: list[dict[str, Any]] = []
    for page in pages:
        rows.append(page_row(page, given.budget))
        if not given.json:
            row = rows[-1]
            print(
                f"{row['page']}: {row['cells']} cells, {row['raised']} raise, {row['programs']} programs, "
                f"{len(row['different'])} different",
                flush=True,
            )
            for found in row["different"]:
                print(f"  cell {found['cell']}: {found['how']}\n    {found['code'][:120]!r}", flush=True)
    if given.json:
        print(json.dumps({"rows": rows}, indent=1))
    return 1 if any(row["different"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
