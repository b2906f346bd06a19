"""Our kernels against XLA, PyTorch (MKL, oneDNN) and ONNX Runtime, operator by operator.

Every case runs in a process of its own per number of threads, pinned to as many cores.  Our kernel is tuned within the
budget, and its schedule is fixed.  Then ours, XLA's and the peers' are timed interleaved in fresh rounds together with
a loop of independent multiply-adds, whose rate is the peak of that moment.  With several threads every sample waits
until no pool of the process polls for work any more, and starts with untimed calls (`superopt.lab.bench.timing`).
Weights are frozen: packed ahead of time by ours and by the peers that can.  Ratios are peer over ours; the best peer is
the fastest of all that are installed.  Peers are called through their Python interfaces, ours directly.  XLA is
compared with ours inside `jax.jit`, where both have the overhead of a call from JAX (`ours in jit`).

    superopt bench --suite kernels [--case TEXT ...] [--budget 10s] [--json]
    superopt bench --suite kernels --case " x1"      All operators, on one thread.

Summary (one thread unless stated otherwise): `gemm_peak_fraction` is the mean share of peak over products of at least
64 rows.  All means are geometric.  `*_vs_best_peer` are means, `*_min` the least of them, `*_4t` the same with four
threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from superopt.lab.bench import Result, Say, geomean, in_own_process, table_with_summary, wanted
from superopt.lab.bench.programs.kernels_cases import CASES
from superopt.machine.budget import parse_budget

_COLUMNS = (
    ("case", "operator", ""),
    ("threads", "threads", "d"),
    ("ours_us", "ours, us", ".4g"),
    ("jit_us", "in jit, us", ".4g"),
    ("gflops", "GF/s", ".0f"),
    ("peak_fraction", "of peak", ".0%"),
    ("xla", "XLA", ".2f"),
    ("torch", "torch", ".2f"),
    ("onnxruntime", "ONNX Runtime", ".2f"),
    ("low", "best, low", ".2f"),
    ("high", "high", ".2f"),
    ("candidates", "tried", "d"),
    ("noise_floor", "noise", ".2f"),
)
_MODULE = "superopt.lab.bench.kernels_case"


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Every case with one thread and with as many as there are cores (at most four)."""
    seconds = parse_budget(budget).seconds or 10.0
    many = min(4, len(os.sched_getaffinity(0)))
    rows: list[dict[str, Any]] = []
    for case in CASES:
        for threads in sorted({1, many}):
            if not wanted(f"{case.name} x{threads}", cases):
                continue
            row = in_own_process(_MODULE, f"{threads}:{case.name}", f"{seconds:g}s", seed, 120 + 4 * seconds)
            rows.append({"case": case.name, "kind": case.kind, "threads": threads, **row})
            say(_line(rows[-1]))
    summary = summarise(rows)
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def _line(row: dict[str, Any]) -> str:
    if "failure" in row:
        return f"{row['case']} x{row['threads']}: {row['failure']}"
    return f"{row['case']} x{row['threads']}: {row['ours_us']:.4g} us, best peer over ours {row['best']:.2f}"


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The figures of the acceptance bars."""
    good = [row for row in rows if "failure" not in row]
    figures: dict[str, float] = {"failed": float(len(rows) - len(good))}
    for threads in sorted({row["threads"] for row in good}):
        mark = "" if threads == 1 else f"_{threads}t"
        mine = [row for row in good if row["threads"] == threads]
        of = {kind: [row for row in mine if row["kind"] == kind] for kind in {row["kind"] for row in mine}}
        products = [*of.get("gemm", []), *of.get("skinny", [])]
        if of.get("gemm") and threads == 1:
            figures[f"gemm_peak_fraction{mark}"] = geomean([row["peak_fraction"] for row in of["gemm"]])
        for name, group in (
            ("gemm", products),
            ("conv", of.get("conv", [])),
            ("rowops", of.get("rowops", [])),
            ("attention", of.get("attention", [])),
        ):
            if group:
                figures[f"{name}_vs_best_peer{mark}"] = geomean([row["best"] for row in group])
                figures[f"{name}_vs_best_peer_min{mark}"] = min(row["best"] for row in group)
        against = [row["onnxruntime"] for row in of.get("depthwise_pool", []) if row.get("onnxruntime")]
        if against:
            figures[f"depthwise_pool_vs_best_peer{mark}"] = geomean(against)
            figures[f"depthwise_pool_vs_best_peer_min{mark}"] = min(against)
        if of.get("rowops"):
            figures[f"rowops_vs_xla{mark}"] = geomean([row["xla"] for row in of["rowops"]])
        if of.get("int8"):
            figures[f"int8_vs_fp32{mark}"] = geomean([row["over_fp32"] for row in of["int8"]])
    rates = [row["candidates_per_s"] for row in good if row.get("candidates_per_s")]
    if rates:
        figures["candidates_per_s"] = geomean(rates)
        figures["compile_ms"] = geomean([row["compile_ms"] for row in good if row["compile_ms"]])
    return figures
