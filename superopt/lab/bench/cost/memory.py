"""The memory suite: how many times the size of its weights a model takes, to optimise and to load.

    plain   `optimize(search=False)` of the ONNX file, then `save`.
    budget  `optimize` with the budget of the suite, nothing stored before.
    load    `superopt.load` of the saved program, and a call.

The models are chains of products of 16 MB each, made on the fly: their weights in the model's file (512 MB), or beside
it (2.3 GB).  Every way runs in a process of its own, whose memory and that of all processes that it starts is sampled.
Samples count the private memory of each process and its share of shared memory (proportional set size), and our files
in shared memory that no process has mapped.  The memory of the same chain with small matrices is reported too:
interpreter, JAX and code.

    superopt bench --suite memory [--case inline] [--json]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import superopt
from superopt.arrays.placing import SHARED
from superopt.errors import UsageError
from superopt.lab.bench import Result, Say, table_with_summary, wanted

SIDE, SMALL_SIDE, ROWS = 2048, 64, 8  # sides of a large matrix and of a negligible one, rows of the operand
LAYERS = {"inline": 32, "external": 144}
WAYS = ("plain", "budget", "load")
_EVERY_S = 0.05
_TIMEOUT_S = 900.0
_COLUMNS = (
    ("case", "model", ""),
    ("way", "way", ""),
    ("weights_mb", "weights MB", ".0f"),
    ("peak_mb", "peak MB", ".0f"),
    ("over_weights", "over weights", ".2f"),
    ("small_mb", "small matrices MB", ".0f"),
    ("rest_over_weights", "the rest over weights", ".2f"),
    ("seconds", "s", ".1f"),
)


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak memory of a process and those that it started.

    Attributes:
        nbytes: memory at the worst moment.
        at_s: time of that moment.
        seconds: until the end.
        parts: anonymous, mapped and shared memory at the worst moment.
        processes: number of processes at the worst moment.
    """

    nbytes: int
    at_s: float
    seconds: float
    parts: dict[str, int]
    processes: int


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Measure the models whose names contain one of `cases` (all if empty)."""
    if not Path("/proc/self/smaps_rollup").exists():
        raise UsageError("the suite memory reads /proc/PID/smaps_rollup, which this system has not")
    rows: list[dict[str, Any]] = []
    for case, layers in LAYERS.items():
        if wanted(case, cases):
            with tempfile.TemporaryDirectory(prefix="superopt-bench-") as folder:
                rows += _case(case, layers, budget, seed, Path(folder), say)
    summary = {"failed": float(sum("failure" in row for row in rows))}
    for name, ways in {"optimise": WAYS[:2], "plain": WAYS[:1], "load": WAYS[2:]}.items():
        ratios = [row["over_weights"] for row in rows if row["way"] in ways and "failure" not in row]
        summary[f"{name}_over_weights"] = max(ratios, default=0.0)
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def _case(case: str, layers: int, budget: str, seed: int, folder: Path, say: Say) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    small = dict(_ways(case, layers, SMALL_SIDE, budget, seed, folder))
    for way, peak in _ways(case, layers, SIDE, budget, seed, folder):
        row: dict[str, Any] = {"case": case, "way": way, "weights_mb": layers * SIDE * SIDE * 4 / 2**20}
        besides = small[way]
        if isinstance(peak, str):
            row["failure"] = peak
        elif isinstance(besides, str):
            row["failure"] = besides
        else:
            weights = layers * SIDE * SIDE * 4
            row |= {
                "peak_mb": peak.nbytes / 2**20,
                "over_weights": peak.nbytes / weights,
                "small_mb": besides.nbytes / 2**20,
                "rest_over_weights": (peak.nbytes - besides.nbytes) / weights,
                "at_s": peak.at_s,
                "seconds": peak.seconds,
                "processes": peak.processes,
                "parts_mb": {name: n / 2**20 for name, n in peak.parts.items()},
            }
        rows.append(row)
        say(f"{case}, {way}: {row.get('failure') or format(row['over_weights'], '.2f')}")
    return rows


def _ways(case: str, layers: int, side: int, budget: str, seed: int, folder: Path) -> list[tuple[str, Peak | str]]:
    """The peak of every way, or the reason why there is none."""
    model, saved = folder / f"{case}{side}.onnx", folder / f"{case}{side}.superopt"
    made = _watched("make", case, str(layers), str(side), str(model))
    if isinstance(made, str):
        return [(way, made) for way in WAYS]
    ways = [
        ("plain", _watched("optimise", str(model), "", str(seed), str(saved))),
        ("budget", _watched("optimise", str(model), budget, str(seed), "")),
        ("load", _watched("load", str(saved), str(side))),
    ]
    for file in folder.glob(f"{case}{side}.*"):
        file.unlink()
    return ways


def _watched(*arguments: str) -> Peak | str:
    with tempfile.TemporaryDirectory(prefix="superopt-bench-") as cache:
        command = [sys.executable, "-P", "-m", "superopt.lab.bench.cost.memory", *arguments]
        return watch(command, {"XDG_CACHE_HOME": cache})


def watch(command: Sequence[str], environment: dict[str, str]) -> Peak | str:
    """Run a command to its end; return its peak memory, or the last line of its errors."""
    begin = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env={**os.environ, **environment}
        ) as process,
    ):
        worst = Peak(0, 0.0, 0.0, {}, 0)
        while process.poll() is None:
            now_s = time.monotonic() - begin
            parts, count = _taken(process.pid)
            if sum(parts.values()) > worst.nbytes:
                worst = Peak(sum(parts.values()), now_s, 0.0, parts, count)
            if now_s > _TIMEOUT_S:
                process.kill()
            time.sleep(_EVERY_S)
        seconds = time.monotonic() - begin
        errors.seek(0)
        if process.returncode:
            return (errors.read().strip().splitlines() or [f"ended with {process.returncode}"])[-1]
    return Peak(worst.nbytes, worst.at_s, seconds, worst.parts, worst.processes)


def _taken(pid: int) -> tuple[dict[str, int], int]:
    """Current memory of a process and its descendants by kind, and their number."""
    parts = {"Anon": 0, "File": 0, "Shmem": 0}
    pids = _family(pid)
    for one in pids:
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:  # it has ended
            continue
        for line in lines:
            kind = line.partition(":")[0].removeprefix("Pss_")
            if line.startswith("Pss_") and kind in parts:
                parts[kind] += int(line.split()[1]) << 10
    parts["Shmem"] = max(parts["Shmem"], sum(map(_in_shared_memory, pids)))
    return parts, len(pids)


def _family(pid: int) -> list[int]:
    members = [pid]
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = tasks.read_text(encoding="ascii").split()
        except OSError:  # it has ended
            continue
        for child in children:
            members += _family(int(child))
    return members


def _in_shared_memory(pid: int) -> int:
    total = 0
    for path in SHARED.glob(f"superopt-{pid}-*/*"):
        try:
            total += os.stat(path).st_blocks * 512
        except OSError:  # it is gone
            continue
    return total


# ---- programs of the measured processes


def make(kind: str, layers: int, side: int, path: Path) -> None:
    """Write a chain of products with rectifiers between them."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng, at = np.random.default_rng(0), "x"
    nodes: list[onnx.NodeProto] = []
    stored: list[onnx.TensorProto] = []
    data = path.with_suffix(".data")
    with open(data, "wb") as out:
        for i in range(layers):
            weight = rng.standard_normal((side, side), np.float32) * np.float32((2.0 / side) ** 0.5)
            if kind == "inline":
                stored.append(numpy_helper.from_array(weight, f"w{i}"))
            else:
                tensor = TensorProto(
                    name=f"w{i}", data_type=TensorProto.FLOAT, dims=weight.shape, data_location=TensorProto.EXTERNAL
                )
                for key, value in {"location": data.name, "offset": out.tell(), "length": weight.nbytes}.items():
                    tensor.external_data.add(key=key, value=str(value))
                out.write(weight.data)
                stored.append(tensor)
            nodes += [
                helper.make_node("MatMul", [at, f"w{i}"], [f"m{i}"]),
                helper.make_node("Relu", [f"m{i}"], [f"r{i}"]),
            ]
            at = f"r{i}"
    given, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, side]) for name in ("x", at))
    graph = helper.make_graph(nodes, "chain", [given], [result], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())


def _optimise(model: str, budget: str, seed: int, saved: str) -> None:
    given: dict[str, Any] = {"budget": budget} if budget else {"search": False}
    result = superopt.optimize(model, seed=seed, **given)
    if saved:
        result.save(saved)


def _load(saved: str, side: int) -> None:
    np.asarray(superopt.load(saved)(np.ones((ROWS, side), np.float32))[0])


def _main(what: str, *arguments: str) -> None:
    if what == "make":
        make(arguments[0], int(arguments[1]), int(arguments[2]), Path(arguments[3]))
    elif what == "optimise":
        _optimise(arguments[0], arguments[1], int(arguments[2]), arguments[3])
    else:
        _load(arguments[0], int(arguments[1]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
