"""One program, or one example, in a process of its own: the last line printed is its row as JSON.

python -m tests.upstream.measure NAME BUDGET SEED first FOLDER      optimise, compare, time, save in FOLDER
python -m tests.upstream.measure NAME BUDGET SEED second FOLDER     the same call again, and the saved file loaded
python -m tests.upstream.measure NAME BUDGET SEED example           under jax.jit and under superopt.jit
"""

from __future__ import annotations

import functools
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import superopt
from superopt.lab.bench.timing import median, until_decided
from superopt.measure.numerics import Tolerance, output_errors
from superopt.measure.stats import paired_ratio

NOT_SLOWER = 0.97
_ROUNDS, _MOST_ROUNDS, _SAMPLE_S = 21, 105, 0.04
_FROM_STORE = "answered from the store"


def first(name: str, budget: str, seed: int, folder: Path) -> dict[str, Any]:
    """Optimise a program in an empty cache, compare it with `jax.jit`, time both, and save it."""
    built = _made(name)
    begin = time.perf_counter()
    fast = superopt.optimize(built.fn, *built.args, kwargs=built.kwargs, budget=budget, seed=seed, **built.options)
    row: dict[str, Any] = {"case": name, "seconds": time.perf_counter() - begin}
    row["wrong"] = difference(jax.jit(built.fn)(*built.args, **built.kwargs), fast(*built.args, **built.kwargs))
    row |= timed(built, fast, seed)
    row["not_saved"] = _told(lambda: fast.save(_file(folder)))
    report = fast.report
    return row | {
        "verdict": report.verdict,
        "notes": list(report.notes),
        "opaque": dict(fast.imported.opaque_ops),
        "lost": dict(report.lost),
        "stages": {stage.name: round(stage.seconds, 2) for stage in report.stages},
    }


def second(name: str, budget: str, seed: int, folder: Path) -> dict[str, Any]:
    """The same call in a later process: from the store, and from the saved file."""
    built = _made(name)
    wanted = jax.jit(built.fn)(*built.args, **built.kwargs)
    begin = time.perf_counter()
    fast = superopt.optimize(built.fn, *built.args, kwargs=built.kwargs, budget=budget, seed=seed, **built.options)
    row: dict[str, Any] = {"recall_s": time.perf_counter() - begin}
    row["stored"] = any(note.startswith(_FROM_STORE) for note in fast.report.notes)
    row["recalled_wrong"] = difference(wanted, fast(*built.args, **built.kwargs))
    if _file(folder).exists():
        begin = time.perf_counter()
        loaded = superopt.load(_file(folder))
        row["load_s"] = time.perf_counter() - begin
        row["loaded_wrong"] = difference(wanted, loaded(*built.args, **built.kwargs))
    return row


def example(name: str, budget: str, seed: int) -> dict[str, Any]:
    """The same text with one decorator and with the other."""
    from tests.upstream.examples import EXAMPLES  # late: a program needs none

    made: list[Any] = []

    def jit(*args: Any, **options: Any) -> Any:
        if not args:
            return functools.partial(jit, **options)
        made.append(superopt.jit(*args, **options, budget=budget, seed=seed))
        return made[-1]

    run = EXAMPLES[name]
    wanted = run(jax.jit)
    begin = time.perf_counter()
    got = run(jit)
    return {
        "case": name,
        "seconds": time.perf_counter() - begin,
        "programs": sum(len(fast.programs) for fast in made),
        "wrong": difference(wanted, got),
    }


def timed(built: Any, fast: Callable[..., Any], seed: int) -> dict[str, Any]:
    """Milliseconds and the paired ratio of interleaved rounds, until the bar is outside of its interval."""
    jitted, other = jax.jit(built.fn), jax.jit(built.fn)
    calls = {
        "jax": lambda: jitted(*built.args, **built.kwargs),
        "product": lambda: fast(*built.args, **built.kwargs),
        "again": lambda: other(*built.args, **built.kwargs),
    }
    samples, (ratio,) = until_decided(
        calls, [("jax", "product", NOT_SLOWER)], rounds=_ROUNDS, most_rounds=_MOST_ROUNDS, sample_s=_SAMPLE_S, seed=seed
    )
    floor = paired_ratio(samples["jax"], samples["again"], seed=seed)
    return {
        "jax_ms": 1e3 * median(samples["jax"]),
        "product_ms": 1e3 * median(samples["product"]),
        "ratio": ratio.ratio,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "noise_floor": floor.noise,
        "rounds": len(samples["jax"]),
    }


def difference(wanted: Any, got: Any) -> str:
    """Where results are not those of `jax.jit`, or an empty text."""
    if jax.tree.structure(wanted) != jax.tree.structure(got):
        return f"the structure is {jax.tree.structure(got)} instead of {jax.tree.structure(wanted)}"
    want, have = (list(map(_array, jax.tree.leaves(tree))) for tree in (wanted, got))
    for number, (error, x) in enumerate(zip(output_errors(want, have), want, strict=True)):
        if not Tolerance().accepts(error, str(x.dtype)):
            apart = f"{error.normwise:.2g} (largest element {error.elementwise:.2g})"
            return f"result {number}, {x.dtype}{list(x.shape)}: {error.detail or apart}"
    return ""


def _array(x: Any) -> np.ndarray:
    is_key = isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def _made(name: str) -> Any:
    from tests.upstream.programs import PROGRAMS, Draw  # late: an example needs none

    built = PROGRAMS[name].make(Draw())
    args, kwargs = jax.tree.map(
        lambda x: jax.device_put(x) if isinstance(x, np.ndarray) else x, (built.args, built.kwargs)
    )
    return replace(built, args=args, kwargs=kwargs)


def _file(folder: Path) -> Path:
    return folder / "program.superopt"


def _told(work: Callable[[], Any]) -> str:
    try:
        work()
    except superopt.SuperoptError as error:
        return str(error).splitlines()[0]
    return ""


_STEPS: Mapping[str, Callable[..., dict[str, Any]]] = {"first": first, "second": second, "example": example}

if __name__ == "__main__":
    case, limit, start, step, *folders = sys.argv[1:]
    try:
        print(json.dumps(_STEPS[step](case, limit, int(start), *map(Path, folders)), default=str))
    except Exception as failure:  # the last line on stderr is what the table shows
        traceback.print_exc()
        print(f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}", file=sys.stderr)
        sys.exit(1)
