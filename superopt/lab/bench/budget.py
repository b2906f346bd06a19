"""The budget suite: whether calls end within their budget, and within a second of Ctrl-C.

Twelve programs with five budgets each, every call in a process of its own, store and cache of kernels empty,
as on the first day of a user.  A call keeps its budget where it takes at most 1.15 times as long.  Originals of ten
kinds whose calls take 1, 4, 15 and 60 s have three seconds: their call keeps its budget where it takes no longer than
that and one call.  Twenty calls are interrupted, the process alone or its whole group as a terminal does: such a one
keeps its time where no process of it is left after a second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from superopt.lab.bench import Result, Say, in_own_process, once, table_with_summary, wanted
from superopt.lab.bench.core import CASES
from superopt.lab.bench.programs.programs import build_case
from superopt.lab.bench.programs.slow import KINDS, original
from superopt.pipeline.jitted import jit
from superopt.pipeline.optimizer import optimize
from superopt.report.data import Report

PROGRAMS = (*CASES, "transformer_block", "mobilenet_v2")
BUDGETS_S = (10, 15, 20, 25, 30)
OVER = 1.15  # of the budget: what is left of a build or a proof that had begun
_TIMEOUT_S = 600.0
CALLS_S = (1, 4, 15, 60)
SLOW_BUDGET_S = 3
INTERRUPTED_S = 1.0  # from Ctrl-C to the end of all processes
SLOW, CTRL_C = "original", "ctrl-c"
_COLUMNS = (
    ("case", "program", ""),
    ("budget_s", "budget s", ".0f"),
    ("seconds", "seconds", ".1f"),
    ("call_s", "a call s", ".0f"),
    ("share", "of the budget", ".2f"),
    ("speedup", "speed-up", ".2f"),
    ("form", "returned", ""),
)


_MARK = "SUPEROPT_BENCH_RUN"  # in the environment of a run and of all processes that it starts
_BEGUN = "called"
INTERRUPTS = (  # program, how it is called, line that is waited for, seconds after it, whole group
    ("squeezenet", "optimize", _BEGUN, 0.0, True),
    ("squeezenet", "optimize", _BEGUN, 0.2, False),
    ("squeezenet", "optimize", "import", 0.7, True),
    ("squeezenet", "optimize", "plain", 0.3, False),
    ("squeezenet", "optimize", "rules", 1.5, True),
    ("squeezenet", "optimize", "explore", 0.5, False),
    ("squeezenet", "optimize", "explore", 4.0, True),
    ("squeezenet", "optimize", "contest", 0.2, False),
    ("squeezenet", "no-search", "plain", 0.3, True),
    ("squeezenet", "jit", _BEGUN, 2.0, False),
    ("bert_layer", "optimize", "plain", 2.0, False),
    ("original:callback", "optimize", _BEGUN, 3.0, True),
    ("original:callback", "jit", _BEGUN, 2.0, False),
    ("original:callback-loop", "optimize", _BEGUN, 4.0, False),
    ("original:io-callback", "no-search", _BEGUN, 2.0, True),
    ("original:fori", "optimize", _BEGUN, 3.0, False),
    ("original:products", "optimize", _BEGUN, 4.0, True),
    ("original:onnx-lrn", "optimize", _BEGUN, 0.3, False),
    ("original:onnx-lrn", "command", _BEGUN, 6.0, True),
    ("original:onnx-products", "no-search", _BEGUN, 3.0, False),
)


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Optimise every program with every budget; `budget` is not used, since budgets are what is measured."""
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        for call_s in CALLS_S:
            name = f"{SLOW}:{kind}:{call_s}"
            if wanted(name, cases):
                rows.append(_of_slow(name, seed))
                say(f"{name}: {rows[-1].get('failure') or format(rows[-1]['seconds'], '.1f')}")
    for number, (program, how, line, after_s, group) in enumerate(INTERRUPTS):
        name = f"{CTRL_C}:{program}:{how}:{line}+{after_s:g}{':group' if group else ''}"
        if wanted(name, cases):
            rows.append(once([__name__, name, seed], lambda name=name, number=number: _interrupted(name, number, seed)))
            say(f"{name}: {rows[-1].get('failure') or format(rows[-1]['seconds'], '.2f')}, {rows[-1].get('form')}")
    for case in PROGRAMS:
        for seconds in BUDGETS_S:
            name = f"{case}:{seconds}"
            if not wanted(name, cases):
                continue
            row = in_own_process("superopt.lab.bench.budget", case, f"{seconds}s", seed, _TIMEOUT_S)
            rows.append(row)
            say(f"{name}: {row.get('failure') or format(row['seconds'], '.1f')}")
    good = [row for row in rows if "failure" not in row]
    shares = sorted(row["share"] for row in good if "share" in row)
    summary = {
        "runs": float(len(rows)),
        "kept": sum(row.get("kept", False) for row in good) / len(rows) if rows else 0.0,
        "largest_share": max(shares, default=0.0),
        "failed": float(len(rows) - len(good)),
    }
    for prefix in (SLOW, CTRL_C):
        some = [row for row in rows if row["case"].startswith(prefix)]
        summary |= {f"{prefix}: kept": float(sum(row.get("kept", False) for row in some))} if some else {}
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def _of_slow(name: str, seed: int) -> dict[str, Any]:
    """The row of an original that takes long; processes that it left are a failure."""
    mark = uuid.uuid4().hex
    row = in_own_process(
        "superopt.lab.bench.budget", name, f"{SLOW_BUDGET_S}s", seed, _TIMEOUT_S, environment={_MARK: mark}
    )
    left = _left(mark, time.monotonic() + INTERRUPTED_S)
    return {**row, "failure": f"{len(left)} processes are left"} if left and "failure" not in row else row


def _interrupted(name: str, number: int, seed: int) -> dict[str, Any]:
    """The row of a call that is interrupted: when the last of its processes has ended, and how it ended."""
    program, how, line, after_s, group = INTERRUPTS[number]
    mark = uuid.uuid4().hex
    command = [sys.executable, "-P", "-u", "-m", "superopt.lab.bench.budget", f"{CTRL_C}:{program}", how, str(seed)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            env={**os.environ, _MARK: mark, "XDG_CACHE_HOME": folder},
        )  # fmt: skip
        assert process.stdout is not None
        told = ""
        while told != line:
            told = process.stdout.readline().partition(":")[0].strip()
            if not told:
                return {"case": name, "failure": f"it ended before the line {line!r}"}
        time.sleep(after_s)
        begin_s = time.monotonic()
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        try:
            rest, _ = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return {"case": name, "failure": f"it had not ended after {_TIMEOUT_S:.0f} s"}
        ended_s = time.monotonic() - begin_s
        left = _left(mark, begin_s + max(INTERRUPTED_S, ended_s + INTERRUPTED_S))
        seconds = time.monotonic() - begin_s
        errors.seek(0)
        words = errors.read().strip().splitlines()[-1:]
    row = {"case": name, "seconds": seconds, "ended_s": ended_s, "status": process.returncode, "words": words}
    forms = {-signal.SIGINT: "KeyboardInterrupt", 130: "KeyboardInterrupt", 0: f"a result: {rest.strip()[-80:]}"}
    if how == "jit":
        forms[1] = "the error of jax.jit"  # to which a function with callbacks is left
    row["form"] = forms.get(process.returncode, f"status {process.returncode}: {' '.join(words)}")
    kept = seconds <= INTERRUPTED_S and not left and process.returncode in forms
    return {**row, "left": len(left), "kept": kept}


def _left(mark: str, end_s: float) -> list[int]:
    """Processes of this run that are there at this instant; none as soon as there are none."""
    while True:
        left: list[int] = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{_MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    left.append(int(entry.name))
        if not left or time.monotonic() >= end_s:
            return left
        time.sleep(0.02)


def measure_case(case: str, budget: str, seed: int) -> dict[str, Any]:
    """The wall time of one call in this process, with nothing stored."""
    if case.startswith(SLOW):
        _, kind, text = case.split(":")
        fn, args = original(kind, float(text))
        row, _ = _timed(case, budget, lambda: optimize(fn, *args, budget=budget, seed=seed).report)
        call_s = float(text)
        return {**row, "call_s": call_s, "kept": row["seconds"] <= row["budget_s"] + call_s}
    program = build_case(case, seed)
    row, report = _timed(
        case, budget,
        lambda: optimize(program.fn, program.params, *program.inputs, frozen=0, budget=budget, seed=seed).report,
    )  # fmt: skip
    share = row["seconds"] / row["budget_s"]
    more = {"share": share, "kept": share <= OVER, "speedup": report.speedup.ratio, "notes": list(report.notes)}
    return {**row, **more}


def _timed(case: str, budget: str, call: Callable[[], Report]) -> tuple[dict[str, Any], Report]:
    """The part of a row that all cases have, and the report of the call."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        begin = time.perf_counter()
        report = call()
        seconds = time.perf_counter() - begin
    row = {
        "case": case,
        "budget_s": float(budget.removesuffix("s")),
        "seconds": seconds,
        "form": "original" if report.original_returned else str(report.implementation.get("form") or "XLA"),
        "verdict": report.verdict,
        "stages": {stage.name: round(stage.seconds, 2) for stage in report.stages},
    }
    return row, report


def _be_interrupted(case: str, how: str, seed: int) -> None:
    """The call that is interrupted, with the line of each stage on the terminal."""
    program = case.removeprefix(f"{CTRL_C}:")
    if program.startswith(SLOW):
        fn, args = original(program.partition(":")[2], CALLS_S[-1])
        given: dict[str, Any] = {}
    else:
        net = build_case(program, seed)
        fn, args, given = net.fn, (net.params, *net.inputs), {"frozen": 0}
    print(_BEGUN, flush=True)
    if how == "command":
        os.execv(sys.executable, [sys.executable, "-P", "-m", "superopt", "optimize", str(fn), "--budget", "30s"])
    elif how == "jit":
        jit(fn, budget="30s", progress=print)(*args)
    else:
        print(
            optimize(
                fn, *args, budget="30s", seed=seed, search=how != "no-search", progress=print, **given
            ).report.verdict
        )


if __name__ == "__main__" and sys.argv[1].startswith(CTRL_C):
    _be_interrupted(sys.argv[1], sys.argv[2], int(sys.argv[3]))
elif __name__ == "__main__":
    print(json.dumps(measure_case(sys.argv[1], sys.argv[2], int(sys.argv[3])), default=str))
