"""Pallas kernels on a GPU: every kind against float64, then tuned and timed against XLA.

First each operator is computed at small odd sizes under all of its schedules and compared with the reference
interpreter in float64.  Without a GPU, kernels are interpreted, under the first two schedules, and nothing is timed.
On a GPU each operator is then tuned by timing, its schedule is fixed, and it is timed afresh in interleaved rounds
beside XLA's version (and cuDNN's attention).  Ratios are theirs over ours; XLA has the same precision of products.
`untuned` is the same ratio for the first schedule of the space, the one that programs get.  `roofline` is the price of
`costmodel.model.card` over the measured time.

    superopt bench --suite pallas [--case TEXT ...] [--json]

Summary: `checked` and `wrong` schedules, `*_vs_xla` geometric means by kind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from costmodel.model.card import CardRoofline, card_of
from superopt.errors import SuperoptError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, topological
from superopt.ir.interp import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.pallas import space
from superopt.kernels.pallas.lower import lower
from superopt.kernels.schedule.trace import apply
from superopt.lab.bench import Result, Say, geomean, table, wanted
from superopt.lab.bench.pallas.tune import all_built, attempt, chained, interleaved, tune
from superopt.lab.bench.programs.pallas_cases import CASES, PallasCase

ROUNDS = 15
CACHE_BYTES = 400_000_000  # data of different runs in one call, so that no level of cache holds it
LONG_S = 5e-3  # of runs in one call by their price, since a call takes 0.1 ms itself; at most so many runs
MOST = 64
_CHECKED = (("case", "operator", ""), ("checked", "schedules", "d"), ("worst", "error", ".1e"))
_COLUMNS = (
    ("case", "operator", ""),
    ("ours_us", "ours, us", ".4g"),
    ("xla_us", "XLA, us", ".4g"),
    ("xla", "XLA", ".2f"),
    ("guess", "untuned", ".2f"),
    ("peer", "cuDNN", ".2f"),
    ("tflops", "TFLOP/s", ".0f"),
    ("gbytes", "GB/s", ".0f"),
    ("priced", "roofline", ".2f"),
    ("error", "error", ".1e"),
    ("tried", "tried", "d"),
)


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Check and, on a GPU, time every case."""
    gpu = jax.default_backend() == "gpu"
    rows: list[dict[str, Any]] = []
    checked: dict[Any, dict[str, Any]] = {}  # cases of several sizes are one case here
    for case in CASES:
        if not wanted(case.name, cases):
            continue
        key = (case.name.split()[0], case.fn, case.small, case.dtype, case.precision)
        fresh = key not in checked
        if fresh:
            checked[key] = check(case, seed, gpu)
        row: dict[str, Any] = {"case": case.name, "kind": case.kind, **checked[key], "fresh": fresh}
        if gpu:
            row |= timed(case, seed)
        rows.append(row)
        say(_line(row))
    device = jax.devices()[0].device_kind
    summary = summarise(rows)
    head = f"{device}, jax {jax.__version__}" if gpu else "no GPU: kernels interpreted, nothing timed"
    text = f"{head}\n\n{table(rows, _COLUMNS if gpu else _CHECKED)}\n\n" + ", ".join(
        f"{k} {v:.4g}" for k, v in summary.items()
    )
    return rows, summary, text


def _line(row: dict[str, Any]) -> str:
    times = f"{row['ours_us']:.4g} us, XLA {row['xla']:.2f}" if "xla" in row else row.get("failure", "")
    return f"{row['case']}: {row['checked']} schedules, error {row['worst']:.1e} {row.get('wrong') or ''} {times}"


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Flat figures of all rows."""
    summary: dict[str, float] = {
        "checked": sum(row["checked"] for row in rows if row["fresh"]),
        "wrong": sum(len(row["wrong"]) for row in rows if row["fresh"]) + sum("failure" in row for row in rows),
    }
    for kind in dict.fromkeys(row["kind"] for row in rows):
        ratios = [row["xla"] for row in rows if row["kind"] == kind and "xla" in row]
        if ratios:
            summary[f"{kind}_vs_xla"] = geomean(ratios)
    return summary


def check(case: PallasCase, seed: int, every: bool) -> dict[str, Any]:
    """Check schedules of a case at its small sizes against float64: count, worst error, and the wrong ones."""
    arguments = case.arguments(seed, small=True)
    program, outputs, names = loop_program(case, arguments)
    known = dict(zip(names, arguments, strict=True))
    wanted = [np.asarray(x, np.float64) for x in evaluate(outputs, known, wide=True)]
    arrays = [known[b.name] for b in program.buffers if b.scope in ("input", "frozen")]
    options = space.candidates(program, "out0", case.precision)
    options = options if every else options[:2]
    makes = [lambda trace=trace: lower(apply(program, trace)) for trace in options]
    worst, wrong = 0.0, []
    for trace, code in zip(options, all_built(makes, *arrays), strict=True):
        value = code if isinstance(code, str) else attempt(lambda code=code: code(*arrays))
        if isinstance(value, str):
            wrong.append({"trace": trace, "failure": value})
            continue
        error = max(_distance(np.asarray(x, np.float64), y) for x, y in zip(value, wanted, strict=True))
        worst = max(worst, error)
        if not error <= case.tolerance:
            wrong.append({"trace": trace, "failure": f"error {error:.2e}"})
    return {"checked": len(options), "worst": worst, "wrong": wrong}


def timed(case: PallasCase, seed: int, rounds: int = ROUNDS, most: int | None = None) -> dict[str, Any]:
    """Tune a case over at most so many schedules, then time it afresh beside XLA."""
    first = tuple(jnp.asarray(x) for x in case.arguments(seed + 1))
    program, outputs, names = loop_program(case, first)
    graph = Graph(tuple(x for x in topological(outputs) if x.op == "input"), outputs)
    priced_s = float(CardRoofline(card_of(jax.devices()[0].device_kind)).price([graph])[0])
    runs = max(2, min(MOST, math.ceil(LONG_S / priced_s)))
    count = min(runs, max(2, -(-CACHE_BYTES // case.bytes_moved)))
    apart = [first, *(tuple(jnp.roll(x, j) for x in first) for j in range(1, count))]
    sets = list(itertools.islice(itertools.cycle(apart), runs))
    order = [names.index(b.name) for b in program.buffers if b.scope in ("input", "frozen")]
    ours = [tuple(arrays[j] for j in order) for arrays in sets]
    try:
        trace, trials = tune(program, ours, precision=case.precision, most=most)
    except SuperoptError as reason:
        return {"failure": str(reason)}
    calls = {"ours": (chained(lower(apply(program, trace))), ours), "xla": (chained(_precise(case)), sets)}
    if case.peer is not None:
        calls["peer"] = (chained(case.peer[1]), sets)
    for name in list(calls):
        try:
            jax.block_until_ready(calls[name][0](calls[name][1]))
        except (NotImplementedError, ValueError, RuntimeError) as reason:
            if name != "peer":
                return {"failure": f"{name}: {reason}"[:300]}
            del calls[name]
    seconds = dict(zip(calls, _seconds(list(calls.values()), rounds), strict=True))
    result = calls["ours"][0](ours[:1])[0][0]
    exact = jax.jit(_exact(case))(*first)
    guess = space.candidates(program, "out0", case.precision)[0]
    guessed = [t.seconds for t in trials if t.trace == guess and t.seconds is not None]
    tuned = [t.seconds for t in trials if t.trace == trace and t.seconds is not None]
    return {
        "ours_us": seconds["ours"] * 1e6,
        "xla_us": seconds["xla"] * 1e6,
        "xla": seconds["xla"] / seconds["ours"],
        "guess": seconds["xla"] / seconds["ours"] * tuned[0] / guessed[0] if guessed and tuned else None,
        "priced": priced_s / seconds["ours"],
        "priced_xla": priced_s / seconds["xla"],
        **({"peer": seconds["peer"] / seconds["ours"]} if "peer" in seconds else {}),
        "tflops": case.flops / seconds["ours"] / 1e12 if case.flops else None,
        "gbytes": None if case.flops else case.bytes_moved / seconds["ours"] / 1e9,
        "error": float(_distance(result.astype(exact.dtype), exact)),
        "tried": len(trials),
        "failed": [t.failure for t in trials if t.seconds is None],
        "trace": trace,
        "trials": [(t.seconds, t.trace) for t in trials],
    }


def _seconds(calls: Sequence[tuple[Any, Sequence[Any]]], rounds: int) -> list[float]:
    """Seconds of one run: the time of a call of all runs over that of a call of one, so that no call itself counts."""
    makes = [lambda fn=fn, args=args: fn(args) for fn, sets in calls for args in (sets, sets[:1])]
    times = [median(s) for s in interleaved(makes, rounds)]
    return [
        (long_s - short_s) / (len(sets) - 1)
        for (_, sets), long_s, short_s in zip(calls, times[::2], times[1::2], strict=True)
    ]


def loop_program(case: PallasCase, arguments: Sequence[Any]) -> tuple[Any, Any, list[str]]:
    """The loop program of a case, the outputs of its graph, and the names of its arguments."""
    graph = import_function(case.fn, tuple(arguments)).graph
    return from_graph(graph.outputs), graph.outputs, [n["name"] for n in graph.inputs]


def _precise(case: PallasCase) -> Any:
    """The operator in XLA with products of the case's precision."""
    level = {"ieee": "highest", "tf32x3": "high", "tf32": "tensorfloat32"}[case.precision]

    def fn(*arrays: Any) -> Any:
        with jax.default_matmul_precision(level if case.dtype == "float32" else "default"):
            return case.fn(*arrays)

    return fn


def _exact(case: PallasCase) -> Any:
    """The operator in float32 with exact products: the reference at large sizes."""

    def fn(*arrays: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return case.fn(*[x if case.dtype == "int8" else x.astype(jax.numpy.float32) for x in arrays])

    return fn


def _distance(found: Any, wanted: Any) -> Any:
    """Norm of the difference over the norm of the reference."""
    xp = np if isinstance(found, np.ndarray) else jnp
    wide = np.float64 if xp is np else jnp.float32
    difference = (found - wanted).astype(wide)
    return xp.linalg.norm(difference.ravel()) / xp.maximum(xp.linalg.norm(wanted.astype(wide).ravel()), 1e-30)
