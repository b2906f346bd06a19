"""The suite calls: the overhead of a call of a returned program that itself takes microseconds.

    superopt bench --suite calls --json

`superopt.jit` is timed beside `jax.jit`, with one type of arguments and with ten by turns.  A loaded program is timed
beside the optimised one that was saved.  Both are interleaved in one process.  A case meets the bar where its interval
does not lie below `BAR`, 1 / 1.1: at most 1.1 times the time of the other.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import superopt
from superopt.lab.bench import Result, Say, in_own_process, table_with_summary, wanted
from superopt.lab.bench.timing import median, until_decided
from superopt.measure.loop import Thunk

BAR = 1 / 1.1
SIZES = tuple(range(100, 1100, 100))
_ROUNDS, _MOST_ROUNDS, _SAMPLE_S = 31, 310, 0.02
_TIMEOUT_S = 600.0
_AT_ONCE = 100
_COLUMNS = (
    ("case", "calls", ""),
    ("base_us", "of JAX, or optimised, us", ".1f"),
    ("ours_us", "ours us", ".1f"),
    ("ratio", "ratio", ".2f"),
    ("low", "low", ".2f"),
    ("high", "high", ".2f"),
    ("failure", "failure", ""),
)


def _small(x: Any) -> Any:
    return jnp.tanh(x) * 2 + x


def _layers(weights: Any, x: Any) -> Any:
    for w in weights:
        x = jnp.tanh(x @ w)
    return x


def _vectors(sizes: Sequence[int]) -> list[jax.Array]:
    return [jnp.asarray(np.random.default_rng(n).standard_normal(n).astype(np.float32)) for n in sizes]


def _weights(count: int) -> list[jax.Array]:
    rng = np.random.default_rng(count)
    return [jnp.asarray(rng.standard_normal((16, 16)).astype(np.float32)) for _ in range(count)]


def _in_turn(fn: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Thunk:
    turns = itertools.cycle(arguments)
    return lambda: fn(*next(turns))


def _jitted(fn: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], budget: str) -> tuple[Thunk, Thunk]:
    ours = superopt.jit(fn, budget=budget, store=False)
    for given in arguments:
        ours(*given)
    return _in_turn(jax.jit(fn), arguments), _in_turn(ours, arguments)


def _at_once(calls: tuple[Thunk, Thunk]) -> tuple[Thunk, Thunk]:
    """A hundred calls of which the last one is waited for."""

    def many(call: Thunk) -> Thunk:
        return lambda: [call() for _ in range(_AT_ONCE)][-1]

    return many(calls[0]), many(calls[1])


def _loaded(fn: Callable[..., Any], arguments: tuple[Any, ...], frozen: Any, budget: str) -> tuple[Thunk, Thunk]:
    made = superopt.optimize(fn, *arguments, frozen=frozen, budget=budget, store=False)
    with tempfile.TemporaryDirectory(prefix="superopt-bench-") as folder:
        loaded = superopt.load(made.save(Path(folder) / "program.superopt"))
    return (lambda: made(*arguments)), (lambda: loaded(*arguments))


def _nested(given: dict[str, Any]) -> Any:
    return {"sum": given["a"] + given["b"][0], "product": given["a"] * given["b"][1]}


CASES: dict[str, Callable[[str], tuple[Thunk, Thunk]]] = {
    "jit, one type": lambda budget: _jitted(_small, [(x,) for x in _vectors(SIZES[:1])], budget),
    "jit, ten types": lambda budget: _jitted(_small, [(x,) for x in _vectors(SIZES)], budget),
    "jit, a tree": lambda budget: _jitted(_nested, [({"a": x, "b": (x, x)},) for x in _vectors(SIZES[:1])], budget),
    "jit, ten types of layers": lambda budget: _jitted(
        _layers, [(_weights(3), jnp.ones((n, 16))) for n in range(1, 11)], budget
    ),
    "jit, a hundred not waited for": lambda budget: _at_once(
        _jitted(lambda x: (x * 3) % 7, [(jnp.arange(4096),)], budget)
    ),
    "loaded, nothing frozen": lambda budget: _loaded(_small, tuple(_vectors(SIZES[:1])), None, budget),
    "loaded, two frozen": lambda budget: _loaded(_layers, (_weights(2), jnp.ones((4, 16))), 0, budget),
    "loaded, eight frozen": lambda budget: _loaded(_layers, (_weights(8), jnp.ones((4, 16))), 0, budget),
}


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Time the calls of every case, each in a process of its own."""
    rows: list[dict[str, Any]] = []
    for case in (name for name in CASES if wanted(name, cases)):
        rows.append(in_own_process("superopt.lab.bench.cost.calls", case, budget, seed, _TIMEOUT_S))
        say(f"{case}: {rows[-1].get('failure') or format(rows[-1]['ratio'], '.2f')}")
    good = [row for row in rows if "failure" not in row]
    summary = {
        "least": min((row["ratio"] for row in good), default=0.0),
        "below": float(sum(row["high"] < BAR for row in good)),
        "failed": float(len(rows) - len(good)),
    }
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def measure_case(case: str, budget: str, seed: int) -> dict[str, Any]:
    """Calls of a case, in microseconds, and the ratio of the two."""
    base, ours = CASES[case](budget)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), ours(), base())
    samples, (ratio,) = until_decided(
        {"base": base, "ours": ours}, [("base", "ours", BAR)],
        rounds=_ROUNDS, most_rounds=_MOST_ROUNDS, sample_s=_SAMPLE_S, seed=seed,
    )  # fmt: skip
    return {
        "case": case,
        "base_us": 1e6 * median(samples["base"]),
        "ours_us": 1e6 * median(samples["ours"]),
        "ratio": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
        "rounds": len(samples["base"]),
    }


if __name__ == "__main__":
    print(json.dumps(measure_case(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
