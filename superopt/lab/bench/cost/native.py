"""The suite native-program: programs as static plans of our kernels, against the same kernels inside XLA.

    superopt bench --suite native-program --no-search --models DIR --keep FILE --json

The programs are those of the suite native and, where a folder is named, the models in it as they are exported
(float32).  Each is optimised in a process of its own and lowered.  The native program is timed beside the same program
inside XLA, as one call inside XLA, and beside `jax.jit` of the original, interleaved in one process.  A program is a
failure where one bit of a result is another one.  `overhead_us` is a call from NumPy beyond the same call bound to its
arrays, of the fastest rounds; pages of new results are in it.  `lowering_ms` is a plan made, checked and loaded again,
its code compiled already.  What XLA computes itself is counted in `left`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from superopt.backends.mixed import MixedExecutable
from superopt.frontends.onnx.frontend import load_model
from superopt.lab.bench import NO_SEARCH, Result, Say, geomean, in_own_process, table_with_summary
from superopt.lab.bench.core import CASES, LIGHT, SMALL
from superopt.lab.bench.peers.serve import inputs_of
from superopt.lab.bench.peers.suite import case_of, entries, files_of, folder_of
from superopt.lab.bench.programs.programs import build_case
from superopt.lab.bench.timing import NOT_SLOWER, median, until_decided
from superopt.machine.extras import need
from superopt.native.lowered import Lowered
from superopt.native.lowering import lower
from superopt.native.planner import largest_live_bytes
from superopt.native.running import NativeProgram
from superopt.pipeline.optimizer import optimize
from superopt.returned.optimized import Optimized

FORM = "float32"
_ROUNDS, _MOST_ROUNDS, _SAMPLE_S = 11, 44, 0.05
_TIMEOUT_S = 900.0
_ASKED = "SUPEROPT_BENCH_NATIVE"
_COLUMNS = (
    ("case", "program", ""),
    ("jax_ms", "jax ms", ".3g"),
    ("hosted_ms", "inside XLA ms", ".3g"),
    ("native_ms", "native ms", ".3g"),
    ("vs_hosted", "over inside XLA", ".3f"),
    ("low", "low", ".3f"),
    ("high", "high", ".3f"),
    ("fastest", "of the fastest rounds", ".3f"),
    ("inside_vs_hosted", "one call inside", ".3f"),
    ("vs_jax", "over jax", ".2f"),
    ("overhead_us", "overhead us", ".1f"),
    ("arena_over_live", "arena over live", ".3f"),
    ("arena_mb", "arena MB", ".3g"),
    ("buffers_mb", "buffers MB", ".3g"),
    ("lowering_ms", "lowering ms", ".3g"),
    ("left", "left to XLA", ""),
    ("failure", "failure", ""),
)


def run(
    *, budget: str, cases: Sequence[str], seed: int, say: Say, models: str | None = None, search: bool = True
) -> Result:
    """Lower and measure every program, each in a process of its own."""
    folder = None if models is None else folder_of(models)
    asked: dict[str, dict[str, str]] = {name: {} for name in _named(cases)}
    if not set(LIGHT).isdisjoint(asked):
        need("onnx", "the suite native-program with its networks")
    for entry in () if folder is None else entries(folder, cases):
        if entry["form"] == FORM:
            assert folder is not None
            asked[case_of(entry)] = {_ASKED: json.dumps([str(path) for path in files_of(folder, entry)])}
    rows: list[dict[str, Any]] = []
    flags = () if search else (NO_SEARCH,)
    module = "superopt.lab.bench.cost.native"
    for case, environment in asked.items():
        rows.append(in_own_process(module, case, budget, seed, _TIMEOUT_S, flags=flags, environment=environment))
        say(f"{case}: {_said(rows[-1])}")
    summary = summarise(rows)
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def _named(cases: Sequence[str]) -> list[str]:
    return [x for x in (*CASES, *SMALL) if any(text in x for text in cases)] if cases else list(CASES)


def _said(row: Mapping[str, Any]) -> str:
    if "failure" in row:
        return f"failed: {row['failure']}"
    return row["left"] or f"{row['hosted_ms']:.3g} -> {row['native_ms']:.3g} ms, {row['vs_hosted']:.3f}"


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Ratios of those that have a plan, the largest arena over what is live at once, and numbers of programs."""
    good = [row for row in rows if "failure" not in row]
    timed = [row for row in good if not row["left"]]
    return {
        "geomean_vs_hosted": geomean([row["vs_hosted"] for row in timed]),
        "min_vs_hosted": min((row["vs_hosted"] for row in timed), default=0.0),
        "geomean_fastest": geomean([row["fastest"] for row in timed]),
        "slower": float(sum(row["high"] < NOT_SLOWER for row in timed)),
        "geomean_inside_vs_hosted": geomean([row["inside_vs_hosted"] for row in timed]),
        "geomean_vs_jax": geomean([row["vs_jax"] for row in timed]),
        "max_overhead_us": max((row["overhead_us"] for row in timed), default=0.0),
        "max_arena_over_live": max((row["arena_over_live"] for row in timed), default=0.0),
        "max_lowering_ms": max((row["lowering_ms"] for row in timed), default=0.0),
        "native": float(len(timed)),
        "left": float(len(good) - len(timed)),
        "failed": float(len(rows) - len(good)),
    }


def measure_case(case: str, budget: str, seed: int, search: bool, files: Sequence[str] = ()) -> dict[str, Any]:
    """Optimise a program in this process, lower it, compare its results, and time it."""
    made, arguments, by_jax = _model(files, budget, seed, search) if files else _program(case, budget, seed, search)
    executable = made.executable
    if not isinstance(executable, MixedExecutable):
        return {"case": case, "left": "all", "verdict": made.report.verdict}
    program = executable.native
    if not isinstance(program, NativeProgram):
        return {"case": case, "left": str(program), "verdict": made.report.verdict}
    begin = time.perf_counter()
    lowered = lower(executable.mix.program, program.lowered.kernels.values())
    assert isinstance(lowered, Lowered)
    NativeProgram(lowered, executable.prepared, program.hosted)
    lowering_s = time.perf_counter() - begin
    leaves = made.imported.flatten(arguments)
    live = [jax.device_put(leaves[i]) for i in made.imported.live]
    passed = [np.asarray(x) for x in live]
    inside, hosted = executable.jit(program.inside), executable.jit(program.hosted)
    bound, bound_results = program.bind(*passed)
    calls: dict[str, Callable[[], Any]] = {
        "jax": by_jax,
        "hosted": lambda: hosted(*live, *executable.prepared),
        "native": lambda: program(*passed),
        "inside": lambda: inside(*live, *executable.prepared),
        "bound": bound,
    }
    bound()
    want = calls["hosted"]()
    for results in (calls["native"](), calls["inside"](), bound_results):
        for a, b in zip(results, want, strict=True):
            if np.asarray(a).tobytes() != np.asarray(b).tobytes():
                return {"case": case, "failure": "results differ from those inside XLA"}
    bars = [("hosted", "native", NOT_SLOWER), ("hosted", "inside", NOT_SLOWER)]
    samples, (native, one) = until_decided(
        calls, bars, rounds=_ROUNDS, most_rounds=_MOST_ROUNDS, sample_s=_SAMPLE_S, seed=seed
    )
    ms = {f"{name}_ms": 1e3 * median(seconds) for name, seconds in samples.items()}
    return {
        "case": case,
        "left": "",
        **ms,
        "vs_hosted": native.ratio,
        "low": native.low,
        "high": native.high,
        "fastest": min(samples["hosted"]) / min(samples["native"]),
        "inside_vs_hosted": one.ratio,
        "vs_jax": ms["jax_ms"] / ms["native_ms"],
        "overhead_us": 1e6 * (min(samples["native"]) - min(samples["bound"])),
        "lowering_ms": 1e3 * lowering_s,
        "rounds": len(samples["native"]),
        "verdict": made.report.verdict,
        **_memory(program.lowered),
    }


def _memory(lowered: Lowered) -> dict[str, Any]:
    """The steps of a plan, and its arena beside what is live at once and what all values together take."""
    live = largest_live_bytes(lowered.lives)
    return {
        "steps": len(lowered.plan.steps),
        "arena_mb": lowered.plan.arena_bytes / 1e6,
        "arena_over_live": lowered.plan.arena_bytes / live if live else 1.0,
        "buffers_mb": sum([x.room_bytes for x in lowered.lives]) / 1e6,
    }


_Measured = tuple[Optimized[Any, Any], Sequence[Any], Callable[[], Any]]
"""An optimised program, its arguments, and the call of the original."""


def _program(case: str, budget: str, seed: int, search: bool) -> _Measured:
    net = build_case(case, seed)
    arguments = jax.tree.map(jax.numpy.asarray, (net.params, *net.inputs))
    made = optimize(net.fn, *arguments, frozen=0, budget=budget, seed=seed, store=False, kernels=True, search=search)
    jitted = jax.jit(net.fn)
    return made, arguments, lambda: jitted(*arguments)


def _model(files: Sequence[str], budget: str, seed: int, search: bool) -> _Measured:
    model, given = Path(files[0]), list(inputs_of(files[1]).values())
    made = optimize(model, *given, budget=budget, seed=seed, search=search, store=False)
    loaded = load_model(model, like=tuple(given))
    with jax.enable_x64(True):
        params = {name: jax.numpy.asarray(x) for name, x in loaded.params.items()}
        wide = [jax.numpy.asarray(x) for x in given]
        jitted = jax.jit(loaded.fn).lower(params, *wide).compile()
    return made, [jax.numpy.asarray(x) for x in given], lambda: jitted(params, *wide)


if __name__ == "__main__":
    _files = json.loads(os.environ.get(_ASKED, "[]"))
    _row = measure_case(sys.argv[1], sys.argv[2], int(sys.argv[3]), NO_SEARCH not in sys.argv, _files)
    print(json.dumps(_row, default=str))
