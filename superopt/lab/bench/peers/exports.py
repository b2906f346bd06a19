"""The suite exports: models as exporters and quantisers write them, against `jax.jit` of themselves and ONNX Runtime.

    PYTHON tests/upstream/exports.py --out DIR
    superopt bench --suite exports --models DIR --peer-python PYTHON --budget 20s --keep FILE --json

Every model, in each of its forms (float32, float16, QDQ, QOperator, dynamic int8), is optimised with and without
search.  Each time it runs in a process of its own with nothing stored.  It is timed there interleaved with `jax.jit` of
the model, weights as arguments.  A program that looks slower than `NOT_SLOWER` is timed afresh: `below` counts the
confirmed.

A result is wrong where two conditions hold.  It is far from ONNX Runtime's of the same file (`Tolerance`, of float16
for the form float16).  And it is farther than that from the float32 form (from a float64 evaluation, for the float32
form itself).  For two right programs of int8 differ by steps of rounding, and every layer adds to that.  A deep network
may even differ from itself by as much: where one looks wrong, ONNX Runtime also gets inputs that are moved in their
last places, and the largest of its distances is what counts.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from superopt.contest.checks import OriginalRuns
from superopt.errors import SuperoptError
from superopt.frontends.onnx.frontend import import_onnx, load_model
from superopt.lab.bench import NO_SEARCH, Result, Say, in_own_process, table_with_summary
from superopt.lab.bench.peers.processes import framework
from superopt.lab.bench.peers.serve import inputs_of
from superopt.lab.bench.peers.suite import as_types, case_of, entries, files_of, folder_of
from superopt.lab.bench.timing import NOT_SLOWER, median, until_decided
from superopt.machine.budget import parse_budget
from superopt.machine.speedup import Speedup
from superopt.measure.conditioning import with_other_last_digits
from superopt.measure.numerics import Tolerance, output_errors
from superopt.pipeline.optimizer import optimize
from superopt.workshop.job import OutputError

ROUNDS, MOST_ROUNDS = 6, 60  # fewer rounds do not give a 95 % interval of the median
_MOST_S = 120.0  # of rounds: a quantised convolution by groups takes XLA up to 18 s a call (EfficientNet-B0)
FARTHER = 1.25  # factor over the distance of ONNX Runtime's results
NEIGHBOURS = 8  # draws of inputs with other last digits
_SAMPLE_S = 0.04
_TIMEOUT_S, _ANSWER_S = 1800.0, 600.0
_REFERENCE = "float32.onnx"
_COLUMNS = (
    ("case", "model", ""),
    ("jax_ms", "jax ms", ".3g"),
    ("ours_ms", "ours ms", ".3g"),
    ("ratio", "over jax", ".2f"),
    ("low", "low", ".2f"),
    ("high", "high", ".2f"),
    ("difference", "from ONNX Runtime", ".1e"),
    ("error", "ours from the truth", ".1e"),
    ("peer_error", "ONNX Runtime from it", ".1e"),
    ("seconds", "seconds", ".0f"),
    ("wrong", "wrong", "d"),
    ("failure", "failure", ""),
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
    """Measure every model of the folder in each of its forms, with search and without (without `search`: without)."""
    folder, python = folder_of(models), peer_python or sys.executable
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="superopt-bench-") as results:
        for entry in entries(folder, cases):
            model, inputs = files_of(folder, entry)
            peer = {p: _peer(p, inputs, Path(results), python) for p in _compared(model)}
            for flags in ((), (NO_SEARCH,)) if search else ((NO_SEARCH,),):
                case = " ".join((case_of(entry), *flags))
                asked = json.dumps([str(model), str(inputs), *peer.values()])
                limit_s = (parse_budget(budget).seconds or 0.0) + _TIMEOUT_S
                row = in_own_process(
                    "superopt.lab.bench.peers.exports",
                    case,
                    budget,
                    seed,
                    limit_s,
                    flags=flags,
                    environment={_ASKED: asked},
                )
                if row.get("wrong"):
                    row |= _judged_again(row, _neighbours(model, inputs, Path(results), python), peer.values())
                rows.append(row)
                say(f"{case}: {row['failure'] if 'failure' in row else _said(row)}")
    summary = summarise(rows)
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


_ASKED = "SUPEROPT_BENCH_EXPORT"


def _said(row: Mapping[str, Any]) -> str:
    return f"{row['jax_ms']:.3g} -> {row['ours_ms']:.3g} ms, {row['ratio']:.2f}{', WRONG' if row['wrong'] else ''}"


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Least ratio to `jax.jit`, number of rows below the bar for certain, wrong ones, failures; files and rows."""
    good = [row for row in rows if "failure" not in row]
    return {
        "min_vs_jax": min((row["ratio"] for row in good), default=0.0),
        "below": float(sum(row["below"] for row in good)),
        "wrong": float(sum(row["wrong"] for row in good)),
        "unjudged": float(sum(row["difference"] is None for row in good)),
        "failed": float(len(rows) - len(good)),
        "models": float(len({row["case"].replace(f" {NO_SEARCH}", "") for row in rows})),
        "rows": float(len(rows)),
    }


def _compared(model: Path) -> tuple[Path, ...]:
    """The file, and that of the float32 form."""
    return tuple(dict.fromkeys((model, model.with_name(_REFERENCE))))


def _peer(model: Path, inputs: Path, folder: Path, python: str) -> str:
    """The file of ONNX Runtime's results of a model; empty where it fails."""
    path = folder / f"{model.parent.name}-{model.stem}.npz"
    if not path.exists():
        try:
            with framework("onnxruntime", python, model, inputs, _ANSWER_S) as served:
                np.savez(path, *served.outputs())
        except SuperoptError:
            return ""
    return str(path)


def _neighbours(model: Path, inputs: Path, folder: Path, python: str) -> list[str]:
    """Files of ONNX Runtime's results of a model for inputs that differ from these in their last places."""
    answers: list[str] = []
    for seed in range(NEIGHBOURS):
        near = folder / f"{model.parent.name}-{model.stem}-near{seed}"
        near.mkdir(exist_ok=True)
        moved = near / "inputs.npz"
        generator = np.random.default_rng(seed)
        arrays: dict[str, Any] = {
            name: with_other_last_digits(x, generator).astype(x.dtype) for name, x in inputs_of(str(inputs)).items()
        }
        np.savez(moved, **arrays)
        answers.append(_peer(model, moved, near, python))
    return answers


def _judged_again(row: Mapping[str, Any], neighbours: Sequence[str], peers: Iterable[str]) -> dict[str, Any]:
    """Hold a row that looks wrong against the largest distance of ONNX Runtime's results for neighbours of the inputs.

    Args:
        row: its distance of our results from those of the float32 form.
        neighbours: files of results for neighbours of the inputs.
        peers: files of results of this file, and of those of the float32 form where that is another.
    """
    _, *other = peers
    if not other or not other[0] or row["error"] is None:
        return {}
    truth = list(inputs_of(other[0]).values())
    distances = [_distance(truth, list(inputs_of(path).values())) for path in neighbours if path]
    farthest = max([x for x in distances if x is not None and math.isfinite(x)], default=0.0)
    most = max(farthest, row["peer_error"] or 0.0)
    return {"peer_error": most, "wrong": not row["error"] <= FARTHER * most}


def measure_case(
    model: Path, inputs: Path, peers: Sequence[str], budget: str, seed: int, search: bool
) -> dict[str, Any]:
    """Optimise a model in this process, check its results, and time it beside `jax.jit` of it."""
    given = list(inputs_of(str(inputs)).values())
    begin = time.perf_counter()
    made = optimize(model, *given, budget=budget, seed=seed, search=search, store=False)
    seconds = time.perf_counter() - begin
    loaded = load_model(model, like=tuple(given))
    with jax.enable_x64(True):
        params = {name: jax.numpy.asarray(x) for name, x in loaded.params.items()}
        wide = [jax.numpy.asarray(x) for x in given]
        jitted = jax.jit(loaded.fn).lower(params, *wide).compile()
    arrays = [jax.numpy.asarray(x) for x in given]

    def by_jax() -> Any:
        return jitted(params, *wide)

    def ours() -> Any:
        return made(*arrays)

    got, straight = ([np.asarray(x) for x in jax.tree.leaves(call())] for call in (ours, by_jax))
    row = _judged(model, given, got, straight, peers)

    def timed(seed: int) -> tuple[dict[str, list[float]], Speedup]:
        samples, (ratio,) = until_decided(
            {"jax": by_jax, "ours": ours}, [("jax", "ours", NOT_SLOWER)],
            rounds=ROUNDS, most_rounds=MOST_ROUNDS, sample_s=_SAMPLE_S, seed=seed, most_s=_MOST_S,
        )  # fmt: skip
        return samples, ratio

    samples, ratio = timed(seed)
    if ratio.high < NOT_SLOWER:  # it has to be so twice
        samples, ratio = timed(seed + MOST_ROUNDS)
    return row | {
        "jax_ms": 1e3 * median(samples["jax"]),
        "ours_ms": 1e3 * median(samples["ours"]),
        "ratio": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
        "below": ratio.high < NOT_SLOWER,
        "rounds": len(samples["jax"]),
        "seconds": seconds,
        "verdict": made.report.verdict,
        "stages": {stage.name: round(stage.seconds, 2) for stage in made.report.stages},
        "kernels": dict(made.report.implementation),
    }


def _judged(
    model: Path,
    given: Sequence[np.ndarray],
    got: Sequence[np.ndarray],
    straight: Sequence[np.ndarray],
    peers: Sequence[str],
) -> dict[str, Any]:
    """Distances of results, and whether ours are wrong.

    Args:
        model: the file.
        given: its inputs.
        got: our results.
        straight: those of `jax.jit`.
        peers: files of ONNX Runtime's results of this file, and of those of the float32 form where that is another.
    """
    from_peer = list(inputs_of(peers[0]).values()) if peers[0] else None
    if model.name == _REFERENCE:
        yardstick = OriginalRuns.of(import_onnx(model, *given)).truth
    else:
        yardstick = list(inputs_of(peers[-1]).values()) if peers[-1] else None
    like = from_peer or straight
    errors = output_errors(like, as_types(like, got))
    half = model.stem == "float16"
    kinds = ["float16" if half and x.dtype.kind == "f" else str(x.dtype) for x in like]
    near = all(Tolerance().accepts(e, kind) for e, kind in zip(errors, kinds, strict=False))
    error = _distance(yardstick, got)
    peer_error = _distance(yardstick, like)
    bound = FARTHER * peer_error if peer_error is not None and math.isfinite(peer_error) else 0.0
    wrong = not near and (error is None or not error <= bound)
    return {
        "difference": _most(errors) if from_peer else None,
        "from_jax": _most(output_errors(straight, as_types(straight, got))),
        "error": error,
        "peer_error": peer_error,
        "wrong": wrong,
    }


def _distance(yardstick: Sequence[np.ndarray] | None, got: Sequence[np.ndarray]) -> float | None:
    """Largest distance of an output from the reference's, in the reference's types; None without a reference."""
    if yardstick is None or len(yardstick) != len(got):
        return None
    return _most(output_errors(yardstick, [x.astype(t.dtype) for x, t in zip(got, yardstick, strict=True)]))


def _most(errors: Sequence[OutputError]) -> float:
    return max((e.normwise for e in errors), default=0.0)


if __name__ == "__main__":
    _model, _inputs, *_peers = json.loads(os.environ[_ASKED])
    _row = measure_case(Path(_model), Path(_inputs), _peers, sys.argv[2], int(sys.argv[3]), NO_SEARCH not in sys.argv)
    print(json.dumps({"case": sys.argv[1], **_row}, default=str))
